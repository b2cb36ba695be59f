// Fuzzes one table of a small data set: the input replaces the table that its first byte names, or
// is spliced into it. Also fuzzes the cached index and the list of files.
#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/testing/mem_env.h"
#include "aerie/data/nuscenes/tables/cbgs.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/splits.h"
#include "aerie/data/nuscenes/tables/test_tables.h"

namespace {

using namespace aerie;
using namespace aerie::nuscenes;

// Touches whatever an index can answer.
void read_all(Env& env, const NuscenesIndex& index) {
  SplitOptions split;
  split.split = "all";
  split.need_files = false;
  split.quiet = true;
  const auto samples = samples_of_split(env, index, split);
  if (!samples.ok()) return;
  (void)cbgs_entries(index, samples->samples, 1);
  for (const uint32_t sample : samples->samples) {
    (void)sample_frames(index, sample, ReferenceFrame::kLidar, true);
    for (int c = 0; c < kNumCameras; ++c) (void)index.path(index.camera(sample, c));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  static FakeClock clock;
  static const TestTables tables = TestTables::make({"scene-0061", "scene-0103"}, 2);
  const std::unique_ptr<Env> env = new_mem_env(clock);
  (void)tables.write(*env, "/data/v1.0-mini");
  NuscenesIndex::Options options;
  options.root = "/data";
  options.cache_dir = "/cache";
  options.quiet = true;
  options.threads = 1;
  std::string_view input(reinterpret_cast<const char*>(data + 3), size - 3);
  const size_t choice = data[0] % (kTableNames.size() + 2);
  if (choice >= kTableNames.size()) {
    // A file of the cache, written over at a place.
    (void)NuscenesIndex::open(*env, options);
    const auto entries = env->list_dir("/cache");
    if (!entries.ok() || entries->size() < 2) return 0;
    const std::string path = "/cache/" + (*entries)[choice - kTableNames.size()].name;
    std::string bytes = *env->read_file(path);
    const size_t at = (data[1] << 8 | data[2]) * bytes.size() / 65536;
    bytes.replace(at, input.size(), input);
    (void)env->write_file(path, bytes);
  } else {
    const std::string path = table_path("/data/v1.0-mini", kTableNames[choice]);
    const uint8_t how = data[1];
    if (how % 2 == 0) {
      (void)env->write_file(path, input);
    } else {
      std::string text = *env->read_file(path);
      const size_t at = (how << 8 | data[2]) * text.size() / 65536;
      text.replace(at, input.size() / 2, input);
      (void)env->write_file(path, text);
    }
    options.use_cache = false;
  }
  const auto index = NuscenesIndex::open(*env, options);
  if (index.ok()) read_all(*env, **index);
  return 0;
}
