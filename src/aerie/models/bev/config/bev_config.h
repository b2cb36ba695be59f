// The sizes of a bird's-eye-view model: pictures of several cameras in, a segmented map out. A
// plain struct without defaults that depend on each other; profile() has the three published
// shapes, every value of which may be changed before validate().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/models/bev/view/frustum.h"

namespace aerie::bev {

struct SwinConfig {
  int64_t embed_dims = 96;
  std::vector<int64_t> depths = {2, 2, 6, 2};
  std::vector<int64_t> num_heads = {3, 6, 12, 24};
  int64_t window_size = 7;
  int64_t mlp_ratio = 4;
  double drop_path_rate = 0.3;  // of the last block; the first has 0
  // No shift along an axis on which the padded map is one window (torchvision); mmdet shifts.
  bool zero_shift_single_window = false;

  int64_t num_stages() const { return static_cast<int64_t>(depths.size()); }
  int64_t width(int64_t stage) const { return embed_dims << stage; }
};

// The network after the view transform.
enum class BevNetwork {
  kEncode,  // LSS: a small ResNet with two upsampling steps, on the grid itself
  kFpn,     // BEVFusion: residual stages, LSSFPN, resampling to the map's scope, classifier
};

enum class MapLoss {
  kFocal,         // gamma 2, no alpha; mean per class, classes added up
  kCrossEntropy,  // binary, the same sums
  kVehicle,       // one class with weighted positives, mean over all cells
};

struct ResidualStage {
  int64_t width = 0;
  int64_t stride = 1;
};

struct BevConfig {
  std::string profile = "seed";
  int64_t image_height = 128;
  int64_t image_width = 352;
  int64_t cameras = 6;

  SwinConfig swin;
  int64_t neck_channels = 256;
  // The finest stage of the backbone that the neck reads: 1 is stride 8, 2 is stride 16.
  int64_t first_stage = 1;

  Bound dbound = {1.0, 60.0, 1.0};
  int64_t context_channels = 64;
  Bound xbound = {-50.0, 50.0, 0.5};
  Bound ybound = {-50.0, 50.0, 0.5};
  Bound zbound = {-10.0, 10.0, 20.0};
  VoxelRounding rounding = VoxelRounding::kTrunc;
  bool depth_float32 = false;  // the depth net in float32 whatever the precision
  int64_t downsample = 1;      // 1 or 2: of the grid, before the network

  BevNetwork network = BevNetwork::kEncode;
  int64_t encode_width = 64;
  std::vector<ResidualStage> decoder = {{160, 2}, {320, 2}, {640, 1}};
  int64_t decoder_channels = 256;
  Bound output_x = {-50.0, 50.0, 0.5};  // kFpn alone: the map; kEncode's is the grid
  Bound output_y = {-50.0, 50.0, 0.5};

  std::vector<std::string> classes = {"drivable_area", "ped_crossing", "walkway",
                                      "stop_line",     "carpark_area", "divider"};
  // BatchNorm keeps its running statistics in training: samples of a batch do not see each other.
  bool norm_eval = false;
  MapLoss loss = MapLoss::kFocal;
  std::vector<double> class_weights;  // empty: 1 each
  double positive_weight = 2.13;      // kVehicle

  int64_t num_classes() const { return static_cast<int64_t>(classes.size()); }
  // Of the feature maps that the view transform lifts.
  int64_t feature_height() const;
  int64_t feature_width() const;
  // Of a valid configuration.
  BevGrid grid() const;
  int64_t num_depth_bins() const;
  int64_t map_height() const;  // cells along x
  int64_t map_width() const;   // cells along y
};

// "seed", "bf" or "lss".
Result<BevConfig> profile(std::string_view name);

// Every mistake names its key. What passes can be built and run.
Status validate(const BevConfig& config);

}  // namespace aerie::bev
