#include <algorithm>
#include <vector>

#include "aerie/kernels/reference.h"
#include "aerie/kernels/subsampling/subsampling.h"

namespace aerie::kernels::reference {
namespace {

// A (time, mel, channel) volume of one item in double precision.
struct Volume {
  Volume(int t, int f, int c) : frames(t), bins(f), channels(c) {
    values.resize(static_cast<size_t>(t) * static_cast<size_t>(f) * static_cast<size_t>(c));
  }
  double& at(int t, int f, int c) {
    return values[(static_cast<size_t>(t) * static_cast<size_t>(bins) + static_cast<size_t>(f)) *
                      static_cast<size_t>(channels) +
                  static_cast<size_t>(c)];
  }
  bool inside(int t, int f) const { return t >= 0 && t < frames && f >= 0 && f < bins; }
  int frames, bins, channels;
  std::vector<double> values;
};

struct Sums {
  explicit Sums(int c)
      : weight0(static_cast<size_t>(c) * 9),
        bias0(static_cast<size_t>(c)),
        weight1(static_cast<size_t>(c) * 9),
        bias1(static_cast<size_t>(c)) {}
  std::vector<double> weight0, bias0, weight1, bias1;
};

void put_all(float* out, const std::vector<double>& sums, bool accumulate) {
  if (out == nullptr) return;
  for (size_t i = 0; i < sums.size(); ++i) put(out + i, sums[i], accumulate);
}

// Features of an item, zero beyond its length.
Volume features_of(const SubsampleFirst& a, int item) {
  Volume x(a.frames, a.bins, 1);
  for (int t = 0; t < std::min(a.frames, a.lengths[item]); ++t)
    for (int f = 0; f < a.bins; ++f)
      x.at(t, f, 0) =
          a.x[(static_cast<size_t>(item) * static_cast<size_t>(a.frames) + static_cast<size_t>(t)) *
                  static_cast<size_t>(a.bins) +
              static_cast<size_t>(f)];
  return x;
}

// 3x3, stride 2, padding 1. One input channel feeds all outputs, or each its own.
Volume convolve(Volume& x, const float* weight, const float* bias, int channels, int length) {
  Volume out(strided(x.frames), strided(x.bins), channels);
  for (int t = 0; t < std::min(out.frames, length); ++t)
    for (int f = 0; f < out.bins; ++f)
      for (int c = 0; c < channels; ++c) {
        double sum = bias[c];
        for (int k = 0; k < 9; ++k) {
          const int from_t = 2 * t - 1 + k / 3, from_f = 2 * f - 1 + k % 3;
          if (x.inside(from_t, from_f))
            sum += weight[c * 9 + k] * x.at(from_t, from_f, x.channels > 1 ? c : 0);
        }
        out.at(t, f, c) = sum;
      }
  return out;
}

// Gradients of convolve(): of the input (with as many channels as the output), taps and bias.
Volume convolve_backward(Volume& x, Volume& grad, const float* weight,
                         std::vector<double>& d_weight, std::vector<double>& d_bias) {
  Volume d_x(x.frames, x.bins, x.channels);
  for (int t = 0; t < grad.frames; ++t)
    for (int f = 0; f < grad.bins; ++f)
      for (int c = 0; c < grad.channels; ++c) {
        const double g = grad.at(t, f, c);
        d_bias[static_cast<size_t>(c)] += g;
        for (int k = 0; k < 9; ++k) {
          const int from_t = 2 * t - 1 + k / 3, from_f = 2 * f - 1 + k % 3;
          if (!x.inside(from_t, from_f)) continue;
          const int from_c = x.channels > 1 ? c : 0;
          d_weight[static_cast<size_t>(c * 9 + k)] += g * x.at(from_t, from_f, from_c);
          d_x.at(from_t, from_f, from_c) += g * weight[c * 9 + k];
        }
      }
  return d_x;
}

void relu_in_place(Volume& x) {
  for (double& v : x.values) v = std::max(v, 0.0);
}

Volume read(const void* from, Dtype dtype, int item, int frames, int bins, int channels) {
  Volume out(frames, bins, channels);
  for (size_t i = 0; i < out.values.size(); ++i)
    out.values[i] = load(from, dtype, static_cast<size_t>(item) * out.values.size() + i);
  return out;
}

void write(void* to, Dtype dtype, int item, const Volume& x) {
  for (size_t i = 0; i < x.values.size(); ++i)
    store(to, dtype, static_cast<size_t>(item) * x.values.size() + i,
          static_cast<float>(x.values[i]));
}

void zero_from(Volume& x, int length) {
  for (int t = std::max(length, 0); t < x.frames; ++t)
    for (int f = 0; f < x.bins; ++f)
      for (int c = 0; c < x.channels; ++c) x.at(t, f, c) = 0.0;
}

// relu(x + bias), zero beyond the length.
Volume activate(const SubsampleNext& a, int item) {
  Volume x = read(a.x, a.dtype, item, a.frames, a.bins, a.channels);
  for (size_t i = 0; i < x.values.size(); ++i)
    x.values[i] += a.bias0[i % static_cast<size_t>(a.channels)];
  zero_from(x, a.lengths[item]);
  relu_in_place(x);
  return x;
}

}  // namespace

int subsample_first(const SubsampleFirst& a, void*) {
  for (int item = 0; item < a.batch; ++item) {
    const int length1 = strided(a.lengths[item]);
    Volume x = features_of(a, item);
    Volume middle = convolve(x, a.weight0, a.bias0, a.channels, length1);
    relu_in_place(middle);
    write(a.out, a.dtype, item, convolve(middle, a.weight1, a.bias1, a.channels, strided(length1)));
  }
  return kOk;
}

int subsample_first_backward(const SubsampleFirstBackward& b, void*) {
  const SubsampleFirst& a = b.forward;
  Sums sums(a.channels);
  for (int item = 0; item < a.batch; ++item) {
    const int length1 = strided(a.lengths[item]);
    Volume x = features_of(a, item);
    Volume middle = convolve(x, a.weight0, a.bias0, a.channels, length1);
    relu_in_place(middle);
    Volume grad =
        read(b.grad_out, a.dtype, item, strided(middle.frames), strided(middle.bins), a.channels);
    zero_from(grad, strided(length1));
    Volume d = convolve_backward(middle, grad, a.weight1, sums.weight1, sums.bias1);
    for (size_t i = 0; i < d.values.size(); ++i)
      if (middle.values[i] <= 0.0) d.values[i] = 0.0;
    convolve_backward(x, d, a.weight0, sums.weight0, sums.bias0);
  }
  put_all(b.grad_weight0, sums.weight0, b.accumulate);
  put_all(b.grad_bias0, sums.bias0, b.accumulate);
  put_all(b.grad_weight1, sums.weight1, b.accumulate);
  put_all(b.grad_bias1, sums.bias1, b.accumulate);
  return kOk;
}

int subsample_next(const SubsampleNext& a, void*) {
  for (int item = 0; item < a.batch; ++item) {
    Volume x = activate(a, item);
    write(a.out, a.dtype, item,
          convolve(x, a.weight1, a.bias1, a.channels, strided(a.lengths[item])));
  }
  return kOk;
}

int subsample_next_backward(const SubsampleNextBackward& b, void*) {
  const SubsampleNext& a = b.forward;
  Sums sums(a.channels);
  for (int item = 0; item < a.batch; ++item) {
    Volume x = activate(a, item);
    Volume grad = read(b.grad_out, a.dtype, item, strided(a.frames), strided(a.bins), a.channels);
    zero_from(grad, strided(a.lengths[item]));
    Volume d = convolve_backward(x, grad, a.weight1, sums.weight1, sums.bias1);
    for (size_t i = 0; i < d.values.size(); ++i) {
      if (x.values[i] <= 0.0) d.values[i] = 0.0;
      sums.bias0[i % static_cast<size_t>(a.channels)] += d.values[i];
    }
    write(b.grad_x, a.dtype, item, d);
  }
  put_all(b.grad_bias0, sums.bias0, b.accumulate);
  put_all(b.grad_weight1, sums.weight1, b.accumulate);
  put_all(b.grad_bias1, sums.bias1, b.accumulate);
  return kOk;
}

int relu(const Relu& a, void*) {
  std::vector<double> sums(static_cast<size_t>(a.channels));
  for (int item = 0; item < a.batch; ++item) {
    Volume x = read(a.x, a.dtype, item, a.frames, a.bins, a.channels);
    if (a.bias != nullptr)
      for (size_t i = 0; i < x.values.size(); ++i)
        x.values[i] += a.bias[i % static_cast<size_t>(a.channels)];
    zero_from(x, a.lengths[item]);
    relu_in_place(x);
    if (a.grad_out == nullptr) {
      write(a.out, a.dtype, item, x);
      continue;
    }
    Volume grad = read(a.grad_out, a.dtype, item, a.frames, a.bins, a.channels);
    for (size_t i = 0; i < grad.values.size(); ++i) {
      if (x.values[i] <= 0.0) grad.values[i] = 0.0;
      sums[i % static_cast<size_t>(a.channels)] += grad.values[i];
    }
    write(a.grad_x, a.dtype, item, grad);
  }
  if (a.grad_out != nullptr) put_all(a.grad_bias, sums, a.accumulate);
  return kOk;
}

}  // namespace aerie::kernels::reference
