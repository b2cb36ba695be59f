#include "aerie/data/nuscenes/tables/table_reader.h"

#include <algorithm>
#include <limits>

#include "aerie/base/thread_pool.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/small_tables.h"
#include "aerie/data/nuscenes/tables/string_pool.h"

namespace aerie::nuscenes {

namespace {

using index_format::BoxRecord;
using index_format::FrameRecord;
using index_format::kNumChannels;

constexpr int64_t kMaxWhole = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxSide = 65535;  // of a JPEG

// sample_data.json, and the poses of what is kept of it.
class FrameReader {
 public:
  FrameReader(const SmallTables& small, const std::vector<uint32_t>& number_of_row,
              IndexContent& content)
      : small_(small), number_of_row_(number_of_row), content_(content), pool_(content.strings) {}

  Status read(Env& env, const ReadProgress& progress) {
    AERIE_RETURN_IF_ERROR(read_frames(env, progress));
    return read_poses(env, progress);
  }

 private:
  Status read_frames(Env& env, const ReadProgress& progress) {
    static constexpr std::string_view kKeys[] = {
        "token",        "sample_token", "ego_pose_token", "calibrated_sensor_token",
        "is_key_frame", "filename",     "width",          "height",
        "timestamp"};
    const std::string path = table_path(small_.dir, "sample_data");
    content_.frames.assign(content_.samples.size() * kNumChannels, {});
    row_of_slot_.assign(content_.frames.size(), TokenTable::kNone);
    TokenTable tokens;
    const Status status =
        for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
          Token token;
          AERIE_RETURN_IF_ERROR(row.token(0, token));
          tokens.add(token, number);
          return add_frame(row, number);
        });
    AERIE_RETURN_IF_ERROR(status);
    AERIE_RETURN_IF_ERROR(tokens.finish().with_context(path));
    if (tokens.size() == 0) return data_error("the table has no rows").with_context(path);
    return ok_status();
  }

  Status add_frame(const RowParser& row, uint32_t number) {
    Token sample_token, pose, calibration_token;
    bool is_key_frame = false;
    std::string_view filename;
    int64_t width = 0, height = 0, timestamp = 0;
    AERIE_RETURN_IF_ERROR(row.token(1, sample_token));
    AERIE_RETURN_IF_ERROR(row.token(2, pose));
    AERIE_RETURN_IF_ERROR(row.token(3, calibration_token));
    AERIE_RETURN_IF_ERROR(row.boolean(4, is_key_frame));
    AERIE_RETURN_IF_ERROR(row.integer(8, 0, kMaxWhole, timestamp));
    if (!is_key_frame) return ok_status();
    const uint32_t calibration = small_.calibration_tokens.find(calibration_token);
    if (calibration == TokenTable::kNone)
      return data_error(unresolved(calibration_token, "calibrated_sensor"))
          .with_context("key 'calibrated_sensor_token'");
    const uint32_t sample_row = small_.sample_tokens.find(sample_token);
    if (sample_row == TokenTable::kNone)
      return data_error(unresolved(sample_token, "sample")).with_context("key 'sample_token'");
    const int channel = small_.calibration_channels[calibration];
    if (channel < 0) return ok_status();
    AERIE_RETURN_IF_ERROR(row.path(5, filename));
    if (channel < kNumCameras) {
      AERIE_RETURN_IF_ERROR(row.integer(6, 1, kMaxSide, width));
      AERIE_RETURN_IF_ERROR(row.integer(7, 1, kMaxSide, height));
    }
    const size_t slot = size_t{number_of_row_[sample_row]} * kNumChannels + channel;
    if (row_of_slot_[slot] != TokenTable::kNone)
      return data_error(str_cat("sample ", to_string(sample_token), " has a key frame of ",
                                channel < kNumCameras ? kCameras[channel] : kLidarChannel,
                                " in row ", row_of_slot_[slot], " already"))
          .with_context("key 'is_key_frame'");
    row_of_slot_[slot] = number;
    FrameRecord& frame = content_.frames[slot];
    frame.exists = 1;
    frame.timestamp_us = timestamp;
    frame.calibration = calibration;
    frame.width = static_cast<uint16_t>(width);
    frame.height = static_cast<uint16_t>(height);
    AERIE_ASSIGN_OR_RETURN(frame.filename, pool_.add(filename));
    wanted_.push_back({pose, static_cast<uint32_t>(slot), false});
    return ok_status();
  }

  Status read_poses(Env& env, const ReadProgress& progress) {
    static constexpr std::string_view kKeys[] = {"token", "translation", "rotation", "timestamp"};
    const std::string path = table_path(small_.dir, "ego_pose");
    std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
      return a.pose != b.pose ? a.pose < b.pose : a.slot < b.slot;
    });
    TokenTable tokens;
    const Status status =
        for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
          Token token;
          Vec3 t;
          Quaternion q;
          int64_t timestamp = 0;
          AERIE_RETURN_IF_ERROR(row.token(0, token));
          AERIE_RETURN_IF_ERROR(row.translation(1, t));
          AERIE_RETURN_IF_ERROR(row.rotation(2, q));
          AERIE_RETURN_IF_ERROR(row.optional_integer(3, 0, kMaxWhole, timestamp));
          tokens.add(token, number);
          auto found = std::lower_bound(
              wanted_.begin(), wanted_.end(), token,
              [](const Wanted& wanted, const Token& pose) { return wanted.pose < pose; });
          for (; found != wanted_.end() && found->pose == token; ++found) {
            FrameRecord& frame = content_.frames[found->slot];
            const double rotation[4] = {q.w, q.x, q.y, q.z}, translation[3] = {t.x, t.y, t.z};
            std::copy(rotation, rotation + 4, frame.rotation);
            std::copy(translation, translation + 3, frame.translation);
            found->found = true;
          }
          return ok_status();
        });
    AERIE_RETURN_IF_ERROR(status);
    AERIE_RETURN_IF_ERROR(tokens.finish().with_context(path));
    const Wanted* missing = nullptr;  // the one in the first row
    for (const Wanted& wanted : wanted_) {
      if (!wanted.found &&
          (missing == nullptr || row_of_slot_[wanted.slot] < row_of_slot_[missing->slot]))
        missing = &wanted;
    }
    if (missing == nullptr) return ok_status();
    return join_error(table_path(small_.dir, "sample_data"), row_of_slot_[missing->slot],
                      "ego_pose_token", unresolved(missing->pose, "ego_pose"));
  }

  struct Wanted {
    Token pose;
    uint32_t slot;  // in content_.frames
    bool found;
  };
  const SmallTables& small_;
  const std::vector<uint32_t>& number_of_row_;
  IndexContent& content_;
  StringPool pool_;
  std::vector<uint32_t> row_of_slot_;
  std::vector<Wanted> wanted_;
};

Status add_box(const RowParser& row, const SmallTables& small,
               const std::vector<uint32_t>& number_of_row, std::vector<BoxRecord>& boxes) {
  Token sample_token, instance;
  Vec3 centre, size;
  Quaternion q;
  int64_t lidar = 0, radar = 0;
  std::string_view visibility;
  AERIE_RETURN_IF_ERROR(row.token(1, sample_token));
  AERIE_RETURN_IF_ERROR(row.token(2, instance));
  AERIE_RETURN_IF_ERROR(row.optional_text(3, visibility));
  AERIE_RETURN_IF_ERROR(row.translation(4, centre));
  AERIE_RETURN_IF_ERROR(row.size(5, size));
  AERIE_RETURN_IF_ERROR(row.rotation(6, q));
  AERIE_RETURN_IF_ERROR(row.integer(7, 0, kMaxInt32, lidar));
  AERIE_RETURN_IF_ERROR(row.integer(8, 0, kMaxInt32, radar));
  const uint32_t sample_row = small.sample_tokens.find(sample_token);
  if (sample_row == TokenTable::kNone)
    return data_error(unresolved(sample_token, "sample")).with_context("key 'sample_token'");
  const uint32_t instance_row = small.instance_tokens.find(instance);
  if (instance_row == TokenTable::kNone)
    return data_error(unresolved(instance, "instance")).with_context("key 'instance_token'");
  uint8_t level = 0;
  if (!visibility.empty()) {
    const auto found = small.visibilities.find(visibility);
    if (found == small.visibilities.end())
      return data_error(str_cat("'", visibility.substr(0, 40),
                                "' is the token of no row of visibility.json"))
          .with_context("key 'visibility_token'");
    level = found->second;
  }
  boxes.push_back({instance.hi,
                   instance.lo,
                   {centre.x, centre.y, centre.z},
                   {size.x, size.y, size.z},
                   {q.w, q.x, q.y, q.z},
                   static_cast<int32_t>(lidar),
                   static_cast<int32_t>(radar),
                   number_of_row[sample_row],
                   small.instance_categories[instance_row],
                   level,
                   0});
  return ok_status();
}

Status read_boxes(Env& env, const SmallTables& small, const std::vector<uint32_t>& number_of_row,
                  const ReadProgress& progress, std::vector<BoxRecord>& boxes) {
  static constexpr std::string_view kKeys[] = {
      "token", "sample_token", "instance_token", "visibility_token", "translation",
      "size",  "rotation",     "num_lidar_pts",  "num_radar_pts"};
  const std::string path = table_path(small.dir, "sample_annotation");
  TokenTable tokens;
  const Status status =
      for_each_row(env, path, kKeys, progress, [&](const RowParser& row, uint32_t number) {
        Token token;
        AERIE_RETURN_IF_ERROR(row.token(0, token));
        tokens.add(token, number);
        return add_box(row, small, number_of_row, boxes);
      });
  AERIE_RETURN_IF_ERROR(status);
  return tokens.finish().with_context(path);
}

// By sample, in the order of the table within one; without a second copy of all boxes.
void group_boxes(IndexContent& content) {
  std::vector<BoxRecord>& boxes = content.boxes;
  uint64_t first = 0;
  for (const BoxRecord& box : boxes) ++content.samples[box.sample].num_boxes;
  for (index_format::SampleRecord& sample : content.samples) {
    sample.first_box = first;
    first += sample.num_boxes;
  }
  std::vector<uint64_t> next(content.samples.size());
  for (size_t i = 0; i < next.size(); ++i) next[i] = content.samples[i].first_box;
  std::vector<uint32_t> target(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i)
    target[i] = static_cast<uint32_t>(next[boxes[i].sample]++);
  for (uint32_t i = 0; i < boxes.size(); ++i) {
    while (target[i] != i) {
      std::swap(boxes[i], boxes[target[i]]);
      std::swap(target[i], target[target[i]]);
    }
  }
}

}  // namespace

Result<IndexContent> read_tables(Env& env, const std::string& tables_dir, unsigned threads,
                                 const ReadProgress& progress) {
  SmallTables small;
  AERIE_RETURN_IF_ERROR(small.read(env, tables_dir, threads, progress));
  IndexContent content;
  std::vector<uint32_t> number_of_row;
  AERIE_RETURN_IF_ERROR(order_samples(small, content, number_of_row));
  {
    StringPool pool(content.strings);
    for (const std::string& name : small.categories) {
      AERIE_ASSIGN_OR_RETURN(const index_format::StringRef ref, pool.add(name));
      content.categories.push_back(ref);
    }
  }
  FrameReader frames(small, number_of_row, content);
  ThreadPool pool({.name = "tables", .num_threads = static_cast<int>(std::min(threads, 2u))});
  // Poses are picked by what the frames name: one after the other.
  AERIE_RETURN_IF_ERROR(pool.parallel_for(2, [&](size_t i) {
    return i == 0 ? frames.read(env, progress)
                  : read_boxes(env, small, number_of_row, progress, content.boxes);
  }));
  content.calibrations = std::move(small.calibrations);
  group_boxes(content);
  return content;
}

}  // namespace aerie::nuscenes
