// The family's keys of `aerie:` and of the top level.
#include "aerie/models/bev/config/bev_keys.h"

namespace aerie::bev {
namespace {

using config::FieldKeys;
using config::KeySpec;
using config::KeyStatus;
using config::later;
using config::NodeReader;
using config::Value;
using config::works;

// A number, `dynamic`, or the settings of torch's GradScaler.
void read_loss_scale(const NodeReader& node, std::string_view key, BevOwnConfig& out) {
  const Value* value = node.find(key);
  LossScaleConfig& scale = out.loss_scale;
  if (value == nullptr || value->is_null() || value->is_string()) return;
  if (value->is_number()) {
    scale.dynamic = false;
    scale.initial = value->as_float();
    return;
  }
  const NodeReader all = node.child(key);
  all.read("init_scale", scale.initial);
  all.read("growth_factor", scale.growth_factor);
  all.read("backoff_factor", scale.backoff_factor);
  all.read("growth_interval", scale.growth_interval);
}

void read_compile(const NodeReader& node, std::string_view key, CompileConfig& out) {
  if (const Value* value = node.find(key); value != nullptr && value->is_bool())
    out.enabled = value->as_bool() ? Compile::kYes : Compile::kNo;
  else
    node.read_enum(key, out.enabled, {{"auto", Compile::kAuto}});
}

const FieldKeys<CompileConfig>& compile_keys() {
  using T = CompileConfig;
  static const FieldKeys<T> table("aerie.compile", [](FieldKeys<T>& keys) {
    keys.row("enabled", "bool|str", "auto",
             works("Forward and backward as one CUDA graph a shape of batch: captured when the "
                   "shape comes for the third time, which takes a moment, and replayed from then "
                   "on, without a launch for every operation; the same bits. Without ranks, "
                   "activation_checkpointing and detect_anomaly. auto: on a GPU; true: the same, "
                   "with a warning where it cannot be; false: never.")
                 .choices("auto"),
             read_compile);
    keys.key("mode", &T::mode,
             works("torch.compile's name of it; the others are accepted and mean the same.")
                 .choices("default|reduce-overhead|max-autotune|max-autotune-no-cudagraphs"));
  });
  return table;
}

const FieldKeys<MmCheckpointConfig>& checkpoint_keys() {
  using T = MmCheckpointConfig;
  static const FieldKeys<T> table("aerie.checkpoints", [](FieldKeys<T>& keys) {
    keys.choice("keep", &T::newest, {{"best", false}, {"newest", true}},
                works("What exp_manager.checkpoint_callback_params.save_top_k counts: the best by "
                      "the monitor (Lightning), or the newest of those made every so many steps or "
                      "epochs (mmcv's max_keep_ckpts)."));
    keys.key("save_best", &T::save_best,
             works("keep=newest: keep the best one by the monitor too, as "
                   "`best_mIoU_iter_N` (mmcv's evaluation.save_best)."));
    keys.key("pth", &T::pth,
             works("Write `iter_N.pth` (`epoch_N.pth`), as mmcv lays it out, beside every native "
                   "checkpoint."));
    keys.key("latest", &T::latest, works("And `latest.pth`, a link to the newest of them."));
  });
  return table;
}

const FieldKeys<BevOwnConfig>& own_keys() {
  using T = BevOwnConfig;
  static const FieldKeys<T> table("aerie", [](FieldKeys<T>& keys) {
    keys.row("loss_scale", "float|str|map|null", "null",
             works("16-mixed: a constant scale, `dynamic` (null is the same: from 65536, doubled "
                   "after 2000 good steps, halved when one overflows), or a mapping of "
                   "init_scale, growth_factor, backoff_factor and growth_interval. An overflow "
                   "needs a lower scale, not a higher one, and no scale "
                   "makes a step faster.")
                 .range(">0")
                 .choices("dynamic"),
             read_loss_scale);
    keys.child("compile", &T::compile, compile_keys());
    keys.key("pictures", &T::pictures,
             works("Samples of the validation set that are drawn after every validation, always "
                   "the same: cameras, truth, prediction and error, in the run's folder and its "
                   "report. 0: none.")
                 .range("[0,64]"));
    keys.child("checkpoints", &T::checkpoints, checkpoint_keys());
    keys.key("text_log", &T::text_log,
             works("Log steps in mmcv's words and keep them in `<time>.log.json` "
                   "(mmcv's TextLoggerHook)."));
  });
  return table;
}

// Read into what all families share.
constexpr KeySpec kEvalStart = {
    "aerie.eval_start",
    "int",
    "0",
    ">=0",
    "",
    KeyStatus::kWorks,
    "First evaluation at this step, or epoch where evaluations count epochs, and then every "
    "interval (mmcv's evaluation.start); 0: at every multiple of the interval."};

constexpr KeySpec kClipNorm = {
    "trainer.gradient_clip_norm_type",
    "float",
    "2.0",
    "(0,inf]",
    "",
    KeyStatus::kWorks,
    "Which norm of the gradients gradient_clip_val bounds and logs name (mmcv's "
    "grad_clip.norm_type); .inf: their largest value."};

constexpr KeySpec kLoadFrom = {
    "load_from",
    "str|null",
    "null",
    "",
    "",
    KeyStatus::kWorks,
    "A .pth or .safetensors file, or a checkpoint, whose matching weights start the run."};

}  // namespace

std::vector<KeySpec> own_rows() {
  std::vector<KeySpec> out(own_keys().rows().begin(), own_keys().rows().end());
  out.push_back(kEvalStart);
  out.push_back(kClipNorm);
  out.push_back(kLoadFrom);
  return out;
}

void read_own(const NodeReader& root, BevRunConfig& out) {
  own_keys().read(root.child("aerie"), out);
  root.child("aerie").read("eval_start", out.aerie.eval_start);
  root.child("trainer").read("gradient_clip_norm_type", out.clip_norm_type);
  root.read("load_from", out.load_from);
}

}  // namespace aerie::bev
