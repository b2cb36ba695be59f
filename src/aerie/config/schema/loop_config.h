// What the training loop and everything around it read of a configuration, whatever is trained. The
// configuration of a model family contains it, or gives it.
#pragma once

#include <string>
#include <vector>

#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::config {

// init_from_nemo_model | init_from_pretrained_model | init_from_ptl_ckpt (at most one).
struct InitSource {
  std::string label;  // key of the mapping form; empty for the string form
  std::string path;
  std::vector<std::string> include;  // empty: everything
  std::vector<std::string> exclude;
  bool operator==(const InitSource&) const = default;
};
struct InitFromConfig {
  enum class Kind { kNone, kNemoModel, kPtlCkpt };
  Kind kind = Kind::kNone;
  std::vector<InitSource> sources;
  bool init_strict = true;
  bool operator==(const InitFromConfig&) const = default;
};

struct LoopConfig {
  std::string name;
  TrainerConfig trainer;
  ExpManagerConfig exp_manager;
  InitFromConfig init_from;
  AerieConfig aerie;
  bool operator==(const LoopConfig&) const = default;
};

}  // namespace aerie::config
