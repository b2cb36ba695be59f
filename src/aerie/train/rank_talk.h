// What the ranks of a data-parallel run tell each other around the loop. Every function is called
// by all ranks, in the same order; a null group is one process by itself.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"

namespace aerie::train {

// Rank 0 writes the files of a run and speaks for it.
inline bool leads(const dist::ProcessGroup* ranks) {
  return ranks == nullptr || ranks->rank() == 0;
}

// What rank 0 makes, on all of them; its error is everybody's. The others wait a moment for what it
// says itself, so that they know whose error it is.
Result<std::string> from_first_rank(dist::ProcessGroup* ranks,
                                    const std::function<Result<std::string>()>& make);

// The error of the first rank that has one, on all of them; ok when nobody has. As above.
Status all_succeeded(dist::ProcessGroup* ranks, const Status& own);

// `work` on one rank of every machine, then on the others: what the first ones leave on the disk
// (indexes, caches) the others find. All fail when one does.
Status first_of_each_node_first(dist::ProcessGroup* ranks, const std::function<Status()>& work);

// Questions of a step that need one answer. Everybody brings a number, the largest counts.
class RankVotes {
 public:
  enum Question : size_t {
    kSignal,         // number of a signal that asks to stop
    kRunTimeOver,    // exp_manager.max_time_per_run
    kTotalTimeOver,  // trainer.max_time
    kRetrySave,      // a checkpoint could not be written and another attempt is due
    kSaveByTime,     // train_time_interval
    kFallBack,       // to another precision
    kOutOfMemory,
    kSamples,     // of the largest micro-batch
    kLastSaved,   // step of the newest save; rank 0 knows
    kBadSamples,  // found and not yet told
    kNumQuestions,
  };
  using Numbers = std::array<int64_t, kNumQuestions>;

  explicit RankVotes(dist::ProcessGroup* ranks) : ranks_(ranks) {}
  bool alone() const { return ranks_ == nullptr; }
  Status vote(const Numbers& own);
  // Of the latest vote.
  int64_t answer(Question question) const { return answers_[question]; }
  // It has been acted upon.
  void settle(Question question) { answers_[question] = 0; }

 private:
  dist::ProcessGroup* ranks_;
  Numbers answers_{};
};

// What a rank did since the last report.
struct RankTimes {
  double elapsed_s = 0.0;     // without validations and saves
  double data_wait_s = 0.0;   // for batches
  double ranks_wait_s = 0.0;  // for the other ranks
  double steps = 0.0;
  double gpu_util = -1.0;  // percent; below 0: not known

  // What the others have to wait for.
  double busy_s() const { return elapsed_s - ranks_wait_s; }
};

// Who holds the others up, and why.
struct RankReport {
  int slowest = 0;
  double slowest_s = 0.0;  // of a step, without waiting for others
  double median_s = 0.0;
  const char* why = "";  // "data", "compute"
  bool straggles = false;
  double gpu_util_min = -1.0, gpu_util_mean = -1.0;
};
// Of every rank; all have the answer.
Result<std::vector<RankTimes>> gather_times(dist::ProcessGroup& ranks, const RankTimes& own);
RankReport judge_ranks(const std::vector<RankTimes>& times);

// Times of several reports, so that one slow step is no straggler.
class RankWindow {
 public:
  // A report over all of it once it is long enough, which begins the next; otherwise nothing. The
  // first report of a run is left out: steps are slow in the beginning, for reasons of their own.
  std::optional<RankReport> add(const std::vector<RankTimes>& times);

 private:
  bool begun_ = false;
  std::vector<RankTimes> sums_;  // gpu_util: times its seconds
};

}  // namespace aerie::train
