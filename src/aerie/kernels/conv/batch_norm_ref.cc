#include <cmath>

#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {
namespace {

// Calls body(row) for every row that counts.
template <typename Args, typename Body>
void for_each_counted(const Args& a, Body body) {
  for (int b = 0; b < a.batch; ++b)
    for (int t = 0; t < statistics_limit(a.counted, b, a.frames); ++t)
      if (t < rows_of(a.layout, b, a.frames))
        body(static_cast<size_t>(first_row(a.layout, b, a.frames) + t));
}

// silu(batch_norm(x)) of one value.
template <typename Args>
void normalize_and_activate(const Args& a, size_t i) {
  const size_t c = i % static_cast<size_t>(a.channels);
  const double z =
      (load(a.x, a.dtype, i) - static_cast<double>(a.mean[c])) * a.rstd[c] * a.weight[c] +
      a.bias[c];
  store(a.out, a.dtype, i, static_cast<float>(z * sigmoid(z)));
}

}  // namespace

int batch_norm_forward(const BatchNormForward& a, void*) {
  const int strips = conv_parts(1, a.frames);
  for (int c = 0; c < a.channels; ++c) {
    if (!a.training) {
      a.mean[c] = a.running_mean[c];
      a.rstd[c] = 1.0f / std::sqrt(a.running_var[c] + a.eps);
      continue;
    }
    // The mean over all strips first, then the deviations of each strip from it.
    double count = 0.0, sum = 0.0, squares = 0.0;
    for (int pass = 0; pass < 2; ++pass) {
      for (int part = 0; part < a.batch * strips; ++part) {
        const int left =
            statistics_limit(a.counted, part / strips, a.frames) - part % strips * kConvRows;
        if (left <= 0) continue;
        const double n = left < kConvRows ? left : kConvRows;
        const float* s =
            a.statistics + static_cast<size_t>(part) * 2 * static_cast<size_t>(a.channels);
        if (pass == 0) {
          count += n;
          sum += n * s[c];
        } else {
          const double off = s[c] - sum / count;
          squares += s[a.channels + c] + n * off * off;
        }
      }
    }
    count = count > 1.0 ? count : 1.0;
    const double mean = sum / count;
    a.mean[c] = static_cast<float>(mean);
    a.rstd[c] = static_cast<float>(1.0 / std::sqrt(squares / count + a.eps));
    const double unbiased = squares / (count > 1.0 ? count - 1.0 : 1.0);
    a.running_mean[c] += static_cast<float>((mean - a.running_mean[c]) * a.momentum);
    a.running_var[c] += static_cast<float>((unbiased - a.running_var[c]) * a.momentum);
  }
  if (a.training) *a.batches += 1;
  const size_t rows = static_cast<size_t>(num_rows(a.layout, a.batch, a.frames));
  for (size_t i = 0; i < rows * static_cast<size_t>(a.channels); ++i) normalize_and_activate(a, i);
  return kOk;
}

int batch_norm_reduce(const BatchNormReduce& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  const size_t rows = static_cast<size_t>(num_rows(a.layout, a.batch, a.frames));
  for (size_t i = 0; i < rows * channels && a.out != nullptr; ++i) normalize_and_activate(a, i);
  const size_t parts = static_cast<size_t>(batch_norm_parts(static_cast<int>(rows)));
  for (size_t i = 0; i < parts * 2 * channels; ++i) a.partial[i] = 0.0f;
  for (size_t c = 0; c < channels; ++c) {
    double sum = 0.0, product = 0.0;
    for_each_counted(a, [&](size_t row) {
      const size_t at = row * channels + c;
      const double normal = (load(a.x, a.dtype, at) - static_cast<double>(a.mean[c])) * a.rstd[c];
      const double z = normal * a.weight[c] + a.bias[c];
      const double s = sigmoid(z);
      const double grad = load(a.grad_out, a.dtype, at) * s * (1.0 + z * (1.0 - s));
      sum += grad;
      product += grad * normal;
    });
    a.partial[c] = static_cast<float>(sum);
    a.partial[channels + c] = static_cast<float>(product);
    put(a.grad_weight + c, product, a.accumulate);
    put(a.grad_bias + c, sum, a.accumulate);
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
