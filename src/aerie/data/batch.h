// A batch in host memory: named, typed arrays and where they stand in the epoch. A family's
// BatchAssembler makes it (usually a class of its own, derived from Batch), the loader hands it
// out, the training step reads it and gives it back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/dtype.h"
#include "aerie/base/hash.h"
#include "aerie/data/epoch_plan.h"

namespace aerie::data {

// Contiguous, row-major.
struct HostArray {
  std::string_view name;  // a literal
  Dtype dtype = Dtype::kF32;
  std::array<int64_t, 4> shape{};
  int dims = 0;
  void* data = nullptr;

  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < dims; ++d) n *= shape[d];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(size()) * dtype_size(dtype); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Where batch memory comes from: plain memory, or memory a device can read directly. Any thread.
class HostAllocator {
 public:
  virtual ~HostAllocator() = default;
  // Aligned to at least 64 bytes; null when there is none.
  virtual void* allocate(size_t bytes) = 0;
  virtual void deallocate(void* data, size_t bytes) = 0;
  // Once a block, when its first batch is in it and before a device reads it: what would keep
  // allocate() waiting for the device is done here.
  virtual void settle(void* /*data*/, size_t /*bytes*/) {}
  virtual const char* kind() const = 0;  // "pageable", "pinned"
  static HostAllocator& pageable();      // lives for ever
};

// A block of an allocator's memory that grows when asked and never shrinks.
class HostBlock {
 public:
  HostBlock() = default;
  ~HostBlock() { reset(); }
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;
  // Contents are lost when it grows. False: no memory.
  bool reserve(HostAllocator& allocator, size_t bytes);
  void settle();
  void reset();
  void swap(HostBlock& other);
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  HostAllocator* allocator_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  bool settled_ = false;
};

// How the random draws of a batch are numbered, so that they depend on the sample and not on the
// rank that has it. Samples that are dealt out in turn are rows of the batch of all ranks together;
// with virtual ranks each batch is one micro-batch of all that a single rank would have.
struct DrawPlace {
  uint64_t first_item = 0, item_stride = 1;  // row i is item first_item + i * item_stride
  uint64_t ranks = 1;                        // micro-batches of all ranks for one of this rank
  int64_t micro_offset = 0;

  uint64_t micro_step(uint64_t of_this_rank) const {
    return of_this_rank * ranks + static_cast<uint64_t>(micro_offset);
  }
};

// Where a batch stands in its epoch.
struct BatchPlace {
  uint32_t epoch = 0;
  uint64_t step = 0;     // global step of the epoch
  uint32_t lane = 0;     // virtual rank
  uint32_t section = 0;  // bucket
  int64_t index = 0;     // of this rank's batches
  bool last = false;     // of the epoch
  DrawPlace draws;
};

// How full a batch is, in whatever its rows are made of: equal rows are padded.
struct BatchFill {
  int64_t valid = 0;
  int64_t all = 0;
};

class Batch {
 public:
  virtual ~Batch() = default;

  const BatchPlace& place() const { return place_; }
  uint32_t epoch() const { return place_.epoch; }
  uint64_t step() const { return place_.step; }
  uint32_t lane() const { return place_.lane; }
  uint32_t section() const { return place_.section; }
  int64_t index_in_epoch() const { return place_.index; }
  bool last_in_epoch() const { return place_.last; }
  // May be 0: in the last step of a bucket other ranks have samples and this one has none.
  int64_t num_samples() const { return static_cast<int64_t>(samples_.size()); }
  std::span<const PlannedSample> samples() const { return samples_; }
  std::span<const uint32_t> sample_ids() const { return sample_ids_; }  // Dataset::sample_id
  const HostArray* find(std::string_view name) const;
  std::span<const HostArray> arrays() const { return arrays_; }

  // What the task counts of its input: seconds of audio, images.
  virtual double amount() const { return static_cast<double>(num_samples()); }
  virtual BatchFill fill() const { return {num_samples(), num_samples()}; }
  double padding_share() const;  // in [0, 1]
  // Hash of the place, the samples and every array; equal batches have equal hashes.
  uint64_t content_hash() const;

  // For whoever makes the batch. The vectors keep their memory from batch to batch.
  void set_place(const BatchPlace& place) { place_ = place; }
  std::vector<PlannedSample>& mutable_samples() { return samples_; }
  std::vector<uint32_t>& mutable_sample_ids() { return sample_ids_; }
  std::vector<HostArray>& mutable_arrays() { return arrays_; }

 protected:
  Batch() = default;
  Batch(const Batch&) = default;
  Batch(Batch&&) = default;
  Batch& operator=(const Batch&) = default;
  Batch& operator=(Batch&&) = default;

  // What a family's batch holds beside its arrays.
  virtual void hash_more(XxHash64& /*hash*/) const {}

 private:
  BatchPlace place_;
  std::vector<PlannedSample> samples_;
  std::vector<uint32_t> sample_ids_;
  std::vector<HostArray> arrays_;
};

// A batch that is nothing but its arrays.
class ArrayBatch final : public Batch {};

}  // namespace aerie::data
