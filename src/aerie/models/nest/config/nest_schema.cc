#include "aerie/models/nest/config/nest_schema.h"

#include "aerie/config/schema/field_keys.h"
#include "aerie/data/speech/config/speech_schema.h"
#include "aerie/models/nest/config/nest_keys.h"

namespace aerie::config {
namespace {

const FieldKeys<NestAerieConfig>& own_keys() {
  using T = NestAerieConfig;
  static const FieldKeys<T> table("aerie", [](FieldKeys<T>& keys) {
    keys.choice("tokens_precision", &T::tokens_precision,
                {{"float32", TokensPrecision::kFloat32}, {"autocast", TokensPrecision::kAutocast}},
                works("Precision of the quantizer's projection; `autocast` is NeMo's and makes "
                      "targets depend on "
                      "trainer.precision."));
    keys.choice(
        "empty_mask", &T::empty_mask, {{"zero", EmptyMask::kZero}, {"nan", EmptyMask::kNan}},
        works("Loss of a batch in which nothing is masked; null: zero, or nan under compat.")
            .absent_is_null());
    keys.key("train_pre_encode", &T::train_pre_encode,
             works("mask_position post_conv: let gradients reach the subsampling stack (NeMo cuts "
                   "them off)."));
    keys.choice("batch_norm_frames", &T::batch_norm_frames,
                {{"padded", BatchNormFrames::kPadded}, {"valid", BatchNormFrames::kValid}},
                works("Frames that enter BatchNorm statistics: all up to the padded length as in "
                      "NeMo, or valid "
                      "ones only."));
  });
  return table;
}

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
  const std::span<const KeySpec> own = own_keys().rows();
  parts.insert_after("aerie.engine", own.first(1));
  parts.insert_after("aerie.ignore_missing_checkpoints", own.subspan(1));
  add_speech_keys(parts);
  parts.insert_before("model.optim_param_groups", model_fields().rows());
  parts.insert_after("model.optim_param_groups.*.amsgrad", model_part_fields().rows());
  for (KeyGroup& group : parts.groups)
    if (group.title == "model")
      group.intro =
          "NeMo's model node. `_target_` names a built-in component in any of NeMo's "
          "spellings; nothing else can be named.";
  const std::span<const KeySpec> encoder = encoder_fields().rows();
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

void build_aerie_nest(const NodeReader& aerie, NestAerieConfig& out) {
  if (aerie.given("compat")) out.empty_mask = EmptyMask::kNan;
  own_keys().read(aerie, out);
}

const Schema& nest_schema() {
  static const Schema kSchema(nest_parts());
  return kSchema;
}

}  // namespace aerie::config
