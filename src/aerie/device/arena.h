// Device memory that grows in place: addresses into it stay valid, so captured graphs outlive
// growth and no block of an earlier size stays behind in an allocator. On a GPU it is a range of
// virtual addresses as large as the device, to which physical memory is mapped as it is asked for
// (GpuModule::make_arena); host_arena() does the same with host memory.
//
// Where a driver cannot map memory, growing replaces the block: data() changes, what was in it is
// lost and everything that was launched has ended. Callers that keep addresses compare data().
//
// One thread.
#pragma once

#include <cstddef>
#include <memory>

#include "aerie/base/status.h"

namespace aerie::device {

class Arena {
 public:
  virtual ~Arena() = default;
  virtual void* data() const = 0;  // null before the first grow()
  virtual size_t size() const = 0;
  // To at least `bytes`; never shrinks. What is new is not initialised. kOutOfMemory: nothing has
  // changed.
  virtual Status grow(size_t bytes) = 0;
};

// `most`: bytes that it grows to, for tests of memory that runs out; 0: as there are.
Result<std::unique_ptr<Arena>> host_arena(size_t most = 0);

}  // namespace aerie::device
