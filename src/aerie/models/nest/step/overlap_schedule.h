// Work of a step that the pass through the model does not wait for, by the one policy of its plan
// (StepPlan::overlap); included by nest_workspace.h alone. Each time a stream waits for another
// costs a few microseconds: deferred work is launched in groups.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "aerie/kernels/side_stream.h"
#include "aerie/models/nest/step/step_plan.h"

namespace aerie::kernels {

class OverlapSchedule {
 public:
  using Work = std::function<int(void* stream)>;

  OverlapSchedule(Overlap policy, void* stream) : policy_(policy), stream_(stream) {}
  void set_side(const SideWork& side) { side_ = side; }

  // The side stream, where there is one. It sees what was launched before fork(); the pass sees
  // what is on it behind join().
  void* side() const { return side_.begin ? side_.stream : stream_; }
  int fork() const { return side_.begin ? side_.begin() : kOk; }
  int join() const { return side_.begin ? side_.end() : kOk; }

  // Work that only the end of the pass waits for: at once, or with flush().
  int run(Work work) {
    if (policy_ != Overlap::kWgrad) return work(stream_);
    deferred_.push_back(std::move(work));
    return kOk;
  }
  int flush() { return launch(deferred_); }
  // The same for reductions: with the wgrad behind flush_reductions(), or with flush().
  int run_reduction(Work work) {
    if (policy_ != Overlap::kReductions) return run(std::move(work));
    reductions_.push_back(std::move(work));
    return kOk;
  }
  int flush_reductions() {
    pending_ = pending_ || !reductions_.empty();
    return launch(reductions_);
  }
  int join_reductions() { return std::exchange(pending_, false) ? join() : kOk; }

 private:
  int launch(std::vector<Work>& all) {
    if (all.empty()) return kOk;
    int code = fork();
    for (const Work& work : std::exchange(all, {}))
      if (code == kOk) code = work(side());
    return code;
  }

  Overlap policy_;
  void* stream_;
  SideWork side_;
  std::vector<Work> deferred_, reductions_;
  bool pending_ = false;  // reductions that were launched and not joined
};

}  // namespace aerie::kernels
