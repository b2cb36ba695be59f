#include "aerie/train/graph/autograd_parts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/device/gpu.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/nn/dtype_policy.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

constexpr const char* kFallenBackTo = "fallen_back_to";  // in the scalars of a state

bool is_statistic(const nn::ParamInfo& info) {
  if (!info.is_buffer || info.alias_of >= 0) return false;
  return ends_with(info.name, ".running_mean") || ends_with(info.name, ".running_var") ||
         ends_with(info.name, ".num_batches_tracked");
}

}  // namespace

void set_process_switches(const config::TrainerConfig& trainer, config::Tf32 tf32,
                          at::Device device, bool fixed_workspace) {
  at::Context& context = at::globalContext();
  nn::set_tf32(tf32);
  context.setBenchmarkCuDNN(trainer.benchmark);
  const bool deterministic = trainer.deterministic != config::Deterministic::kNo;
  // cuBLAS is repeatable only with a fixed workspace; it reads this when it starts.
  if ((deterministic || fixed_workspace) && device.is_cuda())
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  context.setDeterministicCuDNN(deterministic);
  context.setDeterministicAlgorithms(deterministic,
                                     trainer.deterministic == config::Deterministic::kWarn);
  // Filling fresh memory with NaN is a debugging aid of that mode, not part of determinism.
  context.setDeterministicFillUninitializedMemory(false);
  nn::prepare_cpu_runtime();
}

std::shared_ptr<std::vector<uint8_t>> watch_gradients(const nn::ParameterRegistry& registry) {
  auto flags = std::make_shared<std::vector<uint8_t>>(registry.trainable().size(), 0);
  for (size_t t = 0; t < flags->size(); ++t) {
    registry.tensor(registry.trainable()[t]).register_hook([flags, t](const at::Tensor& grad) {
      if (grad.defined()) (*flags)[t] = 1;
    });
  }
  return flags;
}

std::function<void(const std::string&, const at::Tensor&)> first_nonfinite(std::string* culprit) {
  return [culprit](const std::string& name, const at::Tensor& value) {
    if (culprit->empty() && value.is_floating_point() &&
        !at::isfinite(value.detach()).all().item<bool>())
      *culprit = name;
  };
}

void run_backward(const at::Tensor& loss, bool detect_anomaly) {
  std::optional<torch::autograd::DetectAnomalyGuard> guard;
  if (detect_anomaly) guard.emplace(/*check_nan=*/true);
  loss.backward();
}

std::unique_ptr<optim::Ema> make_ema(nn::ParameterRegistry& registry,
                                     const config::EmaConfig& config) {
  if (!config.enable) return nullptr;
  return std::make_unique<optim::Ema>(registry, config.decay, config.every_n_steps,
                                      config.cpu_offload && registry.device().is_cuda());
}

std::vector<int64_t> batch_norm_statistics(const nn::ParameterRegistry& registry) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < registry.size(); ++i)
    if (is_statistic(registry.entries()[static_cast<size_t>(i)])) out.push_back(i);
  return out;
}

void keep_statistics(const nn::ParameterRegistry& registry, std::span<const int64_t> statistics,
                     std::span<const at::Tensor> before, const at::Tensor& found) {
  for (size_t k = 0; k < statistics.size(); ++k) {
    const at::Tensor& now = registry.tensor(statistics[k]);
    now.copy_(at::where(found != 0, before[k], now));
  }
}

PassMark mark_passes(const nn::ParameterRegistry& registry, std::span<const int64_t> statistics,
                     const std::vector<uint8_t>& has_grad, bool with_grads) {
  PassMark out;
  out.has_grad = has_grad;
  for (const int64_t i : statistics) out.statistics.push_back(registry.tensor(i).clone());
  if (with_grads) out.grads = registry.flat_grads().clone();
  return out;
}

void roll_back_passes(const PassMark& mark, const nn::ParameterRegistry& registry,
                      std::span<const int64_t> statistics, std::vector<uint8_t>& has_grad) {
  const at::NoGradGuard no_grad;
  for (size_t k = 0; k < statistics.size(); ++k)
    registry.tensor(statistics[k]).copy_(mark.statistics[k]);
  if (mark.grads.defined()) registry.flat_grads().copy_(mark.grads);
  has_grad = mark.has_grad;
}

Status show_whole_state(optim::Optimizer& optimizer, GradientReducer* reducer, void* stream,
                        bool gather) {
  if (!optimizer.kept()) return ok_status();
  try {
    optimizer.show_whole();
    if (!gather) return ok_status();
    for (const at::Tensor& buffer : optimizer.buffers())
      if (const int code = reducer->gather(buffer, stream); code != 0) return reducer->error(code);
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("collecting the optimizer's state");
  }
}

Result<config::Precision> precision_below(config::Precision precision, at::Device device) {
  if (precision != config::Precision::k16Mixed)
    return unsupported(
        str_cat("nothing to fall back to from precision ", config::precision_name(precision)));
  bool bf16 = true;
  if (device.is_cuda()) {
    const auto& gpus = device::driver().gpus;
    const auto index = static_cast<size_t>(std::max<int>(0, device.index()));
    bf16 = index < gpus.size() && gpus[index].compute_major >= 8;
  }
  return bf16 ? config::Precision::kBf16Mixed : config::Precision::k32;
}

TextScalars fallen_back_texts(bool fallen_back, config::Precision precision) {
  TextScalars texts;
  if (fallen_back) texts.emplace_back(kFallenBackTo, config::precision_name(precision));
  return texts;
}

Result<std::optional<config::Precision>> fallen_back_to(const ReadState& read,
                                                        config::Precision precision) {
  const auto saved = read.text(kFallenBackTo);
  if (!saved) return std::optional<config::Precision>();
  if (*saved != "bf16-mixed" && *saved != "32")
    return data_error("the precision in the checkpoint is damaged");
  if (precision != config::Precision::k16Mixed) return std::optional<config::Precision>();
  return std::optional(*saved == "32" ? config::Precision::k32 : config::Precision::kBf16Mixed);
}

MemoryUse memory_use(at::Device device, size_t own) {
  constexpr double kGib = 1073741824.0;
  MemoryUse out;
  if (device.is_cuda()) {
    const auto stats =
        at::accelerator::getDeviceStats(std::max<c10::DeviceIndex>(0, device.index()));
    const double beside = static_cast<double>(own) / kGib;
    out.current_gib = static_cast<double>(stats.allocated_bytes[0].current) / kGib + beside;
    out.peak_gib = static_cast<double>(stats.allocated_bytes[0].peak) / kGib + beside;
  } else {
    const ProcessMemory memory = process_memory();
    out.current_gib = static_cast<double>(memory.rss_bytes) / kGib;
    out.peak_gib = static_cast<double>(memory.peak_rss_bytes) / kGib;
  }
  return out;
}

}  // namespace aerie::train
