// Small models, batches and state sources for the tests of this folder.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "aerie/models/nest/engine/nest_core.h"
#include "aerie/models/nest/test_util.h"

namespace aerie::train {

// Appendix B's small model, with masks drawn by the default rule.
inline config::RunConfig small_run_config() {
  config::RunConfig config;
  config.model = nest::reference_model_config();
  config.model.masking.mask_prob = 0.03;
  config.model.masking.block_size = 16;
  config.model.optim.kind = config::OptimizerKind::kAdamW;
  config.model.optim.betas = {0.9, 0.98};
  config.model.optim.weight_decay = 1e-3;
  config.aerie.seed = 17;
  return config;
}

// Heads 64 wide, as those of the larger sizes.
inline config::RunConfig fast_run_config() {
  config::RunConfig config = small_run_config();
  config::ModelConfig& m = config.model;
  m.encoder.d_model = 128;
  m.encoder.n_heads = 2;
  m.encoder.subsampling_conv_channels = 32;
  m.decoder.feat_in = 128;
  return config;
}

// All randomness on.
inline config::RunConfig noisy_run_config() {
  config::RunConfig config = small_run_config();
  config::EncoderConfig& e = config.model.encoder;
  e.dropout = e.dropout_pre_encoder = e.dropout_emb = e.dropout_att = 0.1;
  e.stochastic_depth_drop_prob = 0.2;
  config.model.preprocessor.dither = 1e-3;
  return config;
}

inline std::unique_ptr<NestCore> make_core(const config::RunConfig& config,
                                           at::Device device = at::kCPU) {
  auto model = nest::NestModel::create(config.model, config.aerie, device);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  auto core = NestCore::create(std::move(model).value(), config);
  EXPECT_TRUE(core.ok()) << core.status().to_string();
  return std::move(core).value();
}

// `rows` clips of differing length and pitch; clean and noisy differ.
inline nest::NestBatch make_batch(int64_t rows, uint64_t micro_step, uint64_t seed = 17,
                                  at::Device device = at::kCPU) {
  const int64_t longest = 12000;
  nest::NestBatch batch;
  batch.audio = at::zeros({rows, longest}, at::kFloat);
  batch.noisy = at::zeros({rows, longest}, at::kFloat);
  batch.lengths = at::zeros({rows}, at::kLong);
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t length =
        b == rows / 2 ? longest : 6000 + (b * 1731 + 977 * static_cast<int64_t>(micro_step)) % 5000;
    const double pitch =
        0.02 + 0.013 * static_cast<double>(b) + 0.004 * static_cast<double>(micro_step % 7);
    const at::Tensor t = at::arange(length, at::kDouble);
    const at::Tensor clean = 0.3 * (t * pitch + 1e-6 * t * t).sin() * (t * 0.0011).cos();
    batch.audio[b].narrow(0, 0, length).copy_(clean);
    batch.noisy[b].narrow(0, 0, length).copy_(clean + 0.05 * (t * t * 0.37).sin());
    batch.lengths[b] = length;
  }
  batch.noisy_lengths = batch.lengths.clone();
  batch.padded_samples = longest;
  batch.random.seed = seed;
  batch.random.micro_step = micro_step;
  if (!device.is_cpu()) {
    for (at::Tensor* tensor : {&batch.audio, &batch.noisy, &batch.lengths, &batch.noisy_lengths})
      *tensor = tensor->to(device);
  }
  return batch;
}

inline NestCore::MakeBatch batches(int64_t rows, uint64_t first_micro_step,
                                   at::Device device = at::kCPU) {
  return [=](int64_t i) -> Result<nest::NestBatch> {
    return make_batch(rows, first_micro_step + static_cast<uint64_t>(i), 17, device);
  };
}

// A step of `count` micro-batches.
inline StepOutcome step(NestCore& core, uint64_t first_micro_step, int64_t count = 1,
                        double lr = 1e-3, int64_t rows = 3) {
  const Status status =
      core.add(count, batches(rows, first_micro_step, core.device()), count, /*split=*/1);
  EXPECT_TRUE(status.ok()) << status.to_string();
  auto outcome = core.finish(std::vector<double>(core.optimizer().groups().size(), lr));
  EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  return outcome.ok() ? *outcome : StepOutcome();
}

// Every tensor that a step may change, copied.
inline std::map<std::string, at::Tensor> full_state(NestCore& core) {
  std::map<std::string, at::Tensor> out;
  const nn::ParameterRegistry& registry = core.model().parameters();
  for (int64_t i = 0; i < registry.size(); ++i)
    out["model." + registry.entries()[static_cast<size_t>(i)].name] =
        registry.tensor(i).detach().clone();
  for (const optim::NamedState& state : core.optimizer().state())
    out["optimizer." + state.name] = state.tensor.clone();
  out["steps"] = core.optimizer().step_counts().clone();
  if (core.ema() != nullptr) {
    out["ema"] = core.ema()->flat().clone();
    out["ema_count"] = core.ema()->count().clone();
  }
  return out;
}

inline std::string first_difference(const std::map<std::string, at::Tensor>& a,
                                    const std::map<std::string, at::Tensor>& b) {
  if (a.size() != b.size()) return "number of tensors";
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || !at::equal(tensor.cpu(), found->second.cpu())) return name;
  }
  return "";
}

// A snapshot read back from memory.
class MemorySource final : public StateSource {
 public:
  explicit MemorySource(StateSnapshot& snapshot) {
    EXPECT_TRUE(snapshot.wait().ok());
    scalars_ = snapshot.scalars_json();
    for (const SnapshotTensor& tensor : snapshot.tensors())
      tensors_.emplace_back(tensor,
                            std::string(static_cast<const char*>(tensor.data), tensor.bytes));
  }
  std::vector<std::string> names(const std::string& file) const override {
    std::vector<std::string> out;
    for (const auto& [tensor, bytes] : tensors_)
      if (tensor.file == file) out.push_back(tensor.name);
    return out;
  }
  Status read(const std::string& file, const std::string& name, Dtype dtype,
              const std::vector<int64_t>& shape, void* out) const override {
    for (const auto& [tensor, bytes] : tensors_) {
      if (tensor.file != file || tensor.name != name) continue;
      if (tensor.dtype != dtype || tensor.shape != shape) return data_error("type or shape");
      std::memcpy(out, bytes.data(), bytes.size());
      return ok_status();
    }
    return data_error("no tensor " + name);
  }
  const std::string& scalars_json() const override { return scalars_; }

  std::string& scalars() { return scalars_; }
  void drop_file(const std::string& file) {
    std::erase_if(tensors_, [&](const auto& one) { return one.first.file == file; });
  }
  void drop(const std::string& file, const std::string& name) {
    std::erase_if(tensors_, [&](const auto& one) {
      return one.first.file == file && one.first.name == name;
    });
  }
  void rename(const std::string& from, const std::string& to) {
    for (auto& [tensor, bytes] : tensors_)
      if (tensor.name == from) tensor.name = to;
  }

 private:
  std::vector<std::pair<SnapshotTensor, std::string>> tensors_;
  std::string scalars_;
};

}  // namespace aerie::train
