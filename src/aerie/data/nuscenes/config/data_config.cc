#include "aerie/data/nuscenes/config/data_config.h"

namespace aerie::nuscenes {

std::string DataConfig::split_name() const {
  if (!split.empty()) return split;
  switch (role) {
    case DataRole::kTrain:
      return "train";
    case DataRole::kValidation:
      return "val";
    case DataRole::kTest:
      break;
  }
  return "test";
}

DataConfig default_config(Profile profile, DataRole role) {
  DataConfig out;
  out.role = role;
  if (role != DataRole::kTrain) {
    out.batch_size = 1;
    out.shuffle = false;
    out.drop_last = false;
  }
  if (profile == Profile::kBf) {
    if (role == DataRole::kTrain) out.sampler.type = SamplerType::kCbgs;
    return out;
  }
  out.image.size = {128, 352};
  out.image.resize_lim = {0.193, 0.225};
  out.image.bot_pct_lim = {0.0, 0.22};
  out.image.test_rule = TestRuleChoice::kLss;
  if (profile == Profile::kLss) {
    out.order = OrderChoice::kScene;
    out.reference_frame = ReferenceFrameChoice::kEgo;
    out.motion_compensation = false;
    out.gt.task = GtTaskChoice::kVehicle;
    out.bev.augment = false;
    if (role == DataRole::kTrain) out.num_cameras = 5;
  }
  return out;
}

}  // namespace aerie::nuscenes
