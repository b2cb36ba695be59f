#include "aerie/data/nuscenes/tables/small_tables.h"

#include <algorithm>
#include <limits>

#include "aerie/base/path.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"

namespace aerie::nuscenes {

namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// Of the tables whose rows are names: nuScenes has up to 68 of a kind.
constexpr uint32_t kMaxNames = 65535;

Status not_too_many(uint32_t row) {
  if (row < kMaxNames) return ok_status();
  return data_error(str_cat("such a table has at most ", kMaxNames, " rows"));
}

// Largest first: they are read side by side.
constexpr std::string_view kSmallTables[] = {
    "instance", "sample", "calibrated_sensor", "scene",     "log",
    "map",      "sensor", "category",          "attribute", "visibility"};

int channel_number(std::string_view channel) {
  for (int i = 0; i < kNumCameras; ++i) {
    if (kCameras[i] == channel) return i;
  }
  return channel == kLidarChannel ? index_format::kLidar : -1;
}

// "1" to "4" are the tokens of nuScenes; other tokens are known by their level.
uint8_t visibility_level(std::string_view token, std::string_view level) {
  constexpr std::string_view kLevels[] = {"v0-40", "v40-60", "v60-80", "v80-100"};
  for (uint8_t i = 0; i < 4; ++i) {
    if (level == kLevels[i]) return static_cast<uint8_t>(i + 1);
  }
  if (token.size() == 1 && token[0] >= '1' && token[0] <= '4')
    return static_cast<uint8_t>(token[0] - '0');
  return 0;
}

Status not_empty(const std::string& path, size_t rows) {
  if (rows > 0) return ok_status();
  return data_error("the table has no rows").with_context(path);
}

}  // namespace

std::string table_path(const std::string& tables_dir, std::string_view table) {
  return join_path(tables_dir, str_cat(table, ".json"));
}

Status for_each_row(Env& env, const std::string& path, std::span<const std::string_view> keys,
                    const ReadProgress& progress,
                    const std::function<Status(const RowParser& row, uint32_t number)>& visit) {
  RowParser parser(keys);
  return read_rows(
      env, path,
      [&](std::string_view object, uint64_t row) -> Status {
        if (row >= TokenTable::kNone) return data_error("a table may have at most 2^32 - 2 rows");
        AERIE_RETURN_IF_ERROR(parser.parse(object));
        return visit(parser, static_cast<uint32_t>(row));
      },
      progress);
}

Status join_error(const std::string& path, uint32_t row, std::string_view key, std::string what) {
  return data_error(std::move(what))
      .with_context(str_cat("key '", key, "'"))
      .with_context(row_name(row))
      .with_context(path);
}

std::string unresolved(const Token& token, std::string_view table) {
  return str_cat(to_string(token), " is the token of no row of ", table, ".json");
}

Status SmallTables::read_calibrations(Env& env, const std::string& path,
                                      const ReadProgress& progress) {
  static constexpr std::string_view kKeys[] = {"token", "sensor_token", "translation", "rotation",
                                               "camera_intrinsic"};
  return for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
    Token token, sensor;
    Vec3 t;
    Quaternion q;
    Mat3 k;
    bool has_intrinsic = false;
    AERIE_RETURN_IF_ERROR(row.token(0, token));
    AERIE_RETURN_IF_ERROR(row.token(1, sensor));
    AERIE_RETURN_IF_ERROR(row.translation(2, t));
    AERIE_RETURN_IF_ERROR(row.rotation(3, q));
    AERIE_RETURN_IF_ERROR(row.intrinsic(4, k, has_intrinsic));
    index_format::CalibrationRecord record{{q.w, q.x, q.y, q.z}, {t.x, t.y, t.z}, {}};
    if (has_intrinsic) std::copy(k.m.begin(), k.m.end(), record.intrinsic);
    calibration_tokens.add(token, number);
    calibrations.push_back(record);
    calibration_sensors_.push_back(sensor);
    has_intrinsic_.push_back(has_intrinsic);
    return ok_status();
  });
}

Status SmallTables::read_scenes(Env& env, const std::string& path, const ReadProgress& progress) {
  static constexpr std::string_view kKeys[] = {
      "token", "log_token", "first_sample_token", "last_sample_token", "nbr_samples", "name"};
  return for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
    SceneRow scene;
    std::string_view name;
    AERIE_RETURN_IF_ERROR(row.token(0, scene.token));
    AERIE_RETURN_IF_ERROR(row.token(1, scene.log));
    AERIE_RETURN_IF_ERROR(row.token(2, scene.first_sample));
    AERIE_RETURN_IF_ERROR(row.token(3, scene.last_sample));
    AERIE_RETURN_IF_ERROR(row.integer(4, 0, kMaxInt64, scene.num_samples));
    AERIE_RETURN_IF_ERROR(row.text(5, name));
    scene.name = name;
    scene_tokens.add(scene.token, number);
    scenes.push_back(std::move(scene));
    return ok_status();
  });
}

Status SmallTables::read_samples(Env& env, const std::string& path, const ReadProgress& progress) {
  static constexpr std::string_view kKeys[] = {"token", "timestamp", "scene_token", "prev", "next"};
  return for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
    SampleRow sample;
    AERIE_RETURN_IF_ERROR(row.token(0, sample.token));
    AERIE_RETURN_IF_ERROR(row.integer(1, 0, kMaxInt64, sample.timestamp_us));
    AERIE_RETURN_IF_ERROR(row.token(2, sample.scene));
    AERIE_RETURN_IF_ERROR(row.optional_token(3, sample.prev, sample.has_prev));
    AERIE_RETURN_IF_ERROR(row.optional_token(4, sample.next, sample.has_next));
    sample_tokens.add(sample.token, number);
    samples.push_back(sample);
    return ok_status();
  });
}

Status SmallTables::read_instances(Env& env, const std::string& path,
                                   const ReadProgress& progress) {
  static constexpr std::string_view kKeys[] = {"token", "category_token"};
  return for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
    Token token, category;
    AERIE_RETURN_IF_ERROR(row.token(0, token));
    AERIE_RETURN_IF_ERROR(row.token(1, category));
    instance_tokens.add(token, number);
    instance_category_tokens_.push_back(category);
    return ok_status();
  });
}

Status SmallTables::read_visibilities(Env& env, const std::string& path,
                                      const ReadProgress& progress) {
  static constexpr std::string_view kKeys[] = {"token", "level"};
  return for_each_row(
      env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) -> Status {
        std::string_view token, level;
        AERIE_RETURN_IF_ERROR(not_too_many(number));
        AERIE_RETURN_IF_ERROR(row.text(0, token));
        AERIE_RETURN_IF_ERROR(row.text(1, level));
        if (!visibilities.emplace(token, visibility_level(token, level)).second)
          return data_error(str_cat("'", token, "' is the token of an earlier row too"))
              .with_context("key 'token'");
        return ok_status();
      });
}

Status SmallTables::read_named(Env& env, const std::string& path, std::string_view name_key,
                               const ReadProgress& progress, TokenTable& tokens,
                               std::vector<std::string>& names) {
  const std::string_view keys[] = {"token", name_key};
  return for_each_row(env, path, keys, progress, [&](const RowParser& row, uint32_t number) {
    Token token;
    std::string_view name;
    AERIE_RETURN_IF_ERROR(not_too_many(number));
    AERIE_RETURN_IF_ERROR(row.token(0, token));
    AERIE_RETURN_IF_ERROR(row.text(1, name));
    tokens.add(token, number);
    names.emplace_back(name);
    return ok_status();
  });
}

Status SmallTables::read_table(Env& env, std::string_view table, const ReadProgress& progress) {
  const std::string path = table_path(dir, table);
  const auto finish = [&](TokenTable& tokens, bool needed) -> Status {
    AERIE_RETURN_IF_ERROR(tokens.finish().with_context(path));
    return needed ? not_empty(path, tokens.size()) : ok_status();
  };
  if (table == "sample") {
    AERIE_RETURN_IF_ERROR(read_samples(env, path, progress));
    return finish(sample_tokens, true);
  }
  if (table == "scene") {
    AERIE_RETURN_IF_ERROR(read_scenes(env, path, progress));
    return finish(scene_tokens, true);
  }
  if (table == "calibrated_sensor") {
    AERIE_RETURN_IF_ERROR(read_calibrations(env, path, progress));
    return finish(calibration_tokens, true);
  }
  if (table == "instance") {
    AERIE_RETURN_IF_ERROR(read_instances(env, path, progress));
    return finish(instance_tokens, false);
  }
  if (table == "log") {
    AERIE_RETURN_IF_ERROR(read_named(env, path, "location", progress, log_tokens, locations));
    return finish(log_tokens, true);
  }
  if (table == "sensor") {
    AERIE_RETURN_IF_ERROR(
        read_named(env, path, "channel", progress, sensor_tokens_, sensor_channels_));
    return finish(sensor_tokens_, true);
  }
  if (table == "category") {
    AERIE_RETURN_IF_ERROR(read_named(env, path, "name", progress, category_tokens_, categories));
    return finish(category_tokens_, false);
  }
  if (table == "visibility") return read_visibilities(env, path, progress);
  if (table == "map") {
    static constexpr std::string_view kKeys[] = {"filename", "log_tokens"};
    std::vector<Token> logs;
    return for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t) {
      std::string_view filename;
      AERIE_RETURN_IF_ERROR(row.text(0, filename));
      return row.tokens(1, logs);
    });
  }
  // attribute: only that it is a table.
  static constexpr std::string_view kKeys[] = {"token"};
  return for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t) {
    std::string_view token;
    return row.text(0, token);
  });
}

Status SmallTables::join_calibrations() {
  calibration_channels.resize(calibrations.size());
  for (uint32_t row = 0; row < calibrations.size(); ++row) {
    const uint32_t sensor = sensor_tokens_.find(calibration_sensors_[row]);
    if (sensor == TokenTable::kNone)
      return join_error(table_path(dir, "calibrated_sensor"), row, "sensor_token",
                        unresolved(calibration_sensors_[row], "sensor"));
    const int channel = channel_number(sensor_channels_[sensor]);
    if (channel >= 0 && channel < kNumCameras && !has_intrinsic_[row])
      return join_error(table_path(dir, "calibrated_sensor"), row, "camera_intrinsic",
                        str_cat("it is empty, but the sensor is ", sensor_channels_[sensor]));
    calibration_channels[row] = channel;
  }
  return ok_status();
}

Status SmallTables::join_instances() {
  instance_categories.resize(instance_category_tokens_.size());
  for (uint32_t row = 0; row < instance_categories.size(); ++row) {
    const uint32_t category = category_tokens_.find(instance_category_tokens_[row]);
    if (category == TokenTable::kNone)
      return join_error(table_path(dir, "instance"), row, "category_token",
                        unresolved(instance_category_tokens_[row], "category"));
    instance_categories[row] = static_cast<uint16_t>(category);
  }
  return ok_status();
}

Status SmallTables::read(Env& env, const std::string& tables_dir, unsigned threads,
                         const ReadProgress& progress) {
  dir = tables_dir;
  ThreadPool pool({.name = "tables", .num_threads = static_cast<int>(threads)});
  AERIE_RETURN_IF_ERROR(pool.parallel_for(std::size(kSmallTables), [&](size_t i) {
    return read_table(env, kSmallTables[i], progress);
  }));
  AERIE_RETURN_IF_ERROR(join_calibrations());
  return join_instances();
}

}  // namespace aerie::nuscenes
