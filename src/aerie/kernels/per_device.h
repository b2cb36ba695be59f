// What was found out about a device, kept for each: a process may have several, of different kinds.
#pragma once

#include <array>
#include <atomic>

namespace aerie::kernels {

// At most one `static` of a function. Any thread; two that ask at once may both find out.
class PerDevice {
 public:
  // `find()` tells it of the current device, whose number is `device`; at least 0.
  template <typename Find>
  int get(int device, Find find) {
    if (device < 0 || device >= static_cast<int>(known_.size())) return find();
    std::atomic<int>& known = known_[static_cast<size_t>(device)];
    int value = known.load(std::memory_order_relaxed) - 1;
    if (value < 0) {
      value = find();
      known.store(value + 1, std::memory_order_relaxed);
    }
    return value;
  }

 private:
  std::array<std::atomic<int>, 64> known_{};  // one more than the answer; 0: not asked yet
};

}  // namespace aerie::kernels
