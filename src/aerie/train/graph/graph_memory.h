// Device memory that captured graphs hold addresses of. Where it cannot grow in place (arena.h),
// the graphs go; where there is no room, memory that others keep for later gives way once.
//
// One thread. Owns its arena.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "aerie/base/status.h"
#include "aerie/device/arena.h"

namespace aerie::train {

class GraphMemory {
 public:
  struct Hooks {
    std::function<void()> moved;      // addresses have changed
    std::function<bool()> make_room;  // frees what can be freed; false: nothing can
  };
  GraphMemory(std::unique_ptr<device::Arena> arena, Hooks hooks)
      : arena_(std::move(arena)), hooks_(std::move(hooks)) {}

  void* data() const { return arena_->data(); }
  size_t size() const { return arena_->size(); }

  // To at least `bytes`; never shrinks. kOutOfMemory: nothing has changed.
  Status grow(size_t bytes) {
    const void* before = arena_->data();
    Status status = arena_->grow(bytes);
    if (status.code() == StatusCode::kOutOfMemory && hooks_.make_room && hooks_.make_room())
      status = arena_->grow(bytes);
    if (before != nullptr && arena_->data() != before && hooks_.moved) hooks_.moved();
    return status;
  }

 private:
  std::unique_ptr<device::Arena> arena_;
  Hooks hooks_;
};

}  // namespace aerie::train
