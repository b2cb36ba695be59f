#include "aerie/nn/random_fill.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "aerie/base/check.h"
#include "aerie/base/dropout.h"
#include "aerie/base/philox_fill.h"

namespace aerie::nn {

namespace {

kernels::DrawStream stream_of(const RandomKey& key, Purpose purpose, uint32_t epoch) {
  return {philox_key(key.seed, purpose),
          epoch,
          key.micro_step,
          key.first_item,
          key.item_stride,
          key.rows_per_item};
}

kernels::DropoutDraws dropout_at(const RandomKey& key, uint32_t site, double p) {
  kernels::DropoutDraws out;
  out.stream = stream_of(key, Purpose::kDropout, site);
  out.threshold = dropout_threshold(p);
  out.scale = dropout_scale(p);
  return out;
}

}  // namespace

kernels::DropoutDraws dropout_of_btc(const RandomKey& key, uint32_t site, double p, int64_t batch,
                                     int64_t frames, int64_t channels) {
  kernels::DropoutDraws out = dropout_at(key, site, p);
  out.items = batch;
  out.columns = frames * channels;
  return out;
}

kernels::DropoutDraws dropout_of_attention(const RandomKey& key, uint32_t site, double p,
                                           int64_t batch, int64_t heads, int64_t queries,
                                           int64_t keys) {
  kernels::DropoutDraws out = dropout_at(key, site, p);
  out.items = batch;
  out.heads = heads;
  out.rows = queries;
  out.columns = keys;
  out.head_stride = int64_t{1} << 26;
  out.row_stride = int64_t{1} << 13;
  return out;
}

kernels::DropoutDraws dropout_of_positions(const RandomKey& key, uint32_t site, double p,
                                           int64_t first_position, int64_t rows, int64_t channels) {
  kernels::DropoutDraws out = dropout_at(key, site, p);
  out.stream.first_item = 0;
  out.stream.rows_per_item = 1;
  out.items = 1;
  out.rows = rows;
  out.columns = channels;
  out.first = static_cast<uint64_t>((first_position + 8192) * channels);
  out.row_stride = -channels;
  return out;
}

at::Tensor dropout_factors(const kernels::DropoutDraws& draws, at::IntArrayRef sizes) {
  at::Tensor out = at::empty(sizes, at::kFloat);
  const int64_t lines = draws.items * draws.heads * draws.rows;
  AERIE_CHECK(out.numel() == lines * draws.columns, out.numel(), " values for ", lines, " rows of ",
              draws.columns, " draws");
  float* values = out.data_ptr<float>();
  constexpr int64_t kChunk = 1 << 14;
  const int64_t chunks = (draws.columns + kChunk - 1) / kChunk;
  const int64_t grain = std::max<int64_t>(2, kChunk / std::max<int64_t>(1, draws.columns));
  at::parallel_for(0, lines * chunks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t line = k / chunks, column = k % chunks * kChunk;
      const int64_t row = line % draws.rows, head = line / draws.rows % draws.heads;
      const auto item = static_cast<uint64_t>(line / draws.rows / draws.heads);
      philox_fill_keep(draws.stream.key, draws.stream.epoch, stream_position(draws.stream, item),
                       first_draw(draws, head, row) + static_cast<uint64_t>(column),
                       std::min(kChunk, draws.columns - column), draws.threshold, draws.scale,
                       values + line * draws.columns + column);
    }
  });
  return out;
}

kernels::DrawStream dither_stream(const RandomKey& key, uint32_t signal) {
  return stream_of(key, Purpose::kDither, signal);
}

at::Tensor dither_normals(const RandomKey& key, uint32_t signal, int64_t batch, int64_t samples) {
  at::Tensor out = at::empty({batch, samples}, at::kFloat);
  float* values = out.data_ptr<float>();
  const kernels::DrawStream stream = dither_stream(key, signal);
  constexpr int64_t kChunk = 1 << 13;
  const int64_t chunks = (samples + kChunk - 1) / kChunk;
  at::parallel_for(0, batch * chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t row = k / chunks, first = k % chunks * kChunk;
      philox_fill_normals(stream.key, stream.epoch,
                          stream_position(stream, static_cast<uint64_t>(row)),
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
