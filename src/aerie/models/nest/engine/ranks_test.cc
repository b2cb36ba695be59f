// The places where several ranks of a run meet, in both engines: gradients that are added up before
// norm and update, BatchNorm's sums that are exchanged. Fakes stand for the other ranks.
#include <array>
#include <barrier>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <thread>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>

#include "aerie/base/strings.h"
#include "aerie/data/speech/synthetic_batch.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/engine/reference_engine.h"
#include "aerie/models/nest/engine/test_util.h"
#include "aerie/train/eval_accumulator.h"
#include "aerie/train/testing/local_ranks.h"

namespace aerie::train::ranks_test {
namespace {

config::RunConfig ranks_config() {
  config::RunConfig config = fast_run_config();
  config::ModelConfig& m = config.model;
  m.encoder.n_layers = 3;
  m.encoder.dropout = m.encoder.dropout_pre_encoder = m.encoder.dropout_att = 0.1;
  config.trainer.accumulate_grad_batches = 2;
  config.trainer.gradient_clip_val = 1.0;
  return config;
}

std::unique_ptr<CoreEngine> make_engine(bool fast, const config::RunConfig& config) {
  if (fast) {
    auto engine = FastEngine::create_on_host(config, kernels::kReferenceKernels);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    return std::move(engine).value();
  }
  auto engine = ReferenceEngine::create(config, at::kCPU);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return std::move(engine).value();
}

// Other ranks that bring what makes gradients `factor` times what they are, plus `more`.
class FakeRanks : public GradientReducer {
 public:
  explicit FakeRanks(float factor, bool records = true) : factor_(factor), records_(records) {}

  Status attach(float* grads, const FlatParts& parts) override {
    grads_ = grads;
    parts_ = parts;
    return ok_status();
  }
  int begin(int part, void*) override {
    if (fails) return 7;
    begun_.push_back(part);
    for (const FlatRange& range : parts_.ranges(part))
      for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
        grads_[i] = grads_[i] * factor_ + more;
        if (left_.size() <= static_cast<size_t>(i)) left_.resize(static_cast<size_t>(parts_.count));
        left_[static_cast<size_t>(i)] = grads_[i];
      }
    return 0;
  }
  int finish(void*) override {
    if (fails) return 7;
    // Nothing was written to a part behind its begin(), and every element was in one.
    EXPECT_EQ(left_.size(), static_cast<size_t>(parts_.count));
    for (int64_t i = 0; i < static_cast<int64_t>(left_.size()); ++i)
      changed_ += grads_[i] != left_[static_cast<size_t>(i)] ? 1 : 0;
    EXPECT_EQ(changed_, 0);
    ++finished;
    return 0;
  }
  int add_up(float* values, int64_t count, void*) override {
    EXPECT_EQ(count, 1);
    values[0] += other_loss;
    return 0;
  }
  Status unite(std::span<uint8_t> flags) override {
    // One flag alone is about memory.
    if (others_have_gradients && flags.size() > 1)
      std::fill(flags.begin(), flags.end(), uint8_t{1});
    return ok_status();
  }
  bool recordable() const override { return records_; }
  Status error(int code) const override {
    return internal_error(str_cat("rank 3 is gone, code ", code));
  }

  // Of the last step.
  std::vector<int> take_begun() { return std::exchange(begun_, {}); }
  std::vector<int> all_parts() const {
    std::vector<int> out;
    for (int part = parts_.size() - 1; part >= 0; --part) out.push_back(part);
    return out;
  }
  float more = 0.0f, other_loss = 0.0f;
  bool others_have_gradients = false, fails = false;
  int finished = 0;

 private:
  float factor_;
  bool records_;
  float* grads_ = nullptr;
  FlatParts parts_;
  std::vector<int> begun_;
  std::vector<float> left_;
  int64_t changed_ = 0;
};

data::SyntheticBatch make_rows(int64_t rows, uint64_t seed, int64_t samples) {
  data::SyntheticBatchOptions options;
  options.rows = rows;
  options.samples = samples;
  options.seed = seed;
  auto batch = data::SyntheticBatch::make(options);
  EXPECT_TRUE(batch.ok());
  return std::move(batch).value();
}

struct StepOptions {
  int64_t split = 1;
  bool cut = false;         // the window in two requests
  bool empty_last = false;  // a micro-batch without samples behind the others
  int64_t accumulate = 2;
};

StepOutcome run_step(CoreEngine& engine, int64_t number, const StepOptions& options = {}) {
  const data::SyntheticBatch a = make_rows(2, static_cast<uint64_t>(number), 6000);
  const data::SyntheticBatch b = make_rows(2, static_cast<uint64_t>(number + 100), 5000);
  const data::SpeechBatch nothing;
  std::vector<const data::Batch*> window = {&a.batch(), options.empty_last ? &nothing : &b.batch()};
  StepRequest request;
  request.step = number;
  request.first_micro_step = static_cast<uint64_t>(2 * number);
  request.accumulate = options.accumulate;
  request.split = options.split;
  request.learning_rates.assign(static_cast<size_t>(engine.num_param_groups()), 1e-3);
  request.micro_batches = window;
  if (options.cut) {
    request.micro_batches = std::span(window).first(1);
    request.finish = false;
    EXPECT_TRUE(engine.submit(request).ok());
    request.micro_batches = std::span(window).last(1);
    ++request.first_micro_step;
    request.finish = true;
  }
  const Status status = engine.submit(request);
  EXPECT_TRUE(status.ok()) << status.to_string();
  auto outcomes = engine.collect(true);
  EXPECT_TRUE(outcomes.ok() && outcomes->size() == 1u);
  return outcomes->empty() ? StepOutcome() : outcomes->front();
}

std::map<std::string, at::Tensor> state_of(CoreEngine& engine) {
  EXPECT_TRUE(engine.snapshot().ok());  // brings the state into the core
  return full_state(engine.core());
}

// Gradients that are zero in exact arithmetic: Adam turns their rounding errors into whole steps.
bool is_noise(const std::string& name) {
  return name.find("depthwise_conv.bias") != std::string::npos ||
         name.find("linear_k.bias") != std::string::npos;
}

TEST(RanksTest, ARunOfOneRankIsTheSameRun) {
  for (const bool fast : {false, true})
    for (const bool records : {true, false}) {
      SCOPED_TRACE(fast ? "fast" : "reference");
      auto plain = make_engine(fast, ranks_config());
      auto reduced = make_engine(fast, ranks_config());
      FakeRanks ranks(1.0f, records);
      ASSERT_TRUE(reduced->set_reducer(&ranks).ok());
      for (int64_t s = 0; s < 5; ++s) {
        StepOptions options;
        options.cut = s == 1;
        options.split = s == 2 ? 2 : 1;
        options.empty_last = s == 3;
        const StepOutcome want = run_step(*plain, s, options);
        const StepOutcome got = run_step(*reduced, s, options);
        EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-6 * want.grad_norm);
        EXPECT_NEAR(got.loss, want.loss, 1e-5 * want.loss);
        // Once a step, however many passes it has.
        EXPECT_EQ(ranks.take_begun(), ranks.all_parts());
        EXPECT_EQ(ranks.finished, s + 1);
      }
      const auto x = state_of(*reduced), y = state_of(*plain);
      EXPECT_EQ(fast ? "" : first_difference(x, y), "");
      for (const auto& [name, want] : y) {
        if (is_noise(name) || !want.is_floating_point() || want.numel() < 2) continue;
        EXPECT_LT(nest::l2(x.at(name) - want), 1e-4 * std::max(nest::l2(want), 1e-2)) << name;
      }
      ASSERT_TRUE(reduced->set_reducer(nullptr).ok());
      run_step(*reduced, 5);
      EXPECT_EQ(ranks.finished, 5);
    }
}

// Norm, clipping and update are those of what was added up: to the bit those of gradients that were
// twice as large to begin with.
TEST(RanksTest, NormAndUpdateAreThoseOfTheSum) {
  for (const bool fast : {false, true}) {
    SCOPED_TRACE(fast ? "fast" : "reference");
    auto plain = make_engine(fast, ranks_config());
    auto doubled = make_engine(fast, ranks_config());
    auto larger = make_engine(fast, ranks_config());
    FakeRanks twice(2.0f), once(1.0f);
    ASSERT_TRUE(doubled->set_reducer(&twice).ok());
    ASSERT_TRUE(larger->set_reducer(&once).ok());
    for (int64_t s = 0; s < 3; ++s) {
      StepOptions whole;
      whole.accumulate = 1;
      const StepOutcome got = run_step(*doubled, s);
      const StepOutcome want = run_step(*larger, s, whole);
      EXPECT_EQ(got.grad_norm, want.grad_norm);
      if (s > 0) continue;
      const double alone = run_step(*plain, s).grad_norm;
      EXPECT_NEAR(got.grad_norm, 2.0 * alone, 1e-6 * alone);
      EXPECT_GT(alone, 0.5);  // so that clipping has to know
    }
    EXPECT_EQ(first_difference(state_of(*doubled), state_of(*larger)), "");
  }
}

TEST(RanksTest, ARankWithoutSamplesFollowsTheOthers) {
  for (const bool fast : {false, true}) {
    SCOPED_TRACE(fast ? "fast" : "reference");
    auto engine = make_engine(fast, ranks_config());
    FakeRanks ranks(1.0f);
    ASSERT_TRUE(engine->set_reducer(&ranks).ok());
    run_step(*engine, 0);
    (void)ranks.take_begun();
    const auto before = state_of(*engine);
    ranks.more = 0.01f;
    ranks.others_have_gradients = true;
    const data::SpeechBatch nothing;
    const data::Batch* window = &nothing;
    StepRequest request;
    request.step = 1;
    request.learning_rates = {1e-3};
    request.micro_batches = std::span(&window, 1);
    const Status status = engine->submit(request);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const auto outcomes = engine->collect(true);
    ASSERT_TRUE(outcomes.ok() && outcomes->size() == 1u);
    const auto values =
        static_cast<double>(engine->core().model().parameters().flat_grads().numel());
    EXPECT_NEAR(outcomes->front().grad_norm, 0.01 * std::sqrt(values), 1e-3);
    EXPECT_FALSE(outcomes->front().skipped);
    EXPECT_EQ(outcomes->front().without_loss, 1);
    EXPECT_EQ(ranks.take_begun(), ranks.all_parts());
    const auto after = state_of(*engine);
    for (const int64_t index : engine->core().model().parameters().trainable()) {
      const std::string name =
          "model." + engine->core().model().parameters().entries()[static_cast<size_t>(index)].name;
      EXPECT_FALSE(at::equal(after.at(name), before.at(name))) << name;
    }
  }
}

TEST(RanksTest, WhatTheReducerSaysIsTheError) {
  for (const bool fast : {false, true})
    for (const bool records : {true, false}) {
      SCOPED_TRACE(str_cat(fast ? "fast" : "reference", records ? ", records" : ""));
      auto engine = make_engine(fast, ranks_config());
      FakeRanks ranks(1.0f, records);
      ASSERT_TRUE(engine->set_reducer(&ranks).ok());
      for (int64_t s = 0; s < 3; ++s) run_step(*engine, s);  // graphs are recorded
      ranks.fails = true;
      const data::SyntheticBatch a = make_rows(2, 7, 6000);
      const data::Batch* window = &a.batch();
      StepRequest request;
      request.step = 3;
      request.learning_rates.assign(static_cast<size_t>(engine->num_param_groups()), 1e-3);
      request.micro_batches = std::span(&window, 1);
      Status status = engine->submit(request);
      if (status.ok()) status = engine->collect(true).status();
      EXPECT_NE(status.to_string().find("rank 3 is gone, code 7"), std::string::npos)
          << status.to_string();
    }
}

TEST(RanksTest, AllRanksSkipWhatOneCannotUse) {
  for (const bool fast : {false, true}) {
    SCOPED_TRACE(fast ? "fast" : "reference");
    auto engine = make_engine(fast, ranks_config());
    FakeRanks ranks(1.0f);
    ASSERT_TRUE(engine->set_reducer(&ranks).ok());
    const auto before = state_of(*engine);
    ranks.other_loss = std::numeric_limits<float>::infinity();
    const StepOutcome outcome = run_step(*engine, 0);
    EXPECT_TRUE(outcome.skipped);
    EXPECT_TRUE(std::isfinite(outcome.loss));
    EXPECT_EQ(first_difference(state_of(*engine), before), "");
    ranks.other_loss = 0.0f;
    EXPECT_FALSE(run_step(*engine, 1).skipped);
  }
}

// An exchange among one rank changes nothing but the order of sums.
TEST(RanksTest, AnExchangeOfOneRankIsNone) {
  for (const bool fast : {false, true}) {
    SCOPED_TRACE(fast ? "fast" : "reference");
    auto plain = make_engine(fast, ranks_config());
    auto exchanging = make_engine(fast, ranks_config());
    std::vector<std::pair<int, bool>> calls;
    ASSERT_TRUE(exchanging
                    ->set_exchange(
                        [&](const kernels::ExchangedSums& sums, void*) {
                          calls.emplace_back(sums.layer, sums.backward);
                          return 0;
                        },
                        /*recordable=*/!fast)
                    .ok());
    for (int64_t s = 0; s < 3; ++s) {
      const StepOutcome want = run_step(*plain, s), got = run_step(*exchanging, s);
      EXPECT_NEAR(got.loss, want.loss, 1e-5 * want.loss);
      EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-4 * want.grad_norm);
      if (s > 0) continue;
      for (const char* name : {"running_mean", "running_var", "num_batches_tracked"}) {
        const std::string at = str_cat("model.encoder.layers.1.conv.batch_norm.", name);
        EXPECT_TRUE(at::allclose(state_of(*exchanging).at(at), state_of(*plain).at(at), 1e-5, 1e-6))
            << name;
      }
    }
    const std::vector<std::pair<int, bool>> pass = {{0, false}, {1, false}, {2, false},
                                                    {2, true},  {1, true},  {0, true}};
    ASSERT_EQ(calls.size(), 3 * 2 * pass.size());
    for (size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i], pass[i % pass.size()]);
  }
}

// Keeps what follow_device() was given.
class FollowingRank final : public LocalRank {
 public:
  using LocalRank::LocalRank;
  void follow_device(const int32_t* phase) override { word = phase; }
  std::string device() const {
    return word == nullptr ? "nobody says" : dist::phase_name(static_cast<dist::Phase>(*word));
  }
  const int32_t* word = nullptr;
};

// Notes where the device is whenever it is asked for something.
class NotingRanks final : public FakeRanks {
 public:
  explicit NotingRanks(const FollowingRank& rank) : FakeRanks(1.0f), rank_(rank) {}
  int begin(int part, void* stream) override {
    notes.insert("begin: " + rank_.device());
    return FakeRanks::begin(part, stream);
  }
  int finish(void* stream) override {
    notes.insert("finish: " + rank_.device());
    return FakeRanks::finish(stream);
  }
  std::set<std::string> notes;

 private:
  const FollowingRank& rank_;
};

// Other ranks hear where the device of the fast engine is, in graphs too.
TEST(RanksTest, TheDeviceTellsItsPhases) {
  MeetingPlace place(1);
  FollowingRank rank(place, 0);
  {
    auto engine = make_engine(/*fast=*/true, ranks_config());
    NotingRanks ranks(rank);
    ASSERT_TRUE(engine->set_reducer(&ranks).ok());
    ASSERT_TRUE(engine
                    ->set_exchange(
                        [&](const kernels::ExchangedSums& sums, void*) {
                          ranks.notes.insert((sums.backward ? "sums back: " : "sums: ") +
                                             rank.device());
                          return 0;
                        },
                        /*recordable=*/true)
                    .ok());
    engine->core().set_group(&rank);
    for (int64_t s = 0; s < 3; ++s) {
      ranks.notes.clear();
      run_step(*engine, 0);
      EXPECT_EQ(rank.device(), "update");
      EXPECT_EQ(ranks.notes, (std::set<std::string>{"sums: forward", "sums back: backward",
                                                    "begin: backward", "finish: all-reduce"}));
    }
    EXPECT_GT(static_cast<FastEngine&>(*engine).num_graphs(), 0);
  }
  EXPECT_EQ(rank.word, nullptr);
}

// Two cores, each in a thread of its own, that meet for gradients and BatchNorm's sums.
class TwoRanks {
 public:
  // Adds up what both ranks have, times `factor`.
  template <typename T>
  void add_up(size_t rank, T* values, int64_t count, T factor) {
    values_[rank] = values;
    gate_.arrive_and_wait();
    std::vector<T> all;
    for (int64_t i = 0; i < count; ++i)
      all.push_back(factor * (static_cast<T*>(values_[0])[i] + static_cast<T*>(values_[1])[i]));
    gate_.arrive_and_wait();
    std::copy(all.begin(), all.end(), values);
  }
  // A rank that fails does not keep the other waiting.
  void leave() { gate_.arrive_and_drop(); }

 private:
  std::barrier<> gate_{2};
  std::array<void*, 2> values_{};
};

class AverageOfTwo final : public GradientReducer {
 public:
  AverageOfTwo(TwoRanks& ranks, size_t rank) : ranks_(ranks), rank_(rank) {}
  Status attach(float* grads, const FlatParts& parts) override {
    grads_ = grads;
    parts_ = parts;
    return ok_status();
  }
  int begin(int part, void*) override {
    for (const FlatRange& range : parts_.ranges(part))
      ranks_.add_up(rank_, grads_ + range.begin, range.count, 0.5f);
    return 0;
  }
  int finish(void*) override { return 0; }
  int add_up(float* values, int64_t count, void*) override {
    ranks_.add_up(rank_, values, count, 1.0f);
    return 0;
  }
  Status unite(std::span<uint8_t>) override { return ok_status(); }

 private:
  TwoRanks& ranks_;
  size_t rank_;
  float* grads_ = nullptr;
  FlatParts parts_;
};

TEST(RanksTest, TwoRanksAreOneRankWithTheWholeBatch) {
  config::RunConfig config = small_run_config();
  config.model.optim.kind = config::OptimizerKind::kSgd;
  config.model.optim.weight_decay = 0.0;
  config.trainer.gradient_clip_val = 1.0;
  // As many masked frames in either half: the mean of both losses is that of the whole.
  const nest::MaskSpans whole_masks(4, {{8, 24}}), half_masks(2, {{8, 24}});
  struct Outcome {
    std::map<std::string, at::Tensor> state;
    std::vector<double> norms;
  };
  const auto train = [&](NestCore& core, int64_t first, int64_t rows,
                         const nest::MaskSpans& masks) {
    Outcome out;
    core.force_masks(&masks);
    for (uint64_t s = 0; s < 3; ++s) {
      const auto rows_of = [&](int64_t i) -> Result<nest::NestBatch> {
        return batch_rows(make_batch(4, 2 * s + static_cast<uint64_t>(i)), first, first + rows);
      };
      const Status status = core.add(2, rows_of, 2, 1);
      EXPECT_TRUE(status.ok()) << status.to_string();
      const auto outcome = core.finish(std::vector<double>{0.05});
      EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
      if (outcome.ok()) out.norms.push_back(outcome->grad_norm);
    }
    out.state = full_state(core);
    return out;
  };
  auto whole_core = make_core(config);
  const Outcome whole = train(*whole_core, 0, 4, whole_masks);
  TwoRanks ranks;
  std::array<Outcome, 2> parts;
  const auto work = [&](size_t rank) {
    auto core = make_core(config);
    AverageOfTwo reducer(ranks, rank);
    EXPECT_TRUE(core->set_reducer(&reducer).ok());
    EXPECT_TRUE(core->set_exchange(
                        [&](const kernels::ExchangedSums& sums, void*) {
                          ranks.add_up(rank, sums.values, sums.count, 1.0);
                          return 0;
                        },
                        false)
                    .ok());
    parts[rank] = train(*core, static_cast<int64_t>(2 * rank), 2, half_masks);
    ranks.leave();
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(first_difference(parts[0].state, parts[1].state), "");
  ASSERT_EQ(parts[0].norms.size(), whole.norms.size());
  for (size_t s = 0; s < whole.norms.size(); ++s)
    EXPECT_NEAR(parts[0].norms[s], whole.norms[s], 1e-4 * whole.norms[s]);
  for (const auto& [name, want] : whole.state) {
    if (!want.is_floating_point() || want.numel() < 2) continue;
    EXPECT_LT(nest::l2(parts[0].state.at(name) - want), 1e-5 * std::max(nest::l2(want), 1e-1))
        << name;
  }
}

// With a global loss the parts of a set count by their masked frames, whoever has them.
TEST(RanksTest, ValidationOfPartsIsThatOfTheWhole) {
  auto core = make_core(small_run_config());
  const nest::NestBatch whole = make_batch(5, 3);
  for (const bool global : {true, false}) {
    core->set_global_loss(global);
    EvalAccumulator all, parts;
    all.add(core->evaluate(whole).value());
    for (const auto& [begin, end] : {std::pair{0, 1}, {1, 5}})
      parts.add(core->evaluate(batch_rows(whole, begin, end)).value());
    const double difference = std::abs(parts.mean_loss() - all.mean_loss());
    EXPECT_EQ(difference < 1e-5, global) << difference;
  }
}

}  // namespace
}  // namespace aerie::train::ranks_test
