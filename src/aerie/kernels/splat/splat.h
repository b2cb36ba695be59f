// Lift and splat: every feature pixel puts its context, weighted by its depth distribution, into
// the cells of the bird's-eye grid that its ray passes; a cell holds the sum over all points in it.
//
//   depth[i,p,:]  = softmax(depth_logits[i,p,:])                            i image, p pixel
//   pooled[cell]  = sum over points (i,p,k) in the cell of depth[i,p,k] * context[i,p,:]
//   d_context     = sum over k of depth[i,p,k] * d_pooled[cell(i,p,k)]
//   d_depth[k]    = <d_pooled[cell(i,p,k)], context[i,p,:]>
//   d_logits[k]   = depth[k] * (d_depth[k] - sum over j of depth[j] d_depth[j])
//
// Points are numbered image, pixel, depth; cell = ((b nz + z) nx + x) ny + y, or -1 for a point
// that is dropped. pooled is [B, nz*C, nx, ny], channel z*C + c. Sums over the points of a cell run
// in the order of points, so results depend on nothing but the inputs; the lifted tensor of
// points x C is never made.
#pragma once

#include <cstdint>
#include <vector>

namespace aerie::kernels {

// Where element (image, channel, pixel) of a feature map lies, in elements; channels first or last.
struct FeatureStrides {
  int64_t image = 0;
  int64_t channel = 0;
  int64_t pixel = 0;
};

struct SplatShape {
  int64_t batch = 0;
  int64_t images = 0;  // batch times cameras
  int64_t pixels = 0;  // of a feature map
  int64_t depths = 0;
  int64_t channels = 0;
  int64_t nx = 0, ny = 0, nz = 0;

  int64_t points() const { return images * pixels * depths; }
  int64_t cells() const { return batch * nz * nx * ny; }
};

// Which points lie in which cell: points of cell c are points[begin[c] .. begin[c+1]), ascending.
// Made from geometry alone, before features are there.
struct SplatIndex {
  std::vector<int64_t> begin;   // cells + 1
  std::vector<int32_t> points;  // kept ones
};
SplatIndex splat_index(const SplatShape& shape, const int32_t* cell);

template <typename T>  // float or double
struct SplatInputs {
  SplatShape shape;
  const int32_t* cell = nullptr;  // [points]
  const T* depth_logits = nullptr;
  FeatureStrides logits_strides;
  const T* context = nullptr;
  FeatureStrides context_strides;
};

namespace reference {

// depth [images][pixels][depths]; backward reads it again. Both sum in double.
template <typename T>
void splat_forward(const SplatInputs<T>& in, const SplatIndex& index, T* depth, T* pooled);

// Both gradients have the strides of what they belong to; every element is written.
template <typename T>
void splat_backward(const SplatInputs<T>& in, const T* depth, const T* d_pooled, T* d_depth_logits,
                    T* d_context);

}  // namespace reference
}  // namespace aerie::kernels
