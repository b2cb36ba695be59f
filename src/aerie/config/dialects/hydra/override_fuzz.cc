// Lines of overrides, applied to a small config: no crash, bounded depth, the result can be
// written.
#include <cstdio>
#include <cstdlib>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/hydra/override.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::config;
  static const Value base = parse_yaml(
                                "a: 10\ns: text\nn: null\nm: '\?\?\?'\nl: [1, two, {x: 3}]\n"
                                "d: {p: 1, q: {r: 5, u: [1, 2]}}\ne: {}\nref: ${d}\nsref: ${a}\n",
                                "base.yaml")
                                .value();
  Value config = base;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string& line : aerie::split(text, '\n')) {
    const auto override = parse_override(line);
    if (!override.ok()) continue;
    if (override->value && override->value->depth() > kMaxDepth) std::abort();
    const bool struct_mode = line.size() % 2 == 0;
    if (!apply_override(config, override.value(), struct_mode).ok()) continue;
    if (config.depth() > kMaxDepth + 1) {
      std::fprintf(stderr, "override_fuzz: depth %d after %s\n", config.depth(), line.c_str());
      std::abort();
    }
  }
  ResolveOptions options;
  options.max_nodes = 20'000;
  options.max_text_bytes = 1u << 20;
  options.env = [](const std::string&) { return std::optional<std::string>(); };
  (void)resolve_all(config, options);
  const auto yaml = emit_yaml(config);
  if (yaml.ok() && !parse_yaml(yaml.value(), "again.yaml").ok()) {
    std::fprintf(stderr, "override_fuzz: cannot be read back:\n%s\n", yaml->c_str());
    std::abort();
  }
  return 0;
}
