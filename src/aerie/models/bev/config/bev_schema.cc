#include "aerie/models/bev/config/bev_schema.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/config/data_schema.h"
#include "aerie/models/bev/config/bev_keys.h"

namespace aerie::bev {
namespace {

using config::KeyGroup;
using config::KeySpec;
using config::KeyStatus;
using config::SchemaParts;

// Rows of the engine that mean nothing here, or for which this family has its own.
bool is_left_out(std::string_view path) {
  for (const std::string_view node :
       {"model.optim.sched", "model.optim_param_groups", "aerie.loss_scale", "aerie.compat",
        "aerie.no_weight_decay", "aerie.lightning_checkpoints", "aerie.data.max_shapes",
        "init_from_nemo_model", "init_from_ptl_ckpt", "init_from_pretrained_model", "init_strict"})
    if (path == node || starts_with(path, str_cat(std::string(node), "."))) return true;
  return false;
}

// Runs are judged by how much of the map is right, not by a loss.
void set_monitor_defaults(KeySpec& key) {
  for (const std::string_view node :
       {"exp_manager.checkpoint_callback_params.", "exp_manager.early_stopping_callback_params."}) {
    if (key.path == str_cat(std::string(node), "monitor")) key.default_value = "mIoU";
    if (key.path == str_cat(std::string(node), "mode")) key.default_value = "max";
  }
}

KeyGroup& group_of(SchemaParts& parts, std::string_view title) {
  for (KeyGroup& group : parts.groups)
    if (group.title == title) return group;
  AERIE_CHECK(false, "schema: there is no group ", std::string(title));
  return parts.groups.front();
}

// Keys of the engine that mean something else here, or less.
struct OwnMeaning {
  std::string_view path, help;
  KeyStatus status = KeyStatus::kWorks;
};
constexpr std::string_view kNoArchive = "This family writes no `.nemo` file.";
constexpr OwnMeaning kOwnMeanings[] = {
    {"aerie.seed",
     "Everything random hangs off it: initial weights, stochastic depth, shuffling, augmentation."},
    {"aerie.engine",
     "Which implementation runs the step. There is the reference engine alone: `auto` takes it, "
     "`fast` ends with an error."},
    {"aerie.activation_checkpointing",
     "Recompute each Swin block in the backward pass: the same numbers, less memory, more time. "
     "Batches that were cut after running out of memory always do."},
    {"aerie.on_oom",
     "Out of memory: split the batch and retry (BatchNorm then sees the parts one by one; mm has "
     "no such thing), or stop."},
    {"aerie.validation_seed",
     "Where validation_ds is shuffled or augmented: the same draws every time, or new ones; null: "
     "the same."},
    {"aerie.step_unit",
     "What max_steps, log_every_n_steps and checkpoints count: updates of the weights, or "
     "micro-batches, as mmcv does (mm-style files). With micro-batches windows of accumulation "
     "follow mmcv too: they cross epochs, and the last one divides by its own number."},
    {"model.optim",
     "The optimizer and its schedule; absent: adam with its defaults, null: an error where "
     "something "
     "is to be trained."},
    {"model.optim.lr", "Learning rate, before lr_scaling."},
    {"model.optim.weight_decay",
     "Absent: 0.01 for adamw, else 0. Applies to every parameter but tables of relative position "
     "biases, unless a custom key gives these a decay_mult."},
    {"trainer.max_steps",
     "Steps (aerie.step_unit) after which the run is finished; -1: unlimited."},
    {"exp_manager.checkpoint_callback_params.prefix", kNoArchive, KeyStatus::kNoEffect},
    {"exp_manager.checkpoint_callback_params.postfix", kNoArchive, KeyStatus::kNoEffect},
    {"exp_manager.checkpoint_callback_params.save_best_model", kNoArchive, KeyStatus::kNoEffect},
    {"exp_manager.checkpoint_callback_params.always_save_nemo", kNoArchive, KeyStatus::kNoEffect},
    {"exp_manager.checkpoint_callback_params.save_nemo_on_train_end", kNoArchive,
     KeyStatus::kNoEffect},
};

SchemaParts bev_parts() {
  SchemaParts parts = config::engine_schema();
  for (const OwnMeaning& own : kOwnMeanings) {
    bool found = false;
    for (KeyGroup& group : parts.groups)
      for (KeySpec& key : group.keys)
        if (key.path == own.path) {
          key.help = own.help;
          key.status = own.status;
          found = true;
        }
    AERIE_CHECK(found, "schema: there is no key ", std::string(own.path));
  }
  for (KeyGroup& group : parts.groups)
    std::erase_if(group.keys, [](const KeySpec& key) { return is_left_out(key.path); });
  for (KeyGroup& group : parts.groups)
    for (KeySpec& key : group.keys) set_monitor_defaults(key);
  std::erase_if(parts.shared, [](const config::SharedKeys& shared) {
    return shared.from == "model.optim.sched";
  });
  for (const KeySpec& row : own_rows())
    group_of(parts, starts_with(row.path, "aerie.")     ? "aerie"
                    : starts_with(row.path, "trainer.") ? "trainer"
                                                        : "Top level")
        .keys.push_back(row);
  KeyGroup& model = group_of(parts, "model");
  model.keys = model_rows();
  model.intro =
      "BEVFusion's tree. `profile` gives every default; a key that is written wins over it.";
  KeyGroup& optim = group_of(parts, "model.optim");
  const std::vector<KeySpec> rows = optim_rows();
  optim.keys.insert(optim.keys.end(), rows.begin(), rows.end());
  optim.intro =
      "The keys an optimizer or a policy takes depend on its name; one that belongs to another is "
      "an error. Policies are mmcv's and count micro-batches.";
  nuscenes::add_nuscenes_keys(parts, "model.optim");
  // init_from_* and schedules of NeMo do not exist here, so the engine's rules about them go.
  parts.checks = {config::check_optimizer, config::check_trainer, nuscenes::check_nuscenes_datasets,
                  check_bev};
  return parts;
}

}  // namespace

const config::Schema& bev_schema() {
  static const config::Schema kSchema(bev_parts());
  return kSchema;
}

std::string bev_keys_markdown() {
  std::string text = bev_schema().markdown();
  const auto replace = [&](std::string_view from, std::string_view to) {
    const size_t at = text.find(from);
    AERIE_CHECK(at != std::string::npos, "the page has changed");
    text.replace(at, from.size(), to);
  };
  replace("# Configuration keys\n", "# Configuration keys of bird's-eye-view segmentation\n");
  replace("`aerie config keys --markdown`", "`aerie config keys --family bev --markdown`");
  return text;
}

}  // namespace aerie::bev
