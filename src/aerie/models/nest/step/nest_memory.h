// Where everything of one micro-batch lies in a step's memory; included by nest_workspace.h alone.
#pragma once

#include <algorithm>
#include <vector>

#include "aerie/models/nest/step/packed_rows.h"

namespace aerie::kernels {

// The five norms of a layer, in the order they run.
enum NormKind {
  kNormFeedForward1,
  kNormSelfAtt,
  kNormConv,
  kNormFeedForward2,
  kNormOut,
  kNumNorms
};

struct NormBuffers {
  NormKind kind = kNormFeedForward1;
  // For backward, but for norms that are the `next` of another, which need a mean.
  void* normalized = nullptr;  // compute dtype
  uint8_t* keep = nullptr;
  float* mean = nullptr;
  float* rstd = nullptr;
  void* out = nullptr;  // compute dtype
};

struct LayerBuffers {
  NormBuffers norms[kNumNorms];
  void *ff1_hidden, *ff1_active, *ff2_hidden, *ff2_active;
  uint8_t *ff1_keep, *ff2_keep;
  void *qkv, *pos, *grad_pos, *attended, *gates, *conv, *normed;
  float *lse, *bn_mean, *bn_rstd;
  float* bn_share = nullptr;  // of all batches' frames; where sums are exchanged
  // Of attention, for backward: saved P and its tile max, or dropout's decisions alone.
  void* attention_saved = nullptr;
  float* attention_tile_max = nullptr;
  uint32_t* attention_keep = nullptr;
};

// Buffers that rotate: what was given out before is still in use.
struct Rotation {
  std::vector<void*> all;
  size_t at = 0;
  void* next() { return all[at++ % all.size()]; }
};

struct NestMemory {
  // With base null the pointers mean nothing, but used() is right.
  // pos_step: of NestStep::Joined.
  NestMemory(const NestStepConfig& config, int64_t pos_step, unsigned char* base)
      : c(config), base_(base) {
    frames = c.frames / 8;
    padded_rows = c.batch * frames;
    rows = step_rows(c);
    capacity = c.chosen > 0 ? c.chosen : rows;
    const int frames2 = strided(strided(c.frames));
    const int bins2 = strided(strided(c.bins));
    bins3 = strided(bins2);
    frames_quarter = frames2;
    bins_quarter = bins2;
    conv1_rows = c.batch * frames2 * bins2;
    conv2_rows = padded_rows * bins3;
    const size_t n = size(rows), width = size(c.width), channels = size(c.sub_channels);

    features = take<float>(2 * size(c.batch) * size(c.frames) * size(c.bins));
    mask = take<uint8_t>(size(c.batch) * size(c.frames));
    selected = take<uint8_t>(size(padded_rows));
    chosen = take<int32_t>(size(capacity));
    packed_rows = take<int32_t>(size(capacity));
    slots = take<int32_t>(n);
    tokens = take<int32_t>(size(capacity) * size(c.books));
    quantizer = take<float>(quantize_scratch(capacity, c.books, c.code_classes, c.code_dim));
    const size_t conv_begin = used_;
    conv1 = take_compute(size(conv1_rows) * channels);
    conv1_mixed = take_compute(size(conv1_rows) * channels);
    // Audio is read for the last time before the convolutions write.
    overlay(conv_begin, used_, [&] {
      audio_offset = used_;
      take<float>(2 * size(c.batch) * size(c.samples));
    });
    conv2 = take_compute(size(conv2_rows) * channels);
    conv2_out = take_compute(size(conv2_rows) * channels);
    out_weight = take_compute(width * size(bins3) * channels);
    branch = take_compute(n * width);
    front_branch = take_compute(size(padded_rows) * width);
    statistics = take<float>(size(conv_parts(c.batch, frames)) * 2 * width);

    // What layers use one after the other. The logits live between forward and backward, when
    // nothing of it is in use; the front's gradients when the layers' results are not.
    const size_t shared_begin = used_;
    take_shared();
    pos_size = size(2 * frames - 1) * width;
    void* const all_grad_pos =
        c.training ? take_compute(pos_size * size(c.layers)) : static_cast<void*>(nullptr);
    overlay(shared_begin, used_,
            [&] { logits = take_compute(size(capacity) * size(c.classes * c.books)); });
    // Positions of all layers in the order of their weights in memory.
    void* const all_pos = take_compute(pos_size * size(c.layers));
    encoded = take_compute(n * width);
    const size_t layers_begin = used_;
    for (int i = 0; i < c.layers; ++i) {
      layers.emplace_back();
      take_layer(layers.back(), i);
      const size_t slot = size(pos_step < 0 ? c.layers - 1 - i : i);
      layers.back().pos = at(all_pos, slot * pos_size);
      layers.back().grad_pos = at(all_grad_pos, slot * pos_size);
    }
    const size_t layers_end = used_;
    chosen_rows = take_compute(size(capacity) * width);
    grad_chosen = c.plan.overlaps_wgrad() ? take_compute(size(capacity) * width) : chosen_rows;
    row_loss = take<float>(size(capacity) * size(c.books));
    if (!c.training) return;
    overlay(layers_begin, layers_end, [&] {
      grad_conv1 = take_compute(size(conv1_rows) * channels);
      grad_conv2 = take_compute(size(conv2_rows) * channels);
      out_weight_grad = take<float>(width * size(bins3) * channels);
    });
    grad_conv2_in = c.plan.overlaps_wgrad() ? take_compute(size(conv2_rows) * channels) : conv2_out;
    grad_in = take_compute(n * width);
    partial = take<float>(bias_gradient_scratch(c.classes * c.books));
    // The reduction of dR reads it while the pass goes on.
    if (c.plan.defers_reductions()) take_attention_scratch();
    alternatives(
        [&] {
          if (!c.plan.defers_reductions()) take_attention_scratch();
        },
        [&] { front_partial = take<float>(subsample_scratch(c.sub_channels)); },
        [&] { gemm_workspace = take<unsigned char>(kGemmWorkspace); });
    side_workspace = c.plan.overlaps_wgrad() ? take<unsigned char>(kGemmWorkspace) : gemm_workspace;
    if (!c.exchange) return;
    exchanged_sums = take<double>(batch_norm_sums_size(c.width));
    exchanged_mean = take<float>(width);
    exchanged_variance = take<float>(width);
    exchanged_partial = take<float>(batch_norm_scratch(c.width));
    for (LayerBuffers& layer : layers) layer.bn_share = take<float>(1);
  }

  size_t used() const { return used_; }

  const NestStepConfig& c;
  size_t pos_size = 0;  // values of one layer's positions
  size_t audio_offset = 0;
  int frames = 0, bins3 = 0, frames_quarter = 0, bins_quarter = 0;
  int conv1_rows = 0, conv2_rows = 0;
  int padded_rows = 0, rows = 0;  // encoder frames: of the padded batch, and as laid out for it
  int capacity = 0;               // of those in the loss
  float *features = nullptr, *quantizer = nullptr;
  uint8_t *mask = nullptr, *selected = nullptr;
  int32_t *chosen = nullptr, *packed_rows = nullptr, *slots = nullptr, *tokens = nullptr;
  void *conv1 = nullptr, *conv1_mixed = nullptr, *conv2 = nullptr;
  void *conv2_out = nullptr, *out_weight = nullptr, *branch = nullptr;
  void* front_branch = nullptr;
  float* statistics = nullptr;
  void *shared_active = nullptr, *shared_out = nullptr, *shared_normed = nullptr;
  void* shared_conv_out = nullptr;
  uint32_t* shared_keep = nullptr;
  // The residual stream, which every norm updates in place; in backward its gradient.
  float *residual = nullptr, *grad_stream = nullptr;
  std::vector<LayerBuffers> layers;
  void *encoded = nullptr, *chosen_rows = nullptr, *logits = nullptr;
  float* row_loss = nullptr;
  // Gradients, reused by every layer.
  void *grad_in = nullptr, *grad_branch = nullptr, *grad_hidden = nullptr, *grad_conv = nullptr;
  void *grad_qkv = nullptr, *grad_gates = nullptr;
  void* grad_chosen = nullptr;  // of chosen_rows
  // Of those above that wgrad reads: where it overlaps the pass, each has its own memory.
  Rotation branches, conv_branches, hiddens, gates;
  void *grad_conv1 = nullptr, *grad_conv2 = nullptr, *grad_conv2_in = nullptr;
  float *norm_partial = nullptr, *out_weight_grad = nullptr, *partial = nullptr,
        *front_partial = nullptr;
  void *attention_p = nullptr, *attention_ds = nullptr, *attention_ds_shifted = nullptr;
  float* attention_r_partial = nullptr;
  void *gemm_workspace = nullptr, *side_workspace = nullptr;
  // BatchNorm's sums as all batches have them (NestStepConfig::exchange), for one layer at a time.
  double* exchanged_sums = nullptr;
  float *exchanged_mean = nullptr, *exchanged_variance = nullptr, *exchanged_partial = nullptr;
  // Partials that wait for their second stage.
  float* partials = nullptr;
  size_t partials_size = 0;

  static constexpr size_t kGemmWorkspace = size_t{32} << 20;
  // For the second stage of reductions, whose partials have two halves where that stage is
  // deferred.
  int layers_deferred() const { return c.plan.defers_reductions() ? 1 : 2; }

  static size_t size(int value) { return static_cast<size_t>(value); }

  // Element i of memory in the compute dtype.
  void* at(void* all, size_t i) const {
    return all != nullptr ? static_cast<unsigned char*>(all) + i * dtype_size(c.dtype) : nullptr;
  }

 private:
  void take_layer(LayerBuffers& s, int index) {
    const size_t n = size(rows), width = size(c.width), hidden = size(c.feed_forward);
    for (int kind = 0; kind < kNumNorms; ++kind) {
      NormBuffers& norm = s.norms[kind];
      norm.kind = static_cast<NormKind>(kind);
      norm.rstd = take<float>(n);
      if (kind == kNormFeedForward1 && index > 0) {
        norm.mean = take<float>(n);
      } else if (c.training) {
        norm.normalized = take_compute(n * width);
        norm.keep = take<uint8_t>(n * width / 8);
      }
      if (kind != kNormOut) {
        norm.out = !c.plan.recompute   ? take_compute(n * width)
                   : kind == kNormConv ? shared_conv_out
                                       : shared_out;
      } else if (index + 1 == c.layers) {
        norm.out = encoded;
      }
    }
    s.ff1_hidden = take_compute(n * hidden);
    s.ff1_active = c.plan.recompute ? shared_active : take_compute(n * hidden);
    s.ff1_keep = take<uint8_t>(n * hidden / 8);
    s.ff2_hidden = take_compute(n * hidden);
    s.ff2_active = c.plan.recompute ? shared_active : take_compute(n * hidden);
    s.ff2_keep = take<uint8_t>(n * hidden / 8);
    s.qkv = take_compute(n * width * 3);
    s.attended = take_compute(n * width);
    s.lse = take<float>(size(padded_rows) * size(c.heads));
    if (saves_p()) {
      s.attention_saved = take_compute(attention_p_size(c.batch, c.heads, frames));
      s.attention_tile_max = take<float>(attention_tile_max_size(c.batch, c.heads, frames));
      s.attention_keep = shared_keep;
    } else {
      s.attention_keep = take_keep();
    }
    s.gates = take_compute(n * width * 2);
    s.conv = take_compute(n * width);
    s.normed = c.plan.recompute ? shared_normed : take_compute(n * width);
    s.bn_mean = take<float>(width);
    s.bn_rstd = take<float>(width);
  }

  bool saves_p() const { return c.training && c.plan.save_p && c.dtype != Dtype::kF32; }
  // For attention's decisions of dropout; null where there are none.
  uint32_t* take_keep() {
    if (!c.training || c.dropout_att <= 0.0 || c.dtype == Dtype::kF32) return nullptr;
    return take<uint32_t>(attention_keep_size(c.batch, c.heads, frames));
  }

  void take_shared() {
    const size_t n = size(rows), width = size(c.width);
    // Signs of the saved P tell backward; forward has them here for a moment.
    if (saves_p()) shared_keep = take_keep();
    residual = grad_stream = take<float>(n * width);
    const size_t active_begin = used_;
    if (c.plan.recompute) {
      shared_active = take_compute(n * size(c.feed_forward));
    }
    const size_t each = c.plan.overlaps_wgrad() ? size(c.layers) : 1;
    const auto take_rotation = [&](Rotation& rotation, size_t count, size_t values) {
      rotation.all.clear();
      for (size_t i = 0; i < count; ++i) rotation.all.push_back(take_compute(n * values));
    };
    // Between the two feed-forward modules, in either direction.
    overlay(active_begin, used_, [&] {
      if (c.plan.recompute) shared_conv_out = take_compute(n * width);
      if (!c.training) return;
      take_rotation(conv_branches, each, width);
      take_rotation(gates, each, 2 * width);
    });
    if (c.plan.recompute) {
      shared_normed = take_compute(n * width);
      shared_out = take_compute(n * width);
    }
    if (!c.training) return;
    take_rotation(branches, c.plan.overlaps_wgrad() ? 3 * each + 1 : 2, width);
    take_rotation(hiddens,
                  c.plan.overlaps_wgrad()      ? 3 * each
                  : c.plan.defers_reductions() ? 2
                                               : 1,
                  std::max(size(c.feed_forward), 3 * width));
    grad_conv = take_compute(n * width);
    // Reductions of layers wait for their second stage; where wgrad overlaps, nobody waits for
    // that.
    const size_t layer_sums = size(kNumNorms) * layer_norm_scratch(c.width) +
                              2 * dgrad_dsilu_scratch(rows, c.feed_forward) +
                              gated_conv_scratch(c.batch, frames, c.width, c.conv_kernel) +
                              batch_norm_scratch(c.width) + bias_gradient_scratch(3 * c.width) +
                              attention_bias_scratch(c.batch, frames, c.heads, c.width / c.heads);
    partials_size =
        (c.plan.overlaps_wgrad() ? size(c.layers) : size(layers_deferred())) * layer_sums;
    partials = take<float>((c.plan.defers_reductions() ? 2 : 1) * partials_size);
  }

  void take_attention_scratch() {
    attention_p = take_compute(attention_p_size(c.batch, c.heads, frames));
    attention_ds = take_compute(attention_p_size(c.batch, c.heads, frames));
    if (c.dtype != Dtype::kF32)
      attention_ds_shifted = take_compute(attention_ds_shifted_size(c.batch, c.heads, frames));
    attention_r_partial = take<float>(attention_r_scratch(frames, c.heads, c.width / c.heads));
  }

  // The same memory for what single calls use.
  template <typename... Bodies>
  void alternatives(Bodies... bodies) {
    const size_t begin = used_;
    size_t end = used_;
    ((used_ = begin, bodies(), end = std::max(end, used_)), ...);
    used_ = end;
  }

  // Takes memory from [begin, end), which something else uses at other times; beside it if it is
  // too small, or if overlapping work may still use it.
  template <typename Body>
  void overlay(size_t begin, size_t end, Body body) {
    if (c.plan.overlaps_wgrad()) return body();
    const size_t before = used_;
    used_ = begin;
    body();
    const bool fits = used_ <= end;
    used_ = before;
    if (!fits) body();
  }

  template <typename T>
  T* take(size_t count) {
    const size_t begin = used_;
    used_ += (count * sizeof(T) + 255) / 256 * 256;
    return base_ != nullptr ? reinterpret_cast<T*>(base_ + begin) : nullptr;
  }
  void* take_compute(size_t count) { return take<unsigned char>(count * dtype_size(c.dtype)); }

  unsigned char* base_;
  size_t used_ = 0;
};

}  // namespace aerie::kernels
