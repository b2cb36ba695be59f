// aerie.data.cache_dir as the loader uses it: samples that are packed are read from there; with
// build_cache those that are not are added as they are read, so that the first epoch fills the
// cache.
//
// With build_cache a sample is delivered as the pack keeps it (16 bits) from the first time on, so
// that results do not depend on what happens to be packed already.
//
// Samples become readable when a shard is complete: publish() completes what was added so far and
// opens the folder anew; call it at the end of an epoch. Any number of processes may fill one
// folder. Threads: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/pack/pack_store.h"
#include "aerie/data/pack/pack_writer.h"
#include "aerie/data/speech/pack/audio_pack.h"
#include "aerie/data/speech/pack/pack_reader.h"

namespace aerie::data {

class PackCache {
 public:
  struct Options {
    std::string dir;
    std::string settings;
    int sample_rate = 16000;
    bool build = false;
    PackEncoding encoding = PackEncoding::kPcm16;
    uint64_t num_samples = 0;
    double total_s = 0.0;  // of all samples, for the estimate of the space needed
    bool quiet = false;
    Env* env = nullptr;
  };
  static Result<std::unique_ptr<PackCache>> open(const Options& options);
  ~PackCache();  // completes what was added

  // What can be read now; replaced by publish(). Compare version() to notice.
  std::shared_ptr<const PackSet> set() const;
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  bool fills() const { return options_.build; }
  bool building() const { return building_.load(std::memory_order_relaxed); }
  // True when sample i should be added (and has not been).
  bool wants(uint64_t i) const;
  // `view` in 16 bits of unit `scale` (quantize_pack_samples). Errors end the building with a
  // warning; training goes on.
  void add(uint64_t i, const PackKey& key, const std::string& name, const std::string& source_file,
           const audio::AudioView& view, float scale);
  // Also finds what other processes have added. Nothing to do when nothing is built.
  void publish();

 private:
  explicit PackCache(const Options& options);
  Status reopen();
  void check_space();
  void give_up(const Status& status);

  const Options options_;
  std::atomic<uint64_t> version_{0};
  std::atomic<bool> building_{false};
  mutable std::mutex mutex_;
  std::shared_ptr<const PackSet> set_;
  std::unique_ptr<PackWriter> writer_;
  std::vector<std::atomic<uint8_t>> added_;  // per sample
  uint64_t num_added_ = 0;
};

}  // namespace aerie::data
