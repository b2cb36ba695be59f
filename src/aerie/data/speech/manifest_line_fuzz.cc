// Fuzzes one manifest line, and a whole manifest made of the input.
#include <cstdint>
#include <string_view>

#include "aerie/base/testing/mem_env.h"
#include "aerie/data/speech/manifest.h"
#include "aerie/data/speech/manifest_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie;
  using namespace aerie::data;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static ManifestLineParser parser;
  ManifestLine line;
  (void)parser.parse(text, line);

  static FakeClock clock;
  static const std::unique_ptr<Env> env = new_mem_env(clock);
  if (!env->write_file("/m.json", text).ok()) return 0;
  ManifestOptions options;
  options.env = env.get();
  options.skip_bad_lines = true;
  options.use_index_cache = false;
  options.quiet = true;
  const Result<Manifest> manifest = Manifest::open({"/m.json"}, options);
  if (!manifest.ok()) return 0;
  for (uint64_t i = 0; i < manifest->size(); ++i) {
    (void)manifest->resolve_paths(i);
    (void)manifest->raw_line(i);
  }
  return 0;
}
