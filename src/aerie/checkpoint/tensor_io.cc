#include "aerie/checkpoint/tensor_io.h"

#include <cstring>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "aerie/base/strings.h"

namespace aerie::ckpt {
namespace {

constexpr std::pair<Dtype, at::ScalarType> kTypes[] = {
    {Dtype::kF64, at::kDouble},    {Dtype::kF32, at::kFloat}, {Dtype::kF16, at::kHalf},
    {Dtype::kBF16, at::kBFloat16}, {Dtype::kI64, at::kLong},  {Dtype::kI32, at::kInt},
    {Dtype::kI16, at::kShort},     {Dtype::kI8, at::kChar},   {Dtype::kU8, at::kByte},
    {Dtype::kBool, at::kBool},
};

}  // namespace

Result<at::ScalarType> scalar_type_of(Dtype dtype) {
  for (const auto& [file, torch] : kTypes)
    if (file == dtype) return torch;
  return unsupported(str_cat("tensors of type ", dtype_name(dtype), " cannot be loaded"));
}

Result<Dtype> dtype_of(at::ScalarType type) {
  for (const auto& [file, torch] : kTypes)
    if (torch == type) return file;
  return unsupported(str_cat("tensors of type ", c10::toString(type), " cannot be stored"));
}

Result<at::Tensor> read_tensor(const archive::TensorArchive& archive,
                               const archive::TensorInfo& info) {
  AERIE_ASSIGN_OR_RETURN(const at::ScalarType type, scalar_type_of(info.dtype));
  try {
    at::Tensor tensor = at::empty(info.shape, type);
    Status status = archive.read(info, tensor.data_ptr(), info.nbytes());
    if (!status.ok()) return std::move(status).with_context(info.name);
    return tensor;
  } catch (const std::exception& error) {
    return out_of_memory(error.what()).with_context(info.name);
  }
}

Result<at::Tensor> read_tensor(const archive::TensorArchive& archive, const std::string& name) {
  const archive::TensorInfo* info = archive.find(name);
  if (info == nullptr)
    return not_found(str_cat("no tensor '", name, "'")).with_context(archive.name());
  return read_tensor(archive, *info);
}

Result<archive::OutTensor> out_tensor(std::string name, const at::Tensor& tensor) {
  AERIE_ASSIGN_OR_RETURN(const Dtype dtype, dtype_of(tensor.scalar_type()));
  const at::Tensor host = tensor.detach().to(at::kCPU).contiguous();
  archive::OutTensor out;
  out.name = std::move(name);
  out.dtype = dtype;
  out.shape = host.sizes().vec();
  out.fill = [host](void* target, uint64_t bytes) {
    std::memcpy(target, host.const_data_ptr(), bytes);
    return ok_status();
  };
  return out;
}

}  // namespace aerie::ckpt
