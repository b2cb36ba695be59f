// A speaker: everything about the sound that does not depend on what is said.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "aerie/data/speech/synth/phonemes.h"

namespace aerie::data::synth {

struct Voice {
  double pitch_hz;         // mean fundamental frequency
  double pitch_range;      // size of accents, relative to the mean
  double tract_scale;      // all formants are multiplied by it: shorter tract, higher formants
  double rate;             // > 1 speaks faster
  double rate_spread;      // logarithmic standard deviation of a sound's duration
  double breathiness;      // aspiration noise in voiced sounds, relative to voicing
  double open_quotient;    // share of a pitch period in which the glottis is open
  double tilt_hz;          // corner above which the voice source loses another 6 dB an octave
  double jitter;           // relative standard deviation of the period
  double shimmer;          // and of its amplitude
  double articulation_ms;  // how slowly formants move: small is clear, large is slurred
  double fricative_scale;  // noise resonances are multiplied by it
  double pause_chance;     // after a word
  // Accent of the speaker: factors on F1 and F2 of each phoneme.
  std::array<double, kNumPhonemes> f1_accent;
  std::array<double, kNumPhonemes> f2_accent;
  // Room: share of reverberation and its decay.
  double reverb_level;
  double reverb_time_s;
};

// Voice `index` of the corpus `seed`; a pure function of the two.
Voice make_voice(uint64_t seed, uint64_t index);

}  // namespace aerie::data::synth
