// The evaluation of one set: batches go in, ranks merge theirs, numbers come out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/train/engine.h"

namespace aerie::train {

class EvalAccumulator {
 public:
  void add(const EvalOutcome& outcome);
  // Adds what another part of the set gathered: another rank's, as pack() gave it.
  void merge(std::span<const double> packed);
  // Everything gathered as numbers that may be added up over ranks.
  std::vector<double> pack() const;

  int64_t batches() const { return batches_; }
  int64_t counted() const { return counted_; }  // batches that have a loss
  // Mean over the batches that have one, each with its weight; NaN when none has.
  double mean_loss() const;
  // Of EvalOutcome::sums, number by number.
  std::span<const double> sums() const { return sums_; }

 private:
  int64_t batches_ = 0, counted_ = 0;
  double loss_ = 0.0, weight_ = 0.0;  // the sum of weighted losses, and of their weights
  std::vector<double> sums_;
};

}  // namespace aerie::train
