// The whole configuration of a bird's-eye-view run as plain structs, filled from a resolved tree:
// what the family's job, data and engine receive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/config/schema/optim_config.h"
#include "aerie/config/value.h"
#include "aerie/data/nuscenes/config/data_schema.h"
#include "aerie/models/bev/config/bev_config.h"
#include "aerie/optim/mm_schedule.h"

namespace aerie::bev {

// aerie.loss_scale: 16-mixed alone.
struct LossScaleConfig {
  bool dynamic = true;
  double initial = 65536.0;  // the constant scale where it is not dynamic
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  bool operator==(const LossScaleConfig&) const = default;
};

// aerie.compile: forward and backward as one CUDA graph.
enum class Compile { kAuto, kNo, kYes };
struct CompileConfig {
  Compile enabled = Compile::kAuto;
  std::string mode = "reduce-overhead";
  bool operator==(const CompileConfig&) const = default;
};

// aerie.checkpoints: mmcv's rules and files beside Lightning's.
struct MmCheckpointConfig {
  bool newest = false;     // keep: save_top_k counts the newest ones, not the best
  bool save_best = false;  // newest: and the best one by the monitor
  bool pth = true;         // iter_N.pth beside every native checkpoint
  bool latest = true;      // and latest.pth, a link to the newest
  bool operator==(const MmCheckpointConfig&) const = default;
};

enum class LrScalingRule { kNone, kLinear, kSqrt };
struct LrScalingConfig {
  LrScalingRule rule = LrScalingRule::kNone;
  int64_t base_batch = 4;          // the batch that `lr` is meant for
  bool count_accumulation = true;  // accumulated micro-batches make the batch larger
  bool operator==(const LrScalingConfig&) const = default;
};

// One entry of param_groups.custom_keys: parameters whose name contains `part`. The longest part
// that fits wins, ties go by the alphabet.
struct ParamRule {
  std::string part;
  double lr_mult = 1.0;
  std::optional<double> decay_mult;  // absent: 1, or 0 for what the model never decays
  bool operator==(const ParamRule&) const = default;
};
// mmcv's paramwise_cfg. The multipliers of kinds hold where no custom key fits.
struct ParamGroupsConfig {
  std::vector<ParamRule> custom_keys;
  double bias_lr_mult = 1.0;
  double bias_decay_mult = 1.0;
  double norm_decay_mult = 1.0;
  double dwconv_decay_mult = 1.0;
  bool operator==(const ParamGroupsConfig&) const = default;
};

struct BevOptimConfig : config::OptimConfig {  // lr is the effective one
  double base_lr = 1e-3;                       // as written
  LrScalingConfig lr_scaling;
  ParamGroupsConfig param_groups;
  std::optional<optim::MmPolicyConfig> rate;  // model.optim.sched; empty: constant
  std::optional<optim::MmPolicyConfig> momentum_rate;
};

// The family's keys of the `aerie:` node.
struct BevOwnConfig {
  LossScaleConfig loss_scale;
  CompileConfig compile;
  int64_t pictures = 4;  // samples drawn at every validation
  MmCheckpointConfig checkpoints;
  bool text_log = true;  // mmcv's log line and <time>.log.json
};

struct BevRunConfig : config::LoopConfig, BevOwnConfig {
  BevConfig model;
  nuscenes::DataSets data;
  BevOptimConfig optim;
  std::vector<std::string> metrics = {"mIoU"};
  bool view_fp32 = false;       // vtransform.fp32: depth net and lifting in float32
  double clip_norm_type = 2.0;  // of trainer.gradient_clip_val; infinite: the largest value
  std::string load_from;        // weights that start the run; empty: none
  std::string backbone_init;    // backbone.init_cfg.checkpoint; empty: none
};

// `resolved` has passed validate() with bev_schema(). Values that do not go together (sizes of data
// and model, a widths that another key implies) are errors that name their keys.
Result<BevRunConfig> build_bev_run_config(const config::Value& resolved);

// "lr 3e-04 = 2e-04 x 6 / 4 (linear scaling by the batch)", or "lr 2e-04"; for the log.
std::string learning_rate_sentence(const BevRunConfig& config);

}  // namespace aerie::bev
