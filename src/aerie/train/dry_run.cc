#include "aerie/train/dry_run.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/format_text.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/config/schema/devices.h"
#include "aerie/device/gpu.h"
#include "aerie/metrics/nvml.h"
#include "aerie/train/evaluate.h"
#include "aerie/train/run_start.h"
#include "aerie/train/scratch_folder.h"

namespace aerie::train {

std::string dry_run_row(const char* name, const std::string& text) {
  if (text.empty()) return "";
  return str_cat(format_text("%-12s ", name), printable(text), "\n");
}

Result<JobDryRun> JobDryRunner::go() {
  AERIE_ASSIGN_OR_RETURN(devices_,
                         config::plan_devices(run_.trainer, config::count_visible_gpus()));
  out_.on_gpu = devices_.gpu;
  if (devices_.gpu)
    nvml_ = metrics::NvmlSampler::start(device::pci_bus_id(devices_.ids.front()).c_str(), 0.05);
  AERIE_ASSIGN_OR_RETURN(folder_, run_folder_of(env_, Clock::real(), run_));
  out_.run_dir = folder_.path;
  Progress progress({.label = "dry run", .total = 7, .unit = "stages"});
  for (Status (JobDryRunner::*stage)() :
       {&JobDryRunner::open_data, &JobDryRunner::build_engine, &JobDryRunner::before_steps,
        &JobDryRunner::train, &JobDryRunner::before_validation, &JobDryRunner::validate,
        &JobDryRunner::save_and_load}) {
    AERIE_RETURN_IF_ERROR((this->*stage)());
    AERIE_RETURN_IF_ERROR(check_stop());
    progress.add();
  }
  estimate();
  return std::move(out_);
}

Status JobDryRunner::check_stop() const {
  if (options_.stop && options_.stop())
    return Status(StatusCode::kCancelled, "stopped by a signal");
  return ok_status();
}

Status JobDryRunner::open_data() {
  DataOptions data_options;
  data_options.env = &env_;
  data_options.gpu = devices_.gpu;
  data_options.gpu_index = devices_.ids.front();
  AERIE_ASSIGN_OR_RETURN(data_, job_.open_data(data_options));
  AERIE_ASSIGN_OR_RETURN(cadence_, Cadence::make(run_.trainer, data_.train->batches_per_epoch(),
                                                 !data_.sets.empty(), cadence_rules(run_.aerie)));
  if (!cadence_.note().empty()) out_.notes.push_back(cadence_.note());
  out_.training_data = data_.training_amount;
  out_.validation_data = data_.validation_amount;
  out_.loader = data_.loader;
  for (const ValidationSet& set : data_.sets) out_.validation_batches += set.batches;
  return ok_status();
}

Status JobDryRunner::build_engine() {
  EngineOptions engine_options;
  engine_options.gpu = devices_.gpu;
  engine_options.gpu_index = devices_.ids.front();
  engine_options.saves = true;
  AERIE_ASSIGN_OR_RETURN(const ResumePlan plan, plan_resume(env_, folder_, run_.exp_manager));
  AERIE_ASSIGN_OR_RETURN(StartPoint point, find_start_point(env_, folder_, plan));
  engine_options.precision = point.state.precision;
  auto built = job_.make_engine(engine_options);
  if (!built.ok()) return advise_memory(job_.task(), built.status());
  engine_ = std::move(built).value();
  AERIE_RETURN_IF_ERROR(load_start_point(env_, job_, engine_, plan, point));
  start_step_ = point.state.step;
  out_.start = plan.sentence.empty() ? "starting from the configuration" : plan.sentence;
  if (plan.kind == ResumePlan::Kind::kFresh && !options_.initialised_from.empty())
    out_.start = str_cat("initialised from ", options_.initialised_from);
  if (start_step_ > 0) out_.start += str_cat("; at step ", start_step_);
  out_.engine = engine_.engine->description();
  out_.parameters = engine_.engine->num_parameters();
  AERIE_ASSIGN_OR_RETURN(const auto rates, job_.make_rates(engine_.base_rates, cadence_));
  out_.rates = rates->at(start_step_);
  return ok_status();
}

MeasureOptions JobDryRunner::measure_options(int64_t warmup, int64_t steps) const {
  MeasureOptions out;
  out.amount_name = job_.task().amount;
  out.warmup = warmup;
  out.steps = steps;
  out.learning_rates = out_.rates;
  out.split = out_.split;
  out.stop = options_.stop;
  return out;
}

double JobDryRunner::memory_now() const {
  if (nvml_ != nullptr)
    if (const auto sample = nvml_->read_now())
      return std::max(sample->memory_used_gib, sample->peak_memory_used_gib);
  return engine_.engine->memory().peak_gib;
}

bool JobDryRunner::splits(const Status& status) const {
  constexpr int64_t kMost = 1024;
  return status.code() == StatusCode::kOutOfMemory && run_.aerie.on_oom == config::OnOom::kSplit &&
         out_.split < kMost;
}

// A batch that does not fit is cut as the run would cut it.
Status JobDryRunner::train() {
  while (true) {
    AERIE_RETURN_IF_ERROR(data_.train->start_epoch(0));
    auto result = measure_steps(*engine_.engine, *data_.train, measure_options(1, options_.steps));
    if (result.ok()) {
      out_.measured = std::move(result).value();
      break;
    }
    if (!splits(result.status())) return result.status().with_context("training");
    out_.split *= 2;
  }
  out_.throughput_unit = job_.task().throughput_unit;
  if (out_.split > 1)
    out_.notes.push_back(str_cat("a batch does not fit into memory and is cut into ", out_.split,
                                 " parts: ", job_.task().smaller_batch));
  if (out_.measured.skipped > 0)
    out_.notes.push_back(str_cat(out_.measured.skipped, " steps were not finite and were skipped: ",
                                 job_.task().lower_rate));
  return ok_status();
}

Status JobDryRunner::validate() {
  double total_ms = 0.0;
  for (ValidationSet set : data_.sets) {
    if (set.batches < 1) continue;
    set.batches = 1;
    EvaluateOptions options;
    options.seed = run_.aerie.seed;
    const Stopwatch watch;
    auto results = evaluate_sets(*engine_.engine, {set}, options);
    if (!results.ok()) return results.status().with_context("validation");
    total_ms += watch.elapsed_s() * 1e3;
    out_.numbers.emplace_back(set.name + job_.task().eval_loss, (*results)[0].all.mean_loss());
    AERIE_RETURN_IF_ERROR(check_stop());
  }
  if (!out_.numbers.empty())
    out_.validation_batch_ms = total_ms / static_cast<double>(out_.numbers.size());
  return ok_status();
}

Status JobDryRunner::save_and_load() {
  AERIE_ASSIGN_OR_RETURN(const auto scratch, ScratchFolder::make(env_, folder_.checkpoints));
  if (const auto free = env_.free_space(scratch->path()); free.ok()) out_.free_bytes = *free;
  CheckpointStore store(env_, scratch->path() + "/checkpoints");
  const Stopwatch saving;
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<StateSnapshot> snapshot, engine_.engine->snapshot());
  AERIE_RETURN_IF_ERROR(snapshot->wait());
  AERIE_ASSIGN_OR_RETURN(out_.checkpoint_bytes, store.save("dry-run", TrainState{}, *snapshot));
  out_.save_ms = saving.elapsed_s() * 1e3;
  const config::CheckpointCallbackConfig& params = run_.exp_manager.checkpoint_callback_params;
  if (params.always_save_nemo || params.save_nemo_on_train_end) {
    AERIE_ASSIGN_OR_RETURN(const Exports exports, job_.exports(env_));
    if (exports.write_archive) {
      const std::string path = scratch->path() + "/dry-run.nemo";
      AERIE_RETURN_IF_ERROR(exports.write_archive(path, *snapshot));
      AERIE_ASSIGN_OR_RETURN(const FileStat stat, env_.stat(path));
      out_.archive_bytes = stat.size;
    }
  }
  const Stopwatch loading;
  AERIE_ASSIGN_OR_RETURN(const auto loaded, store.open("dry-run"));
  AERIE_RETURN_IF_ERROR(engine_.engine->restore(*loaded));
  out_.load_ms = loading.elapsed_s() * 1e3;
  // At most: the best k, the last, and one that is being written.
  const uint64_t kept = static_cast<uint64_t>(std::max<int64_t>(params.save_top_k, 0)) + 2;
  const uint64_t needed = kept * out_.checkpoint_bytes + out_.archive_bytes;
  if (out_.free_bytes > 0 && needed > out_.free_bytes)
    out_.notes.push_back(str_cat("checkpoints will need about ",
                                 human_bytes(static_cast<double>(needed)), ", the disk has ",
                                 human_bytes(static_cast<double>(out_.free_bytes))));
  return ok_status();
}

void JobDryRunner::estimate() {
  out_.peak_gib = engine_.engine->memory().peak_gib;
  if (!out_.on_gpu) out_.total_gib = static_cast<double>(memory_info().total_bytes) / 1073741824.0;
  if (const auto sample = nvml_ != nullptr ? nvml_->read_now() : std::nullopt) {
    out_.total_gib = sample->memory_total_gib;
    out_.device_used_gib = std::max(sample->memory_used_gib, sample->peak_memory_used_gib);
  }
  // What was measured is an update after one batch; with accumulation it comes once a window.
  const double batch_s = out_.measured.step_ms_mean * 1e-3;
  const PhaseTime* optimizer = out_.measured.phase(kPhaseOptimizer);
  const double update_s = optimizer != nullptr ? optimizer->host_ms * 1e-3 : 0.0;
  const auto batches = static_cast<double>(std::max<int64_t>(1, cadence_.batches_per_epoch()));
  const double updates = std::ceil(
      batches / static_cast<double>(std::max<int64_t>(1, run_.trainer.accumulate_grad_batches)));
  const double train_s = batches * std::max(0.0, batch_s - update_s) + updates * update_s;
  out_.batches_per_epoch = cadence_.batches_per_epoch();
  out_.steps_per_epoch = cadence_.steps_per_epoch();
  out_.planned_steps = cadence_.planned_steps();
  const auto steps = static_cast<double>(std::max<int64_t>(1, out_.steps_per_epoch));
  out_.step_s = train_s / steps;
  out_.epoch_s = train_s + cadence_.validations_per_epoch() *
                               static_cast<double>(out_.validation_batches) *
                               out_.validation_batch_ms * 1e-3;
  if (out_.planned_steps >= 0)
    out_.total_s = out_.epoch_s / steps *
                   static_cast<double>(std::max<int64_t>(0, out_.planned_steps - start_step_));
}

std::string JobDryRun::to_text() const {
  std::string out;
  const auto row = [&](const char* name, const std::string& text) {
    out += dry_run_row(name, text);
  };
  row("training", str_cat(training_data, ", ", batches_per_epoch, " batches an epoch"));
  if (validation_batches > 0)
    row("validation", str_cat(validation_data, ", ", validation_batches, " batches, ",
                              format_text("%.1f", validation_batch_ms), " ms each"));
  row("loader", loader);
  row("engine", str_cat(engine, ", ", parameters, " trainable parameters"));
  row("start", start);
  std::string all_rates;
  for (size_t i = 0; i < rates.size() && i < 4; ++i)
    all_rates += str_cat(i == 0 ? "" : ", ", format_text("%.3g", rates[i]));
  row("first rate", rates.size() > 4 ? all_rates + ", ..." : all_rates);
  row("run folder", str_cat(run_dir, " (not created)"));
  row("step", str_cat(format_text("%.1f", measured.step_ms), " ms a batch",
                      split > 1 ? str_cat(" in ", split, " parts") : std::string(), ", loss ",
                      format_text("%.4g", measured.loss), ":"));
  out += measured.to_text();
  row("memory", str_cat("peak ", format_text("%.2f", peak_gib), " GiB",
                        total_gib > 0.0 ? str_cat(" of ", format_text("%.1f", total_gib)) : "",
                        on_gpu ? " GiB on the GPU" : " GiB"));
  row("checkpoint",
      str_cat(human_bytes(static_cast<double>(checkpoint_bytes)), ", written in ",
              format_text("%.0f", save_ms), " ms, read and restored in ",
              format_text("%.0f", load_ms), " ms",
              archive_bytes > 0
                  ? str_cat("; .nemo ", human_bytes(static_cast<double>(archive_bytes)))
                  : std::string()));
  const PhaseTime* wait = measured.phase(kPhaseDataWait);
  row("expected", str_cat(human_duration(step_s), " a step, ", human_duration(epoch_s),
                          " an epoch of ", steps_per_epoch, " steps",
                          total_s >= 0.0 ? str_cat(", ", human_duration(total_s), " for ",
                                                   planned_steps, " steps")
                                         : std::string(),
                          " (", format_text("%.4g", measured.throughput), " ", throughput_unit,
                          ", ", format_text("%.0f", wait != nullptr ? 100.0 * wait->share : 0.0),
                          " % waiting for data)"));
  for (const std::string& note : notes) row("note", note);
  return out;
}

std::string JobDryRun::to_json() const {
  using nlohmann::ordered_json;
  ordered_json json;
  json["ok"] = true;
  json["training_data"] = training_data;
  json["validation_data"] = validation_data;
  json["batches_per_epoch"] = batches_per_epoch;
  json["validation_batches"] = validation_batches;
  json["loader"] = loader;
  json["engine"] = engine;
  json["parameters"] = parameters;
  json["start"] = start;
  json["run_dir"] = run_dir;
  json["learning_rates"] = rates;
  json["real_batches"] = ordered_json::parse(measured.to_json());
  json["real_batches"]["split"] = split;
  json["peak_memory_gib"] = peak_gib;
  json["total_memory_gib"] = total_gib;
  if (device_used_gib > 0.0) json["device_used_gib"] = device_used_gib;
  json["on_gpu"] = on_gpu;
  json["validation_batch_ms"] = validation_batch_ms;
  for (const auto& [name, value] : numbers)
    json["validation"][name] = std::isfinite(value) ? ordered_json(value) : ordered_json();
  json["checkpoint_bytes"] = checkpoint_bytes;
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

}  // namespace aerie::train
