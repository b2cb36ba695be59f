#include "aerie/train/run.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <optional>
#include <unistd.h>
#include <utility>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/spans.h"
#include "aerie/base/system.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/yaml.h"
#include "aerie/device/gpu.h"
#include "aerie/device/warm_up.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/metrics/nvml.h"
#include "aerie/metrics/tfevents_writer.h"
#include "aerie/train/bad_sample_log.h"
#include "aerie/train/rank_talk.h"
#include "aerie/train/run_changes.h"
#include "aerie/train/run_checkpointer.h"
#include "aerie/train/run_folder.h"
#include "aerie/train/run_place.h"
#include "aerie/train/run_start.h"
#include "aerie/train/start_times.h"
#include "aerie/train/trainer.h"
#include "aerie/ui/progress_line.h"
#include "aerie/ui/report.h"

namespace aerie::train {

namespace {

constexpr size_t kMaxTraceEvents = 200'000;  // about 25 MB of JSON

// Numbers of single validation sets, where there are several.
std::vector<std::string> set_metric_names(const Job& job, const std::vector<ValidationSet>& sets) {
  std::vector<std::string> out;
  if (sets.size() < 2) return out;
  for (const ValidationSet& set : sets) {
    out.push_back(set.name + job.task().eval_loss);
    for (const std::string& name : job.eval_metric_names()) out.push_back(set.name + name);
  }
  return out;
}

// Metrics that checkpoints and early stopping may watch.
Status check_monitors(const Job& job, const std::vector<ValidationSet>& sets) {
  const config::LoopConfig& run = job.config();
  const TaskInfo& task = job.task();
  std::vector<std::string> known{task.train_loss};
  bool validates = false;
  for (const ValidationSet& set : sets) validates = validates || set.batches > 0;
  for (const std::string& name : set_metric_names(job, sets)) known.push_back(name);
  // Without validation nothing is ever best; that is no mistake.
  known.push_back(task.eval_loss);
  for (const std::string& name : job.eval_metric_names()) known.push_back(name);
  const auto check = [&](const std::string& key, const std::string& name) -> Status {
    if (std::find(known.begin(), known.end(), name) != known.end()) return ok_status();
    const std::string near = nearest_name(name, known);
    return invalid_argument(str_cat("exp_manager.", key, ".monitor: there is no metric '", name,
                                    "'; known: ", join(known, ", ")))
        .with_hint(near.empty() ? std::string() : str_cat("did you mean '", near, "'?"));
  };
  const config::ExpManagerConfig& exp = run.exp_manager;
  if (exp.create_checkpoint_callback)
    AERIE_RETURN_IF_ERROR(
        check("checkpoint_callback_params", exp.checkpoint_callback_params.monitor));
  if (!exp.create_early_stopping_callback) return ok_status();
  const config::EarlyStoppingConfig& rules = exp.early_stopping_callback_params;
  if (rules.strict) AERIE_RETURN_IF_ERROR(check("early_stopping_callback_params", rules.monitor));
  if (!validates && rules.monitor != task.train_loss)
    log_warn("train", "early stopping watches ", rules.monitor,
             ", but there is no validation: it will never stop the run");
  return ok_status();
}

void log_model_summary(const BuiltEngine& engine) {
  for (const ModelPart& part : engine.parts)
    log_info("model", part.name, ": ", group_digits(static_cast<uint64_t>(part.trainable)),
             " trainable, ", group_digits(static_cast<uint64_t>(part.frozen)), " frozen");
}

// What differs from the previous start of a run that is gone on with: one line each in the log; all
// of it as one text for the metrics.
std::string log_changes(const Result<config::Value>& previous, const std::string& config_yaml,
                        const std::string& previous_cursor, const JobData& data) {
  constexpr size_t kShown = 40;
  std::vector<std::string> changes;
  // Both through the same text, so that only values can differ.
  if (const auto now = config::parse_yaml(config_yaml, "config.yaml"); previous.ok() && now.ok())
    changes = config_changes(*previous, *now);
  if (data.changes)
    for (std::string& change : data.changes(previous_cursor)) changes.push_back(std::move(change));
  for (size_t i = 0; i < std::min(changes.size(), kShown); ++i)
    log_info("train", "changed since the last start: ", changes[i]);
  if (changes.size() > kShown)
    log_info("train", "and ", changes.size() - kShown, " more changes since the last start");
  return join(changes, "; ");
}

// What the profile shows, longest first.
void log_phases(const TrainSummary& summary) {
  std::vector<std::pair<double, std::string>> phases;
  for (const auto& [name, seconds] : summary.phase_s) phases.emplace_back(seconds, name);
  std::sort(phases.rbegin(), phases.rend());
  for (const auto& [seconds, name] : phases)
    log_info("profile", name, ": ", human_duration(seconds), ", ",
             std::trunc(1000.0 * seconds / std::max(1e-9, summary.train_s)) / 10.0,
             " % of the run");
}

}  // namespace

namespace {

Result<RunResult> run_rank(Job& job, const RunOptions& options) {
  Env& env = *options.env;
  Clock& clock = Clock::real();
  const config::LoopConfig& run = job.config();
  const SignalCatcher signals;
  // Without NeMo's preemption callback SIGTERM ends the process at once.
  if (!run.exp_manager.create_preemption_callback) std::signal(SIGTERM, SIG_DFL);
  StartTimes times(clock, process_age_s());

  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(run.trainer, config::count_visible_gpus()));
  if (devices.world_size > 1 && options.ranks == nullptr)
    return unsupported(str_cat("the configuration asks for ", devices.world_size,
                               " devices, and this process trains alone"))
        .with_hint("`aerie train` starts a process for each; or set trainer.devices=1");
  std::optional<device::GpuWarmUp> warm_up;
  if (devices.gpu) warm_up.emplace(static_cast<int>(devices.own), /*with_torch=*/true);

  dist::ProcessGroup* const ranks = options.ranks.get();
  const bool leading = leads(ranks);
  AERIE_ASSIGN_OR_RETURN(RunPlace place, open_run_place(job, options, clock));
  const bool keep = place.keep, resumed = place.resumed();
  if (leading)
    for (const std::string& note : options.notes) log_info("train", note);
  const RunFolder& folder = place.folder;
  const ResumePlan& plan = place.plan;
  StartPoint& point = place.point;
  times.mark("run folder");

  DataOptions data_options;
  data_options.env = &env;
  data_options.gpu = devices.gpu;
  data_options.gpu_index = devices.own;
  if (ranks != nullptr) {
    data_options.rank = static_cast<uint32_t>(ranks->rank());
    data_options.world = static_cast<uint32_t>(ranks->size());
    data_options.quiet = !leading;
  }
  data_options.bad_samples =
      std::make_shared<BadSampleLog>(env, folder.path + "/bad_samples.jsonl", leading);
  data_options.resumed_cursor = point.state.data_cursor_json;
  data_options.earlier_configs = [&] { return earlier_configs(env, folder, plan); };
  JobData data;
  AERIE_RETURN_IF_ERROR(first_of_each_node_first(ranks, [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(data, job.open_data(data_options));
    return check_monitors(job, data.sets);
  }));
  const std::string changes = resumed && leading
                                  ? log_changes(place.previous_config, place.config_yaml,
                                                point.state.data_cursor_json, data)
                                  : "";
  // Batches are made while the model is: the loop asks for the same start again.
  const bool from_start = point.loaded == nullptr && plan.kind != ResumePlan::Kind::kForeign;
  if (from_start) AERIE_RETURN_IF_ERROR(data.train->start_epoch(0));
  times.mark("reading the data sets");
  if (warm_up) {
    const device::GpuWarmUp::Times took = warm_up->wait();
    times.beside("libraries", took.libraries_s);
    times.beside("CUDA context", took.context_s);
    times.mark("waiting for libraries and context");
  }

  EngineOptions engine_options;
  engine_options.gpu = devices.gpu;
  engine_options.gpu_index = devices.own;
  engine_options.precision = point.state.precision;
  const bool saves = run.exp_manager.create_checkpoint_callback && keep;
  engine_options.saves = saves && leading;
  engine_options.ranks = options.ranks;
  auto built = job.make_engine(engine_options);
  if (!built.ok()) return advise_memory(job.task(), built.status());
  BuiltEngine engine = std::move(built).value();
  AERIE_RETURN_IF_ERROR(load_start_point(env, job, engine, plan, point));
  times.mark("model");
  for (const auto& [part, seconds] : engine.start_times) times.beside(part, seconds);
  TrainState state = std::move(point.state);

  AERIE_ASSIGN_OR_RETURN(Cadence cadence,
                         Cadence::make(run.trainer, data.train->batches_per_epoch(),
                                       !data.sets.empty(), cadence_rules(run.aerie)));
  if (plan.kind == ResumePlan::Kind::kForeign) {
    state.epoch = state.step / cadence.steps_per_epoch();
    const bool micro = run.aerie.step_unit == config::StepUnit::kMicro;
    state.micro_step = static_cast<uint64_t>(
        state.step * (micro ? 1 : std::max<int64_t>(1, run.trainer.accumulate_grad_batches)));
  }
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<LearningRates> rates,
                         job.make_rates(engine.base_rates, cadence));

  metrics::MetricsLog metrics(env, folder.path + "/metrics.jsonl");
  if (leading)
    AERIE_RETURN_IF_ERROR(metrics.cut_back_to(resumed ? state.step : -1, state.validation_pending));
  std::unique_ptr<metrics::TfEventsWriter> tensorboard;
  if (run.exp_manager.create_tensorboard_logger && keep && leading) {
    const std::string events = event_folder(env, folder, run.exp_manager);
    AERIE_RETURN_IF_ERROR(env.create_dirs(events));
    tensorboard =
        std::make_unique<metrics::TfEventsWriter>(env, events, clock.wall_ns() / 1000000000);
  }
  // Points number from step - 1: what came after the checkpoint is written again.
  if (tensorboard != nullptr && resumed) tensorboard->start_session(state.step, clock.wall_s());
  const std::unique_ptr<metrics::NvmlSampler> nvml =
      devices.gpu ? metrics::NvmlSampler::start(device::pci_bus_id(devices.own).c_str(), 0.5)
                  : nullptr;

  if (leading) {
    metrics::Record start(metrics::RecordKind::kEvent, state.step, state.epoch, state.wall_s);
    start.add("event", resumed ? "resume" : "start")
        .add("name", run.name.empty() ? folder.name : run.name)
        .add("date", iso_time(clock.wall_ns()))
        .add("host", host_name())
        .add("cpu", cpu_name())
        .add("aerie", options.version_text)
        .add("engine", engine.engine->description())
        .add("parameters", engine.engine->num_parameters())
        .add("cpus", int64_t{cpu_count()})
        .add("memory_gib", static_cast<double>(memory_info().total_bytes) / 1073741824.0)
        .add("loader", data.loader)
        .add("batches_per_epoch", cadence.batches_per_epoch())
        .add("planned_steps", cadence.planned_steps())
        .add("training_data", data.training_amount);
    if (!data.validation_amount.empty()) start.add("validation_data", data.validation_amount);
    if (ranks != nullptr) start.add("ranks", int64_t{ranks->size()});
    if (!changes.empty()) start.add("changes", changes);
    start.add("family", job.task().family).add(ui::kReportWordsField, job.report_words().to_json());
    (void)metrics.write(start);
  }
  log_info("train", engine.engine->description(), ", ", engine.engine->num_parameters(),
           " trainable parameters");
  if (run.trainer.enable_model_summary) log_model_summary(engine);

  std::unique_ptr<RunCheckpointer> checkpointer;
  CheckpointRules rules;
  if (saves) {
    RunCheckpointerOptions checkpoint_options;
    checkpoint_options.folder = folder;
    checkpoint_options.params = run.exp_manager.checkpoint_callback_params;
    checkpoint_options.monitor = checkpoint_options.params.monitor;
    checkpoint_options.metrics = {job.task().eval_loss};
    for (const std::string& name : job.eval_metric_names())
      checkpoint_options.metrics.push_back(name);
    for (const std::string& name : set_metric_names(job, data.sets))
      checkpoint_options.metrics.push_back(name);
    AERIE_ASSIGN_OR_RETURN(Exports exports, job.exports(env));
    static_cast<Exports&>(checkpoint_options) = std::move(exports);
    rules = checkpoint_options.rules;
    if (leading) {
      checkpointer = std::make_unique<RunCheckpointer>(env, clock, checkpoint_options);
      AERIE_RETURN_IF_ERROR(checkpointer->adopt_existing());
    }
  }

  std::unique_ptr<RunListener> listener;
  if (keep && leading) {
    ListenerParts listens;
    listens.env = &env;
    listens.clock = &clock;
    listens.run_dir = folder.path;
    listens.first_step = state.step;
    listens.planned_steps = cadence.planned_steps();
    listens.steps_per_epoch = cadence.steps_per_epoch();
    listens.gpu = devices.gpu;
    listens.engine = engine.engine.get();
    listens.tensorboard = tensorboard.get();
    AERIE_ASSIGN_OR_RETURN(listener, job.make_listener(listens));
  }

  const double started_s = clock.monotonic_s();
  ui::ProgressLineOptions line_options;
  line_options.terminal =
      run.trainer.enable_progress_bar && !options.quiet && leading && isatty(STDERR_FILENO) == 1;
  line_options.clock = &clock;
  line_options.throughput_unit = job.task().throughput_unit;
  ui::ProgressLine line(line_options);

  TrainerParts parts;
  parts.task = job.task();
  parts.config = &run;
  parts.engine = engine.engine.get();
  parts.train = data.train.get();
  parts.validation = data.sets;
  parts.monitored_set = job.monitored_set();
  parts.rates = rates.get();
  parts.ranks = ranks;
  parts.joins_saves = saves && !leading;
  if (leading) parts.metrics = &metrics;
  parts.tensorboard = tensorboard.get();
  parts.nvml = nvml.get();
  parts.listener = listener.get();
  parts.checkpointer = checkpointer.get();
  parts.checkpoint_rules = rules;
  parts.clock = &clock;
  parts.stop_signal = [] { return caught_signal(); };
  parts.may_go_on = [&place]() -> Status {
    for (const auto& lock : place.locks) AERIE_RETURN_IF_ERROR(lock->check());
    return ok_status();
  };
  if (!options.quiet && leading)
    parts.progress = [&line](const ui::ProgressInfo& info) { line.update(info); };
  if (keep && leading)
    parts.after_validation = [&env, &folder, &job](int64_t step, const SetResult& monitored) {
      return job.after_validation(env, folder.path, step, monitored);
    };
  if (leading)
    parts.write_nonfinite = [&env, &folder](int64_t step, const std::string& json) -> Status {
      AERIE_RETURN_IF_ERROR(env.create_dirs(folder.path + "/nonfinite"));
      return env.atomic_replace(str_cat(folder.path, "/nonfinite/step_", step, ".json"), json);
    };
  times.mark("the rest");
  parts.first_step = [&] {
    times.mark("first step");
    log_info("train", times.sentence());
    // Training has its batches; those of the first validation may come now.
    for (const auto& set : data.evaluation) set->read_ahead();
    if (!leading) return;
    metrics::Record record(metrics::RecordKind::kEvent, state.step + 1, state.epoch,
                           state.wall_s + clock.monotonic_s() - started_s);
    record.add("event", "first_step");
    times.add_to(record);
    (void)metrics.write(record);
  };

  RunResult out;
  const bool profile = !run.trainer.profiler.empty();
  if (profile) {
    start_spans({.max_events = kMaxTraceEvents});
    set_span_thread_name("training loop");
  }
  Trainer trainer(std::move(parts), std::move(cadence), state);
  auto summary = trainer.run();
  if (!summary.ok()) summary = advise_memory(job.task(), summary.status());
  line.finish();
  if (summary.ok() && !summary->step_times.sentence().empty())
    log_info("train", summary->step_times.sentence());
  if (profile) {
    stop_spans();
    if (summary.ok()) log_phases(*summary);
    if (keep && leading) {
      const Status traced = write_chrome_trace(env, folder.path + "/trace.json");
      if (traced.ok()) out.trace = folder.path + "/trace.json";
      if (!traced.ok()) log_warn("train", "trace.json could not be written: ", traced.to_string());
      if (dropped_span_events() > 0)
        log_info("train", "trace.json holds the first ", kMaxTraceEvents, " events; ",
                 dropped_span_events(), " later ones are left out");
    }
  }

  if (keep) out.run_dir = folder.path;
  if (checkpointer != nullptr) {
    if (!checkpointer->last_stem().empty())
      out.last_checkpoint = str_cat(folder.checkpoints, "/", checkpointer->last_stem());
    if (!checkpointer->best_stem().empty())
      out.best_checkpoint = str_cat(folder.checkpoints, "/", checkpointer->best_stem());
    if (env.exists(checkpointer->archive_path())) out.archive = checkpointer->archive_path();
  }
  if (!leading) {
    // Rank 0 reports.
  } else if (auto report = ui::write_report(env, folder.path, job.report_words()); report.ok()) {
    if (keep) out.report = *report;
    if (const auto records =
            metrics::read_metrics(env, folder.path + "/metrics.jsonl", metrics::kReportSteps);
        records.ok())
      out.verdict = ui::judge(records->records, job.report_words()).sentence;
  } else {
    log_warn("train", "report.html could not be written: ", report.status().to_string());
  }
  close_log_files();
  if (!summary.ok()) return summary.status();
  out.stop_reason = stop_reason_name(summary->reason);
  out.step = summary->state.step;
  out.stop_sentence = stop_sentence(out.stop_reason, out.step, summary->why);
  out.healthy = !summary->health.unhealthy();
  out.health = summary->health.sentence();
  out.advice = str_cat(job.task().lower_rate,
                       " or set trainer.gradient_clip_val; nonfinite/ in the run folder names the "
                       "batches");
  out.on_signal = summary->reason == StopReason::kSignal;
  out.signal = summary->signal;
  return out;
}

}  // namespace

Result<RunResult> run_training(Job& job, const RunOptions& options) {
  auto out = run_rank(job, options);
  if (out.ok() || options.ranks == nullptr) return out;
  // Every rank gets the same answer about a collective that failed: the rank behind it. Inside a
  // pass torch makes an error of its own of it.
  Status why = out.status();
  if (why.code() == StatusCode::kUnavailable || why.code() == StatusCode::kInternal)
    why = options.ranks->explain(std::move(why));
  // The others need not find out by waiting.
  options.ranks->fail(why);
  return why;
}

}  // namespace aerie::train
