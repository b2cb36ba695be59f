// The sounds of the synthetic language: 22 phonemes and silence, each with the targets that the
// formant synthesiser aims at. Values describe an adult male vocal tract; voices scale them.
#pragma once

#include <string_view>

namespace aerie::data::synth {

enum class SoundKind { kSilence, kVowel, kNasal, kLiquid, kFricative, kPlosive };

struct Phoneme {
  const char* label;
  SoundKind kind;
  double duration_ms;  // at normal rate, unstressed

  // Formants in Hz: what the tract does while the sound lasts.
  double f1_hz, f2_hz, f3_hz;
  // How firmly the sound holds its formants against its neighbours (coarticulation): near 0 for
  // sounds that take on the shape of what surrounds them.
  double firmness;

  // Amplitudes of the three sources, 1 = a stressed vowel's voicing.
  double voicing;
  double aspiration;  // noise at the glottis, filtered by the formants
  double frication;   // noise at a constriction, filtered by one resonance
  double noise_hz, noise_bandwidth_hz;

  double nasal_zero_hz;  // 0: the nose is shut

  // Plosives: closure (with `voicing`), then a burst of frication, then aspiration.
  double burst_ms;
  double aspiration_ms;
};

constexpr int kSilence = 0;
constexpr int kNumPhonemes = 23;  // with silence

const Phoneme& phoneme(int index);
// -1 when there is no such label.
int find_phoneme(std::string_view label);

}  // namespace aerie::data::synth
