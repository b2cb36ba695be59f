// Plain types shared by kernels, their references and their callers: no CUDA and no torch header.
//
// A kernel is a function `int name(const Args&, void* stream)` that exists three times with the
// same meaning: reference:: (loops on the CPU), cuda:: (in the CUDA module; queued on a
// cudaStream_t) and emulated:: (the CUDA source run on the CPU, tests only). It returns 0,
// kUnsupported for shapes or settings it does not cover, or a cudaError_t. Pointers in Args are
// device pointers for cuda::. Nothing is allocated and nothing waits; all of it may be captured
// into a CUDA graph.
//
// Tensors are dense and row-major. Activations are (B,T,C) with C a multiple of 8 and 16-byte
// aligned rows; T may be padded beyond what the batch needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "aerie/base/dropout.h"
#include "aerie/base/dtype.h"
#include "aerie/base/philox.h"

namespace aerie::kernels {

// Declares a kernel in the namespaces of all back ends; at the end of the header of its arguments.
#define AERIE_DECLARE_KERNEL(name, Args)    \
  namespace reference {                     \
  int name(const Args& args, void* stream); \
  }                                         \
  namespace cuda {                          \
  int name(const Args& args, void* stream); \
  }                                         \
  namespace emulated {                      \
  int name(const Args& args, void* stream); \
  }

constexpr int kOk = 0;
constexpr int kUnsupported = 1;  // cudaErrorInvalidValue

// Kernels compute in kF32, kBF16 and kF16.
using aerie::Dtype;
using aerie::dtype_size;

struct Bf16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

// What keys the random draws of a micro-batch (aerie/nn/random_fill.h); lives in device memory, so
// that a captured graph draws anew in every replay.
struct RandomState {
  PhiloxKey dropout_key;  // philox_key(seed, Purpose::kDropout)
  PhiloxKey mask_key;     // Purpose::kMask
  PhiloxKey dither_key;   // Purpose::kDither
  uint64_t micro_step;
  uint64_t first_item;
  uint64_t item_stride = 1;  // the number of ranks that rows are dealt to in turn
};

AERIE_HD uint64_t item_position(const RandomState& state, uint64_t row) {
  return (state.micro_step << 20) | (state.first_item + row * state.item_stride);
}

// One dropout site (base/dropout.h): epoch = site, position = item_position() of the item.
struct Dropout {
  const RandomState* state = nullptr;
  uint32_t site = 0;
  uint32_t threshold = 0;  // dropout_threshold(p); 0 switches dropout off
  float scale = 1.0f;      // dropout_scale(p)
};
inline Dropout dropout_at(const RandomState* state, uint32_t site, double p) {
  return {state, site, dropout_threshold(p), dropout_scale(p)};
}

// Packed (varlen) rows: where the frames of a batch lie in activations (rows,C). Frame t of item b
// is row cu_seqlens[b] + t, and the item has cu_seqlens[b+1] - cu_seqlens[b] rows, at least one and
// at most `frames`, valid ones first; what it would have beyond is not there. Without cu_seqlens
// every item has `frames` rows.
struct alignas(8) RowPosition {
  int32_t item, frame;
};
struct RowLayout {
  int rows = 0;                            // in all
  const int32_t* cu_seqlens = nullptr;     // (B+1)
  const RowPosition* positions = nullptr;  // (rows): what a row is
};
AERIE_HD int num_rows(const RowLayout& layout, int batch, int frames) {
  return layout.cu_seqlens != nullptr ? layout.rows : batch * frames;
}
AERIE_HD int first_row(const RowLayout& layout, int item, int frames) {
  return layout.cu_seqlens != nullptr ? layout.cu_seqlens[item] : item * frames;
}
AERIE_HD int rows_of(const RowLayout& layout, int item, int frames) {
  return layout.cu_seqlens != nullptr ? layout.cu_seqlens[item + 1] - layout.cu_seqlens[item]
                                      : frames;
}
AERIE_HD RowPosition position_of(const RowLayout& layout, int row, int frames) {
  return layout.cu_seqlens != nullptr ? layout.positions[row]
                                      : RowPosition{row / frames, row % frames};
}

// Activations (B,T,C) of the encoder, as arguments of kernels begin with them.
struct Activations {
  Dtype dtype = Dtype::kF32;
  int batch = 0, frames = 0, channels = 0;
  RowLayout layout;

  bool covered() const { return batch > 0 && frames > 0 && channels > 0 && channels % 8 == 0; }
};

// Round to nearest even; NaN stays NaN.
AERIE_HD uint16_t float_to_bf16_bits(float value) {
#ifdef __CUDA_ARCH__
  uint16_t out;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
#else
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

AERIE_HD float bf16_bits_to_float(uint16_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
#else
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float out;
  std::memcpy(&out, &wide, 4);
  return out;
#endif
}

AERIE_HD uint16_t float_to_half_bits(float value) {
#ifdef __CUDA_ARCH__
  uint16_t out;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out) : "f"(value));
  return out;
#else
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(0x7fffu);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536
  if (magnitude < 0x38800000u) {                                               // subnormal or zero
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);
    const uint32_t shift = 126 - (magnitude >> 23);  // 14..24
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t half = 1u << (shift - 1);
    const uint32_t rounded = (mantissa + half - 1 + ((mantissa >> shift) & 1u)) >> shift;
    return static_cast<uint16_t>(sign | rounded);
  }
  const uint32_t rebased = magnitude - 0x38000000u;
  return static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
#endif
}

AERIE_HD float half_bits_to_float(uint16_t bits) {
#ifdef __CUDA_ARCH__
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(bits));
  return out;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
    return sign != 0 ? -tiny : tiny;
  }
  const uint32_t wide = sign | (exponent == 31 ? 0x7f800000u | (mantissa << 13)
                                               : ((exponent + 112) << 23) | (mantissa << 13));
  float out;
  std::memcpy(&out, &wide, 4);
  return out;
#endif
}

AERIE_HD float to_float(float value) {
  return value;
}
AERIE_HD float to_float(Bf16 value) {
  return bf16_bits_to_float(value.bits);
}
AERIE_HD float to_float(Half value) {
  return half_bits_to_float(value.bits);
}
template <typename T>
AERIE_HD T from_float(float value);
template <>
AERIE_HD float from_float<float>(float value) {
  return value;
}
template <>
AERIE_HD Bf16 from_float<Bf16>(float value) {
  return Bf16{float_to_bf16_bits(value)};
}
template <>
AERIE_HD Half from_float<Half>(float value) {
  return Half{float_to_half_bits(value)};
}

// Calls body with a value of the C++ type behind a Dtype.
template <typename Body>
int dispatch(Dtype dtype, Body body) {
  switch (dtype) {
    case Dtype::kF32:
      return body(float{});
    case Dtype::kBF16:
      return body(Bf16{});
    case Dtype::kF16:
      return body(Half{});
    default:
      return kUnsupported;
  }
}

}  // namespace aerie::kernels
