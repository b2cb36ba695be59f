// What a model made of one sample, on one canvas for human eyes: its cameras as they stand around
// the car, the truth from above, the prediction, where the two differ, and a legend with the
// classes and their intersection over union on this sample.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/batch.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/image/image.h"

namespace aerie::nuscenes {

// A sample of a batch and what was predicted for it; a copy, so that batches need not wait.
struct PredictedSample {
  uint64_t entry = 0;              // of the data set
  uint32_t epoch = 0;              // of the batch
  std::vector<uint8_t> img;        // [N][height][width][3]
  std::vector<float> bev_aug;      // 4 x 4
  std::vector<uint8_t> gt;         // [K][nx][ny]
  std::vector<float> probability;  // the same shape
};

// Sample number `row` of a batch of the data set's loader. `probability` is of the whole batch,
// [B][K][nx][ny].
Result<PredictedSample> predicted_sample(const data::Batch& batch, int64_t row,
                                         std::span<const float> probability);

struct PredictionSheetOptions {
  std::string title;              // behind the name of the sample: "step 400"
  std::vector<float> thresholds;  // of every class: predicted where p >= it; empty: 0.5 each
  uint64_t seed = 0;              // of the loader: which cameras were drawn, where some were
};

Result<image::Image> prediction_sheet(const NuscenesDataset& dataset, const PredictedSample& sample,
                                      const PredictionSheetOptions& options);

// A name for its file, without an ending: scene and token.
std::string prediction_file_name(const NuscenesDataset& dataset, const PredictedSample& sample);

// As the ending of `path` says: .png or .jpg.
Status write_picture(Env& env, const std::string& path, const image::Image& picture);

}  // namespace aerie::nuscenes
