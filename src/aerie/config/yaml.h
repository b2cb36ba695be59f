// YAML to and from the configuration tree, with the typing rules of NeMo's loader: YAML 1.1 as
// PyYAML reads it (yes/no/on/off are bools, 012 is 10, 1:30 is 90), OmegaConf's wider floats
// (1e-3), dates and 0o17 left strings. Nothing a file says can run code, and limits keep a hostile
// file from taking more memory than a small multiple of its size.
#pragma once

#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct YamlLimits {
  size_t max_bytes = 16u << 20;
  int max_depth = kMaxDepth;
  // Values in the tree, counting each use of an alias: the bound on "billion laughs".
  size_t max_nodes = 500'000;
  // Text in the tree, counted the same way.
  size_t max_text_bytes = 64u << 20;
};

// One document. `name` is what origins and messages call the text. An empty document is null.
// Errors are kInvalidArgument: "nest.yaml:12:5: found duplicate key 'lr' (first at line 9)".
Result<Value> parse_yaml(std::string_view text, std::string_view name,
                         const YamlLimits& limits = {});
// kNotFound when there is no such file.
Result<Value> load_yaml(const std::string& path, const YamlLimits& limits = {});

// As OmegaConf.to_yaml writes it (PyYAML block style, keys in order): reading it back gives the
// same kinds and values. A resolved string that contains `${` is escaped so that it stays a string.
// Fails only on text that is not UTF-8.
Result<std::string> emit_yaml(const Value& value);

}  // namespace aerie::config
