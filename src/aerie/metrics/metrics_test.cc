#include <cmath>
#include <cstring>
#include <dlfcn.h>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "aerie/base/log.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/metrics/nvml.h"
#include "aerie/metrics/record.h"
#include "aerie/metrics/tfevents_writer.h"

namespace aerie::metrics {
namespace {

Record train(int64_t step, double loss) {
  Record record(RecordKind::kTrain, step, 0, 1.5);
  record.add("train_loss", loss);
  return record;
}

TEST(RecordTest, RoundTripsThroughJson) {
  Record record(RecordKind::kEvent, 7, 2, 3.25);
  record.add("event", "save").add("bytes", int64_t{1} << 40).add("ok", true).add("ms", 0.1);
  auto back = Record::from_json(record.to_json());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->to_json(), record.to_json());
  EXPECT_EQ(back->text("event"), "save");
  double number = 0;
  ASSERT_TRUE(back->number("bytes", &number));
  EXPECT_EQ(number, 1099511627776.0);
}

TEST(RecordTest, WritesNullForWhatIsNotFinite) {
  const Record record = train(1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_NE(record.to_json().find("\"train_loss\":null"), std::string::npos);
  double loss = 0;
  ASSERT_TRUE(Record::from_json(record.to_json())->number("train_loss", &loss));
  EXPECT_TRUE(std::isnan(loss));
}

TEST(RecordTest, RefusesForeignLines) {
  for (const char* line :
       {"", "[]", "{}", "{\"step\":1}",
        "{\"step\":1.5,\"epoch\":0,\"wall_s\":0,\"kind\":\"train\"}",
        "{\"step\":1,\"epoch\":0,\"wall_s\":0,\"kind\":\"lunch\"}", "{\"step\":1,"})
    EXPECT_FALSE(Record::from_json(line).ok()) << line;
}

TEST(MetricsLogTest, CutsBackToTheRestoredStepAndDropsATornLine) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  {
    MetricsLog log(*env, "/run/metrics.jsonl");
    for (int64_t step = 1; step <= 10; ++step) ASSERT_TRUE(log.write(train(step, 1.0)).ok());
  }
  auto file = env->open_writable("/run/metrics.jsonl", WriteMode::kAppend);
  ASSERT_TRUE(file.ok() && (*file)->append("{\"step\":11,\"ep").ok() && (*file)->close().ok());

  // The half of a line at the end is no damage.
  const auto running = read_metrics(*env, "/run/metrics.jsonl");
  ASSERT_TRUE(running.ok());
  EXPECT_EQ(running->records.size(), 10u);
  EXPECT_EQ(running->bad_lines, 0);

  MetricsLog resumed(*env, "/run/metrics.jsonl");
  ASSERT_TRUE(resumed.cut_back_to(6).ok());
  ASSERT_TRUE(resumed.write(train(7, 2.0)).ok());
  const auto read = read_metrics(*env, "/run/metrics.jsonl");
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->bad_lines, 0);
  ASSERT_EQ(read->records.size(), 7u);
  double loss = 0;
  ASSERT_TRUE(read->records.back().number("train_loss", &loss));
  EXPECT_EQ(loss, 2.0);
}

TEST(MetricsLogTest, CutsBackWithoutTouchingWhatNeedsNoCut) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  // Lines of another tool's spelling count as well, foreign and torn ones go.
  const std::string kept =
      "{\"kind\":\"train\",\"step\":2,\"epoch\":0,\"wall_s\":1}\n"
      "{\"step\":3,\"epoch\":0,\"wall_s\":1,\"kind\":\"event\",\"event\":\"a { b\"}\n";
  ASSERT_TRUE(env->write_file("/run/metrics.jsonl", kept).ok());
  FaultEnv counted(*env);
  ASSERT_TRUE(MetricsLog(counted, "/run/metrics.jsonl").cut_back_to(3).ok());
  EXPECT_EQ(counted.num_operations(FaultOp::kRename), 0u);
  ASSERT_TRUE(env->write_file("/run/metrics.jsonl",
                              "lunch\n{\"step\":1,\"ep{\"step\":2}\n\n" + kept +
                                  "{\"step\":4,\"epoch\":0,\"wall_s\":1,\"kind\":\"train\"}")
                  .ok());
  ASSERT_TRUE(MetricsLog(*env, "/run/metrics.jsonl").cut_back_to(3).ok());
  EXPECT_EQ(*env->read_file("/run/metrics.jsonl"), kept);
  ASSERT_TRUE(MetricsLog(*env, "/run/metrics.jsonl").cut_back_to(-1).ok());
  EXPECT_EQ(*env->read_file("/run/metrics.jsonl"), "");
}

TEST(MetricsLogTest, LongRunsAreReadInPart) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  {
    MetricsLog log(*env, "/run/metrics.jsonl");
    for (int64_t step = 1; step <= 9000; ++step) {
      ASSERT_TRUE(log.write(train(step, 1.0)).ok());
      if (step % 1000 != 0) continue;
      ASSERT_TRUE(log.write(Record(RecordKind::kVal, step, 0, 1.0).add("val_loss", 2.0)).ok());
    }
  }
  const auto part = read_metrics(*env, "/run/metrics.jsonl", 100);
  ASSERT_TRUE(part.ok());
  int64_t steps = 0, validations = 0;
  for (const Record& record : part->records)
    ++(record.kind() == RecordKind::kTrain ? steps : validations);
  EXPECT_EQ(validations, 9);
  EXPECT_EQ(steps, 89 + 1000);  // one in ninety, then all of the last thousand
  EXPECT_EQ(part->records.front().step(), 1);
  EXPECT_EQ(part->records.back().step(), 9000);
  EXPECT_EQ(read_metrics(*env, "/run/metrics.jsonl", 20000)->records.size(), 9009u);
}

// A checkpoint that was taken before the validation of its step: the resumed run does that again.
TEST(MetricsLogTest, CutsBackTheValidationThatIsDoneAgain) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  const auto val = [](int64_t step) {
    Record record(RecordKind::kVal, step, 0, 1.0);
    record.add("val_loss", 2.0);
    return record;
  };
  {
    MetricsLog log(*env, "/run/metrics.jsonl");
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(log.write(train(step, 1.0)).ok());
      ASSERT_TRUE(log.write(val(step)).ok());
    }
  }
  const auto count = [&] { return read_metrics(*env, "/run/metrics.jsonl")->records.size(); };
  ASSERT_TRUE(MetricsLog(*env, "/run/metrics.jsonl").cut_back_to(2).ok());
  EXPECT_EQ(count(), 4u);
  ASSERT_TRUE(MetricsLog(*env, "/run/metrics.jsonl").cut_back_to(2, true).ok());
  EXPECT_EQ(count(), 3u);
  EXPECT_EQ(read_metrics(*env, "/run/metrics.jsonl")->records.back().kind(), RecordKind::kTrain);
}

TEST(MetricsLogTest, LinesAcrossChunksAreWhole) {
  const auto env = new_mem_env();
  std::string text;
  std::vector<size_t> expected;
  for (size_t i = 0; i < 40; ++i) {
    expected.push_back(100000 + 977 * i);
    text += std::string(expected.back(), 'x') + (i < 39 ? "\n" : "");
  }
  ASSERT_TRUE(env->write_file("/x", text).ok());
  std::vector<size_t> sizes;
  ASSERT_TRUE(
      scan_lines(*env, "/x", [&](std::string_view line) { sizes.push_back(line.size()); }).ok());
  EXPECT_EQ(sizes, expected);
}

// As after `rm metrics.jsonl`, `rm -r` of the folder and an editor that saves by renaming.
TEST(MetricsLogTest, AFileThatIsTakenAwayIsMadeAnewAndReported) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/exp/run").ok());
  std::vector<std::string> warnings;
  set_log_console([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarn) warnings.emplace_back(line);
  });
  MetricsLog log(*env, "/exp/run/metrics.jsonl");
  const auto steps = [&] {
    std::vector<int64_t> out;
    const auto read = read_metrics(*env, "/exp/run/metrics.jsonl");
    if (read.ok())
      for (const Record& record : read->records) out.push_back(record.step());
    return out;
  };
  ASSERT_TRUE(log.write(train(1, 1.0)).ok());
  ASSERT_TRUE(env->remove_file("/exp/run/metrics.jsonl").ok());
  ASSERT_TRUE(log.write(train(2, 1.0)).ok());
  EXPECT_EQ(steps(), (std::vector<int64_t>{2})) << "the line after the removal is there";
  EXPECT_EQ(warnings.size(), 1u);
  ASSERT_TRUE(env->remove_tree("/exp").ok());
  ASSERT_TRUE(log.write(train(3, 1.0)).ok());
  EXPECT_EQ(steps(), (std::vector<int64_t>{3}));
  EXPECT_EQ(warnings.size(), 2u);
  // The same bytes in another file.
  const auto bytes = env->read_file("/exp/run/metrics.jsonl");
  ASSERT_TRUE(env->write_file("/exp/run/edited", *bytes).ok());
  ASSERT_TRUE(env->rename("/exp/run/edited", "/exp/run/metrics.jsonl").ok());
  ASSERT_TRUE(log.write(train(4, 1.0)).ok());
  EXPECT_EQ(steps(), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(warnings.size(), 3u);
  // Somebody who adds a line does no harm and is no reason for a line to come twice.
  auto other = env->open_writable("/exp/run/metrics.jsonl", WriteMode::kAppend);
  ASSERT_TRUE((*other)->append(train(4, 2.0).to_json() + "\n").ok());
  ASSERT_TRUE(log.write(train(5, 1.0)).ok());
  EXPECT_EQ(steps(), (std::vector<int64_t>{3, 4, 4, 5}));
  EXPECT_EQ(warnings.size(), 3u);
  set_log_console({});
}

// Tag and step of every point in the event files of a folder, in the order of their names, as far
// as a reader gets; "START" for the begin of a session.
std::vector<std::string> points(Env& env, const std::string& folder) {
  std::vector<std::string> out;
  const auto entries = env.list_dir(folder);
  for (const DirEntry& entry : *entries) {
    const std::string bytes = *env.read_file(folder + "/" + entry.name);
    for (size_t at = 0; at + 12 <= bytes.size();) {
      uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, sizeof size);
      if (at + 16 + size > bytes.size()) break;  // torn: readers stop here
      const std::string event = bytes.substr(at + 12, size);
      at += 16 + size;
      const int step = event.size() > 10 && event[9] == 0x10 ? event[10] : 0;
      if (const size_t tag = event.find("loss"); tag != std::string::npos)
        out.push_back(str_cat("loss ", step));
      if (event.substr(11, 4) == std::string("\x3a\x02\x08\x01", 4))
        out.push_back(str_cat("START ", step));
    }
  }
  return out;
}

TEST(TfEventsWriterTest, LosesNoPointToAFullDisk) {
  for (uint64_t room = 0; room < 400; ++room) {
    const auto memory = new_mem_env();
    ASSERT_TRUE(memory->create_dirs("/run").ok());
    FaultEnv env(*memory);
    TfEventsWriter writer(env, "/run", 1700000000);
    std::vector<std::string> expected;
    const auto put = [&](int64_t step) {
      writer.scalar("loss", 1.0, step, 1700000000.0 + static_cast<double>(step));
      expected.push_back(str_cat("loss ", step));
      return writer.flush();
    };
    for (int64_t step = 1; step <= 3; ++step) ASSERT_TRUE(put(step).ok());
    env.set_space(room);
    bool failed = false;
    for (int64_t step = 4; step <= 12; ++step) failed = !put(step).ok() || failed;
    EXPECT_TRUE(failed || room > 300) << "nine points need more than " << room;
    env.clear_faults();
    for (int64_t step = 13; step <= 15; ++step) ASSERT_TRUE(put(step).ok());
    EXPECT_EQ(points(*memory, "/run"), expected) << "room for " << room << " bytes";
    EXPECT_LE(memory->list_dir("/run")->size(), 2u) << "a full disk collects no torn files";
  }
}

TEST(TfEventsWriterTest, GoesOnWhenItsFileIsRemoved) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  TfEventsWriter writer(*env, "/run", 1700000000);
  set_log_console([](LogLevel, std::string_view) {});
  writer.scalar("loss", 1.0, 1, 1700000001.0);
  ASSERT_TRUE(writer.flush().ok());
  ASSERT_TRUE(env->remove_tree("/run").ok());
  writer.scalar("loss", 1.0, 2, 1700000002.0);
  ASSERT_TRUE(writer.flush().ok());
  EXPECT_EQ(points(*env, "/run"), (std::vector<std::string>{"loss 2"}));
  set_log_console({});
}

TEST(TfEventsWriterTest, AResumedRunTellsReadersWhereItStarts) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  TfEventsWriter writer(*env, "/run", 1700000000);
  writer.start_session(7, 1700000001.0);
  writer.scalar("loss", 1.0, 7, 1700000002.0);
  ASSERT_TRUE(writer.flush().ok());
  EXPECT_EQ(points(*env, "/run"), (std::vector<std::string>{"START 7", "loss 7"}));
}

TEST(TfEventsWriterTest, WritesTheBytesTensorBoardExpects) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  TfEventsWriter writer(*env, "/run", 1700000000);
  writer.scalar("train_loss", 1.5, 9, 1700000001.0);
  ASSERT_TRUE(writer.flush().ok());
  const auto bytes = env->read_file(writer.path());
  ASSERT_TRUE(bytes.ok());
  // First record: wall time and "brain.Event:2", with the checksums that TensorBoard's own reader
  // accepted.
  const std::string head(
      "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22\x09\0\0\0\x40\xfc\x54\xd9\x41\x1a\x0d"
      "brain.Event:2\xec\xed\x8f\x9d",
      40);
  ASSERT_GE(bytes->size(), head.size());
  EXPECT_EQ(bytes->substr(0, head.size()), head);
  // Second record: step 9, tag and float value.
  EXPECT_NE(bytes->find(std::string("\x10\x09", 2)), std::string::npos);
  EXPECT_NE(bytes->find("train_loss"), std::string::npos);
}

TEST(NvmlTest, IsAbsentOrSamples) {
  const auto sampler = NvmlSampler::start("", 0.01);
  if (sampler == nullptr) return;  // no driver on this machine: nothing to read is the right answer
  for (int i = 0; i < 1000; ++i)
    if (const auto sample = sampler->read()) {
      EXPECT_GT(sample->memory_total_gib, 0.0);
      return;
    }
}

// A driver that is made up. From here on it is the one that this process finds.
TEST(NvmlTest, ReadsWhatTheDriverKnows) {
  void* driver = dlopen(AERIE_FAKE_NVML, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr) << dlerror();
  const auto behave = reinterpret_cast<void (*)(bool, bool)>(dlsym(driver, "test_nvml_behave"));
  ASSERT_NE(behave, nullptr);
  const auto sample = [&](bool divided, bool counts) -> std::optional<GpuSample> {
    behave(divided, counts);
    const auto sampler = NvmlSampler::start("0000:01:00.0", 60.0);
    return sampler == nullptr ? std::nullopt : sampler->read_now();
  };
  const auto usual = sample(false, true);
  ASSERT_TRUE(usual.has_value());
  EXPECT_EQ(usual->utilisation_percent, 75.0);
  EXPECT_EQ(usual->memory_used_gib, 20.0);
  // Memory is known where utilisation is not counted.
  const auto uncounted = sample(false, false);
  ASSERT_TRUE(uncounted.has_value());
  EXPECT_LT(uncounted->utilisation_percent, 0.0);
  EXPECT_EQ(uncounted->memory_total_gib, 80.0);
  // The figures of a divided card are not those of its parts.
  EXPECT_FALSE(sample(true, true).has_value());
}

}  // namespace
}  // namespace aerie::metrics
