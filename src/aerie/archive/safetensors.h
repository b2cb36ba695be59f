// The safetensors format: u64 length of a JSON header, the header, then all tensors back to back.
//
// Reading is strict: header of at most 100 MB that starts with '{', no key twice, known types,
// sizes that match shapes, data without holes or overlaps that ends where the file ends. Writing
// keeps the given order in the header; the data is ordered by element size, so that every tensor is
// aligned (readers that map the file depend on it).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "aerie/archive/byte_source.h"
#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/tensor_writer.h"

namespace aerie::archive {

inline constexpr uint64_t kMaxSafetensorsHeader = 100'000'000;

// Tensors in the order of the header; __metadata__ as text_metadata().
Result<TensorArchive> read_safetensors(SourcePtr source);
Result<TensorArchive> read_safetensors(Env& env, const std::string& path);

Status write_safetensors(const Sink& sink, const std::vector<OutTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {},
                         const ProgressFn& progress = {});
// Atomic.
Status write_safetensors(Env& env, const std::string& path, const std::vector<OutTensor>& tensors,
                         const std::map<std::string, std::string>& metadata = {},
                         const ProgressFn& progress = {});

}  // namespace aerie::archive
