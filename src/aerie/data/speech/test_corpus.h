// A small corpus on disk for tests: 16-bit WAV files with known samples, manifests, tar shards.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/speech/config/dataset_config.h"
#include "aerie/data/speech/config/speech_aerie_config.h"
#include "aerie/tar/tar_writer.h"

namespace aerie::data {

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string wav_bytes(const std::vector<int16_t>& samples, int rate = 16000,
                             int channels = 1) {
  const auto u32 = [](uint32_t v) { return std::string(reinterpret_cast<const char*>(&v), 4); };
  const auto u16 = [](uint16_t v) { return std::string(reinterpret_cast<const char*>(&v), 2); };
  const uint32_t data = static_cast<uint32_t>(samples.size() * 2);
  std::string out = "RIFF" + u32(36 + data) + "WAVEfmt " + u32(16) + u16(1) +
                    u16(static_cast<uint16_t>(channels)) + u32(static_cast<uint32_t>(rate)) +
                    u32(static_cast<uint32_t>(rate * channels * 2)) +
                    u16(static_cast<uint16_t>(channels * 2)) + u16(16) + "data" + u32(data);
  out.append(reinterpret_cast<const char*>(samples.data()), data);
  return out;
}

// Noise-like samples that depend on `seed` only.
inline std::vector<int16_t> noise_samples(int64_t n, uint64_t seed, double level = 3000) {
  std::vector<int16_t> out(static_cast<size_t>(n));
  RandomStream random(seed, Purpose::kTest, 9, 0);
  for (int16_t& sample : out) sample = static_cast<int16_t>(random.uniform(-level, level));
  return out;
}

class TestCorpus {
 public:
  // `count` utterances of 0.05 to 0.3 s at 16 kHz, listed with relative paths.
  explicit TestCorpus(int count, uint64_t seed = 1, bool durations = true) {
    std::string lines;
    RandomStream random(seed, Purpose::kTest, 8, 0);
    for (int i = 0; i < count; ++i) {
      const int64_t n = 800 + static_cast<int64_t>(random.below(4000));
      samples.push_back(noise_samples(n, seed * 1000 + static_cast<uint64_t>(i)));
      const std::string name = str_cat("utt", i, ".wav");
      write_file(dir.file(name), wav_bytes(samples.back()));
      lines += line(name, durations ? static_cast<double>(n) / 16000 : -1);
    }
    manifest = dir.file("train.json");
    write_file(manifest, lines);
  }

  static std::string line(const std::string& path, double duration_s, double offset_s = 0) {
    std::string out = str_cat("{\"audio_filepath\":\"", path, "\"");
    if (duration_s >= 0) out += str_cat(",\"duration\":", duration_s);
    if (offset_s > 0) out += str_cat(",\"offset\":", offset_s);
    return out + "}\n";
  }

  void add_noise(int count, int64_t length = 4000) {
    std::string lines;
    for (int i = 0; i < count; ++i) {
      const std::string name = str_cat("noise", i, ".wav");
      write_file(dir.file(name),
                 wav_bytes(noise_samples(length, 555 + static_cast<uint64_t>(i), 1000)));
      lines += line(name, static_cast<double>(length) / 16000);
    }
    noise = dir.file("noise.json");
    write_file(noise, lines);
  }

  // The utterances in `shards` tar files, with the manifest NeMo's converter would write.
  void make_tar(int shards) {
    std::string lines;
    tar_manifest = dir.file("tarred_audio_manifest.json");
    const size_t each = samples.size() / static_cast<size_t>(shards);
    for (int s = 0; s < shards; ++s) {
      std::string bytes;
      tar::TarWriter writer([&](std::span<const uint8_t> data) {
        bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
        return ok_status();
      });
      for (size_t i = static_cast<size_t>(s) * each;
           i < (s + 1 == shards ? samples.size() : static_cast<size_t>(s + 1) * each); ++i) {
        const std::string wav = wav_bytes(samples[i]);
        (void)writer.add(str_cat("utt", i, ".wav"),
                         {reinterpret_cast<const uint8_t*>(wav.data()), wav.size()});
        lines += line(str_cat("utt", i, ".wav"), static_cast<double>(samples[i].size()) / 16000);
      }
      (void)writer.finish();
      write_file(dir.file(str_cat("audio_", s, ".tar")), bytes);
    }
    write_file(tar_manifest, lines);
    tar_pattern = dir.file(str_cat("audio__OP_0..", shards - 1, "_CL_.tar"));
  }

  config::DatasetConfig config(int64_t batch_size) const {
    config::DatasetConfig out;
    out.manifest_filepath = paths(manifest);
    if (!noise.empty()) out.noise_manifest = paths(noise);
    out.batch_size = batch_size;
    out.shuffle = true;
    return out;
  }
  static config::PathList paths(const std::string& one) {
    config::PathList out;
    out.groups = {{one}};
    return out;
  }
  static config::SpeechAerieConfig aerie() {
    config::SpeechAerieConfig out;
    out.audio.min_audio_len_secs = 0.06;
    return out;
  }

  TempDir dir;
  std::string manifest, noise, tar_manifest, tar_pattern;
  std::vector<std::vector<int16_t>> samples;
};

}  // namespace aerie::data
