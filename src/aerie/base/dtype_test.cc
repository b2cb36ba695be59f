#include "aerie/base/dtype.h"

#include <gtest/gtest.h>

namespace aerie {
namespace {

constexpr Dtype kAll[] = {Dtype::kF64,    Dtype::kF32,   Dtype::kF16,  Dtype::kBF16, Dtype::kI64,
                          Dtype::kI32,    Dtype::kI16,   Dtype::kI8,   Dtype::kU64,  Dtype::kU32,
                          Dtype::kU16,    Dtype::kU8,    Dtype::kBool, Dtype::kC64,  Dtype::kC128,
                          Dtype::kF8E4M3, Dtype::kF8E5M2};

TEST(DtypeTest, EverySpellingLeadsBack) {
  for (const Dtype dtype : kAll) {
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    if (const char* text = dtype_safetensors(dtype)) {
      EXPECT_EQ(dtype_from_safetensors(text), dtype);
    }
    if (const char* text = dtype_numpy(dtype)) {
      EXPECT_EQ(dtype_from_numpy(text), dtype);
    }
    if (const char* text = dtype_torch_storage(dtype)) {
      EXPECT_EQ(dtype_from_torch_storage(text), dtype);
    }
  }
  EXPECT_EQ(dtype_from_safetensors("F31"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

TEST(DtypeTest, SizesAndNamesOfWhatBatchesAndCheckpointsHold) {
  EXPECT_EQ(dtype_size(Dtype::kF32), 4u);
  EXPECT_EQ(dtype_size(Dtype::kF64), 8u);
  EXPECT_EQ(dtype_size(Dtype::kBF16), 2u);
  EXPECT_EQ(dtype_size(Dtype::kI64), 8u);
  EXPECT_EQ(dtype_size(Dtype::kI16), 2u);
  EXPECT_EQ(dtype_size(Dtype::kU8), 1u);
  EXPECT_EQ(dtype_size(Dtype::kBool), 1u);
  EXPECT_STREQ(dtype_safetensors(Dtype::kF32), "F32");
  EXPECT_STREQ(dtype_safetensors(Dtype::kBF16), "BF16");
  EXPECT_STREQ(dtype_name(Dtype::kI16), "int16");
}

}  // namespace
}  // namespace aerie
