#include "aerie/config/yaml.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"

namespace aerie::config {
namespace {

Value parse(std::string_view text) {
  auto value = parse_yaml(text, "t.yaml");
  EXPECT_TRUE(value.ok()) << text << "\n" << value.status().to_string();
  return value.ok() ? std::move(value).value() : Value("failed");
}

std::string failure(std::string_view text, const YamlLimits& limits = {}) {
  const auto value = parse_yaml(text, "t.yaml", limits);
  EXPECT_FALSE(value.ok()) << text << " -> " << python_repr(value.value());
  if (value.ok()) return "";
  EXPECT_EQ(value.status().code(), StatusCode::kInvalidArgument);
  return value.status().to_string();
}

// Every row was taken from PyYAML 6.0.3 with OmegaConf 2.3's loader.
TEST(YamlTest, PlainScalarsHaveOmegaConfTypes) {
  const std::pair<const char*, const char*> rows[] = {
      {"1e-3", "0.001"},
      {"1e5", "100000.0"},
      {"-1e5", "-100000.0"},
      {"12e03", "12000.0"},
      {"1_0e5", "1000000.0"},
      {"1.", "1.0"},
      {"1._", "1.0"},
      {"1.5e5", "150000.0"},
      {"1.5e+5", "150000.0"},
      {".5", "0.5"},
      {".5e3", "'.5e3'"},
      {".5e+3", "500.0"},
      {"-.5", "'-.5'"},
      {"1__0", "10"},
      {"1__0.5", "10.5"},
      {"yes", "True"},
      {"No", "False"},
      {"ON", "True"},
      {"off", "False"},
      {"TRUE", "True"},
      {"tRUE", "'tRUE'"},
      {"y", "'y'"},
      {"n", "'n'"},
      {"012", "10"},
      {"-012", "-10"},
      {"08", "'08'"},
      {"00", "0"},
      {"0_7", "7"},
      {"1_000", "1000"},
      {"_1", "'_1'"},
      {"+1", "1"},
      {"1:30", "90"},
      {"-1:30", "-90"},
      {"190:20:30", "685230"},
      {"1:30.5", "90.5"},
      {"190:20:30.15", "685230.15"},
      {"1:60", "'1:60'"},
      {"0o17", "'0o17'"},
      {"0x1F", "31"},
      {"-0x1F", "-31"},
      {"0b101", "5"},
      {"2020-01-01", "'2020-01-01'"},
      {"2020-01-01 10:00:00", "'2020-01-01 10:00:00'"},
      {"~", "None"},
      {"null", "None"},
      {"Null", "None"},
      {"nULL", "'nULL'"},
      {"", "None"},
      {".inf", "inf"},
      {"-.INF", "-inf"},
      {"+.inf", "inf"},
      {".nan", "nan"},
      {".NaN", "nan"},
      {"NaN", "'NaN'"},
      {"inf", "'inf'"},
      {"'12'", "'12'"},
      {"\"yes\"", "'yes'"},
      {"''", "''"},
      {"9223372036854775807", "9223372036854775807"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"! 12", "12"},
      {"!!str 12", "'12'"},
      {"!!int '12'", "12"},
      {"!!float 12", "12.0"},
      {"!!float nan", "nan"},
      {"!!bool yes", "True"},
      {"!!null abc", "None"},
      {"!!seq [1]", "[1]"},
      {"!!map {b: 1}", "{'b': 1}"},
      {"x#y", "'x#y'"},
      {"|\n  x\n  y\n", R"('x\ny\n')"},
      {">\n  x\n  y\n", R"('x y\n')"},
  };
  for (const auto& [text, expected] : rows) {
    EXPECT_EQ(python_repr(parse(str_cat("a: ", text))), str_cat("{'a': ", expected, "}")) << text;
  }
}

TEST(YamlTest, MissingAndInterpolationsAreRecognised) {
  const Value tree = parse("a: ???\nb: '??\?'\nc: ${a}\nd: x_${a}\ne: $a");
  EXPECT_TRUE(tree.find("a")->is_missing());
  EXPECT_TRUE(tree.find("b")->is_missing());
  EXPECT_TRUE(tree.find("c")->is_interpolation());
  EXPECT_TRUE(tree.find("d")->is_interpolation());
  EXPECT_TRUE(tree.find("e")->is_string());
  EXPECT_NE(failure("a: 1\nb: ${a").find("t.yaml:2:4"), std::string::npos);
}

TEST(YamlTest, IntegersBeyond64BitsKeepTheirDigits) {
  const std::string text =
      "a: 99999999999999999999999\nb: -9223372036854775809\nc: 0xFFFFFFFFFFFFFFFFFFFF\n"
      "d: 9223372036854775807\n99999999999999999999: e\nf: 0b1" +
      std::string(64, '0') + "\n";
  const Value tree = parse(text);
  EXPECT_EQ(python_repr(tree),
            "{'a': 99999999999999999999999, 'b': -9223372036854775809, 'c': "
            "1208925819614629174706175, 'd': 9223372036854775807, 99999999999999999999: 'e', 'f': "
            "18446744073709551616}");
  EXPECT_EQ(tree.find("a")->as_float(), 1e23);
  EXPECT_TRUE(tree.find("d")->is_int());
  const auto emitted = emit_yaml(tree);
  ASSERT_TRUE(emitted.ok());
  EXPECT_EQ(parse(*emitted), tree);
  EXPECT_NE(emitted->find("\nb: -9223372036854775809\n"), std::string::npos) << *emitted;
  EXPECT_FALSE(python_equal(*tree.find("b"), Value(std::numeric_limits<int64_t>::min())));
}

TEST(YamlTest, ValuesThatPyYamlRefusesAreErrors) {
  EXPECT_EQ(failure("a: 0b_"), "t.yaml:1:4: '0b_' is not a valid int");
  EXPECT_NE(failure("a: !!int abc").find("not a valid int"), std::string::npos);
  EXPECT_NE(failure("a: =").find("quote it"), std::string::npos);
  EXPECT_NE(failure("a: 9999999999999999999:59:59").find("does not fit in 64 bits"),
            std::string::npos);
  EXPECT_NE(failure(str_cat("a: ", std::string(5000, '9'))).find("5000 digits"), std::string::npos);
  EXPECT_NE(failure("x: !!python/object/apply:os.system ['true']").find("!!python/object/apply"),
            std::string::npos);
  for (const char* text : {"a: !!binary aGk=",
                           "a: !!timestamp 2020-01-01",
                           "a: !foo 1",
                           "a: !!set {b}",
                           "a: !!python/name:os.system",
                           "a: !!omap [a: 1]",
                           "~: 1",
                           "[1]: 2",
                           "? {a: 1}\n: 2",
                           "a: &x [*x]",
                           "a: *u",
                           "a: &x 1\nb: &x 2",
                           "a: %x",
                           "a: @x",
                           "\ta: 1",
                           "a: b: c",
                           "a: 'x",
                           "a: [1",
                           "a: {b",
                           "<<: 1",
                           "<<: [1]",
                           "<<: null",
                           "a: <<",
                           "\xff\xfe\xff",
                           "a: \"\\q\""}) {
    failure(text);
  }
}

TEST(YamlTest, DuplicateKeysNameBothPlaces) {
  EXPECT_EQ(failure("a: 1\nb: 2\na: 3"),
            "t.yaml:3:1: found duplicate key 'a' (first at t.yaml:1:1)");
  EXPECT_EQ(failure("x:\n  - {b: 1, b: 2}"),
            "t.yaml:2:12: found duplicate key 'b' (first at t.yaml:2:6)");
  std::string many;
  for (int i = 0; i < 300; ++i) many += str_cat("k", i, ": ", i, "\n");
  EXPECT_EQ(failure(many + "k7: 1\n"),
            "t.yaml:301:1: found duplicate key 'k7' (first at t.yaml:8:1)");
}

TEST(YamlTest, OneDocumentOnly) {
  EXPECT_NE(failure("a: 1\n---\nb: 2").find("t.yaml:2:1"), std::string::npos);
  EXPECT_TRUE(parse("").is_null());
  EXPECT_TRUE(parse("# only a comment\n").is_null());
  EXPECT_EQ(python_repr(parse("%YAML 1.1\n---\na: 1\n...\n")), "{'a': 1}");
}

TEST(YamlTest, KeysKeepTheirKind) {
  const Value tree = parse("1: a\n1.5: b\nyes: c\n'2': d\n0x10: e");
  EXPECT_EQ(python_repr(tree), "{1: 'a', 1.5: 'b', True: 'c', '2': 'd', 16: 'e'}");
  EXPECT_EQ(tree.find(std::vector<std::string>{"1"})->as_string(), "a");
  EXPECT_EQ(emit_yaml(tree).value(), "1: a\n1.5: b\ntrue: c\n'2': d\n16: e\n");
}

TEST(YamlTest, OriginsNameFileLineAndColumn) {
  const Value tree = parse("model:\n  lr: 0.1\n  list:\n  - 1\n  - {x: y}\n");
  EXPECT_EQ(tree.find("model")->origin().to_string(), "t.yaml:2:3");
  EXPECT_EQ(tree.find("model.lr")->origin().to_string(), "t.yaml:2:7");
  EXPECT_EQ(tree.find("model.list.1.x")->origin().to_string(), "t.yaml:5:9");
  EXPECT_EQ(tree.as_map().begin()->key_origin.to_string(), "t.yaml:1:1");
}

TEST(YamlTest, AnchorsAndMergeKeysFollowPyYaml) {
  EXPECT_EQ(python_repr(parse("a: &x {p: 1}\nb: *x\nc: [*x, *x]")),
            "{'a': {'p': 1}, 'b': {'p': 1}, 'c': [{'p': 1}, {'p': 1}]}");
  EXPECT_EQ(python_repr(parse("b: 2\n<<: {a: 1, b: 3}\nc: 1")), "{'a': 1, 'b': 2, 'c': 1}");
  EXPECT_EQ(python_repr(parse("<<: [{a: 1}, {a: 2, b: 5}]")), "{'a': 1, 'b': 5}");
  EXPECT_EQ(python_repr(parse("<<: {a: 1}\n<<: {a: 2}")), "{'a': 2}");
  EXPECT_EQ(python_repr(parse("'<<': 1")), "{'<<': 1}");
  EXPECT_EQ(python_repr(parse("base: &b {x: 1, z: 0}\n"
                              "mid: &m\n  <<: *b\n  x: 2\n"
                              "top:\n  <<: *m\n  y: 3\n")),
            "{'base': {'x': 1, 'z': 0}, 'mid': {'x': 2, 'z': 0}, 'top': {'x': 2, 'z': 0, 'y': 3}}");
}

TEST(YamlTest, LimitsStopHostileFiles) {
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    laughs += str_cat("a", i, ": &a", i, " [");
    for (int k = 0; k < 10; ++k) laughs += str_cat(k ? "," : "", "*a", i - 1);
    laughs += "]\n";
  }
  EXPECT_NE(failure(laughs).find("each use of an alias counts"), std::string::npos);
  std::string text = str_cat("a: &a ", std::string(1 << 20, 'x'), "\nb: [");
  for (int i = 0; i < 100; ++i) text += "*a,";
  EXPECT_NE(failure(text + "]").find("bytes of text"), std::string::npos);
  EXPECT_NE(failure(std::string(5000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(
      failure(str_cat("a: ", std::string(200, '['), std::string(200, ']'))).find("nested deeper"),
      std::string::npos);
  // Depth through aliases counts as well.
  std::string nest = "a0: &a0 [1]\n";
  for (int i = 1; i < 150; ++i) nest += str_cat("a", i, ": &a", i, " [*a", i - 1, "]\n");
  EXPECT_NE(failure(nest).find("nests deeper"), std::string::npos);
  YamlLimits small;
  small.max_bytes = 10;
  EXPECT_NE(failure("abcdefghijklmnop", small).find("larger than 10 bytes"), std::string::npos);
}

TEST(YamlTest, FilesThatCannotBeReadSaySo) {
  const auto absent = load_yaml("/nonexistent/x.yaml");
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(load_yaml("/").ok());
}

TEST(YamlTest, EmitsWhatOmegaConfWrites) {
  const Value tree = parse(
      "a: 1e-5\nb: [1, [2, 3], {x: null}]\nc: {}\nd: []\ne: '12'\nf: 'yes'\ng: ${a}\nh: ???\n"
      "i: 'it''s'\nj: \"tab\\there\"\nk: 'a: b'\nl: .inf\nm: 1.0\nn: '2020-01-01'\no: ''\n"
      "p: '1e5'\nq: \"two\\nlines\"\nr: é\ns: 1e22\nt: 'y'\nu: ' x'");
  EXPECT_EQ(emit_yaml(tree).value(),
            "a: 1.0e-05\nb:\n- 1\n- - 2\n  - 3\n- x: null\nc: {}\nd: []\ne: '12'\nf: 'yes'\n"
            "g: ${a}\nh: ???\ni: it's\nj: \"tab\\there\"\nk: 'a: b'\nl: .inf\nm: 1.0\n"
            "'n': '2020-01-01'\no: ''\np: '1e5'\nq: 'two\n\n  lines'\nr: é\ns: 1.0e+22\nt: 'y'\n"
            "u: ' x'\n");
  EXPECT_EQ(emit_yaml(Value("x")).value(), "x\n...\n");
}

TEST(YamlTest, LongTextIsFoldedAsPyYamlFolds) {
  Map map;
  std::string words;
  for (int i = 0; i < 20; ++i) words += "word ";
  map.set("plain", words + "end");
  map.set("single", words + "it: end");
  map.set("double", words + "\x07");
  map.set(std::string(130, 'k'), 1);
  EXPECT_EQ(
      emit_yaml(Value(std::move(map))).value(),
      "plain: word word word word word word word word word word word word word word word\n"
      "  word word word word word end\n"
      "single: 'word word word word word word word word word word word word word word word\n"
      "  word word word word word it: end'\n"
      "double: \"word word word word word word word word word word word word word word word\\\n"
      "  \\ word word word word word \\a\"\n"
      "? " +
          std::string(130, 'k') + "\n: 1\n");
}

TEST(YamlTest, ResolvedTextStaysTextWhenReadBack) {
  for (const char* text : {"${a}", "\\${a}", "\\\\${a}", "x ${ y", "${", "$${a}"}) {
    const std::string yaml = emit_yaml(Value(text)).value();
    const Value again = parse(yaml);
    ASSERT_TRUE(again.is_interpolation()) << yaml;
  }
}

TEST(YamlTest, TextThatIsNotUtf8IsRefused) {
  for (const char* text : {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "a\xe2\x82"}) {
    EXPECT_EQ(emit_yaml(Value(text)).status().code(), StatusCode::kInvalidArgument);
  }
}

// ---- parse(emit(tree)) == tree -----------------------------------------------------------------

class TreeMaker {
 public:
  explicit TreeMaker(uint32_t seed) : random_(seed) {}

  Value tree(int depth) {
    const unsigned kind = pick(10);
    if (depth > 0 && kind < 3) {
      Map map;
      const unsigned count = pick(5);
      for (unsigned i = 0; i < count; ++i) {
        MapEntry entry;
        entry.key = text();
        const unsigned key_kind = pick(8);
        if (key_kind == 0) {
          entry.key = std::to_string(static_cast<int>(pick(100)) - 50);
          entry.key_kind = Value::Kind::kInt;
        } else if (key_kind == 1) {
          entry.key = pick(2) ? "true" : "false";
          entry.key_kind = Value::Kind::kBool;
        } else if (key_kind == 2) {
          entry.key = python_float_repr(number());
          entry.key_kind = Value::Kind::kFloat;
        }
        if (map.contains(entry.key)) continue;
        entry.value = tree(depth - 1);
        map.set(std::move(entry));
      }
      return map;
    }
    if (depth > 0 && kind < 5) {
      List list;
      const unsigned count = pick(5);
      for (unsigned i = 0; i < count; ++i) list.push_back(tree(depth - 1));
      return list;
    }
    switch (pick(8)) {
      case 0:
        return Value();
      case 1:
        return Value(pick(2) == 0);
      case 2:
        return Value(static_cast<int64_t>((uint64_t{random_()} << 32) | random_()));
      case 3:
        return Value(number());
      case 4:
        return Value::from_text(std::string(pick(2) ? "${a.b}" : "???"));
      default:
        return Value(text());
    }
  }

 private:
  unsigned pick(unsigned below) { return static_cast<unsigned>(random_() % below); }

  double number() {
    switch (pick(6)) {
      case 0:
        return std::numeric_limits<double>::infinity();
      case 1:
        return std::numeric_limits<double>::quiet_NaN();
      case 2:
        return static_cast<double>(pick(1000));
      default:
        return std::ldexp(static_cast<double>(random_()) - 2e9, static_cast<int>(pick(200)) - 100);
    }
  }

  std::string text() {
    static const char* const kPieces[] = {"a",
                                          "foo",
                                          "1",
                                          "0x1F",
                                          "1e5",
                                          "yes",
                                          "null",
                                          "~",
                                          ":",
                                          ": ",
                                          " ",
                                          "  ",
                                          "\n",
                                          "\n\n",
                                          "\t",
                                          "#",
                                          " #",
                                          "-",
                                          "- ",
                                          "'",
                                          "\"",
                                          "\\",
                                          "[",
                                          "]",
                                          "{",
                                          "}",
                                          ",",
                                          "?",
                                          "|",
                                          ">",
                                          "%",
                                          "@",
                                          "`",
                                          "!",
                                          "&",
                                          "*",
                                          "é",
                                          "日",
                                          "😀",
                                          "\r",
                                          "\x07",
                                          "---",
                                          "...",
                                          "<<",
                                          "=",
                                          "2020-01-01",
                                          ".5",
                                          "inf",
                                          "\x7f",
                                          "\xc2\x85",
                                          "\xe2\x80\xa8",
                                          "\xef\xbb\xbf",
                                          "a long word that goes on",
                                          "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};
    std::string out;
    const unsigned count = pick(pick(4) == 0 ? 24 : 4);
    for (unsigned i = 0; i < count; ++i) out += kPieces[pick(std::size(kPieces))];
    if (out == "???") out = "x";
    return out;
  }

  std::mt19937 random_;
};

TEST(YamlTest, WhatIsWrittenReadsBackTheSame) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const Value tree = TreeMaker(seed).tree(4);
    const auto text = emit_yaml(tree);
    ASSERT_TRUE(text.ok()) << text.status().to_string();
    const auto again = parse_yaml(text.value(), "again.yaml");
    ASSERT_TRUE(again.ok()) << again.status().to_string() << "\n" << text.value();
    ASSERT_TRUE(again.value() == tree) << text.value() << python_repr(tree) << "\n"
                                       << python_repr(again.value());
    ASSERT_EQ(emit_yaml(again.value()).value(), text.value());
  }
}

}  // namespace
}  // namespace aerie::config
