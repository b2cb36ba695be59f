// Both reducers over Gloo, in processes that meet on the loopback interface: gradients of a small
// model are the mean of what the ranks have, however a step is made up.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "aerie/dist/testing/fork_ranks.h"
#include "aerie/dist/torch_group.h"
#include "aerie/kernels/adamw/adamw.h"
#include "aerie/train/graph/backward_watch.h"
#include "aerie/train/ranks/bucket_plan.h"
#include "aerie/train/ranks/c10d_group.h"
#include "aerie/train/ranks/c10d_reducer.h"
#include "aerie/train/ranks/collective_times.h"
#include "aerie/train/ranks/engine_ranks.h"
#include "aerie/train/ranks/rank_settings.h"

namespace aerie::train::reducers_test {
namespace {

constexpr int64_t kChunk = kernels::kAdamwChunk;
constexpr int kParts = 3;

// Parameters of three parts, as the first letter says; "1.extra" is not in every pass.
void add_parameters(nn::ParameterRegistry& registry, int64_t more = 0) {
  const auto add = [&](const std::string& name, int64_t values) {
    nn::ParamInfo info;
    info.name = name;
    info.shape = {values};
    registry.add(std::move(info));
  };
  add("0.a", 2 * kChunk + 100);
  add("2.a", kChunk + more);
  add("1.a", 3 * kChunk - 7);
  add("1.extra", 50);
  registry.materialize(at::kCPU);
  for (const int64_t index : registry.trainable()) {
    at::Tensor value = registry.tensor(index).detach();
    value.copy_((at::arange(value.numel(), at::kFloat) * 0.37).sin() * 0.1);
  }
}

FlatParts parts_of(const nn::ParameterRegistry& registry) {
  return make_flat_parts(registry, kParts,
                         [](const nn::ParamInfo& info) { return info.name[0] - '0'; });
}

at::Tensor loss_of(const nn::ParameterRegistry& registry, int rank, int pass, bool extra) {
  const double x = 0.3 + 0.2 * rank + 0.05 * pass;
  at::Tensor y = (registry["0.a"] * x).tanh().sum();
  y = y + (registry["1.a"] * (y * 1e-3 + x)).square().sum();
  if (extra) y = y + (registry["1.extra"] * 3.0 * x).sum();
  return (y * (registry["2.a"] + x).square()).mean();
}

struct Pass {
  bool samples = true;
  bool extra = true;
};
// What a rank does in a step: its passes.
using Step = std::function<std::vector<Pass>(int rank, int step)>;

// The mean over ranks of the sum over passes, computed by one process.
at::Tensor expected(nn::ParameterRegistry& registry, int world, int step, const Step& passes) {
  at::Tensor sum = at::zeros_like(registry.flat_grads());
  for (int rank = 0; rank < world; ++rank) {
    registry.zero_grad();
    const std::vector<Pass> all = passes(rank, step);
    for (size_t p = 0; p < all.size(); ++p)
      if (all[p].samples)
        loss_of(registry, rank, static_cast<int>(p) + 10 * step, all[p].extra).backward();
    sum += registry.flat_grads();
  }
  registry.zero_grad();
  return sum / world;
}

// As an engine goes about it (models/nest/engine/nest_core.cc).
Status run_step(GradientReducer& reducer, BackwardWatch& watch, nn::ParameterRegistry& registry,
                int rank, int step, const std::vector<Pass>& passes) {
  registry.zero_grad();
  int begun = 0;
  const auto begin = [&](int part) {
    ++begun;
    EXPECT_EQ(reducer.begin(part, nullptr), 0);
  };
  bool watched = false;
  for (size_t p = 0; p < passes.size(); ++p) {
    if (!passes[p].samples) continue;
    const bool last = p + 1 == passes.size();
    const at::Tensor loss =
        loss_of(registry, rank, static_cast<int>(p) + 10 * step, passes[p].extra);
    if (last && reducer.watches_backward()) {
      AERIE_RETURN_IF_ERROR(reducer.before_backward(loss));
      loss.backward();
      AERIE_RETURN_IF_ERROR(reducer.after_backward());
      watched = true;
    } else if (last) {
      watch.arm(begin);
      loss.backward();
      watch.finish();
    } else {
      loss.backward();
    }
  }
  if (reducer.watches_backward()) {
    if (watched) return ok_status();
    AERIE_RETURN_IF_ERROR(reducer.before_backward({}));
    return reducer.after_backward();
  }
  while (begun < kParts) begin(kParts - 1 - begun);
  EXPECT_EQ(reducer.finish(nullptr), 0);
  return ok_status();
}

// Gloo as NCCL would be used: sums go to the rank that owns them alone.
class ToOne final : public RankGroup {
 public:
  explicit ToOne(std::unique_ptr<RankGroup> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  bool recordable(at::Device device) const override { return group_->recordable(device); }
  bool reduces_to_one(at::Device) const override { return true; }
  Wait all_reduce(std::vector<at::Tensor> tensors, Op op) override {
    return group_->all_reduce(std::move(tensors), op);
  }
  Wait reduce(std::vector<Piece> pieces, Op op) override {
    return group_->reduce(std::move(pieces), op);
  }
  Wait broadcast(std::vector<Piece> pieces) override {
    return group_->broadcast(std::move(pieces));
  }

 private:
  std::unique_ptr<RankGroup> group_;
};

struct Case {
  const char* name = "";
  int world = 2;
  C10dReducerOptions torch;
  FlatReducerOptions flat;
  bool to_one = false;
  double error = 1e-6;
  Step passes = [](int, int) { return std::vector<Pass>(1); };
};

void expect_mean(const Case& one, bool flat) {
  SCOPED_TRACE(std::string(one.name) + (flat ? ", flat" : ", c10d"));
  const std::vector<int> codes = dist::fork_groups(one.world, [&](dist::ProcessGroup& group) {
    const auto torch = dist::torch_group(group);
    nn::ParameterRegistry registry, other;
    add_parameters(registry);
    add_parameters(other);
    const FlatParts parts = parts_of(registry);
    std::unique_ptr<GradientReducer> reducer;
    if (flat) {
      std::unique_ptr<RankGroup> ranks = make_rank_group(torch);
      if (one.to_one) ranks = std::make_unique<ToOne>(std::move(ranks));
      reducer = make_flat_reducer(std::move(ranks), at::kCPU, one.flat);
      EXPECT_EQ(reducer->sums_everywhere(), !one.to_one);
    } else {
      auto made = make_c10d_reducer(torch, registry, one.torch);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      reducer = std::move(made).value();
    }
    EXPECT_TRUE(reducer->attach(registry.flat_grads().mutable_data_ptr<float>(), parts).ok());
    EXPECT_EQ(reducer->world(), one.world);
    BackwardWatch watch(registry, parts);
    for (int step = 0; step < 4; ++step) {
      const Status status =
          run_step(*reducer, watch, registry, group.rank(), step, one.passes(group.rank(), step));
      EXPECT_TRUE(status.ok()) << status.to_string();
      at::Tensor want = expected(other, one.world, step, one.passes);
      at::Tensor got = registry.flat_grads();
      if (reducer->shards()) {
        const FlatRange own = reducer->owned();
        EXPECT_EQ(reducer->gather(got, nullptr), 0);  // as weights are
        EXPECT_LT(own.count, got.numel());
      }
      const double size = want.abs().max().item<double>();
      EXPECT_GT(size, 0.0);
      EXPECT_LT((got - want).abs().max().item<double>(), one.error * size) << "step " << step;
    }
    const ReducerCounters counters = reducer->counters();
    EXPECT_EQ(counters.steps, 4);
    EXPECT_GT(counters.buckets, 0);
    EXPECT_GT(counters.bytes, 0);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(one.world), 0));
}

void expect_mean(const Case& one) {
  expect_mean(one, true);
  expect_mean(one, false);
}

TEST(ReducersTest, PlainStepsOfManyBuckets) {
  Case one;
  one.name = "plain";
  one.world = 3;
  one.torch.first_bucket_bytes = one.flat.first_bucket_bytes = 4096;
  one.torch.bucket_bytes = one.flat.bucket_bytes = 20000;
  expect_mean(one);
}

TEST(ReducersTest, AccumulationReducesOnce) {
  Case one;
  one.name = "accumulation";
  one.passes = [](int, int) { return std::vector<Pass>(3); };
  expect_mean(one);
}

TEST(ReducersTest, RanksWithoutSamplesFollow) {
  Case one;
  one.name = "empty";
  one.world = 3;
  one.passes = [](int rank, int step) {
    std::vector<Pass> passes(2);
    if (rank == 1 && step % 2 == 1) passes[1].samples = false;
    if (rank == 2 && step == 3) passes[0].samples = passes[1].samples = false;
    return passes;
  };
  expect_mean(one);
}

TEST(ReducersTest, ParametersThatSomePassesLeaveOut) {
  Case one;
  one.name = "unused";
  one.torch.find_unused = true;
  one.passes = [](int rank, int step) {
    std::vector<Pass> passes(1);
    passes[0].extra = step != 1 && (step != 2 || rank == 1);
    return passes;
  };
  expect_mean(one);
}

TEST(ReducersTest, StaticGraph) {
  for (const bool extra : {true, false}) {
    Case one;
    one.name = extra ? "static" : "static, unused";
    one.torch.static_graph = true;
    one.passes = [=](int, int) { return std::vector<Pass>(1, Pass{true, extra}); };
    expect_mean(one);
  }
}

TEST(ReducersTest, Compression) {
  for (const Compression compression : {Compression::kFp16, Compression::kBf16}) {
    Case one;
    one.name = compression == Compression::kFp16 ? "fp16" : "bf16";
    one.torch.compression = one.flat.compression = compression;
    one.error = compression == Compression::kFp16 ? 2e-3 : 1e-2;
    expect_mean(one);
  }
}

TEST(ReducersTest, ShardsLieWithTheirRanks) {
  for (const auto& [compression, to_one] :
       {std::pair(Compression::kNone, false), std::pair(Compression::kNone, true),
        std::pair(Compression::kFp16, false), std::pair(Compression::kFp16, true)}) {
    Case one;
    one.name = to_one ? "shards" : "shards that are added up everywhere";
    one.world = 3;
    one.flat.shard = true;
    one.to_one = to_one;
    one.flat.compression = compression;
    one.flat.first_bucket_bytes = 4096;
    one.flat.bucket_bytes = 30000;
    if (compression != Compression::kNone) one.error = 2e-3;
    expect_mean(one, true);
  }
}

// Without find_unused_parameters a parameter without gradient is an error of the step, not a hang
// or a wrong gradient.
TEST(ReducersTest, AForgottenParameterIsNamedAsSuch) {
  const std::vector<int> codes = dist::fork_groups(2, [&](dist::ProcessGroup& group) {
    nn::ParameterRegistry registry;
    add_parameters(registry);
    auto reducer = make_c10d_reducer(dist::torch_group(group), registry, {});
    EXPECT_TRUE(reducer.ok());
    BackwardWatch watch(registry, parts_of(registry));
    std::vector<Pass> passes(1);
    passes[0].extra = false;
    const Status status = run_step(**reducer, watch, registry, group.rank(), 0, passes);
    EXPECT_NE(status.message().find("got no gradient"), std::string::npos) << status.to_string();
    EXPECT_FALSE(status.hint().empty());
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(EngineRanksTest, FlagsValuesAndStatesAreShared) {
  const std::vector<int> codes = dist::fork_groups(2, [&](dist::ProcessGroup& group) {
    const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
    nn::ParameterRegistry registry;
    add_parameters(registry);
    RankSettings settings;
    settings.gradient_as_bucket_view = true;
    settings.sync_batchnorm = true;
    auto ranks = EngineRanks::create(shared, registry, settings);
    EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
    GradientReducer& reducer = (*ranks)->reducer();
    EXPECT_FALSE(reducer.recordable());
    std::vector<uint8_t> flags = {0, static_cast<uint8_t>(group.rank() == 1 ? 1 : 0), 0};
    EXPECT_TRUE(reducer.unite(flags).ok());
    EXPECT_EQ(flags, (std::vector<uint8_t>{0, 1, 0}));
    std::vector<double> values = {1.5, static_cast<double>(group.rank())};
    EXPECT_TRUE(reducer.add_up_on_host(values).ok());
    EXPECT_EQ(values, (std::vector<double>{3.0, 1.0}));
    double sums[2] = {1.0, 10.0 * group.rank()};
    kernels::ExchangedSums exchanged;
    exchanged.values = sums;
    exchanged.count = 2;
    EXPECT_EQ((*ranks)->exchange()(exchanged, nullptr), 0);
    EXPECT_EQ(sums[0], 2.0);
    EXPECT_EQ(sums[1], 10.0);
    at::Tensor mine = at::full({4, 3}, static_cast<double>(group.rank() + 5)).t();
    EXPECT_TRUE((*ranks)->broadcast({mine}).ok());
    EXPECT_TRUE(at::equal(mine, at::full({3, 4}, 5.0)));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// For measuring what reducing costs: all else goes on as with it.
TEST(EngineRanksTest, GradientsStayWhereNothingIsReduced) {
  const std::vector<int> codes = dist::fork_groups(2, [&](dist::ProcessGroup& group) {
    const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
    for (const bool autograd : {false, true}) {
      nn::ParameterRegistry registry;
      add_parameters(registry);
      RankSettings settings;
      settings.autograd = autograd;
      settings.sync_batchnorm = true;
      settings.reduces = false;
      auto ranks = EngineRanks::create(shared, registry, settings);
      EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
      GradientReducer& reducer = (*ranks)->reducer();
      EXPECT_FALSE(reducer.watches_backward());
      EXPECT_TRUE(reducer.keeps_gradients());
      const FlatParts parts = parts_of(registry);
      EXPECT_TRUE(reducer.attach(registry.flat_grads().mutable_data_ptr<float>(), parts).ok());
      BackwardWatch watch(registry, parts);
      EXPECT_TRUE(run_step(reducer, watch, registry, group.rank(), 0, {Pass{}}).ok());
      const at::Tensor got = registry.flat_grads().clone();
      registry.zero_grad();
      loss_of(registry, group.rank(), 0, true).backward();
      EXPECT_TRUE(at::equal(got, registry.flat_grads()));
      EXPECT_EQ(reducer.counters().buckets, 0);
      EXPECT_EQ(reducer.counters().bytes, 0);
      double sums[1] = {1.0 + group.rank()};
      kernels::ExchangedSums exchanged;
      exchanged.values = sums;
      exchanged.count = 1;
      EXPECT_EQ((*ranks)->exchange()(exchanged, nullptr), 0);
      EXPECT_EQ(sums[0], 3.0);
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

// Ranks that stop at different moments make the same calls.
TEST(CollectiveTimesTest, ALoadEndsOnAllRanksTogether) {
  const std::vector<int> codes = dist::fork_groups(3, [&](dist::ProcessGroup& group) {
    for (const int64_t piece : {int64_t{1} << 12, int64_t{1} << 30}) {  // larger than all: all
      auto load = ReductionLoad::start(group, int64_t{1} << 16, piece);
      EXPECT_TRUE(load.ok()) << load.status().to_string();
      std::this_thread::sleep_for(std::chrono::milliseconds(20 * group.rank()));
      const auto seconds = (*load)->stop();
      EXPECT_TRUE(seconds.ok()) << seconds.status().to_string();
      EXPECT_GT(*seconds, 0.0);
    }
    const auto copies = time_copies(group, int64_t{1} << 16, 3);
    EXPECT_TRUE(copies.ok()) << copies.status().to_string();
    EXPECT_GT(*copies, 0.0);
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(EngineRanksTest, AnotherModelIsRefused) {
  const std::vector<int> codes = dist::fork_groups(2, [&](dist::ProcessGroup& group) {
    const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
    nn::ParameterRegistry registry;
    add_parameters(registry, group.rank() == 1 ? 3 : 0);
    const auto ranks = EngineRanks::create(shared, registry, {});
    EXPECT_FALSE(ranks.ok());
    EXPECT_NE(ranks.status().message().find(group.rank() == 1 ? "2.a" : "rank 1"),
              std::string::npos)
        << ranks.status().to_string();
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

TEST(BucketPlanTest, BucketsCoverEverythingInOrderOfTheBackwardPass) {
  FlatParts parts;  // chunks 0..9: parts 1 0 0 2 2 1 0 2 2 0, the last one short
  parts.count = 9 * kChunk + 17;
  parts.chunks = {1, 2, 6, 9, 0, 5, 3, 4, 7, 8};
  parts.begins = {0, 4, 6, 10};
  for (const int64_t bytes : {int64_t{1}, int64_t{5000}, 4 * 3 * kChunk, int64_t{1} << 30}) {
    const std::vector<Bucket> buckets = plan_buckets(parts, std::min<int64_t>(bytes, 4096), bytes);
    if (bytes == 1) {
      EXPECT_EQ(static_cast<int64_t>(buckets.size()), parts.count);
      continue;
    }
    std::vector<int> seen(static_cast<size_t>(parts.count), 0);
    int part = kParts - 1;
    for (const Bucket& bucket : buckets) {
      EXPECT_LE(bucket.part, part);
      part = bucket.part;
      int64_t count = 0;
      for (const FlatRange& range : bucket.ranges)
        for (int64_t i = range.begin; i < range.begin + range.count; ++i, ++count)
          ++seen[static_cast<size_t>(i)];
      EXPECT_EQ(count, bucket.count);
      EXPECT_LE(bucket.count * 4, std::max<int64_t>(bytes, 4));
      // Nothing of an earlier part: its gradients are not there yet.
      for (const FlatRange& range : bucket.ranges)
        for (int earlier = 0; earlier < bucket.part; ++earlier)
          for (const FlatRange& of : parts.ranges(earlier))
            EXPECT_TRUE(range.begin + range.count <= of.begin ||
                        of.begin + of.count <= range.begin);
    }
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
  }
  EXPECT_LE(plan_buckets(parts, 4096, int64_t{1} << 30).size(), 2u);
}

TEST(BucketPlanTest, ShardsAreChunksAndCoverEverything) {
  for (const int64_t count : {int64_t{1}, kChunk, 5 * kChunk + 8, 64 * kChunk})
    for (const int world : {1, 2, 3, 8}) {
      int64_t at = 0;
      for (int rank = 0; rank < world; ++rank) {
        const FlatRange range = shard_of(count, rank, world);
        EXPECT_EQ(range.begin, at);
        EXPECT_TRUE(range.begin % kChunk == 0 || range.count == 0);
        at += range.count;
      }
      EXPECT_EQ(at, count);
    }
}

// Nobody is there to exchange statistics with, and kernels for it would only cost time.
TEST(RankSettingsTest, ARankAloneExchangesNothing) {
  config::TrainerConfig trainer;
  trainer.sync_batchnorm = true;
  const config::AerieConfig aerie;
  for (const int world : {1, 2}) {
    const auto settings = rank_settings(trainer, aerie, config::OptimizerKind::kAdamW,
                                        /*autograd=*/false, world);
    ASSERT_TRUE(settings.ok()) << settings.status().to_string();
    EXPECT_EQ(settings->sync_batchnorm, world > 1);
    EXPECT_EQ(settings->broadcast_buffers, world > 1);
  }
}

}  // namespace
}  // namespace aerie::train::reducers_test
