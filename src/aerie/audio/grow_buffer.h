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
  T* data() { return borrowed_ != nullptr ? borrowed_ : data_.get(); }
  const T* data() const { return borrowed_ != nullptr ? borrowed_ : data_.get(); }
  int64_t size() const { return size_; }
  int64_t capacity() const { return borrowed_ != nullptr ? borrowed_capacity_ : capacity_; }
  void clear() { size_ = 0; }

  // Uses the caller's memory, emptied, until more room is needed or borrow(nullptr, 0) ends it.
  void borrow(T* data, int64_t capacity) {
    borrowed_ = data;
    borrowed_capacity_ = capacity;
    size_ = 0;
  }

  // Room for `n` values; those below size() are kept. Growing in steps doubles the room.
  Status reserve(int64_t n) {
    if (n <= capacity()) return ok_status();
    if (borrowed_ != nullptr && n <= capacity_) return leave_borrowed();
    int64_t room = capacity_ * 2 > n ? capacity_ * 2 : n;
    room = (room + 1023) / 1024 * 1024;
    std::unique_ptr<T[]> bigger(new (std::nothrow) T[static_cast<size_t>(room)]);
    if (bigger == nullptr)
      return out_of_memory(str_cat("no memory for an audio buffer of ",
                                   room * static_cast<int64_t>(sizeof(T)), " bytes"));
    if (size_ > 0) std::memcpy(bigger.get(), data(), static_cast<size_t>(size_) * sizeof(T));
    data_ = std::move(bigger);
    capacity_ = room;
    borrowed_ = nullptr;
    return ok_status();
  }
  // size() becomes n; new values are not initialised.
  Status resize(int64_t n) {
    AERIE_RETURN_IF_ERROR(reserve(n));
    size_ = n;
    return ok_status();
  }

 private:
  Status leave_borrowed() {
    if (size_ > 0) std::memcpy(data_.get(), borrowed_, static_cast<size_t>(size_) * sizeof(T));
    borrowed_ = nullptr;
    return ok_status();
  }

  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
  T* borrowed_ = nullptr;
  int64_t borrowed_capacity_ = 0;
};

}  // namespace aerie::audio
