// The neutral model of a file with tensors: an ordered list of named tensors whose bytes are read
// when asked for, whatever format they come from.
//
// Threads: const methods from any number of threads. Copies are cheap in bytes (storages are
// shared). Memory: descriptions only; tensor bytes go straight into the caller's buffer.
#pragma once

#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aerie/archive/byte_source.h"
#include "aerie/base/dtype.h"
#include "aerie/base/status.h"

namespace aerie::archive {

// All formats here are little-endian and are read without swapping.
static_assert(std::endian::native == std::endian::little, "aerie needs a little-endian machine");

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements; empty: row-major without gaps
  uint32_t storage = 0;          // which of the archive's storages
  uint64_t offset = 0;           // of the first element, in bytes

  uint64_t numel() const;
  uint64_t nbytes() const { return numel() * dtype_size(dtype); }
  bool contiguous() const;
};

// "[512, 2560]"
std::string shape_text(const std::vector<int64_t>& shape);

// Number of elements; an error when a dimension is negative or the count does not fit. Empty
// tensors must have a plausible shape too.
Result<uint64_t> checked_numel(const std::vector<int64_t>& shape);

// Whether all elements of `info` lie within a storage of `storage_bytes`; strides may not be
// negative, views may overlap.
Status check_bounds(const TensorInfo& info, uint64_t storage_bytes);

class TensorArchive {
 public:
  TensorArchive() = default;
  // Checks bounds, that names are unique, and that all tensors together do not take more memory
  // than `storages` justify (views may repeat bytes, but not without limit).
  static Result<TensorArchive> make(std::string name, std::vector<SourcePtr> storages,
                                    std::vector<TensorInfo> tensors);

  const std::string& name() const { return name_; }  // for messages: where it came from
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const TensorInfo* find(std::string_view name) const;  // nullptr: none
  uint64_t total_bytes() const;                         // of all tensors, row-major

  // Row-major bytes of one tensor of this archive; `bytes` must be its nbytes().
  Status read(const TensorInfo& info, void* out, uint64_t bytes) const;
  Result<std::string> read(const TensorInfo& info) const;
  // The elements, when the tensor holds exactly this type: float, double, int64_t, int32_t,
  // uint8_t.
  template <typename T>
  Result<std::vector<T>> read_as(const TensorInfo& info) const;

  // Free text beside the tensors (safetensors' __metadata__).
  const std::map<std::string, std::string>& text_metadata() const { return text_metadata_; }
  void set_text_metadata(std::map<std::string, std::string> metadata) {
    text_metadata_ = std::move(metadata);
  }

  // The same storages under other names or with fewer tensors.
  Result<TensorArchive> with_tensors(std::vector<TensorInfo> tensors) const;

 private:
  Status check_dtype(const TensorInfo& info, Dtype wanted) const;

  std::string name_;
  std::vector<SourcePtr> storages_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, std::string> text_metadata_;
};

template <typename T>
constexpr Dtype dtype_of();
template <>
constexpr Dtype dtype_of<float>() {
  return Dtype::kF32;
}
template <>
constexpr Dtype dtype_of<double>() {
  return Dtype::kF64;
}
template <>
constexpr Dtype dtype_of<int64_t>() {
  return Dtype::kI64;
}
template <>
constexpr Dtype dtype_of<int32_t>() {
  return Dtype::kI32;
}
template <>
constexpr Dtype dtype_of<uint8_t>() {
  return Dtype::kU8;
}

template <typename T>
Result<std::vector<T>> TensorArchive::read_as(const TensorInfo& info) const {
  AERIE_RETURN_IF_ERROR(check_dtype(info, dtype_of<T>()));
  std::vector<T> out(static_cast<size_t>(info.numel()));
  AERIE_RETURN_IF_ERROR(read(info, out.data(), info.nbytes()));
  return out;
}

}  // namespace aerie::archive
