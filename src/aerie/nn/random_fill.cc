#include "aerie/nn/random_fill.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace aerie::nn {
namespace {

// out[k] = factor for draw first_index + k of one stream.
void fill_factors(float* out, int64_t count, PhiloxKey key, uint32_t site, uint64_t position,
                  uint64_t first_index, uint64_t threshold, float scale) {
  PhiloxBlock block{};
  uint64_t loaded = ~uint64_t{0};
  for (int64_t k = 0; k < count; ++k) {
    const uint64_t index = first_index + static_cast<uint64_t>(k);
    if ((index >> 2) != loaded) {
      loaded = index >> 2;
      block = philox_block(key, site, position, static_cast<uint32_t>(loaded));
    }
    out[k] = block.v[index & 3] >= threshold ? scale : 0.0f;
  }
}

float keep_scale(double p) {
  return p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
}

}  // namespace

uint64_t drop_threshold(double p) {
  return static_cast<uint64_t>(std::llround(p * 4294967296.0));
}

at::Tensor dropout_factors_btc(const RandomKey& key, uint32_t site, double p, int64_t batch,
                               int64_t frames, int64_t channels) {
  at::Tensor out = at::empty({batch, frames, channels}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDropout);
  const uint64_t threshold = drop_threshold(p);
  const int64_t row = frames * channels;
  for (int64_t b = 0; b < batch; ++b) {
    at::parallel_for(0, row, 1 << 16, [&](int64_t begin, int64_t end) {
      fill_factors(values + b * row + begin, end - begin, philox, site,
                   key.position(static_cast<uint64_t>(b)), static_cast<uint64_t>(begin), threshold,
                   keep_scale(p));
    });
  }
  return out;
}

at::Tensor dropout_factors_attention(const RandomKey& key, uint32_t site, double p, int64_t batch,
                                     int64_t heads, int64_t queries, int64_t keys) {
  at::Tensor out = at::empty({batch, heads, queries, keys}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDropout);
  const uint64_t threshold = drop_threshold(p);
  at::parallel_for(0, batch * heads * queries, 64, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint64_t i = static_cast<uint64_t>(row % queries);
      const uint64_t head = static_cast<uint64_t>((row / queries) % heads);
      const uint64_t item = static_cast<uint64_t>(row / queries / heads);
      fill_factors(values + row * keys, keys, philox, site, key.position(item),
                   (head << 26) + (i << 13), threshold, keep_scale(p));
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
    fill_factors(values + r * channels, channels, philox, site, key.micro_step << 20,
                 static_cast<uint64_t>(index), drop_threshold(p), keep_scale(p));
  }
  return out;
}

at::Tensor dither_normals(const RandomKey& key, uint32_t signal, int64_t batch, int64_t samples) {
  at::Tensor out = at::empty({batch, samples}, at::kFloat);
  float* values = out.data_ptr<float>();
  const PhiloxKey philox = philox_key(key.seed, Purpose::kDither);
  // Four normals of a stream come from one Philox block: making them together costs a quarter of
  // asking for each.
  const int64_t blocks = (samples + 3) / 4;
  at::parallel_for(0, batch * blocks, 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = k / blocks, number = k % blocks;
      const PhiloxBlock block = philox_block(
          philox, signal, key.position(static_cast<uint64_t>(row)), static_cast<uint32_t>(number));
      float four[4];
      u32x2_to_normals(block.v[0], block.v[1], &four[0], &four[1]);
      u32x2_to_normals(block.v[2], block.v[3], &four[2], &four[3]);
      const int64_t count = std::min<int64_t>(4, samples - number * 4);
      std::copy_n(four, count, values + row * samples + number * 4);
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
