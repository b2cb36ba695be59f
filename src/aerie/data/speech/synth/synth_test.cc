// The synthesiser's parts: language, plans, sound, noises, encoder.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <sndfile.h>

#include "aerie/base/env.h"
#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/speech/synth/audio_encoder.h"
#include "aerie/data/speech/synth/formant_synth.h"
#include "aerie/data/speech/synth/language.h"
#include "aerie/data/speech/synth/noise.h"
#include "aerie/data/speech/synth/utterance.h"
#include "aerie/data/speech/synth/voice.h"

namespace aerie::data::synth {
namespace {

// Power of a signal around one frequency (Goertzel with a Hann window).
double power_at(const float* samples, size_t count, double hz) {
  double re = 0.0, im = 0.0;
  for (size_t i = 0; i < count; ++i) {
    const double t = static_cast<double>(i);
    const double hann = 0.5 - 0.5 * std::cos(2 * std::numbers::pi * t / static_cast<double>(count));
    const double phase = 2 * std::numbers::pi * hz * t / kSampleRate;
    re += hann * samples[i] * std::cos(phase);
    im += hann * samples[i] * std::sin(phase);
  }
  return (re * re + im * im) / static_cast<double>(count);
}

double band_power(const std::vector<float>& samples, double low_hz, double high_hz) {
  double sum = 0.0;
  for (double hz = low_hz; hz <= high_hz; hz += 25.0)
    sum += power_at(samples.data(), samples.size(), hz);
  return sum;
}

double rms(const std::vector<float>& samples) {
  double energy = 0.0;
  for (const float value : samples) energy += static_cast<double>(value) * value;
  return std::sqrt(energy / static_cast<double>(samples.size()));
}

Voice plain_voice() {
  Voice voice = make_voice(1, 0);
  voice.tract_scale = 1.0;
  voice.f1_accent.fill(1.0);
  voice.f2_accent.fill(1.0);
  voice.pitch_hz = 120.0;
  voice.pitch_range = 0.0;
  voice.jitter = 0.002;
  return voice;
}

std::vector<float> sustained(const char* label, const Voice& voice) {
  UtterancePlan plan;
  plan.num_frames = 160;
  plan.phonemes.push_back({find_phoneme(label), 0, 160, true});
  std::vector<float> samples = render_speech(1, 1, plan, voice);
  return {samples.begin() + 800, samples.begin() + 800 + 4096};
}

TEST(LanguageTest, UsesEveryPhonemeInSixtyWords) {
  const Language& language = Language::instance();
  EXPECT_EQ(language.num_words(), 60);
  std::vector<int> uses(kNumPhonemes);
  std::set<std::string> texts;
  for (int w = 0; w < language.num_words(); ++w) {
    texts.insert(language.word(w).text);
    for (const int index : language.word(w).phonemes) ++uses[static_cast<size_t>(index)];
  }
  EXPECT_EQ(texts.size(), 60u);
  EXPECT_EQ(uses[kSilence], 0);
  for (int p = 1; p < kNumPhonemes; ++p)
    EXPECT_GE(uses[static_cast<size_t>(p)], 5) << phoneme(p).label;
  EXPECT_EQ(find_phoneme("sil"), kSilence);
  EXPECT_EQ(find_phoneme("xx"), -1);
}

TEST(LanguageTest, FollowsItsBigrams) {
  const Language& language = Language::instance();
  RandomStream random(1, Purpose::kTest, 0, 0);
  std::vector<int> counts(60);
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(language.next_word(7, random))];
  std::sort(counts.rbegin(), counts.rend());
  const int top = std::accumulate(counts.begin(), counts.begin() + Language::kSuccessors, 0);
  EXPECT_NEAR(static_cast<double>(top) / kDraws, 0.957, 0.01);
  EXPECT_NEAR(static_cast<double>(counts[0]) / kDraws, 0.95 / 2.718, 0.02);
}

TEST(UtteranceTest, FillsTheTimeWithoutGapsAndSpellsItsText) {
  const Language& language = Language::instance();
  double silence = 0.0, total = 0.0;
  for (uint64_t id = 0; id < 50; ++id) {
    const Voice voice = make_voice(3, id);
    const int num_frames = 200 + static_cast<int>(id) * 63;
    const UtterancePlan plan = plan_utterance(3, id, voice, num_frames);
    ASSERT_EQ(plan.phonemes.front().begin_frame, 0);
    ASSERT_EQ(plan.phonemes.back().end_frame, num_frames);
    EXPECT_EQ(plan.phonemes.front().phoneme, kSilence);
    EXPECT_EQ(plan.phonemes.back().phoneme, kSilence);
    std::vector<int> said;
    for (size_t i = 0; i < plan.phonemes.size(); ++i) {
      const PlannedPhoneme& sound = plan.phonemes[i];
      ASSERT_LT(sound.begin_frame, sound.end_frame);
      ASSERT_EQ(sound.begin_frame, i == 0 ? 0 : plan.phonemes[i - 1].end_frame);
      if (sound.phoneme == kSilence) {
        silence += sound.end_frame - sound.begin_frame;
      } else {
        said.push_back(sound.phoneme);
      }
    }
    total += num_frames;
    std::vector<int> spelled;
    for (const std::string& text : split(plan.text, ' ')) {
      bool found = false;
      for (int w = 0; w < language.num_words() && !found; ++w) {
        if (language.word(w).text != text) continue;
        found = true;
        spelled.insert(spelled.end(), language.word(w).phonemes.begin(),
                       language.word(w).phonemes.end());
      }
      ASSERT_TRUE(found) << text;
    }
    EXPECT_EQ(said, spelled) << plan.text;
  }
  EXPECT_LT(silence / total, 0.25) << "or silence alone would explain too much";
  EXPECT_GT(silence / total, 0.05);
}

TEST(VoiceTest, VoicesDifferAndRepeat) {
  std::set<double> pitches;
  for (uint64_t v = 0; v < 40; ++v) {
    const Voice voice = make_voice(9, v);
    pitches.insert(voice.pitch_hz);
    EXPECT_EQ(voice.pitch_hz, make_voice(9, v).pitch_hz);
    EXPECT_GT(voice.pitch_hz, 80.0);
    EXPECT_LT(voice.pitch_hz, 260.0);
  }
  EXPECT_EQ(pitches.size(), 40u);
}

TEST(FormantSynthTest, PutsFormantsWhereTheyBelong) {
  const Voice voice = plain_voice();
  const auto i = sustained("i", voice), u = sustained("u", voice), a = sustained("a", voice);
  // F2 of i lies near 2290 Hz, of u near 870 Hz; F1 of a near 730 Hz, of i near 280 Hz.
  EXPECT_GT(band_power(i, 2100, 2500) / band_power(i, 700, 1100), 1.0);
  EXPECT_LT(band_power(u, 2100, 2500) / band_power(u, 700, 1100), 0.05);
  EXPECT_GT(band_power(a, 600, 850) / band_power(a, 200, 400), 2.0);
  EXPECT_LT(band_power(i, 600, 850) / band_power(i, 200, 400), 0.5);
  // Hiss: s above sh.
  const auto s = sustained("s", voice), sh = sustained("sh", voice);
  EXPECT_GT(band_power(s, 5000, 6500), 4 * band_power(s, 2000, 3500));
  EXPECT_GT(band_power(sh, 2000, 3500), 4 * band_power(sh, 5000, 6500));
  EXPECT_LT(rms(sustained("sil", voice)), 1e-4);
}

TEST(FormantSynthTest, SpeaksAtTheVoicesPitch) {
  for (const double pitch : {100.0, 210.0}) {
    Voice voice = plain_voice();
    voice.pitch_hz = pitch;
    const auto a = sustained("a", voice);
    // The strongest autocorrelation at a plausible lag gives the period.
    double best = 0.0;
    int period = 0;
    for (int lag = 50; lag < 220; ++lag) {
      double sum = 0.0;
      for (size_t n = 0; n + 220 < a.size(); ++n)
        sum += static_cast<double>(a[n]) * a[n + static_cast<size_t>(lag)];
      if (sum > best) {
        best = sum;
        period = lag;
      }
    }
    EXPECT_NEAR(static_cast<double>(kSampleRate) / period, pitch, 0.06 * pitch);
  }
}

TEST(FormantSynthTest, LongTractsSoundLower) {
  Voice small = plain_voice(), large = plain_voice();
  small.tract_scale = 1.18;
  large.tract_scale = 0.88;
  const auto centre = [](const std::vector<float>& samples) {
    double sum = 0.0, weighted = 0.0;
    for (double hz = 1500; hz < 3500; hz += 20) {
      const double power = power_at(samples.data(), samples.size(), hz);
      sum += power;
      weighted += power * hz;
    }
    return weighted / sum;
  };
  EXPECT_GT(centre(sustained("e", small)), centre(sustained("e", large)) + 200.0);
}

TEST(FormantSynthTest, IsReproducibleFiniteAndInRange) {
  const Voice voice = make_voice(5, 3);
  const UtterancePlan plan = plan_utterance(5, 11, voice, 1200);
  std::vector<float> first = render_speech(5, 11, plan, voice);
  std::vector<float> second = render_speech(5, 11, plan, voice);
  ASSERT_EQ(first.size(), 1200u * kFrameSamples);
  EXPECT_EQ(first, second);
  EXPECT_NE(first, render_speech(6, 11, plan, voice));
  record_speech(5, 11, voice, first);
  record_speech(5, 11, voice, second);
  EXPECT_EQ(first, second);
  const double level_db = 20 * std::log10(rms(first));
  EXPECT_GT(level_db, -34.0);
  EXPECT_LT(level_db, -18.0);
  for (const float value : first) ASSERT_LE(std::fabs(value), 1.0f);
  for (uint64_t id = 0; id < 30; ++id) {
    const Voice other = make_voice(7, id);
    std::vector<float> samples = render_speech(7, id, plan_utterance(7, id, other, 400), other);
    for (const float value : samples) ASSERT_TRUE(std::isfinite(value) && std::fabs(value) < 20.0f);
  }
}

TEST(FormantSynthTest, ClipsToSixteenBits) {
  EXPECT_EQ(to_pcm16({0.0f, 1.0f, -1.0f, 2.0f, -2.0f, 0.5f}),
            (std::vector<int16_t>{0, 32767, -32768, 32767, -32768, 16384}));
}

TEST(NoiseTest, KindsHaveTheirCharacter) {
  constexpr int kSamples = 6 * kSampleRate;
  for (int k = 0; k < kNumNoiseKinds; ++k) {
    const auto kind = static_cast<NoiseKind>(k);
    for (uint64_t index = 0; index < 3; ++index) {
      const auto clip = make_noise(2, index, kind, kSamples);
      ASSERT_EQ(clip.size(), static_cast<size_t>(kSamples));
      EXPECT_EQ(clip, make_noise(2, index, kind, kSamples)) << noise_kind_name(kind);
      EXPECT_NE(clip, make_noise(2, index + 1, kind, kSamples));
      const double level_db = 20 * std::log10(rms(clip));
      EXPECT_GT(level_db, -50.0) << noise_kind_name(kind);
      EXPECT_LT(level_db, -19.0) << noise_kind_name(kind);
      double mean = 0.0;
      float peak = 0.0f;
      for (const float value : clip) {
        mean += value;
        peak = std::max(peak, std::fabs(value));
      }
      EXPECT_LT(std::fabs(mean) / kSamples, 1e-4);
      EXPECT_LE(peak, 0.96f);
      if (kind == NoiseKind::kClicks) {
        EXPECT_GT(peak / rms(clip), 5.0) << "clicks stand out";
      }
      if (kind == NoiseKind::kTraffic) {
        const std::vector<float> part(clip.begin(), clip.begin() + 8192);
        EXPECT_GT(band_power(part, 30, 300), band_power(part, 4000, 4270));
      }
    }
  }
}

TEST(AudioEncoderTest, BothFormatsReadBackExactly) {
  const TempDir dir;
  std::vector<int16_t> samples;
  RandomStream random(1, Purpose::kTest, 0, 0);
  for (int i = 0; i < 10'000; ++i)
    samples.push_back(static_cast<int16_t>(random.randint(-32768, 32767)));
  for (const AudioFormat format : {AudioFormat::kWav, AudioFormat::kFlac}) {
    const std::string bytes = encode_audio(samples, kSampleRate, format).value();
    EXPECT_EQ(bytes, encode_audio(samples, kSampleRate, format).value());
    const std::string path = dir.file(str_cat("a.", audio_format_name(format)));
    ASSERT_TRUE(Env::real().write_file(path, bytes).ok());
    SF_INFO info{};
    SNDFILE* file = sf_open(path.c_str(), SFM_READ, &info);
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(info.samplerate, kSampleRate);
    EXPECT_EQ(info.channels, 1);
    std::vector<int16_t> back(static_cast<size_t>(info.frames));
    sf_read_short(file, back.data(), info.frames);
    sf_close(file);
    EXPECT_EQ(back, samples);
  }
  EXPECT_TRUE(encode_audio({}, kSampleRate, AudioFormat::kWav).ok());
  EXPECT_FALSE(parse_audio_format("mp3").ok());
}

}  // namespace
}  // namespace aerie::data::synth
