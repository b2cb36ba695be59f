// What each stage of making a nuScenes sample costs on one core, for `aerie bench data --kind
// nuscenes`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"

namespace aerie::tools {

// CPU milliseconds of one thread a sample (all its cameras); medians of rounds over all samples.
struct StageTimes {
  std::string profile;
  int height = 0, width = 0;
  uint64_t samples = 0, pictures = 0, rounds = 0;
  double picture_bytes = 0.0;  // mean
  double read = 0.0;           // files that are in the page cache
  double decode = 0.0;         // rows that the crop needs
  double resize = 0.0;
  double rotate = 0.0;  // crop, mirror, turn
  double masks = 0.0;
  double assemble = 0.0;  // matrices, draws and the rest
  double images = 0.0;    // decode, resize and rotate as training does them, in one go
  double scaled = 0.0;    // the same with decode: scaled
  double sample = 0.0;    // everything
};

// Pictures with their draws of epoch 0, as bench/peers/nuscenes_images.py --cases reads them.
struct PeerCase {
  std::string path;
  nuscenes::ImageAugmentation draw;
};

// A piece of map that is drawn: nuscenes_masks.py --poses reads location, x, y and yaw.
struct MaskPose {
  std::string location;
  double x = 0.0, y = 0.0, yaw = 0.0;
};

struct StageOptions {
  uint64_t samples = 20;
  double seconds = 2.0;  // for each row
  uint64_t seed = 0;
  uint32_t epoch = 0;
};
Result<StageTimes> measure_stages(const nuscenes::NuscenesDataset& dataset,
                                  const StageOptions& options, std::vector<PeerCase>& cases,
                                  std::vector<MaskPose>& poses);

// CPU milliseconds of the masks at random places of a map alone, for maps without samples; `poses`
// receives the places.
Result<double> measure_map(const nuscenes::MapExpansion& map, const std::string& location,
                           const nuscenes::GroundTruthOptions& gt, const StageOptions& options,
                           std::vector<MaskPose>& poses);

}  // namespace aerie::tools
