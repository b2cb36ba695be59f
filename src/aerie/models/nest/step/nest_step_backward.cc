// The backward pass of the step.
#include "aerie/models/nest/step/nest_workspace.h"

namespace aerie::kernels {

// From their gradients (w.grad_qkv) to that of the input (w.grad_in).
int NestStep::project_backward(Workspace& w, int index) {
  const int width = config_.width;
  const NestLayerParams& p = layer_params(index);
  const LayerBuffers& s = w.layer(index);
  w.prefetch({w.activations(s.norms[kNormSelfAtt].normalized, width),
              w.weight(p.feed_forward1.second.weight, width, config_.feed_forward)});
  if (joined_.qkv_weights)
    return w.dgrad(w.grad_qkv, p.q.weight.compute, w.grad_in, w.rows, 3 * width, width);
  int i = 0;
  for (const NestLayerParams::Linear* linear : {&p.q, &p.k, &p.v}) {
    AERIE_TRY(w.dgrad(w.part(w.grad_qkv, i), linear->weight.compute, w.grad_in, w.rows, width,
                      width, 3 * width, i > 0));
    ++i;
  }
  return kOk;
}

// And to those of their biases and, once their input is there, of their weights.
int NestStep::project_biases(Workspace& w, int index) {
  const int width = config_.width;
  const NestLayerParams& p = layer_params(index);
  if (joined_.qkv) return w.bias_gradient(w.grad_qkv, p.q.bias, w.rows, 3 * width, 3 * width, true);
  int i = 0;
  for (const NestLayerParams::Linear* linear : {&p.q, &p.k, &p.v})
    AERIE_TRY(
        w.bias_gradient(w.part(w.grad_qkv, i++), linear->bias, w.rows, width, 3 * width, true));
  return kOk;
}
void NestStep::project_weights(Workspace& w, int index) {
  const int width = config_.width;
  const NestLayerParams& p = layer_params(index);
  const void* in = w.layer(index).norms[kNormSelfAtt].out;
  if (joined_.qkv_weights) return w.defer_wgrad(w.grad_qkv, in, p.q.weight, 3 * width, width);
  int i = 0;
  for (const NestLayerParams::Linear* linear : {&p.q, &p.k, &p.v})
    w.defer_wgrad(w.part(w.grad_qkv, i++), in, linear->weight, width, width, 3 * width);
}

int NestStep::position_gradients(Workspace& w) {
  const int count = 2 * w.frames - 1, width = config_.width;
  if (joined_.pos_step == 0) {
    for (size_t i = 0; i < w.layers.size(); ++i)
      AERIE_TRY(w.wgrad(w.layers[i].grad_pos, params_.positions, params_.layers[i].pos.weight,
                        count, width, width));
    return kOk;
  }
  const size_t first = joined_.pos_step < 0 ? w.layers.size() - 1 : 0;
  Gemm g = w.gemm(width, width, count);
  g.a = w.layers[first].grad_pos;
  g.b = params_.positions;
  g.c = params_.layers[first].pos.weight.grad;
  g.lda = g.ldb = g.ldc = width;
  g.transpose_a = true;
  g.out_dtype = Dtype::kF32;
  g.accumulate = config_.accumulate;
  g.count = config_.layers;
  g.step_a = static_cast<int64_t>(w.pos_size);
  g.step_c = std::abs(joined_.pos_step);
  g.workspace = w.side_workspace;
  return w.overlap.run([this, g](void* on) { return kernels_->gemm(g, on); });
}

// The sums over all batches in place of w.norm_partial, which stays: the gradients of this batch's
// weight and bias may be made of it later.
int NestStep::exchange_gradient_sums(Workspace& w, int index) {
  BatchNormGradientSums sums;
  sums.rows = w.rows;
  sums.channels = config_.width;
  sums.partial = w.norm_partial;
  sums.sums = w.exchanged_sums;
  AERIE_TRY(kernels_->batch_norm_gradient_sums(sums, w.stream));
  AERIE_TRY(w.exchange({index, /*backward=*/true, w.exchanged_sums, int64_t{2} * config_.width}));
  BatchNormGradientFromSums from;
  from.rows = w.rows;
  from.channels = config_.width;
  from.sums = w.exchanged_sums;
  from.share = w.layer(index).bn_share;
  from.partial = w.norm_partial = w.exchanged_partial;
  return kernels_->batch_norm_gradient_from_sums(from, w.stream);
}

// The sums of BatchNorm's backward, and what it put out if that was not kept.
int NestStep::normalize_conv_backward(Workspace& w, int index) {
  const LayerBuffers& s = w.layer(index);
  const NestLayerParams& p = layer_params(index);
  BatchNormReduce bn;
  w.set_batch_norm(bn, s, p);
  bn.grad_out = w.grad_conv;
  if (config_.plan.recompute) bn.out = s.normed;
  bn.grad_weight = p.batch_norm.weight.grad;
  bn.grad_bias = p.batch_norm.bias.grad;
  bn.accumulate = config_.accumulate;
  w.defer_reduction(bn, batch_norm_scratch(config_.width));
  w.norm_partial = bn.partial;
  AERIE_TRY(kernels_->batch_norm_reduce(bn, w.stream));
  return config_.exchange ? exchange_gradient_sums(w, index) : kOk;
}

// From the gradient of the branch (w.grad_branch) to that of the input (w.grad_in). The wgrad of
// the second weight is deferred to that of the first, whose input may be there only behind the
// norm's backward.
int NestStep::feed_forward_backward(Workspace& w, const NestLayerParams::FeedForward& p,
                                    const void* hidden, void* activated, uint8_t* keep,
                                    uint32_t site, std::initializer_list<L2Prefetch> next) {
  const NestStepConfig& c = config_;
  w.grad_hidden = w.hiddens.next();
  w.prefetch({w.weight(p.first.weight, c.feed_forward, c.width)});
  DgradDsilu both;
  both.gemm = w.dgrad_gemm(w.grad_branch, p.second.weight.compute, w.grad_hidden, w.rows, c.width,
                           c.feed_forward);
  w.take_prefetch(both.gemm);
  SiluBackward& silu = both.silu;
  w.set_rows(silu, c.feed_forward);
  silu.x = hidden;
  silu.bias = p.first.bias.value;
  silu.grad_out = w.grad_hidden;
  silu.dropout = w.dropout(site, c.dropout);
  silu.keep = keep;
  silu.grad_x = w.grad_hidden;
  if (c.plan.recompute) silu.out = activated;
  silu.grad_bias = p.first.bias.grad;
  silu.accumulate = c.accumulate;
  w.defer_reduction(silu, dgrad_dsilu_scratch(w.rows, c.feed_forward));
  const int together = kernels_->silu_product_backward(both, w.stream);
  if (together == kUnsupported) {
    AERIE_TRY(kernels_->gemm(both.gemm, w.stream));
    AERIE_TRY(kernels_->silu_backward(silu, w.stream));
  } else {
    AERIE_TRY(together);
  }
  w.defer_wgrad(w.grad_branch, activated, p.second.weight, c.width, c.feed_forward);
  w.prefetch(next);
  return w.dgrad(w.grad_hidden, p.first.weight.compute, w.grad_in, w.rows, c.feed_forward, c.width);
}

int NestStep::layer_backward(Workspace& w, int index) {
  const NestStepConfig& c = config_;
  const NestLayerParams& p = layer_params(index);
  LayerBuffers& s = w.layer(index);
  const auto norm = [&](const NormBuffers& n, int layer) {
    return kernels_->layer_norm_backward(w.norm_backward(n, params_, layer), w.stream);
  };
  const uint32_t sites = static_cast<uint32_t>(index + 1) * 16;

  // A norm's backward may be what recomputes its output: wgrads that read it follow.
  const auto first_weight = [&](const NestLayerParams::FeedForward& ff, NormKind kind) {
    w.defer_wgrad(w.grad_hidden, s.norms[kind].out, ff.first.weight, c.feed_forward, c.width);
    return c.plan.overlaps_wgrad() ? kOk : w.flush_wgrads();
  };
  if (index + 1 == c.layers) AERIE_TRY(norm(s.norms[kNormOut], index));
  AERIE_TRY(w.overlap.join_reductions());
  AERIE_TRY(feed_forward_backward(w, p.feed_forward2, s.ff2_hidden, s.ff2_active, s.ff2_keep,
                                  sites + 5,
                                  {w.activations(s.norms[kNormFeedForward2].normalized, c.width),
                                   w.weight(p.pointwise2.weight, c.width, c.width)}));
  AERIE_TRY(norm(s.norms[kNormFeedForward2], index));
  AERIE_TRY(first_weight(p.feed_forward2, kNormFeedForward2));

  w.prefetch({w.activations(s.conv, c.width), w.activations(s.gates, 2 * c.width),
              w.weight(p.pointwise1.weight, 2 * c.width, c.width)});
  AERIE_TRY(
      w.dgrad(w.grad_branch, p.pointwise2.weight.compute, w.grad_conv, w.rows, c.width, c.width));
  AERIE_TRY(normalize_conv_backward(w, index));
  w.defer_wgrad(w.grad_branch, s.normed, p.pointwise2.weight, c.width, c.width);
  w.grad_gates = w.gates.next();
  GatedConvBackward conv;
  conv.forward = w.conv(s, p);
  conv.mean = s.bn_mean;
  conv.rstd = s.bn_rstd;
  conv.norm_weight = p.batch_norm.weight.value;
  conv.norm_bias = p.batch_norm.bias.value;
  conv.norm_partial = w.norm_partial;
  conv.grad_out = w.grad_conv;
  conv.grad_x = w.grad_gates;
  conv.grad_weight = p.depthwise.weight.grad;
  conv.grad_bias = p.depthwise.bias.grad;
  conv.grad_gate_bias = p.pointwise1.bias.grad;
  conv.accumulate = c.accumulate;
  w.defer_reduction(conv, gated_conv_scratch(c.batch, w.frames, c.width, c.conv_kernel));
  AERIE_TRY(kernels_->gated_conv_backward(conv, w.stream));
  w.prefetch({w.activations(s.norms[kNormConv].normalized, c.width),
              w.weight(p.out.weight, c.width, c.width)});
  AERIE_TRY(
      w.dgrad(w.grad_gates, p.pointwise1.weight.compute, w.grad_in, w.rows, 2 * c.width, c.width));
  AERIE_TRY(norm(s.norms[kNormConv], index));
  w.defer_wgrad(w.grad_gates, s.norms[kNormConv].out, p.pointwise1.weight, 2 * c.width, c.width);

  w.defer_wgrad(w.grad_branch, s.attended, p.out.weight, c.width, c.width);
  w.prefetch({{s.pos, w.pos_size * dtype_size(c.dtype)},
              w.weight(p.q.weight, joined_.qkv_weights ? 3 * c.width : c.width, c.width)});
  AERIE_TRY(w.dgrad(w.grad_branch, p.out.weight.compute, w.grad_conv, w.rows, c.width, c.width));
  w.grad_qkv = w.hiddens.next();
  AttentionBackward attention;
  attention.forward = w.attention(s, p, w.dropout(sites + 2, c.dropout_att));
  attention.grad_out = w.grad_conv;
  attention.grad_q = w.part(w.grad_qkv, 0);
  attention.grad_k = w.part(w.grad_qkv, 1);
  attention.grad_v = w.part(w.grad_qkv, 2);
  attention.grad_stride = 3 * c.width;
  attention.grad_r = s.grad_pos;
  attention.grad_r_stride = c.width;
  attention.grad_bias_u = p.bias_u.grad;
  attention.grad_bias_v = p.bias_v.grad;
  attention.accumulate = c.accumulate;
  attention.sms = c.plan.sms;
  attention.p = w.attention_p;
  attention.ds = w.attention_ds;
  attention.ds_shifted = w.attention_ds_shifted;
  attention.r_partial = w.attention_r_partial;
  w.defer_reduction(attention,
                    attention_bias_scratch(c.batch, w.frames, c.heads, c.width / c.heads));
  attention.defer_dr = c.plan.defers_reductions();
  AERIE_TRY(kernels_->attention_backward(attention, w.stream));
  if (attention.defer_dr) {
    attention.deferred = nullptr;  // has its entries
    AERIE_TRY(w.overlap.run_reduction(
        [this, attention](void* on) { return kernels_->attention_positions(attention, on); }));
  }
  AERIE_TRY(project_biases(w, index));
  AERIE_TRY(project_backward(w, index));
  AERIE_TRY(norm(s.norms[kNormSelfAtt], index));
  if (!c.plan.overlaps_wgrad()) {
    project_weights(w, index);
    AERIE_TRY(w.flush_wgrads());
  }

  L2Prefetch next;
  if (index > 0)
    next = w.weight(layer_params(index - 1).feed_forward2.second.weight, c.width, c.feed_forward);
  AERIE_TRY(feed_forward_backward(w, p.feed_forward1, s.ff1_hidden, s.ff1_active, s.ff1_keep, sites,
                                  {next}));
  // This layer's first norm, together with the last one of the layer before.
  AERIE_TRY(index == 0 ? norm(s.norms[kNormFeedForward1], 0)
                       : norm(w.layer(index - 1).norms[kNormOut], index - 1));
  AERIE_TRY(first_weight(p.feed_forward1, kNormFeedForward1));
  if (c.plan.overlaps_wgrad()) {
    project_weights(w, index);
    AERIE_TRY(w.flush_wgrads());
  }
  if (index == 0) AERIE_TRY(w.overlap.join_reductions());
  return w.reduce_layers(index);
}

int NestStep::front_backward(Workspace& w) {
  const NestStepConfig& c = config_;
  const int inputs = w.bins3 * c.sub_channels;
  void* const grad_branch = w.front_branch;
  AERIE_TRY(w.repack(w.grad_branch, w.inputs.layout, grad_branch, {}));
  // The gradient of the swapped weight, then back to its own order.
  NestParam swapped;
  swapped.grad = w.out_weight_grad;
  AERIE_TRY(w.wgrad(grad_branch, w.conv2_out, swapped, w.padded_rows, c.width, inputs, false));
  SwapInner swap;
  swap.rows = c.width;
  swap.a = w.bins3;
  swap.b = c.sub_channels;
  swap.x = w.out_weight_grad;
  swap.out = params_.pre_encode_out.weight.grad;
  swap.accumulate = c.accumulate;
  AERIE_TRY(w.overlap.run([this, swap](void* on) { return kernels_->swap_inner(swap, on); }));
  AERIE_TRY(w.dgrad(grad_branch, w.out_weight, w.grad_conv2, w.padded_rows, c.width, inputs));

  Relu relu = w.last(params_);
  relu.bias = nullptr;  // what was positive still is
  relu.grad_out = w.grad_conv2;
  relu.grad_x = w.grad_conv2;
  relu.grad_bias = params_.conv6.bias.grad;
  relu.accumulate = c.accumulate;
  relu.partial = w.front_partial;
  AERIE_TRY(kernels_->relu(relu, w.stream));
  AERIE_TRY(w.wgrad(w.grad_conv2, w.conv2, params_.conv6.weight, w.conv2_rows, c.sub_channels,
                    c.sub_channels));
  AERIE_TRY(w.dgrad(w.grad_conv2, params_.conv6.weight.compute, w.grad_conv2_in, w.conv2_rows,
                    c.sub_channels, c.sub_channels));
  SubsampleNextBackward next;
  next.forward = w.next(params_);
  next.grad_out = w.grad_conv2_in;
  next.grad_x = w.grad_conv1;
  next.grad_bias0 = params_.conv3.bias.grad;
  next.grad_weight1 = params_.conv5.weight.grad;
  next.grad_bias1 = params_.conv5.bias.grad;
  next.accumulate = c.accumulate;
  next.partial = w.front_partial;
  AERIE_TRY(kernels_->subsample_next_backward(next, w.stream));
  AERIE_TRY(w.wgrad(w.grad_conv1, w.conv1, params_.conv3.weight, w.conv1_rows, c.sub_channels,
                    c.sub_channels));
  AERIE_TRY(w.overlap.flush());
  AERIE_TRY(w.dgrad(w.grad_conv1, params_.conv3.weight.compute, w.conv1_mixed, w.conv1_rows,
                    c.sub_channels, c.sub_channels));
  SubsampleFirstBackward first;
  first.forward = w.first(params_);
  first.grad_out = w.conv1_mixed;
  first.grad_weight0 = params_.conv0.weight.grad;
  first.grad_bias0 = params_.conv0.bias.grad;
  first.grad_weight1 = params_.conv2.weight.grad;
  first.grad_bias1 = params_.conv2.bias.grad;
  first.accumulate = c.accumulate;
  first.partial = w.front_partial;
  return kernels_->subsample_first_backward(first, w.stream);
}

}  // namespace aerie::kernels
