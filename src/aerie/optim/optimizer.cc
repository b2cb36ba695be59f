#include "aerie/optim/optimizer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/nn/device_draws.h"
#include "aerie/optim/group_settings.h"

namespace aerie::optim {

const char* optimizer_name(config::OptimizerKind kind) {
  switch (kind) {
    case config::OptimizerKind::kAdamW:
      return "adamw";
    case config::OptimizerKind::kAdam:
      return "adam";
    case config::OptimizerKind::kSgd:
      return "sgd";
    case config::OptimizerKind::kNovograd:
      return "novograd";
  }
  return "";
}

GroupSettings group_settings(const config::OptimConfig& config) {
  GroupSettings out;
  out.lr = config.lr;
  out.betas = config.betas;
  out.eps = config.eps;
  out.weight_decay = config.weight_decay;
  out.amsgrad = config.amsgrad;
  out.maximize = config.maximize;
  out.momentum = config.momentum;
  out.dampening = config.dampening;
  out.nesterov = config.nesterov;
  out.grad_averaging = config.grad_averaging;
  out.luc = config.luc;
  out.luc_trust = config.luc_trust;
  out.luc_eps = config.luc_eps;
  return out;
}

namespace {

void put_momentum(config::OptimizerKind kind, double momentum, GroupSettings& settings) {
  if (kind == config::OptimizerKind::kSgd) {
    settings.momentum = momentum;
  } else {
    settings.betas[0] = momentum;
  }
}

}  // namespace

Result<std::vector<OptimizerGroup>> make_groups(
    const nn::ParameterRegistry& registry, const config::OptimConfig& config,
    const std::vector<config::ParamGroupConfig>& param_groups) {
  const GroupSettings base = group_settings(config);
  const std::vector<int64_t> parameters = registry.parameters();
  std::vector<OptimizerGroup> out(1);
  out[0].settings = base;
  for (const config::ParamGroupConfig& wanted : param_groups) {
    OptimizerGroup group;
    group.name = wanted.module;
    group.settings = base;
    GroupSettings& s = group.settings;
    s.lr = wanted.lr.value_or(s.lr);
    s.betas = wanted.betas.value_or(s.betas);
    s.eps = wanted.eps.value_or(s.eps);
    s.weight_decay = wanted.weight_decay.value_or(s.weight_decay);
    s.momentum = wanted.momentum.value_or(s.momentum);
    s.dampening = wanted.dampening.value_or(s.dampening);
    s.nesterov = wanted.nesterov.value_or(s.nesterov);
    s.amsgrad = wanted.amsgrad.value_or(s.amsgrad);
    out.push_back(std::move(group));
  }
  const bool cycles = config.sched && config.sched->kind == config::ScheduleKind::kCyclicLR &&
                      config.sched->cycle_momentum;
  // As torch does it: whatever the groups say, the schedule's momentum is theirs.
  if (cycles)
    for (OptimizerGroup& group : out)
      put_momentum(config.kind, config.sched->max_momentum, group.settings);
  for (const int64_t index : parameters) {
    const std::string& name = registry.entries()[static_cast<size_t>(index)].name;
    size_t owner = 0;
    for (size_t g = 1; g < out.size(); ++g) {
      const std::string& module = out[g].name;
      if (name != module && !starts_with(name, module + ".")) continue;
      if (owner != 0)
        return invalid_argument(str_cat("parameter ", name, " belongs to both ", out[owner].name,
                                        " and ", module))
            .with_context("model.optim_param_groups");
      owner = g;
    }
    out[owner].entries.push_back(index);
  }
  for (size_t g = 1; g < out.size(); ++g) {
    if (!out[g].entries.empty()) continue;
    std::vector<std::string> modules;
    for (const int64_t index : parameters) {
      const std::string& module = registry.entries()[static_cast<size_t>(index)].group;
      if (std::find(modules.begin(), modules.end(), module) == modules.end())
        modules.push_back(module);
    }
    return invalid_argument(str_cat("the model has no parameters below ", out[g].name))
        .with_context("model.optim_param_groups")
        .with_hint(str_cat("it has ", join(modules, ", ")));
  }
  if (out[0].entries.empty() && out.size() > 1) out.erase(out.begin());
  return out;
}

Result<std::unique_ptr<Optimizer>> Optimizer::create(
    nn::ParameterRegistry& registry, const config::OptimConfig& config,
    const std::vector<config::ParamGroupConfig>& param_groups,
    const std::vector<std::string>& no_weight_decay) {
  AERIE_ASSIGN_OR_RETURN(std::vector<OptimizerGroup> groups,
                         make_groups(registry, config, param_groups));
  return std::make_unique<Optimizer>(registry, config.kind, std::move(groups), no_weight_decay);
}

Optimizer::Optimizer(nn::ParameterRegistry& registry, config::OptimizerKind kind,
                     std::vector<OptimizerGroup> groups,
                     const std::vector<std::string>& no_weight_decay)
    : registry_(&registry), kind_(kind), groups_(std::move(groups)) {
  at::NoGradGuard no_grad;
  const std::vector<int64_t>& trainable = registry.trainable();
  const auto num = static_cast<int64_t>(trainable.size());
  std::map<int64_t, int64_t> position;  // registry entry -> number among the trainable ones
  for (int64_t t = 0; t < num; ++t) position[trainable[static_cast<size_t>(t)]] = t;

  constexpr size_t kNone = ~size_t{0};
  settings_of_.assign(trainable.size(), kNone);
  for (size_t g = 0; g < groups_.size(); ++g) {
    size_t decayed = kNone;
    size_t plain = kNone;
    for (const int64_t entry : groups_[g].entries) {
      const auto found = position.find(entry);
      if (found == position.end()) continue;
      const std::string& name = registry.entries()[static_cast<size_t>(entry)].name;
      const bool exempt =
          groups_[g].settings.weight_decay != 0.0 &&
          std::any_of(no_weight_decay.begin(), no_weight_decay.end(), [&](const std::string& part) {
            return name.find(part) != std::string::npos;
          });
      size_t& slot = exempt ? plain : decayed;
      if (slot == kNone) {
        slot = settings_.size();
        settings_.push_back({g, groups_[g].settings});
        if (exempt) settings_.back().values.weight_decay = 0.0;
      }
      size_t& owner = settings_of_[static_cast<size_t>(found->second)];
      AERIE_CHECK(owner == kNone, name, " is in two parameter groups");
      owner = slot;
    }
  }
  for (size_t t = 0; t < settings_of_.size(); ++t)
    AERIE_CHECK(settings_of_[t] != kNone,
                registry.entries()[static_cast<size_t>(trainable[t])].name,
                " is trainable but in no parameter group");

  memory_order_.resize(trainable.size());
  std::iota(memory_order_.begin(), memory_order_.end(), int64_t{0});
  const auto offset = [&](int64_t t) {
    return registry.entries()[static_cast<size_t>(trainable[static_cast<size_t>(t)])].flat_offset;
  };
  std::sort(memory_order_.begin(), memory_order_.end(),
            [&](int64_t a, int64_t b) { return offset(a) < offset(b); });

  const auto any = [&](auto&& pick) {
    return std::any_of(settings_.begin(), settings_.end(),
                       [&](const RangeSettings& s) { return pick(s.values); });
  };
  const at::Tensor& params = registry.flat_params();
  const bool amsgrad = any([](const GroupSettings& s) { return s.amsgrad; });
  if (kind_ == config::OptimizerKind::kSgd) {
    if (any([](const GroupSettings& s) { return s.momentum != 0.0; }))
      moments_.momentum = at::zeros_like(params);
  } else {
    moments_.exp_avg = at::zeros_like(params);
    // Novograd keeps one second moment per tensor.
    moments_.exp_avg_sq = kind_ == config::OptimizerKind::kNovograd
                              ? at::zeros({num}, params.options())
                              : at::zeros_like(params);
    if (amsgrad) moments_.max_exp_avg_sq = at::zeros_like(moments_.exp_avg_sq);
  }
  steps_ = at::zeros({num}, params.options().dtype(at::kFloat));
  history_.assign(trainable.size(), 0);
  all_ranges_ = make_ranges({});
}

std::vector<double> Optimizer::base_rates() const {
  std::vector<double> out;
  for (const OptimizerGroup& group : groups_) out.push_back(group.settings.lr);
  return out;
}

void Optimizer::set_momentum(double momentum) {
  for (RangeSettings& settings : settings_) put_momentum(kind_, momentum, settings.values);
  for (OptimizerGroup& group : groups_) put_momentum(kind_, momentum, group.settings);
  if (kind_ == config::OptimizerKind::kSgd && momentum != 0.0 && !moments_.momentum.defined())
    moments_.momentum =
        at::zeros_like(kept() ? registry_->flat_params().slice(0, kept_begin_, kept_end_)
                              : registry_->flat_params());
}

std::vector<Optimizer::Range> Optimizer::make_ranges(std::span<const uint8_t> has_grad) const {
  std::vector<Range> out;
  bool open = false;
  int64_t history = 0;
  for (const int64_t t : memory_order_) {
    const size_t k = static_cast<size_t>(t);
    if (!has_grad.empty() && has_grad[k] == 0) {
      open = false;
      continue;
    }
    const nn::ParamInfo& info =
        registry_->entries()[static_cast<size_t>(registry_->trainable()[k])];
    if (!open || out.back().settings != settings_of_[k] || history != history_[k]) {
      Range range;
      range.begin = info.flat_offset;
      range.settings = settings_of_[k];
      range.first_trainable = t;
      out.push_back(std::move(range));
      open = true;
      history = history_[k];
    }
    // Alignment gaps inside a range hold zeros, which every rule leaves zero (or, with eps 0,
    // undefined but unused).
    out.back().end = info.flat_offset + info.numel;
    out.back().trainable.push_back(t);
  }
  return out;
}

void Optimizer::advance_history(std::span<const uint8_t> has_grad) {
  std::map<std::pair<int64_t, uint8_t>, int64_t> ids;
  for (size_t t = 0; t < history_.size(); ++t) {
    const auto key = std::make_pair(history_[t], static_cast<uint8_t>(has_grad[t] != 0));
    history_[t] = ids.emplace(key, static_cast<int64_t>(ids.size())).first->second;
  }
}

void Optimizer::step(std::span<const double> learning_rates, const at::Tensor& found_inf,
                     std::span<const uint8_t> has_grad) {
  at::NoGradGuard no_grad;
  AERIE_CHECK(learning_rates.size() == groups_.size(), learning_rates.size(),
              " learning rates for ", groups_.size(), " parameter groups");
  AERIE_CHECK(has_grad.empty() || has_grad.size() == history_.size(), "has_grad has ",
              has_grad.size(), " flags for ", history_.size(), " parameters");
  at::Tensor found = found_inf;
  if (found.defined() && found.is_cpu() && !always_mask_) {
    // Nothing to wait for: decide here and save the masking.
    if (found.item<float>() != 0.0f) return;
    found = at::Tensor();
  }
  const bool all = std::all_of(has_grad.begin(), has_grad.end(), [](uint8_t f) { return f != 0; });
  std::vector<Range> some;
  at::Tensor counted;
  if (!all) {
    some = make_ranges(has_grad);
    std::vector<float> flags(has_grad.begin(), has_grad.end());
    for (float& flag : flags) flag = flag != 0.0f ? 1.0f : 0.0f;
    counted = nn::sent_to(steps_.device(), at::tensor(flags, at::kFloat));
  } else {
    counted = at::ones_like(steps_);
  }
  steps_.add_(found.defined() ? counted * (1.0f - found) : counted);
  for (Range range : all ? all_ranges_ : some) {
    if (kept()) {
      range.begin = std::max(range.begin, kept_begin_);
      range.end = std::min(range.end, kept_end_);
      if (range.begin >= range.end) continue;
    }
    const double lr = learning_rates[settings_[range.settings].group];
    switch (kind_) {
      case config::OptimizerKind::kAdamW:
      case config::OptimizerKind::kAdam:
        update_adam(range, lr, found);
        break;
      case config::OptimizerKind::kSgd:
        update_sgd(range, lr, found);
        break;
      case config::OptimizerKind::kNovograd:
        update_novograd(range, lr, found);
        break;
    }
  }
  if (!all) {
    advance_history(has_grad);
    all_ranges_ = make_ranges({});
  }
}

void Optimizer::update_adam(const Range& range, double lr, const at::Tensor& found) {
  const GroupSettings& s = settings_[range.settings].values;
  const auto part = [&](const at::Tensor& flat) {
    return std::vector<at::Tensor>{flat.slice(0, range.begin, range.end)};
  };
  std::vector<at::Tensor> params = part(registry_->flat_params());
  std::vector<at::Tensor> grads = part(registry_->flat_grads());
  const auto moments = [&](const at::Tensor& buffer) {
    return std::vector<at::Tensor>{held(buffer, range.begin, range.end)};
  };
  std::vector<at::Tensor> exp_avg = moments(moments_.exp_avg);
  std::vector<at::Tensor> exp_avg_sq = moments(moments_.exp_avg_sq);
  std::vector<at::Tensor> max_exp_avg_sq;
  if (s.amsgrad) max_exp_avg_sq = moments(moments_.max_exp_avg_sq);
  const std::vector<at::Tensor> step = {steps_.select(0, range.first_trainable)};
  std::optional<at::Tensor> skip;
  if (found.defined()) skip = found;
  if (kind_ == config::OptimizerKind::kAdamW) {
    at::_fused_adamw_(params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq, step, lr, s.betas[0],
                      s.betas[1], s.weight_decay, s.eps, s.amsgrad, s.maximize, std::nullopt, skip);
  } else {
    at::_fused_adam_(params, grads, exp_avg, exp_avg_sq, max_exp_avg_sq, step, lr, s.betas[0],
                     s.betas[1], s.weight_decay, s.eps, s.amsgrad, s.maximize, std::nullopt, skip);
  }
}

namespace {

// Factors of an update that become neutral when the step is skipped: `on` or `off`, 0-dim on the
// device.
at::Tensor gated(const at::Tensor& like, const at::Tensor& found, double on, double off) {
  const auto options = like.options();
  if (!found.defined()) return at::full({}, on, options);
  return at::where(found != 0, at::full({}, off, options), at::full({}, on, options));
}

// Gradients without what made the step be skipped: infinity times 0 is not 0.
at::Tensor finite(const at::Tensor& grads, const at::Tensor& found) {
  if (!found.defined()) return grads;
  return at::where(found != 0, at::zeros({}, grads.options()), grads);
}

}  // namespace

void Optimizer::update_sgd(const Range& range, double lr, const at::Tensor& found) {
  const GroupSettings& s = settings_[range.settings].values;
  at::Tensor params = registry_->flat_params().slice(0, range.begin, range.end);
  at::Tensor d = finite(registry_->flat_grads().slice(0, range.begin, range.end), found);
  if (s.maximize) d = d.neg();
  if (s.weight_decay != 0.0) d = d.add(params, s.weight_decay);
  if (s.momentum != 0.0) {
    at::Tensor buffer = held(moments_.momentum, range.begin, range.end);
    // The first update takes the gradient as it is; dampening begins with the second. The count was
    // advanced already.
    const at::Tensor step = steps_.select(0, range.first_trainable);
    const at::Tensor fresh = at::where(step <= 1, at::ones({}, params.options()),
                                       at::full({}, 1.0 - s.dampening, params.options()));
    const at::Tensor keep = gated(params, found, s.momentum, 1.0);
    buffer.mul_(keep).addcmul_(d, fresh * gated(params, found, 1.0, 0.0));
    d = s.nesterov ? d.add(buffer, s.momentum) : buffer;
  }
  params.addcmul_(d, gated(params, found, -lr, 0.0));
}

void Optimizer::update_novograd(const Range& range, double lr, const at::Tensor& found) {
  const GroupSettings& s = settings_[range.settings].values;
  const auto [beta1, beta2] = std::make_pair(s.betas[0], s.betas[1]);
  std::vector<at::Tensor> grads;
  for (const int64_t t : range.trainable) {
    const int64_t entry = registry_->trainable()[static_cast<size_t>(t)];
    grads.push_back(finite(registry_->grad(entry), found));
  }
  const at::Tensor norms = at::stack(at::_foreach_norm(grads, 2)).square();
  const at::Tensor which =
      nn::sent_to(moments_.exp_avg_sq.device(), at::tensor(range.trainable, at::kLong));
  const at::Tensor old = moments_.exp_avg_sq.index_select(0, which);
  at::Tensor moment = at::where(old == 0, norms, old * beta2 + norms * (1.0 - beta2));
  if (found.defined()) moment = at::where(found != 0, old, moment);
  moments_.exp_avg_sq.index_copy_(0, which, moment);
  if (s.amsgrad) {
    moment = at::maximum(moments_.max_exp_avg_sq.index_select(0, which), moment);
    moments_.max_exp_avg_sq.index_copy_(0, which, moment);
  }
  const at::Tensor denominators = moment.sqrt().add_(s.eps);

  const at::Tensor keep = gated(denominators, found, beta1, 1.0);
  const at::Tensor fresh = gated(denominators, found, s.grad_averaging ? 1.0 - beta1 : 1.0, 0.0);
  const at::Tensor rate = gated(denominators, found, -lr, 0.0);
  const at::Tensor active = gated(denominators, found, -1.0, 0.0);
  for (size_t k = 0; k < grads.size(); ++k) {
    const int64_t entry = registry_->trainable()[static_cast<size_t>(range.trainable[k])];
    at::Tensor params = registry_->flat_view(registry_->flat_params(), entry);
    at::Tensor average = registry_->flat_view(moments_.exp_avg, entry);
    at::Tensor d = grads[k].div(denominators.select(0, static_cast<int64_t>(k)));
    if (s.weight_decay != 0.0) d.add_(params, s.weight_decay);
    average.mul_(keep).addcmul_(d, fresh);
    if (s.luc) {
      // Layer-wise update clipping: no more than luc_trust times the weights' norm.
      const at::Tensor limit =
          params.norm().mul_(s.luc_trust).div_(average.norm().add_(s.luc_eps)).clamp_max_(lr);
      params.addcmul_(average, limit * active);
    } else {
      params.addcmul_(average, rate);
    }
  }
}

std::vector<NamedState> Optimizer::state() const {
  std::vector<NamedState> out;
  const bool per_tensor = kind_ == config::OptimizerKind::kNovograd;
  const Buffers& shown = whole_ ? *whole_ : moments_;
  AERIE_CHECK(whole_ || !kept(), "the state of a sharded optimizer is with several ranks");
  for (size_t t = 0; t < settings_of_.size(); ++t) {
    const int64_t entry = registry_->trainable()[t];
    const std::string& name = registry_->entries()[static_cast<size_t>(entry)].name;
    const GroupSettings& s = settings_[settings_of_[t]].values;
    const auto add = [&](const char* key, const at::Tensor& flat, bool scalar) {
      out.push_back({str_cat(key, ".", name), scalar ? flat.select(0, static_cast<int64_t>(t))
                                                     : registry_->flat_view(flat, entry)});
    };
    if (kind_ == config::OptimizerKind::kSgd) {
      if (s.momentum != 0.0) add("momentum_buffer", shown.momentum, false);
      continue;
    }
    add("exp_avg", shown.exp_avg, false);
    add("exp_avg_sq", shown.exp_avg_sq, per_tensor);
    if (s.amsgrad) add("max_exp_avg_sq", shown.max_exp_avg_sq, per_tensor);
  }
  return out;
}

std::vector<at::Tensor> Optimizer::buffers() const {
  std::vector<at::Tensor> out;
  const Buffers& shown = whole_ ? *whole_ : moments_;
  for (const auto buffer : all_buffers())
    if ((shown.*buffer).defined()) out.push_back(shown.*buffer);
  return out;
}

std::array<at::Tensor Optimizer::Buffers::*, 4> Optimizer::all_buffers() {
  return {&Buffers::exp_avg, &Buffers::exp_avg_sq, &Buffers::max_exp_avg_sq, &Buffers::momentum};
}

void Optimizer::keep(int64_t begin, int64_t end) {
  at::NoGradGuard no_grad;
  AERIE_CHECK(kind_ != config::OptimizerKind::kNovograd, "novograd cannot be sharded");
  AERIE_CHECK(!kept() && !whole_, "moments are kept already");
  for (const auto buffer : all_buffers())
    if ((moments_.*buffer).defined())
      moments_.*buffer = (moments_.*buffer).slice(0, begin, end).clone();
  kept_begin_ = begin;
  kept_end_ = end;
}

void Optimizer::show_whole() {
  at::NoGradGuard no_grad;
  if (!kept() || whole_) return;
  whole_.emplace();
  for (const auto buffer : all_buffers()) {
    if (!(moments_.*buffer).defined()) continue;
    const at::Tensor whole = at::zeros_like(registry_->flat_params());
    whole.slice(0, kept_begin_, kept_end_).copy_(moments_.*buffer);
    (*whole_).*buffer = whole;
  }
}

void Optimizer::hide_whole(bool take) {
  at::NoGradGuard no_grad;
  if (!whole_) return;
  for (const auto buffer : all_buffers())
    if (take && (moments_.*buffer).defined())
      (moments_.*buffer).copy_(((*whole_).*buffer).slice(0, kept_begin_, kept_end_));
  whole_.reset();
}

void Optimizer::set_step_counts(const at::Tensor& counts) {
  at::NoGradGuard no_grad;
  const at::Tensor host = counts.to(at::kCPU, at::kFloat).contiguous();
  AERIE_CHECK(host.numel() == steps_.numel(), host.numel(), " step counts for ", steps_.numel(),
              " parameters");
  steps_.copy_(host);
  std::map<float, int64_t> ids;
  for (size_t t = 0; t < history_.size(); ++t) {
    const float count = host.data_ptr<float>()[t];
    history_[t] = ids.emplace(count, static_cast<int64_t>(ids.size())).first->second;
  }
  all_ranges_ = make_ranges({});
}

void Optimizer::reset() {
  at::NoGradGuard no_grad;
  for (at::Tensor& buffer : buffers()) buffer.zero_();
  set_step_counts(at::zeros_like(steps_));
}

}  // namespace aerie::optim
