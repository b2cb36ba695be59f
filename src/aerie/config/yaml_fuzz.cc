// Whatever the bytes: no crash, bounded work; what is read can be written, and reads back the same.
#include <cstdio>
#include <cstdlib>

#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"

namespace {

void require(bool condition, const char* what, const std::string& text) {
  if (condition) return;
  std::fprintf(stderr, "yaml_fuzz: %s\n%s\n", what, text.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::config;
  YamlLimits limits;
  limits.max_nodes = 20'000;
  limits.max_text_bytes = 1u << 20;
  const auto tree =
      parse_yaml(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz.yaml", limits);
  if (!tree.ok()) return 0;
  require(tree->depth() <= kMaxDepth, "too deep", "");
  const auto text = emit_yaml(tree.value());
  require(text.ok(), "cannot be written", text.status().to_string());
  const auto again = parse_yaml(text.value(), "again.yaml");
  require(again.ok(), again.ok() ? "" : again.status().to_string().c_str(), text.value());
  require(again.value() == tree.value(), "reads back differently", text.value());

  ResolveOptions options;
  options.max_nodes = 20'000;
  options.max_text_bytes = 1u << 20;
  options.env = [](const std::string&) { return std::optional<std::string>(); };
  const auto resolved = resolve_all(tree.value(), options);
  if (resolved.ok()) {
    require(resolved->depth() <= kMaxDepth + 1, "resolved too deep", "");
    require(emit_yaml(resolved.value()).ok(), "resolved cannot be written", "");
  }
  return 0;
}
