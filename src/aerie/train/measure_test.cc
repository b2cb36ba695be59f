#include "aerie/train/measure.h"

#include <array>
#include <deque>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/spans.h"
#include "aerie/data/batch.h"
#include "aerie/train/batch_list_source.h"

namespace aerie::train {
namespace {

// Phases take the times it is told; results come `late` steps late.
class TimedEngine final : public Engine {
 public:
  TimedEngine(FakeClock& clock, int64_t late) : clock_(clock), late_(late) {}
  std::string description() const override { return "timed"; }
  int64_t num_param_groups() const override { return 1; }
  int64_t num_parameters() const override { return 1; }
  int64_t max_in_flight() const override { return late_; }
  Status submit(const StepRequest& request) override {
    if (fail_at == request.step) return out_of_memory("no room");
    for (size_t i = 0; i < request.micro_batches.size(); ++i) {
      spend(kPhaseForward, 3);
      spend(kPhaseBackward, 5);
      ++micro_batches;
    }
    spend(kPhaseOptimizer, request.step == slow_step ? 100 : 1);
    add_device_span(kPhaseForward, clock_.monotonic_ns(), 2'000'000);
    clock_.advance_ns(500'000);  // outside of any phase
    StepOutcome outcome;
    outcome.step = request.step;
    outcome.loss = static_cast<double>(request.step);
    outcome.skipped = request.step == skip_step;
    queue_.push_back(outcome);
    return ok_status();
  }
  Result<std::vector<StepOutcome>> collect(bool wait) override {
    std::vector<StepOutcome> out;
    if (wait) ++waits;
    while (!queue_.empty() && (wait || static_cast<int64_t>(queue_.size()) > late_)) {
      out.push_back(queue_.front());
      queue_.pop_front();
    }
    return out;
  }
  Result<EvalOutcome> evaluate(const data::Batch&, uint64_t, uint64_t) override {
    return EvalOutcome{};
  }
  Status use_ema_weights(bool) override { return ok_status(); }
  Result<std::unique_ptr<StateSnapshot>> snapshot() override { return unsupported("none"); }
  Status restore(const StateSource&) override { return ok_status(); }
  Result<std::string> fall_back_precision() override { return unsupported("none"); }
  EngineMemory memory() const override { return {1.0, 2.0}; }

  int64_t fail_at = -1, slow_step = -1, skip_step = -1;
  int micro_batches = 0, waits = 0;

 private:
  void spend(const char* name, int64_t ms) {
    const SpanScope span(name);
    clock_.advance_ns(ms * 1'000'000);
  }
  FakeClock& clock_;
  int64_t late_;
  std::deque<StepOutcome> queue_;
};

struct Fixture {
  Fixture() {
    for (data::ArrayBatch& batch : batches) batch.mutable_samples() = {{0, 0}, {1, 1}};
    measure.clock = &clock;
    measure.learning_rates = {0.1};
    measure.steps = 7;
    measure.warmup = 2;
  }
  BatchListSource source() { return BatchListSource({&batches[0], &batches[1]}); }

  FakeClock clock;
  std::array<data::ArrayBatch, 2> batches;
  MeasureOptions measure;
};

TEST(MeasureTest, PhasesAreMediansAndAddUp) {
  Fixture fixture;
  TimedEngine engine(fixture.clock, 0);
  engine.slow_step = 4;  // an outlier that a median ignores
  engine.skip_step = 5;
  BatchListSource source = fixture.source();
  const auto result = measure_steps(engine, source, fixture.measure);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->steps, 7);
  EXPECT_NEAR(result->step_ms, 9.5, 1e-6);
  EXPECT_NEAR(result->step_ms_mean, (7 * 9.5 + 99.0) / 7, 1e-6);
  EXPECT_NEAR(result->phase("forward")->host_ms, 3.0, 1e-6);
  EXPECT_NEAR(result->phase("forward")->device_ms, 2.0, 1e-6);
  EXPECT_NEAR(result->phase("backward")->host_ms, 5.0, 1e-6);
  EXPECT_NEAR(result->phase("optimizer")->host_ms, 1.0, 1e-6);
  EXPECT_NEAR(result->phase("optimizer")->host_ms_mean, (6 * 1.0 + 100.0) / 7, 1e-6);
  EXPECT_NEAR(result->phase("other")->host_ms, 0.5, 1e-6);
  ASSERT_NE(result->phase("data wait"), nullptr);
  double sum = 0.0;
  for (const PhaseTime& phase : result->phases) sum += phase.share;
  EXPECT_NEAR(sum, 1.0, 1e-6);
  EXPECT_NEAR(result->amount, 2.0, 1e-9);
  EXPECT_NEAR(result->throughput, 2.0 * 7 / ((7 * 9.5 + 99.0) / 1e3), 1e-6);
  EXPECT_EQ(result->skipped, 1);
  EXPECT_EQ(result->loss, 8.0);
  EXPECT_EQ(result->memory.peak_gib, 2.0);
  EXPECT_EQ(engine.micro_batches, 9);
  EXPECT_FALSE(spans_on());

  const auto json = nlohmann::json::parse(result->to_json());
  EXPECT_EQ(json["steps"], 7);
  EXPECT_EQ(json["phases"].size(), result->phases.size());
  EXPECT_NE(result->to_text().find("backward"), std::string::npos);
}

TEST(MeasureTest, AccumulationTakesSeveralBatchesAStep) {
  Fixture fixture;
  fixture.measure.accumulate = 3;
  TimedEngine engine(fixture.clock, 0);
  BatchListSource source = fixture.source();
  const auto result = measure_steps(engine, source, fixture.measure);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(engine.micro_batches, 27);
  EXPECT_NEAR(result->step_ms, 3 * 8 + 1.5, 1e-6);
  EXPECT_NEAR(result->amount, 6.0, 1e-9);
}

TEST(MeasureTest, AnEngineMayWorkAhead) {
  Fixture fixture;
  fixture.measure.wait_for_results = false;
  TimedEngine engine(fixture.clock, 2);
  BatchListSource source = fixture.source();
  const auto result = measure_steps(engine, source, fixture.measure);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->steps, 7);
  EXPECT_EQ(result->loss, 8.0);  // all results came in the end
  EXPECT_NEAR(result->step_ms, 9.5, 1e-6);
}

TEST(MeasureTest, ErrorsAndStopsEndIt) {
  Fixture fixture;
  TimedEngine engine(fixture.clock, 0);
  engine.fail_at = 3;
  BatchListSource source = fixture.source();
  EXPECT_EQ(measure_steps(engine, source, fixture.measure).status().code(),
            StatusCode::kOutOfMemory);
  EXPECT_FALSE(spans_on());

  TimedEngine stopped(fixture.clock, 0);
  BatchListSource again = fixture.source();
  fixture.measure.stop = [&] { return stopped.micro_batches >= 5; };
  const auto result = measure_steps(stopped, again, fixture.measure);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->steps, 3);

  BatchListSource empty({});
  EXPECT_EQ(measure_steps(stopped, empty, {}).status().code(), StatusCode::kDataError);
}

TEST(MeasureTest, QuantilesInterpolate) {
  EXPECT_EQ(quantile({}, 0.5), 0.0);
  EXPECT_EQ(quantile({3.0}, 0.9), 3.0);
  EXPECT_NEAR(quantile({4.0, 1.0, 2.0, 3.0}, 0.5), 2.5, 1e-12);
  EXPECT_NEAR(quantile({1.0, 2.0}, 0.1), 1.1, 1e-12);
}

}  // namespace
}  // namespace aerie::train
