// The keys of the model: BEVFusion's tree under `model:`, and the profile that gives its defaults.
#include <cmath>
#include <string>

#include "aerie/base/strings.h"
#include "aerie/models/bev/config/bev_keys.h"

namespace aerie::bev {
namespace {

using config::FieldKeys;
using config::KeySpec;
using config::KeyStatus;
using config::KeyText;
using config::no_effect;
using config::NodeReader;
using config::refused;
using config::Value;
using config::works;

constexpr std::string_view kByProfile = "null: by the profile";

KeyText sized(std::string_view help) {
  return works(help).nullable().no_default().note(kByProfile);
}
KeyText implied(std::string_view help) {
  return works(help).nullable().no_default().note("null: as the other keys imply; checked");
}

template <typename S>
typename FieldKeys<S>::Read read_bound(Bound S::*field) {
  return [field](const NodeReader& node, std::string_view key, S& out) {
    if (!node.given(key)) return;
    std::array<double, 3> values{};
    node.read(key, values);
    out.*field = {values[0], values[1], values[2]};
  };
}

void read_out_indices(const NodeReader& node, std::string_view key, BevConfig& out) {
  if (!node.given(key)) return;
  std::vector<int64_t> stages;
  node.read(key, stages);
  for (size_t i = 0; i < stages.size(); ++i)
    if (stages[i] != stages[0] + static_cast<int64_t>(i))
      return node.fail(key, *node.find(key), "stages must follow each other");
  if (stages.empty() || stages.back() != out.swin.num_stages() - 1)
    return node.fail(key, *node.find(key),
                     str_cat("must end with the last stage, ", out.swin.num_stages() - 1));
  out.first_stage = stages[0];
}

void read_blocks(const NodeReader& node, std::string_view key, BevConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || value->is_null()) return;
  out.decoder.clear();
  for (const Value& item : value->as_list()) {
    if (!item.is_list() || item.as_list().size() != 3)
      return node.fail(key, item, "a stage is [blocks, width, stride]");
    const auto& stage = item.as_list();
    for (const Value& number : stage)
      if (!number.is_int()) return node.fail(key, number, "a stage is of whole numbers");
    if (stage[0].as_int() != 2)
      return node.fail(key, stage[0], "2 residual blocks a stage are built in");
    out.decoder.push_back({stage[1].as_int(), stage[2].as_int()});
  }
}

void read_image_size(const NodeReader& node, std::string_view key, BevConfig& out) {
  if (!node.given(key)) return;
  std::array<int64_t, 2> size{};
  node.read(key, size);
  out.image_height = size[0];
  out.image_width = size[1];
}

void read_network(const NodeReader& node, std::string_view key, BevConfig& out) {
  node.read_enum(key, out.network,
                 {{"GeneralizedResNet", BevNetwork::kFpn}, {"BevEncode", BevNetwork::kEncode}});
}

void read_output_scope(const NodeReader& node, std::string_view key, BevConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || value->is_null()) return;
  const auto& axes = value->as_list();
  const auto bound = [&](const Value& axis, Bound& into) {
    if (!axis.is_list() || axis.as_list().size() != 3)
      return node.fail(key, axis, "an axis is [from, to, step]");
    for (const Value& number : axis.as_list())
      if (!number.is_number()) return node.fail(key, number, "an axis is of numbers");
    into = {axis.as_list()[0].as_float(), axis.as_list()[1].as_float(),
            axis.as_list()[2].as_float()};
  };
  if (axes.size() != 2) return node.fail(key, *value, "there are two axes, x and y");
  bound(axes[0], out.output_x);
  bound(axes[1], out.output_y);
}

const FieldKeys<SwinConfig>& swin_keys() {
  using T = SwinConfig;
  static const FieldKeys<T> table("model.encoders.camera.backbone", [](FieldKeys<T>& keys) {
    keys.row(
        "type", "str|null", "SwinTransformer",
        works("The network that reads pictures; Swin is built in.").choices("SwinTransformer"));
    keys.key("embed_dims", &T::embed_dims, sized("Width of the first stage.").range("[1,65536]"));
    keys.key("depths", &T::depths, sized("Blocks of each stage.").range("[1,1024]"));
    keys.key("num_heads", &T::num_heads,
             sized("Attention heads of each stage.").range("[1,65536]"));
    keys.key("window_size", &T::window_size, sized("Side of an attention window.").range("[1,64]"));
    keys.key("mlp_ratio", &T::mlp_ratio,
             sized("Width of the MLP as a multiple of the stage's width.").range("[1,64]"));
    keys.key("drop_path_rate", &T::drop_path_rate,
             sized("Stochastic depth of the last block; the first has 0.").range("[0,1)"));
    keys.key("zero_shift_single_window", &T::zero_shift_single_window,
             sized("Do not shift along an axis that is one window wide, as torchvision does."));
    keys.row("qkv_bias", "bool|null", "true",
             refused("Bias of queries, keys and values.", "the built-in Swin has it"));
    keys.row("qk_scale", "float|null", "null",
             refused("Scale of queries.", "it is the head's width to the power of -0.5"));
    keys.row("drop_rate", "float|null", "0.0",
             refused("Dropout of values.", "the built-in Swin has stochastic depth alone"));
    keys.row("attn_drop_rate", "float|null", "0.0",
             refused("Dropout of attention.", "the built-in Swin has stochastic depth alone"));
    keys.row("patch_norm", "bool|null", "true",
             refused("Norm behind the patch embedding.", "the built-in Swin has it"));
    // What configurations of mmseg and mmdet write beside these, and what the built-in Swin is.
    keys.row("in_channels", "int|null", "3",
             refused("Channels of a picture.", "pictures are red, green and blue"));
    keys.row("patch_size", "int|null", "4",
             refused("Side of a patch in pixels.", "patches of 4 x 4 pixels are built in"));
    keys.row("strides", "list[int]|null", "[4, 2, 2, 2]",
             refused("How much coarser each stage sees the picture.",
                     "patches of 4 x 4 pixels and merges of 2 x 2 are built in"));
    keys.row(
        "use_abs_pos_embed", "bool|null", "false",
        refused("Absolute position embedding.", "the built-in Swin has relative biases alone"));
    keys.row("pretrain_img_size", "any", "224",
             no_effect("Belongs to the absolute position embedding."));
    keys.row("frozen_stages", "int|null", "-1",
             refused("Stages that are not trained.",
                     "lr_mult=0 of a custom key of paramwise_cfg leaves parameters as they are"));
    keys.row("norm_cfg", "any", "null", no_effect("LayerNorm and GELU are built in."));
    keys.row("act_cfg", "any", "null", no_effect("LayerNorm and GELU are built in."));
    keys.row("pretrained", "str|null", "null",
             refused("Weights in older mm-style files.", "name the file in init_cfg.checkpoint"));
    keys.row("with_cp", "bool|null", "false",
             works("Recompute each block: the same as aerie.activation_checkpointing."));
    keys.row("convert_weights", "bool|null", "null",
             no_effect("Names of weight files are recognised by themselves."));
    keys.row("init_cfg", "map|null", "null", works("Weights that the backbone starts from."));
    keys.row("init_cfg.type", "str|null", "Pretrained",
             works("How the backbone starts; from a file.").choices("Pretrained"));
    keys.row("init_cfg.checkpoint", "str|null", "null",
             works("A .pth or .safetensors file in any of four naming dialects of Swin."));
  });
  return table;
}

const FieldKeys<BevConfig>& backbone_keys() {
  static const FieldKeys<BevConfig> table(
      "model.encoders.camera.backbone", [](FieldKeys<BevConfig>& keys) {
        keys.row("out_indices", "list[int]|null", "",
                 sized("Stages that the neck reads, ending with the last.").range("[0,7]"),
                 read_out_indices);
      });
  return table;
}

const FieldKeys<BevConfig>& neck_keys() {
  using T = BevConfig;
  static const FieldKeys<T> table("model.encoders.camera.neck", [](FieldKeys<T>& keys) {
    keys.row(
        "type", "str|null", "GeneralizedLSSFPN",
        works("The network that joins the stages; one is built in.").choices("GeneralizedLSSFPN"));
    keys.row("in_channels", "list[int]|null", "", implied("Widths of the stages it reads."));
    keys.key("out_channels", &T::neck_channels,
             sized("Width of its convolutions.").range("[1,65536]"));
    keys.row("start_level", "int|null", "0",
             refused("First stage it reads.", "out_indices of the backbone says which"));
    keys.row("num_outs", "int|null", "", no_effect("Only the finest map is used."));
    for (const char* name : {"norm_cfg", "act_cfg", "upsample_cfg"})
      keys.row(name, "any", "null",
               no_effect("BatchNorm, ReLU and bilinear upsampling are built in."));
  });
  return table;
}

const FieldKeys<BevConfig>& view_keys() {
  using T = BevConfig;
  static const FieldKeys<T> table("model.encoders.camera.vtransform", [](FieldKeys<T>& keys) {
    keys.row("type", "str|null", "LSSTransform",
             works("The way from pictures to the ground; Lift-Splat is built in.")
                 .choices("LSSTransform"));
    keys.row("in_channels", "int|null", "", implied("Width of what the neck gives."));
    keys.key("out_channels", &T::context_channels,
             sized("Width of the lifted features.").range("[1,65536]"));
    keys.row("image_size", "list[int]|null", "",
             works("Height and width of pictures.")
                 .range("[1,65536]")
                 .nullable()
                 .no_default()
                 .note("null: as model.train_ds.image.size"));
    keys.row("feature_size", "list[int]|null", "", implied("Size of the feature maps."));
    const auto bound = [&](const char* name, Bound T::*field, const char* help) {
      keys.row(name, "list[float]|null", "", sized(help), read_bound(field));
    };
    bound("xbound", &T::xbound, "[from, to, step] of the grid in metres, to the right.");
    bound("ybound", &T::ybound, "[from, to, step] of the grid in metres, ahead.");
    bound("zbound", &T::zbound, "[from, to, step] of the grid in metres, up.");
    bound("dbound", &T::dbound, "[from, to, step] of the depths in metres.");
    keys.key("downsample", &T::downsample,
             sized("1 or 2: how much coarser the network behind the grid sees it.").range("[1,2]"));
    keys.choice("voxel_rounding", &T::rounding,
                {{"trunc", VoxelRounding::kTrunc}, {"floor", VoxelRounding::kFloor}},
                works("How a point becomes a cell; trunc is what published weights know."));
    keys.row("fp32", "bool|null", "false",
             works("Depth net and lifting in float32 under mixed precision, as BEVFusion."));
  });
  return table;
}

const FieldKeys<BevConfig>& decoder_backbone_keys() {
  using T = BevConfig;
  static const FieldKeys<T> table("model.decoder.backbone", [](FieldKeys<T>& keys) {
    keys.row("type", "str|null", "",
             sized("The network on the grid: GeneralizedResNet with a neck (BEVFusion), or "
                   "BevEncode with a head of its own (Lift-Splat-Shoot).")
                 .choices("GeneralizedResNet|BevEncode"),
             read_network);
    keys.row("in_channels", "int|null", "", implied("Width of the grid's features."));
    keys.key("width", &T::encode_width,
             sized("BevEncode: width of its first layer.").range("[1,65536]"));
    keys.row("blocks", "list[list[int]]|null", "",
             sized("GeneralizedResNet: [2, width, stride] of each stage."), read_blocks);
  });
  return table;
}

const FieldKeys<BevConfig>& decoder_neck_keys() {
  using T = BevConfig;
  static const FieldKeys<T> table("model.decoder.neck", [](FieldKeys<T>& keys) {
    keys.row("type", "str|null", "LSSFPN",
             works("The network that joins the decoder's stages.").choices("LSSFPN"));
    keys.row("in_indices", "list[int]|null", "[-1, 0]",
             refused("Stages that it joins.", "the last and the first are built in"));
    keys.row("in_channels", "list[int]|null", "", implied("Widths of the stages it joins."));
    keys.key("out_channels", &T::decoder_channels,
             sized("Width of the joined map.").range("[1,65536]"));
    keys.row("scale_factor", "int|null", "2",
             refused("Upsampling behind it.", "a factor of 2 is built in"));
  });
  return table;
}

const FieldKeys<BevConfig>& head_keys() {
  using T = BevConfig;
  static const FieldKeys<T> table("model.heads.map", [](FieldKeys<T>& keys) {
    keys.row("type", "str|null", "BEVSegmentationHead",
             works("What classifies cells; one is built in.").choices("BEVSegmentationHead"));
    keys.row("in_channels", "int|null", "", implied("Width of the decoder's map."));
    keys.row("grid_transform", "map|null", "null", works("From the decoder's grid to the map's."));
    keys.row("grid_transform.input_scope", "list[list[float]]|null", "",
             implied("[from, to, step] of the decoder's x and y."));
    keys.row("grid_transform.output_scope", "list[list[float]]|null", "",
             sized("GeneralizedResNet: [from, to, step] of the map's x and y."), read_output_scope);
    keys.row("classes", "list[str]|null", "", implied("The classes of the map."));
    keys.choice("loss", &T::loss,
                {{"focal", MapLoss::kFocal},
                 {"xent", MapLoss::kCrossEntropy},
                 {"vehicle", MapLoss::kVehicle}},
                works("Focal loss, cross-entropy, or Lift-Splat-Shoot's for one class.")
                    .nullable()
                    .no_default()
                    .note("null: focal, tasks vehicle and car: vehicle"));
    keys.key(
        "class_weights", &T::class_weights,
        works("Weight of every class in the loss; empty or null: 1 each.").range(">=0").nullable());
    keys.key("pos_weight", &T::positive_weight,
             works("Loss vehicle: weight of occupied cells.").range(">0"));
  });
  return table;
}

constexpr KeySpec kFirst[] = {
    {"model.profile", "str|null", "seed", "", "seed|bf|lss", KeyStatus::kWorks,
     "Which published shape gives the defaults of model and data: our baseline, BEVFusion, "
     "Lift-Splat-Shoot."},
    {"model.type", "str|null", "null", "", "BEVFusion|LSS|LiftSplatShoot|LSSSwin",
     KeyStatus::kNoEffect, "The model's class in mm-style files; the profile says what is built."},
    {"model.classes", "list[str]|null", "null", "", "", KeyStatus::kWorks,
     "Classes of the map in their order; null: as model.train_ds.gt says."},
    {"model.metrics", "str|list[str]|null", "[mIoU]", "", "", KeyStatus::kWorks,
     "What an evaluation reports: mIoU, or map, which is the same."},
    {"model.norm_eval", "bool|null", "false", "", "", KeyStatus::kWorks,
     "BatchNorm keeps its running statistics in training, as mm's norm_eval: samples of a batch do "
     "not see each other, and accumulated micro-batches are the same as a larger batch."},
    {"model.encoders.lidar", "map|null", "null", "", "", KeyStatus::kRefused,
     "The point cloud's branch.", "the model sees cameras alone; write null"},
    {"model.encoders.radar", "map|null", "null", "", "", KeyStatus::kRefused, "The radar's branch.",
     "the model sees cameras alone; write null"},
};
constexpr KeySpec kFuser[] = {
    {"model.fuser", "map|null", "null", "", "", KeyStatus::kRefused, "Joins several sensors.",
     "the model sees cameras alone; write null"},
};
constexpr KeySpec kLast[] = {
    {"model.heads.object", "map|null", "null", "", "", KeyStatus::kRefused, "Detects boxes.",
     "only maps are segmented here; write null"},
    {"model.pretrained", "str|null", "null", "", "", KeyStatus::kRefused,
     "Weights in older mm-style files.",
     "name the file in model.encoders.camera.backbone.init_cfg.checkpoint, or in load_from"},
    {"model.train_cfg", "any", "null", "", "", KeyStatus::kNoEffect, "Nothing of it is used here."},
    {"model.test_cfg", "any", "null", "", "", KeyStatus::kNoEffect, "Nothing of it is used here."},
};

std::string list_text(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(str_cat(value));
  return str_cat("[", join(items, ", "), "]");
}

Status check_numbers(const Value& model, const std::string& path,
                     const std::vector<int64_t>& expected) {
  const Value* value = model.find(path);
  if (value == nullptr || value->is_null()) return ok_status();
  std::vector<int64_t> written;
  if (value->is_list())
    for (const Value& item : value->as_list())
      written.push_back(item.is_int() ? item.as_int() : -1);
  else
    written.push_back(value->is_int() ? value->as_int() : -1);
  if (written == expected) return ok_status();
  return invalid_argument(str_cat(value->origin().to_string(), ": model.", path, ": is ",
                                  value->brief(60), ", the other keys imply ",
                                  value->is_list() ? list_text(expected) : str_cat(expected[0])))
      .with_hint("leave it out: it follows from the others");
}

Status check_scope(const Value& model, const BevConfig& c) {
  const std::string path = "heads.map.grid_transform.input_scope";
  const Value* value = model.find(path);
  if (value == nullptr || value->is_null()) return ok_status();
  const Bound expected[] = {c.xbound, c.ybound};
  bool fits = value->is_list() && value->as_list().size() == 2;
  for (size_t axis = 0; fits && axis < 2; ++axis) {
    const Value& one = value->as_list()[axis];
    const Bound& b = expected[axis];
    const double numbers[] = {b.low, b.high, b.step * static_cast<double>(c.downsample)};
    fits = one.is_list() && one.as_list().size() == 3;
    for (size_t i = 0; fits && i < 3; ++i)
      fits =
          one.as_list()[i].is_number() && std::abs(one.as_list()[i].as_float() - numbers[i]) < 1e-6;
  }
  if (fits) return ok_status();
  return invalid_argument(str_cat(value->origin().to_string(), ": model.", path, ": is ",
                                  value->brief(80),
                                  ", which is not xbound and ybound times downsample"))
      .with_hint("leave it out: it follows from the others");
}

}  // namespace

std::vector<KeySpec> model_rows() {
  std::vector<KeySpec> out(std::begin(kFirst), std::end(kFirst));
  append_rows(out, swin_keys().rows());
  append_rows(out, backbone_keys().rows());
  append_rows(out, neck_keys().rows());
  append_rows(out, view_keys().rows());
  append_rows(out, kFuser);
  append_rows(out, decoder_backbone_keys().rows());
  append_rows(out, decoder_neck_keys().rows());
  append_rows(out, head_keys().rows());
  append_rows(out, kLast);
  return out;
}

void read_model(const NodeReader& model, BevConfig& out) {
  const NodeReader camera = model.child("encoders").child("camera");
  swin_keys().read(camera.child("backbone"), out.swin);
  backbone_keys().read(camera.child("backbone"), out);
  neck_keys().read(camera.child("neck"), out);
  view_keys().read(camera.child("vtransform"), out);
  read_image_size(camera.child("vtransform"), "image_size", out);
  decoder_backbone_keys().read(model.child("decoder").child("backbone"), out);
  decoder_neck_keys().read(model.child("decoder").child("neck"), out);
  head_keys().read(model.child("heads").child("map"), out);
  model.read_flag("norm_eval", out.norm_eval);
}

Status check_implied(const Value& model, const BevConfig& c) {
  std::vector<int64_t> widths;
  for (int64_t stage = c.first_stage; stage < c.swin.num_stages(); ++stage)
    widths.push_back(c.swin.width(stage));
  AERIE_RETURN_IF_ERROR(check_numbers(model, "encoders.camera.neck.in_channels", widths));
  AERIE_RETURN_IF_ERROR(
      check_numbers(model, "encoders.camera.vtransform.in_channels", {c.neck_channels}));
  AERIE_RETURN_IF_ERROR(check_numbers(model, "encoders.camera.vtransform.feature_size",
                                      {c.feature_height(), c.feature_width()}));
  AERIE_RETURN_IF_ERROR(
      check_numbers(model, "decoder.backbone.in_channels", {c.context_channels * c.grid().n[2]}));
  if (c.network == BevNetwork::kFpn) {
    AERIE_RETURN_IF_ERROR(check_numbers(model, "decoder.neck.in_channels",
                                        {c.decoder.back().width, c.decoder.front().width}));
    AERIE_RETURN_IF_ERROR(check_numbers(model, "heads.map.in_channels", {c.decoder_channels}));
    AERIE_RETURN_IF_ERROR(check_scope(model, c));
  }
  return ok_status();
}

}  // namespace aerie::bev
