// Python configurations and options: no crash, bounded depth, and what was read can be written.
#include <cstdio>
#include <cstdlib>

#include "aerie/config/dialects/mm/options.h"
#include "aerie/config/dialects/mm/py_reader.h"
#include "aerie/config/yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  mm::ReadBudget budget;
  budget.nodes = 20'000;
  budget.text_bytes = 1u << 20;
  const auto config = mm::parse_py(text, "fuzz.py", budget);
  if (config.ok()) {
    if (config->depth() > kMaxDepth + 1) std::abort();
    const auto yaml = emit_yaml(*config);
    if (yaml.ok() && !parse_yaml(*yaml, "again.yaml").ok()) {
      std::fprintf(stderr, "py_reader_fuzz: cannot be read back:\n%s\n", yaml->c_str());
      std::abort();
    }
    (void)mm::parse_py_expression(text, "fuzz", &*config, budget);
  }
  const auto value = mm::parse_option_value(text.substr(0, 4096));
  if (value.ok() && value->depth() > kMaxDepth) std::abort();
  return 0;
}
