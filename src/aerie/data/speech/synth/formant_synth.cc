#include "aerie/data/speech/synth/formant_synth.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/data/speech/synth/dsp.h"
#include "aerie/data/speech/synth/reverb.h"
#include "aerie/data/speech/synth/streams.h"

namespace aerie::data::synth {

namespace {

constexpr double kRate = kSampleRate;
constexpr double kNasalPoleHz = 270.0;
constexpr double kHighestHz = 7400.0;  // resonances stay below half the sample rate

// One value per frame for everything that changes.
struct Tracks {
  explicit Tracks(size_t n)
      : f1(n),
        f2(n),
        f3(n),
        firmness(n),
        voicing(n),
        aspiration(n),
        frication(n),
        noise_hz(n),
        noise_bandwidth(n),
        nasal_zero(n),
        pitch(n) {}
  std::vector<double> f1, f2, f3, firmness;
  std::vector<double> voicing, aspiration, frication;
  std::vector<double> noise_hz, noise_bandwidth, nasal_zero, pitch;
};

// Centred moving average over 2 * half + 1 frames, twice (a triangle), in place.
void smooth(std::vector<double>& values, int half) {
  const int n = static_cast<int>(values.size());
  std::vector<double> sums(values.size() + 1, 0.0);
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < values.size(); ++i) sums[i + 1] = sums[i] + values[i];
    for (int i = 0; i < n; ++i) {
      const int first = std::max(0, i - half);
      const int last = std::min(n, i + half + 1);
      values[static_cast<size_t>(i)] =
          (sums[static_cast<size_t>(last)] - sums[static_cast<size_t>(first)]) / (last - first);
    }
  }
}

// Each target counts with its firmness: transparent sounds take on their neighbours' formants.
void smooth_weighted(std::vector<double>& values, const std::vector<double>& weights,
                     const std::vector<double>& smooth_weights, int half) {
  for (size_t i = 0; i < values.size(); ++i) values[i] *= weights[i];
  smooth(values, half);
  for (size_t i = 0; i < values.size(); ++i) values[i] /= smooth_weights[i];
}

int to_frames(double ms) {
  return static_cast<int>(std::lround(ms * 1e-3 / kFrameSeconds));
}

void set_amplitudes(Tracks& tracks, int begin, int end, double voicing, double aspiration,
                    double frication) {
  for (int i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    tracks.voicing[at] = voicing;
    tracks.aspiration[at] = aspiration;
    tracks.frication[at] = frication;
  }
}

void lay_targets(Tracks& tracks, const PlannedPhoneme& planned, const Voice& voice) {
  const Phoneme& sound = phoneme(planned.phoneme);
  const auto accent = static_cast<size_t>(planned.phoneme);
  const int begin = planned.begin_frame;
  const int end = planned.end_frame;
  for (int i = begin; i < end; ++i) {
    const auto at = static_cast<size_t>(i);
    tracks.f1[at] = sound.f1_hz * voice.tract_scale * voice.f1_accent[accent];
    tracks.f2[at] = sound.f2_hz * voice.tract_scale * voice.f2_accent[accent];
    tracks.f3[at] = sound.f3_hz * voice.tract_scale;
    tracks.firmness[at] = sound.firmness;
    tracks.noise_hz[at] = sound.noise_hz > 0.0
                              ? std::min(kHighestHz, sound.noise_hz * voice.fricative_scale)
                              : 3000.0;
    tracks.noise_bandwidth[at] = sound.noise_hz > 0.0 ? sound.noise_bandwidth_hz : 1000.0;
    tracks.nasal_zero[at] = sound.nasal_zero_hz > 0.0 ? sound.nasal_zero_hz : kNasalPoleHz;
  }
  const double stress = planned.accented ? 1.15 : 0.9;
  if (sound.kind != SoundKind::kPlosive) {
    const double breath = sound.aspiration + voice.breathiness * sound.voicing;
    set_amplitudes(tracks, begin, end, sound.voicing * stress, breath * stress,
                   sound.frication * stress);
    return;
  }
  // Closure, burst, aspiration; a plosive that is too short loses closure first.
  const int burst = std::max(2, to_frames(sound.burst_ms));
  const int release = std::min(end - begin, burst + to_frames(sound.aspiration_ms));
  const int burst_begin = end - release;
  const int burst_end = std::min(end, burst_begin + burst);
  set_amplitudes(tracks, begin, burst_begin, sound.voicing * stress, 0.0, 0.0);
  set_amplitudes(tracks, burst_begin, burst_end, 0.0, sound.aspiration * stress,
                 sound.frication * stress);
  set_amplitudes(tracks, burst_end, end, sound.voicing, sound.aspiration * stress, 0.0);
}

// Falling intonation over each stretch between pauses, a bump on stressed vowels, slow wandering.
void lay_pitch(Tracks& tracks, const UtterancePlan& plan, const Voice& voice,
               RandomStream& random) {
  size_t phrase = 0;
  while (phrase < plan.phonemes.size()) {
    size_t last = phrase;
    while (last + 1 < plan.phonemes.size() && plan.phonemes[last + 1].phoneme != kSilence) ++last;
    const int begin = plan.phonemes[phrase].begin_frame;
    const int end = plan.phonemes[last].end_frame;
    const double start = 1.0 + random.uniform(0.3, 1.0) * voice.pitch_range;
    const double finish = 1.0 - random.uniform(0.3, 1.0) * voice.pitch_range;
    for (int i = begin; i < end; ++i) {
      const double share = static_cast<double>(i - begin) / std::max(1, end - begin);
      tracks.pitch[static_cast<size_t>(i)] = start + (finish - start) * share;
    }
    phrase = last + 1;
  }
  for (const PlannedPhoneme& planned : plan.phonemes) {
    if (!planned.accented || phoneme(planned.phoneme).kind != SoundKind::kVowel) continue;
    const double bump = random.uniform(0.2, 1.0) * voice.pitch_range;
    for (int i = planned.begin_frame; i < planned.end_frame; ++i)
      tracks.pitch[static_cast<size_t>(i)] += bump;
  }
  smooth(tracks.pitch, 16);
  double wander = 0.0;
  for (double& value : tracks.pitch) {
    wander += 0.02 * random.normal() - 0.02 * wander;
    value = voice.pitch_hz * std::max(0.5, value + 0.1 * wander);
  }
}

Tracks make_tracks(const UtterancePlan& plan, const Voice& voice, RandomStream& random) {
  Tracks tracks(static_cast<size_t>(plan.num_frames));
  for (const PlannedPhoneme& planned : plan.phonemes) lay_targets(tracks, planned, voice);
  const int half = std::max(2, to_frames(voice.articulation_ms * 0.5));
  std::vector<double> weights = tracks.firmness;
  smooth(weights, half);
  for (auto* formant : {&tracks.f1, &tracks.f2, &tracks.f3})
    smooth_weighted(*formant, tracks.firmness, weights, half);
  smooth(tracks.nasal_zero, 4);
  smooth(tracks.voicing, 3);
  smooth(tracks.aspiration, 3);
  smooth(tracks.frication, 1);
  lay_pitch(tracks, plan, voice, random);
  return tracks;
}

// Glottal flow derivative by Klatt's polynomial pulse, one period at a time.
class GlottalSource final {
 public:
  GlottalSource(const Voice& voice, RandomStream& random) : voice_(voice), random_(random) {
    tilt_.set(voice.tilt_hz, kRate);
  }
  // Next sample; *open tells how far the glottis is open, which gates aspiration.
  double next(double pitch_hz, bool* open) {
    if (phase_ >= period_) {
      phase_ -= period_;
      const double jitter = std::clamp(1.0 + voice_.jitter * random_.normal(), 0.8, 1.2);
      period_ = kRate / pitch_hz * jitter;
      amplitude_ = std::clamp(1.0 + voice_.shimmer * random_.normal(), 0.5, 1.5);
    }
    const double x = phase_ / (period_ * voice_.open_quotient);
    phase_ += 1.0;
    *open = x < 1.0;
    return tilt_.run(x < 1.0 ? amplitude_ * (2.0 * x - 3.0 * x * x) : 0.0);
  }

 private:
  const Voice& voice_;
  RandomStream& random_;
  LowPass tilt_;
  double phase_ = 1.0;
  double period_ = 1.0;
  double amplitude_ = 1.0;
};

}  // namespace

std::vector<float> render_speech(uint64_t seed, uint64_t index, const UtterancePlan& plan,
                                 const Voice& voice) {
  RandomStream random(seed, Purpose::kSynth, kPitchStream, index);
  WhiteNoise noise(seed, kExcitationStream, index);
  const Tracks tracks = make_tracks(plan, voice, random);
  GlottalSource glottis(voice, random);

  std::array<Resonator, 5> formants;
  formants[3].set(std::min(kHighestHz, 3500.0 * voice.tract_scale), 300.0, kRate);
  formants[4].set(std::min(kHighestHz, 4500.0 * voice.tract_scale), 400.0, kRate);
  Resonator nasal_pole;
  nasal_pole.set(kNasalPoleHz, 100.0, kRate);
  AntiResonator nasal_zero;
  Resonator constriction;

  std::vector<float> out(static_cast<size_t>(plan.num_frames) * kFrameSamples);
  float* sample = out.data();
  for (int frame = 0; frame < plan.num_frames; ++frame) {
    const auto at = static_cast<size_t>(frame);
    formants[0].set(tracks.f1[at], 60.0 + 0.05 * tracks.f1[at], kRate);
    formants[1].set(tracks.f2[at], 70.0 + 0.03 * tracks.f2[at], kRate);
    formants[2].set(tracks.f3[at], 110.0 + 0.03 * tracks.f3[at], kRate);
    nasal_zero.set(tracks.nasal_zero[at], 100.0, kRate);
    constriction.set_bandpass(tracks.noise_hz[at], tracks.noise_bandwidth[at], kRate);
    const double voicing = tracks.voicing[at];
    const double aspiration = tracks.aspiration[at];
    const double frication = tracks.frication[at];
    const double pitch = tracks.pitch[at];
    for (int i = 0; i < kFrameSamples; ++i) {
      bool open = false;
      const double pulse = glottis.next(pitch, &open);
      const double white = noise.next();
      // Breath escapes while the glottis is open; without voicing it is open all the time.
      const double breath = white * (voicing > 0.05 && !open ? 0.4 : 1.0) * aspiration;
      double tract = voicing * pulse + 0.35 * breath;
      tract = nasal_zero.run(nasal_pole.run(tract));
      for (Resonator& formant : formants) tract = formant.run(tract);
      *sample++ = static_cast<float>(0.25 * tract + frication * constriction.run_bandpass(white));
    }
  }
  return out;
}

void record_speech(uint64_t seed, uint64_t index, const Voice& voice, std::vector<float>& samples) {
  RandomStream random(seed, Purpose::kSynth, kFloorStream, index);
  Reverb reverb(voice.reverb_time_s, voice.reverb_level * random.uniform(0.6, 1.4));
  LowPass microphone;
  microphone.set(random.uniform(1500.0, 3000.0), kRate);
  // Adds up to 4 dB of treble or takes up to 4 dB away.
  const double treble = std::pow(10.0, random.uniform(-4.0, 4.0) / 20.0);
  double energy = 0.0;
  for (float& value : samples) {
    const double wet = reverb.run(value);
    const double low = microphone.run(wet);
    const double out = low + treble * (wet - low);
    value = static_cast<float>(out);
    energy += out * out;
  }
  const double rms = std::sqrt(energy / static_cast<double>(std::max<size_t>(1, samples.size())));
  const double level = std::pow(10.0, random.uniform(-32.0, -20.0) / 20.0);
  double gain = level / std::max(rms, 1e-9);
  float peak = 0.0f;
  for (const float value : samples) peak = std::max(peak, std::fabs(value));
  gain = std::min(gain, 0.95 / std::max(1e-9, static_cast<double>(peak)));
  const double floor = level * std::pow(10.0, random.uniform(-50.0, -36.0) / 20.0);
  WhiteNoise hiss(seed, kFloorStream, index + (uint64_t{1} << 62));
  for (float& value : samples)
    value = static_cast<float>(value * gain + floor * std::numbers::sqrt3 * hiss.next());
}

std::vector<int16_t> to_pcm16(const std::vector<float>& samples) {
  std::vector<int16_t> out(samples.size());
  for (size_t i = 0; i < samples.size(); ++i)
    out[i] =
        static_cast<int16_t>(std::lround(std::clamp(samples[i] * 32768.0f, -32768.0f, 32767.0f)));
  return out;
}

}  // namespace aerie::data::synth
