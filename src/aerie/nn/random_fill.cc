#include "aerie/nn/random_fill.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "aerie/base/dropout.h"
#include "aerie/base/philox_fill.h"

namespace aerie::nn {

at::Tensor dropout_factors_btc(const RandomKey& key, uint32_t site, double p, int64_t batch,
                               int64_t frames, int64_t channels) {
  at::Tensor out = at::empty({batch, frames, channels}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDropout);
  const uint32_t threshold = dropout_threshold(p);
  const int64_t row = frames * channels;
  constexpr int64_t kChunk = 1 << 14;
  const int64_t chunks = (row + kChunk - 1) / kChunk;
  at::parallel_for(0, batch * chunks, 2, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t b = k / chunks, first = k % chunks * kChunk;
      philox_fill_keep(philox, site, key.position(static_cast<uint64_t>(b)),
                       static_cast<uint64_t>(first), std::min(kChunk, row - first), threshold,
                       dropout_scale(p), values + b * row + first);
    }
  });
  return out;
}

at::Tensor dropout_factors_attention(const RandomKey& key, uint32_t site, double p, int64_t batch,
                                     int64_t heads, int64_t queries, int64_t keys) {
  at::Tensor out = at::empty({batch, heads, queries, keys}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDropout);
  const uint32_t threshold = dropout_threshold(p);
  at::parallel_for(0, batch * heads * queries, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t i = static_cast<uint64_t>(row % queries);
      const uint64_t head = static_cast<uint64_t>((row / queries) % heads);
      const uint64_t item = static_cast<uint64_t>(row / queries / heads);
      philox_fill_keep(philox, site, key.position(item), (head << 26) + (i << 13), keys, threshold,
                       dropout_scale(p), values + row * keys);
    }
  });
  return out;
}

at::Tensor dropout_factors_positions(const RandomKey& key, uint32_t site, double p,
                                     int64_t first_position, int64_t rows, int64_t channels) {
  at::Tensor out = at::empty({1, rows, channels}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDropout);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t index = (first_position - r + 8192) * channels;
    philox_fill_keep(philox, site, key.micro_step << 20, static_cast<uint64_t>(index), channels,
                     dropout_threshold(p), dropout_scale(p), values + r * channels);
  }
  return out;
}

at::Tensor dither_normals(const RandomKey& key, uint32_t signal, int64_t batch, int64_t samples) {
  at::Tensor out = at::empty({batch, samples}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDither);
  constexpr int64_t kChunk = 1 << 13;
  const int64_t chunks = (samples + kChunk - 1) / kChunk;
  at::parallel_for(0, batch * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = k / chunks, first = k % chunks * kChunk;
      philox_fill_normals(philox, signal, key.position(static_cast<uint64_t>(row)),
                          static_cast<uint64_t>(first), std::min(kChunk, samples - first),
                          values + row * samples + first);
    }
  });
  return out;
}

double uniform_of_step(const RandomKey& key, Purpose purpose, uint32_t epoch) {
  return RandomStream(key.seed, purpose, epoch, key.micro_step << 20).uniform();
}

double uniform_of_item(const RandomKey& key, Purpose purpose, uint32_t epoch, uint64_t row) {
  return RandomStream(key.seed, purpose, epoch, key.position(row)).uniform();
}

}  // namespace aerie::nn
