// What engines on autograd share, whatever they train: torch's switches, which parameters got a
// gradient, BatchNorm's statistics, going back behind a failed call, precision, memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/nn/param_registry.h"
#include "aerie/optim/ema.h"
#include "aerie/optim/optimizer.h"
#include "aerie/train/graph/flat_state.h"
#include "aerie/train/graph/gradient_reducer.h"

namespace aerie::train {

// Of the whole process: deterministic, benchmark, TF32, threads of the CPU. `fixed_workspace`:
// cuBLAS gets one also where this engine need not be deterministic. Torch looks once in a process,
// at the first product, so that a deterministic engine after another one would be refused.
void set_process_switches(const config::TrainerConfig& trainer, config::Tf32 tf32,
                          at::Device device, bool fixed_workspace = false);

// A flag for each trainable parameter; hooks set it when one gets a gradient.
std::shared_ptr<std::vector<uint8_t>> watch_gradients(const nn::ParameterRegistry& registry);

// For the taps of a forward pass: `culprit` becomes the name of the first value that is not finite.
std::function<void(const std::string&, const at::Tensor&)> first_nonfinite(std::string* culprit);
// `detect_anomaly`: an operation whose gradient is NaN ends it with an exception that names it.
void run_backward(const at::Tensor& loss, bool detect_anomaly);

// Null where it is off.
std::unique_ptr<optim::Ema> make_ema(nn::ParameterRegistry& registry,
                                     const config::EmaConfig& config);

// The registry's entries that a forward pass of training changes.
std::vector<int64_t> batch_norm_statistics(const nn::ParameterRegistry& registry);
// They stay as `before` where a step was skipped (`found` is not 0).
void keep_statistics(const nn::ParameterRegistry& registry, std::span<const int64_t> statistics,
                     std::span<const at::Tensor> before, const at::Tensor& found);

// What passes change, as it was before them.
struct PassMark {
  at::Tensor grads;  // undefined: there were none
  std::vector<uint8_t> has_grad;
  std::vector<at::Tensor> statistics;
};
PassMark mark_passes(const nn::ParameterRegistry& registry, std::span<const int64_t> statistics,
                     const std::vector<uint8_t>& has_grad, bool with_grads);
void roll_back_passes(const PassMark& mark, const nn::ParameterRegistry& registry,
                      std::span<const int64_t> statistics, std::vector<uint8_t>& has_grad);

// Where the optimizer is sharded: whole moments, for a snapshot to read (`gather`) or a checkpoint
// to be read into, until optimizer.hide_whole().
Status show_whole_state(optim::Optimizer& optimizer, GradientReducer* reducer, void* stream,
                        bool gather);

// What 16-mixed falls back to: bf16-mixed, or 32 without bf16.
Result<config::Precision> precision_below(config::Precision precision, at::Device device);
// A state's texts for a run that has fallen back.
TextScalars fallen_back_texts(bool fallen_back, config::Precision precision);
// What a saved run had fallen back to, for one that would otherwise start in 16-mixed again.
Result<std::optional<config::Precision>> fallen_back_to(const ReadState& read,
                                                        config::Precision precision);

// Of a GPU what torch has allocated on it and `own` bytes beside, which never shrink; of a CPU the
// process's.
struct MemoryUse {
  double current_gib = 0.0, peak_gib = 0.0;
};
MemoryUse memory_use(at::Device device, size_t own);

}  // namespace aerie::train
