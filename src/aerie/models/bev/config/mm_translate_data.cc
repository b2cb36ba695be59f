// `data`: data sets, loaders and pipelines.
#include <algorithm>
#include <array>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/bev/config/bev_schema.h"
#include "aerie/models/bev/config/mm_parts.h"

namespace aerie::bev {
namespace {

using config::List;
using config::Value;

// Steps that read or change what a camera-only model does not see.
constexpr std::string_view kLidarSteps =
    "LoadPointsFromFile|LoadPointsFromMultiSweeps|LoadRadarPointsMultiSweeps|PointsRangeFilter|"
    "PointShuffle|PointSample|IndoorPointSample|VoxelBasedPointSampler|GlobalAlignment|GTDepth";
constexpr std::string_view kBoxSteps =
    "LoadAnnotations3D|ObjectRangeFilter|ObjectNameFilter|ObjectPaste|ObjectSample|ObjectNoise";
constexpr std::string_view kFormatSteps =
    "LoadMultiViewImageFromFiles|DefaultFormatBundle3D|DefaultFormatBundle|Collect3D|Collect|"
    "ImagePad";
constexpr std::string_view kOtherSteps =
    "ImageAug3D|GlobalRotScaleTrans|LoadBEVSegmentation|RandomFlip3D|ImageNormalize|GridMask";

bool is_true(const Value* value) {
  return value != nullptr && ((value->is_bool() && value->as_bool()) ||
                              (value->is_number() && value->as_float() != 0.0));
}

class Pipeline {
 public:
  Pipeline(MmState& state, std::string native, bool training)
      : state_(state), native_(std::move(native)), training_(training) {}

  void run(const Value& pipeline, const std::string& path) {
    if (!pipeline.is_list())
      return state_.error(path, pipeline,
                          str_cat("expected a list of steps, got ", pipeline.brief(40)));
    for (size_t i = 0; i < pipeline.as_list().size(); ++i) {
      MmNode step(state_, &pipeline.as_list()[i], str_cat(path, ".", i));
      if (step.present()) translate(step);
    }
    // A pipeline is complete: what it does not do is not done.
    if (training_) {
      if (!saw_images_) state_.set(key("image.augment"), Value(false));
      if (!saw_bev_ && !saw_flip_) {
        state_.set(key("bev.augment"), Value(false));
      } else {
        if (!saw_bev_) {
          state_.set(key("bev.scale_lim"), Value(List{Value(1.0), Value(1.0)}));
          state_.set(key("bev.rot_lim"), Value(List{Value(0.0), Value(0.0)}));
          state_.set(key("bev.trans_std"), Value(0.0));
        }
        if (!saw_flip_) {
          state_.set(key("bev.flip_horizontal"), Value(false));
          state_.set(key("bev.flip_vertical"), Value(false));
        }
      }
    }
    if (!lidar_.empty())
      state_.note(
          str_cat(path, ": steps about points and boxes are left out: ", join(lidar_, ", ")));
  }

 private:
  std::string key(const std::string& name) const { return str_cat(native_, ".", name); }

  void translate(MmNode& step) {
    const std::string type = step.text("type");
    if (type.empty())
      return state_.error(step.path(), step.value(), "a step of a pipeline needs a type");
    if (config::is_choice(type, kLidarSteps) || config::is_choice(type, kBoxSteps)) {
      lidar_.push_back(type);
      return;
    }
    if (config::is_choice(type, kFormatSteps)) return;
    if (type == "ImageAug3D") return image_aug(step);
    if (type == "GlobalRotScaleTrans") return rot_scale(step);
    if (type == "LoadBEVSegmentation") return segmentation(step);
    if (type == "RandomFlip3D") return flip(step);
    if (type == "ImageNormalize") return normalize(step);
    if (type == "GridMask") return grid_mask(step);
    std::vector<std::string> known;
    for (const std::string_view steps : {kLidarSteps, kBoxSteps, kFormatSteps, kOtherSteps})
      for (std::string& name : config::choice_names(steps)) known.push_back(std::move(name));
    const std::string near = nearest_name(type, known);
    state_.error(step.path_of("type"), step.value(), str_cat("there is no step '", type, "' here"),
                 near.empty() ? "known are ImageAug3D, GlobalRotScaleTrans, LoadBEVSegmentation, "
                                "RandomFlip3D, ImageNormalize and steps about points"
                              : str_cat("did you mean '", near, "'?"));
  }

  void image_aug(MmNode& step) {
    saw_images_ = true;
    step.move("final_dim", key("image.size"));
    step.move("resize_lim", key("image.resize_lim"));
    step.move("bot_pct_lim", key("image.bot_pct_lim"));
    if (const Value* rotate = step.take("rot_lim"); rotate != nullptr)
      state_.set(key("image.rot_lim"), pair_of(*rotate));
    step.move("rand_flip", key("image.rand_flip"));
    // The middle of resize_lim is what BEVFusion's test pipelines mean.
    if (!training_) state_.set(key("image.test_rule"), Value("bf"));
    const Value* training = step.take("is_train");
    const bool on = training == nullptr ? training_ : is_true(training);
    if (on != training_) state_.set(key("image.augment"), Value(on));
    step.finish();
  }

  // One number stands for both ends.
  static Value pair_of(const Value& value) {
    if (!value.is_number()) return value;
    return Value(List{Value(-value.as_float()), Value(value.as_float())})
        .with_origin(value.origin());
  }

  void rot_scale(MmNode& step) {
    saw_bev_ = true;
    step.move("resize_lim", key("bev.scale_lim"));
    step.move("scale_ratio_range", key("bev.scale_lim"));
    for (const char* name : {"rot_lim", "rot_range"})
      if (const Value* rotate = step.take(name); rotate != nullptr)
        state_.set(key("bev.rot_lim"), pair_of(*rotate));
    for (const char* name : {"trans_lim", "translation_std"}) {
      const Value* shift = step.take(name);
      if (shift == nullptr) continue;
      if (shift->is_list() && !shift->as_list().empty()) {
        const List& axes = shift->as_list();
        if (std::any_of(axes.begin(), axes.end(),
                        [&](const Value& axis) { return !(axis == axes[0]); }))
          state_.error(step.path_of(name), *shift, "all axes have one deviation here");
        else
          state_.set(key("bev.trans_std"), axes[0]);
      } else {
        state_.set(key("bev.trans_std"), *shift);
      }
    }
    const Value* training = step.take("is_train");
    if (training != nullptr && is_true(training) != training_)
      state_.set(key("bev.augment"), Value(is_true(training)));
    step.ignore({"shift_height", "update_img2lidar"});
    step.finish();
  }

  void segmentation(MmNode& step) {
    step.move("xbound", key("gt.xbound"));
    step.move("ybound", key("gt.ybound"));
    step.move("classes", key("gt.classes"));
    if (const Value* root = step.take("dataset_root"); root != nullptr) map_root(step, *root);
    step.finish();
  }

  // Maps lie where the tables and pictures do: the data set's own root is meant.
  void map_root(MmNode& step, const Value& root) {
    const auto plain = [](const Value& value) {
      std::string out = value.is_string() ? value.as_string() : value.brief(60);
      while (out.size() > 1 && out.back() == '/') out.pop_back();
      return out;
    };
    const Value* other = state_.native.find(key("root"));
    if (other == nullptr)
      state_.set(key("root"), root);
    else if (plain(*other) != plain(root))
      state_.warn(step.path_of("dataset_root"), root,
                  str_cat("is not used: maps are read below the data set's root, ", plain(*other)),
                  "leave it out, or write the same folder");
  }

  void flip(MmNode& step) {
    saw_flip_ = true;
    const auto ratio = [&](const char* name, const char* native) {
      const Value* value = step.take(name);
      if (value == nullptr) return;
      const double share = value->is_number() ? value->as_float() : -1.0;
      if (share != 0.0 && share != 0.5)
        return state_.error(step.path_of(name), *value, "a flip has the chance 0.5, or 0 for none");
      state_.set(key(native), Value(share > 0.0).with_origin(value->origin()));
    };
    ratio("flip_ratio_bev_horizontal", "bev.flip_horizontal");
    ratio("flip_ratio_bev_vertical", "bev.flip_vertical");
    step.ignore({"sync_2d", "flip_ratio", "direction"});
    step.finish();
  }

  void normalize(MmNode& step) {
    const auto check = [&](const char* name, std::array<double, 3> expected) {
      const Value* value = step.take(name);
      if (value == nullptr) return;
      bool same = value->is_list() && value->as_list().size() == 3;
      for (size_t i = 0; same && i < 3; ++i)
        same = value->as_list()[i].is_number() &&
               std::abs(value->as_list()[i].as_float() - expected[i]) < 1e-6;
      if (!same)
        state_.error(step.path_of(name), *value,
                     "pictures are normalised by ImageNet's mean and deviation here",
                     "mean (0.485, 0.456, 0.406), std (0.229, 0.224, 0.225)");
    };
    check("mean", {0.485, 0.456, 0.406});
    check("std", {0.229, 0.224, 0.225});
    step.finish();
  }

  void grid_mask(MmNode& step) {
    const Value* chance = step.take("prob");
    if (chance == nullptr || !chance->is_number() || chance->as_float() != 0.0)
      state_.error(step.path(), step.value(), "GridMask is not there; only prob=0 is accepted");
  }

  MmState& state_;
  const std::string native_;
  const bool training_;
  bool saw_images_ = false, saw_bev_ = false, saw_flip_ = false;
  std::vector<std::string> lidar_;
};

class DataTranslator {
 public:
  DataTranslator(MmState& state, MmNode data) : state_(state), data_(std::move(data)) {}

  void run() {
    if (!data_.present()) return;
    const bool has_val = data_.take("val") != nullptr;
    const bool has_test = data_.take("test") != nullptr;
    data_set("train", "model.train_ds", true);
    if (has_val) data_set("val", "model.validation_ds", false);
    if (has_test) data_set("test", "model.test_ds", false);
    // The loader's own keys hold for every set that does not say otherwise, except the batch:
    // evaluation takes one.
    spread("samples_per_gpu", "model.train_ds.batch_size");
    for (const auto& [key, native] : {std::pair{"workers_per_gpu", "num_workers"},
                                      {"pin_memory", "pin_memory"},
                                      {"persistent_workers", "persistent_workers"},
                                      {"prefetch_factor", "prefetch_factor"}}) {
      spread(key, str_cat("model.train_ds.", native));
      if (has_val) spread(key, str_cat("model.validation_ds.", native));
      if (has_test) spread(key, str_cat("model.test_ds.", native));
    }
    spread("shuffle", "model.train_ds.shuffle");
    spread("drop_last", "model.train_ds.drop_last");
    loader("train_dataloader", "model.train_ds");
    loader("val_dataloader", "model.validation_ds");
    loader("test_dataloader", "model.test_ds");
    data_.finish();
  }

 private:
  void spread(const char* key, const std::string& native) {
    const Value* value = data_.take(key);
    if (value != nullptr && state_.native.find(native) == nullptr) state_.set(native, *value);
  }

  void loader(const char* key, const std::string& native) {
    MmNode node = data_.child(key);
    if (!node.present()) return;
    node.move("samples_per_gpu", native + ".batch_size");
    node.move("workers_per_gpu", native + ".num_workers");
    for (const char* same :
         {"pin_memory", "persistent_workers", "prefetch_factor", "shuffle", "drop_last"})
      node.move(same, str_cat(native, ".", same));
    node.finish();
  }

  void data_set(const char* name, const std::string& native, bool training) {
    MmNode node = data_.child(name);
    if (!node.present()) return;
    state_.set(native, Value(config::Map()).with_origin(node.value().origin()));
    one_set(std::move(node), native, training, 0);
  }

  // Wrappers say how often a sample comes, then the data set itself.
  void one_set(MmNode node, const std::string& native, bool training, int depth) {
    const std::string type = node.text("type");
    const bool repeat = type == "RepeatDataset", cbgs = type == "CBGSDataset";
    if (repeat || cbgs) {
      if (cbgs) state_.set(native + ".sampler.type", Value("cbgs"));
      if (repeat)
        if (const Value* times = node.take("times"); times != nullptr)
          repeat_samples(node, *times, native, training);
      MmNode inner = node.child("dataset");
      if (!inner.present())
        state_.error(node.path(), node.value(), str_cat(type, " needs a dataset"));
      else if (depth >= 8)
        state_.error(node.path(), node.value(), "data sets inside each other, too many");
      else
        one_set(std::move(inner), native, training, depth + 1);
      node.ignore({"seed"});
      return node.finish();
    }
    if (type.find("NuScenes") == std::string::npos && !type.empty())
      state_.error(node.path_of("type"), node.value(), str_cat("there is no data set '", type, "'"),
                   "NuScenesDataset, RepeatDataset and CBGSDataset are there");
    const std::string infos = source(node, native);
    if (const Value* pipeline = node.take("pipeline"); pipeline != nullptr)
      Pipeline(state_, native, training).run(*pipeline, node.path_of("pipeline"));
    // Where nothing names the folder, the one of the info file is it.
    if (const size_t slash = infos.rfind('/');
        slash != std::string::npos && slash > 0 && state_.native.find(native + ".root") == nullptr)
      state_.set(native + ".root",
                 Value(infos.substr(0, slash)).with_origin(node.take("ann_file")->origin()));
    if (!training) node.move("samples_per_gpu", native + ".batch_size");
    node.ignore({"object_classes", "class_names", "modality", "box_type_3d", "use_valid_flag",
                 "filter_empty_gt", "with_velocity", "eval_version", "test_mode", "img_dir",
                 "dataset_type", "use_camera"});
    load_interval(node);
    node.move("map_classes", native + ".gt.classes");
    node.move("classes", native + ".gt.classes");
    // Keys of our own data sets may stand here under their own names.
    for (const std::string& key : node.rest()) {
      const std::string path = str_cat(native, ".", key);
      if (bev_schema().find_node(path) == nullptr) continue;
      const Value* own = node.take(key);
      Value* there = state_.native.find(path);
      if (own == nullptr) continue;
      if (there != nullptr && there->is_map() && own->is_map())
        (void)config::merge(*there, *own);
      else
        state_.set(path, *own);
    }
    node.finish();
  }

  // Of wrappers inside each other the product.
  void repeat_samples(MmNode& node, const Value& times, const std::string& native, bool training) {
    const std::string key = native + ".sampler.repeat";
    if (!times.is_int() || times.as_int() < 1 || times.as_int() > 1'000'000)
      return state_.error(node.path_of("times"), times, "expected a whole number above 0");
    if (!training)
      return state_.note(
          str_cat(node.path_of("times"), " has no effect: an evaluation counts each sample once"));
    const Value* outer = state_.native.find(key);
    const int64_t before = outer != nullptr && outer->is_int() ? outer->as_int() : 1;
    state_.set(
        key,
        Value(std::min<int64_t>(before * times.as_int(), 1'000'001)).with_origin(times.origin()));
  }

  // Every sample is taken.
  void load_interval(MmNode& node) {
    const Value* interval = node.take("load_interval");
    if (interval != nullptr && !(interval->is_int() && interval->as_int() == 1))
      state_.error(node.path_of("load_interval"), *interval, "only 1 is there: all samples",
                   "name fewer scenes in a file: ann_file='scenes.txt'");
  }

  // The path of an info file, where there is one.
  std::string source(MmNode& node, const std::string& native) {
    for (const char* key : {"dataset_root", "data_root", "root"})
      if (const Value* root = node.take(key); root != nullptr) state_.set(native + ".root", *root);
    const Value* file = node.take("ann_file");
    if (file == nullptr) return {};
    const std::string key = node.path_of("ann_file");
    if (!file->is_string()) {
      state_.error(key, *file, str_cat("expected a file, got ", file->brief(40)));
      return {};
    }
    const std::string name = file->as_string();
    if (ends_with(name, ".txt")) {
      if (const Value* split = node.take("split"); split != nullptr)
        state_.warn(node.path_of("split"), *split,
                    str_cat("is not used: the scenes of ", name, " are taken"),
                    "leave out either split or ann_file");
      state_.set(native + ".split", Value("listed").with_origin(file->origin()));
      state_.set(native + ".splits.listed", *file);
      return {};
    }
    if (!ends_with(name, ".pkl")) {
      state_.error(
          key, *file, "only a .txt with scene names can choose samples",
          "leave it out: the tables below data_root are read, and split says which scenes");
      return {};
    }
    state_.warn(key, *file,
                "info files (.pkl) are Python objects and are not read; the tables below data_root "
                "are",
                "leave it out, and give split=train or val");
    const std::string base =
        name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
    for (const char* split : {"train", "val", "test"})
      if (base.find(split) != std::string::npos &&
          state_.native.find(native + ".split") == nullptr) {
        state_.set(native + ".split", Value(split).with_origin(file->origin()));
        break;
      }
    return name;
  }

  MmState& state_;
  MmNode data_;
};

}  // namespace

void translate_data(MmState& state, MmNode& top) {
  DataTranslator(state, top.child("data")).run();
}

}  // namespace aerie::bev
