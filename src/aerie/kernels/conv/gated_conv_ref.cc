#include <algorithm>
#include <cmath>
#include <vector>

#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {
namespace {

size_t place(const GatedConv& a, int b, int t, int c, int width) {
  return static_cast<size_t>(first_row(a.layout, b, a.frames) + t) * static_cast<size_t>(width) +
         static_cast<size_t>(c);
}

// The two halves of x, with their biases, and what they give.
struct Gates {
  double left = 0.0, slope = 0.0;  // slope: the sigmoid of the right half
  double value() const { return left * slope; }
};
Gates gates(const GatedConv& a, int b, int t, int c) {
  if (t < 0 || t >= std::min(a.lengths[b], rows_of(a.layout, b, a.frames))) return {};
  const auto half = [&](int channel) {
    const double bias = a.gate_bias != nullptr ? a.gate_bias[channel] : 0.0f;
    return load(a.x, a.dtype, place(a, b, t, channel, 2 * a.channels)) + bias;
  };
  return {half(c), sigmoid(half(a.channels + c))};
}

// What the convolution put out; frames without rows: what it would have.
double output(const GatedConv& a, int b, int t, int c) {
  if (t < rows_of(a.layout, b, a.frames))
    return load(a.out, a.dtype, place(a, b, t, c, a.channels));
  float bias = 0.0f;
  store(&bias, a.dtype, 0, a.bias != nullptr ? a.bias[c] : 0.0f);
  return load(&bias, a.dtype, 0);
}

}  // namespace

int gated_conv(const GatedConv& a, void*) {
  for (int b = 0; b < a.batch; ++b)
    for (int t = 0; t < rows_of(a.layout, b, a.frames); ++t)
      for (int c = 0; c < a.channels; ++c) {
        double sum = a.bias != nullptr ? a.bias[c] : 0.0f;
        for (int k = 0; k < a.kernel; ++k)
          sum += static_cast<double>(a.weight[c * a.kernel + k]) *
                 gates(a, b, t - a.left + k, c).value();
        store(a.out, a.dtype, place(a, b, t, c, a.channels), static_cast<float>(sum));
      }
  if (a.statistics == nullptr) return kOk;
  const int tiles = conv_parts(1, a.frames);
  for (int part = 0; part < a.batch * tiles; ++part) {
    const int b = part / tiles, begin = part % tiles * kConvRows;
    const int end = std::min(begin + kConvRows, statistics_limit(a.counted, b, a.frames));
    for (int c = 0; c < a.channels; ++c) {
      double mean = 0.0, squares = 0.0;
      for (int t = begin; t < end; ++t)
        mean += output(a, b, t, c) / static_cast<double>(end - begin);
      for (int t = begin; t < end; ++t) {
        const double off = output(a, b, t, c) - mean;
        squares += off * off;
      }
      float* out = a.statistics + static_cast<size_t>(part) * 2 * static_cast<size_t>(a.channels);
      out[c] = static_cast<float>(mean);
      out[a.channels + c] = static_cast<float>(squares);
    }
  }
  return kOk;
}

int gated_conv_backward(const GatedConvBackward& a, void*) {
  const GatedConv& f = a.forward;
  double counted = 0.0;
  for (int b = 0; b < f.batch; ++b) counted += statistics_limit(f.counted, b, f.frames);
  const size_t channels = static_cast<size_t>(f.channels);
  std::vector<double> totals(2 * channels);
  const int parts = batch_norm_parts(num_rows(f.layout, f.batch, f.frames));
  for (int part = 0; part < parts; ++part)
    for (size_t i = 0; i < 2 * channels; ++i)
      totals[i] += a.norm_partial[static_cast<size_t>(part) * 2 * channels + i];
  const size_t frames = static_cast<size_t>(f.frames), taps = static_cast<size_t>(f.kernel);
  for (int c = 0; c < f.channels; ++c) {
    std::vector<double> d_weight(taps);
    double d_bias = 0.0, d_left = 0.0, d_right = 0.0;
    for (int b = 0; b < f.batch; ++b) {
      // What arrives at the convolution's output.
      std::vector<double> g(frames);
      for (int t = 0; t < statistics_limit(f.counted, b, f.frames); ++t) {
        const double normal = (output(f, b, t, c) - static_cast<double>(a.mean[c])) * a.rstd[c];
        const double z = normal * a.norm_weight[c] + a.norm_bias[c];
        const double s = sigmoid(z);
        const double arrived = t < rows_of(f.layout, b, f.frames)
                                   ? load(a.grad_out, f.dtype, place(f, b, t, c, f.channels))
                                   : 0.0f;
        const double before = arrived * s * (1.0 + z * (1.0 - s));
        g[static_cast<size_t>(t)] = a.norm_weight[c] * static_cast<double>(a.rstd[c]) *
                                    (before - totals[static_cast<size_t>(c)] / counted -
                                     normal * totals[channels + static_cast<size_t>(c)] / counted);
        d_bias += g[static_cast<size_t>(t)];
      }
      for (int t = 0; t < rows_of(f.layout, b, f.frames); ++t) {
        const Gates gate = gates(f, b, t, c);
        double sum = 0.0;
        for (int k = 0; k < f.kernel; ++k) {
          const int to = t + f.left - k;  // the output that read this input with tap k
          if (to < 0 || to >= f.frames) continue;
          const double grad = g[static_cast<size_t>(to)];
          sum += static_cast<double>(f.weight[c * f.kernel + k]) * grad;
          d_weight[static_cast<size_t>(k)] += grad * gate.value();
        }
        const double left = sum * gate.slope;
        const double right = sum * gate.value() * (1.0 - gate.slope);
        store(a.grad_x, f.dtype, place(f, b, t, c, 2 * f.channels), static_cast<float>(left));
        store(a.grad_x, f.dtype, place(f, b, t, f.channels + c, 2 * f.channels),
              static_cast<float>(right));
        d_left += left;
        d_right += right;
      }
    }
    for (int k = 0; k < f.kernel; ++k)
      put(a.grad_weight + c * f.kernel + k, d_weight[static_cast<size_t>(k)], a.accumulate);
    if (a.grad_bias != nullptr) put(a.grad_bias + c, d_bias, a.accumulate);
    if (a.grad_gate_bias == nullptr) continue;
    put(a.grad_gate_bias + c, d_left, a.accumulate);
    put(a.grad_gate_bias + f.channels + c, d_right, a.accumulate);
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
