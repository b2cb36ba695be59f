// Layout of the index of nuScenes tables; docs/formats/nuscenes_index.md describes it. Little
// endian only: aerie runs on nothing else.
#pragma once

#include <cstdint>

namespace aerie::nuscenes::index_format {

constexpr char kMagic[8] = {'A', 'E', 'R', 'N', 'U', 'S', 'C', '\n'};
constexpr uint32_t kVersion = 1;
constexpr int kNumChannels = 7;  // six cameras in the order of kCameras, then LIDAR_TOP
constexpr int kLidar = 6;

enum SectionId : uint32_t {
  kSources = 1,   // SourceRecord a table, in the order of kTableNames
  kScenes,        // SceneRecord
  kSamples,       // SampleRecord
  kFrames,        // FrameRecord, kNumChannels a sample
  kCalibrations,  // CalibrationRecord
  kBoxes,         // BoxRecord, sample after sample
  kCategories,    // StringRef
  kStrings,       // bytes
  kNumSections = kStrings,
};

struct StringRef {
  uint32_t offset, size;  // in kStrings
};

// A table as it was when it was read.
struct SourceRecord {
  uint64_t size;
  int64_t mtime_ns;
  uint64_t sample_hash;  // of blocks spread over the file
};

struct SceneRecord {
  uint64_t token_hi, token_lo;
  StringRef name, location;
  uint32_t first_sample, num_samples;
};
static_assert(sizeof(SceneRecord) == 40);

struct SampleRecord {
  uint64_t token_hi, token_lo;
  int64_t timestamp_us;
  uint64_t first_box;
  uint32_t scene, table_row, num_boxes, reserved;
};
static_assert(sizeof(SampleRecord) == 48);

struct FrameRecord {
  double rotation[4], translation[3];  // of the vehicle
  int64_t timestamp_us;
  StringRef filename;
  uint32_t calibration;
  uint16_t width, height;
  uint32_t exists;  // 0: the tables have no such key frame, and all else is 0
  uint32_t reserved;
};
static_assert(sizeof(FrameRecord) == 88);

struct CalibrationRecord {
  double rotation[4], translation[3], intrinsic[9];
};
static_assert(sizeof(CalibrationRecord) == 128);

struct BoxRecord {
  uint64_t instance_hi, instance_lo;
  double centre[3], size[3], rotation[4];
  int32_t num_lidar_pts, num_radar_pts;
  uint32_t sample;
  uint16_t category;
  uint8_t visibility, reserved;
};
static_assert(sizeof(BoxRecord) == 112);

}  // namespace aerie::nuscenes::index_format
