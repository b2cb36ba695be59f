// Intersection over union of predicted maps, counted over a whole set.
//
// MapIou: every class has its own probability; a cell counts as predicted where p >= threshold,
// both in float32 (in double 0.35f, 0.45f and 0.65f fail their own threshold). The score of a class
// is its best over the thresholds, the mean is over classes; a class without positives and without
// predictions scores 0 and stays in the mean.
//   iou = tp / (tp + fp + fn + 1e-7)
// SingleLabelIou: one class a cell, as mmsegmentation counts it; label 255 is ignored.
//
// Counts are int64 and may be added up over batches and ranks. Not synchronised.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace aerie::bev {

inline constexpr std::array<float, 7> kMapThresholds = {0.35f, 0.40f, 0.45f, 0.50f,
                                                        0.55f, 0.60f, 0.65f};

using NamedValues = std::vector<std::pair<std::string, double>>;

class MapIou {
 public:
  explicit MapIou(int64_t classes) : counts_(static_cast<size_t>(classes)) {}

  // probability and truth are [batch][class][cell]; truth is 0 or not.
  void update(std::span<const float> probability, std::span<const uint8_t> truth, int64_t batch);

  struct Count {
    int64_t true_positive = 0, false_positive = 0, false_negative = 0;
    double iou() const;
  };
  using Row = std::array<Count, kMapThresholds.size()>;
  const std::vector<Row>& counts() const { return counts_; }
  std::vector<Row>& counts() { return counts_; }

  // map/<class>/iou@max, map/<class>/iou@0.35 ..., then map/mean/iou@max.
  NamedValues values(const std::vector<std::string>& classes) const;

 private:
  std::vector<Row> counts_;
};

class SingleLabelIou {
 public:
  static constexpr uint8_t kIgnored = 255;

  explicit SingleLabelIou(int64_t classes)
      : intersect_(static_cast<size_t>(classes)),
        predicted_(static_cast<size_t>(classes)),
        labelled_(static_cast<size_t>(classes)) {}

  // Predictions and labels beyond the number of classes count for nothing but their partner.
  void update(std::span<const int32_t> prediction, std::span<const uint8_t> label);

  const std::vector<int64_t>& intersect() const { return intersect_; }
  const std::vector<int64_t>& labelled() const { return labelled_; }
  std::vector<int64_t> united() const;

  // aAcc, mIoU, mAcc, then IoU.<class> and Acc.<class>, in 0..1. A class that never occurs has
  // NaN and is left out of the means.
  NamedValues values(const std::vector<std::string>& classes) const;

 private:
  std::vector<int64_t> intersect_, predicted_, labelled_;
};

}  // namespace aerie::bev
