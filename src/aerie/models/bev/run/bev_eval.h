// `aerie eval` for bird's-eye-view models: intersection over union of a checkpoint on a data set,
// pictures of what it predicts, and two predictors that every model should beat. No torch here.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/models/bev/metrics/map_iou.h"

namespace aerie::bev {

struct BevEvalOptions {
  const BevRunConfig* config = nullptr;
  Env* env = nullptr;
  // A native checkpoint, a folder of them or of a run (the newest is meant), a .pth or .safetensors
  // file with the whole model.
  std::string checkpoint;
  bool test = false;       // model.test_ds instead of model.validation_ds
  bool baselines = false;  // also an untrained model and the mean of the training masks
  std::string show_dir;    // a picture of every sample; empty: none
  float show_threshold = 0.5f;
  int64_t show_limit = -1;     // of so many samples; -1: all
  std::function<bool()> stop;  // may be empty
};

// What one predictor scored.
struct BevScores {
  std::string predictor;  // "checkpoint", "untrained", "mean of the training masks"
  MapIou iou{0};
  NamedValues values;  // mIoU first, as evaluations of a run name them
  double loss = 0.0;   // NaN: it has none
};

struct BevEvalReport {
  std::string checkpoint, engine, data;
  bool averaged = false;  // the averaged weights were used
  std::vector<std::string> classes;
  std::vector<BevScores> scores;  // the checkpoint's first
  int64_t pictures = 0;
  std::string show_dir;
  double wall_s = 0.0;

  std::string to_text() const;
  std::string to_json() const;
};

Result<BevEvalReport> evaluate_bev(const BevEvalOptions& options);

// Share of the training samples that have a class in a cell, as a prediction for every sample of
// the evaluation: what is known without looking at pictures. Training masks are those of the
// samples as they are, without augmentation.
Result<MapIou> score_of_mean_masks(Env& env, const BevRunConfig& run, bool test,
                                   const std::function<bool()>& stop);

}  // namespace aerie::bev
