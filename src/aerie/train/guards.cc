#include "aerie/train/guards.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::train {

double SpikeDetector::update(double value) {
  double zscore = 0.0;
  if (values_.size() >= kWindow) {
    double mean = 0.0;
    for (const double v : values_) mean += v;
    mean /= static_cast<double>(values_.size());
    double variance = 0.0;
    for (const double v : values_) variance += (v - mean) * (v - mean);
    variance /= static_cast<double>(values_.size());
    if (variance > 0.0) zscore = (value - mean) / std::sqrt(variance);
    values_.erase(values_.begin());
  }
  values_.push_back(value);
  return zscore;
}

GuardVerdict Guards::after_step(const StepOutcome& outcome) {
  GuardVerdict verdict;
  if (outcome.skipped || !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm)) {
    verdict.nonfinite = true;
    health_.add(/*bad=*/true);
    ++nonfinite_in_a_row_;
    verdict.give_up = nonfinite_in_a_row_ >= options_.max_nan_in_a_row;
    return verdict;
  }
  health_.add(/*bad=*/false);
  nonfinite_in_a_row_ = 0;
  // Exponential mean with bias correction: the first steps count in full.
  ++smoothed_count_;
  const double weight = std::max(0.02, 1.0 / static_cast<double>(smoothed_count_));
  smoothed_loss_ += weight * (outcome.loss - smoothed_loss_);
  verdict.loss_zscore = loss_.update(outcome.loss);
  verdict.grad_zscore = grad_norm_.update(outcome.grad_norm);
  if (options_.spike_zscore > 0.0) {
    verdict.loss_spike = verdict.loss_zscore > options_.spike_zscore;
    verdict.grad_spike = verdict.grad_zscore > options_.spike_zscore;
  }
  return verdict;
}

std::string Guards::to_json() const {
  nlohmann::json json;
  json["nonfinite_in_a_row"] = nonfinite_in_a_row_;
  json["smoothed_loss"] = smoothed_loss_;
  json["smoothed_count"] = smoothed_count_;
  json["loss"] = loss_.values();
  json["grad_norm"] = grad_norm_.values();
  json["recent_bad"] = health_.recent_bad();
  return json.dump();
}

Status Guards::restore(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto integer = [&](const char* name) {
    return json.contains(name) && json[name].is_number_integer();
  };
  const auto numbers = [&](const char* name) {
    if (!json.contains(name) || !json[name].is_array() ||
        json[name].size() > SpikeDetector::kWindow)
      return false;
    return std::all_of(json[name].begin(), json[name].end(),
                       [](const auto& v) { return v.is_number(); });
  };
  if (!json.is_object() || !integer("nonfinite_in_a_row") || !integer("smoothed_count") ||
      !json.contains("smoothed_loss") || !json["smoothed_loss"].is_number() || !numbers("loss") ||
      !numbers("grad_norm"))
    return data_error("the state of the guards is damaged");
  nonfinite_in_a_row_ = json["nonfinite_in_a_row"];
  // Checkpoints of earlier versions know only how many bad steps came last.
  std::vector<bool> recent(static_cast<size_t>(std::clamp<int64_t>(nonfinite_in_a_row_, 0,
                                                                   int64_t{StepHealth::kWindow})),
                           true);
  if (const auto found = json.find("recent_bad"); found != json.end()) {
    if (!found->is_array() || found->size() > StepHealth::kWindow ||
        !std::all_of(found->begin(), found->end(), [](const auto& v) { return v.is_boolean(); }))
      return data_error("the state of the guards is damaged");
    recent = found->get<std::vector<bool>>();
  }
  health_.restore(std::move(recent));
  smoothed_loss_ = json["smoothed_loss"];
  smoothed_count_ = json["smoothed_count"];
  loss_.restore(json["loss"].get<std::vector<double>>());
  grad_norm_.restore(json["grad_norm"].get<std::vector<double>>());
  return ok_status();
}

}  // namespace aerie::train
