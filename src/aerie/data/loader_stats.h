// Where a loader's time goes. Times are seconds summed over threads since the start.
#pragma once

#include <cstdint>
#include <string>

namespace aerie::data {

// What a family calls the stages, in to_json() and bottleneck().
struct LoaderWords {
  std::string amount = "amount";        // "audio_s"
  std::string side;                     // a stage of its own inside reading; empty: there is none
  std::string side_failures;            // "noise_failures"
  std::string finish = "finish";        // the stage that makes a batch of what was read
  std::string finishing = "finishing";  // the same as something that takes time: "mixing"
};

struct StageStats {
  uint64_t items = 0;
  double busy_s = 0.0;
  double bytes = 0.0;   // read from files, or written to batches
  double amount = 0.0;  // what went through, as Batch::amount() counts
};

struct LoaderStats {
  LoaderWords words;
  StageStats read;    // samples: open, decode, write the row
  StageStats side;    // what reading does beside it
  StageStats finish;  // batches
  // Workers: waiting for room in the ring (the consumer is the limit), and waiting for others to
  // finish the samples of a batch.
  double blocked_s = 0.0;
  double starved_s = 0.0;
  // Consumer: waiting in next().
  double consumer_wait_s = 0.0;
  double consumer_work_s = 0.0;  // between next() and next()
  double epoch_pause_s = 0.0;    // extra wait for the first batch of an epoch, mean over epochs
  double first_batch_s = 0.0;
  uint64_t batches = 0;
  uint64_t samples = 0;
  uint64_t bad_samples = 0;
  uint64_t side_failures = 0;
  double amount = 0.0;
  double padding_share = 0.0;  // of everything delivered
  int workers = 0;             // threads at work now
  int max_workers = 0;
  double read_wait_share = 0.0;  // of the read stage, time the thread did not run: the disk
  uint64_t ring_ready = 0;       // batches waiting
  uint64_t ring_slots = 0;
  uint64_t memory_bytes = 0;
  double wall_s = 0.0;
  std::string storage;    // where the samples lie, as StorageInfo::kind() says; empty: unknown
  uint64_t left_out = 0;  // Dataset::left_out()

  // "disk", "decode", words.finishing or "consumer": what to improve first.
  std::string bottleneck() const;
  std::string to_json() const;
};

}  // namespace aerie::data
