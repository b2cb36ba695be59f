// Between archives (torch-free) and tensors.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/tensor_writer.h"
#include "aerie/base/status.h"

namespace aerie::ckpt {

// Data error for element types torch cannot hold here.
Result<at::ScalarType> scalar_type_of(Dtype dtype);
Result<Dtype> dtype_of(at::ScalarType type);

// A stored tensor as a fresh CPU tensor of its own dtype.
Result<at::Tensor> read_tensor(const archive::TensorArchive& archive,
                               const archive::TensorInfo& info);
// By name; not_found when the archive has none.
Result<at::Tensor> read_tensor(const archive::TensorArchive& archive, const std::string& name);

// A tensor on its way into a file: detached, on the CPU, contiguous. The result keeps its own copy
// of the bytes alive (or shares them when the tensor already has that form), so do not change the
// tensor before the file is written.
Result<archive::OutTensor> out_tensor(std::string name, const at::Tensor& tensor);

}  // namespace aerie::ckpt
