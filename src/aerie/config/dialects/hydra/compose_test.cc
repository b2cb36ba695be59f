#include "aerie/config/dialects/hydra/compose.h"

#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"

namespace aerie::config {
namespace {

namespace fs = std::filesystem;

class ComposeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) /
        str_cat("compose_test_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    write("config", "defaults:\n  - db: mysql\n  - _self_\nx: 1\ndb:\n  port: 1\n");
    write("db/mysql", "driver: mysql\nport: 3306\n");
    write("db/pg", "driver: pg\nport: 5432\nuser: me\n");
    write("db/glob", "# @package _global_\nfoo: 1\n");
    write("db/pk", "# @package a.b\nfoo: 1\n");
    write("db/nested", "defaults:\n  - eng: inno\n  - mysql\nn: 1\n");
    write("db/eng/inno", "e: inno\n");
    write("db/eng/my", "e: my\n");
    write("srv/nginx", "name: nginx\n");
    write("srv/abs", "defaults:\n  - /db: mysql\n  - _self_\nn: 2\n");
    write("other", "o: 1\nx: 5\n");
    write("mysql_nginx", "combo: here\n");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    const fs::path path = folder_ / (name + ".yaml");
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  Result<Composed> run(std::vector<std::string> overrides, const std::string& name = "config") {
    ComposeRequest request;
    request.config_path = folder_.string();
    request.config_name = name;
    request.overrides = std::move(overrides);
    return compose(request);
  }

  std::string shown(std::vector<std::string> overrides, const std::string& name = "config") {
    const auto composed = run(std::move(overrides), name);
    if (composed.ok()) return python_repr(composed->config);
    EXPECT_EQ(composed.status().code(), StatusCode::kInvalidArgument);
    return composed.status().to_string();
  }

  std::string with(const std::string& primary, std::vector<std::string> overrides = {}) {
    write("config", primary);
    return shown(std::move(overrides));
  }

  bool fails_with(const std::string& shown_text, const std::string& part) {
    return shown_text.find(part) != std::string::npos;
  }

  fs::path folder_;
};

// What is expected here was taken from Hydra 1.3.2.

TEST_F(ComposeTest, AFileWithoutDefaultsIsItself) {
  write("plain", "b: ${a}\na: \?\?\?\n");
  EXPECT_EQ(shown({}, "plain"), "{'b': '${a}', 'a': '\?\?\?'}");
  EXPECT_EQ(shown({"a=3"}, "plain.yaml"), "{'b': '${a}', 'a': 3}");
  write("empty", "# nothing\n");
  EXPECT_EQ(shown({}, "empty"), "{}");
}

TEST_F(ComposeTest, GroupsAreMergedInOrder) {
  EXPECT_EQ(shown({}), "{'db': {'driver': 'mysql', 'port': 1}, 'x': 1}");
  EXPECT_EQ(shown({"db=pg"}), "{'db': {'driver': 'pg', 'port': 1, 'user': 'me'}, 'x': 1}");
  EXPECT_EQ(shown({"db.port=7", "db=pg"}),
            "{'db': {'driver': 'pg', 'port': 7, 'user': 'me'}, 'x': 1}");
  EXPECT_EQ(shown({"~db"}), "{'x': 1, 'db': {'port': 1}}");
  EXPECT_EQ(shown({"+srv=nginx"}),
            "{'db': {'driver': 'mysql', 'port': 1}, 'x': 1, 'srv': {'name': 'nginx'}}");
  EXPECT_EQ(shown({"db={port:3}"}), "{'db': {'driver': 'mysql', 'port': 3}, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - _self_\n  - db: mysql\ndb: {port: 1}\n"),
            "{'db': {'port': 3306, 'driver': 'mysql'}}");
  EXPECT_EQ(with("defaults:\n  - db: mysql\ndb: {port: 1}\n"),
            "{'db': {'driver': 'mysql', 'port': 1}}");
  EXPECT_EQ(with("defaults:\n  - other\nx: 1\n"), "{'o': 1, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - _self_\n  - other\nx: 1\n"), "{'x': 5, 'o': 1}");
}

TEST_F(ComposeTest, PackagesMoveContent) {
  EXPECT_EQ(with("defaults:\n  - db@backup: mysql\n  - db@main: pg\nx: 1\n", {"db@main=mysql"}),
            "{'backup': {'driver': 'mysql', 'port': 3306}, 'main': {'driver': 'mysql', 'port': "
            "3306}, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db@_global_: mysql\nx: 1\n"),
            "{'driver': 'mysql', 'port': 3306, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db@_here_: mysql\nx: 1\n"),
            "{'driver': 'mysql', 'port': 3306, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db@a._group_: mysql\nx: 1\n"),
            "{'a': {'db': {'driver': 'mysql', 'port': 3306}}, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db: glob\nx: 1\n"), "{'foo': 1, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db: pk\nx: 1\n"), "{'a': {'b': {'foo': 1}}, 'x': 1}");
  EXPECT_EQ(with("# @package foo.bar\nx: 1\n"), "{'foo': {'bar': {'x': 1}}}");
  EXPECT_EQ(with("x: 1\n", {"+db@x.y=glob"}), "{'x': {'y': {'foo': 1}}}");
}

TEST_F(ComposeTest, NestedListsOverridesAndInterpolation) {
  const std::string nested =
      "{'db': {'eng': {'e': 'inno'}, 'driver': 'mysql', 'port': 3306, 'n': 1}, 'x': 1}";
  EXPECT_EQ(with("defaults:\n  - db: nested\nx: 1\n"), nested);
  EXPECT_NE(with("defaults:\n  - db: nested\n  - override db/eng: my\nx: 1\n").find("'e': 'my'"),
            std::string::npos);
  EXPECT_EQ(with("defaults:\n  - db: nested\n  - override db/eng: my\nx: 1\n", {"db/eng=inno"}),
            nested);
  EXPECT_EQ(with("defaults:\n  - srv: abs\nx: 1\n"),
            "{'srv': {'db': {'driver': 'mysql', 'port': 3306}, 'n': 2}, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db: mysql\n  - srv: nginx\n  - ${db}_${srv}\nx: 1\n"),
            "{'db': {'driver': 'mysql', 'port': 3306}, 'srv': {'name': 'nginx'}, 'combo': 'here', "
            "'x': 1}");
  EXPECT_EQ(with("defaults:\n  - db: [mysql, pg]\nx: 1\n"),
            "{'db': {'driver': 'pg', 'port': 5432, 'user': 'me'}, 'x': 1}");
  EXPECT_EQ(with("defaults:\n  - optional db: nope\n  - db@y: null\nx: 1\n"), "{'x': 1}");
  EXPECT_EQ(with("defaults:\n  - _self_\n  - override hydra/job_logging: none\nx: 1\n"),
            "{'x': 1}");
}

TEST_F(ComposeTest, HydrasOwnKeysHaveNoEffect) {
  write("config", "x: 1\nhydra: {run: {dir: foo}}\n");
  const auto composed = run({"hydra.run.dir=.", "hydra/job_logging=stdout", "x=2"});
  ASSERT_TRUE(composed.ok());
  EXPECT_EQ(python_repr(composed->config), "{'x': 2}");
  EXPECT_EQ(composed->ignored,
            (std::vector<std::string>{"hydra.run.dir=.", "hydra/job_logging=stdout"}));
}

TEST_F(ComposeTest, MissingConfigsShowTheSearchPathAndNearNames) {
  const std::string primary = shown({}, "confg");
  EXPECT_TRUE(fails_with(primary, "Cannot find primary config 'confg'")) << primary;
  EXPECT_TRUE(fails_with(primary, folder_.string())) << primary;
  EXPECT_TRUE(fails_with(primary, "did you mean 'config'?")) << primary;
  const std::string option = shown({"db=mysqll"});
  EXPECT_TRUE(fails_with(option, "Could not find 'db/mysqll'")) << option;
  EXPECT_TRUE(fails_with(option, "Available options in 'db':\n    glob\n    mysql")) << option;
  EXPECT_TRUE(fails_with(with("defaults:\n  - nope\n"), "config.yaml:2:5: Could not load 'nope'"));
  ComposeRequest request;
  request.config_path = (folder_ / "absent").string();
  request.config_name = "x";
  EXPECT_TRUE(fails_with(compose(request).status().to_string(), "config directory"));
}

TEST_F(ComposeTest, BadListsAreRefused) {
  const std::pair<const char*, const char*> rows[] = {
      {"defaults: x\n", "defaults must be a list"},
      {"defaults:\n  - 1\n", "config.yaml:2:5"},
      {"defaults:\n  - {a: b, c: d}\n", "'group: option'"},
      {"defaults:\n  - db: 1\n", "is a string, a list of strings or null"},
      {"defaults:\n  - _self_\n  - _self_\n", "Duplicate _self_"},
      {"defaults:\n  - db: mysql\n  - db: pg\n", "Multiple values for db"},
      {"defaults:\n  - db: mysql\n  - db: mysql\n", "appears more than once"},
      {"defaults:\n  - override db/eng: my\n  - db: nested\n", "must be at the end"},
      {"defaults:\n  - db: nested\n  - override nope: my\n", "No match in the defaults list"},
      {"defaults:\n  - db: \?\?\?\n", "You must specify 'db', e.g, db=<OPTION>"},
      {"defaults:\n  - config\n", "include itself"},
      {"defaults:\n  - combo: ${nope}\n", "Error resolving interpolation"},
      {"defaults:\n  - db: mysql\n  - _self_\ndb: [1]\n", "cannot merge a list"},
      {"- 1\n", "a config is a map"},
      {"# @package a b\nx: 1\n", "config.yaml:1"},
      {"a: 1\na: 2\n", "duplicate key"},
  };
  for (const auto& [text, expected] : rows) {
    const std::string failure = with(text);
    EXPECT_TRUE(fails_with(failure, expected)) << text << " -> " << failure;
  }
  write("config", "x: 1\n");
  EXPECT_TRUE(fails_with(shown({"srv=nginx"}), "To append to your default list use +srv=nginx"));
  EXPECT_TRUE(fails_with(shown({"++db=pg"}), "force-add of config groups"));
  for (const char* null : {"db=null", "+db=null", "db@x=null"})
    EXPECT_TRUE(fails_with(shown({null}), "must be a string or a list, not null")) << null;
  EXPECT_TRUE(fails_with(shown({"~db"}), "Could not delete 'db'"));
}

TEST_F(ComposeTest, ListsThatMultiplyAreBounded) {
  for (int i = 0; i < 30; ++i) {
    write(str_cat("f", i), str_cat("defaults:\n  - f", i + 1, "\n  - f", i + 1, "\n"));
  }
  write("f30", "x: 1\n");
  EXPECT_TRUE(fails_with(shown({}, "f0"), "more than"));
}

TEST_F(ComposeTest, OverrideErrorsNameTheFile) {
  const std::string failure = shown({"y=2"});
  EXPECT_TRUE(fails_with(failure, "config.yaml")) << failure;
  EXPECT_TRUE(fails_with(failure, "Could not override 'y'")) << failure;
}

TEST_F(ComposeTest, KnownDefaultsNeedNoPlus) {
  ComposeRequest request;
  request.config_path = folder_.string();
  request.config_name = "config";
  Value known = parse_yaml("aerie: {seed: 1, data: {cache: null}}\nx: 9\n", "known").value();
  request.known_defaults = known.set_origin_deep(Origin::by_default());
  request.overrides = {"aerie.seed=5"};
  const auto composed = compose(request);
  ASSERT_TRUE(composed.ok()) << composed.status().to_string();
  EXPECT_EQ(python_repr(composed->config),
            "{'db': {'driver': 'mysql', 'port': 1}, 'x': 1, 'aerie': {'seed': 5, 'data': {'cache': "
            "None}}}");
  EXPECT_EQ(composed->config.find("aerie.seed")->origin().to_string(),
            "command line: aerie.seed=5");
  EXPECT_EQ(composed->config.find("aerie.data.cache")->origin().to_string(), "default");
  EXPECT_EQ(composed->files.size(), 2u);
  EXPECT_EQ(composed->choices[0], (std::pair<std::string, std::string>("db", "mysql")));
  request.overrides = {"aerie.sede=5"};
  EXPECT_FALSE(compose(request).ok());
}

TEST_F(ComposeTest, ConfigDirIsSearchedSecond) {
  const fs::path second = folder_ / "second";
  fs::create_directories(second / "db");
  std::ofstream(second / "db" / "extra.yaml") << "driver: extra\n";
  std::ofstream(second / "db" / "mysql.yaml") << "driver: wrong\n";
  ComposeRequest request;
  request.config_path = folder_.string();
  request.config_name = "config";
  request.config_dir = second.string();
  EXPECT_EQ(python_repr(compose(request).value().config),
            "{'db': {'driver': 'mysql', 'port': 1}, 'x': 1}");
  request.overrides = {"db=extra"};
  EXPECT_EQ(python_repr(compose(request).value().config),
            "{'db': {'driver': 'extra', 'port': 1}, 'x': 1}");
}

// A map merged over an interpolation of a map goes into a copy of it.
TEST_F(ComposeTest, MergeFollowsInterpolations) {
  write("withref", "ref: ${q}\nq: {r: 1}\n");
  EXPECT_EQ(with("defaults:\n  - withref\n  - _self_\nref: {s: 2}\n"),
            "{'ref': {'r': 1, 's': 2}, 'q': {'r': 1}}");
}

}  // namespace
}  // namespace aerie::config
