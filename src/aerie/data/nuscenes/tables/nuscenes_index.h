// The 13 tables of a nuScenes version, joined: scenes, samples, the six cameras and the lidar pose
// of each sample, boxes.
//
// The first start streams the JSON (a few seconds a gigabyte, a few hundred MiB at trainval size)
// and leaves a versioned binary index in the cache folder; later starts map it. The index is
// believed while every table has the same size, time and sampled bytes (docs/bev_data.md).
//
// Only key frames are kept, of the six cameras and LIDAR_TOP. Samples are numbered scene by scene
// in the order of the scene table, by time within a scene.
//
// Immutable: any thread may read. Views live as long as the index.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/token.h"
#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes {

inline constexpr int kNumCameras = 6;
// The order of cameras in a sample, as BEVFusion has it.
inline constexpr std::array<std::string_view, kNumCameras> kCameras = {
    "CAM_FRONT", "CAM_FRONT_RIGHT", "CAM_FRONT_LEFT",
    "CAM_BACK",  "CAM_BACK_LEFT",   "CAM_BACK_RIGHT"};
inline constexpr std::string_view kLidarChannel = "LIDAR_TOP";

// From the sensor to the vehicle, or from the vehicle to the world.
struct Pose {
  Quaternion rotation;  // as in the table: not normalised, but with a length
  Vec3 translation;     // m
};

struct SceneInfo {
  std::string_view name;
  Token token;
  std::string_view location;  // of its log
  uint32_t first_sample = 0;
  uint32_t num_samples = 0;
};

struct SampleInfo {
  Token token;
  int64_t timestamp_us = 0;
  uint32_t scene = 0;
  uint32_t table_row = 0;  // in sample.json
};

// One key frame of a camera or of the lidar.
struct SensorFrame {
  std::string_view
      filename;  // below root(), where the file was found; as in the table if it was not
  int width = 0, height = 0;  // 0 for the lidar
  int64_t timestamp_us = 0;
  Pose ego;              // at the time of this frame
  Pose sensor;           // calibration
  Mat3 intrinsic;        // cameras
  bool present = false;  // the file was there when names were looked up; not looked for: lidar
};
using CameraFrame = SensorFrame;

struct Box {
  Token instance;
  std::string_view category;  // "vehicle.car"
  Vec3 centre;                // in the world, m
  Vec3 size;                  // width, length, height, m
  Quaternion rotation;
  int num_lidar_pts = 0, num_radar_pts = 0;
  uint8_t visibility = 0;  // 1: 0-40 %, 2: 40-60 %, 3: 60-80 %, 4: 80-100 %, 0: not said
};

// Camera pictures of all samples.
struct FileReport {
  uint64_t num_files = 0;  // named by the tables
  uint64_t num_missing = 0;
  uint64_t num_elsewhere = 0;         // found by name in another folder
  std::vector<std::string> examples;  // of missing ones, as in the table
};

class NuscenesIndex {
 public:
  struct Options {
    std::string root;        // holds the version folder, or is it
    std::string version;     // "v1.0-mini", "mini", ...; empty: the only one there is
    std::string cache_dir;   // empty: the user's cache folder
    bool use_cache = true;   // false: neither read nor write an index
    bool find_files = true;  // false: all pictures count as present, nothing is looked up
    bool quiet = false;      // no log lines, no progress
    unsigned threads = 0;    // for the tables and checks; 0: one a core, at most 4
  };
  static Result<std::shared_ptr<const NuscenesIndex>> open(Env& env, const Options& options);
  ~NuscenesIndex();
  NuscenesIndex(const NuscenesIndex&) = delete;
  NuscenesIndex& operator=(const NuscenesIndex&) = delete;

  std::string_view root() const { return root_; }        // what filenames are relative to
  std::string_view version() const { return version_; }  // name of the folder of the tables
  std::string_view tables_dir() const { return tables_dir_; }
  bool from_cache() const { return from_cache_; }  // no JSON was read
  // Of what the tables say, wherever and whenever they were written.
  uint64_t fingerprint() const { return fingerprint_; }
  const FileReport& files() const { return files_; }
  // Which pictures are there, and where: part of what a run sees.
  uint64_t files_fingerprint() const { return files_fingerprint_; }

  uint32_t num_scenes() const;
  SceneInfo scene(uint32_t scene) const;
  std::optional<uint32_t> find_scene(std::string_view name) const;
  uint32_t num_samples() const;
  SampleInfo sample(uint32_t sample) const;
  std::optional<uint32_t> find_sample(const Token& token) const;  // linear: for tools

  // False: the tables have no key frame of this camera (or lidar) for the sample.
  bool has_camera(uint32_t sample, int camera) const;
  bool has_lidar(uint32_t sample) const;
  CameraFrame camera(uint32_t sample, int camera) const;  // only where has_camera()
  SensorFrame lidar(uint32_t sample) const;               // only where has_lidar()
  Pose lidar_ego(uint32_t sample) const { return lidar(sample).ego; }
  Pose lidar_sensor(uint32_t sample) const { return lidar(sample).sensor; }
  // Six cameras with their files, and the lidar's pose.
  bool is_complete(uint32_t sample) const;
  // Where to open a picture: root() and the filename.
  std::string path(const SensorFrame& frame) const;

  class Boxes;
  Boxes boxes(uint32_t sample) const;  // in the order of the table
  uint64_t num_boxes() const;
  Box box(uint64_t number) const;

 private:
  struct Columns;
  NuscenesIndex();
  void find_files(Env& env, const std::string& kept_in);
  void log_files() const;
  SensorFrame frame(uint32_t sample, int channel) const;

  std::unique_ptr<Columns> columns_;  // views of the mapped file
  std::string root_, version_, tables_dir_;
  bool from_cache_ = false;
  uint64_t fingerprint_ = 0, files_fingerprint_ = 0;
  FileReport files_;
};

// The boxes of one sample, made one by one.
class NuscenesIndex::Boxes {
 public:
  Boxes(const NuscenesIndex& index, uint64_t first, uint32_t count)
      : index_(&index), first_(first), count_(count) {}
  uint32_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  Box operator[](uint32_t i) const { return index_->box(first_ + i); }

  class Iterator {
   public:
    Iterator(const NuscenesIndex* index, uint64_t at) : index_(index), at_(at) {}
    Box operator*() const { return index_->box(at_); }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const NuscenesIndex* index_;
    uint64_t at_;
  };
  Iterator begin() const { return {index_, first_}; }
  Iterator end() const { return {index_, first_ + count_}; }

 private:
  const NuscenesIndex* index_;
  uint64_t first_;
  uint32_t count_;
};

}  // namespace aerie::nuscenes
