#include "aerie/models/bev/config/bev_loader.h"

#include <set>
#include <utility>

#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/config_file.h"
#include "aerie/config/dialects/mm/options.h"
#include "aerie/config/dialects/mm/torchpack.h"
#include "aerie/config/merge.h"
#include "aerie/config/resolver.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/yaml.h"
#include "aerie/models/bev/config/bev_schema.h"
#include "aerie/models/bev/config/mm_translate.h"

namespace aerie::bev {
namespace {

using config::Finding;
using config::Value;
using config::mm::MmArgs;

bool is_yaml(std::string_view path) {
  return ends_with(path, ".yaml") || ends_with(path, ".yml");
}

// mmcv's way to inherit, which its YAML files have too.
bool names_bases(Env& env, const std::string& path) {
  constexpr uint64_t kMostBytes = 4u << 20;
  const auto text = env.read_file(path, kMostBytes);
  return text.ok() && (starts_with(*text, "_base_:") || text->find("\n_base_:") != text->npos);
}

// Our own tree or BEVFusion's; NEST has neither of these keys.
bool has_bev_keys(const Value& tree) {
  const Value* model = tree.child("model");
  if (model != nullptr && model->is_map()) {
    for (const char* key : {"profile", "encoders", "heads", "classes"})
      if (model->child(key) != nullptr) return true;
    for (const char* key : {"root", "data_root", "version"})
      if (model->find(str_cat("train_ds.", key)) != nullptr) return true;
  }
  return is_mm_tree(tree);
}

// What to try where a file is not there: one with nearly its name, beside where it should be.
Status missing_config(Env& env, const std::string& path) {
  const std::string folder = parent_path(path);
  const auto entries = env.list_dir(folder);
  std::vector<std::string> names;
  if (entries.ok())
    for (const DirEntry& entry : *entries)
      if (!entry.is_dir && (is_yaml(entry.name) || ends_with(entry.name, ".py")))
        names.push_back(entry.name);
  const std::string near = nearest_name(base_name(path), names);
  const Status status = invalid_argument(str_cat("there is no file ", path));
  if (!near.empty())
    return Status(status).with_hint(
        str_cat("did you mean ", folder == "." ? near : join_path(folder, near), "?"));
  return Status(status).with_hint(
      str_cat(entries.ok() ? "" : str_cat("there is no folder ", folder, " either; "),
              "paths begin at the working folder; presets are configs/baseline/*.py"));
}

struct Source {
  Value tree;
  std::vector<std::string> files;
  std::set<std::string> names_read;
  std::vector<std::string> warnings;
  bool mm = false;
  bool expressions = false;  // ${...}, evaluated behind the options
};

Result<Source> read_source(Env& env, const MmArgs& args) {
  Source out;
  const auto missing = [&](const Status& status) {
    return status.code() == StatusCode::kNotFound ? missing_config(env, args.config) : status;
  };
  const bool bases = is_yaml(args.config) && names_bases(env, args.config);
  if (bases || !is_yaml(args.config)) {
    auto loaded = config::mm::load_config_file(env, args.config);
    if (!loaded.ok()) return missing(loaded.status());
    out.tree = std::move(loaded->config);
    out.files = std::move(loaded->files);
    out.names_read = std::move(loaded->names_read);
    out.warnings = std::move(loaded->warnings);
    out.mm = !bases || is_mm_tree(out.tree);
  } else {
    auto loaded = config::mm::load_torchpack(env, args.config);
    if (!loaded.ok()) return missing(loaded.status());
    out.mm = is_mm_tree(loaded->config);
    if (out.mm) {
      out.tree = std::move(loaded->config);
      out.files = std::move(loaded->files);
    } else {
      // Our own YAML does not inherit from folders.
      AERIE_ASSIGN_OR_RETURN(out.tree, config::load_yaml(args.config));
      if (!out.tree.is_map())
        return invalid_argument(str_cat(args.config, ": expected keys and values"));
      out.files = {args.config};
    }
  }
  AERIE_RETURN_IF_ERROR(config::mm::apply_options(args.options, out.tree));
  for (const auto& [key, text] : args.changes)
    if (key.find('.') == std::string::npos && out.tree.child(key) == nullptr)
      return config::mm::unknown_option("--" + key);
  AERIE_RETURN_IF_ERROR(config::mm::apply_torchpack_changes(args.changes, out.tree));
  out.expressions = out.mm && is_yaml(args.config) && !bases;
  if (out.expressions)
    AERIE_RETURN_IF_ERROR(config::mm::evaluate_expressions(out.tree, out.names_read));
  return out;
}

// Loop keys of ours that 9.3-style files write under `trainer`.
Status move_loop_keys(Value& native) {
  for (const char* key : {"step_unit", "loss_scale", "compile"}) {
    const std::string from = str_cat("trainer.", key), to = str_cat("aerie.", key);
    const Value* value = native.find(from);
    if (value == nullptr) continue;
    if (const Value* other = native.find(to); other != nullptr && !(*other == *value))
      return invalid_argument(str_cat(value->origin().to_string(), ": ", from, " and ", to,
                                      " say different things"))
          .with_hint(str_cat("write ", to, " alone"));
    Value copy = *value;
    native.erase(from);
    AERIE_RETURN_IF_ERROR(native.set(to, std::move(copy)));
  }
  return ok_status();
}

// `lr_scaling: linear` is short for `lr_scaling: {rule: linear}`.
Status spell_out_lr_scaling(Value& native) {
  const Value* scaling = native.find("model.optim.lr_scaling");
  if (scaling == nullptr || !scaling->is_string()) return ok_status();
  Value rule = *scaling;
  Value map = Value(config::Map()).with_origin(rule.origin());
  map.as_map().set("rule", std::move(rule));
  return native.set("model.optim.lr_scaling", std::move(map));
}

Status apply_flags(const MmArgs& args, bool mm, Value& native) {
  const auto set = [&](const char* path, Value value, const std::string& flag) {
    return native.set(path, std::move(value).with_origin(config::Origin::command_line(flag)));
  };
  if (!args.work_dir.empty())
    AERIE_RETURN_IF_ERROR(set("exp_manager.explicit_log_dir", Value(args.work_dir),
                              str_cat("--work-dir ", args.work_dir)));
  else if (mm && native.find("exp_manager.explicit_log_dir") == nullptr)
    AERIE_RETURN_IF_ERROR(native.set("exp_manager.explicit_log_dir",
                                     Value(str_cat("work_dirs/", file_stem(args.config)))));
  if (!args.gpu_ids.empty()) {
    config::List ids;
    for (const int64_t id : args.gpu_ids) ids.emplace_back(id);
    AERIE_RETURN_IF_ERROR(set("trainer.devices", Value(std::move(ids)), "--gpu-ids"));
  }
  if (args.gpus) AERIE_RETURN_IF_ERROR(set("trainer.devices", Value(*args.gpus), "--gpus"));
  if (!args.load_from.empty())
    AERIE_RETURN_IF_ERROR(set("load_from", Value(args.load_from), "--load-from"));
  if (!args.resume_from.empty())
    AERIE_RETURN_IF_ERROR(
        set("exp_manager.resume_from_checkpoint", Value(args.resume_from), "--resume-from"));
  // mm's rule: a file that is named wins over what the folder holds.
  const Value* named = native.find("exp_manager.resume_from_checkpoint");
  if (args.auto_resume && (named == nullptr || named->is_null())) {
    AERIE_RETURN_IF_ERROR(set("exp_manager.resume_if_exists", Value(true), "--auto-resume"));
    AERIE_RETURN_IF_ERROR(
        set("exp_manager.resume_ignore_no_checkpoint", Value(true), "--auto-resume"));
  }
  if (args.no_validate)
    AERIE_RETURN_IF_ERROR(set("trainer.limit_val_batches", Value(0), "--no-validate"));
  if (args.seed) AERIE_RETURN_IF_ERROR(set("aerie.seed", Value(*args.seed), "--seed"));
  if (args.deterministic)
    AERIE_RETURN_IF_ERROR(set("trainer.deterministic", Value(true), "--deterministic"));
  return ok_status();
}

// What a machine without GPUs makes of keys that need one: a run on the CPU, and a warning.
Status adapt_to_cpu(const MmArgs& args, int num_gpus, Value& native, config::Findings& findings) {
  if (num_gpus > 0) return ok_status();
  const auto warn = [&](const std::string& key, const Value& value, std::string message) {
    const bool placed = value.origin().kind != config::Origin::Kind::kDefault;
    findings.add({Finding::Severity::kWarning, key, std::move(message), "",
                  placed ? value.origin().to_string() : ""});
  };
  // A number in the file may mean processes of the CPU; that of --gpus does not.
  if (Value* devices = native.find("trainer.devices");
      devices != nullptr && (devices->is_list() || args.gpus)) {
    warn("trainer.devices", *devices, "there is no GPU here; the run is on the CPU");
    native.erase("trainer.devices");
  }
  Value* precision = native.find("trainer.precision");
  if (precision != nullptr && precision->is_string() && starts_with(precision->as_string(), "16")) {
    warn("trainer.precision", *precision, "fp16 needs a GPU; the run is in float32 on the CPU");
    AERIE_RETURN_IF_ERROR(
        native.set("trainer.precision", Value("32-true").with_origin(precision->origin())));
  }
  return ok_status();
}

// A whole node of ours that a slip of its name would leave out; other names at the top may be
// variables.
bool is_misspelt_node(const Finding& finding, const Value& resolved) {
  if (finding.severity != Finding::Severity::kWarning || finding.hint.empty() ||
      finding.key.find('.') != std::string::npos)
    return false;
  const Value* value = resolved.child(finding.key);
  if (value == nullptr || !value->is_map()) return false;
  for (const char* node : {"trainer", "model", "exp_manager", "aerie"})
    if (finding.key != node && edit_distance(to_lower(finding.key), node) <= 2) return true;
  return false;
}

}  // namespace

bool is_bev_command_line(Env& env, const std::vector<std::string>& args) {
  if (config::mm::is_mm_command_line(args)) return true;
  for (const std::string& arg : args) {
    if (!is_yaml(arg) || arg.find('=') != std::string::npos || starts_with(arg, "-")) continue;
    if (names_bases(env, arg)) return true;
    const auto loaded = config::mm::load_torchpack(env, arg);
    return loaded.ok() && has_bev_keys(loaded->config);
  }
  return false;
}

Result<LoadedBevConfig> load_bev_config(Env& env, const MmArgs& args,
                                        const BevLoadOptions& options) {
  if (args.config.empty())
    return invalid_argument("no configuration is named")
        .with_hint("for example configs/baseline/lss_swin_nuscenes_optimized.py");
  LoadedBevConfig out;
  AERIE_ASSIGN_OR_RETURN(Source source, read_source(env, args));
  out.files = std::move(source.files);
  const auto warn = [&](std::string message) {
    out.findings.add({Finding::Severity::kWarning, "", std::move(message), "", ""});
  };
  for (const std::string& warning : source.warnings) warn(warning);
  for (const std::string& warning : args.warnings) warn(warning);
  if (args.diff_seed)
    warn("--diff_seed has no effect: what is random hangs off the sample, never off the process");
  if (source.mm) {
    Translation translated =
        translate_mm(source.tree, {file_stem(args.config), args.allow_unknown, &source.names_read,
                                   /*names_came_first=*/!source.expressions});
    out.native = std::move(translated.native);
    out.notes = std::move(translated.notes);
    for (const Finding& finding : translated.findings.all()) out.findings.add(finding);
  } else {
    out.native = std::move(source.tree);
  }
  AERIE_RETURN_IF_ERROR(move_loop_keys(out.native));
  AERIE_RETURN_IF_ERROR(spell_out_lr_scaling(out.native));
  AERIE_RETURN_IF_ERROR(apply_flags(args, source.mm, out.native));

  const config::Schema& schema = bev_schema();
  Value effective = out.native;
  const int num_gpus = options.num_gpus ? *options.num_gpus : config::count_visible_gpus();
  if (options.for_training)
    AERIE_RETURN_IF_ERROR(adapt_to_cpu(args, num_gpus, effective, out.findings));
  config::fill_defaults(effective, schema.aerie_defaults());
  std::set<std::string> reads;
  config::ResolveOptions resolve;
  resolve.reads = &reads;
  AERIE_ASSIGN_OR_RETURN(out.resolved, config::resolve_all(effective, resolve));
  config::ValidateOptions validate_options;
  validate_options.allow_unknown = args.allow_unknown;
  validate_options.for_training = options.for_training;
  validate_options.num_gpus = num_gpus;
  validate_options.interpolation_reads = &reads;
  const config::Findings found = config::validate(schema, out.resolved, validate_options);
  for (Finding finding : found.all()) {
    if (!args.allow_unknown && is_misspelt_node(finding, out.resolved)) {
      finding.severity = Finding::Severity::kError;
      finding.message = "unknown key";
    }
    out.findings.add(std::move(finding));
  }
  if (const Status status = out.findings.to_status(); !status.ok()) {
    if (options.keep_errors) return out;
    return status;
  }
  auto run = build_bev_run_config(out.resolved);
  if (!run.ok()) {
    if (!options.keep_errors) return run.status();
    out.findings.add({Finding::Severity::kError, "", run.status().to_string(), "", ""});
    return out;
  }
  out.run = std::move(run).value();
  out.idle_keys = config::keys_without_effect(schema, out.resolved, num_gpus);
  out.notes.push_back(learning_rate_sentence(out.run));
  return out;
}

}  // namespace aerie::bev
