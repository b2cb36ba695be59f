#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {
namespace {

// Access to the operands of one head of one item.
struct Head {
  const Attention& a;
  int item, head;
  int length() const { return attention_length(a, item); }
  int rows() const { return rows_of(a.layout, item, a.frames); }
  size_t at(int t, int d, int stride) const {
    return (attention_first(a, item) + static_cast<size_t>(t)) * static_cast<size_t>(stride) +
           static_cast<size_t>(head * a.dim + d);
  }
  double q(int i, int d) const { return load(a.q, a.dtype, at(i, d, a.stride)); }
  double k(int j, int d) const { return load(a.k, a.dtype, at(j, d, a.stride)); }
  double v(int j, int d) const { return load(a.v, a.dtype, at(j, d, a.stride)); }
  double p(int m, int d) const {
    return load(a.r, a.dtype,
                static_cast<size_t>(m) * static_cast<size_t>(a.r_stride) +
                    static_cast<size_t>(head * a.dim + d));
  }
  double u_bias(int d) const { return a.bias_u[head * a.dim + d]; }
  double v_bias(int d) const { return a.bias_v[head * a.dim + d]; }
  size_t dense(int t, int d) const { return at(t, d, a.heads * a.dim); }
  double factor(int i, int j) const {
    return dropout_factor(a.dropout, static_cast<size_t>(item),
                          (static_cast<size_t>(head) << 26) + (static_cast<size_t>(i) << 13) +
                              static_cast<size_t>(j));
  }
  // Softmax weights of query i, before dropout.
  std::vector<double> weights(int i, double* lse) const {
    std::vector<double> out(static_cast<size_t>(a.frames));
    double running_max = -std::numeric_limits<double>::infinity(), sum = 0.0;
    for (int j = 0; j < a.frames; ++j) {
      const bool open = attention_allowed(a, length(), i, j);
      double s = 0.0;
      for (int d = 0; d < a.dim && open; ++d)
        s += (q(i, d) + u_bias(d)) * k(j, d) + (q(i, d) + v_bias(d)) * p(a.frames - 1 - i + j, d);
      out[static_cast<size_t>(j)] =
          open ? s / std::sqrt(a.dim) : -std::numeric_limits<double>::infinity();
      running_max = std::max(running_max, out[static_cast<size_t>(j)]);
    }
    if (running_max == -std::numeric_limits<double>::infinity()) {
      *lse = 0.0;
      std::fill(out.begin(), out.end(), 0.0);
      return out;
    }
    for (double& s : out) sum += s = std::exp(s - running_max);
    for (double& s : out) s /= sum;
    *lse = running_max + std::log(sum);
    return out;
  }
};

template <typename Body>
void for_each_head(const Attention& a, Body body) {
  for (int item = 0; item < a.batch; ++item)
    for (int head = 0; head < a.heads; ++head) body(Head{a, item, head});
}

}  // namespace

int attention(const Attention& a, void*) {
  for_each_head(a, [&](const Head& h) {
    for (int i = 0; i < a.frames; ++i) {
      double lse = 0.0;
      const std::vector<double> weights = h.weights(i, &lse);
      a.lse[(h.item * a.heads + h.head) * a.frames + i] = static_cast<float>(lse);
      for (int d = 0; d < a.dim && i < h.rows(); ++d) {
        double o = 0.0;
        for (int j = 0; j < h.length(); ++j)
          o += weights[static_cast<size_t>(j)] * h.factor(i, j) * h.v(j, d);
        store(a.out, a.dtype, h.dense(i, d), static_cast<float>(o));
      }
    }
  });
  return kOk;
}

int attention_backward(const AttentionBackward& b, void*) {
  const Attention& a = b.forward;
  const int dense = a.heads * a.dim;
  std::vector<double> d_p(static_cast<size_t>(2 * a.frames - 1) * static_cast<size_t>(dense));
  std::vector<double> d_u(static_cast<size_t>(dense)), d_v(static_cast<size_t>(dense));
  for_each_head(a, [&](const Head& h) {
    const size_t size = static_cast<size_t>(a.frames) * static_cast<size_t>(a.dim);
    std::vector<double> d_q(size), d_k(size), d_value(size);
    const auto cell = [&](int t, int d) {
      return static_cast<size_t>(t) * static_cast<size_t>(a.dim) + static_cast<size_t>(d);
    };
    for (int i = 0; i < h.length(); ++i) {
      double unused = 0.0, delta = 0.0;
      const std::vector<double> weights = h.weights(i, &unused);
      // d loss / d weight before dropout, then through the softmax.
      std::vector<double> d_weight(weights.size());
      for (int j = 0; j < h.length(); ++j) {
        for (int d = 0; d < a.dim; ++d) {
          const double grad = load(b.grad_out, a.dtype, h.dense(i, d));
          d_weight[static_cast<size_t>(j)] += grad * h.v(j, d) * h.factor(i, j);
          d_value[cell(j, d)] += grad * weights[static_cast<size_t>(j)] * h.factor(i, j);
        }
        delta += d_weight[static_cast<size_t>(j)] * weights[static_cast<size_t>(j)];
      }
      for (int j = 0; j < h.length(); ++j) {
        const double ds_value = weights[static_cast<size_t>(j)] *
                                (d_weight[static_cast<size_t>(j)] - delta) / std::sqrt(a.dim);
        const int m = a.frames - 1 - i + j;
        for (int d = 0; d < a.dim; ++d) {
          const size_t column = static_cast<size_t>(h.head * a.dim + d);
          d_q[cell(i, d)] += ds_value * (h.k(j, d) + h.p(m, d));
          d_u[column] += ds_value * h.k(j, d);
          d_v[column] += ds_value * h.p(m, d);
          d_k[cell(j, d)] += ds_value * (h.q(i, d) + h.u_bias(d));
          d_p[static_cast<size_t>(m) * static_cast<size_t>(dense) + column] +=
              ds_value * (h.q(i, d) + h.v_bias(d));
        }
      }
    }
    for (int t = 0; t < h.rows(); ++t)
      for (int d = 0; d < a.dim; ++d) {
        const size_t at = h.at(t, d, b.grad_stride);
        store(b.grad_q, a.dtype, at, static_cast<float>(d_q[cell(t, d)]));
        store(b.grad_k, a.dtype, at, static_cast<float>(d_k[cell(t, d)]));
        store(b.grad_v, a.dtype, at, static_cast<float>(d_value[cell(t, d)]));
      }
  });
  for (int m = 0; m < 2 * a.frames - 1; ++m)
    for (int c = 0; c < dense; ++c)
      store(b.grad_r, a.dtype,
            static_cast<size_t>(m) * static_cast<size_t>(b.grad_r_stride) + static_cast<size_t>(c),
            static_cast<float>(
                d_p[static_cast<size_t>(m) * static_cast<size_t>(dense) + static_cast<size_t>(c)]));
  for (int c = 0; c < dense; ++c) {
    put(b.grad_bias_u + c, d_u[static_cast<size_t>(c)], b.accumulate);
    put(b.grad_bias_v + c, d_v[static_cast<size_t>(c)], b.accumulate);
  }
  return kOk;
}

// Everything is there already.
int attention_positions(const AttentionBackward&, void*) {
  return kOk;
}

}  // namespace aerie::kernels::reference
