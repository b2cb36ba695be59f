// Rows of the top level, and the keys of the `aerie:` node that concern no kind of data or model.
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/field_keys.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;
constexpr KeyStatus kNoEffect = KeyStatus::kNoEffect;
constexpr KeyStatus kRefused = KeyStatus::kRefused;

constexpr KeySpec kTopLevel[] = {
    {"name", "str|null", "null", "", "", kWorks,
     "Name of the experiment; interpolations such as `${name}` read it."},
    {"init_from_nemo_model", "str|map|null", "null", "", "", kWorks,
     "A `.nemo` file whose matching weights start the run, or a mapping of entries with `path`, "
     "`include`, `exclude`. At most one init_from_* key may be given."},
    {"init_from_nemo_model.*.path", "str", kRequired, "", "", kWorks,
     "The `.nemo` file to take weights from."},
    {"init_from_nemo_model.*.include", "str|list[str]|null", "null", "", "", kWorks,
     "Load a tensor only when its name contains one of these; null: all."},
    {"init_from_nemo_model.*.exclude", "str|list[str]|null", "null", "", "", kWorks,
     "Leave out tensors whose name contains one of these."},
    {"init_from_ptl_ckpt", "str|map|null", "null", "", "", kWorks,
     "The same from a Lightning `.ckpt` or a native checkpoint."},
    {"init_from_ptl_ckpt.*.path", "str", kRequired, "", "", kWorks,
     "The Lightning or native checkpoint to take weights from."},
    {"init_from_ptl_ckpt.*.include", "str|list[str]|null", "null", "", "", kWorks,
     "As for init_from_nemo_model: load only tensors whose name contains one of these; null: all."},
    {"init_from_ptl_ckpt.*.exclude", "str|list[str]|null", "null", "", "", kWorks,
     "As for init_from_nemo_model: leave out tensors whose name contains one of these."},
    {"init_from_pretrained_model", "str|map|null", "null", "", "", kRefused,
     "A model name to download.",
     "aerie downloads nothing; fetch the .nemo file and name it in init_from_nemo_model"},
    {"init_from_pretrained_model.*.name", "str", "", "", "", kRefused, "A model name to download.",
     "aerie downloads nothing; fetch the .nemo file and name it in init_from_nemo_model"},
    {"init_from_pretrained_model.*.include", "str|list[str]|null", "null", "", "", kNoEffect,
     "Belongs to init_from_pretrained_model."},
    {"init_from_pretrained_model.*.exclude", "str|list[str]|null", "null", "", "", kNoEffect,
     "Belongs to init_from_pretrained_model."},
    {"init_strict", "bool", "true", "", "", kWorks,
     "Whether the source archive must restore without missing or extra tensors."},
    {"hydra", "any", "", "", "", kNoEffect, "Hydra's own settings; read by nothing here."},
};

// What it changes elsewhere is the default of keys whose own row shows null.
void read_compat(const NodeReader& node, std::string_view key, AerieConfig& out) {
  out.compat_nemo_2_6 = node.given(key);
  if (out.compat_nemo_2_6) out.validation_seed = ValidationSeed::kRandom;
}

const FieldKeys<AerieDataConfig>& data_keys() {
  using T = AerieDataConfig;
  static const FieldKeys<T> table("aerie.data", [](FieldKeys<T>& keys) {
    keys.key(
        "virtual_ranks", &T::virtual_ranks,
        works("Fixes the global sample order so that it does not depend on the number of devices.")
            .range(">=1"));
    keys.key(
        "memory_budget_gib", &T::memory_budget_gib,
        works("Upper bound of the loader's memory; null: what workers x prefetch x batch needs.")
            .range(">0"));
    keys.key("max_shapes", &T::max_shapes,
             works("Batch lengths are rounded up to at most this many values, so that the GPU sees "
                   "few shapes.")
                 .range(">=1"));
  });
  return table;
}

const FieldKeys<AerieDistConfig>& dist_keys() {
  using T = AerieDistConfig;
  static const FieldKeys<T> table("aerie.dist", [](FieldKeys<T>& keys) {
    keys.key("heartbeat_s", &T::heartbeat_s,
             works("Several devices: when a process falls silent all have ended within so many "
                   "seconds, with a message that names it.")
                 .range(">=1")
                 .whole());
  });
  return table;
}

}  // namespace

std::span<const KeySpec> top_level_keys() {
  return kTopLevel;
}

const FieldKeys<AerieConfig>& own_fields() {
  using T = AerieConfig;
  static const FieldKeys<T> table("aerie", [](FieldKeys<T>& keys) {
    keys.key(
        "seed", &T::seed,
        works("Everything random hangs off it: initial weights, masks, dropout, shuffling, mixing.")
            .range(">=0"));
    keys.row("compat", "str|null", "null",
             works("`nemo-2.6` reproduces NeMo's quirks instead of the repaired behaviour.")
                 .choices("nemo-2.6"),
             read_compat);
    keys.choice(
        "engine", &T::engine,
        {{"auto", Engine::kAuto}, {"fast", Engine::kFast}, {"reference", Engine::kReference}},
        works("Which implementation runs the step. `auto` takes the fast one on a GPU where it "
              "covers the "
              "config and says so when it does not."));
    keys.choice("tf32", &T::tf32,
                {{"none", Tf32::kNone}, {"conv", Tf32::kConv}, {"all", Tf32::kAll}},
                works("TF32 at precision 32 on a GPU: nowhere, convolutions only (torch's "
                      "default), or everywhere."));
    keys.key("activation_checkpointing", &T::activation_checkpointing,
             works("Recompute each encoder layer in the backward pass: less memory, about a third "
                   "more time. "
                   "The fast engine recomputes what norms and SiLU put out, and without this only "
                   "where that is "
                   "cheap or memory is short."));
    keys.choice("on_nan", &T::on_nan,
                {{"skip", OnNan::kSkip}, {"fallback", OnNan::kFallback}, {"stop", OnNan::kStop}},
                works("Non-finite loss or gradient: skip the step, fall back from 16-mixed to "
                      "bf16-mixed (32 where "
                      "there is no bf16), or stop."));
    keys.key("max_nan_in_a_row", &T::max_nan_in_a_row,
             works("With on_nan skip: stop after so many skipped steps in a row.").range(">=1"));
    keys.choice("on_oom", &T::on_oom, {{"split", OnOom::kSplit}, {"stop", OnOom::kStop}},
                works("Out of memory: split the batch and retry, or stop."));
    keys.key("ignore_missing_checkpoints", &T::ignore_missing_checkpoints,
             works("Start from nothing although metrics.jsonl of the run folder records "
                   "checkpoints and their "
                   "folder holds none; false: refuse, since their disk may not be mounted."));
    keys.choice("validation_seed", &T::validation_seed,
                {{"fixed", ValidationSeed::kFixed}, {"random", ValidationSeed::kRandom}},
                works("Masks and mixing in validation: the same every time, or new ones as in "
                      "NeMo; null: fixed, or "
                      "random under compat.")
                    .absent_is_null());
    keys.key("loss_scale", &T::loss_scale,
             works("16-mixed: a constant loss scale; null: dynamic, from 65536.").range(">0"));
    keys.key("no_weight_decay", &T::no_weight_decay,
             works("Parameters whose name contains one of these get no weight decay, e.g. `[bias, "
                   "norm]`."));
    keys.key("spike_zscore", &T::spike_zscore,
             works("A loss or gradient norm this many deviations from its recent mean is reported; "
                   "0: off.")
                 .range(">=0"));
    keys.choice(
        "step_unit", &T::step_unit,
        {{"optimizer", StepUnit::kOptimizer}, {"micro", StepUnit::kMicro}},
        works("What max_steps, log_every_n_steps and checkpoints count: updates of the weights, or "
              "micro-batches, as iteration-based systems do. They differ with "
              "accumulate_grad_batches."));
    keys.key("lightning_checkpoints", &T::lightning_checkpoints,
             works("Write a Lightning `.ckpt` beside every native checkpoint, under the names NeMo "
                   "looks for, so "
                   "that NeMo can go on in the folder of the run."));
    keys.key("shard_optimizer", &T::shard_optimizer,
             works("Several devices: each keeps the optimizer's moments of its part of the weights "
                   "and updates that part; the results are the same."));
    keys.choice(
        "loss_reduction", &T::loss_reduction,
        {{"nemo", LossReduction::kNemo}, {"global", LossReduction::kGlobal}},
        works("Several devices or batches: the mean of each one's mean loss, as in NeMo, or "
              "the mean over all that counts in any of them, as one device with all of it "
              "in one batch has. Of training and of validation."));
    keys.child("data", &T::data, data_keys());
    keys.child("dist", &T::dist, dist_keys());
  });
  return table;
}

}  // namespace aerie::config
