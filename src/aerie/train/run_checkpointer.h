// The checkpoints of a run: which stems exist, written by one background thread, with the files of
// other programs beside them (a model archive, Lightning's, mmcv's).
//
// By Lightning's rules there are the best k by the monitor and `-last`; one more may wait for the
// thread and gives way to a newer one that makes it superfluous, so that training does not wait for
// the disk. By mmcv's (CheckpointRules::newest) there are the newest k, `iter_N` or `epoch_N`, and
// the best one, `best_<monitor>_iter_N`; each is written.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/checkpoint/lightning_mirror.h"
#include "aerie/checkpoint/mm_mirror.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/train/best_checkpoints.h"
#include "aerie/train/checkpointer.h"
#include "aerie/train/run_folder.h"

namespace aerie::train {

// Archives and other programs' files are written in the background thread.
struct RunCheckpointerOptions : Exports {
  RunFolder folder;
  config::CheckpointCallbackConfig params;
  std::string monitor = "val_loss";
  std::vector<std::string> metrics{"val_loss"};  // others that names of checkpoints may use
};

class RunCheckpointer final : public Checkpointer {
 public:
  RunCheckpointer(Env& env, Clock& clock, RunCheckpointerOptions options);
  ~RunCheckpointer() override;  // finishes what was handed over

  // Checks the file name template and takes over the checkpoints that are there (after a restart),
  // by what they say of themselves. Directories that carry another name than they were given are
  // somebody's copies: they stay and do not compete.
  Status adopt_existing();

  Status save(SaveRequest request, std::unique_ptr<StateSnapshot> snapshot) override;
  std::vector<SaveReport> take_reports() override;
  Status drain() override;

  // For the closing lines of a run.
  std::string last_stem() const;
  std::string best_stem() const;
  std::string archive_path() const;

 private:
  struct Job {
    SaveRequest request;
    std::unique_ptr<StateSnapshot> snapshot;
  };
  void run();
  // Whether `waiting` would leave nothing behind once `newer` is written.
  bool superseded(const SaveRequest& waiting, const SaveRequest& newer) const;
  SaveReport write(Job& job);
  Status write_all(Job& job, SaveReport* report);
  Status write_unhealthy(Job& job, StateSnapshot& snapshot, SaveReport* report);
  Status write_best(Job& job, StateSnapshot& snapshot, std::string* stem, SaveReport* report);
  Status write_last(Job& job, StateSnapshot& snapshot, const std::string& stem, SaveReport* report);
  // mmcv's rules.
  std::string mm_name(const SaveRequest& request) const;  // iter_N, epoch_N
  void adopt_newest(const CheckpointInfo& info);
  Status write_newest(Job& job, StateSnapshot& snapshot, SaveReport* report);
  Status write_best_of_newest(Job& job, StateSnapshot& snapshot, SaveReport* report);
  Status write_stem(const std::string& stem, const Job& job, StateSnapshot& snapshot,
                    SaveReport* report);
  Status remove_stem(const std::string& stem);
  // Native checkpoints and mmcv's files of the same steps, by Lightning's rules.
  Status mirror_mm(const Job& job, StateSnapshot& snapshot, const SaveReport& report);
  // Further ones of `-last` or `-unhealthy` that are older than what was just written.
  Status remove_outdated(int64_t step);
  Result<std::string> stem_for(const SaveRequest& request) const;

  Env& env_;
  Clock& clock_;
  const RunCheckpointerOptions options_;
  CheckpointStore store_;
  std::optional<LightningMirror> lightning_;
  std::optional<MmMirror> mm_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Job> waiting_;
  std::optional<SaveRequest> writing_;  // what the thread is busy with
  bool stop_ = false;
  int64_t superseded_ = 0;  // since the last report
  std::vector<SaveReport> reports_;
  Status last_error_;
  // Kept by the writer thread, read under the mutex.
  BestCheckpoints best_;
  std::string last_stem_;
  int64_t last_step_ = 0;
  // Further `-last` and `-unhealthy` ones, with their steps; they go once a healthy one of their
  // step or a later one is whole, since the run may have been resumed from one of them.
  std::map<std::string, int64_t> outdated_;
  std::vector<std::string> regular_;  // stems by mmcv's rules, in the order they came
  std::thread thread_;
};

}  // namespace aerie::train
