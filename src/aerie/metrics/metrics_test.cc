#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "aerie/base/mem_env.h"
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

TEST(TfEventsWriterTest, WritesTheBytesTensorBoardExpects) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/run").ok());
  TfEventsWriter writer(*env, "/run", 1700000000);
  ASSERT_TRUE(writer.scalar("train_loss", 1.5, 9, 1700000001.0).ok());
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

}  // namespace
}  // namespace aerie::metrics
