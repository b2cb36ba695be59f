// Numbers that a forked process leaves for the one that started it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <sys/mman.h>
#include <vector>

#include <ATen/core/Tensor.h>

namespace aerie::dist {

// One process writes; another may read when that has ended.
class Numbers {
 public:
  static constexpr size_t kRoom = size_t{1} << 20;
  Numbers()
      : data_(static_cast<double*>(::mmap(nullptr, kRoom * sizeof(double), PROT_READ | PROT_WRITE,
                                          MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Numbers() { ::munmap(data_, kRoom * sizeof(double)); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  void put(double value) {
    const auto at = static_cast<size_t>(data_[0]) + 1;
    if (at >= kRoom) throw std::length_error("too many numbers");
    data_[at] = value;
    data_[0] = static_cast<double>(at);
  }
  void put(const at::Tensor& tensor) {
    const at::Tensor plain = tensor.detach().to(at::kCPU, at::kDouble).contiguous();
    for (int64_t i = 0; i < plain.numel(); ++i) put(plain.const_data_ptr<double>()[i]);
  }
  // Bits, as numbers of four bytes each.
  void put_bits(const void* data, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
      uint32_t word = 0;
      std::memcpy(&word, static_cast<const char*>(data) + at, std::min(sizeof(word), bytes - at));
      put(static_cast<double>(word));
    }
  }
  std::vector<double> all() const { return {data_ + 1, data_ + 1 + static_cast<size_t>(data_[0])}; }

 private:
  double* data_;
};

}  // namespace aerie::dist
