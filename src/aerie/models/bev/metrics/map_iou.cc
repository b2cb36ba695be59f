#include "aerie/models/bev/metrics/map_iou.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aerie/base/check.h"
#include "aerie/base/format_text.h"

namespace aerie::bev {
namespace {

double mean_of_numbers(const std::vector<double>& values) {
  double sum = 0.0;
  int64_t count = 0;
  for (double value : values)
    if (!std::isnan(value)) {
      sum += value;
      ++count;
    }
  return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole)
                   : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

double MapIou::Count::iou() const {
  return static_cast<double>(true_positive) /
         (static_cast<double>(true_positive + false_positive + false_negative) + 1e-7);
}

void MapIou::update(std::span<const float> probability, std::span<const uint8_t> truth,
                    int64_t batch) {
  const auto classes = static_cast<int64_t>(counts_.size());
  AERIE_CHECK(batch > 0 && probability.size() == truth.size() &&
                  truth.size() % static_cast<size_t>(batch * classes) == 0,
              "maps of ", probability.size(), " and ", truth.size(), " cells for ", batch,
              " samples of ", classes, " classes");
  const int64_t cells = static_cast<int64_t>(truth.size()) / (batch * classes);
  size_t at = 0;
  for (int64_t b = 0; b < batch; ++b)
    for (Row& row : counts_)
      for (int64_t i = 0; i < cells; ++i, ++at) {
        const float p = probability[at];
        const bool positive = truth[at] != 0;
        for (size_t t = 0; t < kMapThresholds.size(); ++t) {
          const bool predicted = p >= kMapThresholds[t];
          row[t].true_positive += predicted && positive;
          row[t].false_positive += predicted && !positive;
          row[t].false_negative += !predicted && positive;
        }
      }
}

NamedValues MapIou::values(const std::vector<std::string>& classes) const {
  AERIE_CHECK(classes.size() == counts_.size(), classes.size(), " names for ", counts_.size(),
              " classes");
  NamedValues out;
  double sum = 0.0;
  for (size_t k = 0; k < classes.size(); ++k) {
    double best = 0.0;
    for (const Count& count : counts_[k]) best = std::max(best, count.iou());
    sum += best;
    out.emplace_back("map/" + classes[k] + "/iou@max", best);
    for (size_t t = 0; t < kMapThresholds.size(); ++t) {
      const std::string at = format_text("%.2f", static_cast<double>(kMapThresholds[t]));
      out.emplace_back("map/" + classes[k] + "/iou@" + at, counts_[k][t].iou());
    }
  }
  out.emplace_back("map/mean/iou@max",
                   classes.empty() ? 0.0 : sum / static_cast<double>(classes.size()));
  return out;
}

void SingleLabelIou::update(std::span<const int32_t> prediction, std::span<const uint8_t> label) {
  AERIE_CHECK(prediction.size() == label.size(), prediction.size(), " predictions for ",
              label.size(), " labels");
  for (size_t i = 0; i < label.size(); ++i) {
    if (label[i] == kIgnored) continue;
    const auto p = static_cast<size_t>(static_cast<uint32_t>(prediction[i]));
    const auto l = static_cast<size_t>(label[i]);
    if (p < predicted_.size()) ++predicted_[p];
    if (l < labelled_.size()) ++labelled_[l];
    if (p == l && p < intersect_.size()) ++intersect_[p];
  }
}

std::vector<int64_t> SingleLabelIou::united() const {
  std::vector<int64_t> out(intersect_.size());
  for (size_t k = 0; k < out.size(); ++k) out[k] = predicted_[k] + labelled_[k] - intersect_[k];
  return out;
}

NamedValues SingleLabelIou::values(const std::vector<std::string>& classes) const {
  AERIE_CHECK(classes.size() == intersect_.size(), classes.size(), " names for ", intersect_.size(),
              " classes");
  const std::vector<int64_t> whole = united();
  std::vector<double> iou, accuracy;
  int64_t right = 0, all = 0;
  for (size_t k = 0; k < classes.size(); ++k) {
    iou.push_back(share(intersect_[k], whole[k]));
    accuracy.push_back(share(intersect_[k], labelled_[k]));
    right += intersect_[k];
    all += labelled_[k];
  }
  NamedValues out = {{"aAcc", share(right, all)},
                     {"mIoU", mean_of_numbers(iou)},
                     {"mAcc", mean_of_numbers(accuracy)}};
  for (size_t k = 0; k < classes.size(); ++k) {
    out.emplace_back("IoU." + classes[k], iou[k]);
    out.emplace_back("Acc." + classes[k], accuracy[k]);
  }
  return out;
}

}  // namespace aerie::bev
