#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/advisor/diagnosis.h"
#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

std::string times_text(double speedup) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f times as fast", speedup);
  return text;
}

std::string gain_text(const Finding& finding) {
  if (finding.measured_speedup)
    return str_cat(times_text(*finding.measured_speedup), ", measured by trials of both");
  return str_cat("at best ", times_text(finding.estimated_speedup()),
                 ", estimated from the records");
}

std::string advice_line(const Finding& finding) {
  return finding.change.empty() ? finding.advice
                                : str_cat(finding.advice, " [", finding.change, "]");
}

// What a run is to be rid of before its speed matters: it ended badly, or learnt nothing. Null: it
// may be made faster.
const Finding* what_comes_first(const Diagnosis& diagnosis) {
  const Finding* out = nullptr;
  for (const char* id : {"failed", "unhealthy", "skipped_steps"})  // the last one says most
    for (const Finding& finding : diagnosis.correctness)
      if (finding.id == id) out = &finding;
  return out;
}

}  // namespace

std::string Diagnosis::verdict() const {
  if (facts.train_records == 0)
    return correctness.empty() ? "no training step was logged: nothing to judge"
                               : str_cat("not healthy: ", correctness.front().what);
  std::string out;
  if (!correctness.empty()) out = str_cat("not healthy: ", correctness.front().what);
  if (!speed.empty())
    out += str_cat(out.empty() ? "slower than it need be: " : "; and slower than it need be: ",
                   speed.front().what);
  if (out.empty()) return str_cat("healthy: ", facts.view.verdict.sentence);
  return out + ".";
}

std::string Diagnosis::to_text() const {
  std::string out = "Measured\n";
  for (const std::string& line : measurements) out += str_cat("  ", line, "\n");
  if (measurements.empty()) out += "  nothing: no training step was logged\n";
  if (!correctness.empty()) {
    out += "\nCorrectness\n";
    for (const Finding& finding : correctness)
      out += str_cat("  ", finding.what, "\n    -> ", advice_line(finding), "\n");
  }
  if (!speed.empty()) {
    out += "\nSpeed, worth most first\n";
    int number = 0;
    for (const Finding& finding : speed)
      out += str_cat("  ", ++number, ". ", finding.what, "\n     -> ", advice_line(finding), ": ",
                     gain_text(finding), "\n");
  }
  out += str_cat("\nVerdict: ", verdict(), "\n");
  if (const Finding* first = what_comes_first(*this); first != nullptr)
    out += str_cat("Change first: ", first->advice, speed.empty() ? "\n" : "; then its speed\n");
  else if (!speed.empty())
    out += str_cat("Change first: ",
                   speed.front().change.empty() ? speed.front().advice : speed.front().change, " (",
                   gain_text(speed.front()), ")\n");
  return out;
}

std::string Diagnosis::to_json() const {
  using nlohmann::ordered_json;
  const auto list = [](const std::vector<Finding>& findings, bool gains) {
    ordered_json out = ordered_json::array();
    for (const Finding& finding : findings) {
      ordered_json one{{"id", finding.id}, {"what", finding.what}, {"advice", finding.advice}};
      if (!finding.change.empty()) one["change"] = finding.change;
      if (gains) {
        one["estimated_speedup"] = finding.estimated_speedup();
        one["measured_speedup"] =
            finding.measured_speedup ? ordered_json(*finding.measured_speedup) : ordered_json();
      }
      out.push_back(std::move(one));
    }
    return out;
  };
  ordered_json measured{{"state", ui::run_state_name(facts.view.state)},
                        {"steps", facts.view.steps},
                        {"step_ms", facts.step_ms},
                        {"data_wait_share", facts.data_wait_share},
                        {"validation_share", facts.validation_share},
                        {"save_share", facts.save_share},
                        {"padding_share", facts.padding_share},
                        {"throughput", facts.throughput},
                        {"skipped_steps", facts.skipped_steps},
                        {"bad_samples", facts.bad_samples},
                        {"ranks", facts.world}};
  if (facts.saves_asked > 0)
    measured["checkpoints"] = {
        {"asked", facts.saves_asked},           {"written", facts.saves_written},
        {"superseded", facts.saves_superseded}, {"write_ms", facts.write_ms},
        {"writer_share", facts.write_share},    {"writer_cpu_share", facts.write_cpu_share}};
  if (facts.gpu_util_percent >= 0.0) measured["gpu_util"] = facts.gpu_util_percent;
  if (facts.memory_gib() > 0.0) measured["memory_gib"] = facts.memory_gib();
  if (!facts.loader.storage.empty()) measured["storage"] = facts.loader.storage;
  if (const LoaderFacts& loader = facts.loader; loader.known) {
    ordered_json stages{{"files", loader.disk_share}, {"decode", loader.decode_share}};
    if (!loader.side.empty()) stages[loader.side] = loader.side_share;
    stages[loader.finish] = loader.finish_share;
    stages["idle"] = loader.blocked_share;
    measured["loader"] = {{"workers", loader.workers},
                          {"limit", loader.limit},
                          {"thread_shares", std::move(stages)},
                          {"read_mb_per_s", loader.read_mb_per_s},
                          {"needed_mb_per_s", loader.needed_mb_per_s},
                          {"cpu_share", loader.cpu_share}};
    if (loader.left_out > 0) measured["loader"]["left_out"] = loader.left_out;
  }
  ordered_json out{{"healthy", healthy()},
                   {"verdict", verdict()},
                   {"measured", std::move(measured)},
                   {"notes", measurements},
                   {"correctness", list(correctness, false)},
                   {"speed", list(speed, true)}};
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace aerie::advisor
