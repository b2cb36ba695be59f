// Fills a packed cache from manifests, plain or tarred: what `aerie data pack` does.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/pack/audio_pack.h"

namespace aerie::data {

struct PackBuildOptions {
  std::vector<std::string> manifests;
  std::vector<std::string> tar_paths;  // expanded; the manifests then name members of these
  std::string out_dir;
  std::string index_dir;    // for manifest and archive indexes; empty: beside them
  audio::ReadOptions read;  // sample_rate must be set
  PackEncoding encoding = PackEncoding::kPcm16;
  uint64_t shard_bytes = uint64_t{1} << 30;
  std::optional<double> min_duration_s;
  std::optional<double> max_duration_s;
  bool skip_bad_lines = false;
  // More unreadable recordings than this share of all lines end the run, as in training.
  double max_bad_fraction = 0.01;
  int workers = 1;
};

struct PackBuildReport {
  uint64_t num_packed = 0;
  uint64_t num_reused = 0;   // were in the folder already
  uint64_t num_rounded = 0;  // of the packed ones, those that 16 bits do not hold exactly
  uint64_t num_bad = 0;
  std::vector<std::string> bad;  // the first 100, with their reasons
  uint64_t num_unmatched = 0;    // tarred: manifest lines without a member
  double packed_s = 0.0;
  uint64_t bytes = 0;
};

struct PackBuildHooks {
  std::function<void(uint64_t total)> on_start;
  std::function<void()> on_sample;  // any thread
  std::function<bool()> stop;       // true: finish the shard being written and return kCancelled
};

// Samples that the folder already holds (same key, same settings) are left alone, so that an
// interrupted run can be repeated. The result does not depend on `workers`.
Result<PackBuildReport> build_pack(const PackBuildOptions& options,
                                   const PackBuildHooks& hooks = {});

}  // namespace aerie::data
