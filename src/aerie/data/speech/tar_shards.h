// Samples inside tar shards: which member of which archive belongs to which manifest line.
//
// Samples stand in the order of the archives: shard after shard, member after member; a member with
// several manifest lines (several offsets in one file, -subN names) gives several samples in a row.
// Plain archives are read with one pread per member; compressed ones through TarArchive.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/manifest.h"
#include "aerie/tar/tar_archive.h"

namespace aerie::data {

class TarShards {
 public:
  struct Options {
    std::string index_dir;
    bool compat_nemo = false;  // -subN names match nothing, as in NeMo
    bool quiet = false;
    bool keep_names = false;  // member_name() will be asked for
    int num_threads = 1;
    Env* env = nullptr;
  };
  // One bucket or member of a mixture: its archives, and the range of manifest rows it is joined
  // with.
  struct Group {
    std::vector<std::string> archives;
    uint64_t first_row = 0;
    uint64_t last_row = 0;
  };

  static Result<std::unique_ptr<TarShards>> open(const std::vector<Group>& groups,
                                                 const Manifest& manifest, const Options& options);

  uint64_t size() const { return rows_.size(); }
  uint32_t row(uint64_t i) const { return rows_[i]; }
  size_t num_groups() const { return group_end_.size(); }
  uint64_t group_begin(size_t g) const { return g == 0 ? 0 : group_end_[g - 1]; }
  uint64_t group_end(size_t g) const { return group_end_[g]; }
  // First sample of each shard of a group.
  std::vector<uint32_t> shard_starts(size_t g) const;
  size_t num_shards() const { return archives_.size(); }
  const std::string& archive_path(uint64_t i) const { return archives_[shard_of(i)].path; }
  std::string_view member_name(uint64_t i) const;  // with keep_names

  // Members up to this size are read whole, with one call; larger ones a piece at a time, so that
  // memory follows what is decoded and not what an archive claims.
  static constexpr uint64_t kWholeBytes = uint64_t{16} << 20;
  uint64_t encoded_bytes(uint64_t i) const { return sizes_[i]; }
  // The encoded bytes of sample i.
  Status read(uint64_t i, std::vector<uint8_t>& out) const;
  // The same as a file.
  Result<std::unique_ptr<RandomAccessFile>> open_member(uint64_t i) const;
  // The archive of sample i is opened anew for the next read.
  void forget(uint64_t i) const;

  struct Report {
    uint64_t unmatched_members = 0;   // no manifest line
    uint64_t unmatched_rows = 0;      // no member
    std::vector<uint32_t> unmatched;  // their rows
    uint64_t repeated_rows = 0;       // matched by several members
    std::vector<std::string> member_examples, row_examples;
  };
  const Report& report() const { return report_; }

 private:
  struct Archive {
    std::string path;
    uint64_t first_sample = 0;
    uint64_t bytes = 0;
    std::shared_ptr<const tar::TarIndex> index;  // compressed archives only
  };
  // Open files, a limited number of them.
  struct OpenFiles;

  TarShards();

 public:
  ~TarShards();

 private:
  size_t shard_of(uint64_t i) const;
  Status join_group(const Group& group, const Manifest& manifest, const Options& options,
                    std::vector<tar::TarIndex>& indexes);
  void log_report() const;

  std::vector<Archive> archives_;
  std::vector<uint64_t> group_end_;
  std::vector<size_t> group_archive_end_;
  std::vector<uint32_t> rows_;
  std::vector<uint64_t> offsets_;  // of the member's data, or its number in a compressed archive
  std::vector<uint64_t> sizes_;
  std::string names_;
  std::vector<uint64_t> name_ends_;  // empty without keep_names
  Report report_;
  bool repeats_ = false;  // use all members of a line
  Env* env_ = nullptr;
  std::unique_ptr<OpenFiles> open_;
};

}  // namespace aerie::data
