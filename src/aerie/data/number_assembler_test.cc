// The data engine's core with a family of its own: lists of numbers that are padded to the longest
// of their batch, some of which cannot be read. No files, no audio.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/philox.h"
#include "aerie/base/retry.h"
#include "aerie/base/strings.h"
#include "aerie/data/loader.h"

namespace aerie::data {
namespace {

// Sample i is i, i + 1, ... : 1 to 9 numbers.
class NumberSet final : public Dataset {
 public:
  explicit NumberSet(uint32_t size, bool with_lengths = true) {
    auto set = std::make_shared<SampleSet>();
    set->groups.push_back({0, size, {}});
    for (uint32_t i = 0; with_lengths && i < size; ++i)
      set->lengths.push_back(static_cast<double>(length(i)));
    set_ = std::move(set);
  }
  static int64_t length(uint64_t i) { return 1 + static_cast<int64_t>(i * 7 % 9); }
  const std::shared_ptr<const SampleSet>& samples() const override { return set_; }
  uint64_t fingerprint() const override { return 1000 + size(); }
  std::string describe(uint64_t i) const override { return str_cat("number ", i); }
  uint32_t sample_id(uint64_t i) const override { return static_cast<uint32_t>(10 * i); }

 private:
  std::shared_ptr<const SampleSet> set_;
};

struct NumberRules {
  std::shared_ptr<const NumberSet> dataset;
  uint64_t seed = 7;
  std::set<uint32_t> bad;        // cannot be read
  bool fail = false;             // and must not be met
  bool machine_trouble = false;  // it is the machine
  int64_t longer = 0;            // rows take more than measure() thinks
};

struct NumberThread final : AssemblerThread {
  std::vector<int64_t> values;
};

class NumberSlot final : public BatchSlot {
 public:
  NumberSlot(const NumberRules& rules, const BatchMemory& memory)
      : rules_(rules), memory_(memory) {}
  ~NumberSlot() override { memory_.give_back(block_); }

  Batch& batch() override { return batch_; }

  static uint64_t bytes(uint64_t rows, int64_t width) {
    return rows * (static_cast<uint64_t>(width) + 1) * sizeof(int64_t);
  }

  Status begin() override {
    width_ = 0;
    for (const PlannedSample& planned : batch_.samples())
      width_ = std::max(width_, NumberSet::length(planned.sample) + rules_.longer);
    errors_.assign(batch_.samples().size(), ok_status());
    bad_.clear();
    return memory_.take(block_,
                        std::max(memory_.usual_bytes, bytes(batch_.samples().size(), width_)));
  }

  ItemFigures read_item(size_t i, AssemblerThread& any) override {
    auto& thread = static_cast<NumberThread&>(any);
    const PlannedSample planned = batch_.samples()[i];
    if (rules_.bad.contains(planned.sample)) {
      errors_[i] =
          rules_.machine_trouble ? unavailable("the disk is gone") : data_error("is no number");
      return {};
    }
    RandomStream random(rules_.seed, Purpose::kTest, batch_.epoch(), planned.position);
    thread.values.assign(static_cast<size_t>(NumberSet::length(planned.sample)), 0);
    for (size_t k = 0; k < thread.values.size(); ++k)
      thread.values[k] = static_cast<int64_t>(1000 * (planned.sample + k) + random.below(1000));
    int64_t* to = row(i);
    std::fill(to, to + width_, 0);
    std::copy(thread.values.begin(), thread.values.end(), to);
    lengths()[i] = static_cast<int64_t>(thread.values.size());
    return {static_cast<int64_t>(8 * thread.values.size()),
            static_cast<double>(thread.values.size()), 0};
  }

  Status finish(AssemblerThread&) override {
    std::vector<PlannedSample>& samples = batch_.mutable_samples();
    size_t kept = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      if (!errors_[i].ok()) {
        if (rules_.fail || is_passing(errors_[i]))
          return errors_[i].with_context(rules_.dataset->describe(samples[i].sample));
        bad_.push_back({samples[i], errors_[i]});
        continue;
      }
      if (kept != i) {
        std::memmove(row(kept), row(i), static_cast<size_t>(width_) * sizeof(int64_t));
        lengths()[kept] = lengths()[i];
        samples[kept] = samples[i];
      }
      ++kept;
    }
    samples.resize(kept);
    batch_.mutable_sample_ids().clear();
    for (const PlannedSample& sample : samples)
      batch_.mutable_sample_ids().push_back(rules_.dataset->sample_id(sample.sample));
    const auto rows = static_cast<int64_t>(kept);
    batch_.mutable_arrays() = {{"numbers", Dtype::kI64, {rows, width_, 0, 0}, 2, row(0)},
                               {"lengths", Dtype::kI64, {rows, 0, 0, 0}, 1, lengths()}};
    return ok_status();
  }

  std::span<const BadItem> bad_items() const override { return bad_; }

 private:
  int64_t* lengths() { return static_cast<int64_t*>(block_.data()); }
  int64_t* row(size_t i) { return lengths() + errors_.size() + i * static_cast<size_t>(width_); }

  const NumberRules& rules_;
  const BatchMemory& memory_;
  ArrayBatch batch_;
  HostBlock block_;
  int64_t width_ = 0;
  std::vector<Status> errors_;
  std::vector<BadItem> bad_;
};

class NumberAssembler final : public BatchAssembler {
 public:
  explicit NumberAssembler(NumberRules rules) : rules_(std::move(rules)) {}
  Result<BatchSizes> measure(const Sampler& sampler, const EpochPlan&) override {
    BatchSizes out;
    out.usual_bytes = NumberSlot::bytes(sampler.max_batch_size(), 9);
    out.most_bytes = NumberSlot::bytes(sampler.max_batch_size(), 9);
    out.worker_bytes = 1024;
    return out;
  }
  std::unique_ptr<BatchSlot> make_slot() override {
    return std::make_unique<NumberSlot>(rules_, memory());
  }
  std::unique_ptr<AssemblerThread> make_thread() override {
    return std::make_unique<NumberThread>();
  }
  bool wants_epoch_end() const override { return true; }
  void epoch_end() override { ++epochs; }

  static inline std::atomic<int> epochs{0};

 private:
  NumberRules rules_;
};

struct NumberRun {
  uint32_t size = 50;
  bool with_lengths = true;
  NumberRules rules;
  SamplingConfig sampling;
  LoaderConfig config;
  LoaderOptions options;

  NumberRun() {
    sampling.batch_size = 8;
    sampling.shuffle = true;
    options.seed = 7;
    options.quiet = true;
  }
  Result<std::unique_ptr<Loader>> try_open() {
    rules.dataset = std::make_shared<NumberSet>(size, with_lengths);
    return Loader::make(rules.dataset, std::make_unique<NumberAssembler>(rules), sampling, config,
                        options);
  }
  std::unique_ptr<Loader> open() {
    auto loader = try_open();
    EXPECT_TRUE(loader.ok()) << loader.status().to_string();
    return std::move(loader).value();
  }
};

// The batches of one epoch and a half, as text.
std::vector<std::string> texts(Loader& loader, size_t count) {
  std::vector<std::string> out;
  while (out.size() < count) {
    const Result<const Batch*> next = loader.next();
    EXPECT_TRUE(next.ok()) << next.status().to_string();
    if (!next.ok()) return out;
    const Batch* batch = *next;
    if (batch == nullptr) {
      EXPECT_TRUE(loader.start_epoch(int64_t{loader.cursor().epoch} + 1).ok());
      continue;
    }
    std::string text = str_cat(batch->epoch(), ".", batch->step(), ".", batch->lane(), ":");
    const HostArray* numbers = batch->find("numbers");
    for (int64_t i = 0; i < numbers->size(); ++i) text += str_cat(" ", numbers->as<int64_t>()[i]);
    out.push_back(std::move(text));
    loader.release(batch);
  }
  return out;
}

TEST(DataCoreTest, OrderAndContentDoNotDependOnWorkers) {
  NumberRun run;
  run.config.virtual_ranks = 2;
  const std::vector<std::string> want = texts(*run.open(), 20);
  EXPECT_EQ(std::set<std::string>(want.begin(), want.end()).size(), want.size());
  for (const int64_t workers : {1, 3, 8}) {
    run.config.num_workers = workers;
    EXPECT_EQ(texts(*run.open(), 20), want) << workers;
  }
  run.options.seed = 8;
  EXPECT_NE(texts(*run.open(), 20), want);
}

TEST(DataCoreTest, EverySampleComesOnceAnEpoch) {
  for (const bool with_lengths : {true, false}) {
    NumberRun run;
    run.with_lengths = with_lengths;
    run.options.single_epoch = true;
    run.config.num_workers = 3;
    auto loader = run.open();
    EXPECT_EQ(loader->batches_per_epoch(), 7);
    std::multiset<uint32_t> seen;
    double amount = 0.0;
    while (const Batch* batch = *loader->next()) {
      seen.insert(batch->sample_ids().begin(), batch->sample_ids().end());
      amount += batch->amount();
      EXPECT_EQ(batch->padding_share(), 0.0);
      for (size_t i = 0; i < batch->samples().size(); ++i)
        EXPECT_EQ(batch->find("lengths")->as<int64_t>()[i],
                  NumberSet::length(batch->samples()[i].sample));
      loader->release(batch);
    }
    EXPECT_EQ(seen.size(), 50u);
    EXPECT_EQ(std::set<uint32_t>(seen.begin(), seen.end()).size(), 50u);
    EXPECT_EQ(amount, 50.0);
    const LoaderStats stats = loader->stats();
    EXPECT_EQ(stats.amount, 50.0);
    EXPECT_EQ(stats.read.items, 50u);
    EXPECT_EQ(stats.finish.items, 7u);
    const auto json = nlohmann::json::parse(stats.to_json());
    EXPECT_TRUE(json.contains("finish") && json.contains("amount"));
    EXPECT_FALSE(json.contains("noise") || json.contains("mix"));
  }
}

TEST(DataCoreTest, ResumesAtAnyBatch) {
  NumberRun run;
  run.config.num_workers = 2;
  const std::vector<std::string> want = texts(*run.open(), 18);
  for (size_t at = 0; at < 14; ++at) {
    auto first = run.open();
    EXPECT_EQ(texts(*first, at), std::vector<std::string>(want.begin(), want.begin() + at));
    const std::string cursor = first->cursor_json();
    run.config.num_workers = static_cast<int64_t>(at % 3);
    auto second = run.open();
    ASSERT_TRUE(second->restore(cursor).ok());
    EXPECT_EQ(texts(*second, 18 - at), std::vector<std::string>(want.begin() + at, want.end()))
        << at;
  }
  // Other data is refused, in the data set's words.
  auto loader = run.open();
  ++run.size;
  const Status refused = run.open()->restore(loader->cursor_json());
  EXPECT_NE(refused.to_string().find("other files"), std::string::npos) << refused.to_string();
}

TEST(DataCoreTest, OtherBatchesGoOnWithTheRestOfTheEpoch) {
  NumberRun run;
  auto first = run.open();
  (void)texts(*first, 3);
  const std::string cursor = first->cursor_json();
  run.sampling.batch_size = 5;
  auto second = run.open();
  ASSERT_TRUE(second->restore(cursor).ok());
  size_t left = 0;
  while (const Batch* batch = *second->next()) {
    left += batch->samples().size();
    second->release(batch);
  }
  EXPECT_EQ(left, 50u - 24u);
}

TEST(DataCoreTest, BadSamplesAreLeftOutNamedAndCounted) {
  std::vector<std::string> want;
  for (const int64_t workers : {0, 4}) {
    NumberRun run;
    run.config.num_workers = workers;
    run.config.max_bad_fraction = 0.1;
    run.rules.bad = {3, 4, 31};
    std::vector<std::string> reported;
    run.options.on_bad_sample = [&](const BadSample& bad) {
      reported.push_back(str_cat(bad.place, "/", bad.sample_id, "/", bad.reason));
    };
    auto loader = run.open();
    size_t seen = 0;
    for (int epoch = 0; epoch < 2; ++epoch) {
      ASSERT_TRUE(loader->start_epoch(epoch).ok());
      while (const Batch* batch = *loader->next()) {
        for (const PlannedSample& sample : batch->samples())
          EXPECT_FALSE(run.rules.bad.contains(sample.sample));
        seen += batch->samples().size();
        loader->release(batch);
      }
    }
    EXPECT_EQ(seen, 2u * 47u);
    EXPECT_EQ(reported.size(), 3u);  // once each
    EXPECT_EQ(loader->stats().bad_samples, 3u);
    EXPECT_EQ(loader->cursor().bad_samples, 3u);
    if (want.empty()) want = reported;
    EXPECT_EQ(reported, want);
    EXPECT_NE(std::find(reported.begin(), reported.end(), "number 31/310/is no number"),
              reported.end());

    run.config.max_bad_fraction = 0.05;
    run.options.on_bad_sample = {};
    loader = run.open();
    Status status;
    while (status.ok()) {
      const Result<const Batch*> batch = loader->next();
      status = batch.status();
      if (!status.ok() || *batch == nullptr) break;
      loader->release(*batch);
    }
    EXPECT_EQ(status.code(), StatusCode::kDataError);
    EXPECT_NE(status.to_string().find("number 31: is no number"), std::string::npos)
        << status.to_string();

    // Fatal where the family says so, and always where it is the machine.
    for (const bool machine : {false, true}) {
      run.rules.fail = !machine;
      run.rules.machine_trouble = machine;
      loader = run.open();
      status = ok_status();
      while (status.ok()) {
        const Result<const Batch*> batch = loader->next();
        status = batch.status();
        if (!status.ok() || *batch == nullptr) break;
        loader->release(*batch);
      }
      EXPECT_NE(status.to_string().find("number "), std::string::npos) << status.to_string();
      EXPECT_EQ(status.code(), machine ? StatusCode::kUnavailable : StatusCode::kDataError);
    }
  }
}

TEST(DataCoreTest, TheBudgetIsNeverExceeded) {
  NumberRun run;
  run.config.num_workers = 2;
  run.config.memory_budget_gib = 1e-9;
  const auto refused = run.try_open();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().to_string().find("raise it, or lower batch_size or num_workers"),
            std::string::npos)
      << refused.status().to_string();

  // Batches that turn out larger than they were measured: as long as there is room.
  run.config.memory_budget_gib.reset();
  run.rules.longer = 100;
  EXPECT_EQ(texts(*run.open(), 10).size(), 10u);
  run.rules.longer = 20'000'000;  // 8 x 160 MB
  auto loader = run.open();
  const Result<const Batch*> batch = loader->next();
  ASSERT_FALSE(batch.ok());
  EXPECT_EQ(batch.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(batch.status().to_string().find("the loader may use"), std::string::npos);
}

TEST(DataCoreTest, BatchesArePackedByTheLengthsOfTheSet) {
  NumberRun run;
  run.sampling.batch_size.reset();
  run.sampling.batch_duration = 20;
  run.config.num_workers = 2;
  auto loader = run.open();
  size_t seen = 0, batches = 0;
  while (const Batch* batch = *loader->next()) {
    seen += batch->samples().size();
    ++batches;
    const HostArray* numbers = batch->find("numbers");
    EXPECT_LE((numbers->shape[0] - 1) * numbers->shape[1], 20 + 8);
    loader->release(batch);
  }
  EXPECT_EQ(seen, 50u);
  EXPECT_GT(batches, 10u);
}

TEST(DataCoreTest, TheFamilyHearsOfTheEndOfAnEpoch) {
  NumberAssembler::epochs = 0;
  NumberRun run;
  {
    auto loader = run.open();
    (void)texts(*loader, 7 * 3);
  }
  EXPECT_EQ(NumberAssembler::epochs, 3);
}

}  // namespace
}  // namespace aerie::data
