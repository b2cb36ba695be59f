// Training of several processes that meet on the loopback interface equals that of one process with
// all their samples: both reducers, sharded or not, whatever the batches are.
//
// AERIE_MORE_RANKS=1 adds larger worlds to what the gate has time for.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/dist/testing/fork_ranks.h"
#include "aerie/dist/testing/numbers.h"
#include "aerie/models/bev/engine/bev_engine.h"
#include "aerie/models/bev/engine/test_batch.h"

namespace aerie::bev::bev_ranks_test {
namespace {

using dist::Numbers;

struct Plan {
  std::string name;
  config::OptimizerKind optimizer = config::OptimizerKind::kSgd;
  int64_t steps = 12;
  int64_t accumulate = 1;
  bool cut_windows = false;  // now and then in two requests
  bool recompute = false;
  BevNetwork network = BevNetwork::kEncode;
  uint64_t first_micro = 0;
  double clip = 5.0;
  train::RankSettings ranks;
};

BevRunConfig run_config(const Plan& plan) {
  BevRunConfig run = tiny();
  run.model.network = plan.network;
  run.model.decoder = {{6, 2}, {8, 2}, {8, 1}};
  run.model.decoder_channels = 8;
  run.optim.kind = plan.optimizer;
  run.optim.lr = plan.optimizer == config::OptimizerKind::kSgd ? 2e-3 : 5e-4;
  run.optim.momentum = 0.9;
  run.trainer.gradient_clip_val = plan.clip;
  run.aerie.activation_checkpointing = plan.recompute;
  run.aerie.loss_reduction = config::LossReduction::kGlobal;
  return run;
}

// Samples of all ranks in a micro-batch: few enough now and then that some have none.
int64_t samples_in(uint64_t micro) {
  return micro % 5 == 3 ? 3 : micro % 4 == 1 ? 1 : 5;
}

std::unique_ptr<BevEngine> make_engine(const BevRunConfig& run, dist::ProcessGroup* group,
                                       const train::RankSettings& settings) {
  auto engine = BevEngine::create(run, at::kCPU);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  if (group == nullptr) return std::move(engine).value();
  // Rank 0's weights count.
  if (group->rank() > 0) (*engine)->model().parameters().flat_params().detach().mul_(1.5);
  const std::shared_ptr<dist::ProcessGroup> shared(group, [](dist::ProcessGroup*) {});
  auto ranks = train::EngineRanks::create(shared, (*engine)->model().parameters(), settings);
  EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
  const Status set = (*engine)->set_ranks(std::move(ranks).value());
  EXPECT_TRUE(set.ok()) << set.to_string();
  return std::move(engine).value();
}

// A request's micro-batches of one rank.
struct Window {
  std::vector<std::unique_ptr<TestBatch>> batches;
  std::vector<const data::Batch*> views;
  Window(const BevConfig& c, uint64_t first, int64_t count, int rank, int world) {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t micro = first + static_cast<uint64_t>(i);
      batches.push_back(std::make_unique<TestBatch>(c, samples_in(micro), micro, rank, world));
      views.push_back(&batches.back()->get());
    }
  }
};

Status submit(BevEngine& engine, const Window& window, int64_t step, uint64_t micro,
              int64_t accumulate, bool finish, int64_t split = 1) {
  train::StepRequest request;
  request.micro_batches = window.views;
  request.step = step;
  request.first_micro_step = micro;
  request.accumulate = accumulate;
  request.finish = finish;
  request.split = split;
  request.learning_rates = engine.optimizer().base_rates();
  return engine.submit(request);
}

train::StepOutcome outcome_of(BevEngine& engine) {
  auto all = engine.collect(true);
  EXPECT_TRUE(all.ok() && all->size() == 1);
  return all.ok() && !all->empty() ? all->front() : train::StepOutcome();
}

// Losses and norms of all steps, then weights and statistics.
void train(const Plan& plan, dist::ProcessGroup* group, Numbers& out) {
  const BevRunConfig run = run_config(plan);
  const auto engine = make_engine(run, group, plan.ranks);
  const int rank = group != nullptr ? group->rank() : 0,
            world = group != nullptr ? group->size() : 1;
  uint64_t micro = plan.first_micro;
  for (int64_t s = 0; s < plan.steps; ++s) {
    const auto add = [&](int64_t count, bool ends) {
      const Window window(run.model, micro, count, rank, world);
      const Status status = submit(*engine, window, s, micro, plan.accumulate, ends);
      EXPECT_TRUE(status.ok()) << status.to_string();
      micro += static_cast<uint64_t>(count);
      return status.ok();
    };
    const bool cut = plan.cut_windows && s % 3 == 1;
    if (cut && !add(1, false)) return;
    if (!add(cut ? plan.accumulate - 1 : plan.accumulate, true)) return;
    const train::StepOutcome outcome = outcome_of(*engine);
    EXPECT_FALSE(outcome.skipped);
    EXPECT_EQ(std::distance(outcome.metrics.begin(), outcome.metrics.end()), 2);
    out.put(outcome.loss);
    out.put(outcome.grad_norm);
  }
  const nn::ParameterRegistry& registry = engine->model().parameters();
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (info.flat_offset >= 0 || info.name.find("running_") != std::string::npos ||
        info.name.find("num_batches") != std::string::npos)
      out.put(registry.tensor(i));
  }
}

std::vector<std::vector<double>> run(const Plan& plan, int world) {
  std::vector<std::unique_ptr<Numbers>> numbers;
  for (int rank = 0; rank < world; ++rank) numbers.push_back(std::make_unique<Numbers>());
  std::vector<int> codes;
  if (world == 1) {
    codes = dist::fork_ranks(1, [&](const dist::World&) {
      train(plan, nullptr, *numbers[0]);
      return 0;
    });
  } else {
    codes = dist::fork_groups(world, [&](dist::ProcessGroup& group) {
      train(plan, &group, *numbers[static_cast<size_t>(group.rank())]);
      return 0;
    });
  }
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(world), 0)) << plan.name;
  std::vector<std::vector<double>> out;
  for (const auto& one : numbers) out.push_back(one->all());
  return out;
}

// Ranks equal each other to the bit, and one process to `losses` and `weights`.
void expect_equal(const Plan& plan, int world, const std::vector<double>& one, double losses,
                  double weights) {
  SCOPED_TRACE(str_cat(plan.name, " on ", world));
  const auto ranks = run(plan, world);
  for (int rank = 1; rank < world; ++rank)
    EXPECT_EQ(ranks[static_cast<size_t>(rank)], ranks[0]) << "rank " << rank;
  ASSERT_EQ(ranks[0].size(), one.size());
  const auto steps = static_cast<size_t>(2 * plan.steps);
  ASSERT_GT(one.size(), steps + 1000);
  for (size_t i = 0; i < steps; ++i)
    ASSERT_NEAR(ranks[0][i], one[i], losses * std::max(1.0, std::abs(one[i])))
        << (i % 2 == 0 ? "loss" : "norm") << " of step " << i / 2;
  if (weights <= 0.0) return;
  double worst = 0.0;
  for (size_t i = steps; i < one.size(); ++i)
    worst = std::max(worst, std::abs(ranks[0][i] - one[i]));
  EXPECT_LT(worst, weights);
}

Plan with(Plan plan, const std::string& name,
          const std::function<void(train::RankSettings&)>& change) {
  plan.name = name;
  plan.ranks.sync_batchnorm = true;
  change(plan.ranks);
  return plan;
}
void torch_buckets(train::RankSettings& settings) {
  settings.bucket_cap_mb = 0.05;
}
void static_graph(train::RankSettings& settings) {
  settings.static_graph = true;
}
void find_unused(train::RankSettings& settings) {
  settings.find_unused = true;
}
void flat(train::RankSettings& settings) {
  settings.gradient_as_bucket_view = true;
  settings.bucket_cap_mb = 0.05;
}
void sharded(train::RankSettings& settings) {
  settings.shard = true;
  settings.bucket_cap_mb = 0.05;
}
bool more() {
  const char* wanted = std::getenv("AERIE_MORE_RANKS");
  return wanted != nullptr && std::string(wanted) == "1";
}

TEST(BevRanksTest, SgdParametersAreThoseOfOneRank) {
  Plan sgd;
  if (more()) sgd.steps = 50;
  const std::vector<double> one = run(sgd, 1)[0];
  expect_equal(with(sgd, "c10d", torch_buckets), 2, one, 1e-5, 1e-5);
  expect_equal(with(sgd, "flat", flat), 4, one, 1e-5, 1e-5);
  expect_equal(with(sgd, "static graph", static_graph), 2, one, 1e-5, 1e-5);
  if (!more()) return;
  for (const int world : {2, 3, 4})
    for (const auto change : {torch_buckets, flat, sharded, static_graph, find_unused})
      expect_equal(with(sgd, "more", change), world, one, 1e-5, 1e-5);
}

TEST(BevRanksTest, AdamwLossesAreThoseOfOneRankWithAccumulation) {
  Plan adamw;
  adamw.optimizer = config::OptimizerKind::kAdamW;
  adamw.steps = more() ? 50 : 8;
  adamw.accumulate = 2;
  adamw.cut_windows = true;
  const std::vector<double> one = run(adamw, 1)[0];
  expect_equal(with(adamw, "sharded", sharded), 2, one, 1e-4, 0.0);
  expect_equal(with(adamw, "find unused", find_unused), 2, one, 1e-4, 0.0);
  Plan recomputed = with(adamw, "recomputed blocks", flat);
  recomputed.recompute = true;
  expect_equal(recomputed, 2, one, 1e-4, 0.0);
}

// The other network; and the second rank has no samples in the first step of its process, as after
// resuming at the end of an epoch: it must know what the other exchanges.
TEST(BevRanksTest, ARankMayBeginWithoutSamples) {
  for (const BevNetwork network : {BevNetwork::kEncode, BevNetwork::kFpn}) {
    Plan plan;
    plan.network = network;
    plan.steps = 3;
    plan.first_micro = 1;
    ASSERT_EQ(samples_in(plan.first_micro), 1);

    const std::vector<double> one = run(plan, 1)[0];
    // Statistics of one sample's few cells magnify rounding.
    expect_equal(with(plan, "flat", flat), 2, one, 1e-4, 1e-4);
    expect_equal(with(plan, "c10d", torch_buckets), 2, one, 1e-4, 1e-4);
  }
}

// Without synchronised BatchNorm each rank normalises with its own samples, on top of rank 0's
// running statistics.
TEST(BevRanksTest, StatisticsOfOneRankWithoutSyncBatchNorm) {
  Plan plan;
  plan.steps = 3;
  plan.ranks.gradient_as_bucket_view = true;
  const auto two = run(plan, 2);
  const std::vector<double> one = run(plan, 1)[0];
  // Losses are those of all ranks.
  EXPECT_EQ(std::vector<double>(two[0].begin(), two[0].begin() + 6),
            std::vector<double>(two[1].begin(), two[1].begin() + 6));
  EXPECT_NE(two[0], two[1]);
  double apart = 0.0;
  for (size_t i = 6; i < one.size(); ++i) apart = std::max(apart, std::abs(two[0][i] - one[i]));
  EXPECT_GT(apart, 1e-4);
}

// A snapshot of a sharded optimizer, weights and moments, is that of a whole one to the bit; one
// rank takes it, the others join.
TEST(BevRanksTest, SnapshotsDoNotKnowShards) {
  const auto snapshot_of = [](bool shard) {
    Plan plan;
    plan.optimizer = config::OptimizerKind::kAdamW;
    plan.ranks.shard = shard;
    plan.ranks.gradient_as_bucket_view = true;
    plan.ranks.sync_batchnorm = true;
    const BevRunConfig run = run_config(plan);
    Numbers out;
    const auto codes = dist::fork_groups(3, [&](dist::ProcessGroup& group) {
      const auto engine = make_engine(run, &group, plan.ranks);
      const auto step = [&](int64_t s) {
        const Window window(run.model, static_cast<uint64_t>(s), 1, group.rank(), 3);
        const Status status = submit(*engine, window, s, static_cast<uint64_t>(s), 1, true);
        EXPECT_TRUE(status.ok()) << status.to_string();
        (void)outcome_of(*engine);
      };
      for (int64_t s = 0; s < 3; ++s) step(s);
      if (group.rank() != 0) {
        EXPECT_TRUE(engine->join_snapshot().ok());
        step(3);
        return 0;
      }
      auto snapshot = engine->snapshot();
      EXPECT_TRUE(snapshot.ok()) << snapshot.status().to_string();
      EXPECT_TRUE((*snapshot)->wait().ok());
      for (const train::SnapshotTensor& tensor : (*snapshot)->tensors())
        out.put_bits(tensor.data, tensor.bytes);
      step(3);
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(3, 0));
    return out.all();
  };
  const std::vector<double> whole = snapshot_of(false), shards = snapshot_of(true);
  ASSERT_EQ(whole.size(), shards.size());
  ASSERT_GT(whole.size(), 10000u);
  const auto differ = std::mismatch(whole.begin(), whole.end(), shards.begin());
  EXPECT_EQ(differ.first - whole.begin(), static_cast<std::ptrdiff_t>(whole.size()));
}

// What one rank has no memory for, no rank has done, and all may try again in smaller parts, of
// which one has no sample for the second rank.
TEST(BevRanksTest, MemoryRunsOutForAll) {
  Plan plan;
  plan.ranks.gradient_as_bucket_view = true;
  plan.ranks.sync_batchnorm = true;
  const BevRunConfig run = run_config(plan);
  const auto codes = dist::fork_groups(2, [&](dist::ProcessGroup& group) {
    const auto engine = make_engine(run, &group, plan.ranks);
    const Window window(run.model, 0, 1, group.rank(), 2);
    const auto weights = [&] {
      return engine->model().parameters().flat_params().detach().clone();
    };
    EXPECT_TRUE(submit(*engine, window, 0, 0, 1, true).ok());
    (void)outcome_of(*engine);
    const at::Tensor before = weights();
    train::StepRequest request;
    request.micro_batches = window.views;
    request.step = 1;
    request.first_micro_step = 1;
    request.learning_rates = engine->optimizer().base_rates();
    request.agree = [&](const Status& own) {
      EXPECT_TRUE(own.ok()) << own.to_string();
      return out_of_memory("rank 1 has no memory");
    };
    EXPECT_EQ(engine->submit(request).code(), StatusCode::kOutOfMemory);
    EXPECT_TRUE(at::equal(weights(), before));
    const Status again = submit(*engine, window, 1, 1, 1, true, 4);
    EXPECT_TRUE(again.ok()) << again.to_string();
    EXPECT_FALSE(outcome_of(*engine).skipped);
    EXPECT_FALSE(at::equal(weights(), before));
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace aerie::bev::bev_ranks_test
