#include "aerie/models/nest/run/lightning_export.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/archive/averages.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/safetensors.h"
#include "aerie/archive/tree_builder.h"
#include "aerie/base/check.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/config/merge.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/models/nest/restore.h"
#include "aerie/models/nest/run/nest_job.h"
#include "aerie/models/nest/run/nest_schedule.h"
#include "aerie/optim/optimizer.h"
#include "aerie/optim/schedule.h"
#include "aerie/optim/torch_settings.h"
#include "aerie/train/cadence.h"

namespace aerie::train {
namespace {

using archive::NodeId;
using archive::NodeTree;
using archive::OutTensor;
using Json = nlohmann::json;
using Kind = config::OptimizerKind;

constexpr const char* kLightningVersion = "2.4.0";  // whose files these are

// The names of the parameters in torch's order. Declaring them is enough: the model is given up
// before any of it is allocated.
Status declare_parameters(const config::RunConfig& run,
                          const std::function<Status(const nn::ParameterRegistry&)>& use) {
  std::optional<Status> outcome;
  const auto model = nest::NestModel::create(run.model, run.aerie, at::kCPU,
                                             [&](const nn::ParameterRegistry& registry) {
                                               outcome = use(registry);
                                               return unsupported("only the names are wanted");
                                             });
  return outcome ? *outcome : model.status();
}

// Everything of one file, as nodes.
class Builder : public archive::TreeBuilder {
 public:
  // {'ready': n, 'completed': n, ...} of Lightning's trackers.
  NodeId tracker(int64_t started, int64_t done, const std::vector<const char*>& fields) {
    const NodeId out = dict();
    for (const char* field : fields) {
      const bool begun = std::strcmp(field, "ready") == 0 || std::strcmp(field, "started") == 0;
      set(out, field, tree.add_int(begun ? started : done));
    }
    return out;
  }
  NodeId progress(int64_t total, int64_t current, const std::vector<const char*>& fields) {
    const NodeId out = dict();
    set(out, "total", tracker(total, total, fields));
    set(out, "current", tracker(current, current, fields));
    return out;
  }
};

const std::vector<const char*> kSimple{"ready", "completed"};
const std::vector<const char*> kStarted{"ready", "completed", "started"};
const std::vector<const char*> kProcessed{"ready", "completed", "started", "processed"};

// Where Lightning's loops stand. A checkpoint at the very end of an epoch is the beginning of the
// next one: Lightning would otherwise train one more batch of the old one.
struct LoopPosition {
  int64_t epoch = 0;
  int64_t batch = 0;
};

LoopPosition loop_position(const TrainState& state) {
  if (state.epoch_batches > 0 && state.batch_in_epoch >= state.epoch_batches)
    return {state.epoch + 1, 0};
  return {state.epoch, state.batch_in_epoch};
}

NodeId add_loops(Builder& out, const TrainState& state, int64_t accumulate) {
  const LoopPosition at = loop_position(state);
  const int64_t steps_of_epoch = (at.batch + accumulate - 1) / accumulate;
  const auto total_batches = static_cast<int64_t>(state.micro_step);
  const NodeId fit = out.dict();
  out.set(fit, "state_dict", out.dict());
  const NodeId epoch_loop = out.dict();
  out.set(epoch_loop, "_batches_that_stepped", out.tree.add_int(state.step));
  out.set(fit, "epoch_loop.state_dict", epoch_loop);
  const auto batches = [&](int64_t total, int64_t current) {
    const NodeId progress = out.progress(total, current, kProcessed);
    out.set(progress, "is_last_batch", out.tree.add_bool(false));
    return progress;
  };
  out.set(fit, "epoch_loop.batch_progress", batches(total_batches, at.batch));
  out.set(fit, "epoch_loop.scheduler_progress", out.progress(state.step, steps_of_epoch, kSimple));
  out.set(fit, "epoch_loop.automatic_optimization.state_dict", out.dict());
  const NodeId optimizer = out.dict();
  out.set(optimizer, "step", out.progress(state.step, steps_of_epoch, kSimple));
  out.set(optimizer, "zero_grad", out.progress(state.step, steps_of_epoch, kStarted));
  const NodeId optimization = out.dict();
  out.set(optimization, "optimizer", optimizer);
  out.set(fit, "epoch_loop.automatic_optimization.optim_progress", optimization);
  out.set(fit, "epoch_loop.manual_optimization.state_dict", out.dict());
  out.set(fit, "epoch_loop.manual_optimization.optim_step_progress", out.progress(0, 0, kSimple));
  out.set(fit, "epoch_loop.val_loop.state_dict", out.dict());
  out.set(fit, "epoch_loop.val_loop.batch_progress", batches(0, 0));
  const NodeId epochs = out.dict();
  out.set(epochs, "total", out.tracker(at.epoch + 1, at.epoch, kProcessed));
  out.set(epochs, "current", out.tracker(at.epoch + 1, at.epoch, kProcessed));
  out.set(fit, "epoch_progress", epochs);

  const NodeId loops = out.dict();
  out.set(loops, "fit_loop", fit);
  for (const char* name : {"validate_loop", "test_loop", "predict_loop"}) {
    const NodeId loop = out.dict();
    out.set(loop, "state_dict", out.dict());
    out.set(loop, "batch_progress", batches(0, 0));
    out.set(loops, name, loop);
  }
  return loops;
}

// State of a schedule. Lightning puts these over what it made of the configuration, so that its own
// length and warm-up stay.
NodeId add_schedule(Builder& out, const config::SchedulerConfig& config,
                    const std::vector<double>& base_rates, const std::vector<double>& rates,
                    const TrainState& state) {
  const Json saved = Json::parse(state.schedule_json, nullptr, false);
  const auto count = [&](const char* name) {
    return saved.is_object() && saved.contains(name) && saved[name].is_number_integer()
               ? saved[name].get<int64_t>()
               : int64_t{0};
  };
  const bool plateau = config.kind == config::ScheduleKind::kReduceLROnPlateau;
  const bool by_epoch = plateau || config.kind == config::ScheduleKind::kExponentialLR;
  const int64_t done = by_epoch ? count("epochs") : state.step;
  const NodeId node = out.dict();
  out.set(node, "last_epoch", out.tree.add_int(done));
  if (plateau) {
    const bool known = saved.is_object() && saved.contains("best") && saved["best"].is_number();
    const double worst = config.mode == "max" ? -std::numeric_limits<double>::infinity()
                                              : std::numeric_limits<double>::infinity();
    out.set(node, "best", out.tree.add_float(known ? saved["best"].get<double>() : worst));
    out.set(node, "num_bad_epochs", out.tree.add_int(count("bad")));
    out.set(node, "cooldown_counter", out.tree.add_int(count("cooldown")));
  } else {
    const bool cyclic = config.kind == config::ScheduleKind::kCyclicLR;
    out.set(
        node, "base_lrs",
        out.floats(cyclic ? std::vector<double>(base_rates.size(), config.base_lr) : base_rates));
    out.set(node, "_step_count", out.tree.add_int(done + 1));
    out.set(node, "_is_initial", out.tree.add_bool(false));
    out.set(node, "_get_lr_called_within_step", out.tree.add_bool(false));
    if (cyclic) out.set(node, "_scale_fn_custom", out.tree.add_none());
  }
  out.set(node, "_last_lr", out.floats(rates));
  return node;
}

NodeId add_callbacks(Builder& out, const config::ExpManagerConfig& exp, const TrainState& state) {
  const NodeId callbacks = out.dict();
  if (!exp.create_early_stopping_callback) return callbacks;
  const Json saved = Json::parse(state.early_stopping_json, nullptr, false);
  if (!saved.is_object() || !saved.contains("best") || !saved["best"].is_number()) return callbacks;
  const config::EarlyStoppingConfig& rules = exp.early_stopping_callback_params;
  const NodeId node = out.dict();
  out.set(node, "wait_count", out.tree.add_int(saved.value("checks", int64_t{0})));
  out.set(node, "stopped_epoch", out.tree.add_int(0));
  out.set(node, "best_score", out.scalar(saved["best"].get<float>()));
  out.set(node, "patience", out.tree.add_int(rules.patience));
  out.set(callbacks,
          str_cat("EarlyStopping{'monitor': '", rules.monitor, "', 'mode': '",
                  rules.mode_max ? "max" : "min", "'}"),
          node);
  return callbacks;
}

}  // namespace

std::string averaged_path(const std::string& path) {
  return str_cat(path.substr(0, path.size() - file_extension(path).size()), "-EMA",
                 file_extension(path));
}

LightningState lightning_state(const TrainState& train, const StateSnapshot& snapshot) {
  LightningState out;
  out.train = train;
  out.scalars_json = snapshot.scalars_json();
  for (const SnapshotTensor& tensor : snapshot.tensors())
    out.files[tensor.file].push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data, {}});
  return out;
}

Result<LightningExport> LightningExport::make(const config::RunConfig& run,
                                              config::Value model_node) {
  LightningExport out;
  out.run_ = run;
  out.model_node_ = std::move(model_node);
  AERIE_RETURN_IF_ERROR(
      declare_parameters(run, [&](const nn::ParameterRegistry& registry) -> Status {
        AERIE_ASSIGN_OR_RETURN(
            const std::vector<optim::OptimizerGroup> groups,
            optim::make_groups(registry, run.model.optim, run.model.optim_param_groups));
        for (const optim::OptimizerGroup& group : groups) {
          Group one;
          one.settings = optim::torch_settings(run.model.optim.kind, group.settings);
          one.lr = group.settings.lr;
          for (const int64_t entry : group.entries)
            one.params.push_back(registry.entries()[static_cast<size_t>(entry)].name);
          out.groups_.push_back(std::move(one));
        }
        return ok_status();
      }));
  return out;
}

Result<archive::TorchWriter> LightningExport::checkpoint(const LightningState& state, bool averaged,
                                                         const std::string& prefix) const {
  const TrainState& train = state.train;
  const auto file = [&](const char* name) {
    const auto found = state.files.find(name);
    return found == state.files.end() ? std::vector<OutTensor>() : found->second;
  };
  const Json scalars = Json::parse(state.scalars_json, nullptr, false);
  if (!scalars.is_object() || !scalars.contains("optimizer") || !scalars["optimizer"].is_object())
    return data_error("the checkpoint's engine state is damaged");
  if (averaged && !state.has_averages())
    return invalid_argument("the checkpoint holds no averaged weights")
        .with_hint("they are kept with exp_manager.ema.enable=true");

  Builder out;
  std::vector<OutTensor> model = file("model");
  if (averaged) {
    AERIE_ASSIGN_OR_RETURN(model, archive::with_averages(std::move(model), file("ema")));
  }
  const NodeId weights = out.tree.add_dict(/*ordered=*/true);
  for (OutTensor& tensor : model) {
    const std::string name = tensor.name;
    out.set(weights, name, out.tensor(std::move(tensor)));
  }
  const NodeId root = out.dict();
  out.set(root, "epoch", out.tree.add_int(loop_position(train).epoch));
  out.set(root, "global_step", out.tree.add_int(train.step));
  out.set(root, "pytorch-lightning_version", out.tree.add_string(kLightningVersion));
  out.set(root, "aerie", out.tree.add_string("native checkpoint"));  // who wrote it
  out.set(root, "state_dict", weights);
  const int64_t accumulate = std::max<int64_t>(1, run_.trainer.accumulate_grad_batches);
  out.set(root, "loops", add_loops(out, train, accumulate));

  std::unordered_map<std::string, OutTensor> moments;
  for (OutTensor& tensor : file("optimizer")) moments.emplace(tensor.name, tensor);
  const bool stateless = run_.model.optim.kind == Kind::kSgd && run_.model.optim.momentum == 0.0;
  // save_weights_only leaves these out, as Lightning does.
  if (!moments.empty() || stateless || train.step == 0) {
    std::vector<double> base_rates;
    for (const Group& group : groups_) base_rates.push_back(group.lr);
    std::optional<int64_t> planned;
    if (train.epoch_batches > 0) {
      config::TrainerConfig whole = run_.trainer;
      whole.limit_train_batches = {};  // the count is what it left
      AERIE_ASSIGN_OR_RETURN(const Cadence cadence,
                             Cadence::make(whole, train.epoch_batches, false));
      if (cadence.planned_steps() >= 0) planned = cadence.planned_steps();
    }
    AERIE_ASSIGN_OR_RETURN(
        optim::Schedule schedule,
        optim::Schedule::make(run_.model.optim.sched, base_rates, schedule_steps(run_, planned)));
    if (!train.schedule_json.empty()) AERIE_RETURN_IF_ERROR(schedule.restore(train.schedule_json));
    const std::vector<double> rates = schedule.at(train.step);
    const std::optional<double> momentum = schedule.momentum_at(train.step);

    const Json common = scalars["optimizer"].value("step", Json(0));
    const Json others = scalars["optimizer"].value("steps", Json::object());
    const auto steps_of = [&](const std::string& name) {
      const Json& value = others.contains(name) ? others.at(name) : common;
      return value.is_number() ? value.get<double>() : 0.0;
    };
    const NodeId optimizer = out.dict();
    const NodeId per_param = out.dict();
    const NodeId groups = out.tree.add_list();
    const NodeId averages = out.tree.add_container(archive::NodeKind::kTuple);
    std::unordered_map<std::string, OutTensor> ema;
    for (OutTensor& tensor : file("ema")) ema.emplace(tensor.name, tensor);
    int64_t number = 0;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      const NodeId node = out.dict();
      const NodeId params = out.tree.add_list();
      out.set(node, "lr", out.tree.add_float(rates[g]));
      for (const config::MapEntry& setting : group.settings) {
        config::Value value = setting.value;
        if (momentum && setting.key == "momentum") value = config::Value(*momentum);
        if (momentum && setting.key == "betas") value.as_list()[0] = config::Value(*momentum);
        if (!value.is_list()) {
          out.set(node, setting.key, archive::add_plain_value(out.tree, value));
          continue;
        }
        const NodeId tuple = out.tree.add_container(archive::NodeKind::kTuple);
        for (const config::Value& item : value.as_list())
          out.append(tuple, archive::add_plain_value(out.tree, item));
        out.set(node, setting.key, tuple);
      }
      if (run_.model.optim.sched) {
        const bool cyclic = run_.model.optim.sched->kind == config::ScheduleKind::kCyclicLR;
        if (momentum) {
          out.set(node, "max_momentum", out.tree.add_float(run_.model.optim.sched->max_momentum));
          out.set(node, "base_momentum", out.tree.add_float(run_.model.optim.sched->base_momentum));
        }
        out.set(node, "initial_lr",
                out.tree.add_float(cyclic ? run_.model.optim.sched->base_lr : group.lr));
      }
      for (const std::string& name : group.params) {
        out.append(params, out.tree.add_int(number));
        const double steps = steps_of(name);
        const NodeId entry = out.dict();
        bool any = false;
        for (const char* kind : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}) {
          const auto found = moments.find(str_cat(kind, ".", name));
          if (found == moments.end() || steps <= 0.0) continue;
          if (!any && run_.model.optim.kind == Kind::kNovograd)
            out.set(entry, "step", out.tree.add_int(static_cast<int64_t>(steps)));
          else if (!any && run_.model.optim.kind != Kind::kSgd)
            out.set(entry, "step", out.scalar(static_cast<float>(steps)));
          any = true;
          out.set(entry, kind, out.tensor(found->second));
        }
        if (any) {
          const bool fits = out.tree.set(per_param, out.tree.add_int(number), entry);
          AERIE_CHECK(fits, "nested too deep");
        }
        ++number;
        if (!averaged) continue;
        const auto average = ema.find(name);
        if (average == ema.end()) return data_error(str_cat("the averages lack '", name, "'"));
        out.append(averages, out.tensor(average->second));
      }
      out.set(node, "params", params);
      out.append(groups, node);
    }
    out.set(optimizer, "state", per_param);
    out.set(optimizer, "param_groups", groups);
    const NodeId states = out.tree.add_list();
    if (averaged) {
      const NodeId wrapped = out.dict();
      const Json saved = scalars.value("ema", Json::object());
      out.set(wrapped, "opt", optimizer);
      out.set(wrapped, "ema", averages);
      out.set(wrapped, "current_step", out.tree.add_int(saved.value("count", train.step)));
      out.set(wrapped, "decay", out.tree.add_float(run_.exp_manager.ema.decay));
      out.set(wrapped, "every_n_steps", out.tree.add_int(run_.exp_manager.ema.every_n_steps));
      out.append(states, wrapped);
    } else {
      out.append(states, optimizer);
    }
    out.set(root, "callbacks", add_callbacks(out, run_.exp_manager, train));
    out.set(root, "optimizer_states", states);
    const NodeId schedulers = out.tree.add_list();
    if (run_.model.optim.sched)
      out.append(schedulers, add_schedule(out, *run_.model.optim.sched, base_rates, rates, train));
    out.set(root, "lr_schedulers", schedulers);
    if (scalars.contains("scaler") && scalars["scaler"].is_object()) {
      const NodeId scaler = out.dict();
      out.set(scaler, "scale", out.tree.add_float(scalars["scaler"].value("scale", 65536.0)));
      out.set(scaler, "growth_factor", out.tree.add_float(2.0));
      out.set(scaler, "backoff_factor", out.tree.add_float(0.5));
      out.set(scaler, "growth_interval", out.tree.add_int(2000));
      out.set(scaler, "_growth_tracker",
              out.tree.add_int(scalars["scaler"].value("growth_tracker", int64_t{0})));
      out.set(root, "MixedPrecision", scaler);
    }
  }
  const NodeId hyper_parameters = out.dict();
  // NeMo's models take nothing but a DictConfig. Its EMA callback, however, opens the file of the
  // averages with torch's default, which takes no foreign class.
  out.set(hyper_parameters, "cfg",
          averaged ? archive::add_plain_value(out.tree, model_node_)
                   : archive::add_dict_config(out.tree, model_node_));
  out.set(root, "hyper_parameters", hyper_parameters);
  return archive::TorchWriter::make(out.tree, root, std::move(out.tensors), prefix);
}

Status LightningExport::write(Env& env, const std::string& path,
                              const LightningState& state) const {
  const auto one = [&](const std::string& target, bool averaged) -> Status {
    AERIE_ASSIGN_OR_RETURN(const archive::TorchWriter writer,
                           checkpoint(state, averaged, file_stem(target)));
    return archive::write_atomically(env, target,
                                     [&](const archive::Sink& sink) { return writer.write(sink); });
  };
  if (state.has_averages()) AERIE_RETURN_IF_ERROR(one(averaged_path(path), true));
  return one(path, false);
}

namespace {

// Micro-batches of an epoch, from the records of the run: checkpoints did not always say.
int64_t batches_per_epoch_of(Env& env, const std::string& run_dir) {
  const auto file = metrics::read_metrics(env, join_path(run_dir, "metrics.jsonl"));
  double batches = 0.0;
  if (file.ok())
    for (const metrics::Record& record : file->records)
      (void)record.number("batches_per_epoch", &batches);
  return static_cast<int64_t>(batches);
}

}  // namespace

Result<ConvertedCheckpoint> convert_native_checkpoint(Env& env, const std::string& checkpoint,
                                                      const std::string& path,
                                                      const std::string& config, bool averaged,
                                                      const archive::ProgressFn& progress) {
  ConvertedCheckpoint out;
  AERIE_ASSIGN_OR_RETURN(const ckpt::ModelFiles files, ckpt::find_model(env, checkpoint, config));
  const std::string dir = parent_path(files.weights);
  out.config = files.config;
  AERIE_ASSIGN_OR_RETURN(const std::string text, env.read_file(files.config, 64u << 20));
  AERIE_ASSIGN_OR_RETURN(config::Value root, config::parse_yaml(text, files.config));
  if (!root.is_map() || root.child("model") == nullptr)
    return invalid_argument("the optimizer's settings are not in it: it has no `model` node")
        .with_context(files.config)
        .with_hint("name the config.yaml of the run with --config");
  config::fill_defaults(root, config::nest_schema().aerie_defaults());
  config::ResolveOptions lenient;
  lenient.unset_env_is_missing = true;
  AERIE_ASSIGN_OR_RETURN(const config::Value resolved, config::resolve_all(root, lenient));
  auto run = config::build_run_config(resolved);
  if (!run.ok()) return run.status().with_context(files.config);
  AERIE_ASSIGN_OR_RETURN(const std::string model_yaml, nemo_model_config(resolved));
  AERIE_ASSIGN_OR_RETURN(config::Value model_node,
                         config::parse_yaml(model_yaml, "model_config.yaml"));
  AERIE_ASSIGN_OR_RETURN(const LightningExport exporter,
                         LightningExport::make(*run, std::move(model_node)));

  const CheckpointStore store(env, parent_path(dir));
  AERIE_ASSIGN_OR_RETURN(const auto loaded, store.open(base_name(dir)));
  LightningState state;
  state.train = loaded->state();
  if (state.train.epoch_batches == 0)
    state.train.epoch_batches = batches_per_epoch_of(env, parent_path(files.config));
  state.scalars_json = loaded->scalars_json();
  std::vector<std::unique_ptr<archive::TensorArchive>> archives;
  for (const char* name : {"model", "optimizer", "ema"}) {
    const std::string file = join_path(dir, str_cat(name, ".safetensors"));
    if (loaded->names(name).empty()) continue;
    AERIE_ASSIGN_OR_RETURN(archive::TensorArchive opened, archive::read_safetensors(env, file));
    archives.push_back(std::make_unique<archive::TensorArchive>(std::move(opened)));
    state.files[name] = archive::out_tensors(*archives.back());
  }
  AERIE_ASSIGN_OR_RETURN(const archive::TorchWriter writer,
                         exporter.checkpoint(state, averaged, file_stem(path)));
  AERIE_RETURN_IF_ERROR(archive::write_atomically(
      env, path, [&](const archive::Sink& sink) { return writer.write(sink, progress); }));
  out.num_tensors = state.files["model"].size();
  out.bytes = writer.size();
  out.has_averages = state.has_averages();
  return out;
}

}  // namespace aerie::train
