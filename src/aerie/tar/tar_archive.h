// Members of an indexed archive in any order.
//
// Any number of threads at once. Plain archives: one pread per member. Compressed ones: reading on
// behind an earlier read continues its stream (the last 8 are kept). Going elsewhere starts, for
// gzip, at the nearest access point of the index (one every 4 MiB); bzip2 and xz have none and
// start over from the beginning, so unpack such archives when they are used at random.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/tar/tar_index.h"

namespace aerie::tar {

class TarArchive {
 public:
  static Result<std::shared_ptr<TarArchive>> open(const std::string& path,
                                                  const std::string& cache_dir = {},
                                                  const TarOptions& options = {});
  // With an index made before; the archive must not have changed since.
  static Result<std::shared_ptr<TarArchive>> open(const std::string& path,
                                                  std::shared_ptr<const TarIndex> index,
                                                  const TarOptions& options = {});
  ~TarArchive();

  const TarIndex& index() const;
  const std::string& path() const;
  // Member i, into `out` (resized; capacity is kept between calls).
  Status read(size_t i, std::vector<uint8_t>* out) const;
  // `size` bytes of member i from `offset`; the range must lie inside the member.
  Status read_range(size_t i, uint64_t offset, uint64_t size, uint8_t* out) const;

  // Member i as a file of its own, read a piece at a time; keeps the archive alive.
  static std::unique_ptr<RandomAccessFile> open_member(std::shared_ptr<const TarArchive> archive,
                                                       size_t i);

 private:
  struct Impl;
  explicit TarArchive(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::tar
