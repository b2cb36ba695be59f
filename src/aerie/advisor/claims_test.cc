// The rows of `aerie bench claims`, and what is made of measured figures.
#include "aerie/advisor/claims.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"

namespace aerie::advisor::claims_test {
namespace {

ClaimRow row_called(const std::string& name, const ClaimProfile& profile = {"nest", true}) {
  for (ClaimRow& row : claim_rows(profile))
    if (row.name == name) return row;
  ADD_FAILURE() << "no row " << name;
  return {};
}

ClaimFigures figures(const std::string& label, std::vector<double> input, double wait = 0.0) {
  ClaimFigures out;
  out.label = label;
  out.input_per_s = std::move(input);
  out.steps_per_s = out.mean_input() / 8.0;
  out.data_wait_share = wait;
  out.memory_gib = 1.0;
  return out;
}

ClaimResult judged(const ClaimRow& row, std::vector<ClaimFigures> settings, double others = 0.0) {
  ClaimResult out;
  out.others_share = others;
  out.model = "nest";
  out.name = row.name;
  out.settings = std::move(settings);
  judge_claim(row, out);
  return out;
}

TEST(ClaimRowsTest, HaveEveryRowOfTheGuides) {
  for (const bool small : {false, true}) {
    for (const auto& [model, names] :
         {std::pair{"nest", std::vector<std::string>{"batch_2_8",
                                                     "batch_8_16",
                                                     "batch_16_32",
                                                     "workers",
                                                     "persistent_workers",
                                                     "prefetch",
                                                     "pin_memory",
                                                     "tarred",
                                                     "packed",
                                                     "max_duration",
                                                     "fp16",
                                                     "bf16",
                                                     "accumulation",
                                                     "log_every_n_steps",
                                                     "val_check_interval",
                                                     "captured_step",
                                                     "gradient_as_bucket_view",
                                                     "static_graph",
                                                     "bucket_cap_mb",
                                                     "d_model",
                                                     "n_layers",
                                                     "all"}},
          std::pair{"bev", std::vector<std::string>{"batch_4_6", "batch_4_8", "fp16", "workers",
                                                    "prefetch", "compile", "accumulation",
                                                    "evaluation_interval", "loss_scale", "all"}}}) {
      std::vector<std::string> got;
      for (const ClaimRow& row : claim_rows({model, small})) {
        got.push_back(row.name);
        EXPECT_GE(row.settings.size(), 2u) << row.name;
        EXPECT_FALSE(row.claim.empty()) << row.name;
        EXPECT_EQ(row.promise == Promise::kSteps || row.promise == Promise::kInput, row.high > 0.0)
            << row.name;
        std::set<std::string> labels;
        for (const ClaimSetting& setting : row.settings) labels.insert(setting.label);
        EXPECT_EQ(labels.size(), row.settings.size()) << row.name;
      }
      EXPECT_EQ(got, names);
    }
  }
}

TEST(ClaimJudgeTest, ComparesRoundByRound) {
  // The machine was twice as slow in the second round; both rounds say 1.5.
  const ClaimResult out =
      judged(row_called("batch_2_8"), {figures("2", {100.0, 50.0}), figures("8", {150.0, 75.0})});
  ASSERT_EQ(out.speedups.size(), 1u);
  EXPECT_NEAR(out.last_speedup(), 1.5, 1e-12);
  EXPECT_EQ(out.verdict, ClaimVerdict::kHolds);
  EXPECT_NEAR(out.noise, 0.03, 1e-12);
  EXPECT_EQ(out.measured, "1.50x (±3 %)");
}

TEST(ClaimJudgeTest, NoiseIsNoGain) {
  EXPECT_EQ(
      judged(row_called("batch_2_8"), {figures("2", {100.0, 100.0}), figures("8", {102.0, 102.0})})
          .verdict,
      ClaimVerdict::kFails);
  // 1.2 and 0.9: anything between.
  const ClaimResult wild =
      judged(row_called("batch_2_8"), {figures("2", {100.0, 100.0}), figures("8", {120.0, 90.0})});
  EXPECT_GT(wild.noise, 0.1);
  EXPECT_EQ(wild.verdict, ClaimVerdict::kUnclear);
  // One round says less than two.
  EXPECT_EQ(judged(row_called("batch_2_8"), {figures("2", {100.0}), figures("8", {105.0})}).verdict,
            ClaimVerdict::kFails);
}

TEST(ClaimJudgeTest, ABusyMachineProvesNothing) {
  // Three times as fast, or alone on CPUs that others had most of the time.
  const auto row = row_called("persistent_workers");
  const ClaimResult busy = judged(row, {figures("false", {100.0}), figures("true", {310.0})}, 0.75);
  EXPECT_NEAR(busy.noise, 3.0, 1e-9);
  EXPECT_EQ(busy.verdict, ClaimVerdict::kUnclear);
  EXPECT_EQ(judged(row, {figures("false", {100.0}), figures("true", {310.0})}, 0.05).verdict,
            ClaimVerdict::kHolds);
  // A GPU is not shared with them.
  std::vector<ClaimFigures> gpu{figures("false", {100.0}), figures("true", {310.0})};
  for (ClaimFigures& one : gpu) one.gpu_util = 99.0;
  EXPECT_EQ(judged(row, gpu, 0.75).verdict, ClaimVerdict::kHolds);
  // Nor is one whose driver does not count how busy it is.
  for (ClaimFigures& one : gpu) {
    one.gpu_util = -1.0;
    one.engine = "fast engine, cuda:0, precision 32";
  }
  EXPECT_EQ(judged(row, gpu, 0.75).verdict, ClaimVerdict::kHolds);
}

TEST(ClaimJudgeTest, RowsOfSeveralSettingsHoldInPart) {
  const ClaimResult out =
      judged(row_called("workers"), {figures("0", {100.0}, 0.5), figures("4", {200.0}),
                                     figures("8", {201.0}), figures("16", {190.0})});
  EXPECT_EQ(out.verdict, ClaimVerdict::kPartly);
  EXPECT_EQ(out.measured, "4: 2.00x, 8: 2.01x, 16: 1.90x (±6 %)");
  // 10 ms, half of it waiting, became 5.26 without waiting.
  EXPECT_NE(
      out.why.find("5.26 ms instead of 10: computing 5.26 (was 5), waiting for data 0 (was 5)"),
      std::string::npos)
      << out.why;
}

TEST(ClaimJudgeTest, PromisedFiguresAreHeldAgainst) {
  const ClaimRow all = row_called("all");
  EXPECT_EQ(judged(all, {figures("a", {100.0}), figures("b", {450.0})}).verdict,
            ClaimVerdict::kHolds);
  EXPECT_EQ(judged(all, {figures("a", {100.0}), figures("b", {150.0})}).verdict,
            ClaimVerdict::kPartly);
  EXPECT_EQ(judged(all, {figures("a", {100.0}), figures("b", {90.0})}).verdict,
            ClaimVerdict::kFails);
  // Half the iterations of twice the samples.
  const ClaimRow twice = row_called("batch_4_8", {"bev", true});
  ClaimFigures four = figures("4", {30.0}), eight = figures("8", {30.0});
  four.steps_per_s = 7.5;
  eight.steps_per_s = 3.75;
  const ClaimResult out = judged(twice, {four, eight});
  EXPECT_EQ(out.verdict, ClaimVerdict::kHolds);
  EXPECT_EQ(out.measured, "0.50x iter/s, 1.00x samples/s (±6 %)");
  eight.steps_per_s = 6.0;
  EXPECT_EQ(judged(twice, {four, eight}).verdict, ClaimVerdict::kFails);
}

TEST(ClaimJudgeTest, AccumulationIsAboutMemory) {
  const ClaimRow row = row_called("accumulation");
  ClaimFigures one = figures("1", {100.0}), four = figures("4", {98.0});
  EXPECT_EQ(judged(row, {one, four}).verdict, ClaimVerdict::kHolds);
  four.memory_gib = 3.0;
  EXPECT_EQ(judged(row, {one, four}).verdict, ClaimVerdict::kFails);
  // A GPU whose driver does not tell.
  one.memory_gib = four.memory_gib = 0.0;
  EXPECT_EQ(judged(row, {one, four}).verdict, ClaimVerdict::kUnclear);
}

TEST(ClaimJudgeTest, WhatLacksIsSaidAndNotJudged) {
  ClaimResult out;
  out.needs = "needs 2 GPUs";
  out.where = "2 CPU ranks over Gloo";
  out.settings = {figures("false", {100.0}), figures("true", {120.0})};
  judge_claim(row_called("static_graph"), out);
  EXPECT_EQ(out.verdict, ClaimVerdict::kNotMeasured);
  EXPECT_EQ(out.measured, "needs 2 GPUs; 1.20x (±6 %) on 2 CPU ranks over Gloo");
  ClaimResult none;
  none.needs = "needs a GPU";
  judge_claim(row_called("fp16"), none);
  EXPECT_EQ(none.measured, "needs a GPU");
  EXPECT_FALSE(none.has_figures());
  ClaimResult failed;
  failed.failed = "out of memory";
  judge_claim(row_called("batch_2_8"), failed);
  EXPECT_EQ(failed.measured, "not measured");
  EXPECT_EQ(failed.why, "out of memory");
}

TEST(ClaimFiguresTest, TakeTrialsOneByOne) {
  ClaimFigures out;
  RunFacts facts;
  facts.throughput = 100.0;
  facts.span_s = 2.0;
  facts.span_steps = 20;
  facts.steps_share = 0.5;
  facts.data_wait_share = 0.4;
  facts.gpu_util_percent = 80.0;
  out.take(facts);
  facts.throughput = 200.0;
  facts.span_steps = 40;
  facts.gpu_util_percent = 90.0;
  out.take(facts);
  EXPECT_DOUBLE_EQ(out.mean_input(), 150.0);
  EXPECT_DOUBLE_EQ(out.steps_per_s, 15.0);
  EXPECT_DOUBLE_EQ(out.data_wait_share, 0.2);
  EXPECT_DOUBLE_EQ(out.gpu_util, 85.0);
}

ClaimTable small_table() {
  ClaimTable table;
  table.cpu = "a CPU";
  table.cpus = 2;
  table.commit = "abc";
  table.command = "aerie bench claims";
  ClaimResult one =
      judged(row_called("workers"), {figures("0", {100.0}, 0.5), figures("4", {200.0}),
                                     figures("8", {210.0}), figures("16", {190.0})});
  one.key = "k1";
  table.put(one);
  ClaimResult two;
  two.model = "nest";
  two.name = "fp16";
  two.needs = "needs a GPU";
  judge_claim(row_called("fp16"), two);
  two.key = "k2";
  table.put(two);
  return table;
}

TEST(ClaimTableTest, IsReadBackAsItWasWritten) {
  const ClaimTable table = small_table();
  const auto again = ClaimTable::from_json(table.to_json());
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->to_json(), table.to_json());
  EXPECT_EQ(again->to_text(120), table.to_text(120));
  EXPECT_NE(again->find("nest", "workers", "k1"), nullptr);
  EXPECT_EQ(again->find("nest", "workers", "k2"), nullptr);  // of another machine or commit
  EXPECT_EQ(again->find("bev", "workers", "k1"), nullptr);
}

TEST(ClaimTableTest, RefusesWhatItDidNotWrite) {
  for (const char* text : {"", "[]", "{}", R"({"format": "aerie-claims-1"})",
                           R"({"format": "aerie-claims-1", "rows": [1]})",
                           R"({"format": "aerie-claims-2", "rows": []})"})
    EXPECT_EQ(ClaimTable::from_json(text).status().code(), StatusCode::kDataError) << text;
  const auto odd = ClaimTable::from_json(
      R"({"format": "aerie-claims-1", "cpus": -1e99, "rows": [{"name": "x", "settings": [3],
          "speedups": ["a"], "claim": 1}]})");
  ASSERT_TRUE(odd.ok());
  EXPECT_FALSE(odd->rows[0].has_figures());
  EXPECT_FALSE(odd->to_html().empty());
}

TEST(ClaimTableTest, PutReplacesTheSameRow) {
  ClaimTable table = small_table();
  ClaimResult again = table.rows[1];
  again.key = "k3";
  table.put(again);
  EXPECT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[1].key, "k3");
}

TEST(ClaimTableTest, LinesKeepTheirWidth) {
  const std::string text = small_table().to_text(120);
  for (const std::string& line : split(text, '\n')) {
    const auto shown = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
    });
    EXPECT_LE(shown, 120) << line;
  }
  EXPECT_NE(text.find("needs a GPU"), std::string::npos);
  EXPECT_NE(
      text.find(
          "0 claims hold, 1 holds in part, 0 do not, 0 are unclear, 1 could not be judged here"),
      std::string::npos)
      << text;
}

TEST(ClaimTableTest, PageIsSelfContained) {
  ClaimTable table = small_table();
  table.rows[0].why = "<script>alert(1)</script>";
  const std::string page = table.to_html();
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("://"), std::string::npos);
  EXPECT_NE(table.to_markdown().find("| num_workers 0 → 4 → 8 → 16 | "), std::string::npos);
}

TEST(ClaimKeyTest, HangsOffEverythingThatIsMeasured) {
  const ClaimProfile profile{"nest", true};
  const ClaimRow row = row_called("batch_2_8");
  const std::string key = claim_key("machine", profile, row, 60.0);
  EXPECT_EQ(claim_key("machine", profile, row, 60.0), key);
  EXPECT_NE(claim_key("other", profile, row, 60.0), key);
  EXPECT_NE(claim_key("machine", {"nest", false}, row, 60.0), key);
  EXPECT_NE(claim_key("machine", profile, row, 30.0), key);
  ClaimRow changed = row;
  changed.settings[1].overrides[0] += "0";
  EXPECT_NE(claim_key("machine", profile, changed, 60.0), key);
}

}  // namespace
}  // namespace aerie::advisor::claims_test
