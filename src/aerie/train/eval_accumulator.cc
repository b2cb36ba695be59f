#include "aerie/train/eval_accumulator.h"

#include <limits>

#include "aerie/base/check.h"

namespace aerie::train {

namespace {
constexpr size_t kHead = 4;  // batches, counted, loss, weight; the sums follow
}  // namespace

void EvalAccumulator::add(const EvalOutcome& outcome) {
  ++batches_;
  if (!outcome.counted) return;
  ++counted_;
  loss_ += outcome.weight * outcome.loss;
  weight_ += outcome.weight;
  if (sums_.size() < outcome.sums.size()) sums_.resize(outcome.sums.size(), 0.0);
  for (size_t i = 0; i < outcome.sums.size(); ++i) sums_[i] += outcome.sums[i];
}

std::vector<double> EvalAccumulator::pack() const {
  std::vector<double> out{static_cast<double>(batches_), static_cast<double>(counted_), loss_,
                          weight_};
  out.insert(out.end(), sums_.begin(), sums_.end());
  return out;
}

void EvalAccumulator::merge(std::span<const double> packed) {
  AERIE_CHECK(packed.size() >= kHead, packed.size());
  batches_ += static_cast<int64_t>(packed[0]);
  counted_ += static_cast<int64_t>(packed[1]);
  loss_ += packed[2];
  weight_ += packed[3];
  // A rank without a batch has no sums yet.
  if (sums_.size() < packed.size() - kHead) sums_.resize(packed.size() - kHead, 0.0);
  for (size_t i = kHead; i < packed.size(); ++i) sums_[i - kHead] += packed[i];
}

double EvalAccumulator::mean_loss() const {
  return weight_ > 0.0 ? loss_ / weight_ : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace aerie::train
