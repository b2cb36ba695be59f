#include "aerie/advisor/tune_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include <nlohmann/json.hpp>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

using nlohmann::ordered_json;

std::string formatted(const char* pattern, double value) {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

std::string amount(double value) {
  return formatted(value >= 100.0 ? "%.0f" : value >= 1.0 ? "%.2f" : "%.4f", value);
}

// "batch_size=32 num_workers=4", without the nodes that the keys are in.
std::string short_changes(const TuneSpace& space, const TuneSettings& settings) {
  std::string out;
  for (const std::string& change : changes_of(space, settings)) {
    const size_t equals = change.find('=');
    const size_t dot = change.rfind('.', equals);
    out += str_cat(out.empty() ? "" : " ", dot < equals ? change.substr(dot + 1) : change);
  }
  return out.empty() ? "as configured" : out;
}

const char* end_name(TrialOutcome::End end) {
  switch (end) {
    case TrialOutcome::End::kDone:
      return "done";
    case TrialOutcome::End::kOutOfMemory:
      return "out_of_memory";
    case TrialOutcome::End::kFailed:
      return "failed";
    case TrialOutcome::End::kCancelled:
      return "cancelled";
  }
  return "";
}

double batch_ratio(const TuneSpace& space, const TuneResult& result) {
  if (!result.chosen.buckets.empty()) {
    const auto sum = [](const std::vector<int64_t>& sizes) {
      return static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
    };
    return sum(result.chosen.buckets) /
           std::max(1.0, sum(space.batch.bucket_sizes(result.start.batch)));
  }
  return static_cast<double>(result.chosen.batch) / static_cast<double>(result.start.batch);
}

ordered_json json_of(const std::vector<std::string>& changes) {
  ordered_json out = ordered_json::object();
  for (const std::string& change : changes) {
    const size_t equals = change.find('=');
    out[change.substr(0, equals)] = change.substr(equals + 1);
  }
  return out;
}

// One sentence: how fast before and after.
std::string comparison(const TuneSpace& space, const TuneResult& result) {
  const std::string& unit = space.throughput_unit;
  if (result.before.empty() || result.after.empty()) {
    if (!result.after.empty())
      return str_cat("the start does not fit into memory; the choice gives ",
                     amount(result.after_mean()), " ", unit);
    if (result.kept_start) return "the choice failed when it was measured again: the start is kept";
    return "nothing that was tried is faster than the start";
  }
  const std::string figures =
      str_cat(amount(result.before_mean()), " -> ", amount(result.after_mean()), " ", unit, ", ",
              formatted("%.2f", result.measured_speedup()), " x, mean of ", result.after.size(),
              result.after.size() == 1 ? " trial" : " trials", " each, in turn");
  return result.kept_start ? str_cat("not better, so the start is kept: ", figures)
                           : str_cat("before -> after: ", figures);
}

}  // namespace

Result<RateRule> parse_rate_rule(const std::string& text) {
  if (text == "linear") return RateRule::kLinear;
  if (text == "sqrt") return RateRule::kSqrt;
  return invalid_argument(str_cat("--scale-lr takes linear or sqrt, got '", text, "'"));
}

double scaled_rate(double rate, double ratio, RateRule rule) {
  if (rule == RateRule::kKeep) return rate;
  const double scaled = rate * (rule == RateRule::kLinear ? ratio : std::sqrt(ratio));
  // Six digits are more than a learning rate deserves.
  return std::stod(formatted("%.6g", scaled));
}

std::vector<std::string> final_changes(const TuneSpace& space, const TuneResult& result,
                                       RateRule rate) {
  std::vector<std::string> out = changes_of(space, result.chosen);
  if (rate != RateRule::kKeep && batch_ratio(space, result) != 1.0 && space.rate.value > 0.0 &&
      space.rate.scaled_by_config.empty() && !space.batch.automatic)
    out.push_back(str_cat(
        space.rate.key, "=",
        formatted("%.6g", scaled_rate(space.rate.value, batch_ratio(space, result), rate))));
  return out;
}

std::string row_text(const TuneSpace& space, const TriedRow& row) {
  char line[160];
  const TrialOutcome& outcome = row.outcome;
  const std::string memory = outcome.memory_used_gib > 0.0
                                 ? formatted("%.1f GiB", outcome.memory_used_gib)
                                 : std::string("-");
  std::snprintf(
      line, sizeof line, "  %-6s %12s %10s %8s %11s  ", row.memory ? "memory" : "speed",
      outcome.done() && outcome.throughput > 0.0 ? amount(outcome.throughput).c_str() : "-",
      outcome.done() && outcome.step_ms > 0.0 ? amount(outcome.step_ms).c_str() : "-",
      outcome.done() && !row.memory ? formatted("%.1f %%", 100.0 * outcome.data_wait_share).c_str()
                                    : "-",
      memory.c_str());
  return str_cat(line, short_changes(space, row.settings),
                 row.verdict.empty() ? "" : ": " + row.verdict);
}

std::string rate_sentence(const TuneSpace& space, const TuneResult& result, RateRule applied) {
  const TuneRate& rate = space.rate;
  if (!(rate.value > 0.0)) return "";
  if (space.batch.automatic)
    return str_cat(rate.scaled_by_config.empty()
                       ? str_cat(rate.key, " stays ", rate.value, "; it is not scaled to the batch")
                       : rate.scaled_by_config);
  if (result.chosen.batch == result.start.batch && result.chosen.buckets.empty()) return "";
  const double ratio = batch_ratio(space, result);
  if (!rate.scaled_by_config.empty()) return rate.scaled_by_config;
  const std::string both =
      str_cat(formatted("%.3g", ratio), " x the batch: the linear rule gives ", rate.key, "=",
              formatted("%.6g", scaled_rate(rate.value, ratio, RateRule::kLinear)),
              ", the square-root rule ",
              formatted("%.6g", scaled_rate(rate.value, ratio, RateRule::kSqrt)));
  if (applied == RateRule::kKeep)
    return str_cat(both, "; it stays ", formatted("%.6g", rate.value),
                   " (--scale-lr linear|sqrt writes one of them)");
  return str_cat(both, "; ", applied == RateRule::kLinear ? "linear" : "sqrt",
                 " is applied, as --scale-lr asks (it was ", formatted("%.6g", rate.value), ")");
}

std::string tune_text(const TuneSpace& space, const TuneResult& result, const TuneStory& story) {
  char head[160];
  std::snprintf(head, sizeof head, "  %-6s %12s %10s %8s %11s  %s\n", "trial",
                space.throughput_unit.c_str(), "ms a step", "waiting", "memory", "with");
  std::string out = head;
  for (const TriedRow& row : result.tried) out += row_text(space, row) + "\n";
  out += "\nwhy:\n";
  for (const std::string& reason : result.reasons) out += str_cat("  ", reason, "\n");
  out += str_cat("\n", comparison(space, result), "\n");
  if (const std::string rate = rate_sentence(space, result, story.rate); !rate.empty())
    out += str_cat("learning rate: ", rate, "\n");
  if (result.out_of_time)
    out += "not everything could be tried in the time: --minutes gives it more\n";
  if (!story.file.empty())
    out += str_cat("written: ", story.file, "\ntrain:   ", story.train_command, "\n");
  return out;
}

std::string tune_json(const TuneSpace& space, const TuneResult& result, const TuneStory& story) {
  ordered_json json;
  json["command"] = story.command;
  json["date"] = story.date;
  json["machine"] = story.machine;
  json["aerie"] = story.version;
  json["elapsed_s"] = story.elapsed_s;
  json["throughput_unit"] = space.throughput_unit;
  ordered_json tried = ordered_json::array();
  for (const TriedRow& row : result.tried) {
    const TrialOutcome& outcome = row.outcome;
    ordered_json one{{"kind", row.memory ? "memory" : "speed"},
                     {"changes", json_of(changes_of(space, row.settings))},
                     {"batch", row.settings.batch},
                     {"outcome", end_name(outcome.end)}};
    if (outcome.done()) {
      one["throughput"] = outcome.throughput;
      one["step_ms"] = outcome.step_ms;
      if (!row.memory) one["data_wait_share"] = outcome.data_wait_share;
    }
    if (outcome.memory_used_gib > 0.0) one["memory_used_gib"] = outcome.memory_used_gib;
    if (outcome.memory_total_gib > 0.0) one["memory_total_gib"] = outcome.memory_total_gib;
    for (const BucketOutcome& bucket : outcome.buckets)
      one["buckets"].push_back({{"bucket", bucket.bucket},
                                {"size", bucket.size},
                                {"seconds", bucket.seconds},
                                {"memory_used_gib", bucket.memory_used_gib}});
    if (!outcome.message.empty()) one["message"] = outcome.message;
    one["wall_s"] = outcome.wall_s;
    one["verdict"] = row.verdict;
    tried.push_back(std::move(one));
  }
  json["tried"] = std::move(tried);
  json["reasons"] = result.reasons;
  json["chosen"] = json_of(final_changes(space, result, story.rate));
  json["batch"] = {{"key", space.batch.key},
                   {"unit", space.batch.unit},
                   {"before", result.start.batch},
                   {"after", result.chosen.batch}};
  if (!result.chosen.buckets.empty()) json["batch"]["buckets"] = result.chosen.buckets;
  if (result.memory_total_gib > 0.0 && !result.kept_start)
    json["memory"] = {{"used_gib", result.memory_used_gib},
                      {"total_gib", result.memory_total_gib},
                      {"free_share", 1.0 - result.memory_used_gib / result.memory_total_gib}};
  json["before"] = result.before;
  json["after"] = result.after;
  json["measured_speedup"] = result.before.empty() || result.after.empty()
                                 ? ordered_json()
                                 : ordered_json(result.measured_speedup());
  json["kept_start"] = result.kept_start;
  json["out_of_time"] = result.out_of_time;
  if (space.rate.value > 0.0 && !space.batch.automatic) {
    const double ratio = batch_ratio(space, result);
    json["learning_rate"] = {{"key", space.rate.key},
                             {"now", space.rate.value},
                             {"linear", scaled_rate(space.rate.value, ratio, RateRule::kLinear)},
                             {"sqrt", scaled_rate(space.rate.value, ratio, RateRule::kSqrt)},
                             {"applied", story.rate == RateRule::kKeep     ? "none"
                                         : story.rate == RateRule::kLinear ? "linear"
                                                                           : "sqrt"}};
    if (!space.rate.scaled_by_config.empty())
      json["learning_rate"]["scaled_by_config"] = space.rate.scaled_by_config;
  }
  json["config"] = story.file.empty() ? ordered_json() : ordered_json(story.file);
  json["train"] = story.train_command.empty() ? ordered_json() : ordered_json(story.train_command);
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string tune_header(const TuneSpace& space, const TuneResult& result, const TuneStory& story) {
  std::string out;
  const auto line = [&](const std::string& text) {
    out += text.empty() ? "#\n" : str_cat("# ", printable(text), "\n");
  };
  line(str_cat("Tuned by `", story.command, "`"));
  line(str_cat("on ", story.date, ", ", story.machine, ", ", story.version));
  line(comparison(space, result));
  line("");
  for (const std::string& reason : result.reasons) line(reason);
  if (const std::string rate = rate_sentence(space, result, story.rate); !rate.empty())
    line("learning rate: " + rate);
  if (result.out_of_time) line("not everything could be tried in the time");
  line("");
  line(str_cat("  ", story.train_command));
  return out + "\n";
}

}  // namespace aerie::advisor
