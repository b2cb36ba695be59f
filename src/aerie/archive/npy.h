// NumPy's .npy (one array) and .npz (a zip of them, stored or deflated). Little-endian numbers;
// Fortran order is read (as strides), C order is written.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/byte_source.h"
#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/tensor_writer.h"

namespace aerie::archive {

// One tensor, named `name`.
Result<TensorArchive> read_npy(SourcePtr source, std::string name = "array");
Result<TensorArchive> read_npy(Env& env, const std::string& path);
// One tensor per member, named as the keyword arguments of numpy.savez.
Result<TensorArchive> read_npz(SourcePtr source);
Result<TensorArchive> read_npz(Env& env, const std::string& path);

Status write_npy(const Sink& sink, const OutTensor& tensor);
Status write_npy(Env& env, const std::string& path, const OutTensor& tensor);  // atomic

}  // namespace aerie::archive
