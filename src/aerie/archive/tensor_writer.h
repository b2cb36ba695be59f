// What the writers of all formats share: tensors to be written, a sink for bytes, and files that
// appear whole or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/archive/tensor_archive.h"
#include "aerie/base/dtype.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::archive {

// Takes the next bytes of an output.
using Sink = std::function<Status(std::string_view)>;

// A tensor on its way into a file. Its bytes are either at `data` (row-major, valid until the write
// returns) or produced by `fill` when their turn comes, so that a conversion holds one tensor at a
// time in memory.
struct OutTensor {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
  std::function<Status(void* out, uint64_t bytes)> fill;

  uint64_t numel() const;
  uint64_t nbytes() const { return numel() * dtype_size(dtype); }
  // Hands all bytes to `consume`, once.
  Status emit(const Sink& consume) const;
};

// All tensors of an archive, which must outlive the result.
std::vector<OutTensor> out_tensors(const TensorArchive& archive);

// Duplicate or empty names, names that are not UTF-8, negative dimensions: a programmer's or a
// source file's mistake that must not reach an output.
Status check_out_tensors(const std::vector<OutTensor>& tensors);

// Runs `write` against a temporary file beside `path`, then syncs and renames it; after an error or
// a power loss `path` is what it was before.
Status write_atomically(Env& env, const std::string& path,
                        const std::function<Status(const Sink&)>& write);

// Called with bytes written so far and in all; writers call it after every tensor. May be empty.
using ProgressFn = std::function<void(uint64_t done, uint64_t total)>;

}  // namespace aerie::archive
