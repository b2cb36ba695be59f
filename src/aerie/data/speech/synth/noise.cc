#include "aerie/data/speech/synth/noise.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "aerie/base/philox.h"
#include "aerie/data/speech/synth/dsp.h"
#include "aerie/data/speech/synth/formant_synth.h"
#include "aerie/data/speech/synth/reverb.h"
#include "aerie/data/speech/synth/streams.h"

namespace aerie::data::synth {

namespace {

constexpr double kNoiseRate = kSampleRate;
constexpr double kTwoPi = 2.0 * std::numbers::pi;

// Noise that falls by about 3 dB an octave: a sum of low-passed white noises.
class PinkNoise final {
 public:
  explicit PinkNoise(WhiteNoise& white) : white_(white) {
    double hz = 20.0;
    for (LowPass& stage : stages_) {
      stage.set(hz, kNoiseRate);
      hz *= 4.0;
    }
  }
  double next() {
    const double x = white_.next();
    double out = 0.05 * x;
    double gain = 1.0;
    for (LowPass& stage : stages_) {
      out += gain * stage.run(x);
      gain *= 0.5;
    }
    return out;
  }

 private:
  WhiteNoise& white_;
  LowPass stages_[5];
};

void add_babble(uint64_t seed, uint64_t index, RandomStream& random, std::vector<float>& out) {
  const int num_voices = static_cast<int>(random.randint(5, 10));
  for (int v = 0; v < num_voices; ++v) {
    const uint64_t id = index * 16 + static_cast<uint64_t>(v);
    const Voice voice = make_voice(seed, kBabbleVoices + id);
    const int num_frames = static_cast<int>(out.size()) / kFrameSamples + 1;
    const UtterancePlan plan = plan_utterance(seed, kBabbleUtterances + id, voice, num_frames);
    std::vector<float> speech = render_speech(seed, kBabbleUtterances + id, plan, voice);
    // Farther away than the speaker: more room, less presence.
    Reverb room(random.uniform(0.3, 0.7), random.uniform(0.2, 0.5));
    const double gain = std::pow(10.0, random.uniform(-6.0, 0.0) / 20.0);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] += static_cast<float>(gain * room.run(speech[i]));
  }
}

void add_hum(WhiteNoise& white, RandomStream& random, std::vector<float>& out) {
  const double mains_hz = random.uniform() < 0.5 ? 50.0 : 60.0;
  constexpr int kHarmonics = 16;
  double level[kHarmonics], phase[kHarmonics];
  for (int h = 0; h < kHarmonics; ++h) {
    level[h] = std::pow(h + 1.0, -random.uniform(0.4, 1.2)) * random.uniform(0.2, 1.0);
    phase[h] = random.uniform(0.0, kTwoPi);
  }
  const double sway_hz = random.uniform(0.05, 0.4);
  const double sway = random.uniform(0.0, 0.4);
  const double fan = random.uniform(0.02, 0.5);
  PinkNoise air(white);
  for (size_t i = 0; i < out.size(); ++i) {
    const double t = static_cast<double>(i) / kNoiseRate;
    double hum = 0.0;
    for (int h = 0; h < kHarmonics; ++h)
      hum += level[h] * std::sin(kTwoPi * mains_hz * (h + 1) * t + phase[h]);
    out[i] +=
        static_cast<float>(hum * (1.0 + sway * std::sin(kTwoPi * sway_hz * t)) + fan * air.next());
  }
}

// A steady low rumble and vehicles that swell and fade, each with tyre noise and an engine tone.
void add_traffic(WhiteNoise& white, RandomStream& random, std::vector<float>& out) {
  const double length_s = static_cast<double>(out.size()) / kNoiseRate;
  struct Vehicle {
    double at_s, width_s, gain, engine_hz, engine_level, tyre_hz;
  };
  std::vector<Vehicle> vehicles(static_cast<size_t>(2 + length_s / random.uniform(2.0, 6.0)));
  for (Vehicle& vehicle : vehicles)
    vehicle = {random.uniform(-1.0, length_s + 1.0),
               random.uniform(0.5, 2.5),
               random.uniform(0.3, 2.0),
               random.uniform(30.0, 120.0),
               random.uniform(0.05, 0.4),
               random.uniform(600.0, 2500.0)};
  LowPass rumble[2];
  for (LowPass& stage : rumble) stage.set(random.uniform(80.0, 300.0), kNoiseRate);
  std::vector<LowPass> tyres(vehicles.size());
  for (size_t v = 0; v < vehicles.size(); ++v) tyres[v].set(vehicles[v].tyre_hz, kNoiseRate);
  const double rumble_gain = random.uniform(2.0, 6.0);
  for (size_t i = 0; i < out.size(); ++i) {
    const double t = static_cast<double>(i) / kNoiseRate;
    const double x = white.next();
    double sum = rumble_gain * rumble[1].run(rumble[0].run(x));
    for (size_t v = 0; v < vehicles.size(); ++v) {
      const Vehicle& vehicle = vehicles[v];
      const double distance = (t - vehicle.at_s) / vehicle.width_s;
      if (std::fabs(distance) > 4.0) continue;
      // Sound pressure falls with distance; 1 / (1 + d^2) is a vehicle passing in a straight line.
      const double near = vehicle.gain / (1.0 + distance * distance);
      const double phase = kTwoPi * vehicle.engine_hz * t;
      const double engine = std::sin(phase) + 0.6 * std::sin(2 * phase) + 0.4 * std::sin(3 * phase);
      sum += near * (tyres[v].run(x) + vehicle.engine_level * engine);
    }
    out[i] += static_cast<float>(sum);
  }
}

// Keys, dishes, dripping: short decaying resonances at random moments over faint pink noise.
void add_clicks(WhiteNoise& white, RandomStream& random, std::vector<float>& out) {
  const double per_s = random.uniform(2.0, 12.0);
  PinkNoise floor(white);
  const double floor_gain = random.uniform(0.02, 0.15);
  for (float& value : out) value += static_cast<float>(floor_gain * floor.next());
  double at = -std::log(1.0 - random.uniform()) / per_s * kNoiseRate;
  while (at < static_cast<double>(out.size())) {
    const double hz = random.uniform(500.0, 6000.0);
    const double decay_s = random.uniform(0.001, 0.02);
    const double gain = std::exp(0.7 * random.normal());
    const double noisy = random.uniform(0.0, 1.0);
    const size_t begin = static_cast<size_t>(at);
    const size_t end =
        std::min(out.size(), begin + static_cast<size_t>(8.0 * decay_s * kNoiseRate) + 1);
    for (size_t i = begin; i < end; ++i) {
      const double t = static_cast<double>(i - begin) / kNoiseRate;
      const double tone = std::sin(kTwoPi * hz * t);
      out[i] += static_cast<float>(gain * std::exp(-t / decay_s) *
                                   (tone + noisy * (white.next() - tone)));
    }
    at += -std::log(1.0 - random.uniform()) / per_s * kNoiseRate;
  }
}

}  // namespace

const char* noise_kind_name(NoiseKind kind) {
  switch (kind) {
    case NoiseKind::kBabble:
      return "babble";
    case NoiseKind::kHum:
      return "hum";
    case NoiseKind::kTraffic:
      return "traffic";
    case NoiseKind::kClicks:
      return "clicks";
  }
  return "unknown";
}

std::vector<float> make_noise(uint64_t seed, uint64_t index, NoiseKind kind, int num_samples) {
  RandomStream random(seed, Purpose::kSynth, kNoisePlanStream, index);
  WhiteNoise white(seed, kNoiseSampleStream, index);
  std::vector<float> out(static_cast<size_t>(num_samples), 0.0f);
  switch (kind) {
    case NoiseKind::kBabble:
      add_babble(seed, index, random, out);
      break;
    case NoiseKind::kHum:
      add_hum(white, random, out);
      break;
    case NoiseKind::kTraffic:
      add_traffic(white, random, out);
      break;
    case NoiseKind::kClicks:
      add_clicks(white, random, out);
      break;
  }
  double mean = 0.0, energy = 0.0;
  for (const float value : out) mean += value;
  mean /= static_cast<double>(out.size());
  float peak = 0.0f;
  for (float& value : out) {
    value -= static_cast<float>(mean);
    energy += static_cast<double>(value) * value;
    peak = std::max(peak, std::fabs(value));
  }
  const double rms = std::sqrt(energy / static_cast<double>(out.size()));
  const double level = std::pow(10.0, random.uniform(-32.0, -20.0) / 20.0);
  // Clicks peak far above their RMS: quieter rather than clipped.
  const double gain =
      std::min(level / std::max(rms, 1e-9), 0.95 / std::max(1e-9, static_cast<double>(peak)));
  for (float& value : out) value = static_cast<float>(value * gain);
  return out;
}

}  // namespace aerie::data::synth
