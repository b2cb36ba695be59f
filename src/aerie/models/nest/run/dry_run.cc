#include "aerie/models/nest/run/dry_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/system.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/config/schema/devices.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/synthetic_batch.h"
#include "aerie/device/gpu.h"
#include "aerie/metrics/nvml.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/run/nest_data.h"
#include "aerie/models/nest/run/nest_engine.h"
#include "aerie/models/nest/run/nest_job.h"
#include "aerie/models/nest/run/nest_measure.h"
#include "aerie/models/nest/run/nest_schedule.h"
#include "aerie/optim/schedule.h"
#include "aerie/train/batch_list_source.h"
#include "aerie/train/run_folder.h"
#include "aerie/train/run_start.h"
#include "aerie/train/scratch_folder.h"

namespace aerie::train {

namespace {

constexpr double kGib = 1073741824.0;

DryRunSet describe_set(const std::string& name, LoaderSource& source,
                       const config::DatasetConfig& dataset, int64_t batches) {
  DryRunSet out;
  out.name = name;
  const data::Loader& loader = source.loader();
  out.samples = loader.sampler().set().size();
  for (const double duration : loader.sampler().set().lengths)
    if (std::isfinite(duration)) out.audio_s += duration;
  out.batches = batches;
  const BatchShape worst = worst_batch(loader, dataset);
  out.worst_rows = worst.rows;
  out.worst_seconds = static_cast<double>(worst.samples) / static_cast<double>(dataset.sample_rate);
  out.loader = loader.description();
  return out;
}

Result<data::SyntheticBatch> largest_batch(int64_t rows, double seconds, int64_t sample_rate) {
  data::SyntheticBatchOptions shape;
  shape.rows = rows;
  shape.samples = std::llround(seconds * static_cast<double>(sample_rate));
  shape.shortest = 1.0;
  shape.sample_rate = static_cast<int>(sample_rate);
  return data::SyntheticBatch::make(shape);
}

class DryRun {
 public:
  explicit DryRun(const DryRunOptions& options)
      : options_(options),
        env_(*options.env),
        run_(options.config->run),
        job_(make_nest_job(*options.config)) {}

  Result<DryRunReport> go() {
    AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                           config::plan_devices(run_.trainer, config::count_visible_gpus()));
    report_.on_gpu = devices.gpu;
    if (devices.gpu)
      nvml_ = metrics::NvmlSampler::start(device::pci_bus_id(devices.ids.front()).c_str(), 0.05);
    AERIE_ASSIGN_OR_RETURN(folder_, run_folder_of(env_, Clock::real(), run_.loop()));
    report_.run_dir = folder_.path;
    Progress progress({.label = "dry run", .total = 6, .unit = "stages"});
    AERIE_RETURN_IF_ERROR(open_data(devices));
    progress.add();
    AERIE_RETURN_IF_ERROR(build_engine(devices));
    progress.add();
    AERIE_RETURN_IF_ERROR(train_worst());
    progress.add();
    AERIE_RETURN_IF_ERROR(train_real());
    progress.add();
    AERIE_RETURN_IF_ERROR(validate());
    progress.add();
    AERIE_RETURN_IF_ERROR(save_and_load());
    progress.add();
    estimate();
    return std::move(report_);
  }

 private:
  bool stopped() const { return options_.stop && options_.stop(); }
  Status check_stop() const {
    return stopped() ? Status(StatusCode::kCancelled, "stopped by a signal") : ok_status();
  }

  Status open_data(const config::DevicePlan& devices) {
    NestDataOptions data_options;
    data_options.env = &env_;
    data_options.gpu = devices.gpu;
    AERIE_ASSIGN_OR_RETURN(data_, open_nest_data(run_, data_options));
    AERIE_ASSIGN_OR_RETURN(
        cadence_, Cadence::make(run_.trainer, data_.train->batches_per_epoch(), !data_.sets.empty(),
                                train::cadence_rules(run_.aerie)));
    if (!cadence_.note().empty()) report_.notes.push_back(cadence_.note());
    report_.sets.push_back(
        describe_set("train", *data_.train, run_.model.train_ds, cadence_.batches_per_epoch()));
    for (size_t i = 0; i < data_.sets.size(); ++i) {
      const std::string& name = data_.sets[i].name;
      report_.sets.push_back(describe_set(name.empty() ? "validation" : name, *data_.evaluation[i],
                                          run_.model.validation_ds[i], data_.sets[i].batches));
    }
    return check_stop();
  }

  Status build_engine(const config::DevicePlan& devices) {
    EngineOptions engine_options;
    engine_options.gpu = devices.gpu;
    engine_options.gpu_index = devices.ids.front();
    engine_options.saves = true;
    AERIE_ASSIGN_OR_RETURN(const ResumePlan plan, plan_resume(env_, folder_, run_.exp_manager));
    AERIE_ASSIGN_OR_RETURN(StartPoint point, find_start_point(env_, folder_, plan));
    engine_options.precision = point.state.precision;
    AERIE_ASSIGN_OR_RETURN(engine_, make_nest_engine(run_, engine_options));
    AERIE_RETURN_IF_ERROR(load_start_point(env_, *job_, engine_, plan, point));
    report_.start = !plan.sentence.empty() ? plan.sentence : "starting from scratch";
    if (plan.kind == ResumePlan::Kind::kFresh &&
        run_.init_from.kind != config::InitFromConfig::Kind::kNone)
      report_.start = str_cat("initialised from ", run_.init_from.sources.front().path);
    if (point.state.step > 0) {
      report_.start += str_cat("; at step ", point.state.step);
      start_step_ = point.state.step;
    }
    report_.engine = engine_.engine->description();
    report_.parameters = engine_.engine->num_parameters();
    AERIE_ASSIGN_OR_RETURN(const optim::Schedule schedule,
                           optim::Schedule::make(run_.model.optim.sched, engine_.base_rates,
                                                 schedule_steps(run_, cadence_)));
    rates_ = schedule.at(start_step_);
    return check_stop();
  }

  MeasureOptions measure_options(int64_t warmup, int64_t steps) const {
    MeasureOptions out;
    out.amount_name = nest::nest_task().amount;
    out.warmup = warmup;
    out.steps = steps;
    out.learning_rates = rates_;
    out.split = report_.worst_split;
    out.stop = options_.stop;
    return out;
  }

  // What the driver sees, else what the engine knows of.
  double memory_now() const {
    if (nvml_ != nullptr)
      if (const auto sample = nvml_->read_now())
        return std::max(sample->memory_used_gib, sample->peak_memory_used_gib);
    return engine_.engine->memory().peak_gib;
  }

  // The largest batch of every bucket: which of them takes the most memory hangs on the engine.
  Status train_worst() {
    report_.memory_before_gib = memory_now();
    const std::vector<BatchShape> shapes =
        worst_batches(data_.train->loader(), run_.model.train_ds);
    for (const BatchShape& shape : shapes) {
      const bool last = &shape == &shapes.back();
      DryRunBucket bucket{shape.bucket, shape.rows,
                          static_cast<double>(shape.samples) /
                              static_cast<double>(run_.model.train_ds.sample_rate)};
      AERIE_ASSIGN_OR_RETURN(const data::SyntheticBatch batch,
                             largest_batch(bucket.rows, bucket.seconds, run_.model.sample_rate));
      BatchListSource source({&batch.batch()});
      while (true) {
        auto result = measure_steps(*engine_.engine, source, measure_options(last ? 1 : 0, 1));
        if (result.ok()) {
          bucket.step_ms = result->step_ms;
          report_.worst = std::move(result).value();
          break;
        }
        const bool split = result.status().code() == StatusCode::kOutOfMemory &&
                           run_.aerie.on_oom == config::OnOom::kSplit &&
                           report_.worst_split < bucket.rows;
        if (!split)
          return result.status()
              .with_context(str_cat("the largest batch", shapes.size() > 1 ? " of a bucket" : "",
                                    ", ", bucket.rows, " x ", bucket.seconds, " s"))
              .with_hint("lower model.train_ds.batch_size or max_duration");
        report_.worst_split *= 2;
      }
      bucket.memory_gib = memory_now();
      report_.buckets.push_back(bucket);
      AERIE_RETURN_IF_ERROR(check_stop());
    }
    if (report_.worst_split > 1)
      report_.notes.push_back(str_cat("the largest batch does not fit into memory and is cut into ",
                                      report_.worst_split,
                                      " parts; a smaller batch_size with accumulate_grad_batches "
                                      "is faster"));
    if (report_.worst.skipped > 0)
      report_.notes.push_back("a step on the largest batch was not finite and was skipped");
    return check_stop();
  }

  Status train_real() {
    AERIE_RETURN_IF_ERROR(data_.train->start_epoch(0));
    const int64_t steps = std::min(options_.real_steps, cadence_.batches_per_epoch());
    auto result = measure_steps(*engine_.engine, *data_.train,
                                measure_options(steps > 1 ? 1 : 0, std::max<int64_t>(1, steps)));
    if (!result.ok()) return result.status().with_context("model.train_ds");
    report_.real = std::move(result).value();
    const auto bad = data_.train->loader().bad_samples();
    if (!bad.empty())
      report_.notes.push_back(str_cat(bad.size(), " of the recordings that were read are bad: ",
                                      bad.front().place, ": ", bad.front().reason));
    return check_stop();
  }

  // The largest batch of every set, then a real one.
  Status validate() {
    Clock& clock = Clock::real();
    double total_s = 0.0;
    int64_t count = 0;
    for (size_t i = 0; i < data_.sets.size(); ++i) {
      const DryRunSet& set = report_.sets[i + 1];
      AERIE_ASSIGN_OR_RETURN(
          const data::SyntheticBatch worst,
          largest_batch(set.worst_rows, set.worst_seconds, run_.model.sample_rate));
      auto largest = engine_.engine->evaluate(worst.batch(), 0, 0);
      if (!largest.ok())
        return largest.status()
            .with_context(str_cat("model.validation_ds: the largest batch, ", set.worst_rows, " x ",
                                  set.worst_seconds, " s"))
            .with_hint("lower model.validation_ds.batch_size or max_duration");
      if (data_.sets[i].batches < 1) continue;
      ValidationSet one = data_.sets[i];
      one.batches = 1;
      EvaluateOptions options;
      options.seed = run_.aerie.seed;
      const double start = clock.monotonic_s();
      auto real = evaluate_sets(*engine_.engine, {one}, options);
      if (!real.ok()) return real.status().with_context("model.validation_ds");
      total_s += clock.monotonic_s() - start;
      ++count;
      AERIE_RETURN_IF_ERROR(check_stop());
    }
    if (count > 0) report_.validation_batch_ms = total_s * 1e3 / static_cast<double>(count);
    return ok_status();
  }

  Status save_and_load() {
    Clock& clock = Clock::real();
    AERIE_ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::make(env_, folder_.checkpoints));
    if (const auto free = env_.free_space(scratch->path()); free.ok()) report_.free_bytes = *free;
    CheckpointStore store(env_, scratch->path() + "/checkpoints");
    double start = clock.monotonic_s();
    AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<StateSnapshot> snapshot,
                           engine_.engine->snapshot());
    AERIE_RETURN_IF_ERROR(snapshot->wait());
    AERIE_ASSIGN_OR_RETURN(report_.checkpoint_bytes,
                           store.save("dry-run", TrainState{}, *snapshot));
    report_.save_ms = (clock.monotonic_s() - start) * 1e3;
    const config::CheckpointCallbackConfig& params = run_.exp_manager.checkpoint_callback_params;
    if (params.always_save_nemo || params.save_nemo_on_train_end) {
      AERIE_ASSIGN_OR_RETURN(const std::string yaml, nemo_model_config(options_.config->resolved));
      const std::string path = scratch->path() + "/dry-run.nemo";
      AERIE_RETURN_IF_ERROR(write_nemo_snapshot(env_, path, yaml, *snapshot));
      AERIE_ASSIGN_OR_RETURN(const FileStat stat, env_.stat(path));
      report_.nemo_bytes = stat.size;
    }
    start = clock.monotonic_s();
    AERIE_ASSIGN_OR_RETURN(const auto loaded, store.open("dry-run"));
    AERIE_RETURN_IF_ERROR(engine_.engine->restore(*loaded));
    report_.load_ms = (clock.monotonic_s() - start) * 1e3;

    // At most: the best k, the last, and one that is being written.
    const uint64_t kept = static_cast<uint64_t>(std::max<int64_t>(params.save_top_k, 0)) + 2;
    const uint64_t needed = kept * report_.checkpoint_bytes + report_.nemo_bytes;
    if (report_.free_bytes > 0 && needed > report_.free_bytes)
      report_.notes.push_back(str_cat("checkpoints will need about ",
                                      human_bytes(static_cast<double>(needed)), ", the disk has ",
                                      human_bytes(static_cast<double>(report_.free_bytes))));
    return check_stop();
  }

  void estimate() {
    report_.peak_gib = engine_.engine->memory().peak_gib;
    if (report_.on_gpu) {
      if (const auto sample = nvml_ != nullptr ? nvml_->read_now() : std::nullopt) {
        report_.total_gib = sample->memory_total_gib;
        report_.device_used_gib = std::max(sample->memory_used_gib, sample->peak_memory_used_gib);
      }
    } else {
      report_.total_gib = static_cast<double>(memory_info().total_bytes) / kGib;
    }
    // What was measured is a step of one batch; with accumulation the update comes once a window.
    const double batch_s = report_.real.step_ms_mean * 1e-3;
    const PhaseTime* optimizer = report_.real.phase(kPhaseOptimizer);
    const double optimizer_s = optimizer != nullptr ? optimizer->host_ms * 1e-3 : 0.0;
    const double batches = static_cast<double>(cadence_.batches_per_epoch());
    const double steps = static_cast<double>(cadence_.steps_per_epoch());
    const double train_s = batches * std::max(0.0, batch_s - optimizer_s) + steps * optimizer_s;
    double validation_batches = 0.0;
    for (const ValidationSet& set : data_.sets)
      validation_batches += static_cast<double>(set.batches);
    const double validation_s = validation_batches * report_.validation_batch_ms * 1e-3;
    report_.step_s = train_s / steps;
    report_.epoch_s = train_s + cadence_.validations_per_epoch() * validation_s;
    report_.steps_per_epoch = cadence_.steps_per_epoch();
    report_.planned_steps = cadence_.planned_steps();
    if (report_.planned_steps >= 0)
      report_.total_s =
          report_.epoch_s *
          static_cast<double>(std::max<int64_t>(0, report_.planned_steps - start_step_)) / steps;
  }

  const DryRunOptions& options_;
  Env& env_;
  const config::RunConfig& run_;
  DryRunReport report_;
  RunFolder folder_;
  NestData data_;
  Cadence cadence_;
  std::unique_ptr<Job> job_;
  BuiltEngine engine_;
  std::vector<double> rates_;
  std::unique_ptr<metrics::NvmlSampler> nvml_;
  int64_t start_step_ = 0;
};

std::string format(const char* pattern, double value) {
  char text[64];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}

}  // namespace

BatchShape worst_batch(const data::Loader& loader, const config::DatasetConfig& dataset) {
  const std::vector<BatchShape> all = worst_batches(loader, dataset);
  return all.empty() ? BatchShape{} : all.back();
}

std::vector<BatchShape> worst_batches(const data::Loader& loader,
                                      const config::DatasetConfig& dataset) {
  const data::SampleSet& set = loader.sampler().set();
  const std::vector<int64_t> capacities = data::row_lengths(loader);
  const double rate = static_cast<double>(dataset.sample_rate);
  double longest = 0.0;
  for (const double duration : set.lengths)
    if (std::isfinite(duration)) longest = std::max(longest, duration);
  const int64_t limit = capacities.empty() ? 0 : capacities.back();
  // Rows can be longer than the recordings (speed perturbation, short clips filled up), never
  // longer than the largest row of the loader.
  const double stretch =
      longest > 0.0 ? std::max(1.0, static_cast<double>(limit - 64) / (longest * rate)) : 1.0;
  const auto samples_of = [&](double duration) -> int64_t {
    if (!std::isfinite(duration) || longest <= 0.0) return limit;
    const auto samples = static_cast<int64_t>(duration * rate * stretch);
    return std::clamp<int64_t>(samples, 1, std::max<int64_t>(1, limit));
  };

  // Where batches of a bucket have one size, its longest clips may meet in one batch. Where the
  // size follows the durations, what the plan holds is all there is.
  const bool fixed_sizes = !dataset.batch_duration.has_value();
  struct Section {
    int64_t rows = 0, samples = 0;
    BatchShape worst;
    void consider(int64_t more_rows, int64_t more_samples) {
      const BatchShape other{more_rows, more_samples, worst.bucket};
      if (other.size() > worst.size() ||
          (other.size() == worst.size() && other.samples > worst.samples))
        worst = other;
    }
  };
  std::map<uint32_t, Section> sections;
  const auto plan = loader.sampler().plan(0);
  std::vector<data::PlannedSample> batch;
  for (uint64_t k = 0; k < plan->num_steps() * plan->num_lanes(); ++k) {
    const uint32_t section =
        plan->batch(k / plan->num_lanes(), static_cast<uint32_t>(k % plan->num_lanes()), batch);
    int64_t samples = 0;
    for (const data::PlannedSample& sample : batch)
      samples = std::max(samples, samples_of(set.lengths[sample.sample]));
    const int64_t rows = static_cast<int64_t>(batch.size());
    Section& all = sections[section];
    all.worst.bucket = section;
    all.consider(rows, samples);
    all.rows = std::max(all.rows, rows);
    all.samples = std::max(all.samples, samples);
  }
  if (fixed_sizes)
    for (auto& [id, section] : sections) section.consider(section.rows, section.samples);
  // A clip that drop_last leaves out of this epoch may be the longest of the next.
  if (fixed_sizes && sections.size() == 1)
    sections.begin()->second.consider(sections.begin()->second.rows, samples_of(longest));
  std::vector<BatchShape> out;
  for (const auto& [id, section] : sections) out.push_back(section.worst);
  std::sort(out.begin(), out.end(), [](const BatchShape& a, const BatchShape& b) {
    return a.size() != b.size() ? a.size() < b.size() : a.samples < b.samples;
  });
  return out;
}

std::string DryRunReport::to_text() const {
  std::string out;
  const auto row = [&](const char* name, const std::string& text) {
    char head[32];
    std::snprintf(head, sizeof head, "%-12s ", name);
    out += str_cat(head, printable(text), "\n");
  };
  for (size_t i = 0; i < sets.size(); ++i) {
    const DryRunSet& set = sets[i];
    row(i == 0 ? "data" : "",
        str_cat(set.name, ": ", set.samples, " clips, ", format("%.2f", set.audio_s / 3600.0),
                " h, ", set.batches, " batches, the largest ", set.worst_rows, " x ",
                format("%.2f", set.worst_seconds), " s"));
  }
  if (!sets.empty()) row("loader", sets[0].loader);
  row("engine", str_cat(engine, ", ", parameters, " trainable parameters"));
  row("start", start);
  row("run folder", str_cat(run_dir, " (not created)"));
  row("largest",
      str_cat(format("%.1f", worst.step_ms), " ms a step",
              worst_split > 1 ? str_cat(" in ", worst_split, " parts") : std::string(), ":"));
  out += worst.to_text();
  for (size_t i = 0; i < buckets.size() && buckets.size() > 1; ++i)
    row(i == 0 ? "buckets" : "",
        str_cat(buckets[i].rows, " x ", format("%.2f", buckets[i].seconds),
                " s: ", format("%.1f", buckets[i].step_ms), " ms, memory so far ",
                format("%.2f", buckets[i].memory_gib), " GiB"));
  row("memory",
      str_cat("peak ", format("%.2f", peak_gib), " GiB",
              total_gib > 0.0 ? str_cat(" of ", format("%.1f", total_gib)) : std::string(),
              on_gpu ? " GiB on the GPU" : " GiB"));
  if (sets.size() > 1)
    row("validation", str_cat(format("%.1f", validation_batch_ms), " ms a batch"));
  row("checkpoint",
      str_cat(human_bytes(static_cast<double>(checkpoint_bytes)), ", written in ",
              format("%.0f", save_ms), " ms, read and restored in ", format("%.0f", load_ms), " ms",
              nemo_bytes > 0 ? str_cat("; .nemo ", human_bytes(static_cast<double>(nemo_bytes)))
                             : std::string()));
  const PhaseTime* wait = real.phase(kPhaseDataWait);
  row("expected",
      str_cat(human_duration(step_s), " a step, ", human_duration(epoch_s), " an epoch of ",
              steps_per_epoch, " steps",
              total_s >= 0.0
                  ? str_cat(", ", human_duration(total_s), " for ", planned_steps, " steps")
                  : std::string(),
              " (", format("%.0f", real.throughput), " audio-s/s, ",
              format("%.0f", wait != nullptr ? 100.0 * wait->share : 0.0), " % waiting for data)"));
  for (const std::string& note : notes) row("note", note);
  return out;
}

std::string DryRunReport::to_json() const {
  using nlohmann::ordered_json;
  ordered_json json;
  json["ok"] = true;
  ordered_json list = ordered_json::array();
  for (const DryRunSet& set : sets)
    list.push_back({{"name", set.name},
                    {"samples", set.samples},
                    {"audio_s", set.audio_s},
                    {"batches", set.batches},
                    {"worst_rows", set.worst_rows},
                    {"worst_seconds", set.worst_seconds}});
  json["data"] = std::move(list);
  json["engine"] = engine;
  json["parameters"] = parameters;
  json["start"] = start;
  json["run_dir"] = run_dir;
  json["worst_batch"] = ordered_json::parse(worst.to_json());
  json["worst_batch"]["split"] = worst_split;
  json["memory_before_gib"] = memory_before_gib;
  json["buckets"] = ordered_json::array();
  for (const DryRunBucket& one : buckets)
    json["buckets"].push_back({{"bucket", one.bucket},
                               {"rows", one.rows},
                               {"seconds", one.seconds},
                               {"step_ms", one.step_ms},
                               {"memory_gib", one.memory_gib}});
  json["real_batches"] = ordered_json::parse(real.to_json());
  json["peak_memory_gib"] = peak_gib;
  json["total_memory_gib"] = total_gib;
  if (device_used_gib > 0.0) json["device_used_gib"] = device_used_gib;
  json["on_gpu"] = on_gpu;
  json["validation_batch_ms"] = validation_batch_ms;
  json["checkpoint_bytes"] = checkpoint_bytes;
  json["nemo_bytes"] = nemo_bytes;
  json["free_bytes"] = free_bytes;
  json["save_ms"] = save_ms;
  json["load_ms"] = load_ms;
  json["step_s"] = step_s;
  json["epoch_s"] = epoch_s;
  json["steps_per_epoch"] = steps_per_epoch;
  json["planned_steps"] = planned_steps;
  json["total_s"] = total_s >= 0.0 ? ordered_json(total_s) : ordered_json();
  json["notes"] = notes;
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

Result<DryRunReport> dry_run_nest(const DryRunOptions& options) {
  return DryRun(options).go();
}

}  // namespace aerie::train
