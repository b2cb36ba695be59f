// From the keys of mm-style configurations (mmcv, mmseg, BEVFusion) to our own: what `aerie config
// convert` writes, and what a run of a .py file is checked and built from.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"

namespace aerie::bev {

struct TranslateOptions {
  std::string name;            // of the experiment: the file's, without its ending
  bool allow_unknown = false;  // unknown keys are warnings
  // Top-level names that other values use: they need no meaning of their own.
  const std::set<std::string>* names_read = nullptr;
  // They were put in before options of the command line changed them; expressions of YAML are
  // evaluated behind those.
  bool names_came_first = false;
};

struct Translation {
  config::Value native;            // a map of our own keys; values keep their origins
  config::Findings findings;       // unknown keys, values that have no counterpart
  std::vector<std::string> notes;  // known keys that change nothing here
};

// Whether a tree is of mm-style keys: it has a runner, an optimizer or data at its top.
bool is_mm_tree(const config::Value& tree);

Translation translate_mm(const config::Value& tree, const TranslateOptions& options);

}  // namespace aerie::bev
