#include "aerie/checkpoint/tensor_io.h"

#include <cstring>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "aerie/base/strings.h"

namespace aerie::ckpt {
namespace {

constexpr std::pair<archive::DType, at::ScalarType> kTypes[] = {
    {archive::DType::kF64, at::kDouble}, {archive::DType::kF32, at::kFloat},
    {archive::DType::kF16, at::kHalf},   {archive::DType::kBF16, at::kBFloat16},
    {archive::DType::kI64, at::kLong},   {archive::DType::kI32, at::kInt},
    {archive::DType::kI16, at::kShort},  {archive::DType::kI8, at::kChar},
    {archive::DType::kU8, at::kByte},    {archive::DType::kBool, at::kBool},
};

}  // namespace

Result<at::ScalarType> scalar_type_of(archive::DType dtype) {
  for (const auto& [file, torch] : kTypes)
    if (file == dtype) return torch;
  return unsupported(str_cat("tensors of type ", archive::dtype_name(dtype), " cannot be loaded"));
}

Result<archive::DType> dtype_of(at::ScalarType type) {
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
  AERIE_ASSIGN_OR_RETURN(const archive::DType dtype, dtype_of(tensor.scalar_type()));
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
