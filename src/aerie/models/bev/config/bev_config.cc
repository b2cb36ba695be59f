#include "aerie/models/bev/config/bev_config.h"

#include <cmath>
#include <set>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"

namespace aerie::bev {
namespace {

// No picture, width or count is larger; products of several stay far below 2^63.
constexpr int64_t kMaxSize = 1 << 16;
constexpr int64_t kMaxStages = 8;

Status check_size(const char* key, int64_t value, int64_t low = 1, int64_t high = kMaxSize) {
  if (value >= low && value <= high) return ok_status();
  return invalid_argument(
      str_cat(key, " is ", value, ": from ", low, " to ", high, " is possible"));
}

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Status check_swin(const SwinConfig& swin) {
  AERIE_RETURN_IF_ERROR(check_size("swin.embed_dims", swin.embed_dims));
  AERIE_RETURN_IF_ERROR(check_size("swin.window_size", swin.window_size, 1, 64));
  AERIE_RETURN_IF_ERROR(check_size("swin.mlp_ratio", swin.mlp_ratio, 1, 64));
  if (swin.num_stages() < 2 || swin.num_stages() > kMaxStages)
    return invalid_argument(str_cat("swin.depths has ", swin.num_stages(), " stages: 2 to ",
                                    kMaxStages, " are possible"));
  if (swin.num_heads.size() != swin.depths.size())
    return invalid_argument(str_cat("swin.num_heads has ", swin.num_heads.size(), " values for ",
                                    swin.num_stages(), " stages of swin.depths"));
  for (int64_t stage = 0; stage < swin.num_stages(); ++stage) {
    const auto s = static_cast<size_t>(stage);
    AERIE_RETURN_IF_ERROR(
        check_size(str_cat("swin.depths[", stage, "]").c_str(), swin.depths[s], 1, 1024));
    AERIE_RETURN_IF_ERROR(
        check_size(str_cat("swin.num_heads[", stage, "]").c_str(), swin.num_heads[s]));
    if (swin.width(stage) % swin.num_heads[s] != 0)
      return invalid_argument(str_cat("stage ", stage, " of swin is ", swin.width(stage),
                                      " wide, which ", swin.num_heads[s],
                                      " heads do not divide evenly"));
  }
  if (!(swin.drop_path_rate >= 0.0 && swin.drop_path_rate < 1.0))
    return invalid_argument(
        str_cat("swin.drop_path_rate is ", swin.drop_path_rate, ": 0 <= rate < 1 is needed"));
  return ok_status();
}

Status check_network(const BevConfig& c, const BevGrid& grid) {
  if (c.network == BevNetwork::kEncode) {
    AERIE_RETURN_IF_ERROR(check_size("encode_width", c.encode_width));
    for (size_t axis = 0; axis < 2; ++axis)
      if (ceil_div(grid.n[axis], c.downsample) % 8 != 0)
        return invalid_argument(str_cat(axis == 0 ? "xbound" : "ybound", " has ", grid.n[axis],
                                        " cells: network encode needs a multiple of ",
                                        8 * c.downsample));
    return ok_status();
  }
  if (c.decoder.empty() || static_cast<int64_t>(c.decoder.size()) > kMaxStages)
    return invalid_argument(
        str_cat("decoder has ", c.decoder.size(), " stages: 1 to ", kMaxStages, " are possible"));
  for (const ResidualStage& stage : c.decoder) {
    AERIE_RETURN_IF_ERROR(check_size("width of a decoder stage", stage.width));
    AERIE_RETURN_IF_ERROR(check_size("stride of a decoder stage", stage.stride, 1, 8));
  }
  AERIE_RETURN_IF_ERROR(check_size("decoder_channels", c.decoder_channels));
  AERIE_RETURN_IF_ERROR(num_cells(c.output_x, "output_x").status());
  return num_cells(c.output_y, "output_y").status();
}

Status check_classes(const BevConfig& c) {
  if (c.classes.empty()) return invalid_argument("classes is empty: a map needs at least one");
  std::set<std::string> seen;
  for (const std::string& name : c.classes)
    if (name.empty() || !seen.insert(name).second)
      return invalid_argument(str_cat("classes names '", name, "' twice, or an empty name"));
  if (!c.class_weights.empty() && c.class_weights.size() != c.classes.size())
    return invalid_argument(str_cat("class_weights has ", c.class_weights.size(), " values for ",
                                    c.num_classes(), " classes"));
  for (double weight : c.class_weights)
    if (!std::isfinite(weight) || weight < 0.0)
      return invalid_argument(
          str_cat("class_weights holds ", weight, ": weights are not negative"));
  if (c.loss == MapLoss::kVehicle && !(c.positive_weight > 0.0 && std::isfinite(c.positive_weight)))
    return invalid_argument(str_cat("positive_weight is ", c.positive_weight, ": it must be > 0"));
  return ok_status();
}

// Pictures are padded to patches of 4, every later stage halves and rounds up.
int64_t feature_size(int64_t image, int64_t stage) {
  int64_t size = ceil_div(image, 4);
  for (int64_t s = 0; s < stage; ++s) size = ceil_div(size, 2);
  return size;
}

}  // namespace

int64_t BevConfig::feature_height() const {
  return feature_size(image_height, first_stage);
}
int64_t BevConfig::feature_width() const {
  return feature_size(image_width, first_stage);
}
BevGrid BevConfig::grid() const {
  return BevGrid::make(xbound, ybound, zbound).value();
}
int64_t BevConfig::num_depth_bins() const {
  return num_depths(dbound, "dbound").value();
}
int64_t BevConfig::map_height() const {
  return network == BevNetwork::kEncode ? ceil_div(grid().n[0], downsample)
                                        : num_cells(output_x, "output_x").value();
}
int64_t BevConfig::map_width() const {
  return network == BevNetwork::kEncode ? ceil_div(grid().n[1], downsample)
                                        : num_cells(output_y, "output_y").value();
}

Result<BevConfig> profile(std::string_view name) {
  BevConfig c;
  c.profile = std::string(name);
  if (name == "seed") return c;
  if (name == "lss") {
    c.first_stage = 2;
    c.dbound = {4.0, 45.0, 1.0};
    return c;
  }
  if (name == "bf") {
    c.image_height = 256;
    c.image_width = 704;
    c.dbound = {1.0, 60.0, 0.5};
    c.context_channels = 80;
    c.xbound = c.ybound = {-51.2, 51.2, 0.4};
    c.downsample = 2;
    c.network = BevNetwork::kFpn;
    return c;
  }
  return invalid_argument(str_cat("there is no profile '", name, "'"))
      .with_hint("seed, bf and lss are there");
}

Status validate(const BevConfig& c) {
  AERIE_RETURN_IF_ERROR(check_size("image_height", c.image_height));
  AERIE_RETURN_IF_ERROR(check_size("image_width", c.image_width));
  AERIE_RETURN_IF_ERROR(check_size("cameras", c.cameras, 1, 1024));
  AERIE_RETURN_IF_ERROR(check_swin(c.swin));
  AERIE_RETURN_IF_ERROR(check_size("neck_channels", c.neck_channels));
  AERIE_RETURN_IF_ERROR(check_size("first_stage", c.first_stage, 0, c.swin.num_stages() - 2));
  AERIE_RETURN_IF_ERROR(num_depths(c.dbound, "dbound").status());
  AERIE_RETURN_IF_ERROR(check_size("context_channels", c.context_channels));
  AERIE_ASSIGN_OR_RETURN(const BevGrid grid, BevGrid::make(c.xbound, c.ybound, c.zbound));
  AERIE_RETURN_IF_ERROR(check_size("context_channels times the height cells of zbound",
                                   c.context_channels * grid.n[2]));
  AERIE_RETURN_IF_ERROR(check_size("downsample", c.downsample, 1, 2));
  AERIE_RETURN_IF_ERROR(check_network(c, grid));
  return check_classes(c);
}

}  // namespace aerie::bev
