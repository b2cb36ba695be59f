// The samples of one nuScenes data set node: the entries of its split (repeated where the sampler
// says so), the maps of its scenes, where pictures are read from. Immutable; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/dataset.h"
#include "aerie/data/nuscenes/camera/camera_reader.h"
#include "aerie/data/nuscenes/camera/image_augmentation.h"
#include "aerie/data/nuscenes/config/data_config.h"
#include "aerie/data/nuscenes/map/bev_augmentation.h"
#include "aerie/data/nuscenes/map/ground_truth.h"
#include "aerie/data/nuscenes/map/map_expansion.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/splits.h"
#include "aerie/data/pack/pack_store.h"

namespace aerie::nuscenes {

// A node's keys as the parts of the reader take them.
struct ReadRules {
  ImageAugmentationOptions image;
  BevAugmentationOptions bev;
  GroundTruthOptions gt;
  ReferenceFrame reference = ReferenceFrame::kLidar;
  DecodeMode decode = DecodeMode::kAuto;
  bool motion_compensation = true;
  bool augment_images = false;
  bool augment_bev = false;
  bool shuffle_cameras = false;
  std::vector<int> cameras;    // numbers in kCameras, in the order of the batch
  int cameras_per_sample = 0;  // fewer than `cameras`: drawn for every sample

  int height() const { return image.final_height; }
  int width() const { return image.final_width; }
};
Result<ReadRules> read_rules(const DataConfig& config);

class NuscenesDataset final : public data::Dataset {
 public:
  struct Options {
    Env* env = nullptr;  // null: the real one
    uint64_t seed = 0;   // of the class-balanced repetition
    bool quiet = false;
    unsigned threads = 0;  // for tables and maps; 0: one a core, at most 4
    // An index that is open already, of the same root and version.
    std::shared_ptr<const NuscenesIndex> index;
    bool keep_missing = false;  // samples whose pictures are missing stay: for tools
  };
  static Result<std::shared_ptr<const NuscenesDataset>> open(const DataConfig& config,
                                                             const Options& options);

  // --- data::Dataset ---
  const std::shared_ptr<const data::SampleSet>& samples() const override { return set_; }
  uint64_t fingerprint() const override { return fingerprint_; }
  std::string describe(uint64_t entry) const override;
  uint32_t sample_id(uint64_t entry) const override { return sample_of(entry); }
  std::string example_path() const override;
  std::string storage_advice(const data::StorageInfo& storage) const override;
  std::string config_node() const override;
  std::string what_may_differ() const override;

  const DataConfig& config() const { return config_; }
  const ReadRules& rules() const { return rules_; }
  const NuscenesIndex& index() const { return *index_; }
  const std::shared_ptr<const NuscenesIndex>& shared_index() const { return index_; }
  const SplitSamples& split() const { return split_; }
  Env& env() const { return *env_; }
  uint32_t sample_of(uint64_t entry) const { return entries_[entry]; }
  // Of the sample's location; null where the task needs no map.
  const MapExpansion* map_of(uint32_t sample) const;
  // "scene-0061 sample 3f...": no file.
  std::string name_of(uint32_t sample) const;

  const data::PackSet* pack() const { return pack_.get(); }
  std::optional<data::PackLocation> packed(uint32_t sample, int camera) const;
  // Pictures of the split's samples that the pack has.
  uint64_t num_packed() const { return num_packed_; }
  // Largest size of pictures as the tables have it: bounds what a file may claim.
  int max_picture_width() const { return max_width_; }
  int max_picture_height() const { return max_height_; }

 private:
  NuscenesDataset() = default;
  Status load_maps(unsigned threads);
  Status open_pack(bool quiet);
  Status repeat_entries();
  void measure_pictures();

  DataConfig config_;
  ReadRules rules_;
  Env* env_ = nullptr;
  std::shared_ptr<const NuscenesIndex> index_;
  SplitSamples split_;
  std::vector<uint32_t> entries_;  // samples of the index
  std::shared_ptr<const data::SampleSet> set_;
  uint64_t fingerprint_ = 0;
  std::vector<std::shared_ptr<const MapExpansion>> maps_;
  std::vector<int> scene_map_;  // into maps_; -1: no sample of the split is in the scene
  std::shared_ptr<const data::PackSet> pack_;
  std::vector<data::PackLocation> packed_;  // sample * kNumCameras + camera; empty: no pack
  uint64_t num_packed_ = 0;
  int max_width_ = 0, max_height_ = 0;
};

// The layers that a map class is drawn from; empty: there is no such class.
std::vector<MapLayer> map_layers_of(const std::string& class_name);

// Where the map expansion of a location lies below the root; kNotFound says where it was looked
// for.
Result<std::string> map_expansion_path(Env& env, const NuscenesIndex& index,
                                       std::string_view location);

}  // namespace aerie::nuscenes
