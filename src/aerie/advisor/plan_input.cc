#include "aerie/advisor/plan_input.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

using nlohmann::json;

constexpr double kMib = 1048576.0;
constexpr int kUnknownParts = 16;
constexpr double kTenToNinety = 2.5631;  // distance of these percentiles in standard deviations
constexpr size_t kMostCases = 10'000;

double number_of(const json& object, const char* name, double otherwise = 0.0) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return otherwise;
  const double value = found->get<double>();
  return std::isfinite(value) ? value : otherwise;
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// Device time where it was taken: the host is ahead of it.
double phase_ms(const json& one, const std::string& name) {
  const auto phases = one.find("phases");
  if (phases == one.end() || !phases->is_array()) return 0.0;
  for (const json& phase : *phases)
    if (phase.is_object() && text_of(phase, "name") == name)
      return number_of(phase, "device_ms", number_of(phase, "host_ms"));
  return 0.0;
}

Result<MeasuredStep> read_step(const json& one, const std::string& source) {
  if (!one.is_object()) return invalid_argument("a measured step is not an object");
  MeasuredStep out;
  out.source = source;
  out.step_ms = number_of(one, "step_ms");
  out.parameters = number_of(one, "parameters");
  if (!(out.step_ms > 0.0)) return invalid_argument("a measured step has no step_ms");
  if (!(out.parameters >= 1.0)) return invalid_argument("a measured step has no parameters");
  out.name = text_of(one, "case");
  if (const std::string precision = text_of(one, "precision"); !precision.empty())
    out.name += str_cat(out.name.empty() ? "" : ", ", precision);
  out.forward_ms = phase_ms(one, "forward");
  out.backward_ms = phase_ms(one, "backward");
  out.optimizer_ms = phase_ms(one, "optimizer");
  // Passes wait for other ranks where they exchange sums.
  if (const double passes_ms = out.forward_ms + out.backward_ms; passes_ms > 0.0) {
    const double stretch = 1.0 + phase_ms(one, "waiting for ranks") / passes_ms;
    out.forward_ms *= stretch;
    out.backward_ms *= stretch;
  }
  out.jitter_ms =
      std::max(0.0, (number_of(one, "step_ms_p90") - number_of(one, "step_ms_p10")) / kTenToNinety);
  out.layers = static_cast<int>(std::clamp(number_of(one, "layers"), 0.0, 100'000.0));
  out.d_model = std::max(0.0, number_of(one, "d_model"));
  out.memory_gib = std::max(0.0, number_of(one, "peak_memory_gib"));
  for (const auto& [key, value] : one.items())
    if (ends_with(key, "_per_step") && value.is_number()) {
      out.amount_name = key.substr(0, key.size() - std::string_view("_per_step").size());
      out.amount = value.get<double>();
    }
  return out;
}

Result<BusyRanks> read_busy(const json& one, const std::string& source) {
  const auto step = one.find("step"), loaded = one.find("loaded_step");
  if (step == one.end() || loaded == one.end())
    return invalid_argument("busy ranks without a step, or without one beside reductions");
  BusyRanks out;
  out.ranks = static_cast<int>(std::clamp(number_of(one, "ranks"), 2.0, 1e6));
  AERIE_ASSIGN_OR_RETURN(out.step, read_step(*step, source));
  AERIE_ASSIGN_OR_RETURN(const MeasuredStep beside, read_step(*loaded, source));
  // Reductions go on beside the passes, not beside the optimizer.
  const double passes_ms = out.step.step_ms - out.step.optimizer_ms;
  if (passes_ms > 0.0)
    out.overlap_slowdown = std::max(0.0, (beside.step_ms - beside.optimizer_ms) / passes_ms - 1.0);
  if (const double alone_ms = number_of(one, "reduce_ms"); alone_ms > 0.0)
    out.reduce_slowdown = std::max(0.0, number_of(one, "loaded_reduce_ms") / alone_ms - 1.0);
  out.copy_gb_per_s = std::max(0.0, number_of(one, "copy_gb_per_s"));
  return out;
}

}  // namespace

Result<PlanInput> read_plan_input(std::string_view text, const std::string& source) {
  const json document = json::parse(text, nullptr, false);
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(what).with_context(source).with_hint(
        "it is to hold what `aerie bench step --json` printed");
  };
  if (document.is_discarded()) return wrong("this is not JSON");
  const json* steps = &document;
  PlanInput out;
  if (document.is_object()) {
    const auto found = document.find("steps");
    if (found == document.end()) return wrong("there are no steps");
    steps = &*found;
    if (const auto calls = document.find("all_reduce");
        calls != document.end() && calls->is_array() && calls->size() <= kMostCases) {
      for (const json& call : *calls)
        if (call.is_object())
          out.all_reduces.push_back(
              {static_cast<int>(std::clamp(number_of(call, "ranks"), 0.0, 1e6)),
               number_of(call, "bytes"), number_of(call, "seconds")});
    }
    if (const auto busy = document.find("busy");
        busy != document.end() && busy->is_array() && busy->size() <= kMostCases) {
      for (const json& one : *busy) {
        auto ranks = read_busy(one, source);
        if (!ranks.ok()) return wrong(ranks.status().message());
        out.busy.push_back(std::move(*ranks));
      }
    }
  }
  if (!steps->is_array() || steps->empty()) return wrong("there are no steps");
  if (steps->size() > kMostCases) return wrong("there are too many steps");
  for (const json& one : *steps) {
    auto step = read_step(one, source);
    if (!step.ok()) return wrong(step.status().message());
    out.steps.push_back(std::move(*step));
  }
  return out;
}

const std::vector<MeasuredStep>& recorded_steps() {
  static const std::vector<MeasuredStep> steps = [] {
    const auto step = [](const char* name, double ms, double optimizer_ms, double parameters,
                         int layers, double d_model, double gib, double audio_s) {
      MeasuredStep out;
      out.name = str_cat(name, ", bf16-mixed");
      out.source = "one H200, bench/results/step_h200_202611.md";
      out.step_ms = ms;
      out.optimizer_ms = optimizer_ms;
      out.parameters = parameters;
      out.layers = layers;
      out.d_model = d_model;
      out.memory_gib = gib;
      out.amount = audio_s;
      out.amount_name = "audio_s";
      return out;
    };
    // The optimizer's time is that of its kernel; clips are 0.9 of the longest on average.
    return std::vector<MeasuredStep>{
        step("NEST-S 16 x 15 s", 5.36, 0.10, 14050224, 16, 176, 0.88, 216),
        step("NEST-S 32 x 15 s", 7.30, 0.10, 14050224, 16, 176, 1.47, 432),
        step("NEST-L 2 x 15 s", 3.96, 0.81, 112964608, 17, 512, 2.47, 27),
        step("NEST-L 16 x 15 s", 7.97, 0.81, 112964608, 17, 512, 3.31, 216),
        step("NEST-L 64 x 15 s", 23.56, 0.81, 112964608, 17, 512, 9.68, 864),
        step("NEST-L 68 x 30 s", 52.24, 0.81, 112964608, 17, 512, 17.14, 1836),
        step("NEST-XL 16 x 15 s", 28.46, 4.37, 616145920, 24, 1024, 15.23, 216)};
  }();
  return steps;
}

StepModel step_model(const MeasuredStep& step, const PlanOptions& options, const BusyRanks* busy) {
  StepModel out;
  const double optimizer_ms = std::min(step.optimizer_ms, step.step_ms);
  double forward_ms = step.forward_ms, backward_ms = step.backward_ms;
  const double passes_ms = step.step_ms - optimizer_ms;
  if (forward_ms <= 0.0 || backward_ms <= 0.0 || forward_ms + backward_ms > passes_ms) {
    const double share = forward_ms > 0.0 && backward_ms > 0.0
                             ? backward_ms / (forward_ms + backward_ms)
                             : 2.0 / 3.0;
    backward_ms = share * passes_ms;
    forward_ms = passes_ms - backward_ms;
  }
  out.forward_s = forward_ms * 1e-3;
  out.backward_s = backward_ms * 1e-3;
  out.optimizer_s = optimizer_ms * 1e-3;
  out.other_s = std::max(0.0, passes_ms - forward_ms - backward_ms) * 1e-3;
  out.accumulate = options.accumulate;
  const int parts = step.layers > 0 ? step.layers : kUnknownParts;
  const double part_bytes = step.parameters * options.gradient_bytes / parts;
  out.buckets = make_buckets(std::vector<GradientPart>(static_cast<size_t>(parts), {part_bytes}),
                             std::min(options.first_bucket_mib, options.bucket_cap_mib) * kMib,
                             options.bucket_cap_mib * kMib);
  if (options.sync_batchnorm && busy == nullptr && step.layers > 0 && step.d_model > 0.0) {
    out.blocking_calls = 2 * step.layers;
    // Two sums a channel and the count, in float64.
    out.blocking_bytes = 8.0 * (2.0 * step.d_model + 1.0);
  }
  out.overlap_slowdown = std::max(0.0, options.overlap_slowdown);
  if (options.jitter_share >= 0.0)
    out.jitter_s = options.jitter_share * step.step_ms * 1e-3;
  else if (busy == nullptr)
    out.jitter_s = step.jitter_ms * 1e-3;
  if (busy != nullptr) {
    if (options.overlap_slowdown < 0.0) out.overlap_slowdown = busy->overlap_slowdown;
    out.reduce_slowdown = busy->reduce_slowdown;
    const double copy_s = busy->copy_gb_per_s > 0.0 ? step.parameters * options.gradient_bytes *
                                                          1e-9 / busy->copy_gb_per_s
                                                    : 0.0;
    // Where gradients are their own buckets Gloo's sums are divided in place.
    out.copy_in_s = options.bucket_copies ? copy_s : 0.0;
    out.copy_out_s = options.bucket_copies || options.whole_reduces ? copy_s : 0.0;
  }
  out.shard_optimizer = options.shard_optimizer;
  out.whole_reduces = options.whole_reduces;
  return out;
}

MemoryModel memory_model(const MeasuredStep& step, const PlanOptions& options) {
  MemoryModel out;
  out.single_gib = step.memory_gib;
  out.parameters = step.parameters;
  out.bucket_copies = options.bucket_copies;
  out.shard_optimizer = options.shard_optimizer;
  return out;
}

}  // namespace aerie::advisor
