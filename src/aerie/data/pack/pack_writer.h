// Writes a pack: a folder of shard files that appear under their names only when complete.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/pack/pack_format.h"

namespace aerie::data {

struct PackWriterOptions {
  std::string dir;  // made when absent
  PackEncoding encoding = PackEncoding::kPcm16;
  int sample_rate = 16000;                   // kBytes: 0
  std::string settings;                      // what shapes the samples, in lines name=value
  uint64_t shard_bytes = uint64_t{1} << 30;  // a new file is begun beyond this
  Env* env = nullptr;
};

// One sample ready to be stored.
struct PackItem {
  PackKey key;
  std::string name;  // for messages: "dir/a.wav@1.5+3"
  std::vector<uint8_t> bytes;
  uint64_t frames = 0;
  uint64_t data_hash = 0;
  float scale = kPackUnit;
  bool rounded = false;  // to 16 bits, from something finer
  PackSourceStamp source;
};

// An item of a kBytes pack: the bytes as they are.
PackItem bytes_pack_item(const PackKey& key, std::string name, std::vector<uint8_t> bytes,
                         const PackSourceStamp& source);

// Any number of threads may append at once; the order of entries is that of the calls.
class PackWriter {
 public:
  // Continues a folder that already holds shards: numbering goes on. Unfinished files that nobody
  // has written to for a day are removed.
  static Result<std::unique_ptr<PackWriter>> create(const PackWriterOptions& options);
  // Discards the unfinished shard.
  ~PackWriter();

  // A key that was already appended to this writer is ignored.
  Status append(const PackItem& item);
  // Completes the shard being written. Required; nothing may be appended afterwards.
  Status finish();

  uint64_t num_entries() const;
  uint64_t bytes_written() const;

 private:
  explicit PackWriter(const PackWriterOptions& options);
  void remove_abandoned(const std::vector<DirEntry>& entries);
  Status begin_shard();
  Status finish_shard();
  uint32_t version() const;

  const PackWriterOptions options_;
  Env& env_;
  mutable std::mutex mutex_;
  uint64_t next_shard_ = 0;
  std::unique_ptr<WritableFile> file_;
  std::string temporary_;
  std::string owner_;  // an empty file whose name says which process writes temporary_
  std::string final_;
  uint64_t position_ = 0;
  uint64_t shard_frames_ = 0;
  std::vector<PackEntry> entries_;
  std::string names_;
  std::unordered_set<PackKey, PackKeyHash> seen_;
  uint64_t num_entries_ = 0;
  uint64_t bytes_written_ = 0;
  bool finished_ = false;
};

std::string pack_file_name(uint64_t shard);  // "pack_00000.aerie-pack"

}  // namespace aerie::data
