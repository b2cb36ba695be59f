#include "aerie/models/nest/config/nest_tuning.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/models/nest/config/test_util.h"

namespace aerie::config::nest_tuning_test {
namespace {

using advisor::TuneKnob;
using advisor::TuneMachine;
using advisor::TuneSpace;

constexpr TuneMachine kGpu{true, true, 16};
constexpr TuneMachine kCpu{false, false, 2};

RunConfig stock(const std::vector<std::pair<std::string, Value>>& changes) {
  const Checked checked = check_stock(changes);
  EXPECT_TRUE(checked.ok()) << checked.errors();
  return checked.run;
}

const TuneKnob* knob(const TuneSpace& space, const std::string& end) {
  for (const TuneKnob& one : space.knobs)
    if (ends_with(one.key, end)) return &one;
  return nullptr;
}

std::vector<std::string> batch_changes(const RunConfig& run, int64_t size) {
  return nest_tune_space(run, kCpu).batch.changes(size);
}

// Every value that may be tried is one that the configuration takes.
TEST(NestTuningTest, OffersOnlyWhatTheSchemaTakes) {
  const RunConfig run = stock({{"model.train_ds.num_workers", Value(0)},
                               {"model.train_ds.prefetch_factor", Value()},
                               {"model.train_ds.persistent_workers", Value(false)}});
  const TuneSpace space = nest_tune_space(run, kGpu);
  for (const TuneKnob& one : space.knobs) {
    ASSERT_LT(one.start, one.values.size()) << one.key;
    for (const std::string& value : one.values) {
      if (value == "null") continue;
      std::vector<std::pair<std::string, Value>> changes;
      if (one.key != "model.train_ds.num_workers")
        changes.emplace_back("model.train_ds.num_workers", Value(4));
      const bool whole = std::all_of(value.begin(), value.end(), ::isdigit);
      changes.emplace_back(one.key, value == "true"    ? Value(true)
                                    : value == "false" ? Value(false)
                                    : whole            ? Value(int64_t{std::stoll(value)})
                                                       : Value(value));
      if (value == "0") {
        changes.emplace_back("model.train_ds.prefetch_factor", Value());
        changes.emplace_back("model.train_ds.persistent_workers", Value(false));
      }
      const Checked checked = check_stock(changes);
      EXPECT_TRUE(checked.ok()) << one.key << "=" << value << ": " << checked.errors();
    }
  }
  ASSERT_NE(knob(space, "num_workers"), nullptr);
  EXPECT_EQ(knob(space, "num_workers")->values,
            (std::vector<std::string>{"0", "2", "4", "8", "16"}));
  ASSERT_NE(knob(space, "mix_on"), nullptr);
  ASSERT_NE(knob(space, "precision"), nullptr);
  ASSERT_NE(knob(space, "activation_checkpointing"), nullptr);
  EXPECT_EQ(space.rate.key, "model.optim.lr");
  // Without a GPU nothing that needs one.
  const TuneSpace host = nest_tune_space(run, kCpu);
  EXPECT_EQ(knob(host, "precision"), nullptr);
  EXPECT_EQ(knob(host, "mix_on"), nullptr);
  EXPECT_EQ(knob(host, "num_workers")->values, (std::vector<std::string>{"0", "1", "2"}));
}

TEST(NestTuningTest, SizesBatchesInTheKeysThatDecide) {
  const std::string set = "model.train_ds.";
  const RunConfig plain = stock({{set + "batch_size", Value(8)}});
  EXPECT_EQ(batch_changes(plain, 24), std::vector<std::string>{set + "batch_size=24"});
  EXPECT_EQ(nest_tune_space(plain, kCpu).batch.start, 8);

  const RunConfig buckets = stock({{set + "batch_size", Value(8)},
                                   {set + "use_bucketing", Value(true)},
                                   {set + "max_duration", Value(20.0)}});
  EXPECT_EQ(nest_tune_space(buckets, kCpu).batch.start, 160);
  EXPECT_EQ(batch_changes(buckets, 320),
            (std::vector<std::string>{set + "batch_duration=320", set + "batch_size=null"}));

  List bins, sizes;
  for (const double bin : {5.0, 10.0}) bins.emplace_back(bin);
  for (const int64_t size : {16, 8, 4}) sizes.emplace_back(size);
  const RunConfig listed = stock({{set + "batch_size", Value()},
                                  {set + "use_bucketing", Value(true)},
                                  {set + "bucket_duration_bins", Value(bins)},
                                  {set + "bucket_batch_size", Value(sizes)}});
  EXPECT_EQ(nest_tune_space(listed, kCpu).batch.start, 80);
  EXPECT_EQ(batch_changes(listed, 160),
            std::vector<std::string>{set + "bucket_batch_size=[32,16,8]"});
  const advisor::TuneBatch by_bucket = nest_tune_space(listed, kGpu).batch;
  EXPECT_EQ(by_bucket.bucket_sizes(160), (std::vector<int64_t>{32, 16, 8}));
  EXPECT_EQ(by_bucket.bucket_changes({48, 20, 8}),
            std::vector<std::string>{set + "bucket_batch_size=[48,20,8]"});

  const RunConfig seconds =
      stock({{set + "batch_size", Value()}, {set + "batch_duration", Value(60.0)}});
  EXPECT_EQ(batch_changes(seconds, 90), std::vector<std::string>{set + "batch_duration=90"});
}

TEST(NestTuningTest, AutoIsForTrainingAlone) {
  const RunConfig run = stock({{"model.train_ds.batch_size", Value("auto")}});
  EXPECT_TRUE(run.model.train_ds.auto_batch_size);
  EXPECT_FALSE(run.model.train_ds.batch_size.has_value());
  EXPECT_TRUE(nest_tune_space(run, kCpu).batch.automatic);
  EXPECT_NE(check_stock({{"model.validation_ds.batch_size", Value("auto")}})
                .errors()
                .find("train_ds alone"),
            std::string::npos);
  EXPECT_FALSE(check_stock({{"model.train_ds.batch_size", Value("automatic")}}).ok());
  EXPECT_NE(check_stock({{"model.train_ds.batch_size", Value("auto")},
                         {"model.train_ds.batch_duration", Value(60.0)}})
                .errors()
                .find("another key says"),
            std::string::npos);
}

}  // namespace
}  // namespace aerie::config::nest_tuning_test
