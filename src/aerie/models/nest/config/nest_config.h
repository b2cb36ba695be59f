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
#include "aerie/data/speech/config/speech_aerie_config.h"
#include "aerie/models/nest/config/model_config.h"

namespace aerie::config {

// The `model:` node, its data sets included.
struct ModelConfig : SpeechDatasets {
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
  bool operator==(const ModelConfig&) const = default;
};

enum class TokensPrecision { kFloat32, kAutocast };
enum class EmptyMask { kZero, kNan };
enum class BatchNormFrames { kPadded, kValid };

// The `aerie:` node with the keys that only NEST has.
struct NestAerieConfig : SpeechAerieConfig {
  TokensPrecision tokens_precision = TokensPrecision::kFloat32;
  EmptyMask empty_mask = EmptyMask::kZero;  // compat: kNan unless set
  bool train_pre_encode = false;            // mask_position post_conv: gradients into subsampling
  BatchNormFrames batch_norm_frames = BatchNormFrames::kPadded;
  bool operator==(const NestAerieConfig&) const = default;
};

struct RunConfig {
  std::string name;
  TrainerConfig trainer;
  ExpManagerConfig exp_manager;
  InitFromConfig init_from;
  NestAerieConfig aerie;
  ModelConfig model;

  // What the training loop reads of it.
  LoopConfig loop() const;
  bool operator==(const RunConfig&) const = default;
};

}  // namespace aerie::config
