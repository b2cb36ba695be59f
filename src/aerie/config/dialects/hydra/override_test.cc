#include "aerie/config/dialects/hydra/override.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"

namespace aerie::config {
namespace {

std::string parsed(const std::string& text) {
  const auto override = parse_override(text);
  if (!override.ok()) return str_cat("error: ", override.status().to_string());
  const char* kinds[] = {"change", "add", "force", "delete"};
  std::string out = str_cat(kinds[static_cast<int>(override->kind)], " ", override->key);
  if (override->package) out += str_cat("@", *override->package);
  if (override->value) out += str_cat(" ", python_repr(*override->value));
  return out;
}

// Every row was taken from Hydra 1.3.2.
TEST(OverrideTest, KeysAndPrefixes) {
  EXPECT_EQ(parsed("a.b=1"), "change a.b 1");
  EXPECT_EQ(parsed("+a.b=1"), "add a.b 1");
  EXPECT_EQ(parsed("++a.b=1"), "force a.b 1");
  EXPECT_EQ(parsed("~a"), "delete a");
  EXPECT_EQ(parsed("~a=1"), "delete a 1");
  EXPECT_EQ(parsed("~a="), "delete a ''");
  EXPECT_EQ(parsed("a.0.b-c.$d_e=1"), "change a.0.b-c.$d_e 1");
  EXPECT_EQ(parsed("db=mysql"), "change db 'mysql'");
  EXPECT_EQ(parsed("a/b=c"), "change a/b 'c'");
  EXPECT_EQ(parsed("+a/b@x.y=c"), "add a/b@x.y 'c'");
  EXPECT_EQ(parsed("a@=b"), "change a@ 'b'");
  EXPECT_EQ(parsed("null=1"), "change null 1");
  for (const char* bad : {"",        "+",      "~",    "=1",     "a",       "+a",     "1=2",
                          "a[0]=1",  "a..b=1", "a.=1", ".a=1",   "a b=1",   " a=1",   "a =1",
                          "a/b.c=d", "+++a=1", "a+=1", "a.00=1", "a@b:c=d", "a//b=1", "/a=1"}) {
    EXPECT_EQ(parsed(bad).substr(0, 6), "error:") << bad;
  }
}

TEST(OverrideTest, ValuesAreTypedByHydrasGrammar) {
  const std::pair<const char*, const char*> rows[] = {
      {"", "''"},
      {" ", "''"},
      {"null", "None"},
      {"NULL", "None"},
      {"tRuE", "True"},
      {"False", "False"},
      {"1", "1"},
      {"-1", "-1"},
      {"+1", "1"},
      {"1_000", "1000"},
      {"1__0", "'1__0'"},
      {"1e-3", "0.001"},
      {"1.", "1.0"},
      {".5", "0.5"},
      {"inf", "inf"},
      {"-INF", "-inf"},
      {"NaN", "nan"},
      {"1e400", "inf"},
      {"9223372036854775807", "9223372036854775807"},
      {"9223372036854775808", "9223372036854775808"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"9_9999_9999_9999_9999_9999", "999999999999999999999"},
      {"[99999999999999999999999]", "[99999999999999999999999]"},
      {"{99999999999999999999999: 1}", "{99999999999999999999999: 1}"},
      {"int(99999999999999999999999)", "99999999999999999999999"},
      {"int('-99999999999999999999999')", "-99999999999999999999999"},
      {"float(99999999999999999999999)", "1e+23"},
      {"str(99999999999999999999999)", "'99999999999999999999999'"},
      {"-0.0", "-0.0"},
      {"012", "'012'"},
      {"yes", "'yes'"},
      {"1:30", "'1:30'"},
      {"0x1F", "'0x1F'"},
      {"1.2.3", "'1.2.3'"},
      {"1e5x", "'1e5x'"},
      {"nullx", "'nullx'"},
      {"-info", "'-info'"},
      {"x y", "'x y'"},
      {" x ", "'x'"},
      {"a\tb", "'a\\tb'"},
      {"/a/b-c_d.e", "'/a/b-c_d.e'"},
      {"a+b\\c$d%e*f@g?h|i", "'a+b\\\\c$d%e*f@g?h|i'"},
      {"http://x.y:80/z?a", "'http://x.y:80/z?a'"},
      {"16-mixed", "'16-mixed'"},
      {"bf16-mixed", "'bf16-mixed'"},
      {"16", "16"},
      {"\?\?\?", "'\?\?\?'"},
      {"[1,2,[x,y]]", "[1, 2, ['x', 'y']]"},
      {"[ 1 , 2 ]", "[1, 2]"},
      {"[]", "[]"},
      {"{}", "{}"},
      {"{k:v,x:{y:1}}", "{'k': 'v', 'x': {'y': 1}}"},
      {"{ a:1 , b : 2 }", "{'a': 1, 'b': 2}"},
      {"{a b:1,k-x.y:2}", "{'a b': 1, 'k-x.y': 2}"},
      {"{1:2,1.5:3,true:4}", "{1: 2, 1.5: 3, True: 4}"},
      {"{a: b:c}", "{'a': 'b:c'}"},
      {"{a:1,a:2}", "{'a': 2}"},
      {"{a:[1,{b:c}]}", "{'a': [1, {'b': 'c'}]}"},
      {"'x'", "'x'"},
      {"\"str,with[chars]\"", "'str,with[chars]'"},
      {"'12'", "'12'"},
      {"' x '", "' x '"},
      {"''", "''"},
      {"'it\\'s'", "\"it's\""},
      {"'a\\\\'", "'a\\\\'"},
      {"'a\\nb'", "'a\\\\nb'"},
      {"\"\\\\\\\"\"", "'\\\\\"'"},
      {"'é'", "'é'"},
      {"'_OP_0..3_CL_'", "'_OP_0..3_CL_'"},
      {"'a{0..3}(x)'", "'a{0..3}(x)'"},
      {"a\\,b", "'a,b'"},
      {"a\\=b", "'a=b'"},
      {"a\\(b\\)", "'a(b)'"},
      {"\\[x\\]\\{y\\}", "'[x]{y}'"},
      {"a\\:b", "'a:b'"},
      {"\\ a\\ ", "' a '"},
      {"a\\\\b", "'a\\\\b'"},
      {"\\1", "'\\\\1'"},
      {"${b.c}", "'${b.c}'"},
      {"'${a.${b}}'", "'${a.${b}}'"},
      {"x_${b}_y", "'x_${b}_y'"},
      {"${oc.env:USER,me}", "'${oc.env:USER,me}'"},
      {"[${a},'${b}']", "['${a}', '${b}']"},
      {"{k:${a}}", "{'k': '${a}'}"},
      {"str(1)", "'1'"},
      {"str(true)", "'true'"},
      {"str(1e-5)", "'1e-05'"},
      {"str([1,{a:2}])", "['1', {'a': '2'}]"},
      {"str (1)", "'1'"},
      {"str(value=1)", "'1'"},
      {"int('1_0')", "10"},
      {"int(1.9)", "1"},
      {"int(true)", "1"},
      {"int(' 5 ')", "5"},
      {"float(1)", "1.0"},
      {"float('1e3')", "1000.0"},
      {"bool('TRUE')", "True"},
      {"bool(0.0)", "False"},
      {"bool(null)", "False"},
      {"[str(1),int('2')]", "['1', 2]"},
      {"str(int('3'))", "'3'"},
      {"sort([3,1,2])", "[1, 2, 3]"},
      {"sort([b,a],reverse=true)", "['b', 'a']"},
  };
  for (const auto& [text, expected] : rows) {
    EXPECT_EQ(parsed(str_cat("a=", text)), str_cat("change a ", expected)) << text;
  }
}

TEST(OverrideTest, BadSyntaxIsRefused) {
  for (const char* bad : {"'x",
                          "x'",
                          "a'b'",
                          "'a''b'",
                          "${a.${b}}",
                          "${}",
                          "${a",
                          "x,",
                          ",",
                          "a;b",
                          "a&b",
                          "a#b",
                          "a!b",
                          "<x>",
                          "a^b",
                          "a~b",
                          "`x`",
                          "é",
                          "a=b",
                          "=b",
                          "{",
                          "[",
                          "]",
                          "}",
                          ")",
                          "(",
                          "(x)",
                          "a(",
                          "{a}",
                          "{a:}",
                          "{:1}",
                          "{a:1,}",
                          "[1,]",
                          "[,1]",
                          "{'k':v}",
                          "{null:1}",
                          "[]x",
                          "x[]",
                          "'x' ",
                          "[1] ",
                          "{${k}:1}",
                          "a\nb",
                          "'${'",
                          "foo(1)",
                          "str()",
                          "str(null)",
                          "int(x)",
                          "int(inf)",
                          "int('')",
                          "int('_1')",
                          "float('abc')",
                          "bool(x)",
                          "str(1,value=2)",
                          "str(value=1,2)",
                          "sort([1,a])"}) {
    EXPECT_EQ(parsed(str_cat("a=", bad)).substr(0, 6), "error:") << bad;
  }
  EXPECT_EQ(parsed("a=" + std::string(1000, '[')).substr(0, 6), "error:");
}

TEST(OverrideTest, SweepsNeedMultirun) {
  for (const char* sweep : {"x,y", "[1,2],[3]", "choice(a,b)", "range(1,3)", "interval(0,1)",
                            "glob(*)", "str(1,2)", "shuffle([1,2])", "sort(2,1)"}) {
    EXPECT_NE(parsed(str_cat("a=", sweep)).find("--multirun"), std::string::npos) << sweep;
  }
  EXPECT_NE(parsed("a=x,y").find("quote the value"), std::string::npos);
}

constexpr const char* kBase = R"(
a: 10
s: text
n: null
m: ???
l: [1, two, {x: 3}]
d: {p: 1, q: {r: 5, u: [1, 2]}}
e: {}
ref: ${d}
sref: ${a}
)";

std::string applied(const std::string& text, const char* show = "", bool struct_mode = true) {
  Value tree = parse_yaml(kBase, "t.yaml").value();
  const auto override = parse_override(text);
  if (!override.ok()) return override.status().to_string();
  const Status status = apply_override(tree, override.value(), struct_mode);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.to_string();
  }
  const Value* node = *show ? tree.find(show) : &tree;
  return node ? python_repr(*node) : "gone";
}

TEST(OverrideTest, ChangesReplaceAndMaps) {
  EXPECT_EQ(applied("a=5", "a"), "5");
  EXPECT_EQ(applied("n=5", "n"), "5");
  EXPECT_EQ(applied("m=4", "m"), "4");
  EXPECT_EQ(applied("d.q.r=null", "d"), "{'p': 1, 'q': {'r': None, 'u': [1, 2]}}");
  EXPECT_EQ(applied("d=5", "d"), "5");
  EXPECT_EQ(applied("d={p:9}", "d"), "{'p': 9, 'q': {'r': 5, 'u': [1, 2]}}");
  EXPECT_EQ(applied("d={q:5}", "d"), "{'p': 1, 'q': 5}");
  EXPECT_EQ(applied("d={p:\?\?\?}", "d.p"), "1");
  EXPECT_EQ(applied("l=[5]", "l"), "[5]");
  EXPECT_EQ(applied("l.0=9", "l"), "[9, 'two', {'x': 3}]");
  EXPECT_EQ(applied("l.2.x=4", "l"), "[1, 'two', {'x': 4}]");
  EXPECT_EQ(applied("a={x:1}", "a"), "{'x': 1}");
  EXPECT_EQ(applied("ref={p:8}", "ref"), "{'p': 8}");
  EXPECT_EQ(applied("a='${s}'", "a"), "'${s}'");
}

TEST(OverrideTest, AddsAndForces) {
  EXPECT_EQ(applied("+b=5", "b"), "5");
  EXPECT_EQ(applied("+z.y.x=1", "z"), "{'y': {'x': 1}}");
  EXPECT_EQ(applied("+n=5", "n"), "5");
  EXPECT_EQ(applied("+m=5", "m"), "5");
  EXPECT_EQ(applied("+n.x=1", "n"), "{'x': 1}");
  EXPECT_EQ(applied("+a.b=1", "a"), "{'b': 1}");
  EXPECT_EQ(applied("+d={z:9}", "d"), "{'p': 1, 'q': {'r': 5, 'u': [1, 2]}, 'z': 9}");
  EXPECT_EQ(applied("+l=[5]", "l"), "[5]");
  EXPECT_EQ(applied("+l.2.y=4", "l.2"), "{'x': 3, 'y': 4}");
  EXPECT_EQ(applied("++a=5", "a"), "5");
  EXPECT_EQ(applied("++zz.y=3", "zz"), "{'y': 3}");
  EXPECT_EQ(applied("++ref.z=1", "ref"), "{'z': 1}");
  EXPECT_EQ(applied("new.key=1", "new", false), "{'key': 1}");
}

TEST(OverrideTest, Deletes) {
  EXPECT_EQ(applied("~a", "a"), "gone");
  EXPECT_EQ(applied("~d.q", "d"), "{'p': 1}");
  EXPECT_EQ(applied("~d.q.r=5", "d.q.r"), "gone");
  EXPECT_EQ(applied("~a=10.0", "a"), "gone");
  EXPECT_EQ(applied("~sref=10", "sref"), "gone");
  EXPECT_EQ(applied("~d={q:{u:[1,2],r:5},p:1}", "d"), "gone");
  EXPECT_EQ(applied("~a=null", "a"), "gone");
  EXPECT_EQ(applied("~l", "l"), "gone");
  EXPECT_EQ(applied("~l.2.x", "l.2"), "{}");
}

// As Hydra 1.3.2: what an interpolation leads to is there already, and is what is deleted.
TEST(OverrideTest, KeysBehindInterpolations) {
  EXPECT_EQ(applied("~ref.p", "d"), "{'q': {'r': 5, 'u': [1, 2]}}");
  EXPECT_EQ(applied("~ref.p", "ref"), "'${d}'");
  EXPECT_EQ(applied("~ref.q.r=5", "d.q"), "{'u': [1, 2]}");
  EXPECT_NE(applied("~ref.zz").find("does not exist"), std::string::npos);
  EXPECT_NE(applied("+ref.p=3").find("An item is already at 'ref.p'"), std::string::npos);
  EXPECT_NE(applied("+ref.q.r=3").find("An item is already at 'ref.q.r'"), std::string::npos);
  EXPECT_EQ(applied("+ref.zz=3", "ref"), "{'zz': 3}");
}

// Hydra 1.3.2 refuses all of these.
TEST(OverrideTest, WhatCannotBeDeleted) {
  for (const char* absent : {"~n", "~n=null", "~m", "~m=null", "~l.7"})
    EXPECT_NE(applied(absent).find("does not exist"), std::string::npos) << applied(absent);
  for (const char* item : {"~l.0", "~l.0=1", "~l.2", "~d.q.u.1"})
    EXPECT_NE(applied(item).find("is a list"), std::string::npos) << applied(item);
}

// The messages of Hydra, which users know.
TEST(OverrideTest, MessagesCarryWhatHydrasCarry) {
  EXPECT_EQ(applied("d.foo=1"),
            "Could not override 'd.foo'.\nTo append to your config use +d.foo=1\n"
            "Key 'foo' is not in struct\n    full_key: d.foo");
  EXPECT_NE(applied("d={q:{zz:6}}").find("Key 'zz' is not in struct\n    full_key: d.q.zz"),
            std::string::npos);
  EXPECT_NE(applied("a.b=1").find("Key 'b' is not in struct"), std::string::npos);
  EXPECT_EQ(applied("+a=5"),
            "Could not append to config. An item is already at 'a'.\n"
            "Either remove + prefix: 'a=5'\nOr add a second + to add or override 'a': '++a=5'");
  EXPECT_EQ(applied("~b"), "Could not delete from config. 'b' does not exist.");
  EXPECT_EQ(applied("~d.q.r=6"),
            "Could not delete from config. The value of 'd.q.r' is 5 and not 6.");
  EXPECT_EQ(applied("a@b=1"),
            "Override a@b=1 looks like a config group override, but config group 'a' does not "
            "exist.");
  EXPECT_EQ(applied("d=[1]"),
            "Error merging override d=[1]: cannot merge a list (command line: d=[1]) into 'd', a "
            "map (t.yaml:7:4)");
  EXPECT_NE(applied("l.5=1").find("a list of 3"), std::string::npos);
}

TEST(OverrideTest, UnknownKeysNameTheNearest) {
  const auto hint = [](const char* text) {
    Value tree =
        parse_yaml("trainer:\n  max_steps: 1\n  strategy: auto\nmodel: {lr: 1}\n", "n.yaml")
            .value();
    return apply_override(tree, parse_override(text).value()).hint();
  };
  EXPECT_EQ(hint("trainer.max_step=10"), "did you mean 'trainer.max_steps' (n.yaml:2:14)?");
  EXPECT_EQ(hint("modle.lr=1"), "did you mean 'model.lr' (n.yaml:4:8)?");
  EXPECT_EQ(hint("strategy=ddp"), "did you mean 'trainer.strategy' (n.yaml:3:13)?");
  EXPECT_EQ(hint("zzzz=1"), "");
}

TEST(OverrideTest, OriginIsTheCommandLine) {
  Value tree = parse_yaml(kBase, "t.yaml").value();
  ASSERT_TRUE(apply_override(tree, parse_override("+d.new={x:[1]}").value()).ok());
  EXPECT_EQ(tree.find("d.new.x.0")->origin().to_string(), "command line: +d.new={x:[1]}");
  EXPECT_EQ(tree.find("d")->origin().to_string(), "t.yaml:7:4");
}

TEST(OverrideTest, DepthIsBounded) {
  Value tree = parse_yaml(kBase, "t.yaml").value();
  std::string key = "+k";
  for (int i = 0; i < 90; ++i) key += ".k";
  std::string value = "1";
  for (int i = 0; i < 40; ++i) value = str_cat("[", value, "]");
  EXPECT_FALSE(apply_override(tree, parse_override(key + "=" + value).value()).ok());
  EXPECT_LE(tree.depth(), kMaxDepth);
}

}  // namespace
}  // namespace aerie::config
