// Where the time between the launch of a process and its first training step goes. One thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/metrics/record.h"

namespace aerie::train {

class StartTimes {
 public:
  // `before_s`: how old the process is already.
  explicit StartTimes(Clock& clock, double before_s);

  // Everything since the last mark was spent on this.
  void mark(const std::string& phase);
  // Something that went on beside the phases.
  void beside(const std::string& what, double seconds);

  double total_s() const;
  // "first step done 2.41 s after the launch: reading the data 0.32 s, ... (beside them: ...)"
  std::string sentence() const;
  // "start_s" and a "<phase>_s" each.
  void add_to(metrics::Record& record) const;

 private:
  Clock& clock_;
  double start_s_, last_s_;
  std::vector<std::pair<std::string, double>> phases_, beside_;
};

// Wall time since this process was started, to a hundredth of a second; 0 where it is not known.
double process_age_s();

}  // namespace aerie::train
