#include <cmath>
#include <ctime>
#include <string>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/dialects/mm/config_file.h"
#include "aerie/config/dialects/mm/options.h"
#include "aerie/config/dialects/mm/py_reader.h"
#include "aerie/config/yaml.h"

namespace aerie::config::mm {
namespace {

Result<Value> read(std::string_view text) {
  ReadBudget budget;
  return parse_py(text, "a.py", budget);
}

std::string message(std::string_view text) {
  const auto result = read(text);
  return result.ok() ? "accepted: " + result->brief(200) : result.status().to_string();
}

Value golden(const std::string& name) {
  return load_yaml(test_data("/mm/" + name)).value();
}

TEST(MmPyTest, ReadsFilesAsMmcvDoes) {
  for (const char* name : {"literals", "middle", "child"}) {
    const auto loaded =
        load_config_file(Env::real(), test_data(str_cat("/mm/configs/", name, ".py")));
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    const Value expected = golden(str_cat("configs/", name, ".json"));
    EXPECT_TRUE(python_equal(loaded->config, expected)) << name << "\n"
                                                        << loaded->config.brief(4000) << "\n"
                                                        << expected.brief(4000);
    EXPECT_EQ(loaded->config.as_map().keys(), expected.as_map().keys());
  }
}

TEST(MmPyTest, KeepsKindsApart) {
  const Value value =
      read("a = 1\nb = 1.\nc = True\nd = 2 / 1\ne = 4 // 2.0\nf = {1: 'x', None: 2}\n").value();
  EXPECT_TRUE(value.child("a")->is_int());
  EXPECT_TRUE(value.child("b")->is_float());
  EXPECT_TRUE(value.child("c")->is_bool());
  EXPECT_TRUE(value.child("d")->is_float());
  EXPECT_TRUE(value.child("e")->is_float());
  EXPECT_EQ(value.child("f")->as_map().begin()->key_kind, Value::Kind::kInt);
  EXPECT_EQ(value.child("d")->origin().line, 4);
}

// Expected values are what Python gives.
TEST(MmPyTest, SlicesListsAsPythonDoes) {
  const std::pair<const char*, const char*> kCases[] = {
      {"a[:2]", "[0, 1]"},
      {"a[2:]", "[2, 3, 4]"},
      {"a[:]", "[0, 1, 2, 3, 4]"},
      {"a[1:-1]", "[1, 2, 3]"},
      {"a[-2:]", "[3, 4]"},
      {"a[::2]", "[0, 2, 4]"},
      {"a[::-1]", "[4, 3, 2, 1, 0]"},
      {"a[3:0:-2]", "[3, 1]"},
      {"a[None:3:None]", "[0, 1, 2]"},
      {"a[9:]", "[]"},
      {"a[-9:2]", "[0, 1]"},
      {"a[2:1]", "[]"},
      {"a[:9:9000000000000000000]", "[0]"},
      {"a[::-9000000000000000000]", "[4]"},
      {"[][::-1]", "[]"},
      {"(a[:2] + a[3:])[1:][0]", "1"},
      {"dict(b=a)['b'][:1]", "[0]"},
      {"[a[:1], a[n:2*n]]", "[[0], [1]]"},
  };
  for (const auto& [text, expected] : kCases) {
    const auto read_one = read(str_cat("a = [0, 1, 2, 3, 4]\nn = 1\nb = ", text, "\n"));
    ASSERT_TRUE(read_one.ok()) << text << ": " << read_one.status().to_string();
    EXPECT_TRUE(python_equal(*read_one->child("b"), parse_yaml(expected, "expected").value()))
        << text << ": " << read_one->child("b")->brief(200);
  }
}

TEST(MmPyTest, RunsNothingAndSaysWhere) {
  const std::pair<const char*, const char*> kCases[] = {
      {"import os", "a.py:1:1: imports are not allowed"},
      {"a = 1\nfrom os import path", "a.py:2:1: imports are not allowed"},
      {"a = __import__('os')", "a.py:1:5: a call of '__import__' is not allowed"},
      {"a = 1\n\nb = len([1])", "a.py:3:5: a call of 'len' is not allowed"},
      {"open('x')", "a.py:1:1: a call of 'open' is not allowed"},
      {"a = [x for x in (1, 2)]", "a.py:1:6: comprehensions are not allowed"},
      {"a = [1 for x in (1, 2)]", "a.py:1:8: comprehensions are not allowed"},
      {"a = {1: 2 for x in (1, 2)}", "comprehensions are not allowed"},
      {"a = f'{1}'", "f-strings are not allowed"},
      {"a = rF'{1}'", "f-strings are not allowed"},
      {"a = b'x'", "bytes are not allowed"},
      {"a = 'x'.upper()", "a.py:1:8: attributes are not allowed"},
      {"a = 1\na.b = 2", "attributes are not allowed"},
      {"a = {}\na['b'] = 2", "an assignment to a part of a value is not allowed"},
      {"a = 1 if True else 2", "conditions are not allowed"},
      {"if True:\n  a = 1", "'if' statements are not allowed"},
      {"a = lambda: 1", "functions are not allowed"},
      {"def f():\n  pass", "functions and classes are not allowed"},
      {"a = 1\na += 1", "'+=' is not allowed"},
      {"a: int = 1", "type annotations are not allowed"},
      {"a, b = 1, 2", "assignments of several names at once are not allowed"},
      {"a = (b := 1)", "the name 'b' is not defined above"},
      {"a = 1 == 2", "comparison"},
      {"a = not True", "comparison"},
      {"a = 1 | 2", "operator"},
      {"a = {1, 2}", "sets are not allowed"},
      {"a = [1]\nb = dict(**a)", "a.py:2:10: '**' takes a dict, not a list"},
      {"a = {}\nb = [*a]", "a.py:2:6: '*' takes a list, not a map"},
      {"a = {}\nb = [**a]", "unpacking is for"},
      {"a = [1]\nb = *a, 2", "unpacking is for"},
      {"a = dict(b=1)\nc = dict(**a, b=2)", "the key 'b' is given twice"},
      {"a = {1: 2}\nc = dict(**a)", "must be strings"},
      {"a = dict(**{{_base_.b}})", "its value comes in later"},
      {"a = 'xy'\nb = a[0:1]", "a.py:2:6: slices are of lists, not of a string"},
      {"a = [1, 2]\nb = a['x':]", "a slice takes whole numbers, not 'x'"},
      {"a = [1, 2]\nb = a[::0]", "a slice's step is 0"},
      {"a = [1, 2]\nb = a[0:1:1:1]", "expected ']', got ':'"},
      {"a = value", "the name 'value' is not defined above (a configuration is read"},
      {"a = true", "did you mean 'True'?"},
      {"a = 1\nb = a(2)", "a call of 'a' is not allowed"},
      {"a = (1)(2)", "calls are not allowed"},
      {"  a = 1", "a.py:1:3: this line is indented"},
      {"a = lr", "the name 'lr' is not defined above"},
      {"rate = 1\na = rat", "did you mean 'rate'?"},
      {"a = dict(b=1, b=2)", "the key 'b' is given twice"},
      {"True = 1", "'True' is no name"},
      {"a = 012", "octal ones with 0o"},
      {"a = 1__0", "an underscore stands between digits"},
      {"a = 3j", "complex numbers"},
      {"a = 0x", "no digits behind its prefix"},
      {"a = 'x", "no closing quote"},
      {"a = '''x", "no closing triple quotes"},
      {"a = '\\ud800'", "names no character"},
      {"a = (1", "expected ')', the text ends here"},
      {"a =", "expected a value, the line ends here"},
      {"a = 1 2", "expected the end of the line, got '2'"},
      {"a = )", "expected a value, got ')'"},
      {"a = 'x' - 1", "'-' does not go with a string and an int"},
      {"a = 'x' % 1", "'%' does not go with"},
      {"a = 'x' * 1000000000", "more text"},
      {"a = [1] * 1000000000000", "more values than"},
      {"a = '' * 9000000000000000000", "more values than"},
      {"a = [1] * 2.0", "'*' does not go with"},
      {"a = [1] * [2]", "'*' does not go with"},
      {"a = 1 / 0", "division by zero"},
      {"a = 1 // 0.0", "division by zero"},
      {"a = 2 ** 64", "beyond 64 bits"},
      {"a = 9 ** 9 ** 9", "beyond 64 bits"},
      {"a = 10.0 ** 400", "too large"},
      {"a = (-8) ** 0.5", "complex"},
      {"a = {'b': 1, [1]: 2}", "cannot be a key"},
      {"a = {1: 2, '1': 3}", "cannot stand beside each other"},
      {"a = \xff", "is not UTF-8"},
      {"\xe4\xbd\xa0 = 1", "beyond ASCII"},
      {"a = $", "'$' means nothing here"},
  };
  for (const auto& [text, expected] : kCases) {
    const std::string said = message(text);
    EXPECT_NE(said.find(expected), std::string::npos) << text << "\n  " << said;
    EXPECT_EQ(read(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  EXPECT_NE(message("a = len(b)").find("names defined above"), std::string::npos);
  EXPECT_NE(message(std::string("a = 1\0", 6)).find("zero byte"), std::string::npos);
}

TEST(MmPyTest, HostileFilesStayBounded) {
  EXPECT_NE(message("a = " + std::string(3'000'000, '[')).find("more than 100 brackets"),
            std::string::npos);
  EXPECT_NE(message("a = " + std::string(10'000'000, '[')).find("too much"), std::string::npos);
  EXPECT_NE(message("a = " + std::string(2'000'000, '-') + "1").find("accepted"),
            std::string::npos);
  std::string powers = "a = 1";
  for (int i = 0; i < 1000; ++i) powers += "**1";
  EXPECT_NE(message(powers).find("too many powers"), std::string::npos);
  std::string slices = "a = [0] * 100000\nb = a";
  for (int i = 0; i < 1'000'000; ++i) slices += "[:]";
  EXPECT_NE(message(slices).find("more values than"), std::string::npos);
  std::string laughs = "a0 = ['x', 'y']\n";
  for (int i = 1; i < 40; ++i)
    laughs += str_cat("a", i, " = [a", i - 1, ", a", i - 1, ", a", i - 1, "]\n");
  EXPECT_NE(message(laughs).find("more values than"), std::string::npos);
  std::string doubling = "a = 'xxxxxxxxxxxxxxxx'\n";
  for (int i = 0; i < 60; ++i) doubling += "a = a + a\n";
  EXPECT_NE(message(doubling).find("more text"), std::string::npos);
  std::string deep = "a = []\n";
  for (int i = 0; i < 150; ++i) deep += "a = [a]\n";
  EXPECT_NE(message(deep).find("levels deep"), std::string::npos);
}

// Work grows with the file, not with its square.
TEST(MmPyTest, LargeFilesTakeSeconds) {
  const std::clock_t begin = std::clock();  // of this process, whatever else the machine does
  std::string keys = "a = dict(";
  for (int i = 0; i < 200'000; ++i) keys += str_cat("k", i, "=0,");
  const auto many = read(keys + ")");
  ASSERT_TRUE(many.ok()) << many.status().to_string();
  EXPECT_EQ(many->child("a")->as_map().size(), 200'000u);
  std::string names;
  for (int i = 0; i < 100'000; ++i) names += str_cat("n", i, "=0\n");
  EXPECT_TRUE(read(names).ok());
  std::string numbers = "a = [";
  for (int i = 0; i < 2000; ++i) numbers += "0x" + std::string(512, 'f') + ",";
  EXPECT_TRUE(read(numbers + "]").ok());
  EXPECT_NE(message("a = 0x" + std::string(513, 'f')).find("more than 512 digits"),
            std::string::npos);
  EXPECT_LT(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC, 60.0);
}

class MmFilesTest : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(Env::real().write_file(dir_.path() + "/" + name, text).ok());
  }
  std::string error(const std::string& name) {
    const auto loaded = load_config_file(Env::real(), dir_.path() + "/" + name);
    return loaded.ok() ? "accepted" : loaded.status().to_string();
  }
  TempDir dir_;
};

TEST_F(MmFilesTest, BasesAreCheckedAsInMmcv) {
  write("a.py", "_base_ = 'b.py'\n");
  write("b.py", "_base_ = ['./a.py']\n");
  EXPECT_NE(error("a.py").find("go round in a circle"), std::string::npos) << error("a.py");
  write("c.py", "x = dict(a=1)\n");
  write("d.py", "x = 2\n");
  write("two.py", "_base_ = ['c.py', 'd.py']\n");
  EXPECT_NE(error("two.py").find("two bases have the key 'x'"), std::string::npos);
  write("kind.py", "_base_ = 'd.py'\nx = dict(a=1)\n");
  EXPECT_NE(error("kind.py").find("is a dict here and an int in the base"), std::string::npos);
  EXPECT_NE(error("kind.py").find("_delete_=True"), std::string::npos);
  write("none.py", "_base_ = 'nothing.py'\n");
  EXPECT_NE(error("none.py").find("does not exist"), std::string::npos);
  write("ref.py", "_base_ = 'd.py'\ny = {{_base_.z}}\n");
  EXPECT_NE(error("ref.py").find("ref.py:2:5: {{_base_.z}}: no base has this key"),
            std::string::npos)
      << error("ref.py");
  write("alone.py", "y = {{_base_.z}}\n");
  EXPECT_NE(error("alone.py").find("the file has no _base_"), std::string::npos);
  write("sum.py", "_base_ = 'd.py'\ny = {{_base_.x}} + 1\n");
  EXPECT_NE(error("sum.py").find("its value comes in later"), std::string::npos);
  write("text.py", "text = 1\n");
  EXPECT_NE(error("text.py").find("reserved"), std::string::npos);
  write("run.sh", "x=1\n");
  EXPECT_NE(error("run.sh").find("only .py, .yaml"), std::string::npos);
  EXPECT_EQ(load_config_file(Env::real(), dir_.path() + "/x.py").status().code(),
            StatusCode::kNotFound);
  write("large.py", "a = " + std::string(10'000'000, '['));
  EXPECT_NE(error("large.py").find("too much"), std::string::npos);
  EXPECT_EQ(load_config_file(Env::real(), dir_.path() + "/large.py").status().code(),
            StatusCode::kInvalidArgument);
}

// A base that is read again and again must not multiply work without bound.
TEST_F(MmFilesTest, ManyBasesAreBounded) {
  write("f0.py", "");
  for (int i = 1; i < 30; ++i)
    write(str_cat("f", i, ".py"), str_cat("_base_ = ['f", i - 1, ".py', 'f", i - 1, ".py']\n"));
  EXPECT_NE(error("f29.py").find("more than 256 files"), std::string::npos) << error("f29.py");
}

TEST_F(MmFilesTest, YamlTakesValuesOfItsBases) {
  write("base.yaml", "a: {b: [1, 2]}\n");
  write("c.yaml", "_base_: base.yaml\nd: {{_base_.a.b}}\n");
  const auto loaded = load_config_file(Env::real(), dir_.path() + "/c.yaml");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(loaded->config.brief(), "{'a': {'b': [1, 2]}, 'd': [1, 2]}");
  EXPECT_EQ(loaded->files.size(), 2u);
}

TEST(MmOptionsTest, ValuesAreReadAsMmcvDoes) {
  const Value cases = golden("options.json");
  for (const Value& one : cases.as_list()) {
    const std::string& text = one.as_list()[0].as_string();
    const auto value = parse_option_value(text);
    ASSERT_TRUE(value.ok()) << text;
    EXPECT_EQ(*value, one.as_list()[1]) << text << " gave " << value->brief();
  }
  EXPECT_TRUE(std::isinf(parse_option_value("-inf")->as_float()));
  for (const char* text : {"(1,2", "[1,2)", "1]"}) EXPECT_FALSE(parse_option_value(text).ok());
  EXPECT_FALSE(parse_option_value(std::string(1000, '[') + std::string(1000, ']')).ok());
}

TEST(MmOptionsTest, OptionsMergeAsInMmcv) {
  Value config = parse_yaml(
                     "model: {backbone: {depth: 50}}\n"
                     "pipeline: [{type: A, x: 1}, {type: B}]\nlr: 1\n",
                     "x")
                     .value();
  const Status status = apply_options({"model.backbone.depth=18", "model.head.type=FCN",
                                       "pipeline.1.type=C", "pipeline.0.y=2", "lr=2e-4"},
                                      config);
  ASSERT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(config, golden("options_merged.json")) << config.brief(300);
  EXPECT_EQ(config.find("lr")->origin().to_string(), "command line: lr=2e-4");
  EXPECT_NE(apply_options({"pipeline.7.x=1"}, config).to_string().find("no index of a list of 2"),
            std::string::npos);
  EXPECT_FALSE(apply_options({"novalue"}, config).ok());
  EXPECT_FALSE(apply_options({"a..b=1"}, config).ok());
  EXPECT_FALSE(apply_options({"lr.x=1"}, config).ok());
}

}  // namespace
}  // namespace aerie::config::mm
