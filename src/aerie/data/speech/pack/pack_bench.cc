// Reading a packed cache in random order, in seconds of audio per second of one core. The batch
// buffer stands for what a loader fills: int16 as stored, or float32.
#include <cstring>
#include <vector>

#include <benchmark/benchmark.h>

#include "aerie/base/philox.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/pack/pack_store.h"
#include "aerie/data/pack/pack_writer.h"
#include "aerie/data/speech/pack/audio_pack.h"
#include "aerie/data/speech/pack/pack_reader.h"

namespace aerie::data {
namespace {

constexpr int kSamples = 256;
constexpr double kSeconds = 15.0;

PackKey key_of(int i) {
  return pack_key(str_cat("sample", i), 0.0, 0.0, audio::ChannelSelector::all());
}

std::shared_ptr<const PackSet> make_set(const std::string& dir, PackEncoding encoding, int count) {
  PackWriterOptions options;
  options.dir = dir;
  options.encoding = encoding;
  auto writer = PackWriter::create(options);
  AERIE_CHECK(writer.ok(), writer.status().to_string());
  std::vector<float> samples(static_cast<size_t>(kSeconds * 16000));
  for (int i = 0; i < count; ++i) {
    RandomStream random(static_cast<uint64_t>(i), Purpose::kTest, 0, 0);
    float low = 0.0f;
    for (float& x : samples) {
      low = 0.9f * low + 0.1f * random.normal();
      x = 0.2f * low;
    }
    audio::AudioView view;
    view.samples = samples.data();
    view.frames = static_cast<int64_t>(samples.size());
    view.sample_rate = 16000;
    PackItem item;
    item.key = key_of(i);
    AERIE_CHECK(encode_pack_item(view, encoding, &item).ok(), "encode");
    AERIE_CHECK((*writer)->append(item).ok(), "append");
  }
  AERIE_CHECK((*writer)->finish().ok(), "finish");
  return *PackSet::open(dir, {});
}

void read_pack(benchmark::State& state, PackEncoding encoding, bool verify, bool floats) {
  static const TempDir dir;
  static const auto pcm = make_set(dir.file("pcm"), PackEncoding::kPcm16, kSamples);
  static const auto flac = make_set(dir.file("flac"), PackEncoding::kFlac, 16);
  const auto& set = encoding == PackEncoding::kFlac ? flac : pcm;
  PackReader::Options options;
  options.verify = verify;
  PackReader reader(set, options);
  std::vector<float> batch(static_cast<size_t>(kSeconds * 16000));
  uint64_t i = 0;
  for (auto _ : state) {
    i = (i + 149) % set->size();
    const auto view = reader.read(*set->find(key_of(static_cast<int>(i))));
    AERIE_CHECK(view.ok(), view.status().to_string());
    if (floats)
      view->copy_to(batch.data());
    else
      std::memcpy(batch.data(), view->pcm16, static_cast<size_t>(view->frames) * 2);
    benchmark::DoNotOptimize(batch.data());
    benchmark::ClobberMemory();
  }
  state.counters["audio_s_per_s"] = benchmark::Counter(
      kSeconds * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kSeconds * 32000));
}

BENCHMARK_CAPTURE(read_pack, pcm16_to_int16, PackEncoding::kPcm16, false, false);
BENCHMARK_CAPTURE(read_pack, pcm16_to_int16_verified, PackEncoding::kPcm16, true, false);
BENCHMARK_CAPTURE(read_pack, pcm16_to_float_verified, PackEncoding::kPcm16, true, true);
BENCHMARK_CAPTURE(read_pack, flac_to_int16_verified, PackEncoding::kFlac, true, false);

}  // namespace
}  // namespace aerie::data

BENCHMARK_MAIN();
