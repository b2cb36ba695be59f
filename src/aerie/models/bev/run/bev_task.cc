#include "aerie/models/bev/run/bev_task.h"

#include "aerie/base/strings.h"
#include "aerie/train/eval_accumulator.h"

namespace aerie::bev {
namespace {

constexpr const char* kMean = "mIoU";
constexpr const char* kMeanAtHalf = "mIoU@0.50";
constexpr size_t kHalf = 3;  // among kMapThresholds

}  // namespace

MapIou map_iou_of(std::span<const double> sums, int64_t classes) {
  const auto num = static_cast<size_t>(classes);
  const size_t thresholds = kMapThresholds.size();
  MapIou iou(classes);
  if (sums.size() < 3 * num * thresholds) return iou;  // nothing was evaluated
  for (size_t k = 0; k < num; ++k)
    for (size_t t = 0; t < thresholds; ++t) {
      const auto at = [&](size_t kind) {
        return static_cast<int64_t>(sums[(kind * num + k) * thresholds + t]);
      };
      iou.counts()[k][t] = {at(0), at(1), at(2)};
    }
  return iou;
}

std::vector<double> sums_of(const MapIou& iou) {
  const size_t num = iou.counts().size(), thresholds = kMapThresholds.size();
  std::vector<double> out(3 * num * thresholds);
  for (size_t k = 0; k < num; ++k)
    for (size_t t = 0; t < thresholds; ++t) {
      const MapIou::Count& count = iou.counts()[k][t];
      const int64_t kinds[] = {count.true_positive, count.false_positive, count.false_negative};
      for (size_t kind = 0; kind < 3; ++kind)
        out[(kind * num + k) * thresholds + t] = static_cast<double>(kinds[kind]);
    }
  return out;
}

NamedValues eval_values(std::span<const double> sums, const ScoreNames& names) {
  const std::vector<std::string>& classes = names.classes;
  const size_t num = classes.size(), signs = 3 * num * kMapThresholds.size();
  const MapIou iou = map_iou_of(sums, static_cast<int64_t>(num));
  double half = 0.0;
  for (const MapIou::Row& row : iou.counts()) half += row[kHalf].iou() / static_cast<double>(num);
  NamedValues all = iou.values(classes);
  NamedValues out = {{kMean, all.back().second}, {kMeanAtHalf, half}};
  if (names.boxes)
    for (size_t k = 0; k < num; ++k) {
      const bool counted = sums.size() >= signs + 2 * num && sums[signs + num + k] > 0.0;
      out.emplace_back(classes[k] + "_iou",
                       counted ? sums[signs + k] / sums[signs + num + k] : 0.0);
    }
  out.insert(out.end(), all.begin(), all.end() - 1);  // the last is the mean
  return out;
}

std::vector<float> best_thresholds(std::span<const double> sums, int64_t classes) {
  std::vector<float> out;
  const MapIou iou = map_iou_of(sums, classes);
  for (const MapIou::Row& row : iou.counts()) {
    size_t best = kHalf;
    for (size_t t = 0; t < row.size(); ++t)
      if (row[t].iou() > row[best].iou()) best = t;
    out.push_back(kMapThresholds[best]);
  }
  return out;
}

train::TaskInfo bev_task(const ScoreNames& names) {
  train::TaskInfo task;
  task.name = "LSS + Swin";
  task.family = "bev";
  task.train_loss = "loss";
  task.eval_loss = "val_loss";
  task.monitor = kMean;
  task.monitor_max = true;
  task.smaller_batch =
      "lower the batch (model.train_ds.batch_size, data.samples_per_gpu) and raise accumulation "
      "(trainer.accumulate_grad_batches) for it, use fp16 (trainer.precision=16-mixed), set "
      "aerie.activation_checkpointing=true, or use fewer workers (model.train_ds.num_workers, "
      "data.workers_per_gpu) where main memory is short";
  task.smaller_sample =
      "a smaller batch or more accumulation no longer helps: use fp16 "
      "(trainer.precision=16-mixed), "
      "fewer workers (model.train_ds.num_workers) where main memory is short, lower "
      "model.train_ds.image.size";
  task.lower_rate =
      "lower model.optim.lr; with fp16 lower aerie.loss_scale or make it dynamic (a higher one "
      "overflows sooner)";
  task.eval_metrics = [names](const train::EvalAccumulator& all) {
    return eval_values(all.sums(), names);
  };
  return task;
}

std::vector<std::string> bev_metric_names(const ScoreNames& names) {
  std::vector<std::string> out;
  for (const auto& [name, value] : eval_values({}, names)) out.push_back(name);
  return out;
}

ui::ReportWords bev_report_words(const ScoreNames& names) {
  const train::TaskInfo task = bev_task(names);
  ui::ReportWords out;
  out.train_loss = task.train_loss;
  out.eval_loss = task.eval_loss;
  out.monitor = task.monitor;
  out.monitor_max = task.monitor_max;
  out.throughput = task.throughput;
  out.faster_data =
      "Raise model.train_ds.num_workers, or pack the pictures (aerie data pack --kind nuscenes)";
  out.longer_steps = "Raise model.train_ds.batch_size";
  out.one_engine = true;
  ui::ReportWords::Chart chart;
  chart.title = "Intersection over union";
  chart.unit = "%";
  chart.evaluation = true;
  chart.scale = 100.0;
  chart.curves = {{kMean, "mean"}};
  for (const std::string& name : names.classes)
    chart.curves.push_back({str_cat("map/", name, "/iou@max"), name});
  out.charts = {std::move(chart)};
  out.data_settings = {{"model.train_ds.root", "nuScenes folder"},
                       {"model.train_ds.version", "its tables", true},
                       {"model.train_ds.split", "training split", true},
                       {"model.validation_ds.split", "validation split", true}};
  return out;
}

}  // namespace aerie::bev
