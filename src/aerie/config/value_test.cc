#include "aerie/config/value.h"

#include <limits>

#include <gtest/gtest.h>

namespace aerie::config {
namespace {

Value sample() {
  Map inner;
  inner.set("c", 1);
  inner.set("list", List{Value(1), Value("two"), Value(Map())});
  Map root;
  root.set("a", Value(std::move(inner)));
  root.set("x", 2.5);
  return root;
}

TEST(ValueTest, FindsByPathInBothSpellings) {
  const Value tree = sample();
  ASSERT_NE(tree.find("a.c"), nullptr);
  EXPECT_EQ(tree.find("a.c")->as_int(), 1);
  EXPECT_EQ(tree.find("a.list.1")->as_string(), "two");
  EXPECT_EQ(tree.find("a.list[1]"), tree.find("a.list.1"));
  EXPECT_EQ(tree.find("a[list][1]"), tree.find("a.list.1"));
  EXPECT_EQ(tree.find("a.list.-1"), nullptr);
  EXPECT_EQ(tree.find("a.list[3]"), nullptr);
  EXPECT_EQ(tree.find("a.list[x]"), nullptr);
  EXPECT_EQ(tree.find("x.y"), nullptr);
  EXPECT_EQ(tree.find("a..c"), nullptr);
  EXPECT_EQ(tree.find(""), nullptr);
}

TEST(ValueTest, PathsThatDoNotParseAreRefused) {
  for (const char* bad : {"", ".", "a.", ".a", "a..b", "a[", "a[]", "a[0]b", "a[0]."}) {
    EXPECT_FALSE(parse_path(bad).ok()) << bad;
  }
  EXPECT_EQ(parse_path("a[0][1].b").value(), (std::vector<std::string>{"a", "0", "1", "b"}));
  std::string deep = "a";
  for (int i = 0; i < 1000; ++i) deep += ".a";
  EXPECT_FALSE(parse_path(deep).ok());
}

TEST(ValueTest, SetCreatesParentsAndKeepsOrder) {
  Value tree = sample();
  ASSERT_TRUE(tree.set("a.new.deep", 7).ok());
  ASSERT_TRUE(tree.set("a.c", "replaced").ok());
  EXPECT_EQ(tree.find("a")->as_map().keys(), (std::vector<std::string>{"c", "list", "new"}));
  EXPECT_EQ(tree.find("a.new.deep")->as_int(), 7);
  ASSERT_TRUE(tree.set("a.list.0", true).ok());
  EXPECT_TRUE(tree.find("a.list.0")->as_bool());
  EXPECT_FALSE(tree.set("x.y", 1).ok());
  EXPECT_FALSE(tree.set("a.list.3", 1).ok());
}

TEST(ValueTest, EraseWorksInMapsAndLists) {
  Value tree = sample();
  EXPECT_TRUE(tree.erase("a.list.0"));
  EXPECT_EQ(tree.find("a.list.0")->as_string(), "two");
  EXPECT_TRUE(tree.erase("a.c"));
  EXPECT_FALSE(tree.erase("a.c"));
  EXPECT_FALSE(tree.erase("nothing.here"));
}

TEST(ValueTest, LargeMapsStayConsistentThroughErase) {
  Map map;
  for (int i = 0; i < 500; ++i) map.set(std::to_string(i), i);
  Map copy = map;
  for (int i = 0; i < 500; i += 3) EXPECT_TRUE(map.erase(std::to_string(i)));
  for (int i = 0; i < 500; ++i) {
    const Value* found = map.find(std::to_string(i));
    if (i % 3 == 0) {
      EXPECT_EQ(found, nullptr);
    } else {
      ASSERT_NE(found, nullptr);
      EXPECT_EQ(found->as_int(), i);
    }
    EXPECT_EQ(copy.find(std::to_string(i))->as_int(), i);
  }
}

TEST(ValueTest, EqualityMindsTypesAndOrderButNotOrigins) {
  EXPECT_FALSE(Value(1) == Value(1.0));
  EXPECT_FALSE(Value(true) == Value(1));
  EXPECT_FALSE(Value("1") == Value(1));
  EXPECT_TRUE(python_equal(Value(true), Value(1.0)));
  EXPECT_TRUE(Value(std::numeric_limits<double>::quiet_NaN()) ==
              Value(std::numeric_limits<double>::quiet_NaN()));
  Map ab, ba;
  ab.set("a", 1);
  ab.set("b", 2);
  ba.set("b", 2);
  ba.set("a", 1);
  EXPECT_FALSE(Value(ab) == Value(ba));
  EXPECT_TRUE(python_equal(Value(ab), Value(ba)));
  EXPECT_TRUE(Value(3).with_origin(Origin::command_line("a=3")) == Value(3));
}

TEST(ValueTest, TextIsClassified) {
  EXPECT_TRUE(Value::from_text("???").is_missing());
  EXPECT_TRUE(Value::from_text("x_${a}").is_interpolation());
  EXPECT_TRUE(Value::from_text("????").is_string());
  EXPECT_TRUE(Value::from_text("$a {b}").is_string());
}

TEST(ValueTest, FloatsPrintAsPythonDoes) {
  const std::pair<double, const char*> cases[] = {{1.0, "1.0"},
                                                  {0.1, "0.1"},
                                                  {1e-5, "1e-05"},
                                                  {1e-4, "0.0001"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {-2.5e-7, "-2.5e-07"},
                                                  {1.5e300, "1.5e+300"},
                                                  {0.0, "0.0"},
                                                  {-0.0, "-0.0"},
                                                  {123456.789, "123456.789"},
                                                  {5e-324, "5e-324"},
                                                  {0.30000000000000004, "0.30000000000000004"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(python_float_repr(value), text);
}

TEST(ValueTest, ReprsAreThoseOfPython) {
  Map map;
  map.set("k", Value(nullptr));
  map.set(MapEntry{"1", true, Value::Kind::kInt, {}});
  const Value list =
      List{Value(1), Value(2.0), Value("it's"), Value("a\nb"), Value(std::move(map))};
  EXPECT_EQ(python_repr(list), R"([1, 2.0, "it's", 'a\nb', {'k': None, 1: True}])");
  EXPECT_EQ(python_str(Value("plain")), "plain");
  EXPECT_EQ(Value(std::string(200, 'x')).brief(10).size(), 13u);
}

TEST(ValueTest, MergeMergesMapsAndReplacesTheRest) {
  Value tree = sample();
  Map inner;
  inner.set("list", List{Value(9)});
  inner.set("d", 4);
  inner.set("c", Value::missing());
  Map root;
  root.set("a", Value(std::move(inner)));
  root.set("x", Value(nullptr));
  ASSERT_TRUE(merge(tree, Value(std::move(root))).ok());
  EXPECT_EQ(python_repr(tree), "{'a': {'c': 1, 'list': [9], 'd': 4}, 'x': None}");
}

}  // namespace
}  // namespace aerie::config
