// Fuzzes one file of a small data set, a table, the cached index or the list of pictures: the first
// byte of the input says which, the rest replaces it or is spliced into it.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// The data set, written once; one file of it is another for each input.
class Playground {
 public:
  Playground() : env_(new_mem_env(clock_)) {
    (void)TestTables::make({"scene-0061", "scene-0103"}, 2).write(*env_, kTables);
    options_.root = "/data";
    options_.cache_dir = "/cache";
    options_.quiet = true;
    options_.threads = 1;
    (void)NuscenesIndex::open(*env_, options_);
    for (const std::string_view table : kTableNames) keep(table_path(kTables, table));
    const auto entries = env_->list_dir("/cache");
    for (const DirEntry& entry : *entries) keep("/cache/" + entry.name);
  }

  void run(uint8_t choice, uint8_t how, uint8_t place, std::string_view input) {
    const auto& [path, good] = files_[choice % files_.size()];
    std::string bytes(input);
    if (how % 2 == 1) {  // spliced in, writing over half as much
      const size_t at = (how << 8 | place) * good.size() / 65536;
      bytes = good;
      bytes.replace(at, input.size() / 2, input);
    }
    (void)env_->write_file(path, bytes);
    options_.use_cache = choice % files_.size() >= kTableNames.size();
    const auto index = NuscenesIndex::open(*env_, options_);
    if (index.ok()) read_all(*env_, **index);
    (void)env_->write_file(path, good);
  }

 private:
  static constexpr const char* kTables = "/data/v1.0-mini";
  void keep(const std::string& path) { files_.emplace_back(path, *env_->read_file(path)); }

  FakeClock clock_;
  std::unique_ptr<Env> env_;
  NuscenesIndex::Options options_;
  std::vector<std::pair<std::string, std::string>> files_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Playground playground;
  if (size < 3) return 0;
  playground.run(data[0], data[1], data[2], {reinterpret_cast<const char*>(data + 3), size - 3});
  return 0;
}
