// ByteSource: read-only bytes addressed by position; what every archive reader works on, so that
// the same code reads a file, a member of a tar, an entry of a zip inside that member, or a
// fuzzer's input.
//
// Files are read with pread, not mapped: a file that another process cuts short then gives an error
// instead of SIGBUS, and what was read lands in the caller's buffer without a second copy.
//
// Threads: a source may be read from any number of threads. Ownership: shared; slices keep their
// parent alive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::archive {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  uint64_t size() const { return size_; }
  // For messages: a path, or "x.nemo: model_weights.ckpt".
  const std::string& name() const { return name_; }
  // All `n` bytes at `offset`, or an error.
  Status read(uint64_t offset, void* out, uint64_t n) const;

 protected:
  ByteSource(std::string name, uint64_t size) : name_(std::move(name)), size_(size) {}
  virtual Status read_checked(uint64_t offset, void* out, size_t n) const = 0;

 private:
  std::string name_;
  uint64_t size_;
};

using SourcePtr = std::shared_ptr<const ByteSource>;

// A regular file; the Env must outlive the source.
Result<SourcePtr> file_source(Env& env, const std::string& path);
SourcePtr memory_source(std::string bytes, std::string name);
// Memory of the caller's, which must outlive the source.
SourcePtr borrowed_source(const void* bytes, size_t size, std::string name);
// Memory in pieces of equal size (but the last), for data whose size is not known while it arrives.
SourcePtr chunked_source(std::vector<std::string> chunks, size_t chunk_bytes, std::string name);
// Bytes [offset, offset + size) of `parent`, which must lie within it.
Result<SourcePtr> slice_source(SourcePtr parent, uint64_t offset, uint64_t size, std::string name);

// The whole source; a data error when it holds more than max_bytes.
Result<std::string> read_all(const ByteSource& source, uint64_t max_bytes);

// How much a compressed stream of `compressed` bytes may grow before we call it a bomb. Weights
// hardly compress at all and configs compress about fourfold, so this is generous; the constant
// lets small, regular arrays through.
inline uint64_t inflate_limit(uint64_t compressed) {
  return (uint64_t{16} << 20) + 16 * compressed;
}

}  // namespace aerie::archive
