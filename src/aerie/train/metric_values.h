// Named numbers that a family reports beside the loss. Each is a sum over a weight, so that
// micro-batches, batches and ranks are merged by adding both.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aerie::train {

struct MetricValue {
  std::string name;
  double sum = 0.0;
  double weight = 0.0;

  double value() const { return weight > 0.0 ? sum / weight : 0.0; }
};

// In the order of their first appearance, which is the order of logs.
class MetricValues {
 public:
  void add(std::string_view name, double sum, double weight) {
    for (MetricValue& value : values_) {
      if (value.name != name) continue;
      value.sum += sum;
      value.weight += weight;
      return;
    }
    values_.push_back({std::string(name), sum, weight});
  }
  void merge(const MetricValues& other) {
    for (const MetricValue& value : other.values_) add(value.name, value.sum, value.weight);
  }
  // Null: there is none of that name.
  const MetricValue* find(std::string_view name) const {
    for (const MetricValue& value : values_)
      if (value.name == name) return &value;
    return nullptr;
  }
  bool empty() const { return values_.empty(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::vector<MetricValue> values_;
};

}  // namespace aerie::train
