#include "aerie/models/nest/config/nest_schema.h"

#include "aerie/data/speech/config/speech_schema.h"
#include "aerie/models/nest/config/nest_keys.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;

constexpr KeySpec kTokens[] = {
    {"aerie.tokens_precision", "str", "float32", "", "float32|autocast", kWorks,
     "Precision of the quantizer's projection; `autocast` is NeMo's and makes targets depend on "
     "trainer.precision."},
};

constexpr KeySpec kMasksAndNorms[] = {
    {"aerie.empty_mask", "str|null", "null", "", "zero|nan", kWorks,
     "Loss of a batch in which nothing is masked; null: zero, or nan under compat."},
    {"aerie.train_pre_encode", "bool", "false", "", "", kWorks,
     "mask_position post_conv: let gradients reach the subsampling stack (NeMo cuts them off)."},
    {"aerie.batch_norm_frames", "str", "padded", "", "padded|valid", kWorks,
     "Frames that enter BatchNorm statistics: all up to the padded length as in NeMo, or valid "
     "ones only."},
};

std::vector<TargetClass> model_targets() {
  constexpr std::string_view kModules = "nemo.collections.asr.modules";
  constexpr std::string_view kSsl = "nemo.collections.asr.modules.ssl_modules";
  constexpr std::string_view kAudio = "nemo.collections.asr.modules.audio_preprocessing";
  return {
      {"model.preprocessor", "AudioToMelSpectrogramPreprocessor", {kModules, kAudio}},
      {"model.spec_augment", "SpectrogramAugmentation", {kModules, kAudio}},
      {"model.masking",
       "RandomBlockMasking",
       {kModules, kSsl, "nemo.collections.asr.modules.ssl_modules.masking"}},
      {"model.quantizer",
       "RandomProjectionVectorQuantizer",
       {kModules, kSsl, "nemo.collections.asr.modules.ssl_modules.quantizers"}},
      {"model.encoder",
       "ConformerEncoder",
       {kModules, "nemo.collections.asr.modules.conformer_encoder"}},
      {"model.decoder",
       "MultiSoftmaxDecoder",
       {kModules, kSsl, "nemo.collections.asr.modules.ssl_modules.multi_softmax_decoder"}},
      {"model.loss",
       "MultiMLMLoss",
       {"nemo.collections.asr.losses", "nemo.collections.asr.losses.ssl_losses",
        "nemo.collections.asr.losses.ssl_losses.mlm"}},
  };
}

SchemaParts nest_parts() {
  SchemaParts parts = engine_schema();
  parts.insert_after("aerie.engine", kTokens);
  parts.insert_after("aerie.ignore_missing_checkpoints", kMasksAndNorms);
  add_speech_keys(parts);
  parts.insert_before("model.optim_param_groups", model_keys());
  parts.insert_after("model.optim_param_groups.*.amsgrad", model_part_keys());
  for (KeyGroup& group : parts.groups)
    if (group.title == "model")
      group.intro =
          "NeMo's model node. `_target_` names a built-in component in any of NeMo's "
          "spellings; nothing else can be named.";
  const std::span<const KeySpec> encoder = encoder_keys();
  parts.insert_group("model.train_ds, model.validation_ds, model.test_ds",
                     {"model.encoder", "", {encoder.begin(), encoder.end()}});
  const std::vector<TargetClass> targets = model_targets();
  parts.targets.insert(parts.targets.end(), targets.begin(), targets.end());
  // The model's findings come first, the optimizer's and the trainer's last.
  parts.checks.insert(parts.checks.begin() + 1, {check_model, check_datasets});
  const std::span<const IdleRule> rules = model_idle_rules();
  parts.idle_rules.insert(parts.idle_rules.end(), rules.begin(), rules.end());
  parts.model_parts =
      "preprocessor|encoder|quantizer|mask_processor|decoder|loss|pre_encoder|decoder_ssl";
  parts.model_parts_hint = "parts with parameters are encoder and decoder";
  return parts;
}

}  // namespace

const Schema& nest_schema() {
  static const Schema kSchema(nest_parts());
  return kSchema;
}

}  // namespace aerie::config
