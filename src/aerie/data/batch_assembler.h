// What a model family brings to the loader: how samples become a batch. Order, threads, ring,
// memory budget, statistics, resuming and the count of bad samples are the loader's.
//
//   class Pictures final : public BatchAssembler {        // one a loader
//     Result<BatchSizes> measure(sampler, first_epoch)     // once: bytes of the largest batch
//     std::unique_ptr<AssemblerThread> make_thread()       // decoders and buffers of one thread
//     std::unique_ptr<BatchSlot> make_slot()               // one a place in the ring
//   };
//   class PictureSlot final : public BatchSlot {
//     Batch& batch()                  // of the slot; the loader fills in place() and samples()
//     Status begin()                  // takes memory for batch().samples() (BatchMemory::take)
//     ItemFigures read_item(i, t)     // sample i into its row; any thread, others at the same time
//     Status finish(t)                // once all are read: what needs the whole batch, then
//                                     // mutable_sample_ids() and mutable_arrays()
//     std::span<const BadItem> bad_items()
//   };
//   auto loader = Loader::make(dataset, std::make_unique<Pictures>(dataset), sampling, config,
//                              options);
//
// A sample that cannot be read is kept in bad_items(): finish() takes it out of batch() (or puts
// something in its place) or, where it must not happen, returns the error. What is wrong with the
// machine and not with the sample (is_passing()) is always an error: which samples a run sees must
// not depend on it. What a slot makes may depend on nothing but batch().place(), samples() and the
// seed, else batches differ with the number of threads. data/number_assembler_test.cc has a whole
// family in a hundred lines.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/data/batch.h"
#include "aerie/data/epoch_plan.h"
#include "aerie/data/loader_stats.h"

namespace aerie::data {

// Bytes set aside for batches. Any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_(limit_bytes) {}
  bool take(uint64_t bytes);
  void give(uint64_t bytes) { used_.fetch_sub(bytes); }
  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_.load(); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
};

// How to speak of a batch that there is no memory for.
struct MemoryWords {
  std::string what = "a batch";  // "a batch of 16 x 3.2 s"
  std::string where;             // "; the longest is train.json:17"; may be empty
  std::string budget_hint = "raise aerie.data.memory_budget_gib, or lower batch_size";
  std::string memory_hint = "lower batch_size, num_workers or prefetch_factor";
};

// Where a loader's batches lie. It outlives every slot.
struct BatchMemory {
  HostAllocator* allocator = nullptr;
  MemoryBudget* budget = nullptr;
  uint64_t usual_bytes = 0;  // BatchSizes::usual_bytes: blocks are made for it at once
  uint64_t spare_bytes = 0;  // of the budget, beyond what the ring takes

  // Makes `block` hold at least `bytes`, counted in the budget; what it held is lost when it grows.
  Status take(
      HostBlock& block, uint64_t bytes,
      const std::function<MemoryWords()>& words = [] { return MemoryWords(); }) const;
  void give_back(HostBlock& block) const;
};

struct BatchSizes {
  // The largest batch that epochs will ask for, as far as the samples tell.
  uint64_t usual_bytes = 0;
  // The largest that could ever be asked for where batches are packed by length; 0: the same.
  uint64_t most_bytes = 0;
  double worker_bytes = 0.0;     // what a thread's decoders and buffers hold, at most
  bool unknown_lengths = false;  // samples do not tell their size: batches may become larger
  std::string note;              // for the log: "16 row lengths, about 3.0% padding"; may be empty
};

// What one thread needs to read samples.
class AssemblerThread {
 public:
  virtual ~AssemblerThread() = default;
};

// What reading a sample took, for statistics.
struct ItemFigures {
  int64_t bytes_read = 0;
  double amount = 0.0;  // as Batch::amount() counts
  int64_t side_ns = 0;  // of the time, what went into the side stage (LoaderWords::side)
};

struct BadItem {
  PlannedSample sample;
  Status status;
  std::string_view outcome = "skipped";  // a literal: what became of it, for the log
};

// One batch under construction, used again and again.
class BatchSlot {
 public:
  virtual ~BatchSlot() = default;
  virtual Batch& batch() = 0;
  const Batch& batch() const { return const_cast<BatchSlot*>(this)->batch(); }
  // An error is the batch's result.
  virtual Status begin() = 0;
  virtual ItemFigures read_item(size_t i, AssemblerThread& thread) = 0;
  virtual Status finish(AssemblerThread& thread) = 0;
  // Of the last finish(), in the order of the plan.
  virtual std::span<const BadItem> bad_items() const = 0;
};

class BatchAssembler {
 public:
  virtual ~BatchAssembler() = default;

  // Once and first. `first_epoch` has at least one batch.
  virtual Result<BatchSizes> measure(const Sampler& sampler, const EpochPlan& first_epoch) = 0;
  // Once, after measure() and before the rest; slots keep a reference to it.
  void set_memory(const BatchMemory& memory) { memory_ = memory; }
  virtual std::unique_ptr<BatchSlot> make_slot() = 0;
  virtual std::unique_ptr<AssemblerThread> make_thread() = 0;

  // The last batch of an epoch was handed out. Where wants_epoch_end() says so, epoch_end() is
  // called, in a thread of its own and never twice at a time.
  virtual bool wants_epoch_end() const { return false; }
  virtual void epoch_end() {}

  // Names in statistics, and figures that only the family knows.
  virtual LoaderWords words() const { return {}; }
  virtual void add_stats(LoaderStats& /*stats*/) const {}
  // Keys that make batches smaller, for hints: "batch_size".
  virtual std::string size_keys() const { return "batch_size"; }
  // A batch does not fit into the memory of the machine.
  virtual Status too_large(uint64_t batch_bytes, uint64_t machine_bytes) const;

 protected:
  const BatchMemory& memory() const { return memory_; }

 private:
  BatchMemory memory_;
};

}  // namespace aerie::data
