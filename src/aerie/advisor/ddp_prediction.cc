#include "aerie/advisor/ddp_prediction.h"

#include <algorithm>
#include <cmath>

namespace aerie::advisor {

namespace {

constexpr double kGib = 1073741824.0;
constexpr double kWorthNaming = 0.05;  // less than this lost: computing is what limits

struct Backward {
  double end_s = 0.0;      // all gradients are reduced
  double reduce_s = 0.0;   // time of all reductions
  double latency_s = 0.0;  // of it
};

// One reduction at a time, in the order of the buckets, beside a pass; each slows the other down.
Backward run_backward(const StepModel& model, const AllReduceTime& all_reduce, double scale) {
  Backward out;
  const double pass_s = model.backward_s + model.copy_in_s;
  const double slow_pass = 1.0 + std::max(0.0, model.overlap_slowdown);
  const double slow_reduce = 1.0 + std::max(0.0, model.reduce_slowdown);
  double now = 0.0, done_s = 0.0;  // clock, and how much of the pass has been computed
  double left_s = 0.0;             // of the reductions that have begun, had they no company
  // Moves the clock to where `target_s` of the pass are computed.
  const auto compute_to = [&](double target_s) {
    const double both_s = std::min(left_s * slow_reduce, (target_s - done_s) * slow_pass);
    left_s = std::max(0.0, left_s - both_s / slow_reduce);
    now += both_s + (target_s - done_s - both_s / slow_pass);
    done_s = target_s;
  };
  for (const Bucket& bucket : model.buckets) {
    compute_to(std::max(done_s, bucket.ready * pass_s));
    const Cost cost = all_reduce(bucket.bytes);
    left_s += scale * cost.total_s();
    out.reduce_s += scale * cost.total_s();
    out.latency_s += scale * cost.latency_s;
  }
  compute_to(std::max(done_s, pass_s));
  out.end_s = now + left_s + model.copy_out_s;
  return out;
}

}  // namespace

std::vector<Bucket> make_buckets(const std::vector<GradientPart>& parts, double first_cap_bytes,
                                 double cap_bytes) {
  double all = 0.0;
  for (const GradientPart& part : parts) all += part.cost;
  std::vector<Bucket> out;
  double cost = 0.0, bytes = 0.0;
  for (size_t i = 0; i < parts.size(); ++i) {
    cost += parts[i].cost;
    bytes += parts[i].bytes;
    const double cap = out.empty() ? first_cap_bytes : cap_bytes;
    if (bytes < cap && i + 1 < parts.size()) continue;
    out.push_back({bytes, all > 0.0 ? cost / all : 1.0});
    bytes = 0.0;
  }
  return out;
}

double expected_largest(int n) {
  if (n <= 1) return 0.0;
  const double p = (n - 0.375) / (n + 0.25);
  double low = 0.0, high = 10.0;  // quantile p of the normal distribution
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return low;
}

StepPrediction predict_step(const StepModel& model, int ranks, const AllReduceTime& all_reduce) {
  const double passes = std::max(1, model.accumulate);
  StepPrediction out;
  out.compute_s = passes * (model.forward_s + model.backward_s) + model.optimizer_s + model.other_s;
  out.step_s = out.compute_s;
  if (ranks <= 1) return out;
  const Backward last =
      run_backward(model, all_reduce, model.shard_optimizer && !model.whole_reduces ? 0.5 : 1.0);
  out.reduce_s = last.reduce_s;
  out.exposed_s = std::max(0.0, last.end_s - model.backward_s);
  out.exposed_latency_s =
      last.reduce_s > 0.0 ? out.exposed_s * last.latency_s / last.reduce_s : 0.0;
  out.overlap_share =
      last.reduce_s > 0.0 ? std::clamp(1.0 - out.exposed_s / last.reduce_s, 0.0, 1.0) : 0.0;
  out.blocking_s = passes * model.blocking_calls * all_reduce(model.blocking_bytes).total_s();
  out.straggler_s = model.jitter_s * expected_largest(ranks);
  double optimizer_s = model.optimizer_s;
  if (model.shard_optimizer) {
    optimizer_s /= ranks;
    double bytes = 0.0;
    for (const Bucket& bucket : model.buckets) bytes += bucket.bytes;
    out.gather_s = 0.5 * all_reduce(0.5 * bytes).total_s();
  }
  out.step_s += out.exposed_s + out.blocking_s + out.straggler_s + out.gather_s + optimizer_s -
                model.optimizer_s;
  return out;
}

double predict_memory_gib(const MemoryModel& model, int ranks) {
  double bytes = model.single_gib * kGib;
  if (ranks > 1 && model.bucket_copies) bytes += 4.0 * model.parameters;
  if (ranks > 1 && model.shard_optimizer)
    bytes -= model.moment_bytes * model.parameters * (1.0 - 1.0 / ranks);
  return std::max(0.0, bytes) / kGib;
}

Limit limit_of(const StepPrediction& prediction) {
  const std::pair<double, Limit> losses[] = {
      {prediction.shared_s, Limit::kShared},
      {prediction.exposed_s - prediction.exposed_latency_s, Limit::kBandwidth},
      {prediction.exposed_latency_s, Limit::kLatency},
      {prediction.blocking_s, Limit::kBlocking},
      {prediction.straggler_s, Limit::kStragglers},
      {prediction.gather_s, Limit::kGather}};
  double lost = 0.0;
  std::pair<double, Limit> most{0.0, Limit::kCompute};
  for (const auto& one : losses) {
    lost += one.first;
    if (one.first > most.first) most = one;
  }
  return lost < kWorthNaming * prediction.step_s ? Limit::kCompute : most.second;
}

const char* limit_name(Limit limit) {
  switch (limit) {
    case Limit::kCompute:
      return "compute";
    case Limit::kShared:
      return "shared processors";
    case Limit::kBandwidth:
      return "bandwidth";
    case Limit::kLatency:
      return "latency";
    case Limit::kBlocking:
      return "SyncBatchNorm";
    case Limit::kStragglers:
      return "stragglers";
    case Limit::kGather:
      return "all-gather of weights";
  }
  return "";
}

std::string limit_advice(Limit limit) {
  switch (limit) {
    case Limit::kCompute:
      return "the ranks cost little: a faster step of one rank is what helps";
    case Limit::kShared:
      return "ranks of one machine wait for its processors, its memory and each other: fewer "
             "ranks, "
             "or fewer threads each";
    case Limit::kBandwidth:
      return "reductions outlast the backward pass: more work a step (batch_size, "
             "trainer.accumulate_grad_batches), or half the bytes (ddp_comm_hook: "
             "bf16_compress_hook)";
    case Limit::kLatency:
      return "reductions are many and small: raise bucket_cap_mb, or more work a step (batch_size, "
             "trainer.accumulate_grad_batches)";
    case Limit::kBlocking:
      return "layers wait for the sums of SyncBatchNorm: larger batches, or sync_batchnorm=false "
             "where a rank's batch is large enough for its own statistics";
    case Limit::kStragglers:
      return "all wait for the slowest rank: even batches (duration buckets), equal machines";
    case Limit::kGather:
      return "the gathering of weights is not hidden: aerie.shard_optimizer=false where memory "
             "allows";
  }
  return "";
}

}  // namespace aerie::advisor
