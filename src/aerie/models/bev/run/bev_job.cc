#include "aerie/models/bev/run/bev_job.h"

#include <utility>

#include "aerie/base/strings.h"
#include "aerie/config/merge.h"
#include "aerie/config/yaml.h"
#include "aerie/models/bev/config/bev_schema.h"
#include "aerie/models/bev/run/bev_data.h"
#include "aerie/models/bev/run/bev_task.h"
#include "aerie/models/bev/run/make_engine.h"
#include "aerie/models/bev/run/mm_export.h"
#include "aerie/models/bev/run/mm_log.h"
#include "aerie/models/bev/run/prediction_pictures.h"
#include "aerie/optim/mm_schedule.h"
#include "aerie/train/mm_schedule_rates.h"
#include "aerie/train/run_data.h"

namespace aerie::bev {
namespace {

class ConstantRates final : public train::LearningRates {
 public:
  explicit ConstantRates(std::vector<double> rates) : rates_(std::move(rates)) {}
  std::vector<double> at(int64_t) const override { return rates_; }

 private:
  std::vector<double> rates_;
};

ScoreNames score_names(const BevRunConfig& run) {
  return {run.model.classes, run.data.train_ds.gt.task != nuscenes::GtTaskChoice::kMap};
}

class BevJob final : public train::Job {
 public:
  explicit BevJob(const LoadedBevConfig& config)
      : loaded_(config), run_(config.run), task_(bev_task(score_names(run_))) {}

  const train::TaskInfo& task() const override { return task_; }
  const config::LoopConfig& config() const override { return run_; }
  Result<std::string> config_yaml() const override {
    // As written, not as resolved: values of the environment stay out of the file.
    config::Value tree = loaded_.native;
    config::fill_defaults(tree, bev_schema().aerie_defaults());
    return config::emit_yaml(tree);
  }
  ui::ReportWords report_words() const override { return bev_report_words(score_names(run_)); }
  std::vector<std::string> eval_metric_names() const override {
    return bev_metric_names(score_names(run_));
  }

  Result<train::JobData> open_data(const train::DataOptions& options) override {
    pictures_.reset();
    std::shared_ptr<const nuscenes::NuscenesDataset> evaluated;
    AERIE_ASSIGN_OR_RETURN(train::JobData data, open_bev_data(run_, options, &evaluated));
    if (evaluated != nullptr && run_.pictures > 0 && options.rank == 0)
      pictures_ =
          std::make_unique<PredictionPictures>(evaluated, run_.pictures, data.sets.front().batches,
                                               train::evaluation_seed(run_.aerie.seed));
    return data;
  }
  Result<train::BuiltEngine> make_engine(const train::EngineOptions& options) override {
    AERIE_ASSIGN_OR_RETURN(train::BuiltEngine engine, make_bev_engine(run_, options));
    set_prediction_sink(engine, pictures_.get());
    return engine;
  }
  Status load_initial_weights(Env& env, train::BuiltEngine& engine) override {
    return bev::load_initial_weights(env, run_, engine);
  }
  Result<train::TrainState> import_checkpoint(Env& env, train::BuiltEngine& engine,
                                              const std::string& path) override {
    return import_mm_checkpoint(env, engine, path);
  }
  Result<std::unique_ptr<train::LearningRates>> make_rates(const std::vector<double>& base_rates,
                                                           const train::Cadence& cadence) override {
    // One for the loop, one for the files beside checkpoints, which another thread writes.
    AERIE_ASSIGN_OR_RETURN(exported_rates_, rates_of(base_rates, cadence));
    return rates_of(base_rates, cadence);
  }
  // make_rates() came before.
  Result<train::Exports> exports(Env& env) override {
    train::Exports out;
    const config::CheckpointCallbackConfig& params = run_.exp_manager.checkpoint_callback_params;
    out.rules.newest = run_.checkpoints.newest;
    out.rules.best = run_.checkpoints.save_best;
    out.rules.by_epoch = params.save_on_train_epoch_end && params.every_n_epochs > 0;
    out.mm_latest = run_.checkpoints.latest;
    if (!run_.checkpoints.pth) return out;
    AERIE_ASSIGN_OR_RETURN(std::string yaml, config_yaml());
    AERIE_ASSIGN_OR_RETURN(
        MmExport exporter,
        MmExport::make(run_, std::move(yaml), [rates = exported_rates_](int64_t step) {
          return MmExport::Rates{rates->at(step), rates->momentum_at(step)};
        }));
    out.write_mm = [&env, exporter = std::move(exporter)](
                       const std::string& path, const train::MmMark& mark,
                       const train::TrainState& state, const train::StateSnapshot& snapshot) {
      return exporter.write(env, path, mark, state, snapshot);
    };
    return out;
  }
  Result<std::unique_ptr<train::RunListener>> make_listener(
      const train::ListenerParts& parts) override {
    MmLogOptions options;
    options.text = run_.text_log;
    options.by_epoch = run_.trainer.max_steps < 0 && run_.trainer.max_epochs.value_or(-1) > 0;
    options.name = run_.name;
    options.seed = run_.aerie.seed;
    options.classes = run_.model.classes;
    return make_mm_log(options, parts);
  }
  Status after_validation(Env& env, const std::string& run_dir, int64_t step,
                          const train::SetResult& monitored) override {
    if (pictures_ == nullptr) return ok_status();
    return pictures_
        ->write(env, run_dir, step, best_thresholds(monitored.all.sums(), run_.model.num_classes()))
        .with_context("pictures of the validation");
  }

 private:
  Result<std::unique_ptr<train::LearningRates>> rates_of(const std::vector<double>& base_rates,
                                                         const train::Cadence& cadence) const {
    const BevOptimConfig& optim = run_.optim;
    if (!optim.rate && !optim.momentum_rate)
      return std::unique_ptr<train::LearningRates>(std::make_unique<ConstantRates>(base_rates));
    optim::MmRunLength length;
    length.max_iters = cadence.planned_steps();
    length.epoch_iters = cadence.steps_per_epoch();
    if (run_.trainer.max_steps < 0 && run_.trainer.max_epochs.value_or(-1) > 0)
      length.max_epochs = run_.trainer.max_epochs;
    const double momentum =
        optim.kind == config::OptimizerKind::kSgd ? optim.momentum : optim.betas[0];
    AERIE_ASSIGN_OR_RETURN(
        auto schedule, optim::MmSchedule::make(optim.rate.value_or(optim::MmPolicyConfig{}),
                                               optim.momentum_rate, base_rates, momentum, length));
    return std::unique_ptr<train::LearningRates>(
        std::make_unique<train::MmScheduleRates>(std::move(schedule)));
  }

  const LoadedBevConfig& loaded_;
  const BevRunConfig& run_;
  const train::TaskInfo task_;
  std::unique_ptr<PredictionPictures> pictures_;  // null: none are asked for
  std::shared_ptr<const train::LearningRates> exported_rates_;
};

}  // namespace

std::unique_ptr<train::Job> make_bev_job(const LoadedBevConfig& config) {
  return std::make_unique<BevJob>(config);
}

}  // namespace aerie::bev
