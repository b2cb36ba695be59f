#include "aerie/data/speech/synth/phonemes.h"

namespace aerie::data::synth {

namespace {

constexpr SoundKind kV = SoundKind::kVowel;
constexpr SoundKind kN = SoundKind::kNasal;
constexpr SoundKind kL = SoundKind::kLiquid;
constexpr SoundKind kF = SoundKind::kFricative;
constexpr SoundKind kP = SoundKind::kPlosive;

// Formants of vowels after the classic measurements of American English speakers; consonants are
// given by their loci, the points the formants head for.
constexpr Phoneme kPhonemes[kNumPhonemes] = {
    // label, kind, ms, F1, F2, F3, firm, voice, asp, fric, noise Hz, bandwidth, nasal, burst, asp
    // ms
    {"sil", SoundKind::kSilence, 150, 500, 1500, 2500, 0.05, 0, 0, 0, 0, 0, 0, 0, 0},
    {"a", kV, 105, 730, 1090, 2440, 1.0, 1.0, 0.02, 0, 0, 0, 0, 0, 0},
    {"e", kV, 95, 530, 1840, 2480, 1.0, 0.95, 0.02, 0, 0, 0, 0, 0, 0},
    {"i", kV, 90, 280, 2290, 3010, 1.0, 0.9, 0.02, 0, 0, 0, 0, 0, 0},
    {"o", kV, 100, 570, 840, 2410, 1.0, 1.0, 0.02, 0, 0, 0, 0, 0, 0},
    {"u", kV, 90, 310, 870, 2240, 1.0, 0.9, 0.02, 0, 0, 0, 0, 0, 0},
    {"ax", kV, 70, 500, 1450, 2500, 0.5, 0.8, 0.03, 0, 0, 0, 0, 0, 0},
    {"m", kN, 70, 270, 900, 2200, 1.2, 0.65, 0, 0, 0, 0, 500, 0, 0},
    {"n", kN, 70, 270, 1750, 2750, 1.2, 0.65, 0, 0, 0, 0, 700, 0, 0},
    {"l", kL, 70, 360, 1150, 2800, 1.2, 0.8, 0, 0, 0, 0, 0, 0, 0},
    {"r", kL, 70, 380, 1200, 1550, 1.3, 0.8, 0, 0, 0, 0, 0, 0, 0},
    {"w", kL, 65, 290, 640, 2200, 1.3, 0.75, 0, 0, 0, 0, 0, 0, 0},
    {"s", kF, 100, 320, 1500, 2550, 0.8, 0, 0.02, 0.36, 5600, 1700, 0, 0, 0},
    {"sh", kF, 100, 320, 1750, 2450, 0.8, 0, 0.02, 0.40, 2900, 900, 0, 0, 0},
    {"f", kF, 90, 320, 1000, 2200, 0.8, 0, 0.03, 0.28, 4200, 5000, 0, 0, 0},
    {"z", kF, 85, 280, 1550, 2550, 0.8, 0.40, 0, 0.26, 5600, 1700, 0, 0, 0},
    {"h", kF, 75, 500, 1500, 2500, 0.08, 0, 0.60, 0, 0, 0, 0, 0, 0},
    {"p", kP, 95, 280, 850, 2150, 0.9, 0, 0.34, 0.50, 1000, 1400, 0, 14, 28},
    {"t", kP, 95, 280, 1750, 2650, 0.9, 0, 0.34, 0.60, 4300, 1600, 0, 14, 32},
    {"k", kP, 100, 280, 1950, 2300, 0.5, 0, 0.34, 0.60, 1950, 500, 0, 18, 36},
    {"b", kP, 80, 230, 800, 2150, 0.9, 0.34, 0.05, 0.36, 900, 1400, 0, 10, 5},
    {"d", kP, 80, 230, 1750, 2650, 0.9, 0.34, 0.05, 0.46, 4000, 1600, 0, 10, 5},
    {"g", kP, 85, 230, 1950, 2250, 0.5, 0.34, 0.05, 0.46, 1850, 500, 0, 14, 6},
};

}  // namespace

const Phoneme& phoneme(int index) {
  return kPhonemes[index];
}

int find_phoneme(std::string_view label) {
  for (int i = 0; i < kNumPhonemes; ++i)
    if (label == kPhonemes[i].label) return i;
  return -1;
}

}  // namespace aerie::data::synth
