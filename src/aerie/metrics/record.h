// One line of metrics.jsonl, the source of every other sink (TensorBoard, progress line, report).
//
//   Record record(RecordKind::kTrain, step, epoch, wall_s);
//   record.add("train_loss", loss).add("learning_rate", lr);
//
// Plain value; not shared between threads while it is being filled.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::metrics {

enum class RecordKind { kTrain, kVal, kEvent };

const char* record_kind_name(RecordKind kind);  // "train", "val", "event"

class Record {
 public:
  using Value = std::variant<double, int64_t, bool, std::string>;

  Record(RecordKind kind, int64_t step, int64_t epoch, double wall_s)
      : kind_(kind), step_(step), epoch_(epoch), wall_s_(wall_s) {}

  Record& add(std::string name, double value);
  Record& add(std::string name, int64_t value);
  Record& add(std::string name, int value) { return add(std::move(name), int64_t{value}); }
  Record& add(std::string name, bool value);
  Record& add(std::string name, std::string value);
  Record& add(std::string name, const char* value) {
    return add(std::move(name), std::string(value));
  }

  RecordKind kind() const { return kind_; }
  int64_t step() const { return step_; }  // optimizer steps done; the first is 1
  int64_t epoch() const { return epoch_; }
  double wall_s() const { return wall_s_; }
  const std::vector<std::pair<std::string, Value>>& fields() const { return fields_; }
  // The field as a number; nullptr-like false when it is absent or not a number.
  bool number(std::string_view name, double* out) const;
  std::string text(std::string_view name) const;  // empty when absent or not text

  // One line without the newline. Numbers that are not finite become null: JSON has no NaN.
  std::string to_json() const;
  // Strict: step, epoch, wall_s and kind must be there (docs/formats/metrics.md).
  static Result<Record> from_json(std::string_view line);

 private:
  RecordKind kind_;
  int64_t step_;
  int64_t epoch_;
  double wall_s_;
  std::vector<std::pair<std::string, Value>> fields_;
};

}  // namespace aerie::metrics
