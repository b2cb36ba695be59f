#include <algorithm>
#include <cmath>
#include <limits>

#include "aerie/base/check.h"
#include "aerie/kernels/splat/splat.h"

namespace aerie::kernels {

SplatIndex splat_index(const SplatShape& shape, const int32_t* cell) {
  AERIE_CHECK(shape.points() <= std::numeric_limits<int32_t>::max(), "too many points for a splat");
  SplatIndex index;
  index.begin.assign(static_cast<size_t>(shape.cells()) + 1, 0);
  for (int64_t i = 0; i < shape.points(); ++i) {
    AERIE_CHECK(cell[i] < shape.cells(), "point ", i, " lies in cell ", cell[i], " of ",
                shape.cells());
    if (cell[i] >= 0) ++index.begin[static_cast<size_t>(cell[i]) + 1];
  }
  for (size_t c = 1; c < index.begin.size(); ++c) index.begin[c] += index.begin[c - 1];
  index.points.resize(static_cast<size_t>(index.begin.back()));
  std::vector<int64_t> next(index.begin.begin(), index.begin.end() - 1);
  for (int64_t i = 0; i < shape.points(); ++i)
    if (cell[i] >= 0)
      index.points[static_cast<size_t>(next[static_cast<size_t>(cell[i])]++)] =
          static_cast<int32_t>(i);
  return index;
}

namespace reference {
namespace {

// Context with the channels of a pixel side by side: [images][pixels][channels].
template <typename T>
std::vector<T> channels_last(const SplatInputs<T>& in) {
  const SplatShape& s = in.shape;
  std::vector<T> out(static_cast<size_t>(s.images * s.pixels * s.channels));
  T* next = out.data();
  for (int64_t i = 0; i < s.images; ++i)
    for (int64_t p = 0; p < s.pixels; ++p) {
      const T* from = in.context + i * in.context_strides.image + p * in.context_strides.pixel;
      for (int64_t c = 0; c < s.channels; ++c) *next++ = from[c * in.context_strides.channel];
    }
  return out;
}

// softmax over the depths of a pixel
template <typename T>
void depth_of_pixel(const T* logits, int64_t stride, int64_t depths, T* out) {
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < depths; ++k)
    largest = std::max(largest, static_cast<double>(logits[k * stride]));
  double sum = 0.0;
  for (int64_t k = 0; k < depths; ++k)
    sum += std::exp(static_cast<double>(logits[k * stride]) - largest);
  for (int64_t k = 0; k < depths; ++k)
    out[k] = static_cast<T>(std::exp(static_cast<double>(logits[k * stride]) - largest) / sum);
}

// Element 0 of a cell's channels in [B, nz*C, nx, ny], and the distance between its channels.
struct CellPlace {
  int64_t first, stride;
};
CellPlace place_of_cell(const SplatShape& s, int64_t cell) {
  const int64_t plane = s.nx * s.ny;
  return {cell / plane * s.channels * plane + cell % plane, plane};
}

}  // namespace

template <typename T>
void splat_forward(const SplatInputs<T>& in, const SplatIndex& index, T* depth, T* pooled) {
  const SplatShape& s = in.shape;
  for (int64_t i = 0; i < s.images; ++i)
    for (int64_t p = 0; p < s.pixels; ++p)
      depth_of_pixel(in.depth_logits + i * in.logits_strides.image + p * in.logits_strides.pixel,
                     in.logits_strides.channel, s.depths, depth + (i * s.pixels + p) * s.depths);
  const std::vector<T> context = channels_last(in);
  std::vector<double> sums(static_cast<size_t>(s.channels));
  for (int64_t cell = 0; cell < s.cells(); ++cell) {
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t at = index.begin[static_cast<size_t>(cell)];
         at < index.begin[static_cast<size_t>(cell) + 1]; ++at) {
      const int64_t point = index.points[static_cast<size_t>(at)];
      const double weight = static_cast<double>(depth[point]);
      const T* row = context.data() + point / s.depths * s.channels;
      for (int64_t c = 0; c < s.channels; ++c)
        sums[static_cast<size_t>(c)] += weight * static_cast<double>(row[c]);
    }
    const CellPlace place = place_of_cell(s, cell);
    for (int64_t c = 0; c < s.channels; ++c)
      pooled[place.first + c * place.stride] = static_cast<T>(sums[static_cast<size_t>(c)]);
  }
}

template <typename T>
void splat_backward(const SplatInputs<T>& in, const T* depth, const T* d_pooled, T* d_depth_logits,
                    T* d_context) {
  const SplatShape& s = in.shape;
  // Gradients of a cell side by side, as a pixel gathers them.
  std::vector<T> gradients(static_cast<size_t>(s.cells() * s.channels));
  for (int64_t cell = 0; cell < s.cells(); ++cell) {
    const CellPlace place = place_of_cell(s, cell);
    for (int64_t c = 0; c < s.channels; ++c)
      gradients[static_cast<size_t>(cell * s.channels + c)] =
          d_pooled[place.first + c * place.stride];
  }
  const std::vector<T> context = channels_last(in);
  std::vector<double> sums(static_cast<size_t>(s.channels));
  std::vector<double> d_depth(static_cast<size_t>(s.depths));
  for (int64_t i = 0; i < s.images; ++i)
    for (int64_t p = 0; p < s.pixels; ++p) {
      const int64_t pixel = i * s.pixels + p;
      const T* row = context.data() + pixel * s.channels;
      const T* weights = depth + pixel * s.depths;
      std::fill(sums.begin(), sums.end(), 0.0);
      double mean = 0.0;  // of d_depth under the distribution
      for (int64_t k = 0; k < s.depths; ++k) {
        double product = 0.0;
        const int32_t cell = in.cell[pixel * s.depths + k];
        if (cell >= 0) {
          const T* g = gradients.data() + static_cast<int64_t>(cell) * s.channels;
          const double weight = static_cast<double>(weights[k]);
          for (int64_t c = 0; c < s.channels; ++c) {
            product += static_cast<double>(g[c]) * static_cast<double>(row[c]);
            sums[static_cast<size_t>(c)] += weight * static_cast<double>(g[c]);
          }
        }
        d_depth[static_cast<size_t>(k)] = product;
        mean += static_cast<double>(weights[k]) * product;
      }
      T* to = d_context + i * in.context_strides.image + p * in.context_strides.pixel;
      for (int64_t c = 0; c < s.channels; ++c)
        to[c * in.context_strides.channel] = static_cast<T>(sums[static_cast<size_t>(c)]);
      T* logits = d_depth_logits + i * in.logits_strides.image + p * in.logits_strides.pixel;
      for (int64_t k = 0; k < s.depths; ++k)
        logits[k * in.logits_strides.channel] = static_cast<T>(
            static_cast<double>(weights[k]) * (d_depth[static_cast<size_t>(k)] - mean));
    }
}

template void splat_forward<float>(const SplatInputs<float>&, const SplatIndex&, float*, float*);
template void splat_forward<double>(const SplatInputs<double>&, const SplatIndex&, double*,
                                    double*);
template void splat_backward<float>(const SplatInputs<float>&, const float*, const float*, float*,
                                    float*);
template void splat_backward<double>(const SplatInputs<double>&, const double*, const double*,
                                     double*, double*);

}  // namespace reference
}  // namespace aerie::kernels
