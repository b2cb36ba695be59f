// `_target_`: which class names stand for which built-in component. Nothing outside these lists can
// be named, so a config cannot make aerie run anything else. Each schema has its own list.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace aerie::config {

struct TargetClass {
  std::string_view node;        // "model.encoder", "model.<ds>.batch_augmentor", ...
  std::string_view class_name;  // "ConformerEncoder"
  // Python modules that export it; "<module>.<class_name>" is a spelling.
  std::vector<std::string_view> modules;
};

// The class a spelling means at this schema node, or empty.
std::string_view find_target(std::span<const TargetClass> classes, std::string_view node,
                             std::string_view spelling);
// Main spelling of every class known at the node, for messages.
std::vector<std::string> known_targets(std::span<const TargetClass> classes, std::string_view node);

}  // namespace aerie::config
