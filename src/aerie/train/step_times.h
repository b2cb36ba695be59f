// How even the steps of a run are: their median, the slowest one, and how many ran a shape of batch
// for the first or second time, which takes longer and is counted apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace aerie::train {

class StepTimes {
 public:
  void add(int64_t step, double seconds, bool first_run);

  // Of the steps after the first twenty of this process, first runs left out.
  double median_s() const;
  double slowest_s() const { return slowest_s_; }
  int64_t slowest_step() const { return slowest_step_; }
  int64_t num_first_runs() const { return first_runs_; }
  // "step time: median 8.03 ms, slowest 21.1 ms (step 126); 14 steps ..."; empty before the
  // twenty-first step.
  std::string sentence() const;

 private:
  int64_t seen_ = 0, first_runs_ = 0, slowest_step_ = 0;
  double slowest_s_ = 0.0, slowest_first_run_s_ = 0.0;
  std::vector<float> seconds_;
};

}  // namespace aerie::train
