// Decoding speed per codec, in seconds of audio per second of one core (audio_s_per_s). libFLAC
// alone and libsndfile alone stand beside our paths, on the same bytes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <FLAC/stream_decoder.h>
#include <benchmark/benchmark.h>
#include <sndfile.h>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/philox.h"
#include "aerie/base/temp_dir.h"

namespace aerie::audio {
namespace {

constexpr double kSeconds = 15.0;

// A slowly modulated, low-passed noise: compresses about as speech does.
std::vector<float> speech_like(int rate) {
  std::vector<float> out(static_cast<size_t>(kSeconds * rate));
  RandomStream random(1, Purpose::kTest, 0, 0);
  float low = 0.0f;
  for (size_t i = 0; i < out.size(); ++i) {
    low = 0.9f * low + 0.1f * random.normal();
    const double t = static_cast<double>(i) / rate;
    const double envelope = 0.05 + 0.3 * std::pow(std::sin(2.0 * t), 2.0);
    out[i] = static_cast<float>(envelope * (0.5 * std::sin(900.0 * t) + low));
  }
  return out;
}

std::string make_file(const TempDir& dir, const std::string& name, int format, int rate) {
  SF_INFO info{};
  info.samplerate = rate;
  info.channels = 1;
  info.format = format;
  const std::string path = dir.file(name);
  SNDFILE* file = sf_open(path.c_str(), SFM_WRITE, &info);
  AERIE_CHECK(file != nullptr, "cannot write ", path);
  const std::vector<float> samples = speech_like(rate);
  // libsndfile's Vorbis encoder overflows its stack on one huge write.
  for (size_t at = 0; at < samples.size(); at += 8192)
    sf_writef_float(file, samples.data() + at,
                    static_cast<sf_count_t>(std::min<size_t>(8192, samples.size() - at)));
  sf_close(file);
  return path;
}

const TempDir& bench_dir() {
  static const TempDir dir;
  return dir;
}

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void report(benchmark::State& state, int64_t bytes) {
  state.counters["audio_s_per_s"] = benchmark::Counter(
      kSeconds * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  state.SetBytesProcessed(state.iterations() * bytes);
}

enum class From { kFile, kMemory, kFileInt16, kSegment };

void read_codec(benchmark::State& state, const char* name, int format, int rate, From from) {
  const std::string path = make_file(bench_dir(), name, format, rate);
  const std::vector<uint8_t> bytes = read_bytes(path);
  ReadOptions options;
  options.prefer_int16 = from == From::kFileInt16;
  AudioReader reader(options);
  for (auto _ : state) {
    const Result<AudioView> view =
        from == From::kMemory ? reader.read_memory(bytes, name) : reader.read_file(path);
    AERIE_CHECK(view.ok(), view.status().to_string());
    benchmark::DoNotOptimize(view->samples);
  }
  report(state, static_cast<int64_t>(bytes.size()));
}

// libFLAC with a callback that keeps the samples as it gives them.
struct BareFlac {
  const std::vector<uint8_t>* bytes;
  size_t at = 0;
  std::vector<FLAC__int32> samples;
};

void read_libflac_alone(benchmark::State& state) {
  const std::vector<uint8_t> bytes =
      read_bytes(make_file(bench_dir(), "bare.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 16000));
  BareFlac bare{&bytes, 0, {}};
  bare.samples.resize(static_cast<size_t>(kSeconds * 16000));
  FLAC__StreamDecoder* decoder = FLAC__stream_decoder_new();
  for (auto _ : state) {
    bare.at = 0;
    size_t written = 0;
    struct Both {
      BareFlac* bare;
      size_t* written;
    } both{&bare, &written};
    FLAC__stream_decoder_init_stream(
        decoder,
        [](const FLAC__StreamDecoder*, FLAC__byte* out, size_t* n, void* client) {
          BareFlac& self = *static_cast<Both*>(client)->bare;
          *n = std::min(*n, self.bytes->size() - self.at);
          std::memcpy(out, self.bytes->data() + self.at, *n);
          self.at += *n;
          return *n > 0 ? FLAC__STREAM_DECODER_READ_STATUS_CONTINUE
                        : FLAC__STREAM_DECODER_READ_STATUS_END_OF_STREAM;
        },
        nullptr, nullptr, nullptr, nullptr,
        [](const FLAC__StreamDecoder*, const FLAC__Frame* frame, const FLAC__int32* const* in,
           void* client) {
          Both& self = *static_cast<Both*>(client);
          std::memcpy(self.bare->samples.data() + *self.written, in[0],
                      frame->header.blocksize * sizeof(FLAC__int32));
          *self.written += frame->header.blocksize;
          return FLAC__STREAM_DECODER_WRITE_STATUS_CONTINUE;
        },
        nullptr, [](const FLAC__StreamDecoder*, FLAC__StreamDecoderErrorStatus, void*) {}, &both);
    FLAC__stream_decoder_process_until_end_of_stream(decoder);
    FLAC__stream_decoder_finish(decoder);
    benchmark::DoNotOptimize(bare.samples.data());
  }
  FLAC__stream_decoder_delete(decoder);
  report(state, static_cast<int64_t>(bytes.size()));
}

void read_libsndfile_alone(benchmark::State& state, const char* name, int format) {
  const std::string path = make_file(bench_dir(), name, format, 16000);
  std::vector<float> samples(static_cast<size_t>(kSeconds * 16000));
  for (auto _ : state) {
    SF_INFO info{};
    SNDFILE* file = sf_open(path.c_str(), SFM_READ, &info);
    sf_readf_float(file, samples.data(), static_cast<sf_count_t>(samples.size()));
    sf_close(file);
    benchmark::DoNotOptimize(samples.data());
  }
  report(state, 0);
}

const int kWav16 = SF_FORMAT_WAV | SF_FORMAT_PCM_16;
const int kFlac16 = SF_FORMAT_FLAC | SF_FORMAT_PCM_16;

BENCHMARK_CAPTURE(read_codec, wav16_file, "a.wav", kWav16, 16000, From::kFile);
BENCHMARK_CAPTURE(read_codec, wav16_file_int16, "b.wav", kWav16, 16000, From::kFileInt16);
BENCHMARK_CAPTURE(read_codec, wav16_memory, "c.wav", kWav16, 16000, From::kMemory);
BENCHMARK_CAPTURE(read_codec, wav24_file, "d.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_24, 16000,
                  From::kFile);
BENCHMARK_CAPTURE(read_codec, wavf32_file, "e.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000,
                  From::kFile);
BENCHMARK_CAPTURE(read_libsndfile_alone, wav16, "f.wav", kWav16);
BENCHMARK_CAPTURE(read_codec, flac16_file, "a.flac", kFlac16, 16000, From::kFile);
BENCHMARK_CAPTURE(read_codec, flac16_file_int16, "b.flac", kFlac16, 16000, From::kFileInt16);
BENCHMARK_CAPTURE(read_codec, flac16_memory, "c.flac", kFlac16, 16000, From::kMemory);
BENCHMARK(read_libflac_alone);
BENCHMARK_CAPTURE(read_libsndfile_alone, flac16, "d.flac", kFlac16);
BENCHMARK_CAPTURE(read_codec, vorbis_file, "a.ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 16000,
                  From::kFile);
BENCHMARK_CAPTURE(read_codec, opus_file, "b.ogg", SF_FORMAT_OGG | SF_FORMAT_OPUS, 16000,
                  From::kFile);
BENCHMARK_CAPTURE(read_codec, mp3_file, "a.mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 16000,
                  From::kFile);
BENCHMARK_CAPTURE(read_codec, wav16_48k_to_16k, "g.wav", kWav16, 48000, From::kFile);
BENCHMARK_CAPTURE(read_codec, wav16_8k_to_16k, "h.wav", kWav16, 8000, From::kFile);

}  // namespace
}  // namespace aerie::audio

BENCHMARK_MAIN();
