// The loop on several ranks: decisions that one rank has reason for are taken by all.
#include <atomic>
#include <cmath>

#include <gtest/gtest.h>

#include "aerie/train/testing/local_ranks.h"
#include "aerie/train/testing/trainer_fakes.h"

namespace aerie::train {
namespace {

double number(const metrics::Record& record, const char* name) {
  double out = std::nan("");
  EXPECT_TRUE(record.number(name, &out)) << name;
  return out;
}

// A fake run for each rank, prepared by `prepare` and left for the test to look at.
class FakeRanks {
 public:
  FakeRanks(int size, int64_t batches, int64_t val_batches = 0) {
    for (int rank = 0; rank < size; ++rank)
      runs.push_back(std::make_unique<FakeRun>(batches, val_batches));
  }
  void each(const std::function<void(FakeRun&, int)>& prepare) {
    for (size_t rank = 0; rank < runs.size(); ++rank) prepare(*runs[rank], static_cast<int>(rank));
  }
  std::vector<Status> go(TrainState start = {}) {
    summaries.resize(runs.size());
    return run_local_ranks(static_cast<int>(runs.size()), [&](LocalRank& group) -> Status {
      const auto rank = static_cast<size_t>(group.rank());
      runs[rank]->adjust = [&](TrainerParts& parts) {
        parts.ranks = &group;
        if (rank == 0) return;
        parts.metrics = nullptr;
        parts.checkpointer = nullptr;
        parts.joins_saves = true;
      };
      AERIE_ASSIGN_OR_RETURN(summaries[rank], runs[rank]->go(start));
      return ok_status();
    });
  }
  void expect_ok(const std::vector<Status>& statuses) {
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
  }

  std::vector<std::unique_ptr<FakeRun>> runs;
  std::vector<TrainSummary> summaries;
};

TEST(TrainerRanksTest, ASignalToOneRankStopsAllAtTheSameStep) {
  FakeRanks ranks(3, 10);
  ranks.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 50;
    if (rank == 2) run.signal_after = 7;
  });
  ranks.expect_ok(ranks.go());
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.summaries[rank].reason, StopReason::kSignal);
    EXPECT_EQ(ranks.summaries[rank].state.step, 8);  // in which they voted
  }
  // One wrote, the others took part.
  ASSERT_EQ(ranks.runs[0]->checkpointer.saves.size(), 1u);
  EXPECT_EQ(ranks.runs[0]->checkpointer.saves[0].reason, SaveReason::kSignal);
  EXPECT_TRUE(ranks.runs[1]->checkpointer.saves.empty());
  EXPECT_EQ(ranks.runs[1]->engine.joined, 1);
  EXPECT_EQ(ranks.runs[2]->engine.joined, 1);
}

TEST(TrainerRanksTest, AValidationStopsTogether) {
  FakeRanks ranks(2, 10, 6);
  ranks.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 20;
    if (rank == 1) run.signal_after_evaluated = 3;
  });
  ranks.expect_ok(ranks.go());
  for (const auto& run : ranks.runs) EXPECT_EQ(run->engine.evaluated, 3);
  for (const TrainSummary& summary : ranks.summaries) EXPECT_TRUE(summary.state.validation_pending);
}

TEST(TrainerRanksTest, TooLittleMemoryOnOneRankCutsTheBatchesOfAll) {
  FakeRanks ranks(2, 4);
  ranks.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 3;
    if (rank == 1) run.engine.needed_split = 4;
  });
  ranks.expect_ok(ranks.go());
  for (const auto& run : ranks.runs) {
    EXPECT_EQ(run->engine.tried_splits, (std::vector<int64_t>{1, 2, 4, 4, 4}));
    EXPECT_EQ(run->engine.splits, (std::vector<int64_t>{4, 4, 4}));
  }
  // Not even one sample at a time: all end, each with a message.
  FakeRanks hopeless(2, 4);
  hopeless.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 3;
    if (rank == 0) run.engine.needed_split = 100;
  });
  for (const Status& status : hopeless.go()) EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
}

TEST(TrainerRanksTest, ACheckpointThatCouldNotBeWrittenIsTriedAgainByAll) {
  FakeRanks ranks(2, 100);
  ranks.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 12;
    run.config.exp_manager.checkpoint_callback_params.every_n_train_steps = 2;
    run.seconds_per_step = 20.0;
    if (rank == 0) run.checkpointer.failures = 1;
  });
  ranks.expect_ok(ranks.go());
  const auto& saves = ranks.runs[0]->checkpointer.saves;
  ASSERT_GE(saves.size(), 6u);
  EXPECT_EQ(ranks.runs[1]->engine.joined, static_cast<int64_t>(saves.size()));
  EXPECT_EQ(saves.back().state.step, 12);
}

TEST(TrainerRanksTest, ValidationsAreMergedAndEarlyStoppingFollowsAllOfThem) {
  FakeRanks ranks(2, 4, 3);
  ranks.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 4;
    run.engine.eval_loss = rank == 0 ? 5.0 : 9.0;
    run.engine.eval_sums = rank == 0 ? std::vector<double>{1.0, 2.0} : std::vector<double>{10.0};
    // The last batch of a rank without samples has no loss.
    if (rank == 1) run.engine.empty_eval[2] = true;
    run.task.eval_metrics = [](const EvalAccumulator& all) {
      return std::vector<std::pair<std::string, double>>{
          {"first", all.sums()[0]}, {"counted", static_cast<double>(all.counted())}};
    };
  });
  ranks.expect_ok(ranks.go());
  const auto records = ranks.runs[0]->records(metrics::RecordKind::kVal);
  ASSERT_EQ(records.size(), 1u);
  // Batches 5, 6, 7 of rank 0 and 9, 10 of rank 1.
  EXPECT_EQ(number(records[0], "val_loss"), 37.0 / 5.0);
  EXPECT_EQ(number(records[0], "val_loss_rank0"), 6.0);
  EXPECT_EQ(number(records[0], "first"), 23.0);
  EXPECT_EQ(number(records[0], "counted"), 5.0);
  for (const TrainSummary& summary : ranks.summaries) EXPECT_EQ(summary.last_monitor, 37.0 / 5.0);
}

TEST(TrainerRanksTest, AmountsAreThoseOfAllRanksAndVotesAreFew) {
  FakeRanks ranks(4, 6);
  ranks.each([](FakeRun& run, int) {
    run.config.trainer.max_steps = 6;
    run.seconds_per_step = 1.0;
  });
  ranks.expect_ok(ranks.go());
  EXPECT_EQ(ranks.summaries[0].amount, 6 * 2.0 * 4);
  const auto train = ranks.runs[0]->records(metrics::RecordKind::kTrain);
  ASSERT_EQ(train.size(), 6u);
  EXPECT_NEAR(number(train[3], "samples_per_s") * number(train[3], "step_ms"), 8000.0, 1e-6);
  // Who is slowest stands in the metrics of rank 0.
  int64_t told = 0;
  for (const auto& record : ranks.runs[0]->records(metrics::RecordKind::kEvent))
    told += record.text("event") == "ranks" ? 1 : 0;
  EXPECT_EQ(told, 6);
}

TEST(TrainerRanksTest, ARankThatFailsEndsTheOthersWithItsName) {
  FakeRanks ranks(3, 4);
  ranks.each([](FakeRun& run, int rank) {
    run.config.trainer.max_steps = 40;
    run.config.aerie.on_nan = config::OnNan::kStop;
    if (rank == 1) run.engine.bad_steps[2] = true;
  });
  const std::vector<Status> statuses = ranks.go();
  EXPECT_NE(statuses[1].to_string().find("not finite"), std::string::npos);
  for (const size_t other : {0, 2}) {
    EXPECT_FALSE(statuses[other].ok());
    EXPECT_NE(statuses[other].to_string().find("rank 1"), std::string::npos)
        << statuses[other].to_string();
  }
}

TEST(TrainerRanksTest, RanksFallBackToAnotherPrecisionTogether) {
  FakeRanks ranks(2, 40);
  ranks.each([](FakeRun& run, int) {
    run.config.trainer.max_steps = 20;
    run.config.aerie.on_nan = config::OnNan::kFallback;
    run.config.aerie.max_nan_in_a_row = 3;
    run.engine.always_bad = true;
  });
  ranks.expect_ok(ranks.go());
  for (size_t rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ranks.summaries[rank].state.precision, "bf16-mixed");
  EXPECT_EQ(ranks.runs[0]->engine.weight, ranks.runs[1]->engine.weight);
}

TEST(RankTalkTest, TheFirstRanksAnswerAndAnyRanksErrorReachAll) {
  for (const Status& status : run_local_ranks(3, [](LocalRank& group) -> Status {
         AERIE_ASSIGN_OR_RETURN(const std::string text,
                                from_first_rank(&group, [&]() -> Result<std::string> {
                                  return str_cat("from ", group.rank());
                                }));
         EXPECT_EQ(text, "from 0");
         const auto refused = from_first_rank(&group, []() -> Result<std::string> {
           return data_error("no manifest").with_hint("make one").with_context("train_ds");
         });
         EXPECT_EQ(refused.status().code(), StatusCode::kDataError);
         EXPECT_EQ(refused.status().to_string(), "train_ds: no manifest (make one)");
         const Status own = group.rank() == 1 ? io_error("disk") : ok_status();
         const Status all = all_succeeded(&group, own);
         EXPECT_EQ(all.code(), StatusCode::kIoError);
         EXPECT_EQ(all.to_string(), group.rank() == 1 ? "disk" : "rank 1: disk");
         return all_succeeded(&group, ok_status());
       }))
    EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(RankTalkTest, OneRankOfEachMachineGoesFirst) {
  std::atomic<int> done{0};
  for (const Status& status : run_local_ranks(3, [&](LocalRank& group) {
         return first_of_each_node_first(&group, [&]() -> Status {
           EXPECT_EQ(done == 0, group.rank() == 0);
           ++done;
           return ok_status();
         });
       }))
    EXPECT_TRUE(status.ok());
  EXPECT_EQ(done, 3);
}

TEST(RankTalkTest, TheStragglerIsNamedWithItsReason) {
  const auto times = [](double elapsed, double data, double waits) {
    return RankTimes{elapsed, data, waits, 10.0, -1.0};
  };
  RankReport report =
      judge_ranks({times(10, 0.1, 5), times(10, 5.2, 0.1), times(10, 0.1, 5), times(10, 0.1, 5)});
  EXPECT_TRUE(report.straggles);
  EXPECT_EQ(report.slowest, 1);
  EXPECT_STREQ(report.why, "data");
  report = judge_ranks({times(10, 0.1, 0.1), times(10, 0.1, 4)});
  EXPECT_TRUE(report.straggles);
  EXPECT_EQ(report.slowest, 0);
  EXPECT_STREQ(report.why, "compute");
  EXPECT_LT(report.gpu_util_mean, 0.0);
  report = judge_ranks({times(10, 0.1, 0.1), times(10, 0.1, 0.2)});
  EXPECT_FALSE(report.straggles);
  report = judge_ranks({{10, 0, 0, 1, 50.0}, {10, 0, 0, 1, 90.0}});
  EXPECT_EQ(report.gpu_util_min, 50.0);
  EXPECT_EQ(report.gpu_util_mean, 70.0);
}

TEST(RankTalkTest, OneSlowStepIsNoStraggler) {
  RankWindow window;
  const auto step = [&](double slow_s) {
    return window.add({{2.0, 0.0, 2.0 - slow_s, 1.0, 60.0}, {2.0, 0.0, 0.5, 1.0, 100.0}});
  };
  EXPECT_FALSE(step(2.0));                          // the first is not looked at
  for (const double slow_s : {1.5, 2.0, 1.3, 1.5})  // rank 1 always takes 1.5 s
    EXPECT_FALSE(step(slow_s));
  const auto report = step(1.4);
  ASSERT_TRUE(report.has_value());
  EXPECT_FALSE(report->straggles);
  EXPECT_DOUBLE_EQ(report->gpu_util_min, 60.0);
  EXPECT_DOUBLE_EQ(report->gpu_util_mean, 80.0);
  // The next window begins with nothing.
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(step(2.0));
  const auto again = step(2.0);
  ASSERT_TRUE(again.has_value() && again->straggles);
  EXPECT_EQ(again->slowest, 0);
}

}  // namespace
}  // namespace aerie::train
