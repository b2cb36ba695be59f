#include "aerie/archive/tensor_archive.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

constexpr size_t kMaxRank = 64;
// Leaves room to multiply by an element size without overflow.
constexpr uint64_t kMaxNumel = uint64_t{1} << 58;

// Copies a strided view out of `span`, the bytes from its first to its last element.
void gather(const TensorInfo& info, const char* span, char* out) {
  const size_t element = dtype_size(info.dtype);
  const size_t rank = info.shape.size();
  // The innermost dimension is a loop of its own; the others are counted up like an odometer.
  const int64_t inner = rank == 0 ? 1 : info.shape[rank - 1];
  const int64_t inner_stride = rank == 0 ? 1 : info.strides[rank - 1];
  const uint64_t rows = info.numel() / static_cast<uint64_t>(inner);
  std::vector<int64_t> index(rank == 0 ? 0 : rank - 1, 0);
  int64_t at = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    const char* from = span + static_cast<uint64_t>(at) * element;
    if (inner_stride == 1) {
      std::memcpy(out, from, static_cast<size_t>(inner) * element);
      out += static_cast<size_t>(inner) * element;
    } else {
      const size_t step = static_cast<size_t>(inner_stride) * element;
      for (int64_t i = 0; i < inner; ++i, from += step, out += element)
        std::memcpy(out, from, element);
    }
    for (size_t d = index.size(); d-- > 0;) {
      at += info.strides[d];
      if (++index[d] < info.shape[d]) break;
      at -= info.strides[d] * info.shape[d];
      index[d] = 0;
    }
  }
}

// Elements from the first to the last one, both included. Bounds were checked before.
uint64_t span_elements(const TensorInfo& info) {
  uint64_t last = 0;
  for (size_t d = 0; d < info.shape.size(); ++d)
    last += static_cast<uint64_t>(info.shape[d] - 1) * static_cast<uint64_t>(info.strides[d]);
  return last + 1;
}

}  // namespace

uint64_t TensorInfo::numel() const {
  uint64_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

bool TensorInfo::contiguous() const {
  if (strides.empty() || numel() == 0) return true;
  int64_t expected = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += str_cat(i == 0 ? "" : ", ", shape[i]);
  return out + "]";
}

Result<uint64_t> checked_numel(const std::vector<int64_t>& shape) {
  if (shape.size() > kMaxRank)
    return data_error(
        str_cat("has ", shape.size(), " dimensions, at most ", kMaxRank, " are accepted"));
  uint64_t bound = 1;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0)
      return data_error(str_cat("shape ", shape_text(shape), " has a negative dimension"));
    if (dim == 0) empty = true;
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(dim, 1));
    if (factor > kMaxNumel / bound)
      return data_error(str_cat("shape ", shape_text(shape), " is impossibly large"));
    bound *= factor;
  }
  return empty ? 0 : bound;
}

Status check_bounds(const TensorInfo& info, uint64_t storage_bytes) {
  AERIE_ASSIGN_OR_RETURN(const uint64_t numel, checked_numel(info.shape));
  const uint64_t element = dtype_size(info.dtype);
  if (info.offset > storage_bytes)
    return data_error(str_cat("begins at byte ", info.offset, " of a storage of ", storage_bytes));
  const uint64_t available = (storage_bytes - info.offset) / element;
  uint64_t needed = numel;
  if (!info.strides.empty()) {
    if (info.strides.size() != info.shape.size())
      return data_error(
          str_cat("has ", info.shape.size(), " dimensions but ", info.strides.size(), " strides"));
    uint64_t last = 0;
    for (size_t d = 0; d < info.shape.size(); ++d) {
      if (info.strides[d] < 0)
        return data_error(str_cat("has a negative stride ", info.strides[d]));
      if (numel == 0) continue;
      const auto steps = static_cast<uint64_t>(info.shape[d] - 1);
      const auto stride = static_cast<uint64_t>(info.strides[d]);
      // Both summands are at most `available`, a file size, so the sum cannot wrap.
      if (steps != 0 && stride > available / steps)
        return data_error(str_cat("shape ", shape_text(info.shape), " with strides ",
                                  shape_text(info.strides), " reaches past its storage of ",
                                  storage_bytes, " bytes"));
      last += steps * stride;
      if (last > available) break;
    }
    needed = numel == 0 ? 0 : last + 1;
  }
  if (needed > available)
    return data_error(str_cat(dtype_name(info.dtype), " ", shape_text(info.shape), " at byte ",
                              info.offset, " reaches past its storage of ", storage_bytes,
                              " bytes"));
  return ok_status();
}

Result<TensorArchive> TensorArchive::make(std::string name, std::vector<SourcePtr> storages,
                                          std::vector<TensorInfo> tensors) {
  TensorArchive archive;
  archive.name_ = std::move(name);
  archive.storages_ = std::move(storages);
  uint64_t stored = 0;
  for (const SourcePtr& storage : archive.storages_) stored += storage->size();
  // Tied weights appear a few times; a file whose views add up to far more than it holds is built
  // to exhaust memory.
  const uint64_t limit = (uint64_t{1} << 20) + 8 * stored;
  uint64_t total = 0;
  archive.by_name_.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& info = tensors[i];
    const auto where = [&] { return str_cat(archive.name_, ": tensor ", quoted(info.name)); };
    AERIE_CHECK(info.storage < archive.storages_.size(), "no such storage");
    const Status status = check_bounds(info, archive.storages_[info.storage]->size());
    if (!status.ok()) return status.with_context(where());
    const uint64_t bytes = info.nbytes();
    total = bytes > limit ? limit + 1 : total + bytes;
    if (total > limit)
      return data_error(str_cat("the tensors up to here would take more than ", human_bytes(limit),
                                ", but the file holds only ", human_bytes(stored), " of data"))
          .with_context(where());
    if (!archive.by_name_.emplace(info.name, i).second)
      return data_error("appears twice").with_context(where());
  }
  archive.tensors_ = std::move(tensors);
  return archive;
}

Result<TensorArchive> TensorArchive::with_tensors(std::vector<TensorInfo> tensors) const {
  AERIE_ASSIGN_OR_RETURN(TensorArchive other, make(name_, storages_, std::move(tensors)));
  other.text_metadata_ = text_metadata_;
  return other;
}

const TensorInfo* TensorArchive::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

uint64_t TensorArchive::total_bytes() const {
  uint64_t total = 0;
  for (const TensorInfo& info : tensors_) total += info.nbytes();
  return total;
}

Status TensorArchive::read(const TensorInfo& info, void* out, uint64_t bytes) const {
  AERIE_CHECK(info.storage < storages_.size(), "tensor of another archive");
  AERIE_CHECK(bytes == info.nbytes(), "buffer of ", bytes, " bytes for a tensor of ",
              info.nbytes());
  if (bytes == 0) return ok_status();
  const ByteSource& storage = *storages_[info.storage];
  AERIE_RETURN_IF_ERROR(check_bounds(info, storage.size()));
  if (info.contiguous()) return storage.read(info.offset, out, bytes);
  // The span is part of a storage, so it is no larger than the file.
  std::string span(static_cast<size_t>(span_elements(info) * dtype_size(info.dtype)), '\0');
  AERIE_RETURN_IF_ERROR(storage.read(info.offset, span.data(), span.size()));
  gather(info, span.data(), static_cast<char*>(out));
  return ok_status();
}

Result<std::string> TensorArchive::read(const TensorInfo& info) const {
  std::string out(static_cast<size_t>(info.nbytes()), '\0');
  AERIE_RETURN_IF_ERROR(read(info, out.data(), out.size()));
  return out;
}

Status TensorArchive::check_dtype(const TensorInfo& info, Dtype wanted) const {
  if (info.dtype == wanted) return ok_status();
  return data_error(
             str_cat("holds ", dtype_name(info.dtype), ", ", dtype_name(wanted), " was expected"))
      .with_context(str_cat(name_, ": tensor ", quoted(info.name)));
}

}  // namespace aerie::archive
