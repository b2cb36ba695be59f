// Predicts the step of data-parallel training: the backward pass completes gradient buckets one
// after another, each is all-reduced behind the one before while the pass goes on, and what is
// still under way when the pass has ended is waited for. Pure functions of their inputs.
#pragma once

#include <string>
#include <vector>

#include "aerie/advisor/all_reduce_cost.h"

namespace aerie::advisor {

// Gradients that are complete together: a layer, or all parameters of a part.
struct GradientPart {
  double bytes = 0.0;
  double cost = 1.0;  // of its backward pass, in any unit
};

struct Bucket {
  double bytes = 0.0;
  double ready = 1.0;  // share of the backward pass behind which its gradients are complete
};

// Parts in the order of the backward pass, put together as DDP does: a bucket ends as soon as it
// has reached its cap. The first one has a cap of its own, so that reducing begins early.
std::vector<Bucket> make_buckets(const std::vector<GradientPart>& parts, double first_cap_bytes,
                                 double cap_bytes);

struct StepModel {
  // Of one micro-batch, without other ranks.
  double forward_s = 0.0, backward_s = 0.0;
  double optimizer_s = 0.0;
  double other_s = 0.0;  // of a step: host work that nothing overlaps
  int accumulate = 1;    // micro-batches; only the last one's backward pass reduces
  std::vector<Bucket> buckets;
  // SyncBatchNorm: calls of a micro-batch that nothing overlaps.
  int blocking_calls = 0;
  double blocking_bytes = 0.0;  // of each
  // The backward pass takes 1 + this times as long while a reduction is under way, and a reduction
  // while the pass is.
  double overlap_slowdown = 0.0, reduce_slowdown = 0.0;
  // Gradients are brought into their buckets in the backward pass, and taken out behind the last.
  double copy_in_s = 0.0, copy_out_s = 0.0;
  // Standard deviation of a rank's own time of a step; all wait for the slowest.
  double jitter_s = 0.0;
  // Reduce-scatter instead of all-reduce, an update of 1/W, all-gather of 16-bit weights.
  bool shard_optimizer = false;
  bool whole_reduces = false;  // all-reduce all the same, as over Gloo
};

struct StepPrediction {
  double step_s = 0.0;
  double compute_s = 0.0;          // of a rank without the others
  double shared_s = 0.0;           // more of it where ranks share processors and memory
  double reduce_s = 0.0;           // all bucket reductions, overlapped or not
  double exposed_s = 0.0;          // of them, what the step waits for, and time lost by overlapping
  double exposed_latency_s = 0.0;  // of exposed_s, by the share of latency in reduce_s
  double gather_s = 0.0;           // sharded optimizer
  double blocking_s = 0.0;
  double straggler_s = 0.0;
  double overlap_share = 0.0;  // of reduce_s hidden behind the backward pass

  double efficiency() const { return step_s > 0.0 ? compute_s / step_s : 0.0; }
};

StepPrediction predict_step(const StepModel& model, int ranks, const AllReduceTime& all_reduce);

// Mean of the largest of n standard normal values (Blom's approximation); 0 for n = 1.
double expected_largest(int n);

struct MemoryModel {
  double single_gib = 0.0;     // peak of one rank alone
  double parameters = 0.0;     // trainable
  bool bucket_copies = false;  // gradients lie beside their buckets (gradient_as_bucket_view=false)
  bool shard_optimizer = false;
  double moment_bytes = 8.0;  // a parameter
};
double predict_memory_gib(const MemoryModel& model, int ranks);

// What costs most of the time that other ranks cost, and what would help.
enum class Limit { kCompute, kShared, kBandwidth, kLatency, kBlocking, kStragglers, kGather };
Limit limit_of(const StepPrediction& prediction);
const char* limit_name(Limit limit);
std::string limit_advice(Limit limit);

}  // namespace aerie::advisor
