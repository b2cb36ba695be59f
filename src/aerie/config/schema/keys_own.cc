// Rows of the top level, and those of the `aerie:` node that concern no kind of data or model.
#include "aerie/config/schema/engine_keys.h"

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

constexpr KeySpec kOwn[] = {
    {"aerie.seed", "int", "1234", ">=0", "", kWorks,
     "Everything random hangs off it: initial weights, masks, dropout, shuffling, mixing."},
    {"aerie.compat", "str|null", "null", "", "nemo-2.6", kWorks,
     "`nemo-2.6` reproduces NeMo's quirks instead of the repaired behaviour."},
    {"aerie.engine", "str", "auto", "", "auto|fast|reference", kWorks,
     "Which implementation runs the step. `auto` takes the fast one on a GPU where it covers the "
     "config and says so when it does not."},
    {"aerie.tf32", "str", "conv", "", "none|conv|all", kWorks,
     "TF32 at precision 32 on a GPU: nowhere, convolutions only (torch's default), or everywhere."},
    {"aerie.activation_checkpointing", "bool", "false", "", "", kWorks,
     "Recompute each encoder layer in the backward pass: less memory, about a third more time. "
     "The fast engine recomputes what norms and SiLU put out, and without this only where that is "
     "cheap or memory is short."},
    {"aerie.on_nan", "str", "skip", "", "skip|fallback|stop", kWorks,
     "Non-finite loss or gradient: skip the step, fall back from 16-mixed to bf16-mixed (32 where "
     "there is no bf16), or stop."},
    {"aerie.max_nan_in_a_row", "int", "10", ">=1", "", kWorks,
     "With on_nan skip: stop after so many skipped steps in a row."},
    {"aerie.on_oom", "str", "split", "", "split|stop", kWorks,
     "Out of memory: split the batch and retry, or stop."},
    {"aerie.ignore_missing_checkpoints", "bool", "false", "", "", kWorks,
     "Start from nothing although metrics.jsonl of the run folder records checkpoints and their "
     "folder holds none; false: refuse, since their disk may not be mounted."},
    {"aerie.validation_seed", "str|null", "null", "", "fixed|random", kWorks,
     "Masks and mixing in validation: the same every time, or new ones as in NeMo; null: fixed, or "
     "random under compat."},
    {"aerie.loss_scale", "float|null", "null", ">0", "", kWorks,
     "16-mixed: a constant loss scale; null: dynamic, from 65536."},
    {"aerie.no_weight_decay", "list[str]", "[]", "", "", kWorks,
     "Parameters whose name contains one of these get no weight decay, e.g. `[bias, norm]`."},
    {"aerie.spike_zscore", "float", "6.0", ">=0", "", kWorks,
     "A loss or gradient norm this many deviations from its recent mean is reported; 0: off."},
    {"aerie.step_unit", "str", "optimizer", "", "optimizer|micro", kWorks,
     "What max_steps, log_every_n_steps and checkpoints count: updates of the weights, or "
     "micro-batches, as iteration-based systems do. They differ with accumulate_grad_batches."},
    {"aerie.lightning_checkpoints", "bool", "false", "", "", kWorks,
     "Write a Lightning `.ckpt` beside every native checkpoint, under the names NeMo looks for, so "
     "that NeMo can go on in the folder of the run."},
    {"aerie.data.virtual_ranks", "int|null", "null", ">=1", "", kWorks,
     "Fixes the global sample order so that it does not depend on the number of devices."},
    {"aerie.data.memory_budget_gib", "float|null", "null", ">0", "", kWorks,
     "Upper bound of the loader's memory; null: what workers x prefetch x batch needs."},
    {"aerie.data.max_shapes", "int", "16", ">=1", "", kWorks,
     "Batch lengths are rounded up to at most this many values, so that the GPU sees few shapes."},
};

}  // namespace

std::span<const KeySpec> top_level_keys() {
  return kTopLevel;
}
std::span<const KeySpec> own_keys() {
  return kOwn;
}

}  // namespace aerie::config
