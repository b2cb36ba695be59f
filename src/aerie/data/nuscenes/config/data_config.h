// The keys of a nuScenes data set: one node each for model.train_ds, model.validation_ds and
// model.test_ds. Plain values; the data set and its assembler turn them into their own options.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace aerie::nuscenes {

enum class DataRole : uint8_t { kTrain, kValidation, kTest };
// Which published recipe gives the defaults: BEVFusion, our baseline, Lift-Splat-Shoot.
enum class Profile : uint8_t { kBf, kSeed, kLss };
enum class SamplerType : uint8_t { kRandom, kCbgs };
enum class OrderChoice : uint8_t { kTimestamp, kScene };
enum class DecodeChoice : uint8_t { kAuto, kExact, kScaled };
enum class TestRuleChoice : uint8_t { kBf, kLss };
enum class GtCompatChoice : uint8_t { kDevkit, kExact };
enum class GtTaskChoice : uint8_t { kMap, kVehicle, kCar };
enum class ReferenceFrameChoice : uint8_t { kLidar, kEgo };
enum class OnBadSample : uint8_t { kSkip, kFail };

struct ImageConfig {
  std::array<int64_t, 2> size{256, 704};  // height, width of what the model sees
  std::array<double, 2> resize_lim{0.38, 0.55};
  std::array<double, 2> bot_pct_lim{0.0, 0.0};
  std::array<double, 2> rot_lim{-5.4, 5.4};  // degrees
  bool rand_flip = true;
  TestRuleChoice test_rule = TestRuleChoice::kBf;
  std::optional<bool> augment;  // null: in training only
  bool operator==(const ImageConfig&) const = default;
};

struct BevConfig {
  std::array<double, 2> scale_lim{0.9, 1.1};
  std::array<double, 2> rot_lim{-0.78539816, 0.78539816};  // radians
  double trans_std = 0.5;                                  // metres, every axis
  bool flip_horizontal = true;                             // y; p = 0.5
  bool flip_vertical = true;                               // x; p = 0.5
  std::optional<bool> augment;                             // null: in training only
  bool operator==(const BevConfig&) const = default;
};

struct GtConfig {
  GtCompatChoice compat = GtCompatChoice::kDevkit;
  bool scale_patch = true;
  GtTaskChoice task = GtTaskChoice::kMap;
  std::vector<std::string> classes;  // empty: the six of the map task
  std::array<double, 3> xbound{-50.0, 50.0, 0.5};
  std::array<double, 3> ybound{-50.0, 50.0, 0.5};
  bool operator==(const GtConfig&) const = default;
};

struct SamplerConfig {
  SamplerType type = SamplerType::kRandom;
  int64_t repeat = 1;  // how often an epoch goes through the samples
  bool operator==(const SamplerConfig&) const = default;
};

struct DataConfig {
  static constexpr int64_t kAutoWorkers = -1;

  DataRole role = DataRole::kTrain;  // of the node; no key

  std::string root;
  std::string version;    // empty: the one there is
  std::string cache_dir;  // of the index; empty: the user's
  std::string pack_dir;   // key: pack; empty: pictures are read from their files
  std::string split;      // empty: train, val or test by the role
  std::map<std::string, std::string> splits;  // own lists of scenes: name -> file
  OrderChoice order = OrderChoice::kTimestamp;
  SamplerConfig sampler;

  int64_t batch_size = 4;
  bool auto_batch_size = false;  // `auto`: batch_size holds nothing until a search has found it
  bool shuffle = true;
  bool drop_last = true;
  int64_t num_workers = kAutoWorkers;
  std::optional<int64_t> prefetch_factor;
  bool persistent_workers = false;
  bool pin_memory = true;

  DecodeChoice decode = DecodeChoice::kAuto;
  std::vector<std::string> cameras;  // names; empty: all six
  int64_t num_cameras = 0;           // so many of them, drawn a sample; 0: all
  bool shuffle_cameras = false;      // control: pictures of other cameras than the matrices say
  ReferenceFrameChoice reference_frame = ReferenceFrameChoice::kLidar;
  bool motion_compensation = true;
  ImageConfig image;
  BevConfig bev;
  GtConfig gt;

  OnBadSample on_bad_sample = OnBadSample::kSkip;
  double max_bad_fraction = 0.01;

  bool augments_images() const { return image.augment.value_or(role == DataRole::kTrain); }
  bool augments_bev() const { return bev.augment.value_or(role == DataRole::kTrain); }
  std::string split_name() const;
  bool operator==(const DataConfig&) const = default;
};

// What a node means where it says nothing.
DataConfig default_config(Profile profile, DataRole role);

}  // namespace aerie::nuscenes
