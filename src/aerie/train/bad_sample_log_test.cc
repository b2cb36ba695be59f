#include "aerie/train/bad_sample_log.h"

#include <gtest/gtest.h>

#include "aerie/base/testing/mem_env.h"

namespace aerie::train {
namespace {

TEST(BadSampleLogTest, ListsEachRecordingOnceOverRestarts) {
  const auto env = new_mem_env();
  const data::BadSample a{3, "train.json:4 (a.wav)", "broken", 0, 7};
  const data::BadSample b{5, "train.json:6 (b.wav)", "broken", 1, 9};
  {
    BadSampleLog log(*env, "/bad.jsonl");
    log.add(a);
    log.add(a);
  }
  ASSERT_TRUE(env->write_file("/bad.jsonl", *env->read_file("/bad.jsonl") + "{\"torn").ok());
  ASSERT_TRUE(env->write_file("/bad.jsonl", *env->read_file("/bad.jsonl") + "\n[]\n").ok());
  BadSampleLog log(*env, "/bad.jsonl");
  ASSERT_EQ(log.earlier().size(), 1u);
  EXPECT_EQ(log.earlier()[0].place, a.place);
  EXPECT_EQ(log.earlier()[0].sample_id, 3u);
  log.add(a);
  log.add(b);
  EXPECT_EQ(BadSampleLog(*env, "/bad.jsonl").earlier().size(), 2u);
}

}  // namespace
}  // namespace aerie::train
