// The search of `aerie tune` and of `batch_size: auto`. It sees trials only through TuneTrials, so
// that tests can bring a machine of their own.
//
// A trial's throughput is noisy: a change counts when it gains kWorth, a narrow gain is measured
// against a second trial of what it is compared with, and in the end start and choice are measured
// again in turn. What is not faster then is not chosen.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aerie/advisor/tune_space.h"
#include "aerie/base/status.h"

namespace aerie::advisor {

// The largest batch of one bucket, in a trial of memory.
struct BucketOutcome {
  size_t bucket = 0;
  int64_t size = 0;
  double seconds = 0.0;          // of its longest clip
  double memory_used_gib = 0.0;  // with those that were tried before it
};

struct TrialOutcome {
  enum class End { kDone, kOutOfMemory, kFailed, kCancelled };
  End end = End::kDone;
  std::string message;                         // of a failure
  StatusCode code = StatusCode::kUnavailable;  // and its kind
  double throughput = 0.0;
  double step_ms = 0.0;
  double data_wait_share = 0.0;
  double memory_used_gib = 0.0;   // GPU: of the whole device; CPU: of the process
  double memory_total_gib = 0.0;  // GPU: of the device; CPU: available when the search began
  std::vector<BucketOutcome> buckets = {};
  double memory_before_gib = 0.0;  // without any batch
  int64_t batches_per_epoch = 0;   // 0: not known
  double wall_s = 0.0;             // that the trial took, start and end included
  bool done() const { return end == End::kDone; }
};

class TuneTrials {
 public:
  virtual ~TuneTrials() = default;
  // A few real steps, timed end to end.
  virtual TrialOutcome speed(const TuneSettings& settings) = 0;
  // The largest batch that the data can give, of every bucket, a validation and a save: how much
  // memory that takes.
  virtual TrialOutcome memory(const TuneSettings& settings) = 0;
  virtual double elapsed_s() const = 0;  // since the search began
};

enum class BatchRule {
  kFillMemory,  // the largest batch that leaves least_free to most_free of the memory
  kThroughput,  // the smallest batch after which doubling it gains nothing
};

struct TuneRules {
  BatchRule batch = BatchRule::kThroughput;
  double budget_s = 150.0;  // the final comparison included
  double least_free = 0.10, most_free = 0.20;
  int64_t fewest_batches = 4;  // of an epoch
};

inline constexpr double kWorth = 1.03;  // a change that gains less gained nothing

struct TriedRow {
  bool memory = false;  // else speed
  TuneSettings settings;
  TrialOutcome outcome;
  std::string verdict;  // "taken: 1.8 x", "out of memory"
};

struct TuneResult {
  TuneSettings start, chosen;
  std::vector<TriedRow> tried;
  std::vector<std::string> reasons;   // a sentence for each setting: why it is what it is
  std::vector<double> before, after;  // throughput of the final trials, taken in turn
  bool kept_start = false;            // the choice was not faster than the start
  bool out_of_time = false;           // not everything could be tried
  double memory_used_gib = 0.0, memory_total_gib = 0.0;  // of the choice; 0: not known

  double before_mean() const;
  double after_mean() const;
  double measured_speedup() const;  // of the final trials; 0: there were none
  double speedup() const;           // of what is chosen: 1 where that is the start
};

// kOutOfMemory: not even a batch of one fits. kCancelled: a trial was.
Result<TuneResult> tune(const TuneSpace& space, const TuneRules& rules, TuneTrials& trials);

// The batch alone, for `batch_size: auto`.
Result<TuneResult> find_batch(const TuneSpace& space, const TuneRules& rules, TuneTrials& trials);

}  // namespace aerie::advisor
