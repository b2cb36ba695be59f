// A batch in host memory: named, typed arrays with metadata. The loader fills it, the training step
// reads it and gives it back. Nothing here knows about audio except the fields a consumer of audio
// asks for; other kinds of data use the same arrays under other names.
//
// Arrays of an audio batch (B rows, N = capacity() samples a row, rows zero beyond their length):
//   "audio"            (B, N) float32 or int16   clean
//   "audio_len"        (B)    int64
//   "noisy_audio"      (B, N) float32            clean + noise; only when mixing was done here
//   "noisy_audio_len"  (B)    int64
//   "noise"            (B, N) float32            what was added (want_noise); or, with mixing left
//   to
//                      (K, N) as "audio"         the consumer, the K rows of raw noise that
//                                                mix_plan() refers to
//   "noise_len"        (B)    int64
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/data/epoch_plan.h"
#include "aerie/data/speech/augment.h"

namespace aerie::data {

enum class DType : uint8_t { kFloat32, kInt16, kInt64, kUInt8 };
constexpr size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kInt16:
      return 2;
    case DType::kInt64:
      return 8;
    case DType::kUInt8:
      return 1;
  }
  return 0;
}
const char* dtype_name(DType dtype);

// Contiguous, row-major.
struct HostArray {
  std::string_view name;  // a literal
  DType dtype = DType::kFloat32;
  std::array<int64_t, 4> shape{};
  int dims = 0;
  void* data = nullptr;

  int64_t size() const {
    int64_t n = 1;
    for (int d = 0; d < dims; ++d) n *= shape[d];
    return n;
  }
  size_t bytes() const { return static_cast<size_t>(size()) * dtype_bytes(dtype); }
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

class Batch {
 public:
  uint32_t epoch() const { return epoch_; }
  uint64_t step() const { return step_; }            // global step of the epoch
  uint32_t lane() const { return lane_; }            // virtual rank
  uint32_t section() const { return section_; }      // bucket
  int64_t index_in_epoch() const { return index_; }  // of this rank's batches
  bool last_in_epoch() const { return last_; }
  // May be 0: in the last step of a bucket other ranks have samples and this one has none.
  int64_t num_samples() const { return static_cast<int64_t>(samples_.size()); }
  int64_t capacity() const { return capacity_; }  // samples per row, one of a small set
  // Longest row: the length NeMo would pad to.
  int64_t padded_length() const { return padded_length_; }
  int sample_rate() const { return sample_rate_; }
  std::span<const PlannedSample> samples() const { return samples_; }
  std::span<const uint32_t> sample_ids() const { return sample_ids_; }  // NeMo's ids
  std::span<const int64_t> audio_len() const { return audio_len_; }
  std::span<const int64_t> noisy_audio_len() const { return noisy_len_; }
  std::span<const int64_t> noise_len() const { return noise_len_; }
  const HostArray* find(std::string_view name) const;
  std::span<const HostArray> arrays() const { return arrays_; }
  // What was or is to be mixed: rows refer to "audio" and "noise". Gains are final.
  const MixPlan& mix_plan() const { return plan_; }
  bool mixed_on_cpu() const { return mixed_; }

  // Audio of the recordings, without what is repeated to fill up short ones.
  double audio_s() const;
  double padding_share() const;  // of (rows x capacity), in [0, 1]
  // Hash of every array's valid part and of the ids; equal batches have equal hashes.
  uint64_t content_hash() const;

 private:
  friend class Loader;
  friend class BatchBuilder;
  friend class SyntheticBatch;

  uint32_t epoch_ = 0;
  uint64_t step_ = 0;
  uint32_t lane_ = 0;
  uint32_t section_ = 0;
  int64_t index_ = 0;
  bool last_ = false;
  bool mixed_ = true;
  int sample_rate_ = 0;
  int64_t capacity_ = 0;
  int64_t padded_length_ = 0;
  int64_t source_samples_ = 0;  // of all rows, before short ones were filled up
  std::vector<PlannedSample> samples_;
  std::vector<uint32_t> sample_ids_;
  std::vector<int64_t> audio_len_, noisy_len_, noise_len_;
  std::vector<HostArray> arrays_;
  MixPlan plan_;
};

}  // namespace aerie::data
