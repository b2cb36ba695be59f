#include "aerie/models/nest/run/nest_job.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "aerie/archive/nemo.h"
#include "aerie/archive/nemo_config.h"
#include "aerie/config/yaml.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/run/lightning_export.h"
#include "aerie/models/nest/run/nest_data.h"
#include "aerie/models/nest/run/nest_engine.h"
#include "aerie/models/nest/run/nest_schedule.h"
#include "aerie/optim/schedule.h"
#include "aerie/train/schedule_rates.h"

namespace aerie::train {

namespace {

class NestJob final : public Job {
 public:
  explicit NestJob(const config::LoadedConfig& config)
      : loaded_(config), run_(config.run), loop_(run_.loop()), task_(nest::nest_task()) {}

  const TaskInfo& task() const override { return task_; }
  const config::LoopConfig& config() const override { return loop_; }
  Result<std::string> config_yaml() const override { return config::emit_yaml(loaded_.portable); }
  ui::ReportWords report_words() const override { return nest::nest_report_words(); }
  size_t monitored_set() const override {
    return static_cast<size_t>(std::max<int64_t>(0, run_.model.val_dl_idx));
  }

  Result<JobData> open_data(const DataOptions& options) override {
    NestDataOptions nest_options;
    static_cast<DataOptions&>(nest_options) = options;
    // A damaged cursor is reported where it is needed.
    if (const auto cursor = data::Cursor::parse(options.resumed_cursor); cursor.ok()) {
      nest_options.packing = cursor->packing;
      if (!cursor->now.batching && options.earlier_configs)
        nest_options.earlier_batching = batching_of(options.earlier_configs());
    }
    return open_nest_data(run_, nest_options);
  }

  Result<BuiltEngine> make_engine(const EngineOptions& options) override {
    return make_nest_engine(run_, options);
  }
  Status load_initial_weights(Env& env, BuiltEngine& engine) override {
    return train::load_initial_weights(env, engine, run_.init_from);
  }
  Result<TrainState> import_checkpoint(Env& env, BuiltEngine& engine,
                                       const std::string& path) override {
    return import_lightning_checkpoint(env, engine, path);
  }

  Result<std::unique_ptr<LearningRates>> make_rates(const std::vector<double>& base_rates,
                                                    const Cadence& cadence) override {
    AERIE_ASSIGN_OR_RETURN(auto schedule, optim::Schedule::make(run_.model.optim.sched, base_rates,
                                                                schedule_steps(run_, cadence)));
    return std::unique_ptr<LearningRates>(std::make_unique<ScheduleRates>(std::move(schedule)));
  }

  Result<Exports> exports(Env& env) override {
    AERIE_ASSIGN_OR_RETURN(const std::string model_yaml, nemo_model_config(loaded_.resolved));
    Exports out;
    out.write_archive = [&env, model_yaml](const std::string& path, const StateSnapshot& snapshot) {
      return write_nemo_snapshot(env, path, model_yaml, snapshot);
    };
    if (!run_.aerie.lightning_checkpoints) return out;
    AERIE_ASSIGN_OR_RETURN(const config::Value model_node,
                           config::parse_yaml(model_yaml, "model_config.yaml"));
    AERIE_ASSIGN_OR_RETURN(LightningExport exporter, LightningExport::make(run_, model_node));
    out.write_lightning = [&env, exporter = std::move(exporter)](const std::string& path,
                                                                 const TrainState& at,
                                                                 const StateSnapshot& snapshot) {
      return exporter.write(env, path, lightning_state(at, snapshot));
    };
    return out;
  }

 private:
  const config::LoadedConfig& loaded_;
  const config::RunConfig& run_;
  const config::LoopConfig loop_;
  const TaskInfo task_;
};

}  // namespace

std::vector<data::Batching> batching_of(const std::vector<config::Value>& configs) {
  std::vector<data::Batching> out;
  for (const config::Value& resolved : configs)
    if (const auto run = config::build_run_config(resolved); run.ok())
      out.push_back(data::batching_of(run->model.train_ds));
  return out;
}

std::unique_ptr<Job> make_nest_job(const config::LoadedConfig& config) {
  return std::make_unique<NestJob>(config);
}

Result<std::string> nemo_model_config(const config::Value& resolved) {
  const config::Value* model = resolved.find("model");
  if (model == nullptr) return invalid_argument("the configuration has no model node");
  config::Value out = *model;
  if (out.find("target") == nullptr)
    AERIE_RETURN_IF_ERROR(out.set("target", config::Value(archive::kNemoTarget)));
  if (out.find("nemo_version") == nullptr)
    AERIE_RETURN_IF_ERROR(out.set("nemo_version", config::Value(archive::kNemoVersion)));
  return config::emit_yaml(out);
}

Status write_nemo_snapshot(Env& env, const std::string& path, const std::string& model_yaml,
                           const StateSnapshot& snapshot) {
  std::vector<archive::OutTensor> tensors;
  for (const SnapshotTensor& tensor : snapshot.tensors()) {
    if (tensor.file != "model") continue;
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data, {}});
  }
  return archive::write_nemo(env, path, model_yaml, tensors);
}

}  // namespace aerie::train
