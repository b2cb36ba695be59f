// One training run as its model family brings it: what run_training() (run.h) asks for, in the
// order of the functions here. The loop, the run folder, checkpoints, logs and the report are the
// engine's. No torch here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/config/value.h"
#include "aerie/train/bad_sample_log.h"
#include "aerie/train/batch_source.h"
#include "aerie/train/cadence.h"
#include "aerie/train/checkpointer.h"
#include "aerie/train/engine.h"
#include "aerie/train/evaluate.h"
#include "aerie/train/learning_rates.h"
#include "aerie/train/run_listener.h"
#include "aerie/ui/report_words.h"

namespace aerie::dist {
class ProcessGroup;
}

namespace aerie::train {

struct DataOptions {
  Env* env = nullptr;
  bool train = true;
  bool validation = true;
  bool test = false;                          // the test sets instead of the validation sets
  bool gpu = false;                           // batches go to a GPU: page-locked memory
  int64_t gpu_index = 0;                      // which one
  bool quiet = false;                         // no progress, no notes about the training set
  uint32_t rank = 0, world = 1;               // whose samples of every epoch are read
  std::shared_ptr<BadSampleLog> bad_samples;  // bad_samples.jsonl; null: only logged
  // Of a run that is gone on with: where it stood in its data (BatchSource::cursor_json()), and the
  // configurations of its earlier starts. Both may be empty.
  std::string resumed_cursor;
  std::function<std::vector<config::Value>()> earlier_configs;
};

struct JobData {
  std::unique_ptr<BatchSource> train;
  std::vector<std::unique_ptr<BatchSource>> evaluation;
  std::vector<ValidationSet> sets;  // of them, with the limits applied
  // For records and logs: "4 workers, ...", "12,345 utterances, 20 h 31 min". May be empty.
  std::string loader, training_amount, validation_amount;
  // What differs from the data that an earlier start of the run left this cursor of. May be empty.
  std::function<std::vector<std::string>(const std::string& previous_cursor)> changes;
};

struct EngineOptions {
  bool gpu = false;
  int64_t gpu_index = 0;
  bool saves = false;  // snapshots will be taken: their memory is reserved now
  // "32", "bf16-mixed" or "16-mixed"; empty: the config's. A resumed run may have fallen back.
  std::string precision;
  // The processes that train this model together; null: this one alone.
  std::shared_ptr<dist::ProcessGroup> ranks;
  // False: each rank keeps its own gradients and does everything else with the others. For
  // measuring what adding up costs.
  bool reduces = true;
};

// A top-level part of the model, as Lightning's summary counts it.
struct ModelPart {
  std::string name;                   // "encoder", "decoder", ...
  int64_t trainable = 0, frozen = 0;  // parameters; buffers are not counted
};

struct BuiltEngine {
  std::unique_ptr<Engine> engine;
  std::vector<std::pair<std::string, double>> start_times;  // what making it consisted of, seconds
  std::vector<double> base_rates;  // learning rate of every parameter group, before the schedule
  std::vector<ModelPart> parts;    // in the order of the state dict
};

class Job {
 public:
  virtual ~Job() = default;

  virtual const TaskInfo& task() const = 0;
  virtual const config::LoopConfig& config() const = 0;
  // config.yaml: effective values, expressions of the environment kept.
  virtual Result<std::string> config_yaml() const = 0;
  virtual ui::ReportWords report_words() const = 0;
  // Of the validation sets, the one whose numbers have no prefix.
  virtual size_t monitored_set() const { return 0; }
  // Names that checkpoints and early stopping may watch beside the losses.
  virtual std::vector<std::string> eval_metric_names() const { return {}; }

  virtual Result<JobData> open_data(const DataOptions& options) = 0;
  virtual Result<BuiltEngine> make_engine(const EngineOptions& options) = 0;
  // Weights that a fresh run starts from, where the config names some.
  virtual Status load_initial_weights(Env& env, BuiltEngine& engine) = 0;
  // Weights, optimizer state and counters of another program's checkpoint.
  virtual Result<TrainState> import_checkpoint(Env& env, BuiltEngine& engine,
                                               const std::string& path) = 0;
  virtual Result<std::unique_ptr<LearningRates>> make_rates(const std::vector<double>& base_rates,
                                                            const Cadence& cadence) = 0;
  virtual Result<Exports> exports(Env& env) = 0;
  // Logs of its own; null: none.
  virtual Result<std::unique_ptr<RunListener>> make_listener(const ListenerParts& /*parts*/) {
    return std::unique_ptr<RunListener>();
  }
  // What a validation leaves in the run's folder beside its numbers: pictures. `monitored` is the
  // result of the set whose numbers have no prefix.
  virtual Status after_validation(Env& /*env*/, const std::string& /*run_dir*/, int64_t /*step*/,
                                  const SetResult& /*monitored*/) {
    return ok_status();
  }
};

}  // namespace aerie::train
