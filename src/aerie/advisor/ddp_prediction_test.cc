#include "aerie/advisor/ddp_prediction.h"

#include <cmath>

#include <gtest/gtest.h>

#include "aerie/advisor/all_reduce_cost.h"
#include "aerie/advisor/plan_input.h"
#include "aerie/advisor/plan_text.h"

namespace aerie::advisor {
namespace {

// 1 GB/s, 10 us a hop, 100 us a call.
Network slow_network() {
  Network out;
  out.inside = {1.0, 10.0};
  out.between = {0.5, 50.0};
  out.ranks_per_node = 4;
  out.call_us = 100.0;
  out.trees = false;
  return out;
}

TEST(AllReduceCostTest, OneRankCostsNothing) {
  EXPECT_EQ(all_reduce_cost(1e9, 1, Network{}).total_s(), 0.0);
}

TEST(AllReduceCostTest, RingInsideANode) {
  // 2 * 3/4 * 1 MB / 1 GB/s; 100 us + 6 hops.
  const Cost cost = all_reduce_cost(1e6, 4, slow_network());
  EXPECT_NEAR(cost.bandwidth_s, 1.5e-3, 1e-12);
  EXPECT_NEAR(cost.latency_s, 160e-6, 1e-12);
}

TEST(AllReduceCostTest, SlowerStageCountsBetweenNodes) {
  // Three nodes of 4: inside 1.5 ms; between 2 * 2/3 * 0.25 MB / 0.5 GB/s = 0.667 ms.
  Network network = slow_network();
  Cost cost = all_reduce_cost(1e6, 12, network);
  EXPECT_NEAR(cost.bandwidth_s, 1.5e-3, 1e-12);
  EXPECT_NEAR(cost.latency_s, 100e-6 + 6 * 10e-6 + 4 * 50e-6, 1e-12);
  network.between.gb_per_s = 0.1;
  cost = all_reduce_cost(1e6, 12, network);
  EXPECT_NEAR(cost.bandwidth_s, 2.0 * 2.0 / 3.0 * 0.25e6 / 0.1e9, 1e-12);
}

TEST(AllReduceCostTest, TreesWinWhereHopsDo) {
  Network network = slow_network();
  network.ranks_per_node = 64;
  network.trees = true;
  // Few bytes over 64 ranks: 12 hops instead of 126.
  EXPECT_NEAR(all_reduce_cost(1e3, 64, network).latency_s, 220e-6, 1e-12);
  // Many bytes: the ring moves fewer.
  EXPECT_NEAR(all_reduce_cost(1e9, 64, network).bandwidth_s, 2.0 * 63.0 / 64.0, 1e-9);
}

TEST(AllReduceCostTest, FitFindsWhatMadeTheSamples) {
  Network truth = slow_network();
  truth.ranks_per_node = 8;
  std::vector<AllReduceSample> samples;
  for (const int ranks : {2, 4, 8})
    for (const double bytes : {1e3, 1e5, 1e7})
      samples.push_back({ranks, bytes, all_reduce_cost(bytes, ranks, truth).total_s()});
  auto fitted = fit_network(samples);
  ASSERT_TRUE(fitted.ok()) << fitted.status().to_string();
  EXPECT_NEAR(fitted->inside.gb_per_s, 1.0, 1e-6);
  EXPECT_NEAR(fitted->inside.hop_us, 10.0, 1e-4);
  EXPECT_NEAR(fitted->call_us, 100.0, 1e-4);
  // One world size: hops are part of the call.
  samples.erase(samples.begin() + 3, samples.end());
  fitted = fit_network(samples);
  ASSERT_TRUE(fitted.ok()) << fitted.status().to_string();
  EXPECT_EQ(fitted->inside.hop_us, 0.0);
  EXPECT_NEAR(fitted->call_us, 120.0, 1e-4);
  const AllReduceTime time = measured_time(samples, 2, *fitted);
  EXPECT_NEAR(time(1e5).total_s(), samples[1].seconds, 1e-12);
  EXPECT_NEAR(time(2e7).total_s(), 2.0 * samples[2].seconds, 1e-12);
}

TEST(AllReduceCostTest, RefusesWhatIsNoMeasurement) {
  EXPECT_FALSE(fit_network({}).ok());
  EXPECT_FALSE(fit_network({{2, 1e6, 0.1}}).ok());
  EXPECT_FALSE(fit_network({{2, 1e6, 0.1}, {2, 2e6, -1.0}}).ok());
  EXPECT_FALSE(fit_network({{2, 1e3, 0.1}, {2, 1e7, 0.01}}).ok());  // faster with more bytes
}

TEST(StepPlanTest, BucketsEndWhereTheyReachTheirCap) {
  const std::vector<GradientPart> parts{{4.0, 1.0}, {4.0, 1.0}, {4.0, 2.0}, {4.0, 3.0}, {4.0, 1.0}};
  const std::vector<Bucket> buckets = make_buckets(parts, 4.0, 7.0);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].bytes, 4.0);
  EXPECT_NEAR(buckets[0].ready, 1.0 / 8.0, 1e-12);
  EXPECT_EQ(buckets[1].bytes, 8.0);
  EXPECT_NEAR(buckets[1].ready, 4.0 / 8.0, 1e-12);
  EXPECT_EQ(buckets[2].bytes, 8.0);
  EXPECT_NEAR(buckets[2].ready, 1.0, 1e-12);
}

StepModel two_buckets() {
  StepModel out;
  out.forward_s = 1.0;
  out.backward_s = 2.0;
  out.optimizer_s = 0.5;
  out.other_s = 0.25;
  out.buckets = {{1.0, 0.5}, {1.0, 1.0}};
  return out;
}

TEST(StepPlanTest, HidesWhatEndsBeforeTheBackwardPass) {
  // Bucket 1 from 1.0 to 1.5; bucket 2 from 2.0 to 2.5: half a second is waited for.
  const auto half = [](double) { return Cost{0.4, 0.1}; };
  const StepPrediction out = predict_step(two_buckets(), 2, half);
  EXPECT_NEAR(out.compute_s, 3.75, 1e-12);
  EXPECT_NEAR(out.reduce_s, 1.0, 1e-12);
  EXPECT_NEAR(out.exposed_s, 0.5, 1e-12);
  EXPECT_NEAR(out.exposed_latency_s, 0.1, 1e-12);
  EXPECT_NEAR(out.overlap_share, 0.5, 1e-12);
  EXPECT_NEAR(out.step_s, 4.25, 1e-12);
  EXPECT_NEAR(out.efficiency(), 3.75 / 4.25, 1e-12);
  EXPECT_EQ(limit_of(out), Limit::kBandwidth);
}

TEST(StepPlanTest, ReductionsWaitForEachOther) {
  // Bucket 1 from 1.0 to 4.0, bucket 2 behind it to 7.0: 5 s behind the pass.
  const auto three = [](double) { return Cost{3.0, 0.0}; };
  EXPECT_NEAR(predict_step(two_buckets(), 2, three).exposed_s, 5.0, 1e-12);
}

TEST(StepPlanTest, ReductionsSlowThePassDown) {
  // From 1.0 on the pass runs at half speed until 1.5 (0.25 of 1.0 done), ends at 2.25; then 0.5.
  StepModel model = two_buckets();
  model.overlap_slowdown = 1.0;
  const auto half = [](double) { return Cost{0.5, 0.0}; };
  EXPECT_NEAR(predict_step(model, 2, half).exposed_s, 0.75, 1e-12);
}

TEST(StepPlanTest, ThePassSlowsReductionsDown) {
  // Bucket 1 begins at 1.0; beside the pass a reduction of 0.75 takes 1.5: at 2.0 a quarter is
  // left, and bucket 2's 0.75 behind it have no company.
  StepModel model = two_buckets();
  model.reduce_slowdown = 1.0;
  const auto three_quarters = [](double) { return Cost{0.75, 0.0}; };
  EXPECT_NEAR(predict_step(model, 2, three_quarters).exposed_s, 1.0, 1e-12);
  // One that has ended before the pass does is slowed down, and nobody waits for it.
  const auto quarter = [](double) { return Cost{0.25, 0.0}; };
  EXPECT_NEAR(predict_step(model, 2, quarter).exposed_s, 0.25, 1e-12);
  // Both: the pass at half speed from 1.0 to 2.5 (0.75 of 1.0 done), then alone to 2.75; then 0.75.
  model.overlap_slowdown = 1.0;
  EXPECT_NEAR(predict_step(model, 2, three_quarters).exposed_s, 1.5, 1e-12);
}

TEST(StepPlanTest, CopiesLengthenThePassAndFollowTheLastReduction) {
  // The pass takes 2.5, bucket 1 is ready at 1.25; 0.5 for bucket 2 and 0.1 to take gradients out.
  StepModel model = two_buckets();
  model.copy_in_s = 0.5;
  model.copy_out_s = 0.1;
  const auto half = [](double) { return Cost{0.5, 0.0}; };
  EXPECT_NEAR(predict_step(model, 2, half).exposed_s, 1.1, 1e-12);
  EXPECT_NEAR(predict_step(model, 1, half).step_s, 3.75, 1e-12);
}

TEST(StepPlanTest, AccumulationReducesOnce) {
  StepModel model = two_buckets();
  model.accumulate = 3;
  model.blocking_calls = 2;
  const auto half = [](double) { return Cost{0.5, 0.0}; };
  const StepPrediction out = predict_step(model, 2, half);
  EXPECT_NEAR(out.compute_s, 9.75, 1e-12);
  EXPECT_NEAR(out.exposed_s, 0.5, 1e-12);
  EXPECT_NEAR(out.blocking_s, 3.0, 1e-12);
  EXPECT_NEAR(out.step_s, 13.25, 1e-12);
  EXPECT_EQ(limit_of(out), Limit::kBlocking);
}

TEST(StepPlanTest, ShardedOptimizerReducesHalfAndGathers) {
  StepModel model = two_buckets();
  model.shard_optimizer = true;
  const auto per_byte = [](double bytes) { return Cost{bytes, 0.0}; };
  // Reduce-scatters of 0.5 s; all-gather of half of 1 byte (2 bytes of gradients); update 0.5 / 4.
  const StepPrediction out = predict_step(model, 4, per_byte);
  EXPECT_NEAR(out.exposed_s, 0.5, 1e-12);
  EXPECT_NEAR(out.gather_s, 0.5, 1e-12);
  EXPECT_NEAR(out.step_s, 3.75 + 0.5 + 0.5 - 0.5 * 0.75, 1e-12);
  model.whole_reduces = true;
  const StepPrediction gloo = predict_step(model, 4, per_byte);
  model.shard_optimizer = false;
  EXPECT_NEAR(gloo.exposed_s, predict_step(model, 4, per_byte).exposed_s, 1e-12);
}

TEST(StepPlanTest, OneRankWaitsForNobody) {
  StepModel model = two_buckets();
  model.jitter_s = 1.0;
  model.blocking_calls = 5;
  const auto never = [](double) { return Cost{100.0, 0.0}; };
  EXPECT_NEAR(predict_step(model, 1, never).step_s, 3.75, 1e-12);
  EXPECT_EQ(limit_of(predict_step(model, 1, never)), Limit::kCompute);
}

TEST(StepPlanTest, AllWaitForTheSlowest) {
  // Means of the largest of n normal values: 0.564, 1.424, 2.343 (tables).
  EXPECT_NEAR(expected_largest(2), 0.564, 0.03);
  EXPECT_NEAR(expected_largest(8), 1.424, 0.03);
  EXPECT_NEAR(expected_largest(64), 2.343, 0.03);
  StepModel model = two_buckets();
  model.jitter_s = 1.0;
  const auto nothing = [](double) { return Cost{}; };
  const StepPrediction out = predict_step(model, 8, nothing);
  EXPECT_NEAR(out.step_s, 3.75 + expected_largest(8), 1e-12);
  EXPECT_EQ(limit_of(out), Limit::kStragglers);
}

TEST(StepPlanTest, MemoryFollowsTheSettings) {
  MemoryModel model;
  model.single_gib = 10.0;
  model.parameters = 1073741824.0 / 8.0;  // moments of 1 GiB, gradients of half a GiB
  EXPECT_NEAR(predict_memory_gib(model, 8), 10.0, 1e-12);
  model.bucket_copies = true;
  EXPECT_NEAR(predict_memory_gib(model, 1), 10.0, 1e-12);
  EXPECT_NEAR(predict_memory_gib(model, 8), 10.5, 1e-12);
  model.shard_optimizer = true;
  EXPECT_NEAR(predict_memory_gib(model, 8), 10.5 - 7.0 / 8.0, 1e-12);
}

TEST(PlanInputTest, ReadsWhatBenchStepPrints) {
  const char* text = R"([{"case": "2 x 1 s", "precision": "32", "layers": 4, "d_model": 8,
    "parameters": 1000, "step_ms": 10.0, "step_ms_p10": 9.0, "step_ms_p90": 11.5631,
    "audio_s_per_step": 1.8, "peak_memory_gib": 0.5,
    "phases": [{"name": "forward", "host_ms": 2.0}, {"name": "backward", "host_ms": 5.0},
               {"name": "optimizer", "host_ms": 1.0, "device_ms": 1.5}]}])";
  const auto input = read_plan_input(text, "file");
  ASSERT_TRUE(input.ok()) << input.status().to_string();
  ASSERT_EQ(input->steps.size(), 1u);
  const MeasuredStep& step = input->steps[0];
  EXPECT_EQ(step.name, "2 x 1 s, 32");
  EXPECT_EQ(step.amount_name, "audio_s");
  EXPECT_NEAR(step.jitter_ms, 1.0, 1e-6);
  PlanOptions options;
  const StepModel model = step_model(step, options);
  EXPECT_NEAR(model.forward_s, 2e-3, 1e-12);
  EXPECT_NEAR(model.backward_s, 5e-3, 1e-12);
  EXPECT_NEAR(model.optimizer_s, 1.5e-3, 1e-12);
  EXPECT_NEAR(model.other_s, 1.5e-3, 1e-12);
  EXPECT_EQ(model.blocking_calls, 8);
  ASSERT_EQ(model.buckets.size(), 1u);  // all below one cap
  EXPECT_NEAR(model.buckets[0].bytes, 4000.0, 1e-9);
  options.sync_batchnorm = false;
  EXPECT_EQ(step_model(step, options).blocking_calls, 0);
}

TEST(PlanInputTest, ReadsAllReducesOfWorlds) {
  const char* text = R"({"steps": [{"step_ms": 1, "parameters": 5}],
    "all_reduce": [{"ranks": 2, "bytes": 1000, "seconds": 0.001}]})";
  const auto input = read_plan_input(text, "file");
  ASSERT_TRUE(input.ok()) << input.status().to_string();
  ASSERT_EQ(input->all_reduces.size(), 1u);
  EXPECT_EQ(input->all_reduces[0].ranks, 2);
}

// Steps of 10 ms alone and 16 beside another rank; 12 of the 15 outside the optimizer are passes
// that wait 3 for sums. Beside reductions: 22 ms, and a reduction takes twice as long.
constexpr const char* kBusy = R"({"steps": [{"step_ms": 10, "parameters": 1e6, "layers": 4,
    "d_model": 8, "phases": [{"name": "forward", "host_ms": 3}, {"name": "backward", "host_ms": 6},
                             {"name": "optimizer", "host_ms": 1}]}],
  "all_reduce": [{"ranks": 2, "bytes": 1000, "seconds": 1e-4},
                 {"ranks": 2, "bytes": 4000000, "seconds": 4e-3}],
  "busy": [{"ranks": 2, "reduce_ms": 4, "loaded_reduce_ms": 8, "copy_gb_per_s": 4,
    "step": {"step_ms": 16, "step_ms_p10": 10, "step_ms_p90": 30, "parameters": 1e6, "layers": 4,
             "d_model": 8, "phases": [{"name": "forward", "host_ms": 4},
                                      {"name": "backward", "host_ms": 8},
                                      {"name": "waiting for ranks", "host_ms": 3},
                                      {"name": "optimizer", "host_ms": 1}]},
    "loaded_step": {"step_ms": 23.5, "parameters": 1e6,
                    "phases": [{"name": "optimizer", "host_ms": 1}]}}]})";

TEST(PlanInputTest, ReadsWhatRanksOfOneMachineCostEachOther) {
  const auto input = read_plan_input(kBusy, "file");
  ASSERT_TRUE(input.ok()) << input.status().to_string();
  ASSERT_EQ(input->busy.size(), 1u);
  const BusyRanks& busy = input->busy[0];
  EXPECT_EQ(busy.ranks, 2);
  EXPECT_NEAR(busy.overlap_slowdown, 0.5, 1e-9);
  EXPECT_NEAR(busy.reduce_slowdown, 1.0, 1e-9);
  PlanOptions options;
  options.bucket_copies = true;
  const StepModel model = step_model(busy.step, options, &busy);
  // What passes wait for sums is theirs, so no calls are added; nor is jitter, which they waited
  // for.
  EXPECT_NEAR(model.forward_s, 5e-3, 1e-9);
  EXPECT_NEAR(model.backward_s, 10e-3, 1e-9);
  EXPECT_EQ(model.blocking_calls, 0);
  EXPECT_EQ(model.jitter_s, 0.0);
  EXPECT_NEAR(model.overlap_slowdown, 0.5, 1e-9);
  EXPECT_NEAR(model.copy_in_s, 1e-3, 1e-9);  // 4 MB at 4 GB/s
  EXPECT_NEAR(model.copy_out_s, 1e-3, 1e-9);
  options.bucket_copies = false;
  EXPECT_EQ(step_model(busy.step, options, &busy).copy_in_s, 0.0);
  EXPECT_EQ(step_model(busy.step, options, &busy).copy_out_s, 0.0);
  options.whole_reduces = true;  // Gloo divides sums by the ranks in a pass of its own
  EXPECT_NEAR(step_model(busy.step, options, &busy).copy_out_s, 1e-3, 1e-9);
  options.overlap_slowdown = 0.25;  // given on the command line
  EXPECT_NEAR(step_model(busy.step, options, &busy).overlap_slowdown, 0.25, 1e-12);
}

TEST(PlanInputTest, RefusesBusyRanksWithoutTheirSteps) {
  for (const char* busy :
       {"[{}]", "[{\"ranks\": 2, \"step\": {\"step_ms\": 1, \"parameters\": 5}}]",
        "[{\"step\": 3, \"loaded_step\": 4}]", "[7]"}) {
    const std::string text =
        std::string(R"({"steps": [{"step_ms": 1, "parameters": 5}], "busy": )") + busy + "}";
    EXPECT_FALSE(read_plan_input(text, "file").ok()) << text;
  }
}

TEST(PlanInputTest, RefusesOtherFiles) {
  for (const char* text : {"", "[]", "{}", "[1]", "[{}]", "[{\"step_ms\": -1, \"parameters\": 5}]",
                           "[{\"step_ms\": 1}]", "{\"steps\": 3}", "[{\"step_ms\": 1e999}]"})
    EXPECT_FALSE(read_plan_input(text, "file").ok()) << text;
}

TEST(PlanInputTest, LargeModelsScaleWorseThanLargeBatches) {
  PlanOptions options;
  double small = 0.0, large = 0.0;
  for (const MeasuredStep& step : recorded_steps()) {
    const StepModel model = step_model(step, options);
    double before = 2.0;
    for (const int ranks : {1, 8, 64, 512}) {
      const auto time = [&](double bytes) {
        return all_reduce_cost(bytes, ranks, options.network);
      };
      const double efficiency = predict_step(model, ranks, time).efficiency();
      EXPECT_LE(efficiency, before) << step.name;
      EXPECT_GT(efficiency, 0.1) << step.name;
      before = efficiency;
    }
    if (step.name.find("NEST-L 2 x") == 0) small = before;
    if (step.name.find("NEST-L 64 x") == 0) large = before;
  }
  EXPECT_GT(large, small);
}

TEST(PlanTextTest, SaysWhatLimitsAndDrawsIt) {
  MeasuredStep step;
  step.name = "<small>";
  step.source = "test";
  step.step_ms = 10.0;
  step.parameters = 1e8;
  step.layers = 10;
  step.amount = 5.0;
  step.memory_gib = 2.0;
  PlanOptions options;
  options.network.inside.gb_per_s = 1.0;  // 0.8 s for 400 MB
  const Plan plan = make_plan(step, {1, 8}, options, {});
  ASSERT_EQ(plan.rows.size(), 2u);
  EXPECT_NEAR(plan.rows[0].step.step_s, 10e-3, 1e-12);
  EXPECT_EQ(plan.rows[1].limit, Limit::kBandwidth);
  EXPECT_NEAR(plan.rows[0].per_s, 500.0, 1e-9);
  EXPECT_NE(plan.to_text().find("limited by bandwidth at 8"), std::string::npos);
  EXPECT_NE(plan.to_json().find("\"limited_by\":\"bandwidth\""), std::string::npos);
  const std::string page = plan.to_html();
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_EQ(page.find("<small>"), std::string::npos);  // escaped
}

TEST(PlanTextTest, SharedProcessorsAreNamedAsWhatLimits) {
  const auto input = read_plan_input(kBusy, "file");
  ASSERT_TRUE(input.ok()) << input.status().to_string();
  PlanOptions options;
  const auto network = fit_network(input->all_reduces);
  ASSERT_TRUE(network.ok());
  options.network = *network;
  const auto plan_with = [&](const std::vector<BusyRanks>& busy) {
    return make_plan(input->steps[0], {1, 2, 3}, options, input->all_reduces, busy);
  };
  const Plan plan = plan_with(input->busy);
  EXPECT_NEAR(plan.rows[0].step.step_s, 10e-3, 1e-9);  // one rank shares with nobody
  EXPECT_EQ(plan.rows[0].step.shared_s, 0.0);
  for (const size_t row : {size_t{1}, size_t{2}}) {  // three ranks: the largest that was measured
    EXPECT_NEAR(plan.rows[row].step.compute_s, 10e-3, 1e-9);
    EXPECT_NEAR(plan.rows[row].step.shared_s, 6e-3, 1e-9);
    EXPECT_GT(plan.rows[row].step.step_s, 16e-3);
  }
  EXPECT_EQ(plan.rows[1].limit, Limit::kShared);
  EXPECT_NE(plan.to_text().find("what ranks of one machine cost each other"), std::string::npos);
  EXPECT_NE(plan.to_json().find("\"limited_by\":\"shared processors\""), std::string::npos);
  EXPECT_LT(plan_with({}).rows[1].step.step_s, plan.rows[1].step.step_s);
}

TEST(PlanTextTest, MeasuredCallsReplaceTheModel) {
  MeasuredStep step;
  step.step_ms = 10.0;
  step.parameters = 1e6;
  const std::vector<AllReduceSample> calls{{2, 1e6, 0.5}, {2, 1e7, 5.0}};
  const auto network = fit_network(calls);
  ASSERT_TRUE(network.ok());
  PlanOptions options;
  options.network = *network;
  // 4 MB in one call: 0.5 + 4.5 * 3/9 s.
  options.first_bucket_mib = options.bucket_cap_mib = 1000.0;
  const Plan plan = make_plan(step, {2}, options, calls);
  EXPECT_NEAR(plan.rows[0].step.exposed_s, 2.0, 1e-9);
}

// As ranks do it: sums of SyncBatchNorm in float64, a first bucket that is never above the others.
TEST(PlanInputTest, SumsAndBucketsAreThoseOfTheEngine) {
  MeasuredStep step;
  step.step_ms = 10.0;
  step.parameters = 16 * 65536;
  step.layers = 16;
  step.d_model = 512;
  PlanOptions options;
  EXPECT_EQ(step_model(step, options).blocking_bytes, 8.0 * 1025);
  EXPECT_EQ(step_model(step, options).buckets.front().bytes, 4.0 * 65536 * 4);
  options.bucket_cap_mib = 0.5;
  EXPECT_EQ(step_model(step, options).buckets.front().bytes, 2.0 * 65536 * 4);
}

}  // namespace
}  // namespace aerie::advisor
