// A data root of small tables, on the disk or in memory, for the tests of this folder.
#pragma once

#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/test_tables.h"

namespace aerie::nuscenes {

struct TestRoot {
  explicit TestRoot(Env& where = Env::real()) : env(where) {
    options.root = root;
    options.cache_dir = cache;
    options.quiet = true;
    options.threads = 2;
    write();
  }

  Env& env;
  TempDir dir;  // the same names are used in memory
  std::string root = dir.file("data"), cache = dir.file("cache");
  TestTables tables = two_scenes();
  NuscenesIndex::Options options;

  // Made once, copied often.
  static const TestTables& two_scenes() {
    static const TestTables made = TestTables::make({"scene-0061", "scene-0103"}, 4);
    return made;
  }
  std::string tables_dir() const { return root + "/v1.0-mini"; }
  std::string path(std::string_view table) const { return table_path(tables_dir(), table); }
  TestRow& row(std::string_view table, size_t number) {
    return tables.tables[std::string(table)].at(number);
  }
  void write() { ASSERT_TRUE(tables.write(env, tables_dir()).ok()); }
  void put(std::string_view table, std::string_view text) {
    ASSERT_TRUE(env.write_file(path(table), text).ok());
  }
  Result<std::shared_ptr<const NuscenesIndex>> open() { return NuscenesIndex::open(env, options); }
  // What open() complains about; empty: nothing.
  std::string error() {
    const auto opened = open();
    return opened.ok() ? std::string() : opened.status().to_string();
  }
};

}  // namespace aerie::nuscenes
