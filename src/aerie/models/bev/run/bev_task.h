// What the loop and reports call the numbers of this family. No torch here.
#pragma once

#include <string>
#include <vector>

#include "aerie/train/engine.h"
#include "aerie/ui/report_words.h"

namespace aerie::bev {

// Evaluations give mIoU (the mean over classes of each one's best threshold), mIoU@0.50, and
// map/<class>/iou@max and iou@0.35 ... of every class.
train::TaskInfo bev_task(const std::vector<std::string>& classes);
ui::ReportWords bev_report_words(const std::vector<std::string>& classes);
// Names of the numbers of an evaluation, its loss aside.
std::vector<std::string> bev_metric_names(const std::vector<std::string>& classes);

}  // namespace aerie::bev
