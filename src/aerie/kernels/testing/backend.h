// One check, several back ends: a test is written once against Backend and runs on the emulated
// kernels (in every order of threads) and, as a *GpuTest, on the device.
//
//   AERIE_KERNEL_TEST(LayerNorm, Forward) { ... backend.upload(x) ... backend.kernels().name(...) }
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/philox.h"
#include "aerie/kernels/kernel_table.h"

namespace aerie::kernels::testing {

// Memory of a back end for the length of a test. Host back ends allocate the exact size, so that
// the address sanitizer sees every access out of bounds.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const KernelTable& kernels() const = 0;
  virtual void* allocate(size_t bytes) = 0;
  virtual void write(void* to, const void* from, size_t bytes) = 0;
  virtual void read(void* to, const void* from, size_t bytes) = 0;  // waits for the device

  template <typename T>
  T* upload(const std::vector<T>& values) {
    if (values.empty()) return nullptr;
    T* out = static_cast<T*>(allocate(values.size() * sizeof(T)));
    write(out, values.data(), values.size() * sizeof(T));
    return out;
  }
  template <typename T>
  std::vector<T> download(const T* from, size_t count) {
    std::vector<T> out(count);
    if (count > 0) read(out.data(), from, count * sizeof(T));
    return out;
  }
  // Uninitialised: NaN bytes.
  template <typename T>
  T* scratch(size_t count) {
    return upload(std::vector<T>(count, nan_bytes<T>()));
  }
  // Values as dtype, and back.
  void* upload_as(Dtype dtype, const std::vector<float>& values);
  std::vector<float> download_as(Dtype dtype, const void* from, size_t count);

 private:
  template <typename T>
  static T nan_bytes() {
    T out;
    std::memset(&out, 0xFF, sizeof(T));
    return out;
  }
};

// A batch whose item i has rows[i] rows, one item behind the other; no rows: the padded batch.
struct Packing {
  std::vector<int> rows;

  // Of a batch of so many frames.
  RowLayout upload(Backend& backend) const;
  size_t num_rows(int batch, int frames) const;
  // What (B,T,C) values are in this layout.
  std::vector<float> pack(const std::vector<float>& padded, int frames, size_t channels) const;
};

std::unique_ptr<Backend> reference_backend();
std::unique_ptr<Backend> emulated_backend();
// Null where there is no GPU; `reason` then says why.
std::unique_ptr<Backend> cuda_backend(std::string* reason);

// Runs body on the emulated kernels, once per order of threads.
void for_each_order(void (*body)(Backend& backend));

// Repeatable values in [-scale, scale), rounded to dtype.
std::vector<float> random_values(size_t count, uint64_t seed, float scale = 1.0f,
                                 Dtype dtype = Dtype::kF32);
float round_to(Dtype dtype, float value);

// |actual - expected| <= absolute + relative * (largest |expected|); reports the worst element.
void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                  double relative, double absolute, const std::string& what);

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
// One rounding of the result, and a little for the order of sums.
inline double tolerance(Dtype dtype) {
  return dtype == Dtype::kF32 ? 2e-6 : dtype == Dtype::kBF16 ? 8e-3 : 1e-3;
}

inline RandomState random_state(uint64_t seed, uint64_t micro_step) {
  return {philox_key(seed, Purpose::kDropout),
          philox_key(seed, Purpose::kMask),
          philox_key(seed, Purpose::kDither),
          micro_step,
          3,
          2};
}

}  // namespace aerie::kernels::testing

#define AERIE_KERNEL_TEST(suite, name)                                             \
  static void suite##_##name##_check(::aerie::kernels::testing::Backend& backend); \
  TEST(suite##Test, name) {                                                        \
    ::aerie::kernels::testing::for_each_order(&suite##_##name##_check);            \
  }                                                                                \
  TEST(suite##GpuTest, name) {                                                     \
    std::string reason;                                                            \
    const auto backend = ::aerie::kernels::testing::cuda_backend(&reason);         \
    if (backend == nullptr) GTEST_SKIP() << reason;                                \
    suite##_##name##_check(*backend);                                              \
  }                                                                                \
  static void suite##_##name##_check(::aerie::kernels::testing::Backend& backend)
