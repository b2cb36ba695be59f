// Which checkpoints are the best k by the monitored metric: Lightning's rules as a plain list, so
// that they have tests of their own. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aerie::train {

class BestCheckpoints {
 public:
  struct Entry {
    std::string stem;
    double value = 0.0;
    int64_t step = 0;
  };
  // `keep` as save_top_k: -1 all, 0 none.
  BestCheckpoints(int64_t keep, bool higher_is_better)
      : keep_(keep), higher_is_better_(higher_is_better) {}

  // Whether a checkpoint with this value would be kept. A value that is not a number is the worst.
  bool admits(double value) const;
  // What goes when one more comes: the poorest, of equal ones the earliest. Nothing while there is
  // room.
  std::optional<std::string> gives_way() const;
  // Takes the place of an entry of the same name.
  void add(Entry entry);
  void remove(const std::string& stem);
  // The entry of a step: two saves of one step hold the same weights.
  const Entry* of_step(int64_t step) const;
  // Entries that are better than `value`, or equal.
  int64_t not_worse_than(double value) const;

  bool too_many() const { return keep_ >= 0 && static_cast<int64_t>(entries_.size()) > keep_; }
  const std::vector<Entry>& entries() const { return entries_; }  // in the order they came
  std::string best() const;     // of equal ones the earliest; empty: none
  std::string poorest() const;  // of equal ones the earliest; empty: none
  bool better(double a, double b) const;

 private:
  double rank(double value) const;

  int64_t keep_;
  bool higher_is_better_;
  std::vector<Entry> entries_;
};

}  // namespace aerie::train
