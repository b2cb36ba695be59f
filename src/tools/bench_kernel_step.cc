// `aerie bench kernels --step`: where the time of one training step goes. The step runs once on a
// table of kernels that writes every call down; calls of one kernel and shape are then replayed as
// one graph, on the buffers the step gave them, and the whole step as another.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/kernels/adamw/adamw_ranges.h"
#include "aerie/kernels/side_stream.h"
#include "aerie/models/nest/step/packed_rows.h"
#include "bench_memory.h"

namespace aerie::tools {

namespace {

using kernels::Bf16;
using kernels::Dtype;
using kernels::KernelTable;

// The least a call must move and compute.
struct Cost {
  double bytes = 0.0;
  double flops = 0.0;
};

struct Group {
  std::vector<std::function<int(void* stream)>> calls;
  Cost cost;
};

// The table has no room for a context: one recording at a time.
struct Recording {
  const KernelTable* table = nullptr;
  std::vector<std::string> order;
  std::map<std::string, Group> groups;
};
Recording* recording = nullptr;

template <typename Args>
double elements(const Args& a) {
  if constexpr (requires { a.layout; })
    return static_cast<double>(kernels::num_rows(a.layout, a.batch, a.frames)) * a.channels;
  else
    return static_cast<double>(a.batch) * a.frames * a.channels;
}

template <typename Args>
Cost cost_of(const Args&) {
  return {};
}
Cost cost_of(const kernels::LayerNormForward& a) {
  const double n = elements(a);
  double bytes = 0.0;
  if (a.residual != nullptr) bytes += 4.0;
  if (a.y != nullptr) bytes += 2.0;
  if (a.sum != nullptr) bytes += 4.0;
  if (a.keep != nullptr) bytes += 0.125;
  if (a.normalized != nullptr) bytes += 2.0;
  if (a.out != nullptr) bytes += 2.0;
  if (a.out_float != nullptr) bytes += 4.0;
  if (a.next.weight != nullptr) bytes += 2.0;
  return {bytes * n, 0.0};
}
Cost cost_of(const kernels::LayerNormBackward& a) {
  const double n = elements(a);
  double bytes = 6.0;  // what was normalized, and the residual's gradient
  if (a.grad_out != nullptr) bytes += 2.0;
  if (a.grad_out_float != nullptr) bytes += 4.0;
  if (a.grad_sum != nullptr) bytes += 4.0;
  if (a.keep != nullptr) bytes += 0.125;
  if (a.grad_y != nullptr) bytes += 2.0;
  if (a.out != nullptr) bytes += 2.0;
  if (a.next.weight != nullptr) bytes += 2.0;
  if (a.next.out != nullptr) bytes += 2.0;
  return {bytes * n, 0.0};
}
Cost cost_of(const kernels::SiluForward& a) {
  return {4.125 * elements(a), 0.0};
}
Cost cost_of(const kernels::SiluBackward& a) {
  return {(a.out != nullptr ? 8.125 : 6.125) * elements(a), 0.0};
}
Cost cost_of(const kernels::GatedConv& a) {
  return {6.0 * elements(a), 0.0};
}
Cost cost_of(const kernels::GatedConvBackward& a) {
  return {12.0 * elements(a.forward), 0.0};
}
Cost cost_of(const kernels::BatchNormForward& a) {
  return {4.0 * elements(a), 0.0};
}
Cost cost_of(const kernels::BatchNormReduce& a) {
  return {(a.out != nullptr ? 6.0 : 4.0) * elements(a), 0.0};
}
Cost cost_of(const kernels::BiasGradient& a) {
  return {2.0 * a.rows * static_cast<double>(a.columns), 0.0};
}
Cost cost_of(const kernels::PartialSums& a) {
  double bytes = 0.0;
  for (int i = 0; i < a.count; ++i) bytes += 4.0 * a.sums[i].columns * (a.sums[i].parts + 1.0);
  return {bytes, 0.0};
}
Cost cost_of(const kernels::AdamwStep& a) {
  // Each sum of squares is that of so many gradients, which are not read.
  const double each = 128.0 * 128.0 / static_cast<double>(kernels::wgrad_square_partials(128, 128));
  const double squares =
      a.square_partials != nullptr ? static_cast<double>(a.num_square_partials) : 0.0;
  return {8.0 * squares + 4.0 * (static_cast<double>(a.count) - each * squares), 0.0};
}
Cost cost_of(const kernels::AdamwUpdate& a) {
  return {30.0 * static_cast<double>(a.step.count), 0.0};
}
Cost cost_of(const kernels::LogMel& a) {
  return {4.0 * a.rows * (static_cast<double>(a.samples) + static_cast<double>(a.frames) * a.bins),
          0.0};
}
Cost cost_of(const kernels::NormalizeFeatures& a) {
  return {8.0 * a.rows * static_cast<double>(a.frames) * a.bins, 0.0};
}
double first_elements(const kernels::SubsampleFirst& a) {
  return static_cast<double>(a.batch) * (a.frames / 4) * (a.bins / 4) * a.channels;
}
Cost cost_of(const kernels::SubsampleFirst& a) {
  return {2.0 * first_elements(a) + 4.0 * a.batch * static_cast<double>(a.frames) * a.bins, 0.0};
}
Cost cost_of(const kernels::SubsampleFirstBackward& a) {
  return cost_of(a.forward);
}
Cost cost_of(const kernels::SubsampleNext& a) {
  return {2.5 * elements(a) * a.bins, 0.0};
}
Cost cost_of(const kernels::SubsampleNextBackward& a) {
  return {4.5 * elements(a.forward) * a.forward.bins, 0.0};
}
Cost cost_of(const kernels::Relu& a) {
  return {(a.grad_out == nullptr ? 4.0 : 6.0) * elements(a) * a.bins, 0.0};
}
Cost cost_of(const kernels::CrossEntropy& a) {
  return {4.0 * static_cast<double>(a.capacity) * a.classes * a.books, 0.0};
}
// Weights that forward leaves for backward.
double saved_bytes(const kernels::Attention& a) {
  const double rows = kernels::num_rows(a.layout, a.batch, a.frames);
  return a.saved_p != nullptr ? 2.0 * rows * rows / a.batch * a.heads : 0.0;
}
Cost cost_of(const kernels::Attention& a) {
  const double rows = kernels::num_rows(a.layout, a.batch, a.frames);
  const double n = rows * a.heads * a.dim;
  return {8.0 * n + saved_bytes(a), 3.0 * 2.0 * n * rows / a.batch};
}
Cost cost_of(const kernels::AttentionBackward& a) {
  const Cost forward = cost_of(a.forward);
  const double saved = saved_bytes(a.forward);
  // Two of eight products are those of the weights.
  return {18.0 / 8.0 * (forward.bytes - saved) + saved,
          (saved > 0.0 ? 6.0 : 8.0) / 3.0 * forward.flops};
}
Cost cost_of(const kernels::Gemm& a) {
  const double m = a.m, n = a.n, k = a.k;
  const double in = static_cast<double>(kernels::dtype_size(a.dtype));
  const double out = static_cast<double>(kernels::dtype_size(a.out_dtype));
  const double count = a.count;
  return {in * (m * k * (a.step_a == 0 ? 1.0 : count) + k * n * (a.step_b == 0 ? 1.0 : count)) +
              (a.accumulate ? 2.0 : 1.0) * out * m * n * count,
          2.0 * m * n * k * count};
}

// Together: what is between stays on the device's chip.
Cost cost_of(const kernels::DgradDsilu& a) {
  Cost out = cost_of(a.gemm);
  out.bytes += 2.125 * elements(a.silu);
  return out;
}

Cost cost_of(const kernels::GroupedWgrad& a) {
  Cost out;
  for (int i = 0; i < a.count; ++i) {
    const double m = a.problems[i].m, n = a.problems[i].n;
    out.bytes += 2.0 * a.k * (m + n) + (a.accumulate ? 8.0 : 4.0) * m * n;
    out.flops += 2.0 * a.k * m * n;
  }
  return out;
}

template <typename Args>
std::string shape_of(const Args&) {
  return "";
}
std::string shape_of(const kernels::Gemm& a) {
  const char* kind = a.transpose_a ? "weight grad" : a.transpose_b ? "forward" : "input grad";
  return str_cat(" ", kind, " ", a.m, "x", a.n, "x", a.k, a.accumulate ? " +=" : "",
                 a.count > 1 ? str_cat(" times ", a.count) : std::string());
}
std::string shape_of(const kernels::DgradDsilu& a) {
  return str_cat(" ", a.gemm.m, "x", a.gemm.n, "x", a.gemm.k);
}
std::string shape_of(const kernels::GroupedWgrad& a) {
  return str_cat(" of ", a.count);
}
std::string shape_of(const kernels::LayerNormForward& a) {
  return a.next.weight != nullptr ? " twice" : "";
}
std::string shape_of(const kernels::LayerNormBackward& a) {
  return a.next.weight != nullptr ? " twice" : "";
}
std::string shape_of(const kernels::Relu& a) {
  return a.grad_out == nullptr ? "" : " backward";
}
std::string shape_of(const kernels::SwapInner& a) {
  return a.to == Dtype::kF32 ? " of the gradient" : "";
}

template <typename Args>
int record(const char* name, int (*kernel)(const Args&, void*), const Args& args, void* stream) {
  const int code = kernel(args, stream);
  if (code == kernels::kUnsupported) return code;  // others are called in its place
  const std::string key = name + shape_of(args);
  auto [entry, fresh] = recording->groups.try_emplace(key);
  if (fresh) recording->order.push_back(key);
  // Sums over positions have arguments that say nothing of what is left; their result is small.
  const Cost cost = std::strcmp(name, "attention_positions") == 0 ? Cost{} : cost_of(args);
  entry->second.cost.bytes += cost.bytes;
  entry->second.cost.flops += cost.flops;
  entry->second.calls.push_back([args, kernel](void* s) {
    if constexpr (requires { args.deferred; }) {
      // The step's list is gone; what goes on it is a call of its own.
      static kernels::PartialSums list;
      list.count = 0;
      Args again = args;
      if (again.deferred != nullptr) again.deferred = &list;
      return kernel(again, s);
    } else if constexpr (requires { args.silu.deferred; }) {
      static kernels::PartialSums list;
      list.count = 0;
      Args again = args;
      if (again.silu.deferred != nullptr) again.silu.deferred = &list;
      return kernel(again, s);
    } else {
      return kernel(args, s);
    }
  });
  return code;
}

#define AERIE_RECORD(name, Args)                                \
  int record_##name(const kernels::Args& args, void* stream) {  \
    return record(#name, recording->table->name, args, stream); \
  }
AERIE_KERNELS(AERIE_RECORD)
#define AERIE_RECORDED(name, Args) &record_##name,
constexpr KernelTable kRecordingKernels = {AERIE_KERNELS(AERIE_RECORDED)};

// Flat parameters as a model's registry lays them out: the same offsets in values, 16-bit copy and
// gradients. Without memory (null pointers) it only counts.
class FlatParams {
 public:
  size_t used() const { return used_; }
  void start(float* values, Bf16* compute, float* grads) {
    values_ = values;
    compute_ = compute;
    grads_ = grads;
    used_ = 0;
  }
  kernels::NestParam add(int count) {
    kernels::NestParam out;
    if (values_ != nullptr) {
      out.value = values_ + used_;
      out.compute = compute_ + used_;
      out.grad = grads_ + used_;
    }
    used_ += (static_cast<size_t>(count) + 63) / 64 * 64;
    return out;
  }
  kernels::NestLayerParams::Linear linear(int out, int in) { return {add(out * in), add(out)}; }
  kernels::NestLayerParams::Norm norm(int width) { return {add(width), add(width)}; }

 private:
  float* values_ = nullptr;
  Bf16* compute_ = nullptr;
  float* grads_ = nullptr;
  size_t used_ = 0;
};

// Clips from 0.8 of the longest on, as `aerie bench step` has them.
std::vector<int> clip_samples(const kernels::NestStepConfig& c) {
  std::vector<int> out;
  for (int i = 0; i < c.batch; ++i)
    out.push_back(c.samples - c.samples / 5 * i / std::max(1, c.batch - 1));
  return out;
}
std::vector<int> encoder_frames(const kernels::NestStepConfig& c) {
  std::vector<int> out;
  for (const int samples : clip_samples(c))
    out.push_back(kernels::strided(kernels::strided(kernels::strided(samples / 160))));
  return out;
}

kernels::NestStepConfig make_config(const KernelBenchOptions& o) {
  kernels::NestStepConfig c;
  c.dtype = Dtype::kBF16;
  c.batch = o.batch;
  c.samples = o.seconds * 16000;
  c.frames = (o.seconds * 100 + 1 + 15) / 16 * 16;
  c.width = o.width;
  c.heads = o.heads;
  c.feed_forward = 4 * o.width;
  c.layers = o.layers;
  c.sub_channels = o.channels;
  c.classes = c.code_classes = o.classes;
  c.masking.block = 48;
  c.masking.probability = 0.01;
  c.tune = o.tune;
  for (const int valid : encoder_frames(c)) c.rows += kernels::encoder_rows(c, valid);
  c.rows = kernels::shared_rows(c.rows, c.batch * c.frames / 8);
  c.chosen = kernels::shared_room(0, c.rows);
  kernels::DeviceModel device;
  if (const auto& gpus = device::driver().gpus; !gpus.empty())
    device = kernels::device_model_of(gpus[0].name, gpus[0].compute_major, gpus[0].sms,
                                      gpus[0].l2_bytes);
  c.plan = kernels::make_step_plan(c, device, {});
  if (o.keep) c.plan.recompute = false;
  return c;
}

kernels::NestStepParams make_params(FlatParams& flat, const kernels::NestStepConfig& c) {
  kernels::NestStepParams p;
  const int channels = c.sub_channels, width = c.width;
  p.conv0 = flat.linear(channels, 9);
  p.conv2 = flat.linear(channels, 9);
  p.conv3 = flat.linear(channels, channels);
  p.conv5 = flat.linear(channels, 9);
  p.conv6 = flat.linear(channels, channels);
  p.pre_encode_out =
      flat.linear(width, channels * kernels::strided(kernels::strided(kernels::strided(c.bins))));
  for (int i = 0; i < c.layers; ++i) {
    kernels::NestLayerParams l;
    l.norm_feed_forward1 = flat.norm(width);
    l.feed_forward1 = {flat.linear(c.feed_forward, width), flat.linear(width, c.feed_forward)};
    l.norm_conv = flat.norm(width);
    l.pointwise1 = flat.linear(2 * width, width);
    l.depthwise = flat.linear(width, c.conv_kernel);
    l.batch_norm = flat.norm(width);
    l.pointwise2 = flat.linear(width, width);
    l.norm_self_att = flat.norm(width);
    // Side by side, so that the three projections are one product.
    for (auto* linear : {&l.q, &l.k, &l.v}) linear->weight = flat.add(width * width);
    for (auto* linear : {&l.q, &l.k, &l.v}) linear->bias = flat.add(width);
    l.out = flat.linear(width, width);
    l.pos.weight = flat.add(width * width);
    l.bias_u = flat.add(width);
    l.bias_v = flat.add(width);
    l.norm_feed_forward2 = flat.norm(width);
    l.feed_forward2 = {flat.linear(c.feed_forward, width), flat.linear(width, c.feed_forward)};
    l.norm_out = flat.norm(width);
    p.layers.push_back(l);
  }
  p.decoder = flat.linear(c.classes * c.books, width);
  return p;
}

size_t count_params(const kernels::NestStepConfig& c) {
  FlatParams flat;
  make_params(flat, c);
  return flat.used();
}

// Frozen tables: not the real ones, but of their sizes.
void fill_tables(kernels::NestStepParams& p, const kernels::NestStepConfig& c, BenchMemory& m) {
  const size_t codes = static_cast<size_t>(c.books * c.code_classes * c.code_dim);
  const size_t bins = static_cast<size_t>(c.bins), width = static_cast<size_t>(c.width);
  p.projection = m.take<float>(static_cast<size_t>(c.books * c.code_dim) * 8 * bins, 0.1f);
  std::vector<float> raw(codes);
  RandomStream random(1, Purpose::kTest, 1, 0);
  for (float& value : raw) value = random.normal();
  p.codebooks = m.upload(std::vector<double>(raw.begin(), raw.end()));
  p.codebooks_float = m.upload(raw);
  p.mask_embedding = m.take<float>(bins, 0.1f);
  p.window = m.take<float>(400);
  p.twiddles = m.take<float>(2 * static_cast<size_t>(kernels::kFftSize));
  p.filterbank = m.upload(std::vector<float>(bins * static_cast<size_t>(kernels::kFftBins), 0.01f));
  std::vector<int32_t> bands;
  for (int i = 0; i < c.bins; ++i) {
    bands.push_back(i * 3);
    bands.push_back(i * 3 + 6);
  }
  p.bands = m.upload(bands);
  p.positions = m.take<Bf16>(static_cast<size_t>(2 * (c.frames / 8) - 1) * width);
  for (kernels::NestLayerParams& l : p.layers) {
    l.running_mean = m.upload(std::vector<float>(width, 0.0f));
    l.running_var = m.upload(std::vector<float>(width, 1.0f));
    l.num_batches = m.upload(std::vector<int64_t>{0});
  }
}

kernels::NestStepInputs make_inputs(const kernels::NestStepConfig& c, BenchMemory& m) {
  const size_t items = static_cast<size_t>(c.batch);
  std::vector<int32_t> samples, frames, quarter, eighth = encoder_frames(c);
  for (int signal = 0; signal < 2; ++signal)
    for (const int length : clip_samples(c)) {
      samples.push_back(length);
      frames.push_back(length / 160);
      if (signal == 0) quarter.push_back(kernels::strided(kernels::strided(length / 160)));
    }
  std::vector<int32_t> begin = {0};
  std::vector<kernels::RowPosition> positions;
  const std::vector<int> rows = kernels::item_rows(c, eighth);
  for (size_t item = 0; item < items; ++item) {
    begin.push_back(begin.back() + rows[item]);
    for (int t = 0; t < rows[item]; ++t) positions.push_back({static_cast<int32_t>(item), t});
  }
  kernels::NestStepInputs in;
  in.audio = m.take<float>(2 * items * static_cast<size_t>(c.samples), 0.3f);
  in.samples = m.upload(samples);
  in.frames = m.upload(frames);
  in.frames_quarter = m.upload(quarter);
  in.frames_encoder = m.upload(eighth);
  in.frames_counted = m.upload(std::vector<int32_t>{eighth.front()});
  in.layout.cu_seqlens = m.upload(begin);
  in.layout.positions = m.upload(positions);
  in.random = m.upload(std::vector<kernels::RandomState>{{philox_key(1, Purpose::kDropout),
                                                          philox_key(1, Purpose::kMask),
                                                          philox_key(1, Purpose::kDither), 0, 0}});
  in.loss_scale = m.upload(std::vector<float>{1.0f});
  return in;
}

kernels::AdamwStep make_adamw(size_t count, float* values, float* grads, Bf16* compute,
                              BenchMemory& m) {
  kernels::AdamwStep a;
  a.count = static_cast<int64_t>(count);
  a.params = values;
  a.grads = grads;
  a.exp_avg = m.take<float>(count, 1e-3f);
  a.exp_avg_sq = m.upload(std::vector<float>(count, 1e-3f));
  a.compute_weights = compute;
  a.segments =
      m.upload(std::vector<kernels::AdamwSegment>{{0, a.count, 0, true, 0.9, 0.98, 1e-8, 1e-3}});
  a.num_segments = 1;
  a.steps = m.upload(std::vector<float>{0.0f});
  a.learning_rates = m.upload(std::vector<double>{1e-6});
  a.factors = m.take<kernels::AdamwFactors>(1);
  a.partial = m.take<double>(kernels::kAdamwParts);
  a.control = m.take<kernels::AdamwControl>(1);
  a.clip = 1.0;
  return a;
}

double gib(size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(size_t{1} << 30);
}

}  // namespace

void print_step_memory(const KernelBenchOptions& options) {
  const kernels::NestStepConfig config = make_config(options);
  FlatParams flat;
  const kernels::NestStepParams params = make_params(flat, config);
  const kernels::NestStep step(kernels::kReferenceKernels, config, params);
  // Values, gradients, two moments and the 16-bit copy.
  const size_t weights = flat.used() * 18;
  std::printf("parameters %.1f M: %.2f GiB; activations %.2f GiB; together %.2f GiB\n",
              static_cast<double>(flat.used()) * 1e-6, gib(weights), gib(step.memory_bytes()),
              gib(weights + step.memory_bytes()));
}

Status run_bench_kernel_step(device::GpuModule* module, const KernelBenchOptions& options) {
  print_step_memory(options);
  const kernels::NestStepConfig config = make_config(options);
  BenchMemory memory(module);
  const size_t count = count_params(config);
  float* values = memory.take<float>(count, 0.04f);
  Bf16* compute = memory.take<Bf16>(count, 0.04f);
  float* grads = memory.take<float>(count, 1e-3f);
  FlatParams flat;
  flat.start(values, compute, grads);
  kernels::NestStepParams params = make_params(flat, config);
  fill_tables(params, config, memory);
  const kernels::NestStepInputs inputs = make_inputs(config, memory);
  kernels::AdamwUpdate update;
  kernels::AdamwStep& adamw = update.step;
  adamw = make_adamw(count, values, grads, compute, memory);
  kernels::NestStepOutputs outputs;
  outputs.loss = memory.take<float>(1);
  outputs.masked_rows = memory.take<int32_t>(1);
  kernels::NestStep plain(module->kernels(), config, params);
  void* block = memory.take<uint8_t>(plain.memory_bytes());
  outputs.square_partials = memory.take<double>(plain.max_square_partials());
  AERIE_RETURN_IF_ERROR(memory.status());

  Recording calls;
  calls.table = &module->kernels();
  recording = &calls;
  kernels::NestStep recorded(kRecordingKernels, config, params);
  const int failed = recorded.run(block, inputs, outputs, nullptr);
  if (failed == kernels::kOk) {
    if (recorded.num_square_partials() > 0) {
      const auto ranges = kernels::adamw_ranges(grads, adamw.count, recorded.squared());
      adamw.square_partials = outputs.square_partials;
      adamw.num_square_partials = static_cast<int64_t>(recorded.num_square_partials());
      adamw.ranges = memory.upload(ranges);
      adamw.num_ranges = static_cast<int32_t>(ranges.size());
    }
    kRecordingKernels.adamw_decide(adamw, nullptr);
    kRecordingKernels.adamw_update(update, nullptr);
  }
  recording = nullptr;
  AERIE_RETURN_IF_ERROR(memory.status());
  if (failed != kernels::kOk)
    return internal_error(str_cat("the step failed with CUDA error ", failed))
        .with_hint("widths and heads that the kernels do not cover are listed in docs/kernels.md");

  // Queues stay until all that was captured has run.
  std::vector<std::unique_ptr<device::Stream>> queues;
  std::vector<std::unique_ptr<kernels::SideStream>> sides;
  const auto add_side = [&](void* stream) -> Status {
    AERIE_ASSIGN_OR_RETURN(auto main, module->make_stream(stream));
    queues.push_back(std::move(main));
    AERIE_ASSIGN_OR_RETURN(auto queue, module->make_stream(nullptr));
    AERIE_ASSIGN_OR_RETURN(auto side,
                           kernels::SideStream::make(queues.back().get(), std::move(queue)));
    sides.push_back(std::move(side));
    return ok_status();
  };
  const auto step_on = [&](void* stream) {
    if (!add_side(stream).ok()) return int{kernels::kUnsupported};
    kernels::NestStepInputs with_side = inputs;
    with_side.side = sides.back()->as_side();
    return plain.run(block, with_side, outputs, stream);
  };
  // A step on one queue and one on two must leave the same bits.
  const auto download_squares = [&]() -> Result<std::vector<double>> {
    std::vector<double> out(plain.num_square_partials());
    AERIE_RETURN_IF_ERROR(
        module->copy_from_device(out.data(), outputs.square_partials, out.size() * sizeof(double)));
    return out;
  };
  if (plain.run(block, inputs, outputs, nullptr) != kernels::kOk)
    return internal_error("the step failed when it was run again");
  AERIE_ASSIGN_OR_RETURN(const std::vector<double> one_queue, download_squares());
  AERIE_ASSIGN_OR_RETURN(const double step_us,
                         module->time_us([&](void* stream) { return step_on(stream); }, 1, 15));
  AERIE_ASSIGN_OR_RETURN(const std::vector<double> two_queues, download_squares());
  size_t differ = 0;
  for (size_t i = 0; i < one_queue.size(); ++i)
    differ += std::memcmp(&one_queue[i], &two_queues[i], sizeof(double)) != 0 ? 1 : 0;
  AERIE_ASSIGN_OR_RETURN(
      const double all_us,
      module->time_us(
          [&](void* stream) {
            int code = step_on(stream);
            if (code == kernels::kOk) code = module->kernels().adamw_decide(adamw, stream);
            return code == kernels::kOk ? module->kernels().adamw_update(update, stream) : code;
          },
          1, 15));
  float loss = 0.0f;
  AERIE_RETURN_IF_ERROR(module->copy_from_device(&loss, outputs.loss, sizeof(loss)));

  struct Line {
    std::string name;
    size_t calls;
    double us, floor, flops;
  };
  std::vector<Line> lines;
  double sum_us = 0.0, sum_floor = 0.0, gemm_us = 0.0, gemm_flops = 0.0;
  for (const std::string& name : calls.order) {
    if (name.find(options.only) == std::string::npos) continue;
    const Group& group = calls.groups[name];
    // Replayed out of order, gradients may overflow, and the optimizer would skip its step.
    if (name == "adamw_decide") {
      AERIE_RETURN_IF_ERROR(module->copy_to_device(grads, std::vector<float>(count, 1e-3f).data(),
                                                   count * sizeof(float)));
      const std::vector<double> squares(plain.max_square_partials(), 1e-3);
      AERIE_RETURN_IF_ERROR(module->copy_to_device(outputs.square_partials, squares.data(),
                                                   squares.size() * sizeof(double)));
    }
    AERIE_ASSIGN_OR_RETURN(const double us, module->time_us(
                                                [&](void* stream) {
                                                  for (const auto& call : group.calls) {
                                                    const int code = call(stream);
                                                    if (code != kernels::kOk) return code;
                                                  }
                                                  return kernels::kOk;
                                                },
                                                1, 9));
    const double floor = std::max(group.cost.bytes / options.gb_per_s * 1e-3,
                                  group.cost.flops / options.tflop_per_s * 1e-6);
    lines.push_back({name, group.calls.size(), us, floor, group.cost.flops});
    sum_us += us;
    sum_floor += floor;
    if (name.rfind("gemm", 0) == 0 || name.rfind("weight_gradients", 0) == 0) {
      gemm_us += us;
      gemm_flops += group.cost.flops;
    }
  }
  std::stable_sort(lines.begin(), lines.end(),
                   [](const Line& a, const Line& b) { return a.us > b.us; });
  std::printf("%-42s %5s %9s %8s %9s %6s %8s %6s\n", "kernel", "calls", "us", "us each", "floor us",
              "floor", "TFLOP/s", "worth");
  for (const Line& l : lines)
    std::printf("%-42s %5zu %9.1f %8.1f %9.1f %5.0f%% %8.0f %5.1f%%\n", l.name.c_str(), l.calls,
                l.us, l.us / static_cast<double>(l.calls), l.floor, 100.0 * l.floor / l.us,
                l.flops / l.us * 1e-6, 100.0 * (l.us - l.floor) / all_us);
  std::printf("%-42s %5s %9.1f %8s %9.1f %5.0f%%\n", "sum", "", sum_us, "", sum_floor,
              sum_us > 0 ? 100.0 * sum_floor / sum_us : 0.0);
  std::printf("matrix products %.1f us (%.0f TFLOP/s); loss %.4f\n", gemm_us,
              gemm_us > 0 ? gemm_flops / gemm_us * 1e-6 : 0.0, static_cast<double>(loss));
  std::printf("step as one graph %.1f us; with the optimizer %.1f us\n", step_us, all_us);
  std::printf("squares of gradients with a second queue: %zu of %zu differ from those without\n",
              differ, one_queue.size());
  return ok_status();
}

}  // namespace aerie::tools
