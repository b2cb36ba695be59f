// Members of an indexed archive in any order.
//
// Plain archives: one pread per member, any thread at once. Gzip: inflating starts at the nearest
// access point of the index (one every 4 MiB), each call works alone, any thread. Bzip2 and xz have
// no access points: reading in archive order is one pass, going back starts over (one reader at a
// time, the others wait); unpack such archives when they are used at random.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

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
                                                  std::shared_ptr<const TarIndex> index);
  ~TarArchive();

  const TarIndex& index() const;
  const std::string& path() const;
  // Member i, into `out` (resized; capacity is kept between calls).
  Status read(size_t i, std::vector<uint8_t>* out) const;
  // `size` bytes of member i from `offset`; the range must lie inside the member.
  Status read_range(size_t i, uint64_t offset, uint64_t size, uint8_t* out) const;

 private:
  struct Impl;
  explicit TarArchive(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::tar
