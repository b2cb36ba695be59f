// The tables that fit in memory whole, and what the large ones are looked up in. Internal to the
// reader.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/index_format.h"
#include "aerie/data/nuscenes/tables/row_parser.h"
#include "aerie/data/nuscenes/tables/table_reader.h"
#include "aerie/data/nuscenes/tables/token_table.h"

namespace aerie::nuscenes {

using ReadProgress = std::function<void(uint64_t bytes)>;

// Reads one table row by row through a parser of `keys`; row numbers fit in 32 bits.
Status for_each_row(Env& env, const std::string& path, std::span<const std::string_view> keys,
                    const ReadProgress& progress,
                    const std::function<Status(const RowParser& row, uint32_t number)>& visit);

// An error found while tables are joined: "<file>: row 3 (counted from 0): key 'x': <what>".
Status join_error(const std::string& path, uint32_t row, std::string_view key, std::string what);
// "names no row of log.json: <token>"
std::string unresolved(const Token& token, std::string_view table);

struct SceneRow {
  Token token, log, first_sample, last_sample;
  int64_t num_samples = 0;
  std::string name;
};

struct SampleRow {
  Token token, scene, prev, next;
  int64_t timestamp_us = 0;
  bool has_prev = false, has_next = false;
};

struct SmallTables {
  // Reads ten tables, `threads` at a time, and joins what can be joined among them.
  Status read(Env& env, const std::string& tables_dir, unsigned threads,
              const ReadProgress& progress);

  std::string dir;
  TokenTable calibration_tokens;
  std::vector<index_format::CalibrationRecord> calibrations;
  std::vector<int> calibration_channels;  // place among our seven; -1: another sensor
  TokenTable instance_tokens;
  std::vector<uint16_t> instance_categories;
  std::vector<std::string> categories;
  std::map<std::string, uint8_t, std::less<>> visibilities;
  TokenTable log_tokens;
  std::vector<std::string> locations;  // of logs
  TokenTable scene_tokens;
  std::vector<SceneRow> scenes;
  TokenTable sample_tokens;
  std::vector<SampleRow> samples;

 private:
  Status read_table(Env& env, std::string_view table, const ReadProgress& progress);
  Status read_calibrations(Env& env, const std::string& path, const ReadProgress& progress);
  Status read_scenes(Env& env, const std::string& path, const ReadProgress& progress);
  Status read_samples(Env& env, const std::string& path, const ReadProgress& progress);
  Status read_instances(Env& env, const std::string& path, const ReadProgress& progress);
  Status read_visibilities(Env& env, const std::string& path, const ReadProgress& progress);
  Status read_named(Env& env, const std::string& path, std::string_view name_key,
                    const ReadProgress& progress, TokenTable& tokens,
                    std::vector<std::string>& names);
  Status join_calibrations();
  Status join_instances();

  TokenTable sensor_tokens_, category_tokens_;
  std::vector<std::string> sensor_channels_;
  std::vector<Token> calibration_sensors_, instance_category_tokens_;
  std::vector<bool> has_intrinsic_;
};

// Scenes and samples in their final order, with every link checked; fills scenes and samples of
// `content` (names go into its strings) and the final number of each row of sample.json.
Status order_samples(const SmallTables& tables, IndexContent& content,
                     std::vector<uint32_t>& number_of_row);

}  // namespace aerie::nuscenes
