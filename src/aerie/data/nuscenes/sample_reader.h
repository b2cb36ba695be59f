// Makes one sample of a data set: pictures, geometry, truth from above. One thread each; keeps its
// decoders and buffers, so that in the steady state only files being opened take memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/retry.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/camera/camera_reader.h"
#include "aerie/data/nuscenes/map/ground_truth.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"

namespace aerie::nuscenes {

// Where a sample's values go; N cameras, K masks. Matrices are row-major.
struct SampleRows {
  uint8_t* img = nullptr;         // [N][height][width][3]
  float* camera2lidar = nullptr;  // [N][4][4]
  float* intrin = nullptr;        // [N][4][4]
  float* img_aug = nullptr;       // [N][4][4]
  float* bev_aug = nullptr;       // [4][4]
  uint8_t* gt = nullptr;          // [K][nx][ny]
};

struct SampleFigures {
  int64_t bytes_read = 0;
  int64_t read_ns = 0;   // files
  int64_t image_ns = 0;  // bytes to pictures
  int64_t gt_ns = 0;
};

class SampleReader final {
 public:
  // `dataset` outlives the reader.
  static Result<std::unique_ptr<SampleReader>> make(const NuscenesDataset& dataset,
                                                    const RetryPolicy& retry = {});

  // Everything of an entry. Draws depend on (seed, epoch, entry) alone. Errors name the file, not
  // the sample; is_passing() ones are the machine's.
  Status read(uint64_t entry, uint32_t epoch, uint64_t seed, const SampleRows& out,
              SampleFigures& figures);

  // --- the pieces ---
  // The bytes of a picture, from the pack or its file; valid until the next call.
  Result<std::span<const uint8_t>> jpeg(uint32_t sample, int camera);
  // Where they come from, for messages.
  std::string picture_path(uint32_t sample, int camera) const;
  // Decodes and checks against what the table says of its size.
  Status picture(std::span<const uint8_t> jpeg, const CameraFrame& frame,
                 const ImageAugmentation& augmentation, const image::MutableImageView& out);
  ImageAugmentation image_augmentation(const CameraFrame& frame, uint64_t entry, uint32_t epoch,
                                       uint64_t seed, int camera) const;
  BevAugmentation bev_augmentation(uint64_t entry, uint32_t epoch, uint64_t seed) const;
  Status ground_truth(uint32_t sample, const SampleFrames& frames,
                      const BevAugmentation& augmentation, uint8_t* out);
  const GroundTruthMaker& gt() const { return gt_; }
  CameraReader& camera_reader() { return camera_; }

  // What a reader holds at most, apart from its maps, which all share.
  static double max_bytes(const NuscenesDataset& dataset);

 private:
  SampleReader(const NuscenesDataset& dataset, const RetryPolicy& retry, GroundTruthMaker gt);
  Status read_file(const std::string& path);

  const NuscenesDataset& dataset_;
  const RetryPolicy retry_;
  CameraReader camera_;
  GroundTruthMaker gt_;
  std::vector<uint8_t> bytes_;
  std::vector<GroundBox> boxes_;
  std::string path_;
  size_t file_bytes_ = 0;  // bytes of the file in bytes_
};

}  // namespace aerie::nuscenes
