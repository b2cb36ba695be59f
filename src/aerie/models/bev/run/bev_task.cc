#include "aerie/models/bev/run/bev_task.h"

#include <span>

#include "aerie/base/strings.h"
#include "aerie/models/bev/metrics/map_iou.h"
#include "aerie/train/eval_accumulator.h"

namespace aerie::bev {
namespace {

constexpr const char* kMean = "mIoU";
constexpr const char* kMeanAtHalf = "mIoU@0.50";
constexpr size_t kHalf = 3;  // among kMapThresholds

// `sums` as BevEngine::evaluate() gives them; empty: nothing was evaluated.
NamedValues values_of(std::span<const double> sums, const std::vector<std::string>& classes) {
  const size_t num = classes.size(), thresholds = kMapThresholds.size();
  MapIou iou(static_cast<int64_t>(num));
  if (sums.size() == 3 * num * thresholds) {
    for (size_t k = 0; k < num; ++k)
      for (size_t t = 0; t < thresholds; ++t) {
        const auto at = [&](size_t kind) {
          return static_cast<int64_t>(sums[(kind * num + k) * thresholds + t]);
        };
        iou.counts()[k][t] = {at(0), at(1), at(2)};
      }
  }
  double half = 0.0;
  for (const MapIou::Row& row : iou.counts()) half += row[kHalf].iou() / static_cast<double>(num);
  NamedValues all = iou.values(classes);
  NamedValues out = {{kMean, all.back().second}, {kMeanAtHalf, half}};
  out.insert(out.end(), all.begin(), all.end() - 1);  // the last is the mean
  return out;
}

}  // namespace

train::TaskInfo bev_task(const std::vector<std::string>& classes) {
  train::TaskInfo task;
  task.name = "LSS + Swin";
  task.family = "bev";
  task.train_loss = "loss";
  task.eval_loss = "val_loss";
  task.monitor = kMean;
  task.monitor_max = true;
  task.smaller_batch =
      "lower the batch (model.train_ds.batch_size, data.samples_per_gpu) and raise accumulation "
      "(trainer.accumulate_grad_batches), use fp16, or use fewer workers";
  task.smaller_sample = "lower model.train_ds.image.size";
  task.lower_rate = "lower model.optim.lr";
  task.eval_metrics = [classes](const train::EvalAccumulator& all) {
    return values_of(all.sums(), classes);
  };
  return task;
}

std::vector<std::string> bev_metric_names(const std::vector<std::string>& classes) {
  std::vector<std::string> out;
  for (const auto& [name, value] : values_of({}, classes)) out.push_back(name);
  return out;
}

ui::ReportWords bev_report_words(const std::vector<std::string>& classes) {
  const train::TaskInfo task = bev_task(classes);
  ui::ReportWords out;
  out.train_loss = task.train_loss;
  out.eval_loss = task.eval_loss;
  out.monitor = task.monitor;
  out.monitor_max = task.monitor_max;
  out.throughput = task.throughput;
  out.faster_data =
      "Raise model.train_ds.num_workers, or pack the pictures (aerie data pack --kind nuscenes)";
  out.longer_steps = "Raise model.train_ds.batch_size";
  ui::ReportWords::Chart chart;
  chart.title = "Intersection over union";
  chart.unit = "%";
  chart.evaluation = true;
  chart.scale = 100.0;
  chart.curves = {{kMean, "mean"}};
  for (const std::string& name : classes)
    chart.curves.push_back({str_cat("map/", name, "/iou@max"), name});
  out.charts = {std::move(chart)};
  out.data_settings = {{"model.train_ds.root", "nuScenes folder"},
                       {"model.train_ds.version", "its tables"},
                       {"model.train_ds.split", "training split"},
                       {"model.validation_ds.split", "validation split"}};
  return out;
}

}  // namespace aerie::bev
