// Indexing an archive of many small members, opening the cached index, and reading at random.
#include <fstream>
#include <vector>

#include <benchmark/benchmark.h>

#include "aerie/base/temp_dir.h"
#include "aerie/tar/sample_key.h"
#include "aerie/tar/tar_archive.h"
#include "aerie/tar/tar_writer.h"

namespace aerie::tar {
namespace {

constexpr int kMembers = 50'000;
constexpr size_t kMemberBytes = 4000;

const TempDir& dir() {
  static const TempDir dir;
  return dir;
}

const std::string& archive_path() {
  static const std::string path = [] {
    std::string name = dir().file("bench.tar");
    std::ofstream out(name, std::ios::binary);
    TarWriter writer([&](std::span<const uint8_t> data) {
      out.write(reinterpret_cast<const char*>(data.data()), static_cast<int64_t>(data.size()));
      return ok_status();
    });
    const std::vector<uint8_t> bytes(kMemberBytes, 7);
    for (int i = 0; i < kMembers; ++i)
      AERIE_CHECK(writer.add(str_cat("data_set_speaker_", i, ".flac"), bytes).ok(), "add");
    AERIE_CHECK(writer.finish().ok(), "finish");
    return name;
  }();
  return path;
}

void build_index(benchmark::State& state) {
  for (auto _ : state) {
    const Result<TarIndex> index = TarIndex::build(archive_path());
    AERIE_CHECK(index.ok() && index->size() == kMembers, "index");
  }
  state.SetItemsProcessed(state.iterations() * kMembers);
}
BENCHMARK(build_index)->Unit(benchmark::kMillisecond);

void open_cached_index(benchmark::State& state) {
  AERIE_CHECK(TarIndex::open(archive_path(), dir().file("cache")).ok(), "index");
  for (auto _ : state) {
    bool cached = false;
    const Result<TarIndex> index = TarIndex::open(archive_path(), dir().file("cache"), {}, &cached);
    AERIE_CHECK(index.ok() && cached, "index");
  }
  state.SetItemsProcessed(state.iterations() * kMembers);
}
BENCHMARK(open_cached_index)->Unit(benchmark::kMillisecond);

void group(benchmark::State& state) {
  const Result<TarIndex> index = TarIndex::open(archive_path(), dir().file("cache"));
  for (auto _ : state) {
    const auto samples = group_samples(*index);
    AERIE_CHECK(samples.ok(), "group");
    benchmark::DoNotOptimize(samples->data());
  }
  state.SetItemsProcessed(state.iterations() * kMembers);
}
BENCHMARK(group)->Unit(benchmark::kMillisecond);

void read_member(benchmark::State& state) {
  const auto archive = TarArchive::open(archive_path(), dir().file("cache"));
  std::vector<uint8_t> bytes;
  size_t i = 0;
  for (auto _ : state) {
    i = (i + 10'007) % kMembers;
    AERIE_CHECK((*archive)->read(i, &bytes).ok(), "read");
    benchmark::DoNotOptimize(bytes.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(read_member);

}  // namespace
}  // namespace aerie::tar

BENCHMARK_MAIN();
