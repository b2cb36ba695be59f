#include "aerie/kernels/features/log_mel.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels {
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
Bank bank(int bins) {
  Bank out;
  out.weights.assign(static_cast<size_t>(bins * kFftBins), 0.0f);
  for (int b = 0; b < bins; ++b) {
    const int first = b * 250 / bins, last = std::min(kFftBins, first + 3 + b % 5);
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

Outcome run(Backend& b, float dither, bool clamp) {
  constexpr int kItems = 2, kRows = 4, kSamples = 5000, kFrames = 40, kBins = 20;
  const std::vector<int32_t> lengths = {5000, 161, 3333, 0};
  std::vector<float> audio = random_values(kRows * kSamples, 1, 0.5f);
  // Padding is garbage here: nothing of it may leak.
  LogMel a;
  a.rows = kRows;
  a.items = kItems;
  a.samples = kSamples;
  a.frames = kFrames;
  a.audio = b.upload(audio);
  a.lengths = b.upload(lengths);
  a.state = b.upload(std::vector<RandomState>{testing::random_state(8, 12)});
  a.dither = dither;
  a.clamp_guard = clamp;
  std::vector<float> window;
  for (int i = 0; i < 400; ++i)
    window.push_back(static_cast<float>(0.5 - 0.5 * std::cos(2.0 * M_PI * i / 399)));
  a.window = b.upload(window);
  a.twiddles = b.upload(twiddles());
  const Bank filters = bank(kBins);
  a.filterbank = b.upload(filters.weights);
  a.bands = b.upload(filters.bands);
  a.bins = kBins;
  const size_t n = kRows * kFrames * kBins;
  a.out = b.upload(std::vector<float>(n, -77.0f));
  EXPECT_EQ(b.kernels().log_mel(a, nullptr), kOk);

  NormalizeFeatures f;
  f.rows = kRows;
  f.frames = kFrames;
  f.bins = kBins;
  f.x = a.out;
  std::vector<int32_t> frames;
  for (const int32_t length : lengths) frames.push_back(length / 160);
  f.lengths = b.upload(frames);
  f.pad_value = 0.25f;
  f.first_masked_row = kItems;
  std::vector<uint8_t> mask(kItems * kFrames);
  for (size_t i = 3; i < mask.size(); i += 7) mask[i] = 1;
  f.mask = b.upload(mask);
  f.embedding = b.upload(random_values(kBins, 5));
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
  for (const float dither : {0.0f, 1e-3f}) {
    const Outcome e = run(*reference, dither, dither > 0.0f);
    const Outcome a = run(backend, dither, dither > 0.0f);
    testing::expect_close(a.levels, e.levels, 0, 2e-5, "log mel");
    testing::expect_close(a.features, e.features, 0, 1e-4, "features");
  }
}

}  // namespace
}  // namespace aerie::kernels
