// The formant synthesiser: turns an utterance plan and a voice into sound.
//
// Per 2.5 ms frame the targets of the phonemes become smooth tracks (formants slowly, amplitudes
// quickly); per sample a glottal pulse train with jitter and shimmer plus aspiration noise runs
// through five formants and a nasal pole and zero, and frication noise through one resonance of its
// own. Light reverberation and the recording's level and noise floor follow.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/data/speech/synth/utterance.h"
#include "aerie/data/speech/synth/voice.h"

namespace aerie::data::synth {

// plan.num_frames * kFrameSamples samples, not scaled: voiced speech peaks around 1. A pure
// function of its arguments; any thread.
std::vector<float> render_speech(uint64_t seed, uint64_t index, const UtterancePlan& plan,
                                 const Voice& voice);

// The utterance as recorded: reverberation, a random microphone tilt, noise floor, level.
void record_speech(uint64_t seed, uint64_t index, const Voice& voice, std::vector<float>& samples);

// Rounded to 16 bits; values beyond full scale are clipped.
std::vector<int16_t> to_pcm16(const std::vector<float>& samples);

}  // namespace aerie::data::synth
