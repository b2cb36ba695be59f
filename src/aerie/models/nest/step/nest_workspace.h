// The calls that NestStep repeats, on the memory of one micro-batch; included by nest_step.cc
// and nest_step_backward.cc alone.
#pragma once

#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "aerie/base/check.h"
#include "aerie/models/nest/step/nest_memory.h"
#include "aerie/models/nest/step/overlap_schedule.h"

// For calls that return 0 or an error.
#define AERIE_TRY(call)                   \
  do {                                    \
    const int try_code = (call);          \
    if (try_code != kOk) return try_code; \
  } while (false)

namespace aerie::kernels {

struct NestStep::Workspace : NestMemory {
  Workspace(const KernelTable& table, const NestStepConfig& config, const Joined& joined,
            unsigned char* base, void* cuda_stream)
      : NestMemory(config, joined.pos_step, base),
        kernels(&table),
        stream(cuda_stream),
        overlap(config.plan.overlap, cuda_stream) {}

  int before_part(int part) const { return inputs.before_part ? inputs.before_part(part) : kOk; }
  // Work behind that which writes gradients of `count` parts, from `last` down.
  auto after_parts(int last, int count) const {
    return [this, last, count](void* on) {
      int code = kOk;
      for (int part = last; inputs.after_part && part > last - count && code == kOk; --part)
        code = inputs.after_part(part, on);
      return code;
    };
  }
  int exchange(const ExchangedSums& sums) const {
    return inputs.exchange ? inputs.exchange(sums, stream) : kOk;
  }

  // L2 prefetch by the next GEMM of the pass: what is read soon and is in L2 no more.
  void prefetch(std::initializer_list<L2Prefetch> all) {
    for (const L2Prefetch& one : all)
      if (one.data != nullptr && one.bytes <= c.plan.prefetch_bytes &&
          prefetch_count_ < Gemm::kMaxPrefetches)
        prefetch_[prefetch_count_++] = one;
  }
  void take_prefetch(Gemm& g) {
    std::copy_n(prefetch_, prefetch_count_, g.prefetch);
    prefetch_count_ = 0;
  }
  L2Prefetch weight(const NestParam& weight, int n, int k) const {
    return {weight.compute, size(n) * size(k) * dtype_size(c.dtype)};
  }
  L2Prefetch activations(const void* data, int columns) const {
    return {data, size(rows) * size(columns) * dtype_size(c.dtype)};
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

  // GEMMs with a weight (n,k): fprop, wgrad, dgrad, and the gradient of the bias.
  int fprop(const void* in, const void* weight, void* out, int count, int n, int k, int stride = 0,
            const void* bias = nullptr) {
    Gemm g = fprop_gemm(in, weight, out, count, n, k, stride, bias);
    take_prefetch(g);
    return kernels->gemm(g, stream);
  }
  Gemm fprop_gemm(const void* in, const void* weight, void* out, int count, int n, int k,
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
  int wgrad(const void* grad, const void* in, const NestParam& weight, int count, int n, int k) {
    return wgrad(grad, in, weight, count, n, k, c.accumulate);
  }
  int wgrad(const void* grad, const void* in, const NestParam& weight, int count, int n, int k,
            bool accumulate) {
    GroupedWgrad one;
    describe(one, count, accumulate);
    const Gemm g = gemm_of(one, {n, k, grad, n, in, weight.grad});
    return overlap.run([this, g](void* on) { return kernels->gemm(g, on); });
  }
  // A layer's wgrads are deferred, where nothing overwrites what they read until flush_wgrads():
  // alone they would not fill a device, and overlapping the pass they are few launches.
  void defer_wgrad(const void* grad, const void* in, const NestParam& weight, int n, int k,
                   int stride = 0) {
    AERIE_CHECK(deferred_wgrads_.count < GroupedWgrad::kMost, "too many gradients wait");
    deferred_wgrads_.problems[deferred_wgrads_.count++] = {
        n, k, grad, stride > 0 ? stride : n, in, weight.grad};
  }
  // Room for the sum-of-squares partials of grouped wgrads; q, k and v together take no more than
  // each of them.
  size_t max_wgrad_square_partials() const {
    const auto of = [](int n, int k) { return wgrad_square_partials(n, k); };
    const int width = c.width, hidden = c.feed_forward;
    return size(c.layers) * (2 * (of(hidden, width) + of(width, hidden)) + 5 * of(width, width) +
                             of(2 * width, width));
  }
  int flush_wgrads() {
    describe(deferred_wgrads_, rows, c.accumulate);
    const GroupedWgrad all = std::exchange(deferred_wgrads_, {});
    if (const int code = overlap.flush_reductions(); code != kOk) return code;
    return overlap.run([this, all](void* on) { return flush_wgrads(all, on); });
  }
  int flush_wgrads(GroupedWgrad all, void* on) {
    size_t used = square_partials_used;
    for (int i = 0; i < all.count && outputs.square_partials != nullptr; ++i) {
      WgradProblem& p = all.problems[i];
      p.square_partials = outputs.square_partials + used;
      used += wgrad_square_partials(p.m, p.n);
    }
    if (c.plan.overlaps_wgrad()) all.share = c.plan.wgrad_sm_share;
    int code = kernels->weight_gradients(all, on);
    if (code == kOk && outputs.square_partials != nullptr) {
      square_partials_used = used;
      for (int i = 0; i < all.count; ++i)
        squared.push_back({all.problems[i].out, size(all.problems[i].m) * size(all.problems[i].n)});
    }
    if (code == kUnsupported) {
      code = kOk;
      for (int i = 0; i < all.count && code == kOk; ++i)
        code = kernels->gemm(gemm_of(all, all.problems[i]), on);
    }
    return code;
  }
  // Everything but the GEMMs.
  void describe(GroupedWgrad& g, int count, bool accumulate) const {
    g.dtype = c.dtype;
    g.k = count;
    g.accumulate = accumulate;
    g.tf32 = c.tf32;
    g.tune = c.tune;
    g.workspace = side_workspace;
    g.workspace_bytes = side_workspace != nullptr ? kGemmWorkspace : 0;
  }
  int dgrad(const void* grad, const void* weight, void* out, int count, int n, int k,
            int stride = 0, bool accumulate = false) {
    Gemm g = dgrad_gemm(grad, weight, out, count, n, k, stride, accumulate);
    take_prefetch(g);
    return kernels->gemm(g, stream);
  }
  Gemm dgrad_gemm(const void* grad, const void* weight, void* out, int count, int n, int k,
                  int stride = 0, bool accumulate = false) const {
    Gemm g = gemm(count, k, n);
    g.a = grad;
    g.lda = stride > 0 ? stride : n;
    g.b = weight;
    g.ldb = k;
    g.c = out;
    g.ldc = k;
    g.out_dtype = c.dtype;
    g.accumulate = accumulate;
    return g;
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
  // `wait`: with the reductions of a layer. `used`: how many rows count, when that is known on the
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
    const auto work = [this](const BiasGradient& sum) {
      return [this, sum](void* on) { return kernels->bias_gradient(sum, on); };
    };
    if (wait) {
      defer_reduction(b, bias_gradient_scratch(n));
      return overlap.run_reduction(work(b));
    }
    b.partial = partial;
    return overlap.run(work(b));
  }

  // Partials of a kernel that reduces over rows, and the list of second stages; both are used up by
  // reduce_layers().
  template <typename Args>
  void defer_reduction(Args& args, size_t scratch) {
    AERIE_CHECK(partials_used_ + scratch <= partials_size,
                "a layer's sums do not fit their scratch");
    args.partial = partials + partials_half_ * partials_size + partials_used_;
    args.deferred = &deferred_;
    partials_used_ += scratch;
  }
  bool layers_reduced() const { return layers_deferred_ == 0; }
  // Behind a layer: adds the deferred partials of so many of them; behind the first one in any
  // case. That ends the gradients of these layers.
  int reduce_layers(int layer) {
    const bool last = layer == 0;
    if (++layers_deferred_ < layers_deferred() && !last) return kOk;
    const int layers_done = std::exchange(layers_deferred_, 0);
    const auto after = after_parts(nest_layer_part(layer + layers_done - 1), layers_done);
    const auto add = [this, after](void* on) {
      const int added = deferred_.count > 0 ? kernels->add_partials(deferred_, on) : kOk;
      deferred_.count = 0;
      return added == kOk ? after(on) : added;
    };
    if (!c.plan.defers_reductions() || last) {
      if (!c.plan.overlaps_wgrad()) partials_used_ = 0;
      return overlap.run(add);
    }
    // The next layer fills the other half meanwhile; the one after it finds this one free.
    partials_used_ = 0;
    partials_half_ = 1 - partials_half_;
    return overlap.run_reduction([this, after, sums = std::exchange(deferred_, {})](void* on) {
      const int added = sums.count > 0 ? kernels->add_partials(sums, on) : kOk;
      return added == kOk ? after(on) : added;
    });
  }

  LayerBuffers& layer(int index) { return layers[size(index)]; }
  // What arguments of the encoder's kernels, of the front end's and of BatchNorm have in common.
  void set_rows(Activations& a, int channels) const {
    a = {c.dtype, c.batch, frames, channels, inputs.layout};
  }
  void set_front(FrontActivations& a, int its_frames, int bins) const {
    a = {c.dtype, c.batch, its_frames, bins, c.sub_channels};
  }
  template <typename Args>
  void set_batch_norm(Args& a, const LayerBuffers& s, const NestLayerParams& p) const {
    set_rows(a, c.width);
    a.x = s.conv;
    a.counted = counted();
    a.mean = s.bn_mean;
    a.rstd = s.bn_rstd;
    a.weight = p.batch_norm.weight.value;
    a.bias = p.batch_norm.bias.value;
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
    set_front(s, c.frames, c.bins);
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
    set_front(s, frames_quarter, bins_quarter);
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
    set_front(r, frames, bins3);
    r.x = conv2_out;
    r.bias = p.conv6.bias.value;
    r.lengths = inputs.frames_encoder;
    return r;
  }

  LayerNormForward norm(const NormBuffers& n, const NestStepParams& p, int layer) const {
    const NormSite here = site_of(n, p, layer);
    LayerNormForward f;
    set_rows(f, c.width);
    if (n.kind != kNormFeedForward1) f.residual = residual;
    f.y = branch;
    f.y_bias = here.y_bias.value;
    f.dropout = dropout(here.site, here.p);
    f.scale = here.scale;
    f.normalized = n.normalized;
    f.keep = f.dropout.threshold != 0 ? n.keep : nullptr;
    f.weight = here.norm->weight.value;
    f.bias = here.norm->bias.value;
    f.out = n.out;
    f.rstd = n.rstd;
    // The last norm of a layer is the next one's stream, and the first norm there follows.
    if (n.kind != kNormOut) {
      f.sum = residual;
    } else if (layer + 1 < c.layers) {
      f.out_float = residual;
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
    const NormSite here = site_of(n, p, layer);
    LayerNormBackward b;
    set_rows(b, c.width);
    b.normalized = n.normalized;
    b.rstd = n.rstd;
    b.weight = here.norm->weight.value;
    b.bias = here.norm->bias.value;
    if (n.kind != kNormOut) {
      if (c.plan.recompute) b.out = n.out;
      b.grad_out = grad_in;
      b.grad_sum = grad_stream;
    } else if (layer + 1 == c.layers) {
      b.grad_out = grad_in;
    } else {
      const NormBuffers& next = layers[size(layer) + 1].norms[kNormFeedForward1];
      const NestLayerParams::Norm& norm = p.layers[size(layer) + 1].norm_feed_forward1;
      b.next = {norm.weight.value, norm.bias.value, c.plan.recompute ? next.out : nullptr,
                next.mean, next.rstd};
      b.grad_next_out = grad_in;
      b.grad_next_weight = norm.weight.grad;
      b.grad_next_bias = norm.bias.grad;
      b.grad_out_float = grad_stream;
    }
    b.grad_residual = grad_stream;
    b.dropout = dropout(here.site, here.p);
    b.keep = b.dropout.threshold != 0 ? n.keep : nullptr;
    b.scale = here.scale;
    // A deferred wgrad may read the gradient so far. Behind conv's and attention's branches, two
    // do.
    grad_branch = n.kind == kNormConv ? conv_branches.next() : branches.next();
    b.grad_y = grad_branch;
    b.grad_y_bias = here.y_bias.grad;
    b.grad_weight = here.norm->weight.grad;
    b.grad_bias = here.norm->bias.grad;
    b.accumulate = c.accumulate;
    defer_reduction(b, layer_norm_scratch(c.width));
    return b;
  }

  GatedConv conv(const LayerBuffers& s, const NestLayerParams& p) const {
    GatedConv f;
    set_rows(f, c.width);
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
    Attention a = attention_of(c);
    a.layout = inputs.layout;
    a.q = part(s.qkv, 0);
    a.k = part(s.qkv, 1);
    a.v = part(s.qkv, 2);
    a.stride = 3 * c.width;
    a.r = s.pos;
    a.r_stride = c.width;
    a.bias_u = p.bias_u.value;
    a.bias_v = p.bias_v.value;
    a.lengths = inputs.frames_encoder;
    a.left = c.left;
    a.right = c.right;
    a.chunk = c.chunk;
    a.left_chunks = c.left_chunks;
    a.dropout = drop;
    a.out = s.attended;
    a.lse = s.lse;
    a.keep = s.attention_keep;
    a.saved_p = s.attention_saved;
    a.tile_max = s.attention_tile_max;
    return a;
  }

  const KernelTable* kernels;
  void* stream;
  OverlapSchedule overlap;
  NestStepInputs inputs;
  NestStepOutputs outputs;
  // Gradients whose sum-of-squares partials are there, and how many partials.
  std::vector<std::pair<const float*, size_t>> squared;
  size_t square_partials_used = 0;

 private:
  // What a norm adds to the stream, and its own parameters.
  struct NormSite {
    const NestLayerParams::Norm* norm;
    NestParam y_bias;
    uint32_t site = 0;
    double p = 0.0;
    float scale = 1.0f;
  };
  NormSite site_of(const NormBuffers& n, const NestStepParams& all, int layer) const {
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

  L2Prefetch prefetch_[Gemm::kMaxPrefetches];
  int prefetch_count_ = 0;
  GroupedWgrad deferred_wgrads_;
  PartialSums deferred_;
  int layers_deferred_ = 0;
  size_t partials_used_ = 0, partials_half_ = 0;
};

}  // namespace aerie::kernels
