// `aerie bench kernels`: the CUDA kernels one by one at the shapes of a NEST step, beside the time
// that memory traffic or arithmetic alone would need.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/kernels/kernel_table.h"
#include "bench_command.h"
#include "bench_memory.h"

namespace aerie::tools {

namespace {

using kernels::Bf16;
using kernels::Dtype;

// One line of the table. Floors: bytes over gb_per_s, matrix operations over tflop_per_s.
struct Row {
  const char* name;
  double bytes;
  double flops;
  std::function<int(void* stream)> call;
};

// Arguments and the row of every kernel. Pointers into `m` stay valid while it lives.
std::vector<Row> make_rows(const kernels::KernelTable& table, const KernelBenchOptions& o,
                           BenchMemory& m) {
  std::vector<Row> rows;
  const kernels::KernelTable* k = &table;
  const int features = (o.seconds * 100 + 1 + 15) / 16 * 16, frames = features / 8;
  const int width = o.width, hidden = 4 * width, channels = o.channels;
  const size_t b = static_cast<size_t>(o.batch), c = static_cast<size_t>(width);
  const size_t n = b * static_cast<size_t>(frames) * c;  // elements of a (B,T,C) tensor
  const double dn = static_cast<double>(n);
  const auto fill = [&](auto& args) {
    args.dtype = Dtype::kBF16;
    args.batch = o.batch;
    args.frames = frames;
    args.channels = width;
  };
  // Ragged: from 60 % of the longest up.
  std::vector<int32_t> encoder_lengths, feature_lengths, sample_lengths;
  for (int signal = 0; signal < 2; ++signal)
    for (int i = 0; i < o.batch; ++i) {
      const double share = 1.0 - 0.4 * i / o.batch;
      sample_lengths.push_back(static_cast<int32_t>(share * o.seconds * 16000));
      feature_lengths.push_back(sample_lengths.back() / 160);
      encoder_lengths.push_back((feature_lengths.back() + 7) / 8);
    }
  int32_t* lengths = m.upload(encoder_lengths);
  int32_t* frame_lengths = m.upload(feature_lengths);
  kernels::RandomState* state = m.upload(std::vector<kernels::RandomState>{
      {philox_key(1, Purpose::kDropout), philox_key(1, Purpose::kMask),
       philox_key(1, Purpose::kDither), 0, 0}});
  const kernels::Dropout dropout = kernels::dropout_at(state, 0, 0.1);
  Bf16* x = m.take<Bf16>(n * 4);
  Bf16* y = m.take<Bf16>(n * 4);
  Bf16* z = m.take<Bf16>(n * 4);
  float* stream = m.take<float>(n);
  float* stream_out = m.take<float>(n);
  float* small = m.take<float>(c * 16);  // weights, biases
  float* small_out = m.take<float>(c * 64);
  float* scalars = m.take<float>(b * static_cast<size_t>(frames * (o.heads + 2)));
  uint8_t* keep = m.take<uint8_t>(n);
  float* partial = m.take<float>(
      std::max({kernels::layer_norm_scratch(width), kernels::activation_scratch(hidden),
                kernels::subsample_scratch(channels)}));

  kernels::AdamwStep adamw;
  const size_t p = static_cast<size_t>(o.parameters / 8 * 8);
  adamw.count = static_cast<int64_t>(p);
  adamw.params = m.take<float>(p);
  adamw.grads = m.take<float>(p);
  adamw.exp_avg = m.take<float>(p);
  adamw.exp_avg_sq = m.take<float>(p);
  adamw.compute_weights = m.take<Bf16>(p);
  adamw.segments = m.upload(
      std::vector<kernels::AdamwSegment>{{0, adamw.count, 0, true, 0.9, 0.98, 1e-8, 1e-3}});
  adamw.num_segments = 1;
  adamw.steps = m.upload(std::vector<float>{0.0f});
  adamw.learning_rates = m.upload(std::vector<double>{1e-4});
  adamw.factors = m.take<kernels::AdamwFactors>(1);
  adamw.partial = m.take<double>(kernels::kAdamwParts);
  adamw.control = m.take<kernels::AdamwControl>(1);
  adamw.clip = 1.0;
  // Reads all gradients: here none come with sums of squares.
  rows.push_back({"adamw_decide", 4.0 * static_cast<double>(p), 0.0,
                  [=](void* s) { return k->adamw_decide(adamw, s); }});
  kernels::AdamwUpdate update;
  update.step = adamw;
  rows.push_back({"adamw_update", 30.0 * static_cast<double>(p), 0.0,
                  [=](void* s) { return k->adamw_update(update, s); }});

  kernels::LayerNormForward ln;
  fill(ln);
  ln.residual = ln.sum = stream;
  ln.y = x;
  ln.y_bias = ln.weight = ln.bias = small;
  ln.dropout = dropout;
  ln.keep = keep;
  ln.normalized = z;
  ln.out = y;
  ln.rstd = scalars;
  rows.push_back({"layer_norm_forward", 14.1 * dn, 0.0,
                  [=](void* s) { return k->layer_norm_forward(ln, s); }});
  kernels::LayerNormBackward lb;
  fill(lb);
  lb.normalized = z;
  lb.rstd = ln.rstd;
  lb.weight = small;
  lb.grad_out = x;
  lb.grad_sum = lb.grad_residual = stream_out;
  lb.dropout = dropout;
  lb.keep = keep;
  lb.grad_y = y;
  lb.grad_weight = small_out;
  lb.grad_bias = small_out + c;
  lb.grad_y_bias = small_out + 2 * c;
  lb.partial = partial;
  rows.push_back({"layer_norm_backward", 14.1 * dn, 0.0,
                  [=](void* s) { return k->layer_norm_backward(lb, s); }});

  kernels::SiluForward silu;
  fill(silu);
  silu.channels = hidden;
  silu.x = x;
  silu.bias = small;
  silu.dropout = dropout;
  silu.keep = keep;
  silu.out = y;
  rows.push_back(
      {"silu_forward", 4.1 * 4 * dn, 0.0, [=](void* s) { return k->silu_forward(silu, s); }});
  kernels::SiluBackward silu_back;
  fill(silu_back);
  silu_back.channels = hidden;
  silu_back.x = x;
  silu_back.bias = small;
  silu_back.grad_out = y;
  silu_back.dropout = dropout;
  silu_back.keep = keep;
  silu_back.grad_x = z;
  silu_back.grad_bias = small_out;
  silu_back.partial = partial;
  rows.push_back({"silu_backward", 6.1 * 4 * dn, 0.0,
                  [=](void* s) { return k->silu_backward(silu_back, s); }});

  kernels::GatedConv conv;
  fill(conv);
  conv.x = x;
  conv.gate_bias = small;
  conv.lengths = lengths;
  conv.weight = small;
  conv.bias = small + 9 * c;
  conv.out = y;
  conv.statistics =
      m.take<float>(static_cast<size_t>(kernels::conv_parts(o.batch, frames)) * 2 * c);
  conv.counted.frames = m.upload(std::vector<int32_t>{frames});
  rows.push_back({"gated_conv", 6.0 * dn, 0.0, [=](void* s) { return k->gated_conv(conv, s); }});
  kernels::BatchNormForward bn;
  fill(bn);
  bn.x = y;
  bn.statistics = conv.statistics;
  bn.counted = conv.counted;
  bn.running_mean = small_out;
  bn.running_var = small_out + c;
  bn.batches = m.upload(std::vector<int64_t>{0});
  bn.mean = small_out + 2 * c;
  bn.rstd = small_out + 3 * c;
  bn.weight = bn.bias = small;
  bn.out = z;
  rows.push_back(
      {"batch_norm_forward", 4.0 * dn, 0.0, [=](void* s) { return k->batch_norm_forward(bn, s); }});
  kernels::BatchNormReduce reduce;
  fill(reduce);
  reduce.x = y;
  reduce.mean = reduce.rstd = reduce.weight = reduce.bias = small;
  reduce.counted = conv.counted;
  reduce.grad_out = z;
  reduce.grad_weight = small_out;
  reduce.grad_bias = small_out + c;
  reduce.partial = m.take<float>(kernels::batch_norm_scratch(width));
  rows.push_back({"batch_norm_reduce", 4.0 * dn, 0.0,
                  [=](void* s) { return k->batch_norm_reduce(reduce, s); }});
  kernels::GatedConvBackward conv_back;
  conv_back.forward = conv;
  conv_back.mean = conv_back.rstd = conv_back.norm_weight = conv_back.norm_bias = small;
  conv_back.norm_partial = reduce.partial;
  conv_back.grad_out = z;
  conv_back.grad_x = m.take<Bf16>(2 * n);
  conv_back.grad_weight = small_out + 6 * c;
  conv_back.grad_bias = small_out + 15 * c;
  conv_back.grad_gate_bias = small_out + 16 * c;
  conv_back.partial = m.take<float>(kernels::gated_conv_scratch(o.batch, frames, width, 9));
  rows.push_back({"gated_conv_backward", 12.0 * dn, 0.0,
                  [=](void* s) { return k->gated_conv_backward(conv_back, s); }});

  kernels::Attention attention;
  attention.dtype = Dtype::kBF16;
  attention.batch = o.batch;
  attention.frames = frames;
  attention.heads = o.heads;
  attention.dim = width / o.heads;
  attention.q = x;
  attention.k = x + c;
  attention.v = x + 2 * c;
  attention.stride = 3 * width;
  attention.r = m.take<Bf16>(static_cast<size_t>(2 * frames - 1) * c);
  attention.r_stride = width;
  attention.bias_u = attention.bias_v = small;
  attention.lengths = lengths;
  attention.dropout = dropout;
  attention.out = y;
  attention.lse = scalars;
  attention.keep = m.take<uint32_t>(kernels::attention_keep_size(o.batch, o.heads, frames));
  const size_t square = kernels::attention_p_size(o.batch, o.heads, frames);
  attention.saved_p = m.take<Bf16>(square);
  attention.tile_max = m.take<float>(kernels::attention_tile_max_size(o.batch, o.heads, frames));
  const double product = 2.0 * dn * frames;  // operations of one (T,T,D) product over all heads
  const double saved = 2.0 * o.batch * o.heads * static_cast<double>(frames) * frames;
  rows.push_back({"attention", 8.0 * dn + saved, 3.0 * product,
                  [=](void* s) { return k->attention(attention, s); }});
  kernels::AttentionBackward attention_back;
  attention_back.forward = attention;
  attention_back.grad_out = m.take<Bf16>(n);
  attention_back.grad_q = z;
  attention_back.grad_k = z + c;
  attention_back.grad_v = z + 2 * c;
  attention_back.grad_stride = 3 * width;
  attention_back.grad_r = m.take<Bf16>(static_cast<size_t>(2 * frames - 1) * c);
  attention_back.grad_r_stride = width;
  attention_back.grad_bias_u = small_out;
  attention_back.grad_bias_v = small_out + c;
  attention_back.p = m.take<Bf16>(square);
  attention_back.ds = m.take<Bf16>(square);
  attention_back.ds_shifted =
      m.take<Bf16>(kernels::attention_ds_shifted_size(o.batch, o.heads, frames));
  attention_back.partial =
      m.take<float>(kernels::attention_bias_scratch(o.batch, frames, o.heads, width / o.heads));
  attention_back.r_partial =
      m.take<float>(kernels::attention_r_scratch(frames, o.heads, width / o.heads));
  rows.push_back({"attention_backward", 18.0 * dn + saved, 6.0 * product,
                  [=](void* s) { return k->attention_backward(attention_back, s); }});

  const auto features_n = static_cast<double>(b) * features * 80.0;
  kernels::LogMel mel;
  mel.rows = 2 * o.batch;
  mel.items = o.batch;
  mel.samples = o.seconds * 16000;
  mel.frames = features;
  mel.audio = m.take<float>(2 * b * static_cast<size_t>(mel.samples));
  mel.lengths = m.upload(sample_lengths);
  mel.state = state;
  mel.dither = 1e-5f;
  mel.window = m.take<float>(400);
  mel.twiddles = m.take<float>(1024);
  mel.filterbank = m.take<float>(80 * kernels::kFftBins);
  std::vector<int32_t> bands;
  for (int i = 0; i < 80; ++i) {
    bands.push_back(i * 3);
    bands.push_back(i * 3 + 6);
  }
  mel.bands = m.upload(bands);
  mel.out = m.take<float>(2 * static_cast<size_t>(features_n));
  rows.push_back({"log_mel", 8.0 * static_cast<double>(b) * mel.samples + 8.0 * features_n, 0.0,
                  [=](void* s) { return k->log_mel(mel, s); }});
  kernels::NormalizeFeatures normalize;
  normalize.rows = 2 * o.batch;
  normalize.frames = features;
  normalize.bins = 80;
  normalize.x = mel.out;
  normalize.lengths = frame_lengths;
  normalize.first_masked_row = o.batch;
  normalize.mask = keep;
  normalize.embedding = small;
  normalize.out = mel.out;
  rows.push_back({"normalize_features", 16.0 * features_n, 0.0,
                  [=](void* s) { return k->normalize_features(normalize, s); }});

  kernels::SubsampleFirst first;
  first.dtype = Dtype::kBF16;
  first.batch = o.batch;
  first.frames = features;
  first.bins = 80;
  first.channels = channels;
  first.x = mel.out;
  first.lengths = frame_lengths;
  float* taps = m.take<float>(static_cast<size_t>(channels) * 20);
  first.weight0 = first.weight1 = taps;
  first.bias0 = first.bias1 = taps + channels * 9;
  const size_t quarter = b * static_cast<size_t>(features / 4 * 20 * channels);
  first.out = m.take<Bf16>(quarter);
  const double dq = static_cast<double>(quarter);
  rows.push_back({"subsample_first", 4.0 * features_n + 2.0 * dq, 0.0,
                  [=](void* s) { return k->subsample_first(first, s); }});
  kernels::SubsampleFirstBackward first_back;
  first_back.forward = first;
  first_back.grad_out = m.take<Bf16>(quarter);
  float* tap_grads = m.take<float>(static_cast<size_t>(channels) * 20);
  first_back.grad_weight0 = tap_grads;
  first_back.grad_bias0 = tap_grads + channels * 9;
  first_back.grad_weight1 = tap_grads + channels * 10;
  first_back.grad_bias1 = tap_grads + channels * 19;
  first_back.partial = partial;
  rows.push_back({"subsample_first_backward", 4.0 * features_n + 2.0 * dq, 0.0,
                  [=](void* s) { return k->subsample_first_backward(first_back, s); }});
  kernels::SubsampleNext next;
  next.dtype = Dtype::kBF16;
  next.batch = o.batch;
  next.frames = features / 4;
  next.bins = 20;
  next.channels = channels;
  next.x = first.out;
  next.bias0 = next.bias1 = taps + channels * 9;
  next.weight1 = taps;
  next.lengths = frame_lengths;
  next.out = m.take<Bf16>(quarter / 4);
  rows.push_back(
      {"subsample_next", 2.5 * dq, 0.0, [=](void* s) { return k->subsample_next(next, s); }});
  kernels::SubsampleNextBackward next_back;
  next_back.forward = next;
  next_back.grad_out = next.out;
  next_back.grad_x = m.take<Bf16>(quarter);
  next_back.grad_bias0 = tap_grads + channels * 9;
  next_back.grad_weight1 = tap_grads;
  next_back.grad_bias1 = tap_grads + channels * 10;
  next_back.partial = partial;
  rows.push_back({"subsample_next_backward", 4.5 * dq, 0.0,
                  [=](void* s) { return k->subsample_next_backward(next_back, s); }});

  kernels::Relu relu;
  relu.dtype = Dtype::kBF16;
  relu.batch = o.batch;
  relu.frames = frames;
  relu.bins = 10;
  relu.channels = channels;
  relu.x = next.out;
  relu.bias = taps;
  relu.lengths = lengths;
  relu.out = m.take<Bf16>(quarter / 4);
  rows.push_back({"relu", dq, 0.0, [=](void* s) { return k->relu(relu, s); }});
  kernels::Relu relu_back = relu;
  relu_back.grad_out = relu_back.grad_x = relu.out;
  relu_back.grad_bias = tap_grads;
  relu_back.partial = partial;
  rows.push_back(
      {"relu (backward)", 1.5 * dq, 0.0, [=](void* s) { return k->relu(relu_back, s); }});
  kernels::SwapInner swap;
  swap.to = Dtype::kBF16;
  swap.rows = width;
  swap.a = channels;
  swap.b = 10;
  const double swapped = 10.0 * width * channels;
  swap.x = m.take<float>(static_cast<size_t>(swapped));
  swap.out = m.take<float>(static_cast<size_t>(swapped));
  rows.push_back(
      {"swap_inner", 6.0 * swapped, 0.0, [=](void* s) { return k->swap_inner(swap, s); }});
  kernels::SwapInner swap_back = swap;
  swap_back.to = Dtype::kF32;
  swap_back.a = 10;
  swap_back.b = channels;
  rows.push_back({"swap_inner (gradient)", 8.0 * swapped, 0.0,
                  [=](void* s) { return k->swap_inner(swap_back, s); }});

  kernels::BlockMask mask;
  mask.batch = o.batch;
  mask.frames = features;
  mask.lengths = frame_lengths;
  mask.state = state;
  mask.mask = m.take<uint8_t>(b * static_cast<size_t>(features));
  uint8_t* selected = m.take<uint8_t>(b * static_cast<size_t>(frames));
  mask.selected = selected;
  rows.push_back({"block_mask", 0.0, 0.0, [=](void* s) { return k->block_mask(mask, s); }});
  kernels::SelectRows select;
  select.batch = o.batch;
  select.frames = frames;
  select.capacity = o.batch * frames;
  select.selected = selected;
  select.rows = m.take<int32_t>(b * static_cast<size_t>(frames));
  select.packed_rows = m.take<int32_t>(b * static_cast<size_t>(frames));
  select.slots = m.take<int32_t>(b * static_cast<size_t>(frames));
  select.count = m.take<int32_t>(1);
  rows.push_back({"select_rows", 0.0, 0.0, [=](void* s) { return k->select_rows(select, s); }});

  // A third of the frames enters the loss.
  kernels::CrossEntropy loss;
  loss.dtype = Dtype::kBF16;
  loss.capacity = o.batch * frames;
  loss.classes = o.classes;
  const int masked = o.batch * frames * 3 / 10;
  const size_t logits = b * static_cast<size_t>(frames) * static_cast<size_t>(o.classes);
  loss.logits = m.take<Bf16>(logits);
  loss.tokens = m.take<int32_t>(b * static_cast<size_t>(frames));
  loss.num_rows = m.upload(std::vector<int32_t>{masked});
  loss.rest_is_zero = true;
  loss.row_loss = scalars;
  loss.loss = small_out;
  rows.push_back({"cross_entropy", static_cast<double>(o.classes) * 4.0 * masked, 0.0,
                  [=](void* s) { return k->cross_entropy(loss, s); }});
  kernels::BiasGradient decoder_bias;
  decoder_bias.dtype = Dtype::kBF16;
  decoder_bias.rows = loss.capacity;
  decoder_bias.columns = decoder_bias.stride = o.classes;
  decoder_bias.num_rows = loss.num_rows;
  decoder_bias.x = loss.logits;
  decoder_bias.out = m.take<float>(static_cast<size_t>(o.classes));
  decoder_bias.partial = m.take<float>(kernels::bias_gradient_scratch(o.classes));
  rows.push_back({"bias_gradient (decoder)", 2.0 * static_cast<double>(o.classes) * masked, 0.0,
                  [=](void* s) { return k->bias_gradient(decoder_bias, s); }});
  kernels::Quantize quantize;
  quantize.capacity = o.batch * frames;
  std::vector<int32_t> chosen(static_cast<size_t>(quantize.capacity), -1);
  size_t count = 0;
  for (int i = 0; i < quantize.capacity && count < static_cast<size_t>(masked); ++i)
    if (i % 2 == 0 && i % frames < feature_lengths[static_cast<size_t>(i / frames)] / 8)
      chosen[count++] = i;
  quantize.rows = m.upload(chosen);
  kernels::GatherRows gather;
  gather.dtype = Dtype::kBF16;
  gather.count = quantize.capacity;
  gather.channels = width;
  gather.rows = quantize.rows;
  gather.x = x;
  gather.out = y;
  rows.push_back({"gather_rows", 2.0 * width * (masked + quantize.capacity), 0.0,
                  [=](void* s) { return k->gather_rows(gather, s); }});
  quantize.inputs = 640;
  quantize.classes = o.classes;
  quantize.dim = 16;
  quantize.features =
      m.take<float>(static_cast<size_t>(quantize.capacity) * static_cast<size_t>(quantize.inputs));
  quantize.projection = m.take<float>(16 * 640);
  // Codes of unit length, as the quantizer's are: on others most comparisons would be close calls.
  std::vector<double> codes(static_cast<size_t>(o.classes) * 16);
  RandomStream random(1, Purpose::kTest, 0, 0);
  for (size_t i = 0; i < codes.size(); i += 16) {
    double squares = 0.0;
    for (size_t d = 0; d < 16; ++d) {
      codes[i + d] = random.normal();
      squares += codes[i + d] * codes[i + d];
    }
    for (size_t d = 0; d < 16; ++d) codes[i + d] /= std::sqrt(squares);
  }
  quantize.codebooks = m.upload(codes);
  quantize.codebooks_float = m.upload(std::vector<float>(codes.begin(), codes.end()));
  quantize.scratch = m.take<float>(
      kernels::quantize_scratch(quantize.capacity, 1, quantize.classes, quantize.dim));
  quantize.tokens = m.take<int32_t>(static_cast<size_t>(quantize.capacity));
  rows.push_back(
      {"quantize", 2560.0 * masked, 0.0, [=](void* s) { return k->quantize(quantize, s); }});

  kernels::Gemm gemm;
  gemm.dtype = gemm.out_dtype = Dtype::kBF16;
  gemm.m = o.batch * frames;
  gemm.n = hidden;
  gemm.k = width;
  gemm.a = x;
  gemm.lda = width;
  gemm.b = m.take<Bf16>(c * c * 4);
  gemm.ldb = width;
  gemm.transpose_b = true;
  gemm.c = y;
  gemm.ldc = hidden;
  gemm.workspace_bytes = size_t{32} << 20;
  gemm.workspace = m.take<uint8_t>(gemm.workspace_bytes);
  rows.push_back({"gemm (feed-forward)", 2.0 * (dn + 4.0 * dn + 4.0 * width * width),
                  2.0 * dn * hidden, [=](void* s) { return k->gemm(gemm, s); }});
  kernels::DgradDsilu both_back;
  both_back.gemm = gemm;
  both_back.gemm.transpose_b = false;
  both_back.gemm.ldb = hidden;
  both_back.silu = silu_back;
  both_back.silu.x = z;
  both_back.silu.grad_out = both_back.silu.grad_x = y;
  both_back.gemm.tile = {128, true};  // wherever it pays
  both_back.silu.partial = m.take<float>(kernels::dgrad_dsilu_scratch(gemm.m, hidden));
  rows.push_back({"silu_product_backward", 2.0 * (dn + 4.0 * width * width) + 4.125 * 4 * dn,
                  2.0 * dn * hidden,
                  [=](void* s) { return k->silu_product_backward(both_back, s); }});
  return rows;
}

}  // namespace

Status run_bench_kernels(const std::vector<std::string>& args) {
  KernelBenchOptions options;
  struct Flag {
    const char* name;
    int* value;
  };
  const Flag flags[] = {{"--batch", &options.batch},      {"--seconds", &options.seconds},
                        {"--width", &options.width},      {"--heads", &options.heads},
                        {"--layers", &options.layers},    {"--classes", &options.classes},
                        {"--channels", &options.channels}};
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") {
      std::printf(
          "usage: aerie bench kernels [--step|--memory] [--keep] [--tune] [--batch N]\n"
          "                           [--seconds N] [--width N] [--heads N] [--layers N] "
          "[--classes N] "
          "[--channels N]\n"
          "                           [--only NAME]\n\n"
          "Times every CUDA kernel at the shapes of a NEST step (defaults: NEST-L, 16 x 15 s) as\n"
          "graph replays and prints them beside their floors. --step runs a whole training step\n"
          "instead: its calls grouped by kernel and shape, and the time of the step as one graph. "
          "--memory\n"
          "prints how much device memory such a step takes and needs no GPU. --only takes the "
          "kernels\n"
          "whose names contain NAME.\n\n"
          "example: aerie bench kernels --batch 64 --seconds 15 --only attention\n");
      return ok_status();
    }
    if (args[i] == "--only" && i + 1 < args.size()) {
      options.only = args[++i];
      continue;
    }
    bool* const on = args[i] == "--step"     ? &options.step
                     : args[i] == "--keep"   ? &options.keep
                     : args[i] == "--memory" ? &options.memory
                     : args[i] == "--tune"   ? &options.tune
                                             : nullptr;
    if (on != nullptr) {
      *on = true;
      continue;
    }
    const Flag* flag = std::find_if(std::begin(flags), std::end(flags),
                                    [&](const Flag& f) { return args[i] == f.name; });
    if (flag == std::end(flags) || i + 1 == args.size())
      return invalid_argument(str_cat("unknown option or missing value: '", args[i], "'"))
          .with_hint("`aerie bench kernels --help` lists the options");
    AERIE_ASSIGN_OR_RETURN(*flag->value, parse_int<int>(args[++i], 1, 1 << 20));
  }
  if (options.width % options.heads != 0 || options.width % 8 != 0)
    return invalid_argument("--width must be a multiple of 8 and of --heads");
  if (options.memory) {
    print_step_memory(options);
    return ok_status();
  }

  AERIE_ASSIGN_OR_RETURN(device::GpuModule * module, device::gpu_module());
  if (options.step) return run_bench_kernel_step(module, options);
  BenchMemory memory(module);
  const std::vector<Row> rows = make_rows(module->kernels(), options, memory);
  AERIE_RETURN_IF_ERROR(memory.status());
  std::printf("%-26s %10s %10s %8s %9s %9s\n", "kernel", "us", "floor us", "share", "GB/s",
              "TFLOP/s");
  for (const Row& row : rows) {
    if (std::string(row.name).find(options.only) == std::string::npos) continue;
    const auto time = module->time_us(row.call, 10, 15);
    if (!time.ok()) {
      std::printf("%-26s %s\n", row.name, time.status().to_string().c_str());
      continue;
    }
    const double floor =
        std::max(row.bytes / options.gb_per_s * 1e-3, row.flops / options.tflop_per_s * 1e-6);
    std::printf("%-26s %10.1f %10.1f %7.0f%% %9.0f %9.1f\n", row.name, *time, floor,
                100.0 * floor / *time, row.bytes / *time * 1e-3, row.flops / *time * 1e-6);
  }
  return ok_status();
}

}  // namespace aerie::tools
