#include "aerie/data/batch.h"

#include <cstdlib>
#include <cstring>
#include <sys/mman.h>

#include "aerie/base/hash.h"

namespace aerie::data {

namespace {

class PageableAllocator final : public HostAllocator {
 public:
  void* allocate(size_t bytes) override {
    // Large blocks on whole huge pages: fewer faults when they are filled for the first time.
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t alignment = bytes >= kHugePage ? kHugePage : 64;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, rounded);
    if (data != nullptr && alignment == kHugePage) ::madvise(data, rounded, MADV_HUGEPAGE);
    return data;
  }
  void deallocate(void* data, size_t) override { std::free(data); }
  const char* kind() const override { return "pageable"; }
};

}  // namespace

HostAllocator& HostAllocator::pageable() {
  static PageableAllocator allocator;
  return allocator;
}

bool HostBlock::reserve(HostAllocator& allocator, size_t bytes) {
  if (bytes <= bytes_ && data_ != nullptr) return true;
  reset();
  data_ = allocator.allocate(bytes);
  if (data_ == nullptr) return false;
  allocator_ = &allocator;
  bytes_ = bytes;
  return true;
}

void HostBlock::settle() {
  if (data_ == nullptr || settled_) return;
  allocator_->settle(data_, bytes_);
  settled_ = true;
}

void HostBlock::reset() {
  if (data_ != nullptr) allocator_->deallocate(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
  settled_ = false;
}

void HostBlock::swap(HostBlock& other) {
  std::swap(allocator_, other.allocator_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(settled_, other.settled_);
}

const HostArray* Batch::find(std::string_view name) const {
  for (const HostArray& array : arrays_)
    if (array.name == name) return &array;
  return nullptr;
}

double Batch::padding_share() const {
  const BatchFill cells = fill();
  if (cells.all == 0) return 0.0;
  return 1.0 - static_cast<double>(cells.valid) / static_cast<double>(cells.all);
}

uint64_t Batch::content_hash() const {
  XxHash64 hash;
  hash.update(&place_.epoch, sizeof(place_.epoch));
  hash.update(&place_.step, sizeof(place_.step));
  hash.update(&place_.lane, sizeof(place_.lane));
  for (const PlannedSample& sample : samples_) {
    hash.update(&sample.sample, sizeof(sample.sample));
    hash.update(&sample.position, sizeof(sample.position));
  }
  for (const HostArray& array : arrays_) {
    hash.update(array.name);
    hash.update(array.shape.data(), sizeof(int64_t) * static_cast<size_t>(array.dims));
    hash.update(array.data, array.bytes());
  }
  hash_more(hash);
  return hash.digest();
}

}  // namespace aerie::data
