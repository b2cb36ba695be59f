#include "aerie/config/schema/targets.h"

#include "aerie/base/strings.h"

namespace aerie::config {

std::span<const TargetClass> target_classes() {
  constexpr std::string_view kModules = "nemo.collections.asr.modules";
  constexpr std::string_view kSsl = "nemo.collections.asr.modules.ssl_modules";
  constexpr std::string_view kAudio = "nemo.collections.asr.modules.audio_preprocessing";
  constexpr std::string_view kMixing = "nemo.collections.asr.modules.ssl_modules.augmentation";
  static const std::vector<TargetClass> kClasses = {
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
      {"model.<ds>.batch_augmentor", "MultiSpeakerNoiseAugmentation", {kSsl, kModules, kMixing}},
      {"model.<ds>.batch_augmentor", "SpeakerNoiseAugmentation", {kSsl, kModules, kMixing}},
      {"model.optim", "AdamW", {"torch.optim", "torch.optim.adamw"}},
      {"model.optim", "Adam", {"torch.optim", "torch.optim.adam"}},
      {"model.optim", "SGD", {"torch.optim", "torch.optim.sgd"}},
      {"model.optim",
       "Novograd",
       {"nemo.core.optim.novograd", "nemo.core.optim", "nemo.core.optim.optimizers"}},
      {"trainer.strategy",
       "DDPStrategy",
       {"lightning.pytorch.strategies", "lightning.pytorch.strategies.ddp",
        "pytorch_lightning.strategies", "pytorch_lightning.strategies.ddp"}},
      {"trainer.strategy",
       "SingleDeviceStrategy",
       {"lightning.pytorch.strategies", "lightning.pytorch.strategies.single_device",
        "pytorch_lightning.strategies", "pytorch_lightning.strategies.single_device"}},
  };
  return kClasses;
}

std::string_view find_target(std::string_view node, std::string_view spelling) {
  for (const TargetClass& entry : target_classes()) {
    if (entry.node != node) continue;
    for (const std::string_view module : entry.modules)
      if (spelling == str_cat(std::string(module), ".", std::string(entry.class_name)))
        return entry.class_name;
  }
  return {};
}

std::vector<std::string> known_targets(std::string_view node) {
  std::vector<std::string> names;
  for (const TargetClass& entry : target_classes())
    if (entry.node == node)
      names.push_back(
          str_cat(std::string(entry.modules.front()), ".", std::string(entry.class_name)));
  return names;
}

}  // namespace aerie::config
