#include <cmath>
#include <vector>

#include "aerie/kernels/norm/layer_norm.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {
namespace {

// `means` (rows): null, not wanted.
void forward_of(const LayerNormForward& a, float* means) {
  const size_t channels = static_cast<size_t>(a.channels);
  const size_t rows = static_cast<size_t>(num_rows(a.layout, a.batch, a.frames));
  std::vector<double> x(channels);
  std::vector<float> middle(rows * channels);  // what a norm behind this one gets
  for (size_t row = 0; row < rows; ++row) {
    const Place place = place_of(a, row);
    double mean = 0.0, var = 0.0;
    for (size_t c = 0; c < channels; ++c) {
      const size_t at = row * channels + c;
      x[c] = a.residual != nullptr ? a.residual[at] : 0.0;
      if (a.y != nullptr) {
        const float y = load(a.y, a.dtype, at) + (a.y_bias != nullptr ? a.y_bias[c] : 0.0f);
        const float factor = dropout_factor(a.dropout, place.item, place.frame * channels + c);
        if (a.keep != nullptr) set_keep(a.keep, at, factor != 0.0f);
        x[c] += a.scale * (factor * y);
      }
      if (a.sum != nullptr) a.sum[at] = static_cast<float>(x[c]);
      mean += x[c] / static_cast<double>(channels);
    }
    for (size_t c = 0; c < channels; ++c)
      var += (x[c] - mean) * (x[c] - mean) / static_cast<double>(channels);
    const double rstd = 1.0 / std::sqrt(var + a.eps);
    if (means != nullptr) means[row] = static_cast<float>(mean);
    a.rstd[row] = static_cast<float>(rstd);
    for (size_t c = 0; c < channels; ++c) {
      const double normal = (x[c] - mean) * rstd;
      if (a.normalized != nullptr)
        store(a.normalized, a.dtype, row * channels + c, static_cast<float>(normal));
      const float out = static_cast<float>(normal * a.weight[c] + a.bias[c]);
      if (a.out != nullptr) store(a.out, a.dtype, row * channels + c, out);
      if (a.out_float != nullptr) a.out_float[row * channels + c] = out;
      middle[row * channels + c] = out;
    }
  }
  if (a.next.weight == nullptr) return;
  LayerNormForward next;
  static_cast<Activations&>(next) = a;
  next.residual = middle.data();
  next.weight = a.next.weight;
  next.bias = a.next.bias;
  next.eps = a.eps;
  next.out = a.next.out;
  next.rstd = a.next.rstd;
  forward_of(next, a.next.mean);
}

// `normal`: what was normalized, (rows, channels).
void backward_of(const LayerNormBackward& a, const std::vector<double>& normal) {
  const size_t channels = static_cast<size_t>(a.channels);
  const size_t rows = normal.size() / channels;
  const double width = static_cast<double>(channels);
  std::vector<double> d_weight(channels), d_bias(channels), d_y_bias(channels);
  std::vector<double> grad(channels);
  // From a norm behind this one: the gradient of this one's output.
  std::vector<float> behind(a.next.weight != nullptr ? normal.size() : 0);
  if (a.next.weight != nullptr) {
    std::vector<double> next_normal(normal.size());
    for (size_t row = 0; row < rows; ++row)
      for (size_t c = 0; c < channels; ++c)
        next_normal[row * channels + c] =
            (normal[row * channels + c] * a.weight[c] + a.bias[c] - a.next.mean[row]) *
            a.next.rstd[row];
    LayerNormBackward next;
    static_cast<Activations&>(next) = a;
    next.rstd = a.next.rstd;
    next.weight = a.next.weight;
    next.bias = a.next.bias;
    next.out = a.next.out;
    next.grad_out = a.grad_next_out;
    next.grad_residual = behind.data();
    next.grad_weight = a.grad_next_weight;
    next.grad_bias = a.grad_next_bias;
    next.accumulate = a.accumulate;
    backward_of(next, next_normal);
  }
  for (size_t row = 0; row < rows; ++row) {
    const Place place = place_of(a, row);
    double mean_grad = 0.0, mean_product = 0.0;
    for (size_t c = 0; c < channels; ++c) {
      const size_t at = row * channels + c;
      double out = a.grad_out != nullptr ? load(a.grad_out, a.dtype, at) : 0.0f;
      if (a.grad_out_float != nullptr) out += a.grad_out_float[at];
      if (!behind.empty()) out += behind[at];
      if (a.out != nullptr)
        store(a.out, a.dtype, at, static_cast<float>(normal[at] * a.weight[c] + a.bias[c]));
      d_weight[c] += out * normal[at];
      d_bias[c] += out;
      grad[c] = out * a.weight[c];
      mean_grad += grad[c] / width;
      mean_product += grad[c] * normal[at] / width;
    }
    for (size_t c = 0; c < channels; ++c) {
      const size_t at = row * channels + c;
      double out = a.rstd[row] * (grad[c] - mean_grad - normal[at] * mean_product);
      if (a.grad_sum != nullptr) out += a.grad_sum[at];
      a.grad_residual[at] = static_cast<float>(out);
      if (a.grad_y == nullptr) continue;
      const float factor = dropout_factor(a.dropout, place.item, place.frame * channels + c);
      const float grad_y = static_cast<float>(out) * a.scale * factor;
      d_y_bias[c] += grad_y;
      store(a.grad_y, a.dtype, at, grad_y);
    }
  }
  for (size_t c = 0; c < channels; ++c) {
    put(a.grad_weight + c, d_weight[c], a.accumulate);
    put(a.grad_bias + c, d_bias[c], a.accumulate);
    if (a.grad_y_bias != nullptr) put(a.grad_y_bias + c, d_y_bias[c], a.accumulate);
  }
}

}  // namespace

int layer_norm_forward(const LayerNormForward& a, void*) {
  forward_of(a, nullptr);
  return kOk;
}

int layer_norm_backward(const LayerNormBackward& a, void*) {
  const size_t rows = static_cast<size_t>(num_rows(a.layout, a.batch, a.frames));
  std::vector<double> normal(rows * static_cast<size_t>(a.channels));
  for (size_t i = 0; i < normal.size(); ++i) normal[i] = load(a.normalized, a.dtype, i);
  backward_of(a, normal);
  return kOk;
}

}  // namespace aerie::kernels::reference
