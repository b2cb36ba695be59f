#include "tune_trials.h"

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/advisor/tune_text.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/config/schema/devices.h"
#include "aerie/device/gpu.h"

namespace aerie::tools {

namespace {

using advisor::TrialOutcome;
using advisor::TuneSettings;

constexpr double kGibibyte = 1073741824.0;
constexpr int64_t kTrialSteps = 4;  // of a trial of speed, the first of them to warm up

// What trials leave out: they time steps, not validations and checkpoints.
const char* const kSpeedOverrides[] = {
    "trainer.limit_val_batches=0",
    "trainer.num_sanity_val_steps=0",
    "trainer.max_epochs=-1",
    "exp_manager.create_checkpoint_callback=false",
    "exp_manager.create_tensorboard_logger=false",
    "exp_manager.create_early_stopping_callback=false",
    "aerie.on_oom=stop",
};

TrialOutcome failed(const Status& status) {
  TrialOutcome out;
  out.end = status.code() == StatusCode::kOutOfMemory ? TrialOutcome::End::kOutOfMemory
            : status.code() == StatusCode::kCancelled ? TrialOutcome::End::kCancelled
                                                      : TrialOutcome::End::kFailed;
  out.message = status.message();
  out.code = status.code();
  return out;
}

double number_in(const nlohmann::json& json, const char* name) {
  return json.contains(name) && json[name].is_number() ? json[name].get<double>() : 0.0;
}

}  // namespace

Result<TuneHost> tune_host(const config::TrainerConfig& trainer) {
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan plan,
                         config::plan_devices(trainer, config::count_visible_gpus()));
  TuneHost out;
  out.machine.cpus = cpu_count();
  out.machine.gpu = plan.gpu;
  const device::DriverInfo& driver = device::driver();
  if (plan.gpu && plan.own >= 0 && plan.own < static_cast<int64_t>(driver.gpus.size())) {
    const device::GpuInfo& gpu = driver.gpus[static_cast<size_t>(plan.own)];
    out.machine.bf16 = gpu.compute_major >= 8;
    out.memory_gib = static_cast<double>(gpu.memory_bytes) / kGibibyte;
    char memory[32];
    std::snprintf(memory, sizeof memory, "%.1f GiB", out.memory_gib);
    out.device = str_cat(gpu.name, ", ", memory);
  } else {
    out.memory_gib = static_cast<double>(memory_info().available_bytes) / kGibibyte;
    const std::string cpu = cpu_name();
    out.device = cpu.empty() ? "a CPU" : cpu;
  }
  out.description =
      str_cat(out.device, "; ", out.machine.cpus, out.machine.cpus == 1 ? " CPU" : " CPUs");
  return out;
}

ProcessTrials::ProcessTrials(TrialRunner& runner, const advisor::TuneSpace& space,
                             const TuneHost& host, double seconds, bool say)
    : runner_(runner),
      space_(space),
      host_(host),
      seconds_(seconds),
      say_(say),
      start_s_(Clock::real().monotonic_s()) {}

double ProcessTrials::elapsed_s() const {
  return Clock::real().monotonic_s() - start_s_;
}

TrialOutcome ProcessTrials::finish(TrialOutcome outcome, double began_s, bool memory,
                                   const TuneSettings& settings) {
  if (caught_signal() != 0) outcome.end = TrialOutcome::End::kCancelled;
  outcome.wall_s = elapsed_s() - began_s;
  if (say_) {
    const advisor::TriedRow row{memory, settings, outcome,
                                outcome.done() ? ""
                                               : (outcome.end == TrialOutcome::End::kOutOfMemory
                                                      ? "out of memory"
                                                      : "failed: " + outcome.message)};
    std::fprintf(stderr, "%5.0f s%s\n", elapsed_s(),
                 printable(advisor::row_text(space_, row)).c_str());
  }
  return outcome;
}

TrialOutcome ProcessTrials::speed(const TuneSettings& settings) {
  const double began_s = elapsed_s();
  std::vector<std::string> changes = changes_of(space_, settings);
  changes.insert(changes.end(), std::begin(kSpeedOverrides), std::end(kSpeedOverrides));
  const auto run = runner_.train(changes, {.steps = kTrialSteps, .seconds = seconds_});
  if (!run.ok()) return finish(failed(run.status()), began_s, false, settings);
  const auto diagnosis = diagnose_folder(*run);
  if (!diagnosis.ok()) return finish(failed(diagnosis.status()), began_s, false, settings);
  const advisor::RunFacts& facts = diagnosis->facts;
  TrialOutcome out;
  out.throughput = facts.throughput;
  out.step_ms = facts.step_ms;
  out.data_wait_share = facts.data_wait_share;
  out.batches_per_epoch = facts.batches_per_epoch;
  out.memory_used_gib = host_.machine.gpu ? facts.gpu_mem_gib : facts.rss_gib;
  out.memory_total_gib = host_.memory_gib;
  if (!(out.throughput > 0.0)) {
    out.end = TrialOutcome::End::kFailed;
    out.message = "the trial logged no throughput";
  }
  return finish(out, began_s, false, settings);
}

TrialOutcome ProcessTrials::memory(const TuneSettings& settings) {
  const double began_s = elapsed_s();
  std::vector<std::string> changes = changes_of(space_, settings);
  changes.emplace_back("aerie.on_oom=stop");
  const auto text = runner_.dry_run(changes);
  if (!text.ok()) return finish(failed(text.status()), began_s, true, settings);
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object())
    return finish(failed(Status(StatusCode::kUnavailable, "a dry run printed no JSON")), began_s,
                  true, settings);
  TrialOutcome out;
  const double device_gib = number_in(json, "device_used_gib");
  out.memory_used_gib = device_gib > 0.0 ? device_gib : number_in(json, "peak_memory_gib");
  const double total_gib = number_in(json, "total_memory_gib");
  out.memory_total_gib = host_.machine.gpu && total_gib > 0.0 ? total_gib : host_.memory_gib;
  if (json.contains("real_batches") && json["real_batches"].is_object()) {
    out.step_ms = number_in(json["real_batches"], "step_ms");
    for (const auto& [name, value] : json["real_batches"].items())
      if (ends_with(name, "_per_s") && value.is_number()) out.throughput = value.get<double>();
  }
  out.memory_before_gib = number_in(json, "memory_before_gib");
  if (json.contains("buckets") && json["buckets"].is_array())
    for (const auto& one : json["buckets"])
      out.buckets.push_back({static_cast<size_t>(number_in(one, "bucket")),
                             static_cast<int64_t>(number_in(one, "rows")),
                             number_in(one, "seconds"), number_in(one, "memory_gib")});
  out.batches_per_epoch = static_cast<int64_t>(number_in(json, "batches_per_epoch"));
  if (json.contains("data") && json["data"].is_array() && !json["data"].empty())
    out.batches_per_epoch = static_cast<int64_t>(number_in(json["data"][0], "batches"));
  return finish(out, began_s, true, settings);
}

}  // namespace aerie::tools
