#include "aerie/models/bev/run/bev_eval.h"

#include <cmath>
#include <memory>
#include <utility>

#include "aerie/base/clock.h"
#include "aerie/base/path.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/devices.h"
#include "aerie/data/nuscenes/prediction_sheet.h"
#include "aerie/data/nuscenes/sample_reader.h"
#include "aerie/models/bev/run/bev_data.h"
#include "aerie/models/bev/run/bev_task.h"
#include "aerie/models/bev/run/make_engine.h"
#include "aerie/train/evaluate.h"
#include "aerie/train/run_data.h"

namespace aerie::bev {
namespace {

// Draws every sample as it comes.
class ShowFolder final : public PredictionSink {
 public:
  ShowFolder(std::shared_ptr<const nuscenes::NuscenesDataset> dataset,
             const BevEvalOptions& options, std::string title)
      : dataset_(std::move(dataset)), options_(options) {
    sheet_.title = std::move(title);
    sheet_.seed = train::evaluation_seed(options.config->aerie.seed);
    sheet_.thresholds.assign(options.config->model.classes.size(), options.show_threshold);
  }
  bool wants(const data::Batch&) const override {
    return options_.show_limit < 0 || written_ < options_.show_limit;
  }
  Status take(const data::Batch& batch, std::span<const float> probability) override {
    for (int64_t row = 0; row < batch.num_samples() && wants(batch); ++row, ++written_) {
      AERIE_ASSIGN_OR_RETURN(const nuscenes::PredictedSample sample,
                             nuscenes::predicted_sample(batch, row, probability));
      AERIE_ASSIGN_OR_RETURN(const image::Image sheet,
                             nuscenes::prediction_sheet(*dataset_, sample, sheet_));
      const std::string name = nuscenes::prediction_file_name(*dataset_, sample) + ".jpg";
      AERIE_RETURN_IF_ERROR(
          nuscenes::write_picture(*options_.env, join_path(options_.show_dir, name), sheet)
              .with_context("--show-dir"));
    }
    return ok_status();
  }
  int64_t written() const { return written_; }

 private:
  const std::shared_ptr<const nuscenes::NuscenesDataset> dataset_;
  const BevEvalOptions& options_;
  nuscenes::PredictionSheetOptions sheet_;
  int64_t written_ = 0;
};

ScoreNames names_of(const BevRunConfig& run) {
  return {run.model.classes, run.data.train_ds.gt.task != nuscenes::GtTaskChoice::kMap};
}

// Masks of all samples of a node, one after the other.
Status for_masks(Env& env, nuscenes::DataConfig config, uint64_t seed,
                 const std::function<bool()>& stop,
                 const std::function<void(const std::vector<uint8_t>&)>& visit) {
  config.bev.augment = false;
  config.sampler = {};
  nuscenes::NuscenesDataset::Options open;
  open.env = &env;
  open.seed = seed;
  open.quiet = true;
  AERIE_ASSIGN_OR_RETURN(const auto dataset, nuscenes::NuscenesDataset::open(config, open));
  AERIE_ASSIGN_OR_RETURN(const auto reader, nuscenes::SampleReader::make(*dataset));
  std::vector<uint8_t> masks(reader->gt().num_bytes());
  const nuscenes::ReadRules& rules = dataset->rules();
  for (uint64_t entry = 0; entry < dataset->samples()->size(); ++entry) {
    if (stop && stop()) return Status(StatusCode::kCancelled, "stopped");
    const uint32_t sample = dataset->sample_of(entry);
    AERIE_ASSIGN_OR_RETURN(const nuscenes::SampleFrames frames,
                           nuscenes::sample_frames(dataset->index(), sample, rules.reference,
                                                   rules.motion_compensation));
    AERIE_RETURN_IF_ERROR(
        reader->ground_truth(sample, frames, reader->bev_augmentation(entry, 0, seed), masks.data())
            .with_context(dataset->name_of(sample)));
    visit(masks);
  }
  return ok_status();
}

}  // namespace

Result<MapIou> score_of_mean_masks(Env& env, const BevRunConfig& run, bool test,
                                   const std::function<bool()>& stop) {
  const auto& evaluated = test ? run.data.test_ds : run.data.validation_ds;
  if (!evaluated) return invalid_argument("there is no set to evaluate on");
  std::vector<int64_t> sums;
  int64_t count = 0;
  AERIE_RETURN_IF_ERROR(for_masks(env, run.data.train_ds, run.aerie.seed, stop,
                                  [&](const std::vector<uint8_t>& masks) {
                                    sums.resize(masks.size());
                                    for (size_t i = 0; i < masks.size(); ++i)
                                      sums[i] += masks[i] != 0 ? 1 : 0;
                                    ++count;
                                  })
                            .with_context("model.train_ds"));
  if (count == 0) return data_error("model.train_ds has no samples");
  std::vector<float> mean(sums.size());
  for (size_t i = 0; i < sums.size(); ++i)
    mean[i] = static_cast<float>(static_cast<double>(sums[i]) / static_cast<double>(count));
  MapIou iou(run.model.num_classes());
  Status shapes;
  AERIE_RETURN_IF_ERROR(
      for_masks(env, *evaluated, run.aerie.seed, stop, [&](const std::vector<uint8_t>& masks) {
        if (masks.size() == mean.size())
          iou.update(mean, masks, 1);
        else
          shapes = invalid_argument("the masks of training and evaluation differ in size");
      }).with_context(test ? "model.test_ds" : "model.validation_ds"));
  AERIE_RETURN_IF_ERROR(shapes);
  return iou;
}

Result<BevEvalReport> evaluate_bev(const BevEvalOptions& options) {
  Env& env = *options.env;
  const BevRunConfig& run = *options.config;
  const char* node = options.test ? "model.test_ds" : "model.validation_ds";
  if (!(options.test ? run.data.test_ds : run.data.validation_ds))
    return invalid_argument(str_cat("the configuration has no ", node))
        .with_hint(options.test ? "data.test of an mm-style configuration becomes it"
                                : "data.val of an mm-style configuration becomes it");
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(run.trainer, config::count_visible_gpus()));
  // Before anything slow: a wrong path is told at once.
  AERIE_ASSIGN_OR_RETURN(const std::string weights, find_weights(env, options.checkpoint));
  train::DataOptions data_options;
  data_options.env = &env;
  data_options.train = false;
  data_options.test = options.test;
  data_options.validation = !options.test;
  data_options.gpu = devices.gpu;
  data_options.gpu_index = devices.ids.front();
  std::shared_ptr<const nuscenes::NuscenesDataset> dataset;
  AERIE_ASSIGN_OR_RETURN(const train::JobData data, open_bev_data(run, data_options, &dataset));
  if (data.sets.empty() || data.sets[0].batches == 0)
    return invalid_argument(str_cat("there is nothing to evaluate: ", node, " gives no batches"))
        .with_hint("look at its split and at trainer.limit_val_batches");
  train::EngineOptions engine_options;
  engine_options.gpu = devices.gpu;
  engine_options.gpu_index = devices.ids.front();
  AERIE_ASSIGN_OR_RETURN(train::BuiltEngine engine, make_bev_engine(run, engine_options));

  const Stopwatch watch;
  BevEvalReport out;
  out.engine = engine.engine->description();
  out.data = str_cat(data.validation_amount, " of ", node);
  out.classes = run.model.classes;
  const ScoreNames names = names_of(run);
  const auto evaluate = [&](const char* predictor) -> Result<BevScores> {
    Progress progress({.label = predictor,
                       .total = static_cast<uint64_t>(data.sets[0].batches),
                       .unit = "batches"});
    train::EvaluateOptions evaluate_options;
    evaluate_options.seed = run.aerie.seed;
    evaluate_options.after_batch = [&progress] { progress.add(); };
    evaluate_options.stop = options.stop;
    AERIE_ASSIGN_OR_RETURN(const auto results,
                           train::evaluate_sets(*engine.engine, data.sets, evaluate_options));
    progress.finish();
    BevScores scores;
    scores.predictor = predictor;
    scores.iou = map_iou_of(results[0].all.sums(), run.model.num_classes());
    scores.values = eval_values(results[0].all.sums(), names);
    scores.loss = results[0].all.mean_loss();
    return scores;
  };
  // Fresh weights first: the same engine takes the checkpoint's afterwards.
  std::vector<BevScores> others;
  if (options.baselines) {
    AERIE_ASSIGN_OR_RETURN(BevScores untrained, evaluate("untrained"));
    others.push_back(std::move(untrained));
    AERIE_ASSIGN_OR_RETURN(const MapIou mean,
                           score_of_mean_masks(env, run, options.test, options.stop));
    BevScores scores;
    scores.predictor = "mean of the training masks";
    scores.iou = mean;
    scores.values = eval_values(sums_of(mean), {names.classes, false});
    scores.loss = std::nan("");
    others.push_back(std::move(scores));
  }
  const config::EmaConfig& ema = run.exp_manager.ema;
  AERIE_ASSIGN_OR_RETURN(
      out.averaged,
      load_whole_model(env, weights, ema.enable && !ema.validate_original_weights, engine));
  out.checkpoint = weights;
  std::unique_ptr<ShowFolder> show;
  if (!options.show_dir.empty()) {
    AERIE_RETURN_IF_ERROR(env.create_dirs(options.show_dir).with_context("--show-dir"));
    show = std::make_unique<ShowFolder>(dataset, options, base_name(parent_path(weights)));
    set_prediction_sink(engine, show.get());
  }
  AERIE_ASSIGN_OR_RETURN(BevScores mine, evaluate("checkpoint"));
  set_prediction_sink(engine, nullptr);
  out.scores.push_back(std::move(mine));
  for (BevScores& other : others) out.scores.push_back(std::move(other));
  if (show != nullptr) {
    out.pictures = show->written();
    out.show_dir = options.show_dir;
  }
  out.wall_s = watch.elapsed_s();
  return out;
}

}  // namespace aerie::bev
