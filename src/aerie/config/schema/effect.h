// Keys that are accepted and change nothing on this run: what one device, the CPU or another key
// makes idle, and what has no meaning here at all. `aerie config show` marks them; a run names
// those that a user may have expected something of.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "aerie/config/value.h"

namespace aerie::config {

class Schema;
struct Situation;  // checks.h

// A rule covers its key and all below it, and is judged whatever the value.
struct IdleRule {
  std::string_view key;  // as rows spell it: `model.<ds>` stands for every data set
  bool (*idle)(const Situation&);
  std::string_view why;
};

struct IdleKey {
  std::string why;          // "one device"
  bool at_default = false;  // its value is what an absent key means
};

// By key; leaves of a resolved, valid configuration. Keys that are null say nothing and are left
// out. `num_gpus`: what this process sees.
std::map<std::string, IdleKey> keys_without_effect(const Schema& schema, const Value& resolved,
                                                   int num_gpus);

// "trainer.strategy, trainer.sync_batchnorm (one device); model.train_ds.labels (...)": those that
// are not at their default, grouped by reason. Empty: none.
std::string idle_keys_sentence(const std::map<std::string, IdleKey>& keys);

}  // namespace aerie::config
