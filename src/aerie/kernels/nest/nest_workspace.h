// Memory of one micro-batch and the calls that NestStep repeats; included by nest_step.cc alone.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "aerie/base/check.h"
#include "aerie/kernels/nest/nest_step.h"

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
  const float* residual = nullptr;  // null: the stream begins here
  float* sum = nullptr;             // null: not needed (norms that are the `next` of another)
  void* out = nullptr;              // compute dtype
  float* out_float = nullptr;       // the next layer's stream
  float* mean = nullptr;
  float* rstd = nullptr;
  uint8_t* keep = nullptr;
};

struct LayerBuffers {
  NormBuffers norms[kNumNorms];
  void *ff1_hidden, *ff1_active, *ff2_hidden, *ff2_active;
  uint8_t *ff1_keep, *ff2_keep;
  void *qkv, *pos, *grad_pos, *attended, *gates, *conv, *normed;
  float *log_sum, *bn_mean, *bn_rstd;
  uint32_t* attention_keep = nullptr;
};

// Memory that is given out in turns: what was given out before is still in use.
struct Turns {
  std::vector<void*> all;
  size_t at = 0;
  void* next() { return all[at++ % all.size()]; }
};

struct NestStep::Workspace {
  // With base null the pointers mean nothing, but used() is right.
  Workspace(const KernelTable& table, const NestStepConfig& config, const Joined& joined,
            unsigned char* base, void* cuda_stream)
      : kernels(&table), c(config), stream(cuda_stream), base_(base) {
    frames = c.frames / 8;
    padded_rows = c.batch * frames;
    rows = c.rows > 0 ? c.rows : padded_rows;
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
    places = take<int32_t>(size(capacity));
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
    // The stream between layers: read by the next layer alone, computed again in backward.
    encoded = take<float>(n * width);
    const float* stream_in = nullptr;
    const size_t layers_begin = used_;
    for (int i = 0; i < c.layers; ++i) {
      layers.emplace_back();
      stream_in = take_layer(layers.back(), stream_in, i);
      const size_t slot = size(joined.pos_step < 0 ? c.layers - 1 - i : i);
      layers.back().pos = at(all_pos, slot * pos_size);
      layers.back().grad_pos = at(all_grad_pos, slot * pos_size);
    }
    const size_t layers_end = used_;
    encoded_compute = layers.back().norms[kNormOut].out;
    chosen_rows = take_compute(size(capacity) * width);
    grad_chosen = c.beside ? take_compute(size(capacity) * width) : chosen_rows;
    row_loss = take<float>(size(capacity) * size(c.books));
    if (!c.training) return;
    overlay(layers_begin, layers_end, [&] {
      grad_conv1 = take_compute(size(conv1_rows) * channels);
      grad_conv2 = take_compute(size(conv2_rows) * channels);
      out_weight_grad = take<float>(width * size(bins3) * channels);
    });
    grad_conv2_in = c.beside ? take_compute(size(conv2_rows) * channels) : conv2_out;
    grad_in = take_compute(n * width);
    partial = take<float>(bias_gradient_scratch(c.classes * c.books));
    alternatives([&] { take_attention_scratch(); },
                 [&] { front_partial = take<float>(subsample_scratch(c.sub_channels)); },
                 [&] { gemm_workspace = take<unsigned char>(kGemmWorkspace); });
    side_workspace = c.beside ? take<unsigned char>(kGemmWorkspace) : gemm_workspace;
  }

  size_t used() const { return used_; }

  int before_part(int part) const { return inputs.before_part ? inputs.before_part(part) : kOk; }

  // The second queue, where there is one. It sees what was queued before begin_side(); the pass
  // sees what is on it behind end_side().
  void* side() const { return inputs.side.begin ? inputs.side.stream : stream; }
  int begin_side() const { return inputs.side.begin ? inputs.side.begin() : kOk; }
  int end_side() const { return inputs.side.begin ? inputs.side.end() : kOk; }
  // Work that only the end of the pass waits for: at once, or beside it (NestStepConfig::beside),
  // where it is queued by start_waiting(). Each time a queue waits for another costs a few
  // microseconds.
  template <typename Work>
  int at_leisure(Work work) {
    if (!c.beside) return work(stream);
    beside_.push_back(work);
    return kOk;
  }
  int start_waiting() {
    if (beside_.empty()) return kOk;
    int code = begin_side();
    for (const auto& work : std::exchange(beside_, {}))
      if (code == kOk) code = work(side());
    return code;
  }

  Gemm gemm(int m, int n, int k) const {
    Gemm g;
    g.dtype = c.dtype;
    g.m = m;
    g.n = n;
    g.k = k;
    g.tf32 = c.tf32;
    g.tune = c.tune;
    g.workspace = gemm_workspace;
    g.workspace_bytes = gemm_workspace != nullptr ? kGemmWorkspace : 0;
    return g;
  }

  // Products with a weight (n,k): forward, and the gradients of weight, input and bias.
  int product(const void* in, const void* weight, void* out, int count, int n, int k,
              int stride = 0, const void* bias = nullptr) {
    return kernels->gemm(product_of(in, weight, out, count, n, k, stride, bias), stream);
  }
  Gemm product_of(const void* in, const void* weight, void* out, int count, int n, int k,
                  int stride = 0, const void* bias = nullptr) const {
    Gemm g = gemm(count, n, k);
    g.a = in;
    g.lda = k;
    g.b = weight;
    g.ldb = k;
    g.transpose_b = true;
    g.c = out;
    g.ldc = stride > 0 ? stride : n;
    g.out_dtype = c.dtype;
    g.bias = bias;
    return g;
  }
  int weight_gradient(const void* grad, const void* in, const NestParam& weight, int count, int n,
                      int k) {
    return weight_gradient(grad, in, weight, count, n, k, c.accumulate);
  }
  int weight_gradient(const void* grad, const void* in, const NestParam& weight, int count, int n,
                      int k, bool accumulate) {
    WeightGradients one;
    describe(one, count, accumulate);
    const Gemm g = gemm_of(one, {n, k, grad, n, in, weight.grad});
    return at_leisure([this, g](void* on) { return kernels->gemm(g, on); });
  }
  // A layer's gradients of weights wait for each other, where nothing overwrites what they read
  // until add_gradients(): alone they would not fill a device, and beside the pass they are few
  // launches.
  void later_gradient(const void* grad, const void* in, const NestParam& weight, int n, int k,
                      int stride = 0) {
    AERIE_CHECK(waiting_gradients_.count < WeightGradients::kMost, "too many gradients wait");
    waiting_gradients_.products[waiting_gradients_.count++] = {
        n, k, grad, stride > 0 ? stride : n, in, weight.grad};
  }
  // Room for the sums of squares of gradients that layers make in groups; q, k and v together take
  // no more than each of them.
  size_t squares_of_layers() const {
    const auto of = [](int n, int k) { return weight_gradient_squares(n, k); };
    const int width = c.width, hidden = c.feed_forward;
    return size(c.layers) * (2 * (of(hidden, width) + of(width, hidden)) + 5 * of(width, width) +
                             of(2 * width, width));
  }
  int add_gradients() {
    describe(waiting_gradients_, rows, c.accumulate);
    const WeightGradients all = std::exchange(waiting_gradients_, {});
    if (c.trailing) return trail(all);
    return at_leisure([this, all](void* on) { return add_gradients(all, on); });
  }
  // Beside what follows, which waits for the group before.
  int trail(WeightGradients all) {
    all.workspace = nullptr;  // the pass has it
    all.workspace_bytes = 0;
    all.share = kSideShare;
    int code = begin_side();
    if (code == kOk) code = add_gradients(all, side());
    if (code == kOk && inputs.side.begin) code = inputs.side.mark(group_ % 2);
    ++group_;
    if (code == kOk && inputs.side.begin && group_ > 1) code = inputs.side.wait(group_ % 2);
    return code;
  }
  int add_gradients(WeightGradients all, void* on) {
    size_t used = squares_used;
    for (int i = 0; i < all.count && outputs.squares != nullptr; ++i) {
      WeightGradient& p = all.products[i];
      p.squares = outputs.squares + used;
      used += weight_gradient_squares(p.outputs, p.inputs);
    }
    if (c.beside) all.share = kSideShare;
    int code = kernels->weight_gradients(all, on);
    if (code == kOk && outputs.squares != nullptr) {
      squares_used = used;
      for (int i = 0; i < all.count; ++i)
        squared.push_back(
            {all.products[i].out, size(all.products[i].outputs) * size(all.products[i].inputs)});
    }
    if (code == kUnsupported) {
      code = kOk;
      for (int i = 0; i < all.count && code == kOk; ++i)
        code = kernels->gemm(gemm_of(all, all.products[i]), on);
    }
    return code;
  }
  // Everything but the products.
  void describe(WeightGradients& g, int count, bool accumulate) const {
    g.dtype = c.dtype;
    g.rows = count;
    g.accumulate = accumulate;
    g.tf32 = c.tf32;
    g.tune = c.tune;
    g.workspace = side_workspace;
    g.workspace_bytes = side_workspace != nullptr ? kGemmWorkspace : 0;
  }
  int input_gradient(const void* grad, const void* weight, void* out, int count, int n, int k,
                     int stride = 0, bool accumulate = false) {
    Gemm g = gemm(count, k, n);
    g.a = grad;
    g.lda = stride > 0 ? stride : n;
    g.b = weight;
    g.ldb = k;
    g.c = out;
    g.ldc = k;
    g.out_dtype = c.dtype;
    g.accumulate = accumulate;
    return kernels->gemm(g, stream);
  }
  int repack(const void* x, const RowLayout& from, void* out, const RowLayout& to) {
    RepackRows r;
    r.dtype = c.dtype;
    r.batch = c.batch;
    r.frames = frames;
    r.channels = c.width;
    r.from = from;
    r.to = to;
    r.x = x;
    r.out = out;
    return kernels->repack_rows(r, stream);
  }
  // `wait`: with the sums of a layer. `used`: how many rows count, when that is known on the
  // device.
  int bias_gradient(const void* grad, const NestParam& bias, int count, int n, int stride,
                    bool wait, const int32_t* used = nullptr) {
    if (bias.grad == nullptr) return kOk;
    BiasGradient b;
    b.dtype = c.dtype;
    b.rows = count;
    b.columns = n;
    b.num_rows = used;
    b.x = grad;
    b.stride = stride;
    b.out = bias.grad;
    b.accumulate = c.accumulate;
    if (wait) {
      wait_for_sums(b, bias_gradient_scratch(n));
    } else {
      b.partial = partial;
    }
    return at_leisure([this, b](void* on) { return kernels->bias_gradient(b, on); });
  }

  // Scratch of a kernel that sums over rows, and the list that its second stage goes to; both are
  // used up by add_waiting().
  template <typename Args>
  void wait_for_sums(Args& args, size_t scratch) {
    AERIE_CHECK(later_used_ + scratch <= later_size_, "a layer's sums do not fit their scratch");
    args.partial = later_ + later_used_;
    args.later = &waiting_;
    later_used_ += scratch;
  }
  bool sums_added() const { return layers_waiting_ == 0; }
  // Behind a layer: adds what waits of two of them; `last`: in any case.
  int add_waiting(bool last) {
    if (++layers_waiting_ < kLayersWait && !last) return kOk;
    layers_waiting_ = 0;
    const int code = at_leisure([this](void* on) {
      const int added = waiting_.count > 0 ? kernels->add_partials(waiting_, on) : kOk;
      waiting_.count = 0;
      return added;
    });
    if (!c.beside) later_used_ = 0;
    return code;
  }

  Dropout dropout(uint32_t site, double p) const {
    return c.training ? dropout_at(inputs.random, site, p) : Dropout{};
  }

  // Part i of rows that hold several tensors of the model's width side by side.
  void* part(void* all, int i) const { return at(all, size(i) * size(c.width)); }

  StatisticsFrames counted() const {
    StatisticsFrames out;
    out.frames = inputs.frames_counted;
    if (c.statistics_of_valid_frames) out.lengths = inputs.frames_encoder;
    return out;
  }

  SubsampleFirst first(const NestStepParams& p) const {
    SubsampleFirst s;
    s.dtype = c.dtype;
    s.batch = c.batch;
    s.frames = c.frames;
    s.bins = c.bins;
    s.channels = c.sub_channels;
    s.x = features + size(c.batch) * size(c.frames) * size(c.bins);  // the noisy rows
    s.lengths = inputs.frames + c.batch;
    s.weight0 = p.conv0.weight.value;
    s.bias0 = p.conv0.bias.value;
    s.weight1 = p.conv2.weight.value;
    s.bias1 = p.conv2.bias.value;
    s.out = conv1;
    return s;
  }
  SubsampleNext next(const NestStepParams& p) const {
    SubsampleNext s;
    s.dtype = c.dtype;
    s.batch = c.batch;
    s.frames = frames_quarter;
    s.bins = bins_quarter;
    s.channels = c.sub_channels;
    s.x = conv1_mixed;
    s.bias0 = p.conv3.bias.value;
    s.lengths = inputs.frames_quarter;
    s.weight1 = p.conv5.weight.value;
    s.bias1 = p.conv5.bias.value;
    s.out = conv2;
    return s;
  }
  Relu last(const NestStepParams& p) const {
    Relu r;
    r.dtype = c.dtype;
    r.batch = c.batch;
    r.frames = frames;
    r.bins = bins3;
    r.channels = c.sub_channels;
    r.x = conv2_out;
    r.bias = p.conv6.bias.value;
    r.lengths = inputs.frames_encoder;
    return r;
  }

  LayerNormForward norm(const NormBuffers& n, const NestStepParams& p, int layer) const {
    const Place place = place_of(n, p, layer);
    LayerNormForward f;
    f.dtype = c.dtype;
    f.batch = c.batch;
    f.frames = frames;
    f.channels = c.width;
    f.layout = inputs.layout;
    f.residual = n.residual;
    f.y = branch;
    f.y_bias = place.y_bias.value;
    f.dropout = dropout(place.site, place.p);
    f.scale = place.scale;
    f.sum = n.sum;
    f.keep = f.dropout.threshold != 0 ? n.keep : nullptr;
    f.weight = place.norm->weight.value;
    f.bias = place.norm->bias.value;
    f.out = n.out;
    f.out_float = n.out_float;
    f.mean = n.mean;
    f.rstd = n.rstd;
    // The first norm of the next layer, on the same stream.
    if (n.kind == kNormOut && layer + 1 < c.layers) {
      const NormBuffers& next = layers[size(layer) + 1].norms[kNormFeedForward1];
      const NestLayerParams::Norm& norm = p.layers[size(layer) + 1].norm_feed_forward1;
      f.next = {norm.weight.value, norm.bias.value, next.out, next.mean, next.rstd};
    }
    return f;
  }

  // grad_in is the gradient of the norm's output: for the last of the last layer from the head, for
  // that of a layer before it, of the next layer's first norm. grad_stream is that of the stream
  // behind.
  LayerNormBackward norm_backward(const NormBuffers& n, const NestStepParams& p, int layer) {
    const Place place = place_of(n, p, layer);
    LayerNormBackward b;
    b.dtype = c.dtype;
    b.batch = c.batch;
    b.frames = frames;
    b.channels = c.width;
    b.layout = inputs.layout;
    b.sum = n.sum;
    b.mean = n.mean;
    b.rstd = n.rstd;
    b.weight = place.norm->weight.value;
    b.bias = place.norm->bias.value;
    if (n.kind != kNormOut) {
      if (c.recompute) b.out = n.out;
      b.grad_out = grad_in;
      b.grad_sum = grad_stream;
    } else if (layer + 1 == c.layers) {
      b.grad_out = grad_in;
    } else {
      const NormBuffers& next = layers[size(layer) + 1].norms[kNormFeedForward1];
      const NestLayerParams::Norm& norm = p.layers[size(layer) + 1].norm_feed_forward1;
      b.next = {norm.weight.value, norm.bias.value, c.recompute ? next.out : nullptr, next.mean,
                next.rstd};
      b.grad_next_out = grad_in;
      b.grad_next_weight = norm.weight.grad;
      b.grad_next_bias = norm.bias.grad;
      b.grad_out_float = grad_stream;
    }
    b.grad_residual = grad_stream;
    b.dropout = dropout(place.site, place.p);
    b.keep = b.dropout.threshold != 0 ? n.keep : nullptr;
    b.scale = place.scale;
    // The gradient so far may be waited for. Behind conv's and attention's branches, two do.
    grad_branch = n.kind == kNormConv ? conv_branches.next() : branches.next();
    b.grad_y = grad_branch;
    b.grad_y_bias = place.y_bias.grad;
    b.grad_weight = place.norm->weight.grad;
    b.grad_bias = place.norm->bias.grad;
    b.accumulate = c.accumulate;
    wait_for_sums(b, layer_norm_scratch(c.width));
    return b;
  }

  GatedConv conv(const LayerBuffers& s, const NestLayerParams& p) const {
    GatedConv f;
    f.dtype = c.dtype;
    f.batch = c.batch;
    f.frames = frames;
    f.channels = c.width;
    f.layout = inputs.layout;
    f.kernel = c.conv_kernel;
    f.left = c.conv_left;
    f.x = s.gates;
    f.gate_bias = p.pointwise1.bias.value;
    f.lengths = inputs.frames_encoder;
    f.weight = p.depthwise.weight.value;
    f.bias = p.depthwise.bias.value;
    f.out = s.conv;
    f.statistics = c.training ? statistics : nullptr;
    f.counted = counted();
    return f;
  }

  Attention attention(const LayerBuffers& s, const NestLayerParams& p, const Dropout& drop) const {
    Attention a;
    a.dtype = c.dtype;
    a.batch = c.batch;
    a.frames = frames;
    a.heads = c.heads;
    a.dim = c.width / c.heads;
    a.layout = inputs.layout;
    a.q = part(s.qkv, 0);
    a.k = part(s.qkv, 1);
    a.v = part(s.qkv, 2);
    a.stride = 3 * c.width;
    a.p = s.pos;
    a.p_stride = c.width;
    a.bias_u = p.bias_u.value;
    a.bias_v = p.bias_v.value;
    a.lengths = inputs.frames_encoder;
    a.left = c.left;
    a.right = c.right;
    a.chunk = c.chunk;
    a.left_chunks = c.left_chunks;
    a.dropout = drop;
    a.out = s.attended;
    a.log_sum = s.log_sum;
    a.keep = s.attention_keep;
    return a;
  }

  const KernelTable* kernels;
  const NestStepConfig& c;
  void* stream;
  NestStepInputs inputs;
  NestStepOutputs outputs;
  // Gradients whose sums of squares are there, and how many sums.
  std::vector<std::pair<const float*, size_t>> squared;
  size_t squares_used = 0;
  size_t pos_size = 0;  // values of one layer's positions
  size_t audio_offset = 0;
  int frames = 0, bins3 = 0, frames_quarter = 0, bins_quarter = 0;
  int conv1_rows = 0, conv2_rows = 0;
  int padded_rows = 0, rows = 0;  // encoder frames: of the padded batch, and as laid out for it
  int capacity = 0;               // of those in the loss
  float *features = nullptr, *quantizer = nullptr;
  uint8_t *mask = nullptr, *selected = nullptr;
  int32_t *chosen = nullptr, *places = nullptr, *slots = nullptr, *tokens = nullptr;
  void *conv1 = nullptr, *conv1_mixed = nullptr, *conv2 = nullptr;
  void *conv2_out = nullptr, *out_weight = nullptr, *branch = nullptr;
  void* front_branch = nullptr;
  float* statistics = nullptr;
  // Of the two feed-forward modules, and of three norms; the same but for NestStepConfig::trailing.
  void *shared_active[2] = {}, *shared_out[3] = {}, *shared_normed = nullptr;
  void* shared_conv_out = nullptr;
  std::vector<LayerBuffers> layers;
  float* encoded = nullptr;
  void *encoded_compute = nullptr, *chosen_rows = nullptr, *logits = nullptr;
  float* row_loss = nullptr;
  // Gradients, reused by every layer.
  void *grad_in = nullptr, *grad_branch = nullptr, *grad_hidden = nullptr, *grad_conv = nullptr;
  void *grad_qkv = nullptr, *grad_gates = nullptr;
  void* grad_chosen = nullptr;  // of chosen_rows
  // Of those above that gradients of weights are made of: beside the pass, each has its own memory.
  Turns branches, conv_branches, hiddens, gates;
  void *grad_conv1 = nullptr, *grad_conv2 = nullptr, *grad_conv2_in = nullptr;
  float *norm_partial = nullptr, *grad_stream = nullptr, *out_weight_grad = nullptr,
        *partial = nullptr, *front_partial = nullptr;
  void *attention_weights = nullptr, *attention_grads = nullptr, *attention_skew = nullptr;
  float* attention_p_partial = nullptr;
  void *gemm_workspace = nullptr, *side_workspace = nullptr;

 private:
  static constexpr size_t kGemmWorkspace = size_t{32} << 20;
  // Of the multiprocessors, one in so many makes gradients of weights beside the pass.
  static constexpr int kSideShare = 2;
  static constexpr int kLayersWait = 2;  // for the second stage of sums

  static size_t size(int value) { return static_cast<size_t>(value); }

  // What a norm adds to the stream, and its own parameters.
  struct Place {
    const NestLayerParams::Norm* norm;
    NestParam y_bias;
    uint32_t site = 0;
    double p = 0.0;
    float scale = 1.0f;
  };
  Place place_of(const NormBuffers& n, const NestStepParams& all, int layer) const {
    const NestLayerParams& p = all.layers[size(layer)];
    const uint32_t sites = static_cast<uint32_t>(layer + 1) * 16;
    switch (n.kind) {
      case kNormFeedForward1:
        return {&p.norm_feed_forward1, all.pre_encode_out.bias, 0, c.dropout_pre_encoder,
                c.xscaling ? std::sqrt(static_cast<float>(c.width)) : 1.0f};
      case kNormSelfAtt:
        return {&p.norm_self_att, p.feed_forward1.second.bias, sites + 1, c.dropout, 0.5f};
      case kNormConv:
        return {&p.norm_conv, p.out.bias, sites + 3, c.dropout, 1.0f};
      case kNormFeedForward2:
        return {&p.norm_feed_forward2, p.pointwise2.bias, sites + 4, c.dropout, 1.0f};
      case kNormOut:
      case kNumNorms:
        break;
    }
    return {&p.norm_out, p.feed_forward2.second.bias, sites + 6, c.dropout, 0.5f};
  }

  // Element i of memory in the compute dtype.
  void* at(void* all, size_t i) const {
    return all != nullptr ? static_cast<unsigned char*>(all) + i * dtype_size(c.dtype) : nullptr;
  }

  // Returns the stream behind the layer.
  const float* take_layer(LayerBuffers& s, const float* stream_in, int index) {
    const size_t n = size(rows), width = size(c.width), hidden = size(c.feed_forward);
    const float* residual = stream_in;
    for (int kind = 0; kind < kNumNorms; ++kind) {
      NormBuffers& norm = s.norms[kind];
      norm.kind = static_cast<NormKind>(kind);
      norm.residual = residual;
      norm.mean = take<float>(n);
      norm.rstd = take<float>(n);
      if (kind != kNormFeedForward1 || index == 0) {
        norm.sum = take<float>(n * width);
        norm.keep = take<uint8_t>(n * width / 8);
        residual = norm.sum;
      }
      if (kind != kNormOut) {
        norm.out = !c.recompute        ? take_compute(n * width)
                   : kind == kNormConv ? shared_conv_out
                                       : shared_out[kind == kNormFeedForward1 ? 0
                                                    : kind == kNormSelfAtt    ? 1
                                                                              : 2];
      } else if (index + 1 == c.layers) {
        norm.out = take_compute(n * width);
      }
      if (kind == kNormOut) residual = norm.out_float = encoded;
    }
    s.ff1_hidden = take_compute(n * hidden);
    s.ff1_active = c.recompute ? shared_active[0] : take_compute(n * hidden);
    s.ff1_keep = take<uint8_t>(n * hidden / 8);
    s.ff2_hidden = take_compute(n * hidden);
    s.ff2_active = c.recompute ? shared_active[1] : take_compute(n * hidden);
    s.ff2_keep = take<uint8_t>(n * hidden / 8);
    s.qkv = take_compute(n * width * 3);
    s.attended = take_compute(n * width);
    s.log_sum = take<float>(size(padded_rows) * size(c.heads));
    if (c.training && c.dropout_att > 0.0 && c.dtype != Dtype::kFloat)
      s.attention_keep = take<uint32_t>(attention_keep(c.batch, c.heads, frames));
    s.gates = take_compute(n * width * 2);
    s.conv = take_compute(n * width);
    s.normed = c.recompute ? shared_normed : take_compute(n * width);
    s.bn_mean = take<float>(width);
    s.bn_rstd = take<float>(width);
    return residual;
  }

  void take_shared() {
    const size_t n = size(rows), width = size(c.width);
    const size_t active_begin = used_;
    if (c.recompute) {
      for (void*& active : shared_active)
        active = c.trailing || &active == shared_active ? take_compute(n * size(c.feed_forward))
                                                        : shared_active[0];
    }
    const size_t each = c.beside ? size(c.layers) : 1;
    const auto take_turns = [&](Turns& turns, size_t count, size_t values) {
      turns.all.clear();
      for (size_t i = 0; i < count; ++i) turns.all.push_back(take_compute(n * values));
    };
    // Between the two feed-forward modules, in either direction.
    overlay(active_begin, c.trailing ? active_begin : used_, [&] {
      if (c.recompute) shared_conv_out = take_compute(n * width);
      if (!c.training) return;
      take_turns(conv_branches, each, width);
      take_turns(gates, each, 2 * width);
    });
    if (c.recompute) {
      shared_normed = take_compute(n * width);
      for (void*& out : shared_out)
        out = c.trailing || &out == shared_out ? take_compute(n * width) : shared_out[0];
    }
    if (!c.training) return;
    take_turns(branches, c.beside ? 3 * each + 1 : c.trailing ? 3 : 2, width);
    take_turns(hiddens,
               c.beside     ? 3 * each
               : c.trailing ? 2
                            : 1,
               std::max(size(c.feed_forward), 3 * width));
    grad_conv = take_compute(n * width);
    grad_stream = take<float>(n * width);
    // Sums of layers wait for their second stage; beside the pass, nobody waits for that.
    const size_t layer_sums = size(kNumNorms) * layer_norm_scratch(c.width) +
                              2 * activation_scratch(c.feed_forward) +
                              gated_conv_scratch(c.batch, frames, c.width, c.conv_kernel) +
                              batch_norm_scratch(c.width) + bias_gradient_scratch(3 * c.width) +
                              attention_bias_scratch(c.batch, frames, c.heads, c.width / c.heads);
    later_size_ = (c.beside ? size(c.layers) : size(kLayersWait)) * layer_sums;
    later_ = take<float>(later_size_);
  }

  void take_attention_scratch() {
    attention_weights = take_compute(attention_square(c.batch, c.heads, frames));
    attention_grads = take_compute(attention_square(c.batch, c.heads, frames));
    if (c.dtype != Dtype::kFloat)
      attention_skew = take_compute(attention_skewed(c.batch, c.heads, frames));
    attention_p_partial = take<float>(attention_p_scratch(frames, c.heads, c.width / c.heads));
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
  // too small, or if work beside the pass may still use it.
  template <typename Body>
  void overlay(size_t begin, size_t end, Body body) {
    if (c.beside) return body();
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
  WeightGradients waiting_gradients_;
  std::vector<std::function<int(void* on)>> beside_;
  PartialSums waiting_;
  float* later_ = nullptr;
  int layers_waiting_ = 0, group_ = 0;
  size_t later_size_ = 0, later_used_ = 0;
};

}  // namespace aerie::kernels
