#include "aerie/models/bev/config/mm_translate.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/bev/config/mm_parts.h"

namespace aerie::bev {
namespace {

using config::Value;

// find_unused_parameters and the backend; nccl, which every file names, is what GPUs use anyway.
void translate_strategy(MmState& state, MmNode& top) {
  const Value* unused = top.take("find_unused_parameters");
  const Value* params = top.take("dist_params");
  const Value* backend = params != nullptr && params->is_map() ? params->find("backend") : nullptr;
  const bool gloo = backend != nullptr && *backend == Value("gloo");
  if (backend != nullptr && !gloo && !(*backend == Value("nccl")))
    state.error("dist_params.backend", *backend, "LibTorch brings nccl and gloo");
  const bool find = unused != nullptr && unused->is_bool() && unused->as_bool();
  if (!find && !gloo) return;
  const Value& from = find ? *unused : *params;
  const auto set = [&](const char* key, Value value) {
    state.set(str_cat("trainer.strategy.", key), std::move(value).with_origin(from.origin()));
  };
  set("_target_", Value("lightning.pytorch.strategies.DDPStrategy"));
  set("find_unused_parameters", Value(find));
  if (gloo) set("process_group_backend", *backend);
}

// Same-named keys, and what changes nothing.
void translate_rest(MmState& state, MmNode& top) {
  top.move("load_from", "load_from");
  if (const Value* resume = top.take("resume_from"); resume != nullptr)
    state.set("exp_manager.resume_from_checkpoint", *resume);
  top.move("work_dir", "exp_manager.explicit_log_dir");
  top.move("seed", "aerie.seed");
  top.move("deterministic", "trainer.deterministic");
  top.move("cudnn_benchmark", "trainer.benchmark");
  if (const Value* sync = top.take("sync_bn"); sync != nullptr) {
    const bool on = sync->is_map() || (sync->is_bool() && sync->as_bool());
    state.set("trainer.sync_batchnorm", Value(on).with_origin(sync->origin()));
    const Value* exclude = sync->is_map() ? sync->child("exclude") : nullptr;
    if (exclude != nullptr && !exclude->is_null() &&
        !(exclude->is_list() && exclude->as_list().empty()))
      state.warn("sync_bn.exclude", *exclude,
                 "has no effect: all batch norms are synchronised, or none");
  }
  // A launcher decides how many processes there are, not the file.
  const auto& launched = config::launched_ranks();
  if (const Value* ids = top.take("gpu_ids");
      ids != nullptr &&
      (!launched ||
       (ids->is_list() && static_cast<int64_t>(ids->as_list().size()) == launched->local_size)))
    state.set("trainer.devices", *ids);
  translate_strategy(state, top);
  if (const Value* workflow = top.take("workflow"); workflow != nullptr) {
    const bool train_only = workflow->is_list() && workflow->as_list().size() == 1 &&
                            workflow->as_list()[0].is_list() &&
                            !workflow->as_list()[0].as_list().empty() &&
                            workflow->as_list()[0].as_list()[0] == Value("train");
    if (!train_only)
      state.error("workflow", *workflow, "only [('train', 1)] is there",
                  "evaluations come by evaluation.interval");
  }
  top.ignore({"log_level", "opencv_num_threads", "mp_start_method", "device", "checkpoint_meta"});
  top.ignore({"custom_imports", "plugin", "plugin_dir"}, "nothing is imported");
  if (const Value* hooks = top.take("custom_hooks");
      hooks != nullptr && !(hooks->is_list() && hooks->as_list().empty()))
    state.warn("custom_hooks", *hooks, "hooks are Python code and are not run");
  // Our own nodes may stand in an mm-style file as they are.
  for (const char* node : {"trainer", "exp_manager", "aerie"}) {
    const Value* own = top.take(node);
    if (own == nullptr) continue;
    if (!own->is_map()) {
      state.error(node, *own, str_cat("expected a dict, got ", own->brief(40)));
      continue;
    }
    Value given{config::Map()};
    given.as_map().set(node, *own);
    if (const Status status = config::merge(state.native, given); !status.ok())
      state.error(node, *own, status.message());
  }
}

// What an mm-style file may hold at its top.
constexpr std::string_view kTopKeys =
    "model|data|optimizer|optimizer_config|optim_wrapper|lr_config|runner|momentum_config|"
    "evaluation|checkpoint_config|log_config|fp16|load_from|resume_from|work_dir|workflow|seed|"
    "cudnn_benchmark|dist_params|log_level|sync_bn|trainer|exp_manager|aerie|"
    "find_unused_parameters|gpu_ids|total_iters|total_epochs|deterministic|custom_hooks";

// Whether an option of the command line changed something of it.
bool has_option(const Value& value) {
  if (value.origin().kind == config::Origin::Kind::kCommandLine) return true;
  if (value.is_list())
    return std::any_of(value.as_list().begin(), value.as_list().end(), has_option);
  if (!value.is_map()) return false;
  return std::any_of(value.as_map().begin(), value.as_map().end(),
                     [](const config::MapEntry& entry) { return has_option(entry.value); });
}

// Names that other values use are variables; one that looks like a key is a slip.
void report_unknown(MmState& state, const MmNode& top, const TranslateOptions& options) {
  const std::set<std::string>* names_read = options.names_read;
  const std::vector<std::string> known = config::choice_names(kTopKeys);
  // A dict where a dict belongs, or neither; and nearly the same name. The rest are variables.
  const auto is_slip = [](const std::string& key, const std::string& near, const Value& value) {
    static const std::set<std::string> kDicts = {
        "model",      "data",   "optimizer",       "optimizer_config", "optim_wrapper",
        "lr_config",  "runner", "momentum_config", "evaluation",       "checkpoint_config",
        "log_config", "fp16",   "dist_params",     "trainer",          "exp_manager",
        "aerie"};
    return edit_distance(to_lower(key), near) <= 2 &&
           (value.is_null() || kDicts.contains(near) == value.is_map());
  };
  for (const std::string& key : top.rest()) {
    const Value& value = *top.value().as_map().find(key);
    if (names_read != nullptr && names_read->contains(key)) {
      if (options.names_came_first && has_option(value))
        state.warn(
            key, value, "is a variable of the file: what it was put into stays as the file has it",
            "change the key that uses it, such as data.train.data_root or data.train.pipeline.0");
      continue;
    }
    const std::string near = nearest_name(key, known);
    if (near.empty() || state.allow_unknown || !is_slip(key, near, value))
      state.warn(key, value, "unknown key, not used",
                 near.empty() ? "" : str_cat("did you mean '", near, "'?"));
    else
      state.error(key, value, "unknown key", str_cat("did you mean '", near, "'?"));
  }
}

}  // namespace

// mmcv leaves `_delete_` where no base has the dict; there is nothing to delete.
void drop_deletes(Value& value) {
  if (value.is_list()) {
    for (Value& item : value.as_list()) drop_deletes(item);
  } else if (value.is_map()) {
    value.as_map().erase("_delete_");
    for (config::MapEntry& entry : value.as_map()) drop_deletes(entry.value);
  }
}

// The tree of the model is BEVFusion's in both; only its defaults need a name.
void translate_model(MmState& state, MmNode& top) {
  MmNode node = top.child("model");
  if (!node.present()) return;
  Value model = node.value();
  drop_deletes(model);
  // What is not given is BEVFusion's where the tree is.
  if (model.child("profile") == nullptr && model.child("encoders") != nullptr)
    state.set("model.profile", Value("bf"));
  for (config::MapEntry& entry : model.as_map()) {
    const std::string path = str_cat("model.", entry.key);
    if (entry.key == "train_ds" || entry.key == "validation_ds" || entry.key == "test_ds" ||
        entry.key == "optim") {
      state.error(path, entry.value, "belongs to our own YAML",
                  "in an mm-style file: data, optimizer and lr_config");
      continue;
    }
    state.set(path, std::move(entry.value));
  }
}

bool is_mm_tree(const Value& tree) {
  if (!tree.is_map()) return false;
  for (const char* key : {"runner", "data", "optimizer", "lr_config", "optimizer_config",
                          "checkpoint_config", "log_config", "total_epochs", "total_iters"})
    if (tree.child(key) != nullptr) return true;
  const Value* model = tree.child("model");
  return model != nullptr && model->is_map() && model->child("train_ds") == nullptr &&
         model->child("type") != nullptr;
}

Translation translate_mm(const Value& tree, const TranslateOptions& options) {
  MmState state;
  state.allow_unknown = options.allow_unknown;
  MmNode top(state, &tree, "");
  if (top.present()) {
    state.set("name", Value(options.name));
    const RunnerKind runner = translate_runner(state, top);
    translate_model(state, top);
    translate_data(state, top);
    translate_optimizer(state, top);
    translate_policies(state, top, runner);
    translate_evaluation(state, top, runner);
    translate_checkpoints(state, top, runner);
    translate_logs(state, top);
    translate_rest(state, top);
    report_unknown(state, top, options);
  }
  return {std::move(state.native), std::move(state.findings), std::move(state.notes)};
}

}  // namespace aerie::bev
