// What the loop and reports call the numbers of this family. No torch here.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aerie/models/bev/metrics/map_iou.h"
#include "aerie/train/engine.h"
#include "aerie/ui/report_words.h"

namespace aerie::bev {

// Evaluations give mIoU (the mean over classes of each one's best threshold), mIoU@0.50, and
// map/<class>/iou@max and iou@0.35 ... of every class; of boxes also <class>_iou, which
// Lift-Splat-Shoot reports: predicted where the logit is above 0.
struct ScoreNames {
  std::vector<std::string> classes;
  bool boxes = false;  // vehicles or cars instead of the map
};
train::TaskInfo bev_task(const ScoreNames& names);
ui::ReportWords bev_report_words(const ScoreNames& names);
// Names of the numbers of an evaluation, its loss aside.
std::vector<std::string> bev_metric_names(const ScoreNames& names);

// Of EvalAccumulator::sums(): the counts of every class, and the numbers they give.
MapIou map_iou_of(std::span<const double> sums, int64_t classes);
std::vector<double> sums_of(const MapIou& iou);  // and back
NamedValues eval_values(std::span<const double> sums, const ScoreNames& names);
// Of every class, the threshold with its best score; 0.5 where nothing was ever predicted or there.
std::vector<float> best_thresholds(std::span<const double> sums, int64_t classes);

}  // namespace aerie::bev
