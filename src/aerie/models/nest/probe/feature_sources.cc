#include "aerie/models/nest/probe/feature_sources.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/models/nest/features/clips.h"
#include "aerie/nn/torch_error.h"

namespace aerie::probe {
namespace {

// Samples of one batch with padding: about a minute, enough to keep two cores or a GPU busy.
constexpr size_t kBatchSamples = 1'000'000;

// Utterances of a batch as tensors on the model's device.
Result<features::ClipBatch> batch_of(const nest::NestModel& model,
                                     std::span<const Utterance* const> utterances) {
  std::vector<const std::vector<float>*> clips;
  for (const Utterance* utterance : utterances) clips.push_back(&utterance->samples);
  return features::make_clip_batch(clips, model.parameters().device());
}

int64_t frames_of(const Utterance& utterance, int64_t frame_samples) {
  return num_centred_frames(static_cast<int64_t>(utterance.samples.size()), frame_samples);
}

// The first `rows` of (T,d); encoders that end a frame early repeat their last one.
at::Tensor fit_rows(const at::Tensor& x, int64_t rows) {
  if (rows <= x.size(0)) return x.narrow(0, 0, rows);
  if (x.size(0) == 0) return at::zeros({rows, x.size(1)}, x.options());
  const at::Tensor last = x.narrow(0, x.size(0) - 1, 1);
  return at::cat({x, last.expand({rows - x.size(0), x.size(1)})});
}

at::Tensor mean_rows(const at::Tensor& x) {
  return x.size(0) == 0 ? at::zeros({x.size(1)}, x.options()) : x.mean(0);
}

}  // namespace

int64_t frame_samples_of(const nest::NestModel& model) {
  const config::ModelConfig& config = model.settings().model;
  return config.preprocessor.hop_length() * config.encoder.subsampling_factor;
}

FeatureSource encoder_source(std::string name, const nest::NestModel& model) {
  FeatureSource out{std::move(name), true, {}};
  out.compute =
      [&model](
          std::span<const Utterance* const> utterances) -> Result<std::vector<UtteranceFeatures>> {
    AERIE_ASSIGN_OR_RETURN(const features::ClipBatch batch, batch_of(model, utterances));
    AERIE_ASSIGN_OR_RETURN(const nn::EncoderOutput encoded,
                           model.encode(batch.audio, batch.lengths, {}, true));
    const at::Tensor lengths = encoded.lengths.to(at::kCPU);
    const int64_t frame_samples = frame_samples_of(model);
    std::vector<UtteranceFeatures> features(utterances.size());
    for (size_t i = 0; i < utterances.size(); ++i) {
      for (const at::Tensor& layer : encoded.layers) {
        const int64_t valid =
            std::clamp<int64_t>(lengths.const_data_ptr<int64_t>()[i], 0, layer.size(2));
        const at::Tensor x = layer[static_cast<int64_t>(i)].narrow(1, 0, valid).t().to(at::kFloat);
        features[i].frames.push_back(fit_rows(x, frames_of(*utterances[i], frame_samples)));
        features[i].pooled.push_back(mean_rows(x));
      }
    }
    return features;
  };
  return out;
}

FeatureSource log_mel_source(const nest::NestModel& model) {
  FeatureSource out{"log_mel", false, {}};
  out.compute =
      [&model](
          std::span<const Utterance* const> utterances) -> Result<std::vector<UtteranceFeatures>> {
    AERIE_ASSIGN_OR_RETURN(const features::ClipBatch batch, batch_of(model, utterances));
    const nest::Features mel = model.preprocessor().forward(batch.audio, batch.lengths, {});
    const at::Tensor raw = model.preprocessor().log_mel(batch.audio, batch.lengths, {});
    const at::Tensor lengths = mel.lengths.to(at::kCPU);
    const int64_t frame_samples = frame_samples_of(model);
    const int64_t stack = model.settings().model.encoder.subsampling_factor;
    const int64_t bins = mel.values.size(1);
    std::vector<UtteranceFeatures> features(utterances.size());
    for (size_t i = 0; i < utterances.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const int64_t frames = frames_of(*utterances[i], frame_samples);
      at::Tensor x = mel.values[row].t();  // (T,D), zero behind the end
      x = x.narrow(0, 0, std::min(x.size(0), frames * stack));
      if (x.size(0) < frames * stack)
        x = at::cat({x, at::zeros({frames * stack - x.size(0), bins}, x.options())});
      features[i].frames.push_back(x.reshape({frames, stack * bins}));
      const int64_t valid =
          std::clamp<int64_t>(lengths.const_data_ptr<int64_t>()[i], 0, raw.size(2));
      features[i].pooled.push_back(mean_rows(raw[row].narrow(1, 0, valid).t()));
    }
    return features;
  };
  return out;
}

FeatureSource energy_source(const nest::NestModel& model) {
  FeatureSource out{"energy", false, {}};
  out.compute =
      [&model](
          std::span<const Utterance* const> utterances) -> Result<std::vector<UtteranceFeatures>> {
    const int64_t frame_samples = frame_samples_of(model);
    std::vector<UtteranceFeatures> features(utterances.size());
    for (size_t i = 0; i < utterances.size(); ++i) {
      const std::vector<float>& samples = utterances[i]->samples;
      const int64_t frames = frames_of(*utterances[i], frame_samples);
      at::Tensor energy = at::zeros({frames, 1}, at::kFloat);
      double total = 0.0;
      for (int64_t f = 0; f < frames; ++f) {
        const auto begin = static_cast<size_t>(f * frame_samples);
        const size_t end = std::min(samples.size(), begin + static_cast<size_t>(frame_samples));
        double power = 0.0;
        for (size_t s = begin; s < end; ++s)
          power += static_cast<double>(samples[s]) * static_cast<double>(samples[s]);
        const double value = std::log(power / static_cast<double>(end - begin) + 1e-10);
        energy.data_ptr<float>()[f] = static_cast<float>(value);
        total += value;
      }
      const double mean = frames > 0 ? total / static_cast<double>(frames) : 0.0;
      const at::Device device = model.parameters().device();
      features[i].frames.push_back(energy.sub_(mean).to(device));
      features[i].pooled.push_back(at::full({1}, mean, at::kFloat).to(device));
    }
    return features;
  };
  return out;
}

Result<FeatureTable> make_table(const FeatureSource& source, const std::vector<Utterance>& part,
                                const TableRequest& request,
                                const std::function<void(size_t)>& done) {
  at::NoGradGuard no_grad;
  std::vector<size_t> order(part.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return part[a].samples.size() < part[b].samples.size();
  });
  std::vector<UtteranceFeatures> all(part.size());
  try {
    for (size_t begin = 0; begin < order.size();) {
      if (const int signal = caught_signal(); signal != 0)
        return cancelled(str_cat("stopped by ", signal_name(signal)));
      // Sorted by length: the last of a batch is what the others are padded to.
      size_t end = begin + 1;
      while (end < order.size() &&
             (end - begin + 1) * part[order[end]].samples.size() <= kBatchSamples)
        ++end;
      std::vector<const Utterance*> batch;
      for (size_t i = begin; i < end; ++i) batch.push_back(&part[order[i]]);
      AERIE_ASSIGN_OR_RETURN(std::vector<UtteranceFeatures> features, source.compute(batch));
      for (size_t i = 0; i < batch.size(); ++i) {
        const size_t utterance = order[begin + i];
        if (request.frames) {
          const std::vector<int64_t>& labels = (*request.labels)[utterance];
          std::vector<int64_t> rows;
          for (size_t f = 0; f < labels.size(); ++f)
            if (labels[f] >= 0) rows.push_back(static_cast<int64_t>(f));
          for (at::Tensor& x : features[i].frames)
            all[utterance].frames.push_back(
                x.index_select(0, at::tensor(rows, at::kLong).to(x.device())));
        }
        if (request.pooled) all[utterance].pooled = std::move(features[i].pooled);
      }
      if (done) done(batch.size());
      begin = end;
    }
    FeatureTable out;
    const auto gather = [&](auto member, bool stack) {
      std::vector<at::Tensor> tables;
      for (size_t layer = 0; !all.empty() && layer < (all[0].*member).size(); ++layer) {
        std::vector<at::Tensor> pieces;
        for (UtteranceFeatures& features : all)
          pieces.push_back(std::exchange((features.*member)[layer], at::Tensor()));
        tables.push_back(stack ? at::stack(pieces) : at::cat(pieces));
      }
      return tables;
    };
    if (request.frames) out.frames = gather(&UtteranceFeatures::frames, false);
    if (request.pooled) out.pooled = gather(&UtteranceFeatures::pooled, true);
    return out;
  } catch (const std::exception& error) {
    return internal_error(nn::torch_message(error))
        .with_context(str_cat("features: ", source.name));
  }
}

}  // namespace aerie::probe
