// A buffer of plain values that keeps its memory between uses and never clears it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#include "aerie/base/status.h"

namespace aerie::audio {

template <typename T>
class GrowBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int64_t size() const { return size_; }
  int64_t capacity() const { return capacity_; }
  void clear() { size_ = 0; }

  // Room for `n` values; those below size() are kept. Growing in steps doubles the room.
  Status reserve(int64_t n) {
    if (n <= capacity_) return ok_status();
    int64_t room = capacity_ * 2 > n ? capacity_ * 2 : n;
    room = (room + 1023) / 1024 * 1024;
    std::unique_ptr<T[]> bigger(new (std::nothrow) T[static_cast<size_t>(room)]);
    if (bigger == nullptr)
      return out_of_memory(str_cat("no memory for an audio buffer of ",
                                   room * static_cast<int64_t>(sizeof(T)), " bytes"));
    if (size_ > 0) std::memcpy(bigger.get(), data_.get(), static_cast<size_t>(size_) * sizeof(T));
    data_ = std::move(bigger);
    capacity_ = room;
    return ok_status();
  }
  // size() becomes n; new values are not initialised.
  Status resize(int64_t n) {
    AERIE_RETURN_IF_ERROR(reserve(n));
    size_ = n;
    return ok_status();
  }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
};

}  // namespace aerie::audio
