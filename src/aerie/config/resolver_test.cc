#include "aerie/config/resolver.h"

#include <ctime>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"

namespace aerie::config {
namespace {

constexpr const char* kBase = R"(
a: 10
s: text
n: null
t: true
f: 1.0e-05
l: [1, two, {x: 3}]
d: {p: 1, q: {r: '${.u}', u: 5, v: '${..p}', w: '${...a}'}}
m: ???
key: a
dk: {a: 77}
ref: ${d}
)";

Value base_with(const std::string& expression) {
  Value tree = parse_yaml(kBase, "t.yaml").value();
  EXPECT_TRUE(tree.set("zz", Value::from_text(expression)).ok());
  return tree;
}

ResolveOptions options() {
  ResolveOptions out;
  out.env = [](const std::string& name) -> std::optional<std::string> {
    if (name == "E_INT") return "12";
    if (name == "E_LIST") return "[1, ${a}]";
    if (name == "E_INTER") return "${a}";
    return std::nullopt;
  };
  return out;
}

Result<Value> resolve(const std::string& expression) {
  return resolve_at(base_with(expression), "zz", options());
}

// Every row was taken from OmegaConf 2.3 with NeMo's resolvers.
TEST(ResolverTest, GivesWhatOmegaConfGives) {
  const std::pair<const char*, const char*> rows[] = {
      {"${a}", "10"},
      {"x_${a}_y", "'x_10_y'"},
      {"${s}${a}", "'text10'"},
      {"${n}", "None"},
      {"x${n}", "'xNone'"},
      {"x${t}", "'xTrue'"},
      {"x${f}", "'x1e-05'"},
      {"x${l}", R"("x[1, 'two', {'x': 3}]")"},
      {"x${d}", R"("x{'p': 1, 'q': {'r': '${.u}', 'u': 5, 'v': '${..p}', 'w': '${...a}'}}")"},
      {"${l[1]}", "'two'"},
      {"${l.1}", "'two'"},
      {"${l[2][x]}", "3"},
      {"${d.q.r}", "5"},
      {"${d.q.w}", "10"},
      {"${${key}}", "10"},
      {"${dk.${key}}", "77"},
      {"${dk[${key}]}", "77"},
      {"${.a}", "10"},
      {"\\${a}", "'${a}'"},
      {"\\\\${a}", "'\\\\10'"},
      {"\\\\\\${a}", "'\\\\${a}'"},
      {"a\\b ${a}", "'a\\\\b 10'"},
      {"$${a}", "'$10'"},
      {"${ a }", "10"},
      {"${[d][p]}", "1"},
      {"${[d].p}", "1"},
      {"${ref}", "{'p': 1, 'q': {'r': 5, 'u': 5, 'v': 1, 'w': 10}}"},
      {"${ref.q.w}", "10"},
      {"${oc.env:E_INT}", "'12'"},
      {"${oc.env:NOPE,default}", "'default'"},
      {"${oc.env:NOPE,null}", "None"},
      {"${oc.env:NOPE,'q, x'}", "'q, x'"},
      {"${oc.env:NOPE,\"q\"}", "'q'"},
      {"${oc.env:NOPE,1e-5}", "'1e-05'"},
      {"${oc.env:NOPE,true}", "'True'"},
      {"${oc.env:NOPE,}", "''"},
      {"${oc.env:NOPE,[1,2]}", "'[1, 2]'"},
      {"${oc.env:NOPE,x${a}y z}", "'x10y z'"},
      {"${oc.env:NOPE,http://a.b:80/c?d}", "'http://a.b:80/c?d'"},
      {"${oc.env:E_INTER}", "'${a}'"},
      {"${oc.decode:${oc.env:E_INT}}", "12"},
      {"${oc.decode:${oc.env:E_LIST}}", "[1, 10]"},
      {"${oc.decode:null}", "None"},
      {"${oc.decode:'{a: 1, b: [x]}'}", "{'a': 1, 'b': ['x']}"},
      {"${oc.decode:' 12 '}", "' 12 '"},
      {"${oc.select:a}", "10"},
      {"${oc.select:nope}", "None"},
      {"${oc.select:nope,5}", "5"},
      {"${oc.select:m,5}", "5"},
      {"${oc.select:n,5}", "None"},
      {"${oc.select:a.b,5}", "5"},
      {"${oc.select:.a}", "10"},
      {"${oc.create:{a: 1, b: [1,2]}}", "{'a': 1, 'b': [1, 2]}"},
      {"${oc.create:[1,${a}]}", "[1, 10]"},
      {"${oc.create:'x: 1'}", "{'x': 1}"},
      {"${oc.create:abc}", "{'abc': None}"},
      {"${oc.create:[a:b, c : d]}", "['a:b', 'c : d']"},
      {"${oc.create:[a\\,b, \\ x\\ ]}", "['a,b', ' x ']"},
      {"${oc.create:[1,,2,]}", "[1, '', 2, '']"},
      {"${oc.create:['a\\'b', \"x\\\"y\", 'z\\\\', 'q\\n']}", R"(["a'b", 'x"y', 'z\\', 'q\\n'])"},
      {"${oc.create:['${a}', \"${a}b\", '\\${a}']}", "['10', '10b', 10]"},
      {"${oc.create:[012, 1__0, 1., .5, 1e5, +1, -inf, NaN, nullx, TRUE, -, 1.2.3]}",
       "['012', '1__0', 1.0, 0.5, 100000.0, 1, -inf, nan, 'nullx', True, '-', '1.2.3']"},
      {"${oc.dict.keys:d}", "['p', 'q']"},
      {"${oc.dict.values:d}", "[1, {'r': 5, 'u': 5, 'v': 1, 'w': 10}]"},
      {"${multiply:2,3}", "6"},
      {"${multiply:${a},1.5}", "15.0"},
      {"${multiply:true,2}", "2"},
      {"${sum:1,2}", "3"},
      {"${sum:-1,-2.5}", "-3.5"},
      {"${sum:'a','b'}", "'ab'"},
      {"${sum:[1],[2]}", "[1, 2]"},
      {"${oc.deprecated:a}", "10"},
      {"${gpu_name:}", "'cpu'"},
  };
  for (const auto& [expression, expected] : rows) {
    const auto value = resolve(expression);
    ASSERT_TRUE(value.ok()) << expression << ": " << value.status().to_string();
    EXPECT_EQ(python_repr(value.value()), expected) << expression;
  }
}

TEST(ResolverTest, ErrorsSayWhatIsWrong) {
  const std::pair<const char*, const char*> rows[] = {
      {"${nope}", "Interpolation key 'nope' not found"},
      {"${d.nope}", "Interpolation key 'd.nope' not found"},
      {"${l.5}", "Interpolation key 'l.5' not found"},
      {"${l.-1}", "not found"},
      {"${a.b}", "'a' is an int and cannot contain 'b'"},
      {"${n.x}", "'n' is null and cannot contain 'x'"},
      {"${m}", "Missing mandatory value: m"},
      {"${m.x}", "Missing mandatory value: m"},
      {"${..a}", "above the root"},
      {"${foo:1}", "Unsupported interpolation type foo"},
      {"${oc.env:NOPE}", "Environment variable 'NOPE' not found"},
      {"${oc.decode:12}", "takes a string"},
      {"${oc.decode:'a(b'}", "bad interpolation syntax"},
      {"${oc.create:1}", "not an int"},
      {"${oc.dict.keys:a}", "'a' is an int"},
      {"${multiply:1}", "takes 2 arguments"},
      {"${multiply:9223372036854775807,2}", "64 bits"},
      {"${sum:99999999999999999999,2}", "64 bits"},
      {"${now:}", "takes 1 arguments"},
      {"${now:7}", "takes a string"},
      {"${oc.env:}", "takes 1 to 2 arguments"},
      {"${${a}}", "must give a string"},
      {"${.}", "a key was expected"},
      {"${a", "bad interpolation syntax"},
      {"${}", "bad interpolation syntax"},
      {"${a b}", "bad interpolation syntax"},
      {"${d..p}", "bad interpolation syntax"},
      {"${a${key}}", "whole key"},
      {"${oc.create:{'a': b}}", "bad interpolation syntax"},
      {"${oc.create:[a=b]}", "bad interpolation syntax"},
  };
  for (const auto& [expression, expected] : rows) {
    const auto value = resolve(expression);
    ASSERT_FALSE(value.ok()) << expression << " -> " << python_repr(value.value());
    EXPECT_NE(value.status().to_string().find(expected), std::string::npos)
        << expression << ": " << value.status().to_string();
    EXPECT_EQ(value.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ResolverTest, NowIsTheTimeOfItsFirstUse) {
  const auto text = [](const std::string& expression) {
    const auto value = resolve(expression);
    EXPECT_TRUE(value.ok()) << value.status().to_string();
    return value.ok() ? python_str(*value) : "";
  };
  std::time_t seconds = std::time(nullptr);
  std::tm local{};
  localtime_r(&seconds, &local);
  EXPECT_EQ(text("${now:%Y}"), std::to_string(local.tm_year + 1900));
  EXPECT_EQ(text("${now:%Y-%m-%d}/${now:%H-%M-%S}").size(), 19u);
  EXPECT_EQ(text("x${now:%Z%z}y"), "xy");
  EXPECT_EQ(text("${now:%%f}"), "%f");
  // Microseconds, and the same ones again.
  const std::string first = text("${now:%H:%M:%S.%f}");
  EXPECT_EQ(first.size(), 15u);
  EXPECT_EQ(text("${now:%H:%M:%S.%f}"), first);
}

TEST(ResolverTest, WhatTheEnvironmentHoldsCanStayAnExpression) {
  const Value tree = parse_yaml(R"(
direct: ${oc.env:E_INT}
text: x/${oc.env:E_INT}/y
again: ${direct}
decoded: ${oc.decode:${oc.env:E_INT}}
default: ${oc.env:NOPE,fallback}
selected: ${oc.select:text}
node: {inner: '${oc.env:E_INT}', size: 3}
copy: ${node}
size: ${node.size}
list: [1, '${text}']
)",
                                "t.yaml")
                         .value();
  ResolveOptions keep = options();
  keep.keep_env = true;
  const auto kept = resolve_all(tree, keep);
  ASSERT_TRUE(kept.ok()) << kept.status().to_string();
  for (const char* key : {"direct", "text", "again", "decoded", "default", "selected", "node.inner",
                          "copy", "list.1"}) {
    EXPECT_EQ(*kept->find(key), *tree.find(key)) << key;
    EXPECT_TRUE(kept->find(key)->is_interpolation()) << key;
  }
  EXPECT_EQ(*kept->find("size"), Value(3));
  EXPECT_EQ(emit_yaml(*kept)->find("12"), std::string::npos);
  // Read again where the variable is set: the same values.
  EXPECT_EQ(resolve_all(*kept, options()).value(), resolve_all(tree, options()).value());

  ResolveOptions elsewhere;
  elsewhere.env = [](const std::string&) { return std::nullopt; };
  EXPECT_FALSE(resolve_all(*kept, elsewhere).ok());
  elsewhere.unset_env_is_missing = true;
  const auto read = resolve_all(*kept, elsewhere);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(read->find("direct")->is_missing());
  EXPECT_TRUE(read->find("decoded")->is_missing());
  EXPECT_EQ(*read->find("default"), Value("fallback"));
  EXPECT_EQ(*read->find("copy.size"), Value(3));
}

TEST(ResolverTest, ErrorsNameFileKeyAndNearestName) {
  const Value tree =
      parse_yaml("model:\n  encoder: {d_model: 8}\n  x: ${model.encoder.d_modle}\n", "n.yaml")
          .value();
  const auto value = resolve_all(tree);
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.status().to_string(),
            "n.yaml:3:6: model.x='${model.encoder.d_modle}': Interpolation key "
            "'model.encoder.d_modle' not found (did you mean 'd_model'?)");
}

TEST(ResolverTest, CyclesNameTheirChain) {
  const auto failure = [](const char* yaml) {
    const auto value = resolve_all(parse_yaml(yaml, "t.yaml").value());
    EXPECT_FALSE(value.ok()) << yaml;
    return value.ok() ? std::string() : value.status().to_string();
  };
  EXPECT_NE(failure("a: ${b}\nb: ${c}\nc: ${a}").find("a -> b -> c -> a"), std::string::npos);
  EXPECT_NE(failure("a: ${a}").find("a -> a"), std::string::npos);
  EXPECT_NE(failure("a: {b: '${a}'}").find("parent node"), std::string::npos);
  EXPECT_NE(failure("a: {x: '${b}'}\nb: {y: '${a}'}").find("contains itself"), std::string::npos);
  EXPECT_NE(failure("a: x${b}\nb: y${a}").find("Recursive"), std::string::npos);
}

TEST(ResolverTest, ResolveAllKeepsOrderOriginsAndMissing) {
  const Value tree =
      parse_yaml("b: ${a}\na: 3\nm: ???\nlist: [1, '${a}', {x: '${..0}'}]\n1: ${b}", "t.yaml")
          .value();
  const auto all = resolve_all(tree);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_EQ(python_repr(all.value()),
            "{'b': 3, 'a': 3, 'm': '\?\?\?', 'list': [1, 3, {'x': 1}], 1: 3}");
  EXPECT_TRUE(all->find("m")->is_missing());
  EXPECT_EQ(all->find("b")->origin().to_string(), "t.yaml:1:4");
}

TEST(ResolverTest, ReadsAreCollected) {
  const Value tree =
      parse_yaml("v: {w: 1}\nu: ${v}\na: ${u.w}\nb: ${oc.select:extra.key,3}\nextra: {key: 2}",
                 "t.yaml")
          .value();
  std::set<std::string> reads;
  ResolveOptions with_reads;
  with_reads.reads = &reads;
  ASSERT_TRUE(resolve_all(tree, with_reads).ok());
  EXPECT_EQ(reads, (std::set<std::string>{"v", "u", "v.w", "extra.key"}));
}

TEST(ResolverTest, ResolveAtTellsAbsentFromMissing) {
  const Value tree = base_with("x");
  EXPECT_EQ(resolve_at(tree, "nope").status().code(), StatusCode::kNotFound);
  EXPECT_NE(resolve_at(tree, "m").status().to_string().find("Missing mandatory value: m"),
            std::string::npos);
  EXPECT_EQ(python_repr(resolve_at(tree, "ref.q.r").value()), "5");
  EXPECT_EQ(python_repr(resolve_at(tree, "d.q").value()), "{'r': 5, 'u': 5, 'v': 1, 'w': 10}");
}

TEST(ResolverTest, DeprecatedKeysWarn) {
  std::string warning;
  ResolveOptions with_warning;
  with_warning.warn = [&](const std::string& text) { warning = text; };
  ASSERT_TRUE(resolve_at(base_with("${oc.deprecated:a}"), "zz", with_warning).ok());
  EXPECT_EQ(warning, "'zz' is deprecated. Change your code and config to use 'a'");
}

TEST(ResolverTest, ExpansionIsBounded) {
  // Doubling text, doubling lists, doubling nothing at all, and a long chain.
  std::string text = "a0: xxxxxxxxxx\n", list = "a0: [x]\n", empty = "a0: ''\n", chain = "a0: 1\n";
  for (int i = 1; i < 60; ++i) {
    text += str_cat("a", i, ": ${a", i - 1, "}${a", i - 1, "}\n");
    list += str_cat("a", i, ": ['${a", i - 1, "}', '${a", i - 1, "}']\n");
    empty += str_cat("a", i, ": ${a", i - 1, "}${a", i - 1, "}\n");
  }
  for (int i = 1; i < 500; ++i) chain += str_cat("a", i, ": ${a", i - 1, "}\n");
  EXPECT_FALSE(resolve_all(parse_yaml(text, "t").value()).ok());
  EXPECT_FALSE(resolve_all(parse_yaml(list, "t").value()).ok());
  EXPECT_TRUE(resolve_all(parse_yaml(empty, "t").value()).ok());
  EXPECT_FALSE(resolve_at(parse_yaml(chain, "t").value(), "a499").ok());
  // From the near end every link is known when the next one asks.
  EXPECT_TRUE(resolve_all(parse_yaml(chain, "t").value()).ok());
  EXPECT_FALSE(check_interpolation("${" + std::string(100000, '.')).ok());
  std::string nested;
  for (int i = 0; i < 10000; ++i) nested += "${a.";
  EXPECT_FALSE(check_interpolation(nested).ok());
  EXPECT_FALSE(check_interpolation("${oc.create:" + std::string(10000, '[')).ok());
}

}  // namespace
}  // namespace aerie::config
