// Background noises: what a model has to hear through.
#pragma once

#include <cstdint>
#include <vector>

namespace aerie::data::synth {

enum class NoiseKind { kBabble = 0, kHum = 1, kTraffic = 2, kClicks = 3 };
constexpr int kNumNoiseKinds = 4;

const char* noise_kind_name(NoiseKind kind);  // "babble", "hum", "traffic", "clicks"

// Clip `index` of the corpus `seed`, num_samples long (>= 0.4 s), between -32 and -20 dB RMS of
// full scale. Babble is several voices talking at once, none of which speaks in the corpus itself.
// A pure function of its arguments; any thread.
std::vector<float> make_noise(uint64_t seed, uint64_t index, NoiseKind kind, int num_samples);

}  // namespace aerie::data::synth
