#include "aerie/models/nest/run/nest_eval.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/format_text.h"
#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/config/schema/devices.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/restore.h"
#include "aerie/models/nest/run/nest_data.h"
#include "aerie/models/nest/run/nest_engine.h"
#include "aerie/train/evaluate.h"
#include "aerie/train/run_start.h"

namespace aerie::train {

namespace {

Status no_checkpoint() {
  return invalid_argument("no checkpoint to evaluate")
      .with_hint(
          "give --checkpoint PATH, init_from_nemo_model=..., init_from_ptl_ckpt=... or "
          "exp_manager.resume_from_checkpoint=...");
}

// Loads the weights and says where they came from.
Result<LoadedWeights> load_weights(const NestEvalOptions& options, BuiltEngine& engine) {
  Env& env = *options.env;
  const config::RunConfig& run = *options.config;
  const config::EmaConfig& ema = run.exp_manager.ema;
  const bool averaged = ema.enable && !ema.validate_original_weights;
  std::string path = options.checkpoint;
  if (path.empty()) path = run.exp_manager.resume_from_checkpoint;
  if (path.empty() && run.init_from.kind != config::InitFromConfig::Kind::kNone) {
    // The mapping form takes parts from several files; what is left out keeps fresh weights, as at
    // the start of training.
    if (run.init_from.sources.size() != 1 || !run.init_from.sources[0].include.empty() ||
        !run.init_from.sources[0].exclude.empty()) {
      AERIE_RETURN_IF_ERROR(load_initial_weights(env, engine, run.init_from));
      LoadedWeights out;
      for (const config::InitSource& source : run.init_from.sources)
        out.path += str_cat(out.path.empty() ? "" : ", ", source.path);
      return out;
    }
    path = run.init_from.sources[0].path;
  }
  if (path.empty() && run.exp_manager.resume_if_exists) {
    AERIE_ASSIGN_OR_RETURN(const RunFolder folder, run_folder_of(env, Clock::real(), run.loop()));
    if (!env.exists(folder.checkpoints))
      return no_checkpoint().with_context(str_cat("there is no ", folder.checkpoints));
    path = folder.checkpoints;
  }
  if (path.empty()) return no_checkpoint();
  return load_all_weights(env, engine, path, averaged);
}

// What changes no number of an evaluation, or follows from something else.
bool changes_nothing(std::string_view key) {
  static const std::vector<std::string_view> kKeys = {"_target_",
                                                      "dither",
                                                      "dropout",
                                                      "stochastic_depth",
                                                      "pos_emb_max_len",
                                                      "sync_max_audio",
                                                      "use_pytorch_sdpa",
                                                      "subsampling_conv_chunking",
                                                      "nb_",
                                                      "rng",
                                                      "stft_",
                                                      "use_torchaudio",
                                                      "freeze",
                                                      "feat_in",
                                                      "feat_out",
                                                      "num_decoders",
                                                      "squeeze_single",
                                                      "combine_time_steps"};
  const std::string_view name = key.substr(key.rfind('.') + 1);
  return std::any_of(kKeys.begin(), kKeys.end(),
                     [&](std::string_view start) { return starts_with(name, start); });
}

// Weights fit into a model of other settings as long as their shapes do: "model.encoder.xscaling is
// true, in nest.nemo false".
std::vector<std::string> settings_unlike(Env& env, const config::Value& model_node,
                                         const std::string& checkpoint) {
  std::vector<std::string> out;
  const auto files = ckpt::find_model(env, checkpoint, "");
  if (!files.ok() || !files->model_node.is_map() || !model_node.is_map()) return out;
  const auto part = [](const config::Value& node) {
    config::Map map;
    for (const char* name : {"mask_position", "preprocessor", "masking", "encoder", "loss"})
      if (const config::Value* child = node.child(name)) map.set(name, *child);
    return config::Value(std::move(map));
  };
  const config::Value here = part(model_node), there = part(files->model_node);
  for (const config::Difference& one : config::config_differences(here, there)) {
    // Absent means the default, here as there.
    if (one.before == nullptr || one.after == nullptr || changes_nothing(one.key)) continue;
    out.push_back(str_cat("model.", one.key, " is ", one.before->brief(), ", in ", checkpoint, " ",
                          one.after->brief()));
  }
  return out;
}

nlohmann::ordered_json json_number(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
}

}  // namespace

Result<NestEvalReport> evaluate_nest(const NestEvalOptions& options) {
  Env& env = *options.env;
  const config::RunConfig& run = *options.config;
  const auto& datasets = options.test ? run.model.test_ds : run.model.validation_ds;
  const std::string node = options.test ? "model.test_ds" : "model.validation_ds";
  if (datasets.empty())
    return invalid_argument(str_cat("the configuration has no ", node))
        .with_hint(str_cat("set ", node, ".manifest_filepath"));
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(run.trainer, config::count_visible_gpus()));
  EngineOptions engine_options;
  engine_options.gpu = devices.gpu;
  engine_options.gpu_index = devices.ids.front();
  AERIE_ASSIGN_OR_RETURN(BuiltEngine engine, make_nest_engine(run, engine_options));
  AERIE_ASSIGN_OR_RETURN(const LoadedWeights weights, load_weights(options, engine));
  std::vector<std::string> differences;
  if (options.model_node != nullptr)
    differences = settings_unlike(env, *options.model_node, weights.path);
  for (const std::string& one : differences) log_warn("eval", one);

  NestDataOptions data_options;
  data_options.env = &env;
  data_options.gpu = devices.gpu;
  data_options.train = false;
  data_options.test = options.test;
  AERIE_ASSIGN_OR_RETURN(const JobData data, open_nest_data(run, data_options));

  NestEvalReport out;
  out.checkpoint = weights.path;
  out.averaged = weights.averaged;
  out.differences = std::move(differences);
  out.engine = engine.engine->description();
  out.metric = options.test ? "test_loss" : "val_loss";
  uint64_t total = 0;
  for (const ValidationSet& set : data.sets) total += static_cast<uint64_t>(set.batches);
  if (total == 0)
    return invalid_argument(str_cat("there is nothing to evaluate: ", node, " gives no batches"))
        .with_hint("look at the manifests and at trainer.limit_val_batches");
  Progress progress({.label = "eval", .total = total, .unit = "batches"});
  EvaluateOptions evaluate_options;
  evaluate_options.seed = run.aerie.seed;
  // Random validation draws afresh each time; the first round is as good as any.
  evaluate_options.round = run.aerie.validation_seed == config::ValidationSeed::kFixed ? 0 : 1;
  evaluate_options.after_batch = [&progress] { progress.add(); };
  evaluate_options.stop = options.stop;
  const Stopwatch watch;
  AERIE_ASSIGN_OR_RETURN(const std::vector<SetResult> results,
                         evaluate_sets(*engine.engine, data.sets, evaluate_options));
  progress.finish();
  out.wall_s = watch.elapsed_s();
  int64_t counted = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    NestEvalSet set;
    set.name = str_cat(results.size() > 1 ? data.sets[i].name : std::string(), out.metric);
    const EvalAccumulator& all = results[i].all;
    set.loss = all.mean_loss();
    set.batches = all.batches();
    if (all.sums().size() > nest::kMaskedFrames)
      set.masked_frames = static_cast<int64_t>(all.sums()[nest::kMaskedFrames]);
    set.audio_s = results[i].amount;
    if (all.counted() > 0) {
      out.mean += set.loss;
      ++counted;
    }
    out.sets.push_back(std::move(set));
  }
  out.mean = counted > 0 ? out.mean / static_cast<double>(counted) : std::nan("");
  const int64_t wanted = options.test ? run.model.test_dl_idx : run.model.val_dl_idx;
  const size_t monitored =
      std::min(static_cast<size_t>(std::max<int64_t>(0, wanted)), results.size() - 1);
  out.loss = results[monitored].all.mean_loss();
  return out;
}

std::string NestEvalReport::to_text() const {
  std::string out =
      str_cat("checkpoint  ", printable(checkpoint), averaged ? " (averaged weights)\n" : "\n",
              "engine      ", engine, "\n\n");
  size_t width = metric.size() + 5;
  for (const NestEvalSet& set : sets) width = std::max(width, printable(set.name).size());
  const auto row = [&](const std::string& name, double value, const std::string& rest) {
    out += str_cat(name, std::string(width - name.size() + 2, ' '), format_text("%.6f", value),
                   rest, "\n");
  };
  for (const NestEvalSet& set : sets) {
    row(printable(set.name), set.loss,
        str_cat("  ", set.batches, " batches, ", format_text("%.1f s of audio", set.audio_s)));
  }
  if (sets.size() > 1) {
    row(metric, loss, "  (the monitored set)");
    row("mean " + metric, mean, str_cat("  over ", sets.size(), " sets"));
  }
  return out;
}

std::string NestEvalReport::to_json() const {
  using nlohmann::ordered_json;
  ordered_json json;
  json["checkpoint"] = checkpoint;
  json["averaged_weights"] = averaged;
  json["engine"] = engine;
  json[metric] = json_number(loss);
  json["mean_" + metric] = json_number(mean);
  ordered_json list = ordered_json::array();
  for (const NestEvalSet& set : sets)
    list.push_back({{"name", set.name},
                    {"loss", json_number(set.loss)},
                    {"batches", set.batches},
                    {"masked_frames", set.masked_frames},
                    {"audio_s", set.audio_s}});
  json["sets"] = std::move(list);
  json["differences"] = differences;
  json["wall_s"] = wall_s;
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace aerie::train
