// What a plan starts from: a step measured on one rank and all-reduces measured between ranks, read
// from `aerie bench step --json`, or the steps recorded under bench/results.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aerie/advisor/all_reduce_cost.h"
#include "aerie/advisor/ddp_prediction.h"
#include "aerie/base/status.h"

namespace aerie::advisor {

struct MeasuredStep {
  std::string name;    // "NEST-L 16 x 15 s, bf16-mixed"
  std::string source;  // file or record
  double step_ms = 0.0;
  double forward_ms = 0.0, backward_ms = 0.0;  // 0: not told apart
  double optimizer_ms = 0.0;
  double jitter_ms = 0.0;  // standard deviation of a step
  double parameters = 0.0;
  int layers = 0;  // equal parts of the gradients; 0: not known
  double d_model = 0.0;
  double memory_gib = 0.0;
  double amount = 0.0;  // input of a step
  std::string amount_name = "samples";
};

// Ranks of one machine that were busy together: what sharing its processors and memory costs.
struct BusyRanks {
  int ranks = 0;
  // A rank's step beside the others, with everything they do together but the reduction of
  // gradients: SyncBatchNorm's calls and waiting for the slowest are in it.
  MeasuredStep step;
  double overlap_slowdown = 0.0, reduce_slowdown = 0.0;  // StepModel
  double copy_gb_per_s = 0.0;                            // of a rank; 0: not known
};

struct PlanInput {
  std::vector<MeasuredStep> steps;
  std::vector<AllReduceSample> all_reduces;
  std::vector<BusyRanks> busy;
};

// The output of `aerie bench step --json`: an array of cases, or with --world an object that holds
// one and the all-reduces. `source` is for messages.
Result<PlanInput> read_plan_input(std::string_view json, const std::string& source);

// Steps measured on one H200 (bench/results/step_h200_202611.md).
const std::vector<MeasuredStep>& recorded_steps();

struct PlanOptions {
  Network network;
  double first_bucket_mib = 1.0, bucket_cap_mib = 25.0;
  double gradient_bytes = 4.0;  // a parameter on the wire: 2 with a compression hook
  int accumulate = 1;
  bool sync_batchnorm = true;  // of models whose layers are known to have one
  bool shard_optimizer = false;
  bool whole_reduces = false;  // StepModel
  bool bucket_copies = false;
  double overlap_slowdown = -1.0;  // negative: as measured, else 0
  double jitter_share = -1.0;      // of the step; negative: as measured
};

// Gradients in as many equal parts as the model has layers (16 where that is not known), ready one
// after the other; where passes are not told apart, the backward one is two thirds of both.
// `busy`: such ranks were measured, and `step` is theirs; null: they were not.
StepModel step_model(const MeasuredStep& step, const PlanOptions& options,
                     const BusyRanks* busy = nullptr);
MemoryModel memory_model(const MeasuredStep& step, const PlanOptions& options);

}  // namespace aerie::advisor
