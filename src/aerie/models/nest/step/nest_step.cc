#include "aerie/models/nest/step/nest_step.h"

#include <algorithm>
#include <cstdlib>

#include "aerie/models/nest/step/nest_workspace.h"

namespace aerie::kernels {

NestStep::NestStep(const KernelTable& kernels, const NestStepConfig& config,
                   const NestStepParams& params)
    : kernels_(&kernels), config_(config), params_(params), joined_(find_joined(config, params)) {
  config_.plan = effective_plan(config.plan, config.training);
  config_.exchange = config.exchange && config.training;
  Workspace w(*kernels_, config_, joined_, nullptr, nullptr);
  memory_bytes_ = w.used();
  audio_offset_ = w.audio_offset;
  max_square_partials_ = config.training ? w.max_wgrad_square_partials() : 0;
}

NestStep::Joined NestStep::find_joined(const NestStepConfig& config, const NestStepParams& params) {
  // Elements between two parameters, where copy and gradient agree; 0 where they do not.
  const auto step = [&](const NestParam& from, const NestParam& to) -> int64_t {
    if (from.compute == nullptr || to.compute == nullptr) return 0;
    const auto distance = [](const void* a, const void* b, size_t size) -> int64_t {
      const int64_t bytes =
          static_cast<int64_t>(reinterpret_cast<intptr_t>(b) - reinterpret_cast<intptr_t>(a));
      return bytes % static_cast<int64_t>(size) == 0 ? bytes / static_cast<int64_t>(size) : 0;
    };
    const int64_t out = distance(from.compute, to.compute, dtype_size(config.dtype));
    return !config.training || distance(from.grad, to.grad, sizeof(float)) == out ? out : 0;
  };
  Joined out;
  const int64_t width = config.width;
  bool weights = !params.layers.empty(), biases = true;
  for (const NestLayerParams& p : params.layers) {
    weights = weights && step(p.q.weight, p.k.weight) == width * width &&
              step(p.k.weight, p.v.weight) == width * width;
    const bool no_bias =
        p.q.bias.compute == nullptr && p.k.bias.compute == nullptr && p.v.bias.compute == nullptr;
    biases = biases &&
             (no_bias || (step(p.q.bias, p.k.bias) == width && step(p.k.bias, p.v.bias) == width));
  }
  out.qkv = weights && biases;
  // Of widths that are no multiple of what biases are aligned to. Runs in float32 keep the order of
  // their sums.
  out.qkv_weights = out.qkv || (weights && config.dtype != Dtype::kF32);
  for (size_t i = 1; i < params.layers.size(); ++i) {
    const int64_t here = step(params.layers[i - 1].pos.weight, params.layers[i].pos.weight);
    if (i > 1 && here != out.pos_step) {
      out.pos_step = 0;
      return out;
    }
    out.pos_step = here;
  }
  // Strides of GEMMs: overlapping or misaligned weights are no pattern.
  if (std::abs(out.pos_step) < width * width || out.pos_step % 8 != 0) out.pos_step = 0;
  return out;
}

int NestStep::run(void* memory, const NestStepInputs& inputs, const NestStepOutputs& outputs,
                  void* stream) {
  Workspace w(*kernels_, config_, joined_, static_cast<unsigned char*>(memory), stream);
  return execute(w, inputs, outputs);
}

int NestStep::execute(Workspace& w, const NestStepInputs& inputs, const NestStepOutputs& outputs) {
  w.inputs = inputs;
  w.inputs.layout.rows = w.rows;
  w.overlap.set_side(inputs.side);
  w.outputs = outputs;
  squared_.clear();
  features_ = w.features;
  tokens_ = w.tokens;
  selected_ = w.selected;
  encoded_ = w.encoded;
  AERIE_TRY(front(w));
  if (!config_.plan.overlaps_wgrad()) AERIE_TRY(position_gemms(w));
  for (int i = 0; i < config_.layers; ++i) {
    AERIE_TRY(w.before_part(nest_layer_part(i)));
    if (i == 0) AERIE_TRY(w.overlap.join());
    AERIE_TRY(layer_forward(w, i));
  }
  AERIE_TRY(w.before_part(nest_layer_part(config_.layers)));
  AERIE_TRY(head(w));
  if (!config_.training) return kOk;
  for (int i = config_.layers - 1; i >= 0; --i) {
    AERIE_TRY(layer_backward(w, i));
    if (i == 0) AERIE_TRY(position_gradients(w));
    if (w.layers_reduced()) AERIE_TRY(w.overlap.flush());
  }
  squared_ = w.squared;
  num_square_partials_ = w.square_partials_used;
  AERIE_TRY(front_backward(w));
  if (config_.plan.overlaps_wgrad()) AERIE_TRY(w.overlap.join());
  return inputs.after_part ? inputs.after_part(0, w.stream) : kOk;
}

// Which frames enter the loss, and their tokens: needed by the loss alone.
int NestStep::tokens(Workspace& w) {
  const NestStepConfig& c = config_;
  SelectRows select;
  select.batch = c.batch;
  select.frames = w.frames;
  select.layout = w.inputs.layout;
  select.capacity = w.capacity;
  select.selected = w.selected;
  select.rows = w.chosen;
  select.packed_rows = w.packed_rows;
  select.slots = w.slots;
  select.count = w.outputs.masked_rows;
  AERIE_TRY(kernels_->select_rows(select, w.overlap.side()));
  Quantize quantize;
  quantize.capacity = w.capacity;
  quantize.rows = w.chosen;
  quantize.inputs = 8 * c.bins;
  quantize.books = c.books;
  quantize.classes = c.code_classes;
  quantize.dim = c.code_dim;
  quantize.features = w.features;
  quantize.projection = params_.projection;
  quantize.codebooks = params_.codebooks;
  quantize.codebooks_float = params_.codebooks_float;
  quantize.silent_tokens = params_.silent_tokens;
  quantize.tokens = w.tokens;
  quantize.scratch = w.quantizer;
  return kernels_->quantize(quantize, w.overlap.side());
}

// Waveforms to the residual stream's first branch.
int NestStep::front(Workspace& w) {
  const NestStepConfig& c = config_;
  LogMel mel;
  mel.rows = 2 * c.batch;
  mel.items = c.batch;
  mel.samples = c.samples;
  mel.frames = c.frames;
  mel.audio = w.inputs.audio;
  mel.lengths = w.inputs.samples;
  mel.state = w.inputs.random;
  mel.dither = c.training ? c.dither : 0.0f;
  mel.preemphasis = c.preemphasis;
  mel.hop = c.hop;
  mel.window_length = c.window_length;
  mel.log_guard = c.log_guard;
  mel.clamp_guard = c.clamp_guard;
  mel.window = params_.window;
  mel.twiddles = params_.twiddles;
  mel.filterbank = params_.filterbank;
  mel.bands = params_.bands;
  mel.bins = c.bins;
  mel.out = w.features;
  AERIE_TRY(kernels_->log_mel(mel, w.stream));

  BlockMask mask = c.masking;
  mask.batch = c.batch;
  mask.frames = c.frames;
  mask.lengths = w.inputs.frames + c.batch;
  mask.state = w.inputs.random;
  mask.mask = w.mask;
  mask.selected = w.selected;
  AERIE_TRY(kernels_->block_mask(mask, w.stream));

  NormalizeFeatures normalize;
  normalize.rows = 2 * c.batch;
  normalize.frames = c.frames;
  normalize.bins = c.bins;
  normalize.x = w.features;
  normalize.lengths = w.inputs.frames;
  normalize.pad_value = c.pad_value;
  normalize.first_masked_row = c.batch;
  normalize.mask = w.mask;
  normalize.embedding = params_.mask_embedding;
  normalize.out = w.features;
  AERIE_TRY(kernels_->normalize_features(normalize, w.stream));

  AERIE_TRY(w.before_part(0));
  AERIE_TRY(w.overlap.fork());
  AERIE_TRY(tokens(w));
  if (c.plan.overlaps_wgrad()) AERIE_TRY(position_gemms(w));
  AERIE_TRY(kernels_->subsample_first(w.first(params_), w.stream));
  AERIE_TRY(w.fprop(w.conv1, params_.conv3.weight.compute, w.conv1_mixed, w.conv1_rows,
                    c.sub_channels, c.sub_channels));
  AERIE_TRY(kernels_->subsample_next(w.next(params_), w.stream));
  AERIE_TRY(w.fprop(w.conv2, params_.conv6.weight.compute, w.conv2_out, w.conv2_rows,
                    c.sub_channels, c.sub_channels));
  Relu relu = w.last(params_);
  relu.out = w.conv2_out;
  AERIE_TRY(kernels_->relu(relu, w.stream));
  // The weight numbers its columns (channel, mel), the activations (mel, channel).
  SwapInner swap;
  swap.to = c.dtype;
  swap.rows = c.width;
  swap.a = c.sub_channels;
  swap.b = w.bins3;
  swap.x = params_.pre_encode_out.weight.value;
  swap.out = w.out_weight;
  AERIE_TRY(kernels_->swap_inner(swap, w.stream));
  AERIE_TRY(w.fprop(w.conv2_out, w.out_weight, w.front_branch, w.padded_rows, c.width,
                    w.bins3 * c.sub_channels));
  return w.repack(w.front_branch, {}, w.branch, w.inputs.layout);
}

int NestStep::feed_forward(Workspace& w, const NestLayerParams::FeedForward& p, const void* in,
                           void* hidden, void* activated, uint8_t* keep, uint32_t site,
                           const L2Prefetch& next) {
  const NestStepConfig& c = config_;
  w.prefetch({w.weight(p.second.weight, c.width, c.feed_forward)});
  AERIE_TRY(w.fprop(in, p.first.weight.compute, hidden, w.rows, c.feed_forward, c.width));
  SiluForward silu;
  w.set_rows(silu, c.feed_forward);
  silu.x = hidden;
  silu.bias = p.first.bias.value;
  silu.dropout = w.dropout(site, c.dropout);
  silu.keep = keep;
  silu.out = activated;
  AERIE_TRY(kernels_->silu_forward(silu, w.stream));
  w.prefetch({next});
  return w.fprop(activated, p.second.weight.compute, w.branch, w.rows, c.width, c.feed_forward);
}

// Query, key and value of a layer side by side.
int NestStep::project(Workspace& w, int index) {
  const int width = config_.width;
  const NestLayerParams& p = layer_params(index);
  const LayerBuffers& s = w.layer(index);
  const void* in = s.norms[kNormSelfAtt].out;
  w.prefetch(
      {w.weight(p.out.weight, width, width), {s.pos, w.pos_size * dtype_size(config_.dtype)}});
  if (joined_.qkv)
    return w.fprop(in, p.q.weight.compute, s.qkv, w.rows, 3 * width, width, 0, p.q.bias.compute);
  int i = 0;
  for (const NestLayerParams::Linear* linear : {&p.q, &p.k, &p.v})
    AERIE_TRY(w.fprop(in, linear->weight.compute, w.part(s.qkv, i++), w.rows, width, width,
                      3 * width, linear->bias.compute));
  return kOk;
}

// What every layer makes of the positions.
int NestStep::position_gemms(Workspace& w) {
  const int count = 2 * w.frames - 1, width = config_.width;
  const auto multiply = [&](Gemm g) {
    if (!config_.plan.overlaps_wgrad()) return kernels_->gemm(g, w.stream);
    g.workspace = w.side_workspace;
    return kernels_->gemm(g, w.overlap.side());
  };
  if (joined_.pos_step == 0) {
    for (size_t i = 0; i < w.layers.size(); ++i)
      AERIE_TRY(multiply(w.fprop_gemm(params_.positions, params_.layers[i].pos.weight.compute,
                                      w.layers[i].pos, count, width, width)));
    return kOk;
  }
  const size_t first = joined_.pos_step < 0 ? w.layers.size() - 1 : 0;
  Gemm g = w.gemm(count, width, width);
  g.a = params_.positions;
  g.b = params_.layers[first].pos.weight.compute;
  g.c = w.layers[first].pos;
  g.lda = g.ldb = g.ldc = width;
  g.transpose_b = true;
  g.out_dtype = config_.dtype;
  g.count = config_.layers;
  g.step_b = std::abs(joined_.pos_step);
  g.step_c = static_cast<int64_t>(w.pos_size);
  return multiply(g);
}

int NestStep::normalize_conv(Workspace& w, int index) {
  const LayerBuffers& s = w.layer(index);
  const NestLayerParams& p = layer_params(index);
  BatchNormForward bn;
  w.set_batch_norm(bn, s, p);
  bn.training = config_.training;
  bn.statistics = w.statistics;
  bn.running_mean = p.running_mean;
  bn.running_var = p.running_var;
  bn.batches = p.num_batches;
  bn.out = s.normed;
  if (config_.exchange) {
    AERIE_TRY(exchange_statistics(w, index));
    bn.training = false;
    bn.running_mean = w.exchanged_mean;
    bn.running_var = w.exchanged_variance;
  }
  return kernels_->batch_norm_forward(bn, w.stream);
}

// Mean and variance over all batches, and the running statistics.
int NestStep::exchange_statistics(Workspace& w, int index) {
  const NestLayerParams& p = layer_params(index);
  BatchNormSums sums;
  sums.batch = config_.batch;
  sums.frames = w.frames;
  sums.channels = config_.width;
  sums.statistics = w.statistics;
  sums.counted = w.counted();
  sums.sums = w.exchanged_sums;
  AERIE_TRY(kernels_->batch_norm_sums(sums, w.stream));
  AERIE_TRY(w.exchange(
      {index, /*backward=*/false, w.exchanged_sums, batch_norm_exchanged(config_.width)}));
  BatchNormFromSums from;
  from.channels = config_.width;
  from.sums = w.exchanged_sums;
  from.running_mean = p.running_mean;
  from.running_var = p.running_var;
  from.batches = p.num_batches;
  from.mean = w.exchanged_mean;
  from.variance = w.exchanged_variance;
  from.share = w.layer(index).bn_share;
  return kernels_->batch_norm_from_sums(from, w.stream);
}

int NestStep::layer_forward(Workspace& w, int index) {
  const NestStepConfig& c = config_;
  const NestLayerParams& p = layer_params(index);
  LayerBuffers& s = w.layer(index);
  const auto norm = [&](const NormBuffers& n) {
    return kernels_->layer_norm_forward(w.norm(n, params_, index), w.stream);
  };
  const uint32_t sites = static_cast<uint32_t>(index + 1) * 16;

  if (index == 0) AERIE_TRY(norm(s.norms[kNormFeedForward1]));
  AERIE_TRY(feed_forward(w, p.feed_forward1, s.norms[kNormFeedForward1].out, s.ff1_hidden,
                         s.ff1_active, s.ff1_keep, sites,
                         w.weight(p.q.weight, joined_.qkv ? 3 * c.width : c.width, c.width)));

  AERIE_TRY(norm(s.norms[kNormSelfAtt]));
  AERIE_TRY(project(w, index));
  AERIE_TRY(kernels_->attention(w.attention(s, p, w.dropout(sites + 2, c.dropout_att)), w.stream));
  w.prefetch({w.weight(p.pointwise1.weight, 2 * c.width, c.width)});
  AERIE_TRY(w.fprop(s.attended, p.out.weight.compute, w.branch, w.rows, c.width, c.width));

  AERIE_TRY(norm(s.norms[kNormConv]));
  w.prefetch({w.weight(p.pointwise2.weight, c.width, c.width)});
  AERIE_TRY(w.fprop(s.norms[kNormConv].out, p.pointwise1.weight.compute, s.gates, w.rows,
                    2 * c.width, c.width));
  AERIE_TRY(kernels_->gated_conv(w.conv(s, p), w.stream));
  AERIE_TRY(normalize_conv(w, index));
  w.prefetch({w.weight(p.feed_forward2.first.weight, c.feed_forward, c.width)});
  AERIE_TRY(w.fprop(s.normed, p.pointwise2.weight.compute, w.branch, w.rows, c.width, c.width));

  AERIE_TRY(norm(s.norms[kNormFeedForward2]));
  L2Prefetch next;
  if (index + 1 < c.layers)
    next = w.weight(layer_params(index + 1).feed_forward1.first.weight, c.feed_forward, c.width);
  AERIE_TRY(feed_forward(w, p.feed_forward2, s.norms[kNormFeedForward2].out, s.ff2_hidden,
                         s.ff2_active, s.ff2_keep, sites + 5, next));
  return norm(s.norms[kNormOut]);
}

// Decoder and loss on the chosen frames, and their gradients.
int NestStep::head(Workspace& w) {
  const NestStepConfig& c = config_;
  const int outputs = c.classes * c.books;
  GatherRows gather;
  gather.dtype = c.dtype;
  gather.count = w.capacity;
  gather.channels = c.width;
  gather.rows = w.packed_rows;
  gather.x = w.encoded;
  gather.out = w.chosen_rows;
  AERIE_TRY(kernels_->gather_rows(gather, w.stream));
  AERIE_TRY(w.fprop(w.chosen_rows, params_.decoder.weight.compute, w.logits, w.capacity, outputs,
                    c.width));
  CrossEntropy loss;
  loss.dtype = c.dtype;
  loss.capacity = w.capacity;
  loss.classes = c.classes;
  loss.books = c.books;
  loss.logits = w.logits;
  loss.bias = params_.decoder.bias.value;
  loss.tokens = w.tokens;
  loss.num_rows = w.outputs.masked_rows;
  loss.divisor = w.inputs.loss_rows;
  loss.loss_scale = w.inputs.loss_scale;
  loss.weight = c.loss_weight;
  loss.backward = c.training;
  loss.rest_is_zero = true;  // GEMMs read the rows that gather_rows left empty
  loss.nan_when_empty = c.nan_when_empty;
  loss.row_loss = w.row_loss;
  loss.loss = w.outputs.loss;
  AERIE_TRY(kernels_->cross_entropy(loss, w.stream));
  if (!c.training) return kOk;

  if (w.inputs.before_backward) AERIE_TRY(w.inputs.before_backward());
  AERIE_TRY(w.wgrad(w.logits, w.chosen_rows, params_.decoder.weight, w.capacity, outputs, c.width));
  AERIE_TRY(w.bias_gradient(w.logits, params_.decoder.bias, w.capacity, outputs, outputs, false,
                            w.outputs.masked_rows));
  AERIE_TRY(w.overlap.run(w.after_parts(nest_layer_part(c.layers), 1)));
  AERIE_TRY(w.dgrad(w.logits, params_.decoder.weight.compute, w.grad_chosen, w.capacity, outputs,
                    c.width));
  gather.count = w.rows;
  gather.rows = w.slots;
  gather.x = w.grad_chosen;
  gather.out = w.grad_in;
  return kernels_->gather_rows(gather, w.stream);
}

}  // namespace aerie::kernels
