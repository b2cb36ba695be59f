#include "aerie/optim/mm_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "aerie/base/strings.h"

namespace aerie::optim {
namespace {

using Config = MmPolicyConfig;

double cos_anneal(double start, double end, double factor, double weight = 1.0) {
  return end + 0.5 * weight * (start - end) * (std::cos(std::numbers::pi * factor) + 1.0);
}
double anneal(const Config& c, double start, double end, double factor) {
  return c.anneal == MmAnneal::kCos ? cos_anneal(start, end, factor)
                                    : start + (end - start) * factor;
}

struct Progress {
  int64_t now = 0;  // iterations or epochs
  int64_t all = 1;
  // The loop may ask for what would follow the last iteration.
  double share() const {
    return std::min(static_cast<double>(now) / static_cast<double>(all), 1.0);
  }
};

Progress progress_of(const Config& c, const MmRunLength& length, int64_t iteration) {
  if (!c.by_epoch) return {iteration, length.max_iters};
  return {iteration / length.epoch_iters, length.max_epochs.value_or(1)};
}

double floor_of(const Config& c, double base) {
  return c.min_ratio ? base * *c.min_ratio : c.min_value.value_or(0.0);
}

double step_value(const Config& c, double base, int64_t now) {
  int64_t drops = 0;
  if (c.step_is_interval) {
    drops = now / c.step.front();
  } else {
    drops = static_cast<int64_t>(c.step.size());
    for (size_t i = 0; i < c.step.size(); ++i)
      if (now < c.step[i]) {
        drops = static_cast<int64_t>(i);
        break;
      }
  }
  const double value = base * std::pow(c.gamma.value_or(0.1), static_cast<double>(drops));
  return c.min_value ? std::max(value, *c.min_value) : value;
}

double flat_cosine(const Config& c, double base, const Progress& progress) {
  // Python's round(): half to even.
  const double start = std::nearbyint(static_cast<double>(progress.all) * c.start_percent);
  const double passed = static_cast<double>(progress.now) - start;
  if (passed < 0.0) return base;
  const double rest = static_cast<double>(progress.all) - start;
  return cos_anneal(base, floor_of(c, base), rest > 0.0 ? std::min(passed / rest, 1.0) : 1.0);
}

double cosine_restart(const Config& c, double base, int64_t now) {
  int64_t begin = 0;
  for (size_t i = 0; i < c.periods.size(); ++i) {
    const bool last = i + 1 == c.periods.size();
    if (now < begin + c.periods[i] || last) {
      const double share = static_cast<double>(now - begin) / static_cast<double>(c.periods[i]);
      return cos_anneal(base, floor_of(c, base), std::min(share, 1.0), c.restart_weights[i]);
    }
    begin += c.periods[i];
  }
  return base;
}

// Up (of momentum: down) and back, several times; every cycle is `gamma` as high as the last.
double cyclic(const Config& c, double base, int64_t max_iters, int64_t iteration) {
  const int64_t cycle = max_iters / c.cyclic_times;
  const auto up = static_cast<int64_t>(c.step_ratio_up * static_cast<double>(cycle));
  const int64_t now = iteration % cycle;
  const double scale = std::pow(c.gamma.value_or(1.0), static_cast<double>(iteration / cycle));
  const auto [peak, low] = *c.target_ratio;
  if (now < up)
    return anneal(c, base, base * (1.0 - scale + peak * scale),
                  static_cast<double>(now) / static_cast<double>(up));
  const double factor = static_cast<double>(now - up) / static_cast<double>(cycle - up);
  // Without a rise mmcv takes the fall for the rise and scales its end.
  if (up == 0) return anneal(c, base * peak, base * (1.0 - scale + low * scale), factor);
  return anneal(c, base * (1.0 - scale + peak * scale), base * low, factor);
}

struct Phase {
  double end;
  double from;
  double to;
};
double one_cycle(const Config& c, const std::vector<Phase>& phases, int64_t iteration) {
  const auto now = static_cast<double>(iteration);
  double start = 0.0;
  for (size_t i = 0; i < phases.size(); ++i) {
    const Phase& phase = phases[i];
    if (now <= phase.end || i + 1 == phases.size()) {
      const double length = phase.end - start;
      const double share = length > 0.0 ? std::min((now - start) / length, 1.0) : 1.0;
      return anneal(c, phase.from, phase.to, share);
    }
    start = phase.end;
  }
  return phases.back().to;
}

double one_cycle_rate(const Config& c, double max_lr, int64_t max_iters, int64_t iteration) {
  const auto total = static_cast<double>(c.total_steps.value_or(max_iters));
  const double base = max_lr / c.div_factor, top = base * c.div_factor,
               end = base * (1.0 / c.final_div_factor);
  if (c.three_phase)
    return one_cycle(c,
                     {{c.pct_start * total - 1.0, base, top},
                      {2.0 * c.pct_start * total - 2.0, top, base},
                      {total - 1.0, base, end}},
                     iteration);
  return one_cycle(c, {{c.pct_start * total - 1.0, base, top}, {total - 1.0, top, end}}, iteration);
}

double one_cycle_momentum(const Config& c, int64_t max_iters, int64_t iteration) {
  const auto total = static_cast<double>(max_iters);
  const double low = c.base_momentum, high = c.max_momentum;
  if (c.three_phase)
    return one_cycle(c,
                     {{c.pct_start * total - 1.0, high, low},
                      {2.0 * c.pct_start * total - 2.0, low, high},
                      {total - 1.0, high, high}},
                     iteration);
  return one_cycle(c, {{c.pct_start * total - 1.0, high, low}, {total - 1.0, low, high}},
                   iteration);
}

// Without warm-up, and of policies that both rates and momentum know.
double regular(const Config& c, double base, const MmRunLength& length, int64_t iteration) {
  const Progress progress = progress_of(c, length, iteration);
  const auto now = static_cast<double>(progress.now);
  switch (c.policy) {
    case MmPolicy::kFixed:
    case MmPolicy::kOneCycle:  // the caller's
      return base;
    case MmPolicy::kStep:
      return step_value(c, base, progress.now);
    case MmPolicy::kExp:
      return base * std::pow(*c.gamma, now);
    case MmPolicy::kInv:
      return base * std::pow(1.0 + *c.gamma * now, -c.power);
    case MmPolicy::kPoly: {
      const double low = c.min_value.value_or(0.0);
      return (base - low) * std::pow(1.0 - progress.share(), c.power) + low;
    }
    case MmPolicy::kCosineAnnealing:
      return cos_anneal(base, floor_of(c, base), progress.share());
    case MmPolicy::kLinearAnnealing:
      return base + (floor_of(c, base) - base) * progress.share();
    case MmPolicy::kFlatCosineAnnealing:
      return flat_cosine(c, base, progress);
    case MmPolicy::kCosineRestart:
      return cosine_restart(c, base, progress.now);
    case MmPolicy::kCyclic:
      return cyclic(c, base, length.max_iters, iteration);
  }
  return base;
}

// What the regular rate is multiplied by; momentum is divided by it.
double warmup_factor(const Config& c, const MmRunLength& length, int64_t iteration) {
  const int64_t iters = c.warmup_iters * (c.warmup_by_epoch ? length.epoch_iters : 1);
  if (c.warmup == MmWarmup::kNone || iteration >= iters) return 1.0;
  const double rest = 1.0 - static_cast<double>(iteration) / static_cast<double>(iters);
  switch (c.warmup) {
    case MmWarmup::kConstant:
      return c.warmup_ratio;
    case MmWarmup::kLinear:
      return 1.0 - rest * (1.0 - c.warmup_ratio);
    default:
      return std::pow(c.warmup_ratio, rest);
  }
}

Status check(const Config& c, const char* node, const MmRunLength& length) {
  const auto wrong = [&](std::string text) { return invalid_argument(str_cat(node, ".", text)); };
  if (c.warmup != MmWarmup::kNone) {
    if (c.warmup_iters <= 0) return wrong("warmup_iters must be above 0 with a warmup");
    if (!(c.warmup_ratio > 0.0 && c.warmup_ratio <= 1.0))
      return wrong(str_cat("warmup_ratio is ", c.warmup_ratio, ": 0 < ratio <= 1 is needed"));
  }
  switch (c.policy) {
    case MmPolicy::kStep:
      if (c.step.empty() ||
          std::any_of(c.step.begin(), c.step.end(), [](int64_t s) { return s <= 0; }))
        return wrong("step needs numbers above 0");
      break;
    case MmPolicy::kExp:
    case MmPolicy::kInv:
      if (!c.gamma) return wrong("gamma is needed by this policy");
      break;
    case MmPolicy::kCosineAnnealing:
    case MmPolicy::kFlatCosineAnnealing:
    case MmPolicy::kLinearAnnealing:
    case MmPolicy::kCosineRestart:
      if (c.min_value.has_value() == c.min_ratio.has_value())
        return wrong("name: this policy needs either the least value or its ratio");
      break;
    default:
      break;
  }
  if (c.policy == MmPolicy::kCosineRestart) {
    if (c.periods.empty() || c.periods.size() != c.restart_weights.size())
      return wrong("periods and restart_weights need as many values as each other");
    for (const int64_t period : c.periods)
      if (period <= 0) return wrong("periods needs numbers above 0");
  }
  const bool by_iteration = c.policy == MmPolicy::kCyclic || c.policy == MmPolicy::kOneCycle;
  if (by_iteration && c.by_epoch) return wrong("by_epoch: this policy goes by iterations alone");
  if (c.policy == MmPolicy::kCyclic) {
    if (c.cyclic_times < 1 || length.max_iters / c.cyclic_times < 1)
      return wrong(
          str_cat("cyclic_times is ", c.cyclic_times, " for ", length.max_iters, " iterations"));
    if (!(c.step_ratio_up >= 0.0 && c.step_ratio_up < 1.0))
      return wrong("step_ratio_up lies from 0 to below 1");
    const double gamma = c.gamma.value_or(1.0);
    if (!(gamma > 0.0 && gamma <= 1.0)) return wrong("gamma lies above 0, up to 1");
  }
  if (c.policy == MmPolicy::kOneCycle) {
    if (!(c.pct_start >= 0.0 && c.pct_start <= 1.0)) return wrong("pct_start lies from 0 to 1");
    if (!(c.div_factor > 0.0) || !(c.final_div_factor > 0.0))
      return wrong("div_factor and final_div_factor must be above 0");
    if (c.total_steps && *c.total_steps < length.max_iters)
      return wrong(str_cat("total_steps is ", *c.total_steps, ", fewer than the ", length.max_iters,
                           " iterations of the run"));
  }
  return ok_status();
}

}  // namespace

Result<MmSchedule> MmSchedule::make(const MmPolicyConfig& rate,
                                    const std::optional<MmPolicyConfig>& momentum,
                                    std::vector<double> base_rates, double base_momentum,
                                    const MmRunLength& length) {
  AERIE_CHECK(!base_rates.empty(), "no parameter group");
  if (length.max_iters < 1 || length.epoch_iters < 1)
    return invalid_argument("model.optim.sched needs the number of iterations of the run")
        .with_hint("set trainer.max_steps or trainer.max_epochs");
  MmSchedule out;
  out.rate_ = rate;
  out.momentum_ = momentum;
  out.base_ = std::move(base_rates);
  out.base_momentum_ = base_momentum;
  out.length_ = length;
  if (!out.length_.max_epochs)
    out.length_.max_epochs = (length.max_iters + length.epoch_iters - 1) / length.epoch_iters;
  AERIE_RETURN_IF_ERROR(check(rate, "model.optim.sched", length));
  if (!out.rate_.target_ratio) out.rate_.target_ratio = {10.0, 1e-4};
  if (rate.policy == MmPolicy::kOneCycle) {
    if (rate.max_lr.size() == 1) out.rate_.max_lr.resize(out.base_.size(), rate.max_lr.front());
    if (out.rate_.max_lr.size() != out.base_.size())
      return invalid_argument(str_cat("model.optim.sched.max_lr has ", rate.max_lr.size(),
                                      " values for ", out.base_.size(), " parameter groups"));
  }
  if (momentum) {
    constexpr const char* kNode = "model.optim.momentum_sched";
    AERIE_RETURN_IF_ERROR(check(*momentum, kNode, length));
    if (!out.momentum_->target_ratio) out.momentum_->target_ratio = {0.85 / 0.95, 1.0};
    // mmcv's drop of momentum is not that of rates.
    if (momentum->policy == MmPolicy::kStep && !momentum->gamma) out.momentum_->gamma = 0.5;
    // The warm-up divides: where mmcv goes on, every update of Adam is NaN.
    if (const double first = *out.momentum_at(0);
        momentum->warmup != MmWarmup::kNone && first >= 1.0)
      return invalid_argument(str_cat(kNode, ".warmup_ratio is ", momentum->warmup_ratio,
                                      ": momentum would begin at ", first, ", below 1 is needed"))
          .with_hint(str_cat("the warm-up divides momentum by it: more than ", base_momentum));
  }
  return out;
}

std::vector<double> MmSchedule::at(int64_t iteration) const {
  const double factor = warmup_factor(rate_, length_, iteration);
  std::vector<double> out;
  for (size_t i = 0; i < base_.size(); ++i) {
    const double value = rate_.policy == MmPolicy::kOneCycle
                             ? one_cycle_rate(rate_, rate_.max_lr[i], length_.max_iters, iteration)
                             : regular(rate_, base_[i], length_, iteration);
    out.push_back(value * factor);
  }
  return out;
}

std::optional<double> MmSchedule::momentum_at(int64_t iteration) const {
  if (!momentum_) return std::nullopt;
  const double value = momentum_->policy == MmPolicy::kOneCycle
                           ? one_cycle_momentum(*momentum_, length_.max_iters, iteration)
                           : regular(*momentum_, base_momentum_, length_, iteration);
  return value / warmup_factor(*momentum_, length_, iteration);
}

}  // namespace aerie::optim
