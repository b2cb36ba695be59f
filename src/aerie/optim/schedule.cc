#include "aerie/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <nlohmann/json.hpp>

namespace aerie::optim {

namespace {

using Kind = config::ScheduleKind;

bool is_torch_kind(Kind kind) {
  return kind == Kind::kStepLR || kind == Kind::kExponentialLR ||
         kind == Kind::kReduceLROnPlateau || kind == Kind::kCyclicLR;
}

bool has_hold(Kind kind) {
  switch (kind) {
    case Kind::kWarmupHoldPolicy:
    case Kind::kNoamHoldAnnealing:
    case Kind::kWarmupHoldAnnealOneMinusSquareRoot:
    case Kind::kWarmupHoldAnnealLinear:
    case Kind::kPolynomialHoldDecayAnnealing:
      return true;
    default:
      return false;
  }
}

bool needs_max_steps(Kind kind) {
  switch (kind) {
    case Kind::kWarmupPolicy:
    case Kind::kWarmupHoldPolicy:
    case Kind::kNoamAnnealing:
    case Kind::kNoamHoldAnnealing:
    case Kind::kInverseSquareRootAnnealing:
    case Kind::kT5InverseSquareRootAnnealing:
      return false;
    default:
      return !is_torch_kind(kind);
  }
}

// trunc(ratio * max_steps) or the number given; both is an error.
Result<int64_t> steps_or_ratio(const char* what, const std::optional<int64_t>& steps,
                               const std::optional<double>& ratio,
                               const std::optional<int64_t>& max_steps) {
  if (steps && ratio)
    return invalid_argument(
        str_cat("model.optim.sched: give ", what, "_steps or ", what, "_ratio, not both"));
  if (steps) return *steps;
  if (!ratio) return int64_t{0};
  if (!max_steps)
    return invalid_argument(
               str_cat("model.optim.sched.", what, "_ratio needs a bound on the number of steps"))
        .with_hint("set trainer.max_steps, or use steps instead of a ratio");
  return static_cast<int64_t>(*ratio * static_cast<double>(*max_steps));
}

double polynomial(double base, double floor, double step, double span, double power, bool cycle) {
  if (cycle) {
    span *= step == 0.0 ? 1.0 : std::ceil(step / span);
  } else {
    step = std::min(step, span);
  }
  return (base - floor) * std::pow(1.0 - step / span, power) + floor;
}

}  // namespace

Result<Schedule> Schedule::make(const std::optional<config::SchedulerConfig>& config,
                                std::vector<double> base_rates, std::optional<int64_t> max_steps) {
  Schedule out;
  out.base_ = std::move(base_rates);
  AERIE_CHECK(!out.base_.empty(), "no parameter group");
  if (!config) {
    out.constant_ = true;
    return out;
  }
  const config::SchedulerConfig& c = out.config_ = *config;
  if (is_torch_kind(c.kind)) {
    out.plateau_rates_ = out.base_;
    out.plateau_best_ = c.mode == "max" ? -std::numeric_limits<double>::infinity()
                                        : std::numeric_limits<double>::infinity();
    return out;
  }
  if (!max_steps && needs_max_steps(c.kind))
    return invalid_argument(
               str_cat("model.optim.sched.name=", c.name, " needs the number of steps of the run"))
        .with_hint("set trainer.max_steps or trainer.max_epochs");
  out.max_steps_ = max_steps.value_or(std::numeric_limits<int64_t>::max());
  AERIE_ASSIGN_OR_RETURN(out.warmup_,
                         steps_or_ratio("warmup", c.warmup_steps, c.warmup_ratio, max_steps));
  if (has_hold(c.kind)) {
    AERIE_ASSIGN_OR_RETURN(out.hold_,
                           steps_or_ratio("hold", c.hold_steps, c.hold_ratio, max_steps));
    // NeMo measures the decay from the very first step when no hold is given, even after a warm-up.
    if (c.hold_steps || c.hold_ratio) out.hold_end_ = out.warmup_ + out.hold_;
  }
  if (c.kind == Kind::kT5InverseSquareRootAnnealing) {
    if (!c.constant_steps || *c.constant_steps <= 0)
      return invalid_argument(
          "model.optim.sched.name=T5InverseSquareRootAnnealing needs constant_steps");
    out.constant_steps_ = *c.constant_steps;
  } else if (c.kind == Kind::kCosineAnnealing) {
    AERIE_ASSIGN_OR_RETURN(out.constant_steps_, steps_or_ratio("constant", c.constant_steps,
                                                               c.constant_ratio, max_steps));
  }
  for (const double base : out.base_) {
    const bool too_low = c.kind == Kind::kNoamAnnealing || c.kind == Kind::kCosineAnnealing
                             ? base < c.min_lr
                             : false;
    const bool flat =
        c.kind == Kind::kCosineAnnealing && out.constant_steps_ > 0 && base <= c.min_lr;
    if (too_low || flat)
      return invalid_argument(
          str_cat("model.optim.sched.min_lr ", c.min_lr, " is not below the learning rate ", base));
  }
  if (c.kind == Kind::kNoamHoldAnnealing && out.warmup_ <= 0)
    return invalid_argument(
        "model.optim.sched.name=NoamHoldAnnealing needs warmup_steps or warmup_ratio");
  return out;
}

double Schedule::warmup_rate(double base, int64_t step) const {
  return base * static_cast<double>(step + 1) / static_cast<double>(warmup_ + 1);
}

// Where a value that swings between `from` and `to` is at step s.
double Schedule::cyclic(double from, double to, int64_t s) const {
  const config::SchedulerConfig& c = config_;
  const double S = static_cast<double>(s);
  const double up = static_cast<double>(c.step_size_up);
  const double down = static_cast<double>(c.step_size_down.value_or(c.step_size_up));
  const double total = up + down, ratio = up / total;
  const double cycle = std::floor(1.0 + S / total);
  const double x = 1.0 + S / total - cycle;
  const double scale = x <= ratio ? x / ratio : (x - 1.0) / (ratio - 1.0);
  double height = (to - from) * scale;
  if (c.mode == "triangular2") {
    height *= 1.0 / std::pow(2.0, cycle - 1.0);
  } else if (c.mode == "exp_range") {
    height *= std::pow(c.gamma, S);
  }
  return from + height;
}

std::optional<double> Schedule::momentum_at(int64_t step) const {
  if (constant_ || config_.kind != Kind::kCyclicLR || !config_.cycle_momentum) return std::nullopt;
  return cyclic(config_.max_momentum, config_.base_momentum, step);
}

double Schedule::rate(double a, int64_t s) const {
  const config::SchedulerConfig& c = config_;
  const double m = c.min_lr;
  const double S = static_cast<double>(s), W = static_cast<double>(warmup_),
               M = static_cast<double>(max_steps_);
  switch (c.kind) {
    case Kind::kNoamAnnealing: {
      const double step = std::max(1.0, S);
      const double scale = std::pow(static_cast<double>(c.d_model), -0.5);
      const double value =
          warmup_ > 0 ? a * scale * std::min(std::pow(step, -0.5), step * std::pow(W, -1.5))
                      : a * scale * std::pow(step, -0.5);
      return step > W ? std::max(value, m) : value;
    }
    case Kind::kCosineAnnealing:
      if (constant_steps_ > 0) {
        if (warmup_ > 0 && s <= warmup_) return a * S / W;
        const double span = M - W - static_cast<double>(constant_steps_);
        if (S - W >= span) return m;
        return m + (a - m) * 0.5 * (1.0 + std::cos(std::numbers::pi * (S - W) / span));
      }
      break;
    case Kind::kT5InverseSquareRootAnnealing:
      if (s <= constant_steps_) return 1.0 / std::sqrt(static_cast<double>(constant_steps_));
      if (s > max_steps_) return m;
      return 1.0 / std::sqrt(S);
    case Kind::kStepLR:
      return a * std::pow(c.gamma, static_cast<double>(s / c.step_size));
    case Kind::kExponentialLR:
      return a * std::pow(c.gamma, static_cast<double>(epochs_));
    case Kind::kCyclicLR:
      return cyclic(c.base_lr, c.max_lr, s);
    default:
      break;
  }
  if (warmup_ > 0 && s <= warmup_) return warmup_rate(a, s);
  if (hold_end_ > 0 && s >= warmup_ && s < hold_end_) return a;
  if (s > max_steps_) return m;
  const double h = static_cast<double>(hold_end_);
  switch (c.kind) {
    case Kind::kWarmupPolicy:
    case Kind::kWarmupHoldPolicy:
      return a;
    case Kind::kSquareAnnealing:
      return std::max(m, a * std::pow((M - S) / (M - W), 2.0));
    case Kind::kSquareRootAnnealing:
      return std::max(m, a * std::sqrt((M - S) / M));
    case Kind::kCosineAnnealing:
      return m + (a - m) * 0.5 * (1.0 + std::cos(std::numbers::pi * (S - W) / (M - W)));
    case Kind::kNoamHoldAnnealing: {
      const double numerator = std::max(1.0, std::pow(W, c.decay_rate));
      const double denominator =
          std::max(1.0, std::pow(S - static_cast<double>(hold_), c.decay_rate));
      return std::max(m, a * numerator / denominator);
    }
    case Kind::kWarmupHoldAnnealOneMinusSquareRoot:
      return std::max(m, a * (1.0 - std::sqrt((S - h) / (M - h))));
    case Kind::kWarmupHoldAnnealLinear:
      return a - (a - m) * (S - h) / (M - h);
    case Kind::kWarmupAnnealing:
      // As in NeMo, every group follows the first one's rate after its own warm-up.
      return m + (1.0 - (S - W) / (M - W)) * (base_.front() - m);
    case Kind::kInverseSquareRootAnnealing:
      return a / std::sqrt((S + 1.0) / (W + 1.0));
    case Kind::kPolynomialDecayAnnealing:
      return polynomial(a, m, S - W, M - W, c.power, c.cycle);
    case Kind::kPolynomialHoldDecayAnnealing:
      return polynomial(a, m, S - h, M - std::max(W, h), c.power, c.cycle);
    default:
      return a;
  }
}

std::vector<double> Schedule::at(int64_t step) const {
  if (constant_) return base_;
  if (config_.kind == Kind::kReduceLROnPlateau) return plateau_rates_;
  // NeMo gives every group the first group's rate here.
  const bool first_for_all = config_.kind == Kind::kCosineAnnealing && constant_steps_ > 0;
  std::vector<double> out;
  for (const double base : base_) out.push_back(rate(first_for_all ? base_.front() : base, step));
  return out;
}

std::string Schedule::monitor() const {
  return !constant_ && config_.kind == Kind::kReduceLROnPlateau ? config_.monitor : "";
}

void Schedule::after_epoch(std::optional<double> metric) {
  ++epochs_;
  if (constant_ || config_.kind != Kind::kReduceLROnPlateau || !metric) return;
  const config::SchedulerConfig& c = config_;
  // torch's rules: strictly better than the threshold, a cool-down during which nothing counts as
  // bad.
  const bool max = c.mode == "max";
  const double bar = c.threshold_rel ? plateau_best_ * (max ? 1.0 + c.threshold : 1.0 - c.threshold)
                                     : plateau_best_ + (max ? c.threshold : -c.threshold);
  if (max ? *metric > bar : *metric < bar) {
    plateau_best_ = *metric;
    plateau_bad_ = 0;
  } else {
    ++plateau_bad_;
  }
  if (plateau_cooldown_ > 0) {
    --plateau_cooldown_;
    plateau_bad_ = 0;
  }
  if (plateau_bad_ <= c.patience) return;
  for (double& rate : plateau_rates_) {
    const double lower = std::max(rate * c.factor, c.min_lr);
    if (rate - lower > c.eps) rate = lower;
  }
  plateau_cooldown_ = c.cooldown;
  plateau_bad_ = 0;
}

std::string Schedule::state_json() const {
  nlohmann::json json;
  json["epochs"] = epochs_;
  json["rates"] = plateau_rates_;
  // Infinity has no JSON form; it means that no metric was seen yet.
  json["best"] =
      std::isfinite(plateau_best_) ? nlohmann::json(plateau_best_) : nlohmann::json(nullptr);
  json["bad"] = plateau_bad_;
  json["cooldown"] = plateau_cooldown_;
  return json.dump();
}

Status Schedule::restore(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto integer = [&](const char* name) {
    return json.contains(name) && json[name].is_number_integer();
  };
  if (!json.is_object() || !integer("epochs") || !integer("bad") || !integer("cooldown") ||
      !json.contains("rates") || !json["rates"].is_array() ||
      json["rates"].size() != plateau_rates_.size() || !json.contains("best"))
    return data_error("the state of the learning-rate schedule does not fit this configuration");
  for (const auto& rate : json["rates"])
    if (!rate.is_number()) return data_error("the state of the learning-rate schedule is damaged");
  epochs_ = json["epochs"];
  plateau_bad_ = json["bad"];
  plateau_cooldown_ = json["cooldown"];
  plateau_rates_ = json["rates"].get<std::vector<double>>();
  if (json["best"].is_number()) plateau_best_ = json["best"];
  return ok_status();
}

}  // namespace aerie::optim
