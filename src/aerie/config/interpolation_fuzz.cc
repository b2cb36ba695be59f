// Text as interpolations of a small config: no crash, bounded work, no interpolation left.
#include <cstdlib>

#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"

namespace {

bool has_interpolation(const aerie::config::Value& value) {
  if (value.is_interpolation()) return true;
  if (value.is_list()) {
    for (const auto& item : value.as_list()) {
      if (has_interpolation(item)) return true;
    }
  } else if (value.is_map()) {
    for (const auto& entry : value.as_map()) {
      if (has_interpolation(entry.value)) return true;
    }
  }
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::config;
  Value config = parse_yaml(
                     "a: 10\ns: text\nn: null\nm: '\?\?\?'\nl: [1, two, {x: 3}]\nkey: a\n"
                     "d: {p: 1, q: {r: '${.u}', u: 5, v: '${..p}', w: '${...a}'}}\n"
                     "ref: ${d}\nk: {}\n",
                     "base.yaml")
                     .value();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  int number = 0;
  for (const std::string& line : aerie::split(text, '\n')) {
    if (number >= 40) break;
    (void)config.set(aerie::str_cat("k.z", number++), Value::from_text(line));
  }
  ResolveOptions options;
  options.max_nodes = 20'000;
  options.max_text_bytes = 1u << 20;
  options.env = [](const std::string& name) {
    return name == "E" ? std::optional<std::string>("[1, ${a}, {b: '${k.z1}'}]") : std::nullopt;
  };
  const auto resolved = resolve_all(config, options);
  if (resolved.ok() && has_interpolation(resolved.value())) std::abort();
  for (int i = 0; i < number; ++i) {
    (void)resolve_at(config, aerie::str_cat("k.z", i), options);
  }
  return 0;
}
