#include "aerie/config/schema/targets.h"

#include "aerie/base/strings.h"
#include "aerie/config/schema/engine_keys.h"

namespace aerie::config {

std::span<const TargetClass> engine_targets() {
  static const std::vector<TargetClass> kClasses = {
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

std::string_view find_target(std::span<const TargetClass> classes, std::string_view node,
                             std::string_view spelling) {
  for (const TargetClass& entry : classes) {
    if (entry.node != node) continue;
    for (const std::string_view module : entry.modules)
      if (spelling == str_cat(std::string(module), ".", std::string(entry.class_name)))
        return entry.class_name;
  }
  return {};
}

std::vector<std::string> known_targets(std::span<const TargetClass> classes,
                                       std::string_view node) {
  std::vector<std::string> names;
  for (const TargetClass& entry : classes)
    if (entry.node == node)
      names.push_back(
          str_cat(std::string(entry.modules.front()), ".", std::string(entry.class_name)));
  return names;
}

}  // namespace aerie::config
