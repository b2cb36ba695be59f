#include "aerie/data/cursor.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"

namespace aerie::data {
namespace {

Cursor example() {
  Cursor out;
  out.epoch = 3;
  out.now.step = 123456789012ull;
  out.now.micro = 2;
  out.seed = 0xFFFFFFFFFFFFFFFFull;
  out.now.virtual_ranks = 8;
  out.now.batch_size = 16;
  out.now.order_fingerprint = 0x0123456789ABCDEFull;
  out.data_fingerprint = 42;
  out.samples_done = 99;
  out.bad_samples = 1;
  return out;
}

TEST(CursorTest, ReadsBackWhatItWrote) {
  const Result<Cursor> back = Cursor::parse(example().to_json());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(*back, example());
  EXPECT_EQ(*Cursor::parse(Cursor().to_json()), Cursor());
  Cursor parts = example();
  parts.now.batching.emplace();
  parts.now.batching->batch_duration = 12.5;
  parts.now.batching->bucket_batch_size = {4, 2};
  parts.before = {example().now, parts.now};
  parts.bad_list = {3, 70000};
  parts.num_samples = 100000;
  const Result<Cursor> again = Cursor::parse(parts.to_json());
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(*again, parts);
}

// What 4833b49 wrote is read, and an epoch in one piece is still written so that it can read it.
TEST(CursorTest, VersionOneStaysReadable) {
  const Result<Cursor> old = Cursor::parse(
      R"({"kind":"aerie-data-cursor","version":1,"epoch":1,"step":4,"micro":0,)"
      R"("seed":"00000000000004d2","virtual_ranks":1,"batch_size":2,"order":"6f105245c5cbe17b",)"
      R"("data":"d2f0979da248fb8d","samples_done":27,"bad_samples":1})");
  ASSERT_TRUE(old.ok()) << old.status().to_string();
  EXPECT_EQ(old->now.step, 4u);
  EXPECT_EQ(old->now.batch_size, 2u);
  EXPECT_FALSE(old->now.batching || old->bad_list || old->num_samples);
  EXPECT_NE(example().to_json().find("\"version\":1,"), std::string::npos);
}

TEST(CursorTest, RefusesEverythingElse) {
  EXPECT_FALSE(Cursor::parse("").ok());
  EXPECT_FALSE(Cursor::parse("[]").ok());
  EXPECT_FALSE(Cursor::parse("{}").ok());
  EXPECT_FALSE(Cursor::parse("{\"kind\":\"aerie-data-cursor\"}").ok());
  EXPECT_FALSE(Cursor::parse(std::string(100000, ' ')).ok());
  const std::string good = example().to_json();
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return Cursor::parse(text).status();
  };
  EXPECT_EQ(with("\"version\":1", "\"version\":3").code(), StatusCode::kUnsupported);
  EXPECT_FALSE(with("\"epoch\":3", "\"epoch\":-3").ok());
  EXPECT_FALSE(with("\"epoch\":3", "\"epoch\":4294967296").ok());
  EXPECT_FALSE(with("\"epoch\":3", "\"epoch\":3.5").ok());
  EXPECT_FALSE(with("\"epoch\":3", "\"epoch\":\"3\"").ok());
  EXPECT_FALSE(with("\"virtual_ranks\":8", "\"virtual_ranks\":0").ok());
  EXPECT_FALSE(with("0123456789abcdef", "0123456789ABCDEF").ok());
  EXPECT_FALSE(with("0123456789abcdef", "123").ok());
  EXPECT_FALSE(with("\"micro\":2,", "").ok());
  for (const char* field : {R"("bad_list":5)", R"("bad_list":[-1])", R"("bad_list":["a"])",
                            R"("bad_list":[4294967296])", R"("batching":[])", R"("batching":{})",
                            R"("num_samples":-1)"})
    EXPECT_FALSE(with("\"version\":1", str_cat("\"version\":1,", field)).ok()) << field;
  for (const char* field : {R"("before":{})", R"("before":[1])", R"("before":[{}])"})
    EXPECT_FALSE(with("\"version\":1", str_cat("\"version\":2,", field)).ok()) << field;
}

}  // namespace
}  // namespace aerie::data
