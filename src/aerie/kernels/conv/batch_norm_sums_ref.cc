#include <algorithm>

#include "aerie/kernels/conv/batch_norm_sums.h"

namespace aerie::kernels::reference {

int batch_norm_sums(const BatchNormSums& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  const int strips = conv_parts(1, a.frames);
  std::fill_n(a.sums, batch_norm_sums_size(a.channels), 0.0);
  for (int part = 0; part < a.batch * strips; ++part) {
    const int left =
        statistics_limit(a.counted, part / strips, a.frames) - part % strips * kConvRows;
    if (left <= 0) continue;
    const double n = std::min(left, kConvRows);
    const float* s = a.statistics + static_cast<size_t>(part) * 2 * channels;
    for (size_t c = 0; c < channels; ++c) {
      const double mean = s[c];
      a.sums[c] += n * mean;
      a.sums[channels + c] += static_cast<double>(s[channels + c]) + n * mean * mean;
    }
    a.sums[2 * channels] += n;
  }
  a.sums[2 * channels + 1] = a.sums[2 * channels];
  return kOk;
}

int batch_norm_from_sums(const BatchNormFromSums& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  const double count = std::max(a.sums[2 * channels], 1.0);
  for (size_t c = 0; c < channels; ++c) {
    const double mean = a.sums[c] / count;
    const double squares = std::max(a.sums[channels + c] - mean * a.sums[c], 0.0);
    a.mean[c] = static_cast<float>(mean);
    a.variance[c] = static_cast<float>(squares / count);
    const double unbiased = squares / std::max(count - 1.0, 1.0);
    a.running_mean[c] += static_cast<float>((mean - a.running_mean[c]) * a.momentum);
    a.running_var[c] += static_cast<float>((unbiased - a.running_var[c]) * a.momentum);
  }
  *a.share = static_cast<float>(a.sums[2 * channels + 1] / count);
  *a.batches += 1;
  return kOk;
}

int batch_norm_gradient_sums(const BatchNormGradientSums& a, void*) {
  const size_t columns = 2 * static_cast<size_t>(a.channels);
  const size_t parts = static_cast<size_t>(batch_norm_parts(a.rows));
  for (size_t i = 0; i < columns; ++i) {
    double sum = 0.0;
    for (size_t part = 0; part < parts; ++part) sum += a.partial[part * columns + i];
    a.sums[i] = sum;
  }
  return kOk;
}

int batch_norm_gradient_from_sums(const BatchNormGradientFromSums& a, void*) {
  const size_t columns = 2 * static_cast<size_t>(a.channels);
  const size_t parts = static_cast<size_t>(batch_norm_parts(a.rows));
  for (size_t i = 0; i < parts * columns; ++i)
    a.partial[i] =
        i < columns ? static_cast<float>(a.sums[i] * static_cast<double>(*a.share)) : 0.0f;
  return kOk;
}

}  // namespace aerie::kernels::reference
