#include "aerie/kernels/features/log_mel.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::log_mel_test {
namespace {

using testing::Backend;
using testing::random_values;

std::vector<float> twiddles() {
  std::vector<float> out;
  for (int k = 0; k < kFftSize; ++k) {
    out.push_back(static_cast<float>(std::cos(2.0 * M_PI * k / kFftSize)));
    out.push_back(static_cast<float>(-std::sin(2.0 * M_PI * k / kFftSize)));
  }
  return out;
}

// Bands with a few bins each; the real filterbank is tested with the model.
struct Bank {
  std::vector<float> weights;
  std::vector<int32_t> bands;
};
Bank bank(int bins, bool dense) {
  Bank out;
  out.weights.assign(static_cast<size_t>(bins * kFftBins), 0.0f);
  for (int b = 0; b < bins; ++b) {
    const int first = b * 250 / bins, last = std::min(kFftBins, first + (dense ? 90 : 3 + b % 5));
    for (int k = first; k < last; ++k)
      out.weights[static_cast<size_t>(b * kFftBins + k)] =
          0.01f * static_cast<float>(1 + k - first);
    out.bands.push_back(first);
    out.bands.push_back(last);
  }
  return out;
}

struct Outcome {
  std::vector<float> levels, features;
};

struct Case {
  float dither;
  bool clamp;
  int samples, hop, window, bins;
  bool dense;  // bands that overlap widely
  double tolerance;
};

Outcome run(Backend& b, const Case& c) {
  constexpr int kItems = 2, kRows = 4, kFrames = 40;
  const int kSamples = c.samples, kBins = c.bins;
  const std::vector<int32_t> lengths = {c.samples, 161, 3333, 0};
  std::vector<float> audio = random_values(static_cast<size_t>(kRows * kSamples), 1, 0.5f);
  // Padding is garbage here: nothing of it may leak.
  LogMel a;
  a.rows = kRows;
  a.items = kItems;
  a.samples = kSamples;
  a.frames = kFrames;
  a.audio = b.upload(audio);
  a.lengths = b.upload(lengths);
  a.state = b.upload(std::vector<RandomState>{testing::random_state(8, 12)});
  a.dither = c.dither;
  a.clamp_guard = c.clamp;
  a.hop = c.hop;
  a.window_length = c.window;
  std::vector<float> window;
  for (int i = 0; i < c.window; ++i)
    window.push_back(static_cast<float>(0.5 - 0.5 * std::cos(2.0 * M_PI * i / (c.window - 1))));
  a.window = b.upload(window);
  a.twiddles = b.upload(twiddles());
  const Bank filters = bank(kBins, c.dense);
  a.filterbank = b.upload(filters.weights);
  a.bands = b.upload(filters.bands);
  a.bins = kBins;
  const size_t n = static_cast<size_t>(kRows * kFrames * kBins);
  a.out = b.upload(std::vector<float>(n, -77.0f));
  EXPECT_EQ(b.kernels().log_mel(a, nullptr), kOk);

  NormalizeFeatures f;
  f.rows = kRows;
  f.frames = kFrames;
  f.bins = kBins;
  f.x = a.out;
  std::vector<int32_t> frames;
  for (const int32_t length : lengths) frames.push_back(std::min(length / c.hop, kFrames));
  f.lengths = b.upload(frames);
  f.pad_value = 0.25f;
  f.first_masked_row = kItems;
  std::vector<uint8_t> mask(kItems * kFrames);
  for (size_t i = 3; i < mask.size(); i += 7) mask[i] = 1;
  f.mask = b.upload(mask);
  f.embedding = b.upload(random_values(static_cast<size_t>(kBins), 5));
  f.out = b.upload(std::vector<float>(n, 3.0f));
  EXPECT_EQ(b.kernels().normalize_features(f, nullptr), kOk);
  const Outcome out = {b.download(a.out, n), b.download(f.out, n)};
  f.out = a.out;  // in place
  EXPECT_EQ(b.kernels().normalize_features(f, nullptr), kOk);
  EXPECT_EQ(b.download(a.out, n), out.features);
  return out;
}

AERIE_KERNEL_TEST(LogMel, FeaturesEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c : {Case{0.0f, false, 5000, 160, 400, 20, false, 2e-5},
                        Case{1e-3f, true, 5000, 160, 400, 20, false, 2e-5},
                        Case{1e-3f, false, 5003, 125, 512, 37, true, 2e-5},
                        // Levels near zero frequency, where pre-emphasis leaves little.
                        Case{0.0f, true, 4001, 97, 320, 9, false, 4e-5}}) {
    SCOPED_TRACE(c.samples);
    const Outcome e = run(*reference, c);
    const Outcome a = run(backend, c);
    testing::expect_close(a.levels, e.levels, 0, c.tolerance, "log mel");
    testing::expect_close(a.features, e.features, 0, 1e-4, "features");
  }
}

// More frames than a thread keeps in registers; rows of different lengths and one frame.
AERIE_KERNEL_TEST(NormalizeFeatures, LongRowsEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const int bins : {8, 3})
    for (const int frames : {700, 1600, 3400}) {
      const auto features = [&](Backend& b) {
        NormalizeFeatures f;
        f.rows = 3;
        f.frames = frames;
        f.bins = bins;
        const size_t n = static_cast<size_t>(3 * frames * bins);
        f.x = b.upload(random_values(n, 3, 4.0f));
        f.lengths = b.upload(std::vector<int32_t>{frames, frames - 5, 1});
        f.out = b.scratch<float>(n);
        EXPECT_EQ(b.kernels().normalize_features(f, nullptr), kOk);
        return b.download(f.out, n);
      };
      testing::expect_close(features(backend), features(*reference), 0, 2e-5, "features");
    }
}

}  // namespace
}  // namespace aerie::kernels::log_mel_test
