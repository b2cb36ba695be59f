#include <cmath>
#include <vector>

#include "aerie/kernels/activation/activation.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {
namespace {

double with_bias(const void* x, Dtype dtype, size_t at, const float* bias, size_t column) {
  return load(x, dtype, at) + (bias != nullptr ? bias[column] : 0.0f);
}

// Of value i.
template <typename Args>
float factor_of(const Args& a, size_t i) {
  const size_t channels = static_cast<size_t>(a.channels);
  const Place place = place_of(a, i / channels);
  return dropout_factor(a.dropout, place.item, place.frame * channels + i % channels);
}

void put_bias(float* grad_bias, const std::vector<double>& sums, bool accumulate) {
  if (grad_bias == nullptr) return;
  for (size_t c = 0; c < sums.size(); ++c) put(grad_bias + c, sums[c], accumulate);
}

}  // namespace

int silu_forward(const SiluForward& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  const size_t rows = static_cast<size_t>(num_rows(a.layout, a.batch, a.frames));
  for (size_t i = 0; i < rows * channels; ++i) {
    const double x = with_bias(a.x, a.dtype, i, a.bias, i % channels);
    const float factor = factor_of(a, i);
    if (a.keep != nullptr) set_keep(a.keep, i, factor != 0.0f);
    store(a.out, a.dtype, i, static_cast<float>(x * sigmoid(x) * factor));
  }
  return kOk;
}

int silu_backward(const SiluBackward& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  const size_t rows = static_cast<size_t>(num_rows(a.layout, a.batch, a.frames));
  std::vector<double> sums(channels);
  for (size_t i = 0; i < rows * channels; ++i) {
    const double x = with_bias(a.x, a.dtype, i, a.bias, i % channels);
    const double s = sigmoid(x);
    const double factor = factor_of(a, i);
    const double grad = load(a.grad_out, a.dtype, i) * s * (1.0 + x * (1.0 - s)) * factor;
    if (a.out != nullptr) store(a.out, a.dtype, i, static_cast<float>(x * s * factor));
    sums[i % channels] += grad;
    store(a.grad_x, a.dtype, i, static_cast<float>(grad));
  }
  put_bias(a.grad_bias, sums, a.accumulate);
  return kOk;
}

}  // namespace aerie::kernels::reference
