// From the keys of a node to the options of the reader's parts.
#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"

namespace aerie::nuscenes {
namespace {

GridAxis axis_of(const std::array<double, 3>& bound) {
  return {bound[0], bound[1], bound[2]};
}

GroundTruthOptions gt_options(const GtConfig& config) {
  GroundTruthOptions out;
  switch (config.task) {
    case GtTaskChoice::kMap:
      out.task = MaskTask::kMap;
      break;
    case GtTaskChoice::kVehicle:
      out.task = MaskTask::kVehicle;
      break;
    case GtTaskChoice::kCar:
      out.task = MaskTask::kCar;
      break;
  }
  if (!config.classes.empty()) out.classes = config.classes;
  out.compat = config.compat == GtCompatChoice::kExact ? GtCompat::kExact : GtCompat::kDevkit;
  out.scale_patch = config.scale_patch;
  out.x = axis_of(config.xbound);
  out.y = axis_of(config.ybound);
  return out;
}

DecodeMode decode_mode(DecodeChoice choice) {
  switch (choice) {
    case DecodeChoice::kExact:
      return DecodeMode::kExact;
    case DecodeChoice::kScaled:
      return DecodeMode::kScaled;
    case DecodeChoice::kAuto:
      break;
  }
  return DecodeMode::kAuto;
}

}  // namespace

Result<ReadRules> read_rules(const DataConfig& config) {
  ReadRules out;
  out.image.final_height = static_cast<int>(config.image.size[0]);
  out.image.final_width = static_cast<int>(config.image.size[1]);
  out.image.resize_lim = config.image.resize_lim;
  out.image.bot_pct_lim = config.image.bot_pct_lim;
  out.image.rot_lim = config.image.rot_lim;
  out.image.rand_flip = config.image.rand_flip;
  out.image.test_resize =
      config.image.test_rule == TestRuleChoice::kLss ? TestResize::kCover : TestResize::kMean;
  out.bev.scale_min = config.bev.scale_lim[0];
  out.bev.scale_max = config.bev.scale_lim[1];
  out.bev.rotation_min = config.bev.rot_lim[0];
  out.bev.rotation_max = config.bev.rot_lim[1];
  out.bev.shift_std = config.bev.trans_std;
  out.bev.flip_x = config.bev.flip_vertical;
  out.bev.flip_y = config.bev.flip_horizontal;
  AERIE_RETURN_IF_ERROR(check(out.bev));
  out.gt = gt_options(config.gt);
  out.reference = config.reference_frame == ReferenceFrameChoice::kEgo ? ReferenceFrame::kEgo
                                                                       : ReferenceFrame::kLidar;
  out.motion_compensation = config.motion_compensation;
  out.decode = decode_mode_for(decode_mode(config.decode), config.role == DataRole::kTrain);
  out.augment_images = config.augments_images();
  out.augment_bev = config.augments_bev();
  out.shuffle_cameras = config.shuffle_cameras;
  for (const std::string& name : config.cameras) {
    const auto found = std::find(kCameras.begin(), kCameras.end(), name);
    if (found == kCameras.end())
      return invalid_argument(str_cat("there is no camera '", name, "'"));
    out.cameras.push_back(static_cast<int>(found - kCameras.begin()));
  }
  if (out.cameras.empty())
    for (int c = 0; c < kNumCameras; ++c) out.cameras.push_back(c);
  const int all = static_cast<int>(out.cameras.size());
  out.cameras_per_sample =
      config.num_cameras > 0 ? std::min(all, static_cast<int>(config.num_cameras)) : all;
  return out;
}

}  // namespace aerie::nuscenes
