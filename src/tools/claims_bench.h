// Measures one row of `aerie bench claims`: the data its settings want, made by `aerie data`, and
// short runs of `aerie train` in turn.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/advisor/claims.h"
#include "aerie/base/status.h"
#include "trial_runner.h"

namespace aerie::tools {

class ClaimsBench final {
 public:
  struct Options {
    advisor::ClaimProfile profile;
    std::string data;       // folder for what is made; kept for the next call
    double seconds = 60.0;  // that a row may take
    int gpus = 0;           // of this machine
    bool quiet = false;
  };
  static Result<ClaimsBench> make(Options options);

  // Figures of a row, judged. A trial that fails is told in the result; kCancelled: a signal came.
  Result<advisor::ClaimResult> measure(const advisor::ClaimRow& row);

 private:
  ClaimsBench(Options options, std::string program, TrialRunner runner);
  // The overrides that point at a data set, which is made when it is not there.
  Result<std::vector<std::string>> data_overrides(advisor::ClaimData data);
  Status make_data(const std::vector<std::string>& command, const std::string& what);
  Result<std::string> speech_corpus(bool mixed);
  Status run_rounds(const advisor::ClaimRow& row, const std::vector<std::string>& also,
                    advisor::ClaimResult& result);

  Options options_;
  std::string program_;
  TrialRunner runner_;
};

}  // namespace aerie::tools
