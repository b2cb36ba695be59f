// The loader: worker threads turn the plan of an epoch into batches in host memory.
//
//   plan -> read (the family's BatchAssembler, sample by sample) -> finish (batch) -> ring ->
//   next()
//
// Samples of the oldest unfinished batch are read first, by all workers at once; the batch is
// finished when its last sample is there; batches come out in the order of the plan. Neither order
// nor content depends on the number of threads. With 0 workers all of it happens inside next().
//
// At the start only what the consumer's first step takes (consumer_batches - 1) is read; the ring
// is filled once the first batch has been taken.
//
// Memory: the ring holds workers x prefetch_factor batches and those the consumer keeps; all of it
// is allocated as the ring is first filled, within the budget printed there. A sample that does not
// fit is treated as a bad one. In the steady state nothing is allocated per sample.
//
// Errors: a sample that cannot be read is skipped, replaced or fatal, as its assembler has it, and
// counted; when more than max_bad_fraction of all samples are bad the run stops with their names.
// The error comes out of next() in the order of the batches.
//
// Threads: one consumer. stats() and bad_samples() from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/batch.h"
#include "aerie/data/batch_assembler.h"
#include "aerie/data/cursor.h"
#include "aerie/data/dataset.h"
#include "aerie/data/loader_config.h"
#include "aerie/data/loader_stats.h"

namespace aerie::data {

struct BadSample {
  uint32_t sample_id = 0;
  std::string place;  // "train.json:17 (clips/a.wav)"
  std::string reason;
  uint32_t epoch = 0;
  uint64_t position = 0;
  uint32_t sample = 0;  // in the list of samples
};

// Where a consumer stands in its epoch, in batches of this loader. An epoch that began with other
// batches counts as if it had had these from the start.
struct EpochPosition {
  int64_t batch = 0;    // handed out
  int64_t batches = 0;  // of the whole epoch
};

struct LoaderOptions {
  uint64_t seed = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  // Batches the consumer keeps at the same time (between next() and release()).
  int consumer_batches = 2;
  // One epoch, then next() gives null for ever; else the next epoch is prepared meanwhile.
  bool single_epoch = false;
  // False: nothing is read before read_ahead() or next().
  bool read_ahead = true;
  int64_t max_batches_per_epoch = -1;  // of this rank; -1: all
  bool quiet = false;
  bool check_machine = true;           // warnings about disk, cores and memory
  HostAllocator* allocator = nullptr;  // null: pageable memory
  // Bad samples an earlier process reported (bad_samples.jsonl): cursors of earlier versions only
  // say how many there were.
  std::vector<BadSample> earlier_bad;
  Packing packing = Packing::kLhotse;
  // Ways of making batches that the run may have begun with: cursors of earlier versions name
  // theirs by a hash only.
  std::vector<Batching> earlier_batching;
  // Called by next(), in order, once per bad sample.
  std::function<void(const BadSample&)> on_bad_sample;
};

class Loader {
 public:
  static Result<std::unique_ptr<Loader>> make(std::shared_ptr<const Dataset> dataset,
                                              std::unique_ptr<BatchAssembler> assembler,
                                              const SamplingConfig& sampling,
                                              const LoaderConfig& config,
                                              const LoaderOptions& options);
  ~Loader();

  // This rank's batches of the current epoch.
  int64_t batches_per_epoch() const;
  // The next batch, or null at the end of the epoch. It stays valid until release().
  Result<const Batch*> next();
  void release(const Batch* batch);
  void read_ahead();
  // Goes to the first batch of `epoch`; free when that is what comes next anyway.
  Status start_epoch(int64_t epoch);

  // Position after the last batch handed out, and back to it. A cursor of another data set, order
  // or seed is refused. With other batches (batch_size and its kin, number of lanes) the rest of
  // the epoch is cut anew: each of its samples comes once, except those that fill no batch where
  // drop_last says so.
  Cursor cursor() const;
  std::string cursor_json() const { return cursor().to_json(); }
  Status restore(const std::string& cursor_json);
  // Takes over what earlier processes counted, whatever epoch comes next: samples seen, and bad
  // samples if the data is the same.
  Status restore_counts(const std::string& cursor_json);
  EpochPosition position() const;

  LoaderStats stats() const;
  std::vector<BadSample> bad_samples() const;
  // Several ranks: the bad samples that next() met since the last call, for the others; and those
  // that others met, which count as if this loader had. An error: they are too many.
  size_t untold_bad_samples() const;
  std::vector<BadSample> take_bad_samples();
  Status add_bad_samples(const std::vector<BadSample>& of_others);
  const Sampler& sampler() const;
  uint64_t memory_bytes() const;  // what was set aside: never exceeded
  const BatchAssembler& assembler() const;
  // One line for the log: workers, ring, memory, shapes, padding.
  std::string description() const;

 private:
  struct Impl;
  explicit Loader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::data
