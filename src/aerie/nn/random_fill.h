// Random tensors of the model, drawn from counter-based streams keyed by logical coordinates, so
// that a draw depends neither on how far a batch is padded nor on the device, and a faster path can
// make the same draws.
//
//   stream    key (seed, purpose), epoch = site, position = (micro_step << 20) | item
//   item      RandomKey::first_item + row of the batch * item_stride: its row in the batch of all
//             ranks together, whatever their number
//   index     (B,T,C) tensors: t*C + c; attention weights: (head << 26) + (i << 13) + j, exact for
//             up to 8192 frames; rows of relative positions p: (p + 8192)*C + c, item 0
//   keep      dropout_draw() >= dropout_threshold(p), 16 bits, eight values per Philox block
//             (aerie/base/dropout.h); kept values are multiplied by 1/(1-p) in float32
//
// The functions below describe draws or make them on the host. device_draws.h makes the same ones,
// to the bit, where the tensors are.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "aerie/base/philox.h"
#include "aerie/kernels/draws/draws.h"

namespace aerie::nn {

struct RandomKey {
  uint64_t seed = 0;
  uint64_t micro_step = 0;     // number of the micro-batch in the run
  uint64_t first_item = 0;     // number of row 0 inside the whole (multi-rank) micro-batch
  uint64_t item_stride = 1;    // samples are dealt to ranks in turn: their number
  uint64_t rows_per_item = 1;  // of the tensors, where a sample is several pictures

  uint64_t position(uint64_t row) const {
    return kernels::stream_position({{}, 0, micro_step, first_item, item_stride, rows_per_item},
                                    row);
  }
  // Of the rows from `row` on, by themselves.
  RandomKey from(int64_t row) const {
    RandomKey out = *this;
    out.first_item += static_cast<uint64_t>(row) * item_stride;
    return out;
  }
};

// Sites of dropout: one number per place, part of the reproducibility contract.
struct DropoutSite {
  enum Place : uint32_t {
    kFeedForward1Inner = 0,
    kFeedForward1Residual = 1,
    kAttentionWeights = 2,
    kAttentionResidual = 3,
    kConvResidual = 4,
    kFeedForward2Inner = 5,
    kFeedForward2Residual = 6,
    kGlobalAttentionWeights = 7,
  };
  static constexpr uint32_t kPreEncoder = 0;
  static constexpr uint32_t kPositions = 1;
  static constexpr uint32_t layer(int64_t layer_idx, Place place) {
    return static_cast<uint32_t>(layer_idx + 1) * 16 + place;
  }
};

// Which draws decide about the values of a tensor (all but dtype and memory are filled in):
// activations (B,T,C),
kernels::DropoutDraws dropout_of_btc(const RandomKey& key, uint32_t site, double p, int64_t batch,
                                     int64_t frames, int64_t channels);
// attention weights (B,H,T,S),
kernels::DropoutDraws dropout_of_attention(const RandomKey& key, uint32_t site, double p,
                                           int64_t batch, int64_t heads, int64_t queries,
                                           int64_t keys);
// and a table (1,rows,C) of relative positions first, first-1, ...
kernels::DropoutDraws dropout_of_positions(const RandomKey& key, uint32_t site, double p,
                                           int64_t first_position, int64_t rows, int64_t channels);

// Factors 0 or 1/(1-p), float32, of a tensor of these sizes; on the host.
at::Tensor dropout_factors(const kernels::DropoutDraws& draws, at::IntArrayRef sizes);

// Standard normals, float32, shape (B,N): purpose kDither, epoch = which signal, index = sample.
kernels::DrawStream dither_stream(const RandomKey& key, uint32_t signal);
at::Tensor dither_normals(const RandomKey& key, uint32_t signal, int64_t batch, int64_t samples);

// One number in [0, 1) per (purpose, epoch) of the micro-batch, the same on every rank.
double uniform_of_step(const RandomKey& key, Purpose purpose, uint32_t epoch);
// One number in [0, 1) per item.
double uniform_of_item(const RandomKey& key, Purpose purpose, uint32_t epoch, uint64_t row);

}  // namespace aerie::nn
