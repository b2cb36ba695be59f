#include "aerie/base/dtype.h"

#include "aerie/base/check.h"

namespace aerie {
namespace {

struct Row {
  Dtype dtype;
  size_t size;
  const char* name;
  const char* storage;
  const char* safetensors;
  const char* numpy;
};

constexpr Row kRows[] = {
    {Dtype::kF32, 4, "float32", "FloatStorage", "F32", "<f4"},
    {Dtype::kBF16, 2, "bfloat16", "BFloat16Storage", "BF16", nullptr},
    {Dtype::kF16, 2, "float16", "HalfStorage", "F16", "<f2"},
    {Dtype::kF64, 8, "float64", "DoubleStorage", "F64", "<f8"},
    {Dtype::kI64, 8, "int64", "LongStorage", "I64", "<i8"},
    {Dtype::kI32, 4, "int32", "IntStorage", "I32", "<i4"},
    {Dtype::kI16, 2, "int16", "ShortStorage", "I16", "<i2"},
    {Dtype::kI8, 1, "int8", "CharStorage", "I8", "|i1"},
    {Dtype::kU64, 8, "uint64", nullptr, "U64", "<u8"},
    {Dtype::kU32, 4, "uint32", nullptr, "U32", "<u4"},
    {Dtype::kU16, 2, "uint16", nullptr, "U16", "<u2"},
    {Dtype::kU8, 1, "uint8", "ByteStorage", "U8", "|u1"},
    {Dtype::kBool, 1, "bool", "BoolStorage", "BOOL", "|b1"},
    {Dtype::kC64, 8, "complex64", "ComplexFloatStorage", "C64", "<c8"},
    {Dtype::kC128, 16, "complex128", "ComplexDoubleStorage", nullptr, "<c16"},
    {Dtype::kF8E4M3, 1, "float8_e4m3fn", nullptr, "F8_E4M3", nullptr},
    {Dtype::kF8E5M2, 1, "float8_e5m2", nullptr, "F8_E5M2", nullptr},
};

const Row& row(Dtype dtype) {
  const auto index = static_cast<size_t>(dtype);
  AERIE_CHECK(index < std::size(kRows) && kRows[index].dtype == dtype, "dtype table out of order");
  return kRows[index];
}

template <typename Member>
std::optional<Dtype> find(Member member, std::string_view text) {
  for (const Row& r : kRows)
    if (r.*member != nullptr && text == r.*member) return r.dtype;
  return std::nullopt;
}

}  // namespace

size_t dtype_size(Dtype dtype) {
  return row(dtype).size;
}
const char* dtype_name(Dtype dtype) {
  return row(dtype).name;
}
const char* dtype_torch_storage(Dtype dtype) {
  return row(dtype).storage;
}
const char* dtype_safetensors(Dtype dtype) {
  return row(dtype).safetensors;
}
const char* dtype_numpy(Dtype dtype) {
  return row(dtype).numpy;
}

std::optional<Dtype> dtype_from_name(std::string_view name) {
  return find(&Row::name, name);
}
std::optional<Dtype> dtype_from_torch_storage(std::string_view name) {
  return find(&Row::storage, name);
}
std::optional<Dtype> dtype_from_safetensors(std::string_view name) {
  return find(&Row::safetensors, name);
}
std::optional<Dtype> dtype_from_numpy(std::string_view descr) {
  if (descr == "|i1" || descr == "<i1") return Dtype::kI8;
  if (descr == "<u1") return Dtype::kU8;
  return find(&Row::numpy, descr);
}

}  // namespace aerie
