// The logs that users of mmcv know, beside metrics.jsonl: its line in the log, `<time>.log` and
// `<time>.log.json` in the run's folder, its tags in TensorBoard; and, after every validation, what
// limits the run.
//
//   Iter [50/200000]  lr: 2.000e-04, eta: 7:26:40, time: 0.134, data_time: 0.010, memory: 9876,
//   loss/map/...: 0.1, loss: 0.6, ...
//
// Numbers are means since the line before, as mmcv's are; a start has files of its own, named by
// its time.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/train/run_listener.h"

namespace aerie::bev {

struct MmLogOptions {
  bool text = true;       // the line and the files
  bool by_epoch = false;  // the run is counted in epochs
  // The first line of the file.
  std::string name;
  uint64_t seed = 0;
  std::vector<std::string> classes;
};

Result<std::unique_ptr<train::RunListener>> make_mm_log(const MmLogOptions& options,
                                                        const train::ListenerParts& parts);

// What limits training: `wait` is the share of time in which steps wait for data, `gpu_percent` how
// busy the GPU was; nothing: there is none.
struct StepVerdict {
  const char* name = "";  // loader-bound, compute-bound, launch-bound, balanced
  std::string sentence;   // with its numbers and what to try
};
StepVerdict step_verdict(double wait, std::optional<double> gpu_percent);

// Python's str(timedelta(seconds)): "0:03:04", "2 days, 1:00:00".
std::string mm_duration(double seconds);

}  // namespace aerie::bev
