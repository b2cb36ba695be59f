#include "aerie/base/parse.h"

#include <gtest/gtest.h>

namespace aerie {
namespace {

TEST(ParseTest, ReadsWholeNumbers) {
  EXPECT_EQ(parse_int64("-42").value(), -42);
  EXPECT_EQ(parse_int64("+7").value(), 7);
  EXPECT_EQ(parse_int64("9223372036854775807").value(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(parse_int64("-9223372036854775808").value(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(parse_uint64("18446744073709551615").value(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(parse_int<int>("007").value(), 7);
  EXPECT_EQ(parse_int<uint8_t>("255").value(), 255);
}

TEST(ParseTest, RefusesEverythingElse) {
  for (const char* text : {"", " ", "1 ", " 1", "1x", "0x10", "1.0", "1e3", "--1", "+-1", "++1",
                           "+", "-", "1_000", "nan", "\xd9\xa1"}) {
    EXPECT_FALSE(parse_int64(text).ok()) << text;
    EXPECT_FALSE(parse_uint64(text).ok()) << text;
  }
  EXPECT_FALSE(parse_int64("9223372036854775808").ok());
  EXPECT_FALSE(parse_uint64("-1").ok());
  EXPECT_FALSE(parse_uint64("18446744073709551616").ok());
  EXPECT_FALSE(parse_int<uint8_t>("256").ok());
  EXPECT_FALSE(parse_int<int32_t>("2147483648").ok());
  EXPECT_EQ(parse_int64("11", 0, 10).status().message(), "'11' is not between 0 and 10");
  EXPECT_EQ(parse_int64("abc").status().message(), "'abc' is not a whole number");
  EXPECT_LT(parse_int64(std::string(1000, 'x')).status().message().size(), 100u);
  EXPECT_FALSE(parse_int64(std::string_view("1\0002", 3)).ok());
}

TEST(ParseTest, ReadsFiniteDoubles) {
  EXPECT_DOUBLE_EQ(parse_double("1e-3").value(), 1e-3);
  EXPECT_DOUBLE_EQ(parse_double("-.5").value(), -0.5);
  EXPECT_DOUBLE_EQ(parse_double("+5.").value(), 5.0);
  for (const char* text : {"", "inf", "-inf", "nan", "1e400", "1,5", "1.5f", "0x1p3", " 1", "1e"})
    EXPECT_FALSE(parse_double(text).ok()) << text;
  EXPECT_FALSE(parse_double("1.5", 0.0, 1.0).ok());
  EXPECT_TRUE(parse_double("1", 0.0, 1.0).ok());
}

TEST(ParseTest, ReadsBools) {
  EXPECT_TRUE(parse_bool("True").value());
  EXPECT_TRUE(parse_bool("on").value());
  EXPECT_FALSE(parse_bool("NO").value());
  EXPECT_FALSE(parse_bool("2").ok());
  EXPECT_FALSE(parse_bool("").ok());
}

TEST(ParseTest, ReadsSizes) {
  EXPECT_EQ(parse_bytes("123").value(), 123u);
  EXPECT_EQ(parse_bytes("64K").value(), 65536u);
  EXPECT_EQ(parse_bytes("1.5 GiB").value(), 1610612736u);
  EXPECT_EQ(parse_bytes("2GB").value(), 2000000000u);
  EXPECT_EQ(parse_bytes("8 b").value(), 8u);
  for (const char* text : {"", "K", "-1", "1X", "1KK", "1e30", "1..2M", "16777216P", "M1"})
    EXPECT_FALSE(parse_bytes(text).ok()) << text;
}

}  // namespace
}  // namespace aerie
