// Trials of a search for settings, as processes on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/advisor/tune_search.h"
#include "aerie/base/clock.h"
#include "aerie/base/status.h"
#include "aerie/config/schema/trainer_config.h"
#include "trial_runner.h"

namespace aerie::tools {

// The machine that a configuration would train on.
struct TuneHost {
  advisor::TuneMachine machine;
  double memory_gib = 0.0;  // of the GPU; on a CPU what is available now
  std::string device;       // "NVIDIA H200, 139.8 GiB" or the CPU's name: part of a cache's key
  std::string description;  // with the number of CPUs
};
Result<TuneHost> tune_host(const config::TrainerConfig& trainer);

class ProcessTrials final : public advisor::TuneTrials {
 public:
  // `seconds` of training for a trial of speed. `say`: a line for every trial on stderr.
  ProcessTrials(TrialRunner& runner, const advisor::TuneSpace& space, const TuneHost& host,
                double seconds, bool say);

  advisor::TrialOutcome speed(const advisor::TuneSettings& settings) override;
  advisor::TrialOutcome memory(const advisor::TuneSettings& settings) override;
  double elapsed_s() const override;

 private:
  advisor::TrialOutcome finish(advisor::TrialOutcome outcome, double began_s, bool memory,
                               const advisor::TuneSettings& settings);

  TrialRunner& runner_;
  const advisor::TuneSpace& space_;
  const TuneHost& host_;
  double seconds_;
  bool say_;
  double start_s_;
};

}  // namespace aerie::tools
