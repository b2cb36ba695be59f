#include "aerie/advisor/claims.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "aerie-claims-1";
// Trials of the same setting differ by about this much, or by what they were seen to.
constexpr double kLeastNoise = 0.03, kNoiseOfOneTrial = 0.06;
constexpr double kQuiet = 0.1;  // of the CPUs for other programs needs no word
constexpr double kMemoryNoise = 0.10;
constexpr double kJudgeable = 0.10;   // noise beyond which differences of its size are none
constexpr double kNearFigure = 0.15;  // a claim that is one figure holds within this

__attribute__((format(printf, 1, 2))) std::string claim_text(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return text;
}

// "1.25x", with two digits behind the point below ten.
std::string ratio_text(double ratio) {
  return ratio >= 10.0 ? claim_text("%.1fx", ratio) : claim_text("%.2fx", ratio);
}

double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

// Round by round, so that what changes on the machine meanwhile falls out.
std::vector<double> ratios_of(const ClaimFigures& first, const ClaimFigures& other) {
  std::vector<double> out;
  for (size_t i = 0; i < std::min(first.input_per_s.size(), other.input_per_s.size()); ++i)
    if (first.input_per_s[i] > 0.0) out.push_back(other.input_per_s[i] / first.input_per_s[i]);
  return out;
}

// How far trials of one setting lie apart, or how uneven they were, as a share.
double spread_of(const std::vector<ClaimFigures>& settings) {
  double out = 0.0;
  for (size_t i = 1; i < settings.size(); ++i)
    out = std::max(out, std::hypot(settings[0].spread, settings[i].spread));
  bool repeated = false;
  for (size_t i = 1; i < settings.size(); ++i) {
    const std::vector<double> ratios = ratios_of(settings[0], settings[i]);
    if (ratios.size() < 2) continue;
    repeated = true;
    const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
    const double middle = median_of(ratios);
    if (middle > 0.0) out = std::max(out, (*high - *low) / 2.0 / middle);
  }
  return std::max(repeated ? kLeastNoise : kNoiseOfOneTrial, out);
}

// Where steps run on the CPUs, a trial that has them to itself is as much faster than one that
// shares them as others took.
double noise_of_others(const ClaimResult& result) {
  const ClaimFigures& first = result.settings.front();
  if (first.gpu_util >= 0.0 || first.engine.find("cuda") != std::string::npos) return 0.0;
  const double share = std::min(result.others_share, 0.95);
  return share / (1.0 - share);
}

// Whether the noise reaches from a ratio to the figure that decides.
bool too_noisy(double ratio, double figure, double noise) {
  return noise > kJudgeable && std::abs(ratio / figure - 1.0) <= noise;
}

ClaimVerdict verdict_of(const ClaimRow& row, const ClaimResult& result) {
  const auto within = [&](double ratio) {
    if (row.low == row.high) return std::abs(ratio / row.low - 1.0) <= kNearFigure;
    return ratio >= row.low * (1.0 - std::min(result.noise, kLeastNoise));
  };
  const bool of_steps = row.promise == Promise::kSteps;
  if ((of_steps || row.promise == Promise::kInput) &&
      too_noisy(of_steps ? result.step_ratio : result.last_speedup(), row.low, result.noise))
    return ClaimVerdict::kUnclear;
  switch (row.promise) {
    case Promise::kSteps:
      return within(result.step_ratio) ? ClaimVerdict::kHolds : ClaimVerdict::kFails;
    case Promise::kInput:
      if (within(result.last_speedup())) return ClaimVerdict::kHolds;
      return result.last_speedup() > 1.0 + result.noise ? ClaimVerdict::kPartly
                                                        : ClaimVerdict::kFails;
    case Promise::kNoMemory: {
      const double before = result.settings.front().memory_gib;
      const double after = result.settings.back().memory_gib;
      // Not every driver tells.
      if (!(before > 0.0) || !(after > 0.0)) return ClaimVerdict::kUnclear;
      return after <= before * (1.0 + kMemoryNoise) ? ClaimVerdict::kHolds : ClaimVerdict::kFails;
    }
    case Promise::kFaster:
      break;
  }
  // Every step of the row has to gain.
  size_t gains = 0;
  double before = 1.0;
  for (const double speedup : result.speedups) {
    gains += speedup > before * (1.0 + result.noise) ? 1 : 0;
    before = std::max(before, speedup);
  }
  if (gains == result.speedups.size()) return ClaimVerdict::kHolds;
  if (too_noisy(result.last_speedup(), 1.0, result.noise)) return ClaimVerdict::kUnclear;
  return gains > 0 ? ClaimVerdict::kPartly : ClaimVerdict::kFails;
}

struct Part {
  const char* name;
  double before, after;  // ms of one unit of input
};

// Which part of the time of a unit of input changed, from the records of both settings.
std::string time_text(const std::string& unit, const ClaimFigures& before,
                      const ClaimFigures& after) {
  const auto ms = [](const ClaimFigures& one) {
    return one.mean_input() > 0.0 ? 1e3 / one.mean_input() : 0.0;
  };
  const auto rest = [](const ClaimFigures& one) {
    return std::max(0.0, 1.0 - one.data_wait_share - one.validation_share - one.save_share);
  };
  const double a = ms(before), b = ms(after);
  const Part parts[] = {{"computing", a * rest(before), b * rest(after)},
                        {"waiting for data", a * before.data_wait_share, b * after.data_wait_share},
                        {"validation", a * before.validation_share, b * after.validation_share},
                        {"checkpoints", a * before.save_share, b * after.save_share}};
  std::string out = claim_text("%s takes %.3g ms instead of %.3g", unit.c_str(), b, a);
  std::string list;
  for (const Part& part : parts) {
    // What is next to nothing in both needs no word.
    if (part.before < 0.01 * a && part.after < 0.01 * b) continue;
    list += claim_text("%s%s %.3g (was %.3g)", list.empty() ? "" : ", ", part.name, part.after,
                       part.before);
  }
  return list.empty() ? out : str_cat(out, ": ", list);
}

std::string why_text(const ClaimRow& row, const ClaimResult& result) {
  const ClaimFigures& before = result.settings.front();
  const ClaimFigures& after = result.settings.back();
  std::string out =
      time_text(result.model == "bev" ? "a sample" : "a second of audio", before, after);
  const auto changed = [](double a, double b, double limit) {
    return a > 0.0 && b > 0.0 && std::abs(b / a - 1.0) > limit;
  };
  if (before.gpu_util >= 0.0 && after.gpu_util >= 0.0)
    out += claim_text("; GPU %.0f %% busy (was %.0f)", after.gpu_util, before.gpu_util);
  if (changed(before.device_share, after.device_share, 0.1))
    out += claim_text("; %.0f %% of a step is device time (was %.0f)", 100 * after.device_share,
                      100 * before.device_share);
  if (changed(before.memory_gib, after.memory_gib, 0.1) || row.promise == Promise::kNoMemory)
    out += claim_text("; memory %.2f GiB (was %.2f)", after.memory_gib, before.memory_gib);
  if (std::abs(after.padding_share - before.padding_share) > 0.02)
    out += claim_text("; %.0f %% padding (was %.0f)", 100 * after.padding_share,
                      100 * before.padding_share);
  if (!row.note.empty()) out += str_cat("; ", row.note);
  if (result.others_share > kQuiet)
    out += claim_text("; other programs used %.0f %% of the CPUs meanwhile",
                      100 * result.others_share);
  return out;
}

std::string measured_text(const ClaimRow& row, const ClaimResult& result) {
  std::string out;
  if (row.promise == Promise::kSteps)
    out = str_cat(ratio_text(result.step_ratio), " iter/s, ", ratio_text(result.last_speedup()),
                  " samples/s");
  else if (result.speedups.size() == 1)
    out = ratio_text(result.last_speedup());
  else
    for (size_t i = 0; i < result.speedups.size(); ++i)
      out += str_cat(i == 0 ? "" : ", ", result.settings[i + 1].label, ": ",
                     ratio_text(result.speedups[i]));
  out += claim_text(" (±%.0f %%)", 100 * result.noise);
  if (!result.where.empty()) out += str_cat(" on ", result.where);
  return result.needs.empty() ? out : str_cat(result.needs, "; ", out);
}

ordered_json figures_json(const ClaimFigures& one) {
  ordered_json out{{"label", one.label},
                   {"input_per_s", one.input_per_s},
                   {"spread", one.spread},
                   {"steps_per_s", one.steps_per_s},
                   {"step_ms", one.step_ms},
                   {"data_wait_share", one.data_wait_share},
                   {"validation_share", one.validation_share},
                   {"save_share", one.save_share},
                   {"memory_gib", one.memory_gib},
                   {"padding_share", one.padding_share},
                   {"engine", one.engine}};
  if (one.device_share > 0.0) out["device_share"] = one.device_share;
  if (one.gpu_util >= 0.0) out["gpu_util"] = one.gpu_util;
  return out;
}

double number_in(const ordered_json& json, const char* name, double otherwise = 0.0) {
  const auto found = json.find(name);
  return found != json.end() && found->is_number() ? found->get<double>() : otherwise;
}
std::string text_in(const ordered_json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}
std::vector<double> numbers_in(const ordered_json& json, const char* name) {
  std::vector<double> out;
  if (const auto found = json.find(name); found != json.end() && found->is_array())
    for (const ordered_json& one : *found)
      if (one.is_number()) out.push_back(one.get<double>());
  return out;
}

ClaimFigures figures_from(const ordered_json& json) {
  ClaimFigures out;
  out.label = text_in(json, "label");
  out.input_per_s = numbers_in(json, "input_per_s");
  out.spread = number_in(json, "spread");
  out.steps_per_s = number_in(json, "steps_per_s");
  out.step_ms = number_in(json, "step_ms");
  out.data_wait_share = number_in(json, "data_wait_share");
  out.validation_share = number_in(json, "validation_share");
  out.save_share = number_in(json, "save_share");
  out.memory_gib = number_in(json, "memory_gib");
  out.padding_share = number_in(json, "padding_share");
  out.engine = text_in(json, "engine");
  out.device_share = number_in(json, "device_share");
  out.gpu_util = number_in(json, "gpu_util", -1.0);
  return out;
}

ClaimVerdict verdict_from(const std::string& name) {
  for (const ClaimVerdict one :
       {ClaimVerdict::kHolds, ClaimVerdict::kPartly, ClaimVerdict::kFails, ClaimVerdict::kUnclear})
    if (name == claim_verdict_name(one)) return one;
  return ClaimVerdict::kNotMeasured;
}

}  // namespace

const char* claim_verdict_name(ClaimVerdict verdict) {
  switch (verdict) {
    case ClaimVerdict::kHolds:
      return "holds";
    case ClaimVerdict::kPartly:
      return "in part";
    case ClaimVerdict::kFails:
      return "does not hold";
    case ClaimVerdict::kUnclear:
      return "unclear";
    case ClaimVerdict::kNotMeasured:
      break;
  }
  return "-";
}

double ClaimFigures::mean_input() const {
  double sum = 0.0;
  for (const double one : input_per_s) sum += one;
  return input_per_s.empty() ? 0.0 : sum / static_cast<double>(input_per_s.size());
}

void ClaimFigures::take(const RunFacts& facts) {
  input_per_s.push_back(facts.throughput);
  spread = std::max(spread, facts.throughput_spread);
  const auto trials = static_cast<double>(input_per_s.size());
  const auto mean = [&](double& so_far, double value) { so_far += (value - so_far) / trials; };
  mean(steps_per_s,
       facts.span_s > 0.0 ? static_cast<double>(facts.span_steps) / facts.span_s : 0.0);
  mean(step_ms, facts.step_ms);
  mean(data_wait_share, facts.data_wait_share * facts.steps_share);
  mean(validation_share, facts.validation_share);
  mean(save_share, facts.save_share);
  mean(device_share, facts.device_share);
  mean(padding_share, facts.padding_share);
  if (facts.gpu_util_percent >= 0.0) {
    if (trials == 1.0) gpu_util = 0.0;
    mean(gpu_util, facts.gpu_util_percent);
  }
  memory_gib = std::max(memory_gib, facts.memory_gib());
  engine = facts.engine;
}

void judge_claim(const ClaimRow& row, ClaimResult& result) {
  result.what = row.what;
  result.claim = row.claim;
  result.claim_low = row.low;
  result.claim_high = row.high;
  result.speedups.clear();
  result.verdict = ClaimVerdict::kNotMeasured;
  const auto measured = [](const ClaimFigures& one) { return one.mean_input() > 0.0; };
  if (result.settings.size() < 2 ||
      !std::all_of(result.settings.begin(), result.settings.end(), measured)) {
    result.measured = result.needs.empty() ? "not measured" : result.needs;
    result.why = !result.failed.empty() ? result.failed : row.note;
    return;
  }
  for (size_t i = 1; i < result.settings.size(); ++i)
    result.speedups.push_back(median_of(ratios_of(result.settings[0], result.settings[i])));
  result.step_ratio = result.settings.front().steps_per_s > 0.0
                          ? result.settings.back().steps_per_s / result.settings.front().steps_per_s
                          : 0.0;
  result.noise = std::max(spread_of(result.settings), noise_of_others(result));
  // What another machine is needed for is not judged by its stand-in.
  if (result.needs.empty()) result.verdict = verdict_of(row, result);
  result.measured = measured_text(row, result);
  result.why = why_text(row, result);
}

const ClaimResult* ClaimTable::find(const std::string& model, const std::string& name,
                                    const std::string& key) const {
  for (const ClaimResult& row : rows)
    if (row.model == model && row.name == name && row.key == key) return &row;
  return nullptr;
}

void ClaimTable::put(ClaimResult result) {
  for (ClaimResult& row : rows)
    if (row.model == result.model && row.name == result.name) {
      row = std::move(result);
      return;
    }
  rows.push_back(std::move(result));
}

std::string ClaimTable::to_json() const {
  ordered_json list = ordered_json::array();
  for (const ClaimResult& row : rows) {
    ordered_json claim{{"text", row.claim}};
    if (row.claim_high > 0.0) {
      claim["low"] = row.claim_low;
      claim["high"] = row.claim_high;
    }
    ordered_json one{{"model", row.model},
                     {"name", row.name},
                     {"what", row.what},
                     {"claim", std::move(claim)},
                     {"measured", row.measured},
                     {"verdict", claim_verdict_name(row.verdict)},
                     {"why", row.why}};
    if (row.has_figures()) {
      one["speedups"] = row.speedups;
      one["step_ratio"] = row.step_ratio;
      one["noise"] = row.noise;
    }
    if (!row.where.empty()) one["where"] = row.where;
    if (!row.needs.empty()) one["needs"] = row.needs;
    if (!row.failed.empty()) one["failed"] = row.failed;
    if (row.others_share > 0.0) one["others_share"] = row.others_share;
    one["seconds"] = row.seconds;
    one["elapsed_s"] = std::round(row.elapsed_s * 10.0) / 10.0;
    ordered_json settings = ordered_json::array();
    for (const ClaimFigures& setting : row.settings) settings.push_back(figures_json(setting));
    one["settings"] = std::move(settings);
    one["key"] = row.key;
    list.push_back(std::move(one));
  }
  const ordered_json out{{"format", kFormat}, {"cpu", cpu},         {"cpus", cpus}, {"gpu", gpu},
                         {"commit", commit},  {"command", command}, {"rows", list}};
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<ClaimTable> ClaimTable::from_json(const std::string& text) {
  const ordered_json json = ordered_json::parse(text, nullptr, false);
  if (!json.is_object() || text_in(json, "format") != kFormat)
    return data_error(str_cat("no results of `aerie bench claims` (", kFormat, ")"));
  ClaimTable out;
  out.cpu = text_in(json, "cpu");
  out.cpus = static_cast<int>(std::clamp(number_in(json, "cpus"), 0.0, 1e6));
  out.gpu = text_in(json, "gpu");
  out.commit = text_in(json, "commit");
  out.command = text_in(json, "command");
  const auto rows = json.find("rows");
  if (rows == json.end() || !rows->is_array()) return data_error("its rows are missing");
  for (const ordered_json& one : *rows) {
    if (!one.is_object() || text_in(one, "name").empty())
      return data_error("one of its rows is damaged");
    ClaimResult row;
    row.model = text_in(one, "model");
    row.name = text_in(one, "name");
    row.what = text_in(one, "what");
    if (const auto claim = one.find("claim"); claim != one.end() && claim->is_object()) {
      row.claim = text_in(*claim, "text");
      row.claim_low = number_in(*claim, "low");
      row.claim_high = number_in(*claim, "high");
    }
    row.measured = text_in(one, "measured");
    row.verdict = verdict_from(text_in(one, "verdict"));
    row.why = text_in(one, "why");
    row.speedups = numbers_in(one, "speedups");
    row.step_ratio = number_in(one, "step_ratio");
    row.noise = number_in(one, "noise");
    row.where = text_in(one, "where");
    row.needs = text_in(one, "needs");
    row.failed = text_in(one, "failed");
    row.seconds = number_in(one, "seconds");
    row.elapsed_s = number_in(one, "elapsed_s");
    row.others_share = number_in(one, "others_share");
    row.key = text_in(one, "key");
    if (const auto settings = one.find("settings"); settings != one.end() && settings->is_array())
      for (const ordered_json& setting : *settings)
        if (setting.is_object()) row.settings.push_back(figures_from(setting));
    out.rows.push_back(std::move(row));
  }
  return out;
}

std::string claim_key(const std::string& machine, const ClaimProfile& profile, const ClaimRow& row,
                      double seconds) {
  // FNV-1a over everything that the figures hang off.
  std::string text = str_cat(machine, "|", profile.model, "|", profile.small, "|", row.name, "|",
                             row.steps, "|", row.least_steps, "|", seconds);
  const auto take = [&](const std::vector<std::string>& overrides) {
    for (const std::string& one : overrides) text += str_cat("|", one);
  };
  take(claim_base(profile));
  take(row.overrides);
  for (const ClaimSetting& setting : row.settings) {
    text += str_cat("|", setting.label, "|", static_cast<int>(setting.data));
    take(setting.overrides);
  }
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return claim_text("%016llx", static_cast<unsigned long long>(hash));
}

}  // namespace aerie::advisor
