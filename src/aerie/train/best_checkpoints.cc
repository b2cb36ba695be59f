#include "aerie/train/best_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace aerie::train {

double BestCheckpoints::rank(double value) const {
  if (!std::isnan(value)) return value;
  const double infinity = std::numeric_limits<double>::infinity();
  return higher_is_better_ ? -infinity : infinity;
}

bool BestCheckpoints::better(double a, double b) const {
  return higher_is_better_ ? rank(a) > rank(b) : rank(a) < rank(b);
}

bool BestCheckpoints::admits(double value) const {
  if (keep_ == 0) return false;
  if (keep_ < 0 || static_cast<int64_t>(entries_.size()) < keep_) return true;
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return better(value, entry.value); });
}

std::optional<std::string> BestCheckpoints::gives_way() const {
  if (keep_ < 0 || static_cast<int64_t>(entries_.size()) < keep_ || entries_.empty())
    return std::nullopt;
  return poorest();
}

void BestCheckpoints::add(Entry entry) {
  remove(entry.stem);
  entries_.push_back(std::move(entry));
}

void BestCheckpoints::remove(const std::string& stem) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.stem == stem; });
}

const BestCheckpoints::Entry* BestCheckpoints::of_step(int64_t step) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.step == step; });
  return found == entries_.end() ? nullptr : &*found;
}

int64_t BestCheckpoints::not_worse_than(double value) const {
  return std::count_if(entries_.begin(), entries_.end(),
                       [&](const Entry& entry) { return !better(value, entry.value); });
}

std::string BestCheckpoints::best() const {
  const auto found =
      std::min_element(entries_.begin(), entries_.end(),
                       [this](const Entry& a, const Entry& b) { return better(a.value, b.value); });
  return found == entries_.end() ? "" : found->stem;
}

std::string BestCheckpoints::poorest() const {
  const auto found =
      std::max_element(entries_.begin(), entries_.end(),
                       [this](const Entry& a, const Entry& b) { return better(a.value, b.value); });
  return found == entries_.end() ? "" : found->stem;
}

}  // namespace aerie::train
