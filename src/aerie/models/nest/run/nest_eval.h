// `aerie eval`: the validation loss of a checkpoint, the number training would have logged for it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::train {

struct NestEvalOptions {
  const config::RunConfig* config = nullptr;
  Env* env = nullptr;
  // A .nemo, a Lightning .ckpt, a .safetensors file, a native checkpoint, a folder of them or of a
  // run. Empty: what the config names (exp_manager.resume_from_checkpoint, init_from_*), else the
  // newest checkpoint of the config's run.
  std::string checkpoint;
  bool test = false;  // model.test_ds instead of model.validation_ds
  // The configuration's `model` node, resolved; null: not compared with the checkpoint's.
  const config::Value* model_node = nullptr;
  std::function<bool()> stop;  // may be empty
};

struct NestEvalSet {
  std::string name;  // of the metric: "val_loss", or "<stem>_val_loss" with several sets
  double loss = 0.0;
  int64_t batches = 0;
  int64_t masked_frames = 0;
  double audio_s = 0.0;
};

struct NestEvalReport {
  std::string checkpoint;
  std::string engine;
  bool averaged = false;  // the averaged weights were used
  std::string metric;     // "val_loss" or "test_loss"
  std::vector<NestEvalSet> sets;
  double loss = 0.0;  // of the monitored set (val_dl_idx)
  double mean = 0.0;  // over the sets
  double wall_s = 0.0;
  // Settings that change the numbers and are others in the checkpoint's own configuration.
  std::vector<std::string> differences;

  std::string to_text() const;
  std::string to_json() const;
};

Result<NestEvalReport> evaluate_nest(const NestEvalOptions& options);

}  // namespace aerie::train
