#include "aerie/models/nest/preprocessor.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bartlett_window.h>
#include <ATen/ops/blackman_window.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>
#include <ATen/ops/hamming_window.h>
#include <ATen/ops/hann_window.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stft.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/models/nest/mel_filterbank.h"
#include "aerie/nn/device_draws.h"
#include "aerie/nn/ops.h"

namespace aerie::nest {
namespace {

constexpr double kStdGuard = 1e-5;
constexpr double kMaxPadSeconds = 16.7;  // pad_to: max

// torch's own float32 recipe, not the rounded exact value: at the edges the two differ in the
// fourth digit.
Result<at::Tensor> analysis_window(const std::string& kind, int64_t length) {
  if (kind == "hann") return at::hann_window(length, false, at::kFloat);
  if (kind == "hamming") return at::hamming_window(length, false, at::kFloat);
  if (kind == "blackman") return at::blackman_window(length, false, at::kFloat);
  if (kind == "bartlett") return at::bartlett_window(length, false, at::kFloat);
  if (kind == "none") return at::ones({length}, at::kFloat);
  return invalid_argument(str_cat("window '", kind, "' is not known"))
      .with_context("model.preprocessor")
      .with_hint("hann, hamming, blackman, bartlett or none");
}

std::vector<float> to_vector(const at::Tensor& values) {
  const float* first = values.const_data_ptr<float>();
  return std::vector<float>(first, first + values.numel());
}

}  // namespace

Result<Preprocessor> Preprocessor::create(const nn::Scope& scope,
                                          const config::PreprocessorConfig& config) {
  auto bad = [](std::string text) {
    return invalid_argument(std::move(text)).with_context("model.preprocessor");
  };
  const int64_t window_length = config.win_length();
  const int64_t n_fft = config.fft_size();
  if (window_length < 1 || config.hop_length() < 1)
    return bad("window_size and window_stride must give at least one sample");
  if (n_fft < window_length)
    return bad(
        str_cat("n_fft ", n_fft, " is smaller than the window of ", window_length, " samples"));
  if (config.exact_pad && config.hop_length() % 2 == 1)
    return bad(str_cat("exact_pad needs an even hop, got ", config.hop_length(), " samples"));
  if (config.features < 1 || config.frame_splicing < 1)
    return bad("features and frame_splicing must be at least 1");
  // Far beyond any front end; what is made of them later stays within reason.
  if (n_fft > (1 << 20) || config.features > (1 << 16) || config.frame_splicing > 1024 ||
      config.sample_rate > 10'000'000 || config.pad_to > (1 << 20))
    return bad("a size is far beyond what can be built")
        .with_hint("check sample_rate, n_fft, features, frame_splicing and pad_to");
  if (config.normalize == config::FeatureNormalize::kFixed) {
    const auto want = static_cast<size_t>(config.features * config.frame_splicing);
    if (config.fixed_mean.size() != want || config.fixed_std.size() != want)
      return bad(str_cat("normalize: fixed_mean and fixed_std need ", want, " values each"));
  }

  Preprocessor out(config);
  AERIE_ASSIGN_OR_RETURN(at::Tensor window, analysis_window(config.window, window_length));
  if (config.window == "none") {
    out.ones_window_ = window;
  } else {
    out.window_ =
        scope.buffer("window", {window_length},
                     nn::Init::computed([window] { return to_vector(window); }), at::kFloat, true);
  }
  FilterbankOptions bank;
  bank.sample_rate = config.sample_rate;
  bank.n_fft = n_fft;
  bank.num_mels = config.features;
  bank.low_hz = config.lowfreq;
  bank.high_hz = config.highfreq.value_or(static_cast<double>(config.sample_rate) / 2.0);
  bank.norm = config.mel_norm == "none" ? "" : config.mel_norm;
  AERIE_RETURN_IF_ERROR(check_filterbank(bank));
  out.filterbank_ =
      scope.buffer("fb", {1, config.features, n_fft / 2 + 1},
                   nn::Init::computed([bank] { return mel_filterbank(bank); }), at::kFloat, true);
  return out;
}

int64_t Preprocessor::frames_of(int64_t samples) const {
  if (samples <= 0) return 0;
  const int64_t n_fft = config_.fft_size();
  const int64_t pad = config_.exact_pad ? (n_fft - config_.hop_length()) / 2 * 2 : n_fft / 2 * 2;
  const int64_t span = samples + pad - n_fft;
  // Floor division: an odd n_fft, or exact_pad with short audio, gives a negative span.
  return span >= 0 ? span / config_.hop_length()
                   : -((-span + config_.hop_length() - 1) / config_.hop_length());
}

int64_t Preprocessor::padded_frames_of(int64_t samples) const {
  const int64_t n_fft = config_.fft_size();
  const int64_t hop = config_.hop_length();
  const int64_t padded = samples + (config_.exact_pad ? (n_fft - hop) / 2 * 2 : n_fft / 2 * 2);
  const int64_t frames = padded < n_fft ? 0 : 1 + (padded - n_fft) / hop;
  if (config_.pad_to == config::PreprocessorConfig::kPadToMax) {
    const int64_t longest =
        frames_of(static_cast<int64_t>(kMaxPadSeconds * static_cast<double>(config_.sample_rate)));
    return std::max(frames, longest + (16 - longest % 16));
  }
  if (config_.pad_to <= 0) return frames;
  return (frames + config_.pad_to - 1) / config_.pad_to * config_.pad_to;
}

at::Tensor Preprocessor::log_mel(const at::Tensor& audio, const at::Tensor& lengths,
                                 const Mode& mode) const {
  at::NoGradGuard no_grad;
  const int64_t n_fft = config_.fft_size();
  const int64_t hop = config_.hop_length();
  at::Tensor x = audio.to(at::kFloat);
  if (config_.exact_pad) {
    const int64_t pad = (n_fft - hop) / 2;
    x = at::constant_pad_nd(x, {pad, pad});
  }
  if (mode.training && config_.dither > 0.0) {
    const at::Tensor normals =
        mode.injected_dither.defined()
            ? mode.injected_dither.to(x.device())
            : nn::dither_normals_on(x.device(), mode.random, mode.signal, x.size(0), x.size(1));
    x = x + config_.dither * normals;
  }
  if (config_.preemph) {
    x = at::cat({x.narrow(1, 0, 1),
                 x.narrow(1, 1, x.size(1) - 1) - *config_.preemph * x.narrow(1, 0, x.size(1) - 1)},
                1);
    x = x.masked_fill(nn::padding_mask(lengths, x.size(1)), 0.0);
  }

  const at::Tensor window =
      (window_.defined() ? window_.tensor() : ones_window_).to(x.device(), at::kFloat);
  x = at::stft(x, n_fft, hop, config_.win_length(), window, /*center=*/!config_.exact_pad,
               "constant", /*normalized=*/false, /*onesided=*/true, /*return_complex=*/true);
  x = at::view_as_real(x).pow(2).sum(-1).sqrt();  // (B,bins,T)

  if (mode.training && config_.nb_augmentation_prob > 0.0 &&
      static_cast<double>(config_.nb_max_freq) < static_cast<double>(config_.sample_rate) / 2.0) {
    const auto first_bin =
        static_cast<int64_t>(static_cast<double>(config_.nb_max_freq) /
                             static_cast<double>(config_.sample_rate) * static_cast<double>(n_fft));
    for (int64_t b = 0; b < x.size(0); ++b) {
      const bool narrow =
          mode.injected_narrow_band.empty()
              ? nn::uniform_of_item(mode.random, Purpose::kNarrowBand, mode.signal,
                                    static_cast<uint64_t>(b)) < config_.nb_augmentation_prob
              : mode.injected_narrow_band[static_cast<size_t>(b)];
      if (narrow) x.select(0, b).narrow(0, first_bin, x.size(1) - first_bin).zero_();
    }
  }

  if (config_.mag_power != 1.0) x = x.pow(config_.mag_power);
  x = at::matmul(filterbank_.tensor(), x);
  if (config_.log) {
    x = config_.log_zero_guard_clamp ? at::log(at::clamp_min(x, config_.log_zero_guard_value))
                                     : at::log(x + config_.log_zero_guard_value);
  }
  if (config_.frame_splicing > 1) {
    // NeMo's splicing repeats the features without shifting them in time.
    x = x.repeat({1, config_.frame_splicing, 1});
  }
  return x;
}

at::Tensor Preprocessor::normalize(const at::Tensor& x, const at::Tensor& lengths) const {
  using config::FeatureNormalize;
  const at::Tensor valid = nn::padding_mask(lengths, x.size(2)).logical_not().unsqueeze(1);
  switch (config_.normalize) {
    case FeatureNormalize::kPerFeature: {
      const at::Tensor count = valid.sum(2);  // (B,1) int64
      const at::Tensor mean = at::where(valid, x, 0.0).sum(2) / count;
      const at::Tensor centred = x - mean.unsqueeze(2);
      at::Tensor std = at::sqrt(at::where(valid, centred, 0.0).pow(2).sum(2) / (count - 1.0));
      std = std.masked_fill(std.isnan(), 0.0) + kStdGuard;
      return centred / std.unsqueeze(2);
    }
    case FeatureNormalize::kAllFeatures: {
      const at::Tensor count = valid.sum(at::IntArrayRef{1, 2}, true) * x.size(1);  // (B,1,1)
      const at::Tensor mean = at::where(valid, x, 0.0).sum(at::IntArrayRef{1, 2}, true) / count;
      const at::Tensor centred = x - mean;
      at::Tensor std = at::sqrt(
          at::where(valid, centred, 0.0).pow(2).sum(at::IntArrayRef{1, 2}, true) / (count - 1.0));
      std = std.masked_fill(std.isnan(), 0.0) + kStdGuard;
      return centred / std;
    }
    case FeatureNormalize::kFixed: {
      auto column = [&](const std::vector<double>& values) {
        return nn::sent_to(x.device(), at::tensor(at::ArrayRef<double>(values), at::kFloat))
            .view({1, -1, 1});
      };
      return (x - column(config_.fixed_mean)) / column(config_.fixed_std);
    }
    case FeatureNormalize::kNone:
      break;
  }
  return x;
}

Features Preprocessor::forward(const at::Tensor& audio, const at::Tensor& lengths,
                               const Mode& mode) const {
  at::NoGradGuard no_grad;
  const int64_t n_fft = config_.fft_size();
  const int64_t pad = config_.exact_pad ? (n_fft - config_.hop_length()) / 2 * 2 : n_fft / 2 * 2;
  const at::Tensor frames = at::div(lengths + (pad - n_fft), config_.hop_length(), "floor");
  Features out;
  out.lengths = at::where(lengths == 0, at::zeros_like(frames), frames);

  at::Tensor x = normalize(log_mel(audio, lengths, mode), out.lengths);
  x = x.masked_fill(nn::padding_mask(out.lengths, x.size(2)).unsqueeze(1), config_.pad_value);
  const int64_t want = padded_frames_of(audio.size(1));
  if (want > x.size(2)) x = at::constant_pad_nd(x, {0, want - x.size(2)}, config_.pad_value);
  out.values = x;
  return out;
}

}  // namespace aerie::nest
