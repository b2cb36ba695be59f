#include <cmath>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/format_text.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/models/nest/probe/run_probe.h"

namespace aerie::probe {
namespace {

using Json = nlohmann::ordered_json;

std::string fixed(double value, int digits) {
  return format_text("%.*f", digits, value);
}

std::string count(int64_t value) {
  return group_digits(static_cast<uint64_t>(value));
}

std::string title_of(const ProbeReport& report, const TaskReport& task, const std::string& source) {
  if (source == "trained") return "trained model";
  if (source == "random") return "random weights";
  if (source == "log_mel" && !task.of_frames()) return "log-mel, unnormalised";
  if (source == "log_mel") return str_cat(report.stacked_frames, " log-mel frames");
  if (source == "energy") return "frame energy";
  return source;
}

std::string row(const std::string& title, const std::string& layer, const std::string& dev,
                const std::string& test) {
  return format_text("  %-22s %9s %8s %8s\n", title.c_str(), layer.c_str(), dev.c_str(),
                     test.c_str());
}

std::string task_text(const ProbeReport& report, const TaskReport& task) {
  if (!task.skipped.empty())
    return str_cat("\n", printable(task.name), ": not probed, ", printable_lines(task.skipped),
                   "\n");
  std::string out = "\n";
  if (task.of_frames()) {
    out +=
        str_cat("phoneme at the centre of every ", fixed(report.frame_s * 1000.0, 0), " ms frame, ",
                task.num_classes, " classes\n  ", count(task.num_train), " frames to fit, ",
                count(task.num_dev), " to choose the layer, ", count(task.num_test), " to test; ",
                task.num_unseen_speakers, " of ", task.num_test_speakers, " test voices unseen\n");
  } else {
    out += str_cat(printable(task.name), " of an utterance (mean over its frames), ",
                   task.num_classes, " classes\n  ", count(task.num_train), " utterances to fit, ",
                   count(task.num_dev), " to choose the layer, ", count(task.num_test));
    if (!task.on_test_part) {
      out += task.name == "speaker" ? " others of the same voices to test\n"
                                    : " others of the training manifest to test\n";
    } else if (task.num_test_speakers > 0) {
      out += str_cat(" to test; ", task.num_unseen_speakers, " of ", task.num_test_speakers,
                     " test voices unseen\n");
    } else {
      out += " of the test manifest to test\n";
    }
  }
  out += row("", "layer", "dev", "test");
  for (const SourceScore& source : task.sources) {
    out += row(title_of(report, task, source.name),
               source.has_layers ? str_cat(source.best + 1, " of ", source.dev.size()) : "-",
               fixed(source.best_dev(), 3), fixed(source.best_test(), 3));
  }
  out += row("largest class", "-", "", fixed(task.largest_class, 3));
  for (const SourceScore& source : task.sources) {
    if (!source.has_layers || source.test.size() < 2) continue;
    out += str_cat("  test by layer, ", title_of(report, task, source.name), ":");
    for (const double value : source.test) out += str_cat(" ", fixed(value, 3));
    out += '\n';
  }
  for (const char* other : {"random", "log_mel"}) {
    if (!task.comparable(other)) continue;
    const double margin = task.margin(other);
    out += str_cat("  trained model against ", title_of(report, task, other), ": ",
                   margin >= 0.0 ? "+" : "", fixed(margin, 1), " points\n");
  }
  return out;
}

Json numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double value : values) out.push_back(std::isfinite(value) ? Json(value) : Json());
  return out;
}

}  // namespace

const SourceScore* TaskReport::find(const std::string& source) const {
  for (const SourceScore& score : sources)
    if (score.name == source) return &score;
  return nullptr;
}

bool TaskReport::comparable(const std::string& source) const {
  if (find("trained") == nullptr || find(source) == nullptr) return false;
  return of_frames() || source != "log_mel";
}

double TaskReport::margin(const std::string& source) const {
  const SourceScore* trained = find("trained");
  const SourceScore* other = find(source);
  if (trained == nullptr || other == nullptr) return std::nan("");
  return 100.0 * (trained->best_test() - other->best_test());
}

std::string report_text(const ProbeReport& report) {
  std::string out = str_cat(
      "model       ", printable(report.model), " (", report.num_layers, " layers of ", report.width,
      ")\nutterances  ", count(report.num_train), " train, ", count(report.num_dev), " dev, ",
      count(report.num_test), " test",
      report.noisy ? str_cat(", noise at ", report.min_snr_db, " to ", report.max_snr_db, " dB")
                   : std::string(", clean"),
      "\n");
  for (const std::string& note : report.notes)
    out += str_cat("note        ", printable_lines(note), "\n");
  for (const TaskReport& task : report.tasks) out += task_text(report, task);
  out += str_cat("\n", human_duration(report.elapsed_s), "\n");
  return out;
}

std::string report_json(const ProbeReport& report) {
  Json out{{"model", report.model},
           {"num_layers", report.num_layers},
           {"width", report.width},
           {"frame_s", report.frame_s},
           {"utterances",
            {{"train", report.num_train},
             {"dev", report.num_dev},
             {"test", report.num_test},
             {"speaker_test", report.num_speaker_test}}},
           {"snr_db", report.noisy ? Json{report.min_snr_db, report.max_snr_db} : Json()},
           {"notes", report.notes},
           {"elapsed_s", report.elapsed_s}};
  out["tasks"] = Json::object();
  for (const TaskReport& task : report.tasks) {
    Json& entry = out["tasks"][task.name];
    if (!task.skipped.empty()) {
      entry = {{"skipped", task.skipped}};
      continue;
    }
    entry = {{"classes", task.num_classes},
             {"train", task.num_train},
             {"dev", task.num_dev},
             {"test", task.num_test},
             {"test_speakers", task.num_test_speakers},
             {"unseen_test_speakers", task.num_unseen_speakers},
             {"tested_on", task.on_test_part ? "test" : "held-out train"},
             {"largest_class", task.largest_class}};
    for (const SourceScore& source : task.sources) {
      Json& score = entry["features"][source.name];
      score = {{"dev", numbers({source.best_dev()})[0]},
               {"test", numbers({source.best_test()})[0]}};
      score["l2"] = source.l2[source.best];
      if (!source.has_layers) continue;
      score["best_layer"] = source.best;
      score["dev_by_layer"] = numbers(source.dev);
      score["test_by_layer"] = numbers(source.test);
    }
    for (const char* other : {"random", "log_mel"})
      if (task.comparable(other)) entry["margin_points"][other] = task.margin(other);
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace aerie::probe
