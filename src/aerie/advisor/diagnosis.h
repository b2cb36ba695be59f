// What ails a run: rules over its facts. Findings about correctness stand apart from those about
// speed; speed findings are ordered by what they are worth.
//
// Gains are shares of the run's time. They are estimates from the run's records until a trial has
// measured them (`aerie doctor CONFIG`).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aerie/advisor/run_facts.h"

namespace aerie::advisor {

struct Finding {
  std::string id;      // "data_wait": stable, for --json
  std::string what;    // what was measured
  std::string advice;  // what to do about it
  // The change as an override of the configuration, key=value; empty: no single key does it.
  std::string change;
  double gain_share = 0.0;  // of the run's time that the change would save, estimated
  // Something that the configuration asks for does not happen: a finding even where it costs
  // little.
  bool in_vain = false;
  // From trials of both: how many times as fast the run is with the change.
  std::optional<double> measured_speedup;

  double estimated_speedup() const { return 1.0 / (1.0 - gain_share); }
};

struct Diagnosis {
  RunFacts facts;
  std::vector<std::string> measurements;  // lines of the decision tree that led here
  std::vector<Finding> correctness;       // most serious first
  std::vector<Finding> speed;             // worth most first
  bool healthy() const { return correctness.empty() && speed.empty(); }
  std::string verdict() const;  // one sentence

  std::string to_text() const;
  std::string to_json() const;  // one object
};

// `storage`: where the training data lies ("network file system (nfs)"), for runs that did not
// record it; empty: not known.
Diagnosis diagnose(RunFacts facts, const std::string& storage = {});

// Puts findings with a measured speed-up in their place.
void order_findings(Diagnosis& diagnosis);
// How many steps a trial needs after one of `steps` gave these facts: on a GPU steps are over
// within milliseconds, and the first ones load kernels and record graphs.
int64_t steps_of_trial(const RunFacts& facts, int64_t steps);
// After trials: a change that was measured to gain less than `worth` is no finding, unless what it
// is about happens in vain.
void settle_trials(Diagnosis& diagnosis, double worth);

}  // namespace aerie::advisor
