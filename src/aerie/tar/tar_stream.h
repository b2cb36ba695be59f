// Reads a tar archive from front to back: plain, gzip, bzip2 or xz. Memory use does not depend on
// the archive's size. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/tar/tar_format.h"

namespace aerie::tar {

class RawInput;
struct GzipPoint;

class TarStream {
 public:
  static Result<std::unique_ptr<TarStream>> open(const std::string& path,
                                                 const TarOptions& options = {});
  // `bytes` must outlive the stream; `name` appears in errors.
  static Result<std::unique_ptr<TarStream>> open_memory(std::span<const uint8_t> bytes,
                                                        std::string name,
                                                        const TarOptions& options = {});
  ~TarStream();

  // The next regular file, or nullopt after a proper end. What the caller did not read of the
  // current member is passed over. After an error the stream is finished.
  Result<std::optional<TarMember>> next();
  // All bytes of the current member, into `out` (resized; capacity is kept between calls).
  Status read(std::vector<uint8_t>* out);
  // Up to `size` further bytes of the current member; 0 at its end.
  Result<size_t> read_some(uint8_t* out, size_t size);

  Compression compression() const;
  // Position in the uncompressed archive; with a finished stream, its length.
  uint64_t position() const;

 private:
  friend Result<std::unique_ptr<TarStream>> open_tar_stream(std::unique_ptr<RawInput> input,
                                                            std::string name,
                                                            const TarOptions& options,
                                                            std::vector<GzipPoint>* points);
  struct Impl;
  explicit TarStream(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::tar
