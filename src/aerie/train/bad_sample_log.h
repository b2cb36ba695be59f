// bad_samples.jsonl of a run: recordings that could not be read, each listed once however often the
// run is restarted. One thread at a time.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/data/loader.h"

namespace aerie::train {

class BadSampleLog {
 public:
  // Reads what earlier processes of the run listed; torn and foreign lines are skipped. Of several
  // ranks one writes.
  BadSampleLog(Env& env, std::string path, bool writes = true);

  const std::vector<data::BadSample>& earlier() const { return earlier_; }
  // Failures to write are passed over: the loader has logged the sample.
  void add(const data::BadSample& bad);

 private:
  Env& env_;
  std::string path_;
  bool writes_;
  std::vector<data::BadSample> earlier_;
  std::set<std::string> places_;
};

}  // namespace aerie::train
