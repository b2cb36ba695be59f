#include <algorithm>
#include <vector>

#include "aerie/kernels/conv/depthwise.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {

int depthwise_forward(const DepthwiseForward& a, void*) {
  const auto at = [&](int b, int t, int c) {
    return (static_cast<size_t>(b) * static_cast<size_t>(a.frames) + static_cast<size_t>(t)) *
               static_cast<size_t>(a.channels) +
           static_cast<size_t>(c);
  };
  for (int b = 0; b < a.batch; ++b)
    for (int t = 0; t < a.frames; ++t)
      for (int c = 0; c < a.channels; ++c) {
        double sum = a.bias != nullptr ? a.bias[c] : 0.0f;
        for (int k = 0; k < a.kernel; ++k) {
          const int from = t - a.left + k;
          if (from >= 0 && from < a.frames)
            sum += static_cast<double>(a.weight[c * a.kernel + k]) *
                   load(a.x, a.dtype, at(b, from, c));
        }
        store(a.out, a.dtype, at(b, t, c), static_cast<float>(sum));
      }
  if (a.statistics == nullptr) return kOk;
  const int strips = depthwise_strips(1, a.frames);
  for (int part = 0; part < a.batch * strips; ++part) {
    const int b = part / strips, begin = part % strips * kDepthwiseStrip;
    const int end = std::min(begin + kDepthwiseStrip, statistics_limit(a.counted, b, a.frames));
    for (int c = 0; c < a.channels; ++c) {
      double mean = 0.0, squares = 0.0;
      for (int t = begin; t < end; ++t)
        mean += load(a.out, a.dtype, at(b, t, c)) / static_cast<double>(end - begin);
      for (int t = begin; t < end; ++t) {
        const double off = load(a.out, a.dtype, at(b, t, c)) - mean;
        squares += off * off;
      }
      float* out = a.statistics + static_cast<size_t>(part) * 2 * static_cast<size_t>(a.channels);
      out[c] = static_cast<float>(mean);
      out[a.channels + c] = static_cast<float>(squares);
    }
  }
  return kOk;
}

int depthwise_backward(const DepthwiseBackward& a, void*) {
  const auto at = [&](int b, int t, int c) {
    return (static_cast<size_t>(b) * static_cast<size_t>(a.frames) + static_cast<size_t>(t)) *
               static_cast<size_t>(a.channels) +
           static_cast<size_t>(c);
  };
  for (int c = 0; c < a.channels; ++c) {
    std::vector<double> d_weight(static_cast<size_t>(a.kernel));
    double d_bias = 0.0;
    for (int b = 0; b < a.batch; ++b)
      for (int t = 0; t < a.frames; ++t) {
        const double grad = load(a.grad_out, a.dtype, at(b, t, c));
        d_bias += grad;
        double sum = 0.0;
        for (int k = 0; k < a.kernel; ++k) {
          const int from = t - a.left + k;  // the input this output read with tap k
          if (from >= 0 && from < a.frames)
            d_weight[static_cast<size_t>(k)] += grad * load(a.x, a.dtype, at(b, from, c));
          const int to = t + a.left - k;  // the output that read this input with tap k
          if (to >= 0 && to < a.frames)
            sum += static_cast<double>(a.weight[c * a.kernel + k]) *
                   load(a.grad_out, a.dtype, at(b, to, c));
        }
        store(a.grad_x, a.dtype, at(b, t, c), static_cast<float>(sum));
      }
    for (int k = 0; k < a.kernel; ++k)
      put(a.grad_weight + c * a.kernel + k, d_weight[static_cast<size_t>(k)], a.accumulate);
    if (a.grad_bias != nullptr) put(a.grad_bias + c, d_bias, a.accumulate);
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
