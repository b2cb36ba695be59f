// Optimizers over the flat buffers of a ParameterRegistry, with torch's (adamw, adam, sgd) and
// NeMo's (novograd) arithmetic.
//
// Parameters that follow each other in memory and share their settings are updated by one call over
// the whole range. Nothing waits for the device: the decision to skip a step that is not finite is
// a tensor (`found_inf`), and a skipped step changes neither parameters, moments nor step counts,
// to the bit.
//
// A parameter that got no gradient in a step is passed over as torch does: no decay, no change of
// its moments, its step count stays behind. Frozen parameters own an index (torch numbers them too)
// but no state.
//
// The registry must outlive the optimizer and must not be materialized again. Not synchronised.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/config/schema/optim_config.h"
#include "aerie/nn/param_registry.h"

namespace aerie::optim {

// Settings of one parameter group, resolved.
struct GroupSettings {
  double lr = 1e-3;  // base rate: what a schedule starts from
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool amsgrad = false;
  bool maximize = false;
  double momentum = 0.0;  // sgd from here
  double dampening = 0.0;
  bool nesterov = false;
  bool grad_averaging = false;  // novograd from here
  bool luc = false;
  double luc_trust = 1e-3;
  double luc_eps = 1e-8;
};

struct OptimizerGroup {
  std::string name;              // "" for the group of remaining parameters
  std::vector<int64_t> entries;  // of the registry, frozen ones included, in public order
  GroupSettings settings;
};

// The groups of a config: remaining parameters first (when there are any), then one group for every
// entry of optim_param_groups. Errors name modules that do not exist and parameters claimed twice.
Result<std::vector<OptimizerGroup>> make_groups(
    const nn::ParameterRegistry& registry, const config::OptimConfig& config,
    const std::vector<config::ParamGroupConfig>& param_groups);

// A piece of the optimizer's state, a view into it: "exp_avg.encoder.layers.0.norm_out.weight".
struct NamedState {
  std::string name;
  at::Tensor tensor;
};

class Optimizer {
 public:
  // `no_weight_decay`: parameters whose name contains one of these parts are not decayed.
  static Result<std::unique_ptr<Optimizer>> create(
      nn::ParameterRegistry& registry, const config::OptimConfig& config,
      const std::vector<config::ParamGroupConfig>& param_groups,
      const std::vector<std::string>& no_weight_decay);
  Optimizer(nn::ParameterRegistry& registry, config::OptimizerKind kind,
            std::vector<OptimizerGroup> groups, const std::vector<std::string>& no_weight_decay);

  // One update from the registry's flat gradients. `learning_rates`: one per group. `found_inf`:
  // 0-dim float32 on the registry's device, not 0: the step is skipped; undefined: it is not.
  // `has_grad`: one flag per element of registry.trainable(); empty: all have gradients.
  void step(std::span<const double> learning_rates, const at::Tensor& found_inf = {},
            std::span<const uint8_t> has_grad = {});

  // sgd's momentum, or the first beta, of every group from now on (CyclicLR's cycle_momentum).
  void set_momentum(double momentum);

  config::OptimizerKind kind() const { return kind_; }
  const std::vector<OptimizerGroup>& groups() const { return groups_; }
  std::vector<double> base_rates() const;
  // Settings of a group for some of its parameters: those without decay have their own.
  struct RangeSettings {
    size_t group = 0;
    GroupSettings values;
  };
  // `t`: index into registry.trainable().
  const RangeSettings& settings_of(size_t t) const { return settings_[settings_of_[t]]; }
  nn::ParameterRegistry& registry() const { return *registry_; }

  // Every tensor of the state, in public order of the parameters. Writing into the views changes
  // the state.
  std::vector<NamedState> state() const;
  // The flat buffers behind state(), in a fixed order, for fast copies.
  std::vector<at::Tensor> buffers() const;
  // Updates done to each trainable parameter: float32, order of registry.trainable(), on the
  // device.
  const at::Tensor& step_counts() const { return steps_; }
  // `counts`: like step_counts(), on any device.
  void set_step_counts(const at::Tensor& counts);
  // Forgets everything, as after construction.
  void reset();

  // Sharding over ranks: from now on only moments of elements [begin, end) of the flat buffers are
  // held, and step() updates only these. Step counts are those of all. Not for novograd, whose
  // moments are whole tensors'.
  void keep(int64_t begin, int64_t end);
  bool kept() const { return kept_end_ >= 0; }
  // state() and buffers() show whole buffers, with zeros where others hold the moments, for
  // somebody to fill in and read; then those held are taken from them, if `take`, and the rest is
  // forgotten.
  void show_whole();
  void hide_whole(bool take);

  // Masks skipped steps on the CPU too, where they are otherwise just not taken. For tests.
  void always_mask(bool on) { always_mask_ = on; }

 private:
  // Neighbours in memory with equal settings and equal history.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    size_t settings = 0;          // into settings_
    int64_t first_trainable = 0;  // whose step count stands for all
    std::vector<int64_t> trainable;
  };

  void advance_history(std::span<const uint8_t> has_grad);
  std::vector<Range> make_ranges(std::span<const uint8_t> has_grad) const;
  void update_adam(const Range& range, double lr, const at::Tensor& found);
  void update_sgd(const Range& range, double lr, const at::Tensor& found);
  void update_novograd(const Range& range, double lr, const at::Tensor& found);

  nn::ParameterRegistry* registry_;
  config::OptimizerKind kind_;
  std::vector<OptimizerGroup> groups_;
  std::vector<RangeSettings> settings_;  // groups, split by weight decay
  std::vector<size_t> settings_of_;      // per trainable parameter
  std::vector<int64_t> memory_order_;    // trainable parameters by flat offset
  std::vector<int64_t> history_;         // equal numbers: equal step counts
  std::vector<Range> all_ranges_;        // of a step in which every parameter has a gradient
  at::Tensor steps_;                     // (trainable) float32
  struct Buffers {
    at::Tensor exp_avg, exp_avg_sq, max_exp_avg_sq, momentum;
  };
  static std::array<at::Tensor Buffers::*, 4> all_buffers();
  // Of the moments that are held, those of some elements.
  at::Tensor held(const at::Tensor& buffer, int64_t begin, int64_t end) const {
    return buffer.slice(0, begin - kept_begin_, end - kept_begin_);
  }
  Buffers moments_;
  std::optional<Buffers> whole_;
  int64_t kept_begin_ = 0, kept_end_ = -1;  // -1: all
  bool always_mask_ = false;
};

const char* optimizer_name(config::OptimizerKind kind);  // "adamw"

}  // namespace aerie::optim
