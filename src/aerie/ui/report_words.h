// What a family calls its numbers in a report. A run's start record holds them (as JSON), so that a
// report needs nothing but the run's folder.
#pragma once

#include <string>
#include <vector>

#include "aerie/metrics/record.h"

namespace aerie::ui {

struct ReportWords {
  std::string train_loss = "train_loss";
  std::string eval_loss = "val_loss";
  std::string loss_unit;
  // The number that decides which checkpoint is best.
  std::string monitor = "val_loss";
  bool monitor_max = false;
  std::string throughput = "samples_per_s";            // field of the records
  std::string throughput_text = "samples per second";  // of tiles and charts
  std::string throughput_head = "samples/s";           // of tables

  // What to try about slow data and about steps that are too short; whole phrases.
  std::string faster_data = "Raise num_workers";
  std::string longer_steps = "Raise batch_size";
  bool one_engine = false;  // there is no other to try

  // Means over the run, in percent.
  struct Tile {
    std::string field, label;
    bool operator==(const Tile&) const = default;
  };
  std::vector<Tile> shares;
  // Charts beside those that every run has.
  struct Chart {
    std::string title, unit;
    bool evaluation = false;  // from validations; else from training steps
    struct Curve {
      std::string field, name;
      bool operator==(const Curve&) const = default;
    };
    std::vector<Curve> curves;
    double scale = 1.0;
    bool operator==(const Chart&) const = default;
  };
  std::vector<Chart> charts;
  // Keys of the configuration that say what was trained on, with their labels.
  struct Setting {
    std::string key, label;
    bool name = false;  // it is the name of something, not a path
    bool operator==(const Setting&) const = default;
  };
  std::vector<Setting> data_settings;

  std::string to_json() const;
  bool operator==(const ReportWords&) const = default;
};

// The field of a start record that holds them.
inline constexpr const char* kReportWordsField = "report";

// Of the run's first start; `otherwise` where it does not say (earlier versions, damaged text).
ReportWords words_of(const std::vector<metrics::Record>& records, const ReportWords& otherwise);

}  // namespace aerie::ui
