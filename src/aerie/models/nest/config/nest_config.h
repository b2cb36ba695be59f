// The whole configuration of a NEST run as plain structs: what `aerie train` and every part under
// it receive. Plain values, copyable, no pointers into the config tree, free to share between
// threads once built. build_run_config() (run_config.h) fills them from a resolved tree.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/config/schema/loop_config.h"
#include "aerie/config/schema/optim_config.h"
#include "aerie/data/speech/config/dataset_config.h"
#include "aerie/models/nest/config/model_config.h"

namespace aerie::config {

// The `model:` node.
struct ModelConfig {
  int64_t sample_rate = 16000;
  int64_t num_classes = 8192;
  int64_t num_books = 1;
  int64_t code_dim = 16;
  bool squeeze_single = false;
  MaskPosition mask_position = MaskPosition::kPreConv;
  PreprocessorConfig preprocessor;
  SpecAugmentConfig spec_augment;
  MaskingConfig masking;
  QuantizerConfig quantizer;
  EncoderConfig encoder;
  DecoderConfig decoder;
  LossConfig loss;
  OptimConfig optim;
  std::vector<ParamGroupConfig> optim_param_groups;
  DatasetConfig train_ds;
  // One entry per loader: NeMo makes one of each manifest of a list. Names are filled in (NeMo's
  // rule: file stem, '-' to '_', without "manifest" and "dataset", ending in '_'; empty with one
  // loader and no explicit name). Empty vector: no such node, or its manifest is null.
  std::vector<DatasetConfig> validation_ds;
  std::vector<DatasetConfig> test_ds;
  int64_t val_dl_idx = 0;  // the loader whose loss is val_loss
  int64_t test_dl_idx = 0;
  bool operator==(const ModelConfig&) const = default;
};

struct RunConfig : LoopConfig {
  ModelConfig model;
  bool operator==(const RunConfig&) const = default;
};

}  // namespace aerie::config
