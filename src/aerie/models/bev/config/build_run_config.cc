#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "aerie/base/format_text.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/build_loop_config.h"
#include "aerie/config/schema/devices.h"
#include "aerie/models/bev/config/bev_keys.h"
#include "aerie/models/bev/config/run_config.h"

namespace aerie::bev {
namespace {

using config::NodeReader;
using config::Value;

nuscenes::Profile data_profile(const std::string& name) {
  if (name == "bf") return nuscenes::Profile::kBf;
  return name == "lss" ? nuscenes::Profile::kLss : nuscenes::Profile::kSeed;
}

const Value* written(const Value& root, std::string_view path) {
  const Value* value = root.find(path);
  return value == nullptr || value->is_null() || value->is_missing() ? nullptr : value;
}

bool same(const Bound& a, const std::array<double, 3>& b) {
  return std::abs(a.low - b[0]) < 1e-9 && std::abs(a.high - b[1]) < 1e-9 &&
         std::abs(a.step - b[2]) < 1e-9;
}
std::string text(const Bound& b) {
  return str_cat("[", b.low, ", ", b.high, ", ", b.step, "]");
}

// Where both say what the size of pictures is, they must agree; where one does, the other follows.
Status join_image_size(const Value& root, BevRunConfig& out) {
  const Value* model = written(root, "model.encoders.camera.vtransform.image_size");
  const Value* data = written(root, "model.train_ds.image.size");
  const std::array<int64_t, 2> of_model = {out.model.image_height, out.model.image_width};
  std::array<int64_t, 2>& of_data = out.data.train_ds.image.size;
  if (model != nullptr && data != nullptr && of_model != of_data)
    return invalid_argument(
        str_cat(model->origin().to_string(), ": model.encoders.camera.vtransform.image_size is ",
                model->brief(40), " and model.train_ds.image.size is ", data->brief(40)));
  if (model != nullptr) {
    of_data = of_model;
  } else {
    out.model.image_height = of_data[0];
    out.model.image_width = of_data[1];
  }
  for (auto* set : {&out.data.validation_ds, &out.data.test_ds}) {
    if (!*set) continue;
    const char* name = set == &out.data.test_ds ? "test_ds" : "validation_ds";
    if (written(root, str_cat("model.", name, ".image.size")) != nullptr &&
        (*set)->image.size != of_data)
      return invalid_argument(str_cat("model.", name,
                                      ".image.size differs from the size of the training pictures"))
          .with_hint("leave it out");
    (*set)->image.size = of_data;
  }
  return ok_status();
}

// The classes of head, data and `model.classes` are one list.
Status join_classes(const Value& root, BevRunConfig& out) {
  const Value* chosen = nullptr;
  std::string chosen_path;
  for (const char* path :
       {"model.classes", "model.heads.map.classes", "model.train_ds.gt.classes"}) {
    const Value* value = written(root, path);
    if (value == nullptr || !value->is_list()) continue;
    if (chosen != nullptr && !(*chosen == *value))
      return invalid_argument(str_cat(value->origin().to_string(), ": ", path, " is ",
                                      value->brief(100), " and ", chosen_path, " is ",
                                      chosen->brief(100)))
          .with_hint("write them once, in model.classes");
    chosen = value;
    chosen_path = path;
  }
  nuscenes::GtConfig& gt = out.data.train_ds.gt;
  const bool task_written = written(root, "model.train_ds.gt.task") != nullptr;
  if (chosen != nullptr) {
    out.model.classes.clear();
    for (const Value& item : chosen->as_list()) out.model.classes.push_back(item.as_string());
    if (task_written && gt.task != nuscenes::GtTaskChoice::kMap)
      return invalid_argument(str_cat(chosen->origin().to_string(), ": ", chosen_path,
                                      " are classes of the map, and model.train_ds.gt.task is not "
                                      "map"));
    gt.task = nuscenes::GtTaskChoice::kMap;
    gt.classes = out.model.classes;
  } else if (gt.task != nuscenes::GtTaskChoice::kMap) {
    out.model.classes = {gt.task == nuscenes::GtTaskChoice::kCar ? "car" : "vehicle"};
    if (written(root, "model.heads.map.loss") == nullptr) out.model.loss = MapLoss::kVehicle;
  } else {
    gt.classes = out.model.classes;
  }
  for (auto* set : {&out.data.validation_ds, &out.data.test_ds})
    if (*set) {
      (*set)->gt.task = gt.task;
      (*set)->gt.classes = gt.classes;
    }
  return ok_status();
}

// Ground truth is drawn on the cells that the model gives.
Status join_bounds(const Value& root, BevRunConfig& out) {
  const bool own_grid = out.model.network == BevNetwork::kEncode;
  Bound x = own_grid ? out.model.xbound : out.model.output_x;
  Bound y = own_grid ? out.model.ybound : out.model.output_y;
  if (own_grid) {
    x.step *= static_cast<double>(out.model.downsample);
    y.step *= static_cast<double>(out.model.downsample);
  }
  const auto join = [&](const char* name, nuscenes::DataConfig& set) -> Status {
    for (const char* key : {"xbound", "ybound"}) {
      const bool is_x = key[0] == 'x';
      auto& bound = is_x ? set.gt.xbound : set.gt.ybound;
      const Bound& model = is_x ? x : y;
      const Value* value = written(root, str_cat("model.", name, ".gt.", key));
      if (value != nullptr && !same(model, bound))
        return invalid_argument(str_cat(value->origin().to_string(), ": model.", name, ".gt.", key,
                                        " is ", value->brief(60), ", the model's map has ",
                                        text(model)))
            .with_hint("leave it out: it follows from the model");
      bound = {model.low, model.high, model.step};
    }
    return ok_status();
  };
  AERIE_RETURN_IF_ERROR(join("train_ds", out.data.train_ds));
  if (out.data.validation_ds) AERIE_RETURN_IF_ERROR(join("validation_ds", *out.data.validation_ds));
  if (out.data.test_ds) AERIE_RETURN_IF_ERROR(join("test_ds", *out.data.test_ds));
  return ok_status();
}

// Processes of the run, each with a batch of its own. All that a machine has are as many as this
// one shows.
int64_t scaled_devices(const config::TrainerConfig& trainer) {
  const auto plan = config::plan_devices(trainer, config::count_visible_gpus());
  if (plan.ok()) return plan->world_size;
  // As written, where this machine has other devices than the run will.
  const config::DevicesConfig& devices = trainer.devices;
  int64_t count = 1;
  if (devices.kind == config::DevicesConfig::Kind::kIds)
    count = static_cast<int64_t>(devices.ids.size());
  if (devices.kind == config::DevicesConfig::Kind::kCount) count = devices.count;
  return std::max<int64_t>(1, count) * std::max<int64_t>(1, trainer.num_nodes);
}

double scaling_ratio(const BevRunConfig& config) {
  const LrScalingConfig& scaling = config.optim.lr_scaling;
  if (scaling.rule == LrScalingRule::kNone) return 1.0;
  int64_t batch = config.data.train_ds.batch_size;
  if (scaling.count_accumulation) batch *= config.trainer.accumulate_grad_batches;
  batch *= scaled_devices(config.trainer);
  const double ratio = static_cast<double>(batch) / static_cast<double>(scaling.base_batch);
  return scaling.rule == LrScalingRule::kSqrt ? std::sqrt(ratio) : ratio;
}

// by_epoch where nothing says: as mmcv's runner of epochs, except policies that know no epochs.
void default_by_epoch(const NodeReader& node, const config::TrainerConfig& trainer,
                      std::optional<optim::MmPolicyConfig>& policy) {
  if (!policy) return;
  const bool iterations_only =
      policy->policy == optim::MmPolicy::kCyclic || policy->policy == optim::MmPolicy::kOneCycle;
  policy->by_epoch =
      !iterations_only && trainer.max_epochs.value_or(-1) > 0 && trainer.max_steps < 0;
  if (node.given("by_epoch")) node.read("by_epoch", policy->by_epoch);
}

// mIoU where nothing is named. A name without a direction says which is better, as in mmcv: losses
// the smaller.
template <typename Params>
void default_monitor(const NodeReader& node, Params& params) {
  if (!node.given("monitor")) params.monitor = "mIoU";
  if (!node.given("mode")) params.mode_max = params.monitor.find("loss") == std::string::npos;
}

// The engine's reader knows a number or null.
Value engine_tree(const Value& resolved) {
  Value tree = resolved;
  if (Value* scale = tree.find("aerie.loss_scale"); scale != nullptr && !scale->is_number())
    *scale = Value();
  tree.erase("model.optim.sched");
  return tree;
}

}  // namespace

Result<BevRunConfig> build_bev_run_config(const Value& resolved) {
  if (!resolved.is_map())
    return invalid_argument(str_cat("expected a mapping of keys, got ", resolved.brief()));
  BevRunConfig out;
  Status status;
  const Value tree = engine_tree(resolved);
  const NodeReader engine(&tree, "", &status);
  config::build_loop_config(engine, out);
  const NodeReader exp = engine.child("exp_manager");
  default_monitor(exp.child("checkpoint_callback_params"),
                  out.exp_manager.checkpoint_callback_params);
  default_monitor(exp.child("early_stopping_callback_params"),
                  out.exp_manager.early_stopping_callback_params);
  std::vector<config::ParamGroupConfig> groups;
  config::build_optim(engine.child("model"), out.trainer, out.optim, groups);

  Value root = resolved;
  if (Value* model = root.child("model"); model != nullptr)
    *model = nuscenes::inherit_from_train(std::move(*model));
  const NodeReader reader(&root, "", &status);
  const NodeReader model = reader.child("model");
  std::string name = "seed";
  model.read("profile", name);
  AERIE_ASSIGN_OR_RETURN(out.model, profile(name));
  nuscenes::build_nuscenes_datasets(model, data_profile(name), out.data);
  read_model(model, out.model);
  read_optim(model.child("optim"), out.optim);
  read_own(reader, out);
  model.read("metrics", out.metrics);
  if (out.metrics.empty()) out.metrics = {"mIoU"};
  const NodeReader camera = model.child("encoders").child("camera");
  camera.child("vtransform").read_flag("fp32", out.view_fp32);
  bool recompute = false;
  camera.child("backbone").read_flag("with_cp", recompute);
  out.aerie.activation_checkpointing = out.aerie.activation_checkpointing || recompute;
  camera.child("backbone").child("init_cfg").read("checkpoint", out.backbone_init);
  AERIE_RETURN_IF_ERROR(status);

  AERIE_RETURN_IF_ERROR(join_image_size(resolved, out));
  AERIE_RETURN_IF_ERROR(join_classes(resolved, out));
  AERIE_RETURN_IF_ERROR(validate(out.model).with_context("model"));
  AERIE_RETURN_IF_ERROR(join_bounds(resolved, out));
  if (const Value* node = resolved.child("model"); node != nullptr)
    AERIE_RETURN_IF_ERROR(check_implied(*node, out.model));

  default_by_epoch(model.child("optim").child("sched"), out.trainer, out.optim.rate);
  default_by_epoch(model.child("optim").child("momentum_sched"), out.trainer,
                   out.optim.momentum_rate);
  out.optim.base_lr = out.optim.lr;
  out.optim.lr = out.optim.base_lr * scaling_ratio(out);
  AERIE_RETURN_IF_ERROR(status);
  if (out.clip_norm_type != 2.0 && out.aerie.shard_optimizer)
    return invalid_argument(
               "trainer.gradient_clip_norm_type: ranks that shard the optimizer add up their parts "
               "of the gradients in the norm 2")
        .with_hint("leave it out, or set aerie.shard_optimizer=false");
  return out;
}

std::string learning_rate_sentence(const BevRunConfig& config) {
  const BevOptimConfig& optim = config.optim;
  if (optim.lr_scaling.rule == LrScalingRule::kNone)
    return str_cat("learning rate ", optim.lr, " (lr_scaling is off)");
  // Products have digits at their end that nobody wrote.
  const std::string rounded = format_text("%.10g", optim.lr);
  return str_cat("learning rate ", std::strtod(rounded.c_str(), nullptr), " = ", optim.base_lr,
                 " x ", optim.lr_scaling.rule == LrScalingRule::kSqrt ? "the square root of " : "",
                 "batch ", config.data.train_ds.batch_size,
                 optim.lr_scaling.count_accumulation && config.trainer.accumulate_grad_batches > 1
                     ? str_cat(" x ", config.trainer.accumulate_grad_batches, " accumulated")
                     : "",
                 scaled_devices(config.trainer) > 1
                     ? str_cat(" x ", scaled_devices(config.trainer), " devices")
                     : "",
                 " / ", optim.lr_scaling.base_batch);
}

}  // namespace aerie::bev
