// Element types of tensors, in memory and in files, and their names in the formats we read and
// write. The only such enum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace aerie {

enum class Dtype : uint8_t {
  kF32,  // the first three are what kernels compute in
  kBF16,
  kF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kC64,   // two f32
  kC128,  // two f64
  kF8E4M3,
  kF8E5M2,
};

size_t dtype_size(Dtype dtype);                // bytes per element
const char* dtype_name(Dtype dtype);           // "float32": as torch prints it
const char* dtype_torch_storage(Dtype dtype);  // "FloatStorage"; nullptr: only untyped storages
const char* dtype_safetensors(Dtype dtype);    // "F32"; nullptr: the format has none
const char* dtype_numpy(Dtype dtype);          // "<f4"; nullptr: numpy has none

std::optional<Dtype> dtype_from_name(std::string_view name);
std::optional<Dtype> dtype_from_torch_storage(std::string_view name);
std::optional<Dtype> dtype_from_safetensors(std::string_view name);
std::optional<Dtype> dtype_from_numpy(std::string_view descr);

}  // namespace aerie
