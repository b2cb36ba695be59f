// Training of several processes that meet on the loopback interface equals that of one process with
// all their samples: both reducers, both engines, sharded or not, whatever the batches are.
//
// AERIE_MORE_RANKS=1 adds larger worlds and models to what the gate has time for.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "aerie/data/speech/synthetic_batch.h"
#include "aerie/device/gpu.h"
#include "aerie/dist/testing/fork_ranks.h"
#include "aerie/dist/testing/numbers.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/engine/reference_engine.h"
#include "aerie/models/nest/engine/test_util.h"
#include "aerie/train/ranks/engine_ranks.h"

namespace aerie::train::nest_ranks_test {
namespace {

using dist::Numbers;

at::Tensor full_weights(NestCore& core) {
  return core.model().parameters().flat_params().detach().clone();
}

struct Plan {
  config::OptimizerKind optimizer = config::OptimizerKind::kSgd;
  double rate = 1e-3;
  int64_t steps = 50;
  int64_t accumulate = 1;
  bool cut_windows = false;  // now and then in two requests
  bool recompute = false;
  double clip = 1.0;
  bool gradients = false;  // of the last step instead of weights
  bool moved = false;      // every initial weight, to the next number
  RankSettings ranks;
  std::string name;
};

config::RunConfig run_config(const Plan& setup) {
  config::RunConfig config = small_run_config();
  config.model.optim.kind = setup.optimizer;
  config.model.optim.weight_decay = 1e-3;
  config.model.optim.momentum = 0.9;
  config.trainer.gradient_clip_val = setup.clip;
  config.trainer.accumulate_grad_batches = setup.accumulate;
  config.aerie.activation_checkpointing = setup.recompute;
  return config;
}

// Samples of all ranks in a micro-batch: few enough now and then that some have none.
int64_t samples_in(uint64_t micro) {
  return micro % 5 == 3 ? 3 : micro % 7 == 6 ? 1 : 6;
}

// Every world-th row from `rank` on, with the draws of its place in the whole.
nest::NestBatch rows_of(uint64_t micro, int rank, int world) {
  const nest::NestBatch whole = make_batch(samples_in(micro), micro);
  std::vector<int64_t> rows;
  for (int64_t i = rank; i < whole.size(); i += world) rows.push_back(i);
  const at::Tensor index = at::tensor(rows, at::kLong);
  nest::NestBatch out = whole;
  out.audio = whole.audio.index_select(0, index);
  out.noisy = whole.noisy.index_select(0, index);
  out.lengths = whole.lengths.index_select(0, index);
  out.noisy_lengths = whole.noisy_lengths.index_select(0, index);
  out.random.first_item = static_cast<uint64_t>(rank);
  out.random.item_stride = static_cast<uint64_t>(world);
  return out;
}

std::unique_ptr<EngineRanks> meet(dist::ProcessGroup& group, NestCore& core,
                                  const RankSettings& settings) {
  const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
  auto ranks = EngineRanks::create(shared, core.model().parameters(), settings);
  EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
  EXPECT_TRUE(core.set_reducer(&(*ranks)->reducer()).ok());
  EXPECT_TRUE(core.set_exchange((*ranks)->exchange(), false).ok());
  return std::move(ranks).value();
}

// Losses of all steps, then weights and statistics.
void train(const Plan& setup, dist::ProcessGroup* group, Numbers& out) {
  auto core = make_core(run_config(setup));
  core->set_global_loss(true);
  std::unique_ptr<EngineRanks> ranks;
  if (group != nullptr) {
    ranks = meet(*group, *core, setup.ranks);
    // Rank 0's weights count.
    if (group->rank() > 0) core->model().parameters().flat_params().detach().mul_(1.5);
    EXPECT_TRUE(ranks->broadcast_state(core->flat_state()).ok());
  }
  const int rank = group != nullptr ? group->rank() : 0,
            world = group != nullptr ? group->size() : 1;
  if (setup.moved) {
    const at::Tensor weights = core->model().parameters().flat_params().detach();
    auto* values = weights.mutable_data_ptr<float>();
    for (int64_t i = 0; i < weights.numel(); ++i)
      values[i] = std::nextafter(values[i], i % 3 == 0 ? 10.0f : -10.0f);
  }
  uint64_t micro = 0;
  for (int64_t s = 0; s < setup.steps; ++s) {
    const auto add = [&](int64_t count, bool ends) {
      const Status status = core->add(
          count,
          [&](int64_t i) -> Result<nest::NestBatch> {
            return rows_of(micro + static_cast<uint64_t>(i), rank, world);
          },
          setup.accumulate, 1, ends);
      EXPECT_TRUE(status.ok()) << status.to_string();
      micro += static_cast<uint64_t>(count);
    };
    if (setup.cut_windows && setup.accumulate > 1 && s % 3 == 1) {
      add(1, false);
      add(setup.accumulate - 1, true);
    } else {
      add(setup.accumulate, true);
    }
    const auto outcome = core->finish(std::vector<double>{setup.rate});
    EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
    if (!outcome.ok()) return;
    EXPECT_FALSE(outcome->skipped);
    out.put(outcome->loss);
  }
  const nn::ParameterRegistry& registry = core->model().parameters();
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (setup.gradients) {
      if (info.flat_offset >= 0) out.put(registry.grad(i));
    } else if (info.flat_offset >= 0 || info.name.find("running_") != std::string::npos ||
               info.name.find("num_batches") != std::string::npos)
      out.put(registry.tensor(i));
  }
  EXPECT_TRUE(core->set_reducer(nullptr).ok());
}

std::vector<std::vector<double>> run(const Plan& setup, int world) {
  std::vector<std::unique_ptr<Numbers>> numbers;
  for (int rank = 0; rank < world; ++rank) numbers.push_back(std::make_unique<Numbers>());
  std::vector<int> codes;
  if (world == 1) {
    codes = dist::fork_ranks(1, [&](const dist::World&) {
      train(setup, nullptr, *numbers[0]);
      return 0;
    });
  } else {
    codes = dist::fork_groups(world, [&](dist::ProcessGroup& group) {
      train(setup, &group, *numbers[static_cast<size_t>(group.rank())]);
      return 0;
    });
  }
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(world), 0));
  std::vector<std::vector<double>> out;
  for (const auto& one : numbers) out.push_back(one->all());
  return out;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b, size_t begin,
                          size_t end) {
  EXPECT_EQ(a.size(), b.size());
  if (a.size() != b.size() || end > a.size()) return 1e30;
  double out = 0.0;
  for (size_t i = begin; i < end; ++i) out = std::max(out, std::abs(a[i] - b[i]));
  return out;
}

// Ranks equal each other to the bit, and one process to `losses` and `weights`.
void expect_equal(const Plan& setup, int world, const std::vector<double>& one, double losses,
                  double weights) {
  SCOPED_TRACE(str_cat(setup.name, " on ", world));
  const auto ranks = run(setup, world);
  for (int rank = 1; rank < world; ++rank)
    EXPECT_EQ(ranks[static_cast<size_t>(rank)], ranks[0]) << "rank " << rank;
  const auto steps = static_cast<size_t>(setup.steps);
  EXPECT_LT(largest_difference(ranks[0], one, 0, steps), losses);
  for (size_t s = 0; s < steps; ++s)
    if (std::abs(ranks[0][s] - one[s]) > losses) {
      ADD_FAILURE() << "from step " << s << " on: " << ranks[0][s] << " and " << one[s];
      break;
    }
  if (weights > 0.0) {
    EXPECT_LT(largest_difference(ranks[0], one, steps, one.size()), weights);
  }
  EXPECT_GT(one.size(), steps + 1000);
}

Plan with(Plan setup, const std::string& name, const std::function<void(RankSettings&)>& change) {
  setup.name = name;
  setup.ranks.sync_batchnorm = true;
  change(setup.ranks);
  return setup;
}
void torch_buckets(RankSettings& settings) {
  settings.bucket_cap_mb = 0.05;
}
void static_graph(RankSettings& settings) {
  settings.static_graph = true;
  settings.bucket_cap_mb = 0.05;
}
void find_unused(RankSettings& settings) {
  settings.find_unused = true;
}
void flat(RankSettings& settings) {
  settings.gradient_as_bucket_view = true;
  settings.bucket_cap_mb = 0.05;
}
void sharded(RankSettings& settings) {
  settings.shard = true;
  settings.bucket_cap_mb = 0.1;
}

bool more() {
  const char* wanted = std::getenv("AERIE_MORE_RANKS");
  return wanted != nullptr && std::string(wanted) == "1";
}

TEST(NestRanksTest, GradientsAreThoseOfOneRank) {
  Plan first;
  first.steps = 1;
  first.clip = 0.0;
  first.gradients = true;
  const std::vector<double> one = run(first, 1)[0];
  expect_equal(with(first, "c10d", torch_buckets), 2, one, 1e-5, 1e-5);
  expect_equal(with(first, "flat", flat), 2, one, 1e-5, 1e-5);
}

TEST(NestRanksTest, SgdParametersAreThoseOfOneRank) {
  const Plan sgd;
  const std::vector<double> one = run(sgd, 1)[0];
  expect_equal(with(sgd, "c10d", torch_buckets), 2, one, 1e-5, 1e-5);
  expect_equal(with(sgd, "flat", flat), 4, one, 1e-5, 1e-5);
  expect_equal(with(sgd, "sharded", sharded), 2, one, 1e-5, 1e-5);
  expect_equal(with(sgd, "static graph", static_graph), 2, one, 1e-5, 1e-5);
  if (!more()) return;
  for (const int world : {2, 3, 4, 8})
    for (const auto& [name, change] :
         std::map<std::string, void (*)(RankSettings&)>{{"c10d", torch_buckets},
                                                        {"flat", flat},
                                                        {"sharded", sharded},
                                                        {"static graph", static_graph},
                                                        {"find unused", find_unused}})
      expect_equal(with(sgd, name, change), world, one, 1e-5, 1e-5);
}

TEST(NestRanksTest, AdamwLossesAreThoseOfOneRankWithAccumulation) {
  Plan adamw;
  adamw.optimizer = config::OptimizerKind::kAdamW;
  adamw.steps = more() ? 50 : 15;
  // AdamW makes steps of the same length of small gradients, and thereby of their rounding. In 50
  // steps of 1e-3 a process came 5e-2 away from itself when its weights began one number further;
  // that says nothing about ranks. What is compared here keeps rounding small.
  adamw.rate = more() ? 1e-4 : 1e-3;
  adamw.accumulate = 2;
  adamw.cut_windows = true;
  const std::vector<double> one = run(adamw, 1)[0];
  if (more()) {
    Plan moved = adamw;
    moved.moved = true;
    EXPECT_LT(largest_difference(run(moved, 1)[0], one, 0, static_cast<size_t>(adamw.steps)), 1e-4);
  }
  expect_equal(with(adamw, "sharded", sharded), 4, one, 1e-4, 0.0);
  expect_equal(with(adamw, "find unused", find_unused), 2, one, 1e-4, 0.0);
  Plan recomputed = with(adamw, "recomputed layers", flat);
  recomputed.recompute = true;
  expect_equal(recomputed, 2, one, 1e-4, 0.0);
  if (!more()) return;
  for (const int world : {2, 3, 4})
    for (const auto& [name, change] : std::map<std::string, void (*)(RankSettings&)>{
             {"c10d", torch_buckets}, {"flat", flat}, {"sharded", sharded}})
      expect_equal(with(adamw, name, change), world, one, 1e-4, 0.0);
}

// Without synchronised BatchNorm the statistics of a step are each rank's own, on top of rank 0's.
TEST(NestRanksTest, StatisticsOfOneRankWithoutSyncBatchNorm) {
  Plan setup;
  setup.steps = 3;
  setup.ranks.gradient_as_bucket_view = true;
  const auto two = run(setup, 2);
  const std::vector<double> one = run(setup, 1)[0];
  const auto steps = static_cast<size_t>(setup.steps);
  EXPECT_EQ(std::vector<double>(two[0].begin(), two[0].begin() + 3),
            std::vector<double>(two[1].begin(), two[1].begin() + 3));
  EXPECT_GT(largest_difference(two[0], one, steps, one.size()), 1e-4);
  EXPECT_NE(two[0], two[1]);
}

// A snapshot of a sharded optimizer, weights and moments, is that of a whole one to the bit, and
// goes on anywhere.
TEST(NestRanksTest, SnapshotsDoNotKnowShards) {
  Plan setup;
  setup.optimizer = config::OptimizerKind::kAdamW;
  setup.steps = 4;
  Numbers plain, shards;
  const auto snapshot_of = [&](int world, bool shard, Numbers& out) {
    const auto codes = dist::fork_groups(world, [&](dist::ProcessGroup& group) {
      auto engine = ReferenceEngine::create(run_config(setup), at::kCPU);
      EXPECT_TRUE(engine.ok());
      RankSettings settings;
      settings.shard = shard;
      settings.gradient_as_bucket_view = true;
      settings.sync_batchnorm = true;
      const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
      auto ranks = EngineRanks::create(shared, (*engine)->core().model().parameters(), settings);
      EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
      EXPECT_TRUE((*engine)->set_ranks(std::move(ranks).value()).ok());
      (*engine)->core().set_global_loss(true);
      const auto step = [&](int64_t number) {
        data::SyntheticBatchOptions options;
        options.rows = 12 / world;
        options.samples = 6000;
        options.seed = 5;
        auto batch = data::SyntheticBatch::make(options);
        const data::Batch* window = &batch->batch();
        StepRequest request;
        request.step = number;
        request.first_micro_step = static_cast<uint64_t>(number);
        request.learning_rates = {1e-3};
        request.micro_batches = std::span(&window, 1);
        const Status status = (*engine)->submit(request);
        EXPECT_TRUE(status.ok()) << status.to_string();
        (void)(*engine)->collect(true);
      };
      for (int64_t s = 0; s < setup.steps; ++s) step(s);
      auto snapshot = (*engine)->snapshot();
      EXPECT_TRUE(snapshot.ok()) << snapshot.status().to_string();
      const MemorySource source(**snapshot);
      // One rank alone writes: the others join.
      if (group.rank() == 0) {
        auto alone = (*engine)->snapshot();
        EXPECT_TRUE(alone.ok() && (*alone)->wait().ok());
        const auto &first = (*snapshot)->tensors(), &second = (*alone)->tensors();
        EXPECT_EQ(first.size(), second.size());
        for (size_t i = 0; i < std::min(first.size(), second.size()); ++i)
          EXPECT_EQ(std::memcmp(first[i].data, second[i].data, first[i].bytes), 0) << first[i].name;
      } else {
        EXPECT_TRUE((*engine)->join_snapshot().ok());
      }
      if (group.rank() == world - 1)
        for (const SnapshotTensor& tensor : (*snapshot)->tensors())
          out.put_bits(tensor.data, tensor.bytes);
      // Back to where it was: the next step is the same.
      step(setup.steps);
      const auto after = full_weights((*engine)->core());
      EXPECT_TRUE((*engine)->restore(source).ok());
      step(setup.steps);
      EXPECT_TRUE(at::equal(full_weights((*engine)->core()), after));
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(world), 0));
  };
  snapshot_of(3, false, plain);
  snapshot_of(3, true, shards);
  const std::vector<double> a = plain.all(), b = shards.all();
  EXPECT_GT(a.size(), 10000u);
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin(),
            static_cast<std::ptrdiff_t>(a.size()));
}

// An engine among ranks, or alone.
struct Way {
  bool fast = false, shard = false;
  config::Precision precision = config::Precision::k32;
  bool gpu = false;
  int world = 2;
  std::string backend = "gloo";
  bool alone = false;  // without a reducer, for what one rank does by itself
  int64_t steps = 5;
};

// Losses and norms of the steps, as rank 0 has them, then some weights.
std::vector<double> engine_numbers(const Way& way) {
  config::RunConfig config = fast_run_config();
  config.model.masking.mask_prob = 0.2;  // clips are short, and every step is to have a loss
  config.trainer.accumulate_grad_batches = 2;
  config.trainer.gradient_clip_val = 1.0;
  config.trainer.precision = way.precision;
  config.aerie.tf32 = config::Tf32::kNone;  // the CPU has none
  Numbers out;
  dist::GroupOptions options{.backend = way.backend, .timeout_s = 60, .join_timeout_s = 60};
  options.gpu_index = way.gpu ? 0 : -1;
  const auto codes = dist::fork_groups(
      way.world,
      [&](dist::ProcessGroup& group) {
        const at::Device device = way.gpu ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
        std::unique_ptr<CoreEngine> engine;
        if (!way.fast) {
          engine = ReferenceEngine::create(config, device).value();
        } else if (way.gpu) {
          engine = FastEngine::create(config, device).value();
        } else {
          engine = FastEngine::create_on_host(config, kernels::kReferenceKernels).value();
        }
        if (!way.alone) {
          RankSettings settings;
          settings.autograd = !way.fast;
          settings.shard = way.shard;
          settings.sync_batchnorm = true;
          const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
          auto ranks = EngineRanks::create(shared, engine->core().model().parameters(), settings);
          EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
          EXPECT_TRUE(engine->set_ranks(std::move(ranks).value()).ok());
        }
        engine->core().set_global_loss(true);
        for (int64_t s = 0; s < way.steps; ++s) {
          std::vector<data::SyntheticBatch> batches;
          for (int64_t i = 0; i < 2; ++i) {
            data::SyntheticBatchOptions shape;
            shape.rows = group.rank() == 1 ? 1 : 2;
            shape.samples = 5000 + 400 * i;
            shape.seed = static_cast<uint64_t>(10 * s + 2 * i + group.rank());
            batches.push_back(data::SyntheticBatch::make(shape).value());
          }
          const data::SpeechBatch nothing;
          // The second rank has no samples at the end of the second step, in all of the third, in
          // the beginning of the fourth and in the validation behind the first.
          const bool second = group.rank() == 1;
          const data::Batch* window[] = {
              second && (s == 2 || s == 3) ? &nothing : &batches[0].batch(),
              second && (s == 1 || s == 2) ? &nothing : &batches[1].batch()};
          if (s == 1) {
            const auto evaluated = engine->evaluate(second ? nothing : batches[0].batch(), 3, 4);
            EXPECT_TRUE(evaluated.ok()) << evaluated.status().to_string();
          }
          StepRequest request;
          request.step = s;
          request.first_micro_step = static_cast<uint64_t>(2 * s);
          request.accumulate = 2;
          request.learning_rates = {1e-3};
          request.micro_batches = window;
          const Status status = engine->submit(request);
          EXPECT_TRUE(status.ok()) << status.to_string();
          const auto outcomes = engine->collect(true);
          EXPECT_TRUE(outcomes.ok() && outcomes->size() == 1u);
          if (group.rank() != 0 || !outcomes.ok()) continue;
          out.put(outcomes->front().loss);
          out.put(outcomes->front().grad_norm);
        }
        EXPECT_TRUE(engine->snapshot().ok());
        if (group.rank() == 0) out.put(full_weights(engine->core()).narrow(0, 0, 10000));
        return 0;
      },
      options);
  EXPECT_EQ(codes, std::vector<int>(static_cast<size_t>(way.world), 0));
  return out.all();
}

// Of the first numbers of both; norms are large.
double relative_difference(const std::vector<double>& a, const std::vector<double>& b,
                           size_t count) {
  EXPECT_EQ(a.size(), b.size());
  double out = a.size() == b.size() && a.size() >= count ? 0.0 : 1e30;
  for (size_t i = 0; i < count && out < 1e30; ++i) {
    EXPECT_GT(b[i], 0.1);
    out = std::max(out, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i])));
  }
  return out;
}

// The fast engine's flat buffers and the reference engine's c10d::Reducer.
TEST(NestRanksTest, EnginesAgreeAmongRanks) {
  using config::Precision;
  const std::vector<double> want = engine_numbers({});
  ASSERT_GT(want.size(), 10u);
  const std::vector<double> fast = engine_numbers({.fast = true});
  EXPECT_LT(relative_difference(fast, want, 6), 1e-4);
  EXPECT_LT(relative_difference(fast, want, 10), 1e-3);  // AdamW and roundings
  const std::vector<double> shards = engine_numbers({.fast = true, .shard = true});
  EXPECT_EQ(shards, fast);
  const std::vector<double> narrow =
      engine_numbers({.fast = true, .precision = Precision::kBf16Mixed});
  const std::vector<double> narrow_shards =
      engine_numbers({.fast = true, .shard = true, .precision = Precision::kBf16Mixed});
  EXPECT_EQ(narrow_shards, narrow);
}

// A rank that has no room for a batch of the validation cuts it; the others have the room and do
// not wait for it. Of a sharded optimizer the rank has its own weights in float32 alone.
TEST(NestRanksTest, OneRankEvaluatesInParts) {
  config::RunConfig config = fast_run_config();
  config.model.masking.mask_prob = 0.2;
  config.trainer.precision = config::Precision::kBf16Mixed;
  const auto rows = [](int64_t count, int64_t samples, int seed) {
    data::SyntheticBatchOptions shape;
    shape.rows = count;
    shape.samples = samples;
    shape.seed = static_cast<uint64_t>(seed);
    return data::SyntheticBatch::make(shape).value();
  };
  std::vector<std::unique_ptr<Numbers>> losses;
  for (int rank = 0; rank < 2; ++rank) losses.push_back(std::make_unique<Numbers>());
  const auto codes = dist::fork_groups(
      2,
      [&](dist::ProcessGroup& group) {
        constexpr size_t kRoom = size_t{2} << 20;
        auto engine = FastEngine::create_on_host(config, kernels::kReferenceKernels,
                                                 group.rank() == 1 ? kRoom : 0)
                          .value();
        RankSettings settings;
        settings.autograd = false;
        settings.shard = settings.sync_batchnorm = true;
        const std::shared_ptr<dist::ProcessGroup> shared(&group, [](dist::ProcessGroup*) {});
        auto ranks = EngineRanks::create(shared, engine->core().model().parameters(), settings);
        EXPECT_TRUE(engine->set_ranks(std::move(ranks).value()).ok());
        const auto large = rows(24, 12000, 5);
        for (int64_t s = 0; s < 3; ++s) {
          const auto batch = rows(2, 5000, static_cast<int>(2 * s) + group.rank());
          const data::Batch* window = &batch.batch();
          StepRequest request;
          request.step = s;
          request.first_micro_step = static_cast<uint64_t>(s);
          request.learning_rates = {1e-2};
          request.micro_batches = std::span(&window, 1);
          const Status status = engine->submit(request);
          EXPECT_TRUE(status.ok()) << status.to_string();
          EXPECT_TRUE(engine->collect(true).ok());
          if (s == 1) continue;
          const auto outcome = engine->evaluate(large.batch(), 3, 4);
          EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
          losses[static_cast<size_t>(group.rank())]->put(outcome.ok() ? outcome->loss : 0.0);
        }
        return 0;
      },
      {.backend = "gloo", .timeout_s = 60, .join_timeout_s = 60});
  EXPECT_EQ(codes, std::vector<int>(2, 0));
  const std::vector<double> fast = losses[0]->all(), cut = losses[1]->all();
  ASSERT_EQ(fast.size(), 2u);
  ASSERT_EQ(cut.size(), 2u);
  for (size_t s = 0; s < 2; ++s) EXPECT_NEAR(cut[s], fast[s], 1e-3 * fast[s]);
  EXPECT_NE(cut, fast);                          // another path, other roundings
  EXPECT_GT(std::abs(fast[1] - fast[0]), 0.02);  // weights that moved
}

// Asked in another process: one that has looked at CUDA cannot be forked.
bool has_gpu() {
  return dist::fork_ranks(
             1, [](const dist::World&) { return device::driver().gpus.empty() ? 1 : 0; })[0] == 0;
}

// Two ranks share a GPU over Gloo, which cannot be recorded: graphs end before each reduction.
TEST(NestRanksGpuTest, TwoRanksOnOneGpuOverGloo) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  const std::vector<double> want = engine_numbers({.steps = 5});
  ASSERT_GT(want.size(), 10u);
  const std::vector<double> reference = engine_numbers({.gpu = true, .steps = 5});
  EXPECT_LT(relative_difference(reference, want, 10), 1e-3);
  const std::vector<double> fast = engine_numbers({.fast = true, .gpu = true, .steps = 5});
  EXPECT_LT(relative_difference(fast, want, 10), 1e-3);
  const std::vector<double> shards =
      engine_numbers({.fast = true, .shard = true, .gpu = true, .steps = 5});
  EXPECT_LT(relative_difference(shards, fast, 10), 1e-4);
}

// The whole step in one graph, with NCCL's reductions and BatchNorm's sums: shapes come again from
// the second step on, so that graphs are captured and replayed.
TEST(NestRanksGpuTest, NcclInsideTheCapturedStep) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  for (const bool shard : {false, true}) {
    const Way ranked{
        .fast = true, .shard = shard, .gpu = true, .world = 1, .backend = "nccl", .steps = 8};
    Way by_itself = ranked;
    by_itself.alone = true;
    const std::vector<double> want = engine_numbers(by_itself), found = engine_numbers(ranked);
    ASSERT_GT(want.size(), 16u);
    EXPECT_LT(relative_difference(found, want, 16), 1e-4) << (shard ? "sharded" : "whole");
  }
}

// What one rank has no memory for, no rank has done, and all may try again.
TEST(NestRanksTest, MemoryRunsOutForAll) {
  const auto codes = dist::fork_groups(2, [&](dist::ProcessGroup& group) {
    for (const bool in_the_middle : {false, true}) {
      auto core = make_core(run_config({}));
      RankSettings settings;
      settings.gradient_as_bucket_view = true;
      settings.sync_batchnorm = true;
      auto ranks = meet(group, *core, settings);
      const auto before = full_state(*core);
      const auto make = [&](bool fails) {
        return [&, fails](int64_t i) -> Result<nest::NestBatch> {
          if (fails && group.rank() == 1 && i == (in_the_middle ? 1 : 0))
            return out_of_memory("a test");
          return rows_of(static_cast<uint64_t>(i), group.rank(), 2);
        };
      };
      const Status status = core->add(2, make(true), 2, 1);
      EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.to_string();
      EXPECT_FALSE(core->window_open());
      EXPECT_EQ(first_difference(full_state(*core), before), "");
      // In more passes, of which one has no row for the second rank.
      const Status again = core->add(2, make(false), 2, 4);
      EXPECT_TRUE(again.ok()) << again.to_string();
      EXPECT_TRUE(core->finish(std::vector<double>{1e-3}).ok());
      EXPECT_TRUE(core->set_reducer(nullptr).ok());
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(2, 0));
}

}  // namespace
}  // namespace aerie::train::nest_ranks_test
