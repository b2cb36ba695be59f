// Pictures of a few fixed samples of the validation set, drawn after every validation of a run:
//   <run>/pictures/step_<N>/<scene>_<token>.jpg
// The first validation's stay, and those of the latest kKeptValidations. No torch here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/data/nuscenes/prediction_sheet.h"
#include "aerie/models/bev/engine/prediction_sink.h"

namespace aerie::bev {

class PredictionPictures final : public PredictionSink {
 public:
  static constexpr size_t kKeptValidations = 10;

  // `count` samples spread evenly over the `batches` of a validation. `seed`: the loader's.
  PredictionPictures(std::shared_ptr<const nuscenes::NuscenesDataset> dataset, int64_t count,
                     int64_t batches, uint64_t seed);

  bool wants(const data::Batch& batch) const override;
  Status take(const data::Batch& batch, std::span<const float> probability) override;

  // Draws what the latest evaluation showed. `thresholds`: where a class counts as predicted.
  Status write(Env& env, const std::string& run_dir, int64_t step,
               const std::vector<float>& thresholds);

 private:
  const std::shared_ptr<const nuscenes::NuscenesDataset> dataset_;
  const uint64_t seed_;
  std::map<int64_t, std::vector<int64_t>> wanted_;  // batch of the validation -> rows
  std::map<std::pair<int64_t, int64_t>, nuscenes::PredictedSample> seen_;
};

}  // namespace aerie::bev
