// A whole step on the emulated kernels, and on a device, against the reference kernels: the chain
// of calls, their strides and scratch sizes. What the step must compute is tested with the model.
#include "aerie/models/nest/step/nest_step.h"

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "aerie/kernels/testing/backend.h"
#include "aerie/models/nest/step/packed_rows.h"

namespace aerie::kernels {
namespace {

using testing::Backend;
using testing::random_values;

struct Outcome {
  float loss = 0.0f;
  int32_t rows = 0;
  std::vector<std::pair<std::string, std::vector<float>>> gradients;
  std::vector<std::vector<float>> running;  // mean and variance of every layer
};

// Uploads parameters with repeatable values and remembers where their gradients go.
class Params {
 public:
  // `flat`: in blocks of that many values, one behind the other, as a model's registry has them.
  Params(Backend& backend, Dtype dtype, bool flat) : backend_(backend), dtype_(dtype) {
    if (!flat) return;
    const std::vector<float> nothing(kFlat);
    values_ = backend.upload(nothing);
    compute_ = dtype == Dtype::kF32 ? values_ : backend.upload_as(dtype, nothing);
    flat_grads_ = backend.scratch<float>(kFlat);
  }

  NestParam add(const std::string& name, int count, float scale, float centre = 0.0f) {
    std::vector<float> values = random_values(static_cast<size_t>(count), ++seed_, scale);
    for (float& value : values) value += centre;
    NestParam out;
    if (values_ != nullptr) {
      out = place(values);
    } else {
      out.value = backend_.upload(values);
      out.compute = dtype_ == Dtype::kF32 ? out.value : backend_.upload_as(dtype_, values);
      out.grad = backend_.scratch<float>(values.size());
    }
    grads_.push_back({name, {out.grad, values.size()}});
    return out;
  }
  NestLayerParams::Linear linear(const std::string& name, int out, int in) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(in));
    return {add(name + ".weight", out * in, scale), add(name + ".bias", out, scale)};
  }
  NestLayerParams::Norm norm(const std::string& name, int width) {
    return {add(name + ".weight", width, 0.2f, 1.0f), add(name + ".bias", width, 0.2f)};
  }
  const std::vector<std::pair<std::string, std::pair<float*, size_t>>>& grads() const {
    return grads_;
  }
  std::vector<std::pair<std::string, std::vector<float>>> download() {
    std::vector<std::pair<std::string, std::vector<float>>> out;
    for (const auto& [name, where] : grads_)
      out.emplace_back(name, backend_.download(where.first, where.second));
    return out;
  }

 private:
  static constexpr size_t kFlat = size_t{1} << 19;

  NestParam place(const std::vector<float>& values) {
    NestParam out;
    out.value = values_ + used_;
    backend_.write(values_ + used_, values.data(), values.size() * sizeof(float));
    out.compute = static_cast<unsigned char*>(compute_) + used_ * dtype_size(dtype_);
    if (dtype_ != Dtype::kF32) {
      std::vector<uint16_t> bits;
      for (const float value : values)
        bits.push_back(dtype_ == Dtype::kBF16 ? float_to_bf16_bits(value)
                                              : float_to_half_bits(value));
      backend_.write(static_cast<uint16_t*>(compute_) + used_, bits.data(), bits.size() * 2);
    }
    out.grad = flat_grads_ + used_;
    used_ += (values.size() + 63) / 64 * 64;
    EXPECT_LE(used_, kFlat);
    return out;
  }

  Backend& backend_;
  Dtype dtype_;
  float *values_ = nullptr, *flat_grads_ = nullptr;
  void* compute_ = nullptr;
  size_t used_ = 0;
  uint64_t seed_ = 100;
  std::vector<std::pair<std::string, std::pair<float*, size_t>>> grads_;
};

// A second queue that is as late as it may be: what is queued on it runs when it is waited for. The
// table has no room for a context: one at a time.
struct LateSide {
  const KernelTable* table = nullptr;
  std::vector<std::function<int()>> calls;
  size_t done = 0;  // of calls
  int end() {
    int code = kOk;
    for (; done < calls.size() && code == kOk; ++done) code = calls[done]();
    return code;
  }
};
LateSide late_side;

template <typename Args>
int run_or_wait(int (*kernel)(const Args&, void*), const Args& args, void* stream) {
  if (stream != &late_side) return kernel(args, stream);
  // Not every back end has this, which must be known at once.
  if constexpr (std::is_same_v<Args, GroupedWgrad>) return kUnsupported;
  late_side.calls.push_back([kernel, args] {
    Args again = args;
    // The list that it would be put on has been called by then, or called without it.
    if constexpr (requires { again.deferred; }) again.deferred = nullptr;
    return kernel(again, nullptr);
  });
  return kOk;
}
#define AERIE_LATE(name, Args)                               \
  int late_##name(const Args& args, void* stream) {          \
    return run_or_wait(late_side.table->name, args, stream); \
  }
AERIE_KERNELS(AERIE_LATE)
#define AERIE_LATE_FIELD(name, Args) &late_##name,
constexpr KernelTable kLateSideKernels = {AERIE_KERNELS(AERIE_LATE_FIELD)};

// Changes what a step is given before it runs.
using Adjust = std::function<void(NestStepInputs& inputs, Params& params)>;

// Some items of a batch, as a part of it: they count and draw what they do in the whole.
struct Part {
  size_t first = 0, count = 0;  // 0: all items
  int32_t masked = 0;           // of the whole batch
};

// `slack`: rows that a packed batch has beyond what it needs; -1: the padded batch.
Outcome run(Backend& b, NestStepConfig c, std::vector<int32_t> samples, bool flat = false,
            int slack = -1, bool count_masked = false, bool late = false, const Adjust& adjust = {},
            const Part& part = {}) {
  c.samples = *std::max_element(samples.begin(), samples.end()) + 7;
  Params make(b, c.dtype, flat);
  NestStepParams p;
  const int channels = c.sub_channels, width = c.width;
  const int bins3 = strided(strided(strided(c.bins)));
  p.conv0 = make.linear("conv0", channels, 9);
  p.conv2 = make.linear("conv2", channels, 9);
  p.conv3 = make.linear("conv3", channels, channels);
  p.conv5 = make.linear("conv5", channels, 9);
  p.conv6 = make.linear("conv6", channels, channels);
  p.pre_encode_out = make.linear("out", width, channels * bins3);
  for (int i = 0; i < c.layers; ++i) {
    const std::string at = "layer" + std::to_string(i) + ".";
    NestLayerParams l;
    l.norm_feed_forward1 = make.norm(at + "norm_ff1", width);
    l.norm_self_att = make.norm(at + "norm_att", width);
    l.norm_conv = make.norm(at + "norm_conv", width);
    l.norm_feed_forward2 = make.norm(at + "norm_ff2", width);
    l.norm_out = make.norm(at + "norm_out", width);
    l.feed_forward1 = {make.linear(at + "ff1.1", c.feed_forward, width),
                       make.linear(at + "ff1.2", width, c.feed_forward)};
    l.feed_forward2 = {make.linear(at + "ff2.1", c.feed_forward, width),
                       make.linear(at + "ff2.2", width, c.feed_forward)};
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    l.q.weight = make.add(at + "q.weight", width * width, scale);
    l.k.weight = make.add(at + "k.weight", width * width, scale);
    l.v.weight = make.add(at + "v.weight", width * width, scale);
    l.q.bias = make.add(at + "q.bias", width, scale);
    l.k.bias = make.add(at + "k.bias", width, scale);
    l.v.bias = make.add(at + "v.bias", width, scale);
    l.out = make.linear(at + "att_out", width, width);
    l.pos.weight = make.add(at + "pos", width * width, 1.0f / std::sqrt(static_cast<float>(width)));
    l.bias_u = make.add(at + "u", width, 0.3f);
    l.bias_v = make.add(at + "v_bias", width, 0.3f);
    l.pointwise1 = make.linear(at + "pointwise1", 2 * width, width);
    l.depthwise.weight = make.add(at + "depthwise", width * c.conv_kernel, 0.3f);
    l.depthwise.bias = make.add(at + "depthwise_bias", width, 0.3f);
    l.pointwise2 = make.linear(at + "pointwise2", width, width);
    l.batch_norm = make.norm(at + "batch_norm", width);
    const std::vector<float> ones(static_cast<size_t>(width), 1.0f);
    l.running_mean = b.upload(ones);
    l.running_var = b.upload(ones);
    l.num_batches = b.upload(std::vector<int64_t>{0});
    p.layers.push_back(l);
  }
  p.decoder = make.linear("decoder", c.classes * c.books, width);
  p.projection =
      b.upload(random_values(static_cast<size_t>(c.books * c.code_dim * 8 * c.bins), 1, 0.1f));
  const std::vector<float> raw =
      random_values(static_cast<size_t>(c.books * c.code_classes * c.code_dim), 2);
  std::vector<double> codes(raw.begin(), raw.end());
  const size_t dim = static_cast<size_t>(c.code_dim);
  for (size_t code = 0; code < codes.size() / dim; ++code) {
    double squares = 0.0;
    for (size_t d = 0; d < dim; ++d) squares += codes[code * dim + d] * codes[code * dim + d];
    for (size_t d = 0; d < dim; ++d) codes[code * dim + d] /= std::sqrt(squares);
  }
  p.codebooks = b.upload(codes);
  p.codebooks_float = b.upload(std::vector<float>(codes.begin(), codes.end()));
  p.mask_embedding = b.upload(random_values(static_cast<size_t>(c.bins), 3, 0.1f));
  std::vector<float> window, twiddles, filters(static_cast<size_t>(c.bins * kFftBins));
  std::vector<int32_t> bands;
  for (int i = 0; i < 400; ++i)
    window.push_back(static_cast<float>(0.5 - 0.5 * std::cos(2.0 * M_PI * i / 399)));
  for (int k = 0; k < kFftSize; ++k) {
    twiddles.push_back(static_cast<float>(std::cos(2.0 * M_PI * k / kFftSize)));
    twiddles.push_back(static_cast<float>(-std::sin(2.0 * M_PI * k / kFftSize)));
  }
  for (int bin = 0; bin < c.bins; ++bin) {
    bands.push_back(bin * 3 + 1);
    bands.push_back(bin * 3 + 5);
    for (int k = bands[bands.size() - 2]; k < bands.back(); ++k)
      filters[static_cast<size_t>(bin * kFftBins + k)] = 0.01f;
  }
  p.window = b.upload(window);
  p.twiddles = b.upload(twiddles);
  p.filterbank = b.upload(filters);
  p.bands = b.upload(bands);
  const int frames = c.frames / 8;
  p.positions =
      b.upload_as(c.dtype, random_values(static_cast<size_t>((2 * frames - 1) * width), 4));

  const size_t row = static_cast<size_t>(c.samples);
  std::vector<float> audio = random_values(2 * samples.size() * row, 5, 0.3f);
  RandomState random = testing::random_state(11, 4);
  if (part.count > 0) {
    std::vector<float> rows;
    for (const size_t first : {part.first, samples.size() + part.first})
      rows.insert(rows.end(), audio.begin() + static_cast<int64_t>(first * row),
                  audio.begin() + static_cast<int64_t>((first + part.count) * row));
    audio = rows;
    samples = {samples.begin() + static_cast<int64_t>(part.first),
               samples.begin() + static_cast<int64_t>(part.first + part.count)};
    random.first_item += part.first * random.item_stride;
  }
  c.batch = static_cast<int>(samples.size());
  std::vector<int32_t> lengths, feature_frames, quarter, eighth;
  for (int signal = 0; signal < 2; ++signal)
    for (const int32_t n : samples) {
      lengths.push_back(n);
      feature_frames.push_back(n / 160);
    }
  for (const int32_t n : samples) {
    quarter.push_back(strided(strided(n / 160)));
    eighth.push_back(strided(quarter.back()));
  }
  NestStepInputs in;
  in.audio = b.upload(audio);
  in.samples = b.upload(lengths);
  in.frames = b.upload(feature_frames);
  in.frames_quarter = b.upload(quarter);
  in.frames_encoder = b.upload(eighth);
  in.frames_counted = b.upload(std::vector<int32_t>{frames - 1});
  if (slack >= 0) {
    for (const int32_t valid : eighth) c.rows += encoder_rows(c, valid);
    c.rows += slack;
    const testing::Packing packing{item_rows(c, {eighth.begin(), eighth.end()})};
    in.layout = packing.upload(b);
    EXPECT_EQ(in.layout.rows, c.rows);
    EXPECT_LT(c.rows, c.batch * frames);
  }
  in.random = b.upload(std::vector<RandomState>{random});
  if (part.count > 0) in.loss_rows = b.upload(std::vector<int32_t>{part.masked});
  in.loss_scale = b.upload(std::vector<float>{4.0f});
  NestStepOutputs out;
  out.loss = b.scratch<float>(1);
  out.masked_rows = b.scratch<int32_t>(1);

  if (count_masked)
    c.chosen = masked_rows(c, {feature_frames.begin(), feature_frames.begin() + c.batch}, random);
  if (late) {
    late_side = {};
    late_side.table = &b.kernels();
    in.side.stream = &late_side;
    in.side.begin = [] { return kOk; };
    in.side.end = [] { return late_side.end(); };
  }
  if (adjust) adjust(in, make);
  NestStep step(late ? kLateSideKernels : b.kernels(), c, p);
  out.square_partials = b.scratch<double>(step.max_square_partials());
  // NaN everywhere: nothing may be read before it is written.
  void* memory = b.scratch<unsigned char>(step.memory_bytes());
  EXPECT_EQ(step.run(memory, in, out, nullptr), kOk);
  EXPECT_TRUE(!late || late_side.done == late_side.calls.size());
  double squares = 0.0, wanted = 0.0;
  for (const double sum : b.download(out.square_partials, step.num_square_partials()))
    squares += sum;
  for (const auto& [grad, count] : step.squared())
    for (const float value : b.download(grad, count))
      wanted += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_NEAR(squares, wanted, 1e-5 * wanted);
  std::vector<std::vector<float>> running;
  for (const NestLayerParams& l : p.layers) {
    running.push_back(b.download(l.running_mean, static_cast<size_t>(width)));
    running.push_back(b.download(l.running_var, static_cast<size_t>(width)));
  }
  return {b.download(out.loss, 1)[0], b.download(out.masked_rows, 1)[0], make.download(), running};
}

NestStepConfig small(Dtype dtype) {
  NestStepConfig c;
  c.dtype = dtype;
  c.frames = 72;
  c.bins = 16;
  c.sub_channels = 8;
  c.width = 64;
  c.heads = 1;
  c.feed_forward = 64;
  c.layers = 2;
  c.classes = c.code_classes = 32;
  c.code_dim = 8;
  c.masking.block = 12;
  c.masking.probability = 0.05;
  return c;
}

// Gradients that are zero in exact arithmetic.
bool vanishes(const std::string& name) {
  return name.find("depthwise_bias") != std::string::npos ||
         name.find(".k.bias") != std::string::npos;
}

void compare(Backend& backend, const NestStepConfig& c, double tolerance, bool flat = false) {
  const std::vector<int32_t> samples = {10000, 200, 7777};
  // 16-bit chains round at different places: both are measured by what is exact.
  NestStepConfig exact = c;
  exact.dtype = Dtype::kF32;
  const Outcome e = run(*testing::reference_backend(), exact, samples);
  const Outcome a = run(backend, c, samples, flat);
  ASSERT_GT(e.rows, 2);
  EXPECT_EQ(a.rows, e.rows);
  EXPECT_NEAR(a.loss, e.loss, tolerance * e.loss);
  for (size_t i = 0; i < e.gradients.size(); ++i) {
    const std::string& name = e.gradients[i].first;
    double difference = 0.0, norm = 0.0;
    for (size_t k = 0; k < e.gradients[i].second.size(); ++k) {
      const double want = e.gradients[i].second[k], got = a.gradients[i].second[k];
      difference += (got - want) * (got - want);
      norm += want * want;
    }
    if (vanishes(name)) {
      EXPECT_LT(std::sqrt(difference), 30 * tolerance) << name;
    } else {
      EXPECT_LT(std::sqrt(difference), tolerance * std::sqrt(norm)) << name << ' ' << norm;
    }
  }
}

AERIE_KERNEL_TEST(NestStep, Float32EqualsTheReference) {
  compare(backend, small(Dtype::kF32), 1e-4);
}

// Weights that lie one behind the other are multiplied together: the same values.
AERIE_KERNEL_TEST(NestStep, FlatWeightsGiveTheSame) {
  const std::vector<int32_t> samples = {10000, 200, 7777};
  NestStepConfig c = small(Dtype::kF32);
  c.layers = 3;
  const Outcome apart = run(backend, c, samples);
  const Outcome flat = run(backend, c, samples, true);
  EXPECT_NEAR(flat.loss, apart.loss, 1e-5 * apart.loss);
  ASSERT_EQ(flat.gradients.size(), apart.gradients.size());
  for (size_t i = 0; i < apart.gradients.size(); ++i)
    testing::expect_close(flat.gradients[i].second, apart.gradients[i].second, 1e-4,
                          vanishes(apart.gradients[i].first) ? 1e-4 : 1e-6,
                          apart.gradients[i].first);
}

// Rows of padding that are left out were never missed, whatever is in the memory around; neither is
// room for more frames in the loss than there are.
AERIE_KERNEL_TEST(NestStep, PackedRowsGiveTheSame) {
  const std::vector<int32_t> samples = {9000, 25000, 200, 3000, 17777};
  for (const bool overlap : {true, false}) {
    NestStepConfig c = small(Dtype::kF32);
    c.frames = 160;
    c.masking.allow_overlap = overlap;
    c.masking.rules_of_2_6 = !overlap;
    if (!overlap) c.masking.probability = 0.4;
    const Outcome padded = run(backend, c, samples);
    ASSERT_GT(padded.rows, 5);
    for (const int slack : {0, 7}) {
      const Outcome packed = run(backend, c, samples, false, slack, /*count_masked=*/slack > 0);
      EXPECT_EQ(packed.rows, padded.rows);
      EXPECT_NEAR(packed.loss, padded.loss, 1e-5 * padded.loss);
      for (size_t i = 0; i < padded.gradients.size(); ++i)
        testing::expect_close(packed.gradients[i].second, padded.gradients[i].second, 1e-4,
                              vanishes(padded.gradients[i].first) ? 1e-4 : 1e-6,
                              padded.gradients[i].first);
    }
  }
}

TEST(NestStep, ComputesAgainWhatStaysNear) {
  NestStepConfig c;
  c.dtype = Dtype::kBF16;
  c.feed_forward = 2048;
  c.rows = 2816;  // 16 clips of 15 s
  EXPECT_TRUE(cheap_to_recompute(c, {}));
  c.rows = 4 * 2816;
  EXPECT_FALSE(cheap_to_recompute(c, {}));
  c.rows = 0;  // all of a padded batch
  c.batch = 64;
  c.frames = 1504;
  EXPECT_FALSE(cheap_to_recompute(c, {}));
  c.batch = 2;
  EXPECT_TRUE(cheap_to_recompute(c, {}));
}

// Computing activations again must change no bit in float32.
AERIE_KERNEL_TEST(NestStep, RecomputingGivesTheSame) {
  const std::vector<int32_t> samples = {10000, 200, 7777};
  NestStepConfig c = small(Dtype::kF32);
  c.feed_forward = 4 * c.width;  // its memory has room for what lives between the modules
  c.plan.recompute = false;
  const Outcome kept = run(backend, c, samples);
  c.plan.recompute = true;
  const Outcome again = run(backend, c, samples);
  EXPECT_EQ(again.loss, kept.loss);
  for (size_t i = 0; i < kept.gradients.size(); ++i)
    EXPECT_EQ(again.gradients[i].second, kept.gradients[i].second) << kept.gradients[i].first;
}

// Neither must overlapping wgrad and reductions, however late: what they read stays.
AERIE_KERNEL_TEST(NestStep, OverlappedGradientsGiveTheSame) {
  const std::vector<int32_t> samples = {10000, 200, 7777};
  for (const bool flat : {false, true}) {
    NestStepConfig c = small(Dtype::kF32);
    c.layers = 3;
    c.feed_forward = 4 * c.width;
    const Outcome one = run(backend, c, samples, flat);
    for (const auto& [late, overlap, recompute] : {std::tuple{false, Overlap::kWgrad, false},
                                                   {true, Overlap::kWgrad, false},
                                                   {true, Overlap::kReductions, true},
                                                   {false, Overlap::kReductions, true},
                                                   {true, Overlap::kReductions, false}}) {
      c.plan.overlap = overlap;
      c.plan.recompute = recompute;
      SCOPED_TRACE(overlap_name(overlap));
      SCOPED_TRACE(late ? "late" : "at once");
      SCOPED_TRACE(flat ? "flat" : "apart");
      const Outcome two = run(backend, c, samples, flat, -1, false, late);
      EXPECT_EQ(two.rows, one.rows);
      EXPECT_NEAR(two.loss, one.loss, 1e-6 * one.loss);
      for (size_t i = 0; i < one.gradients.size(); ++i) {
        const std::string& name = one.gradients[i].first;
        // Apart, operands lie elsewhere in every run, and two of the same kind differ in their last
        // bits on a device as well.
        if (flat)
          EXPECT_EQ(two.gradients[i].second, one.gradients[i].second) << name;
        else
          testing::expect_close(two.gradients[i].second, one.gradients[i].second, 1e-4,
                                vanishes(name) ? 1e-4 : 1e-6, name);
      }
    }
  }
}

// Where the work of layers may go.
struct Way {
  Overlap overlap;
  bool late;
};
constexpr Way kWays[] = {{Overlap::kNone, false},
                         {Overlap::kWgrad, false},
                         {Overlap::kWgrad, true},
                         {Overlap::kReductions, false},
                         {Overlap::kReductions, true}};
NestStepConfig in_way(NestStepConfig c, const Way& way) {
  c.plan.overlap = way.overlap;
  c.plan.recompute = way.overlap != Overlap::kWgrad;
  return c;
}

// The part that parameters of this test are of (nest_num_parts).
int part_of(const std::string& name, int layers) {
  if (name.starts_with("decoder")) return nest_layer_part(layers);
  if (!name.starts_with("layer") || name.ends_with(".pos")) return 0;
  const int layer = std::stoi(name.substr(5));
  return nest_layer_part(layer > 0 && name.find("norm_ff1") != std::string::npos ? layer - 1
                                                                                 : layer);
}

// When a part is over, nothing changes its gradients any more, wherever they were made. With an odd
// number of layers, the first is alone at the end.
AERIE_KERNEL_TEST(NestStep, GradientsOfAPartAreFinalBehindIt) {
  const std::vector<int32_t> samples = {10000, 200, 7777};
  for (const int layers : {2, 3})
    for (const Way& way : kWays) {
      NestStepConfig c = in_way(small(Dtype::kF32), way);
      c.layers = layers;
      SCOPED_TRACE(overlap_name(way.overlap));
      SCOPED_TRACE(way.late ? "late" : "at once");
      std::vector<int> order;
      std::vector<std::pair<std::string, std::vector<float>>> seen;
      const Outcome out =
          run(backend, c, samples, /*flat=*/true, -1, false, way.late,
              [&](NestStepInputs& in, Params& params) {
                in.after_part = [&, layers](int part, void* stream) {
                  const auto look = [&, layers, part] {
                    order.push_back(part);
                    for (const auto& [name, where] : params.grads())
                      if (part_of(name, layers) == part)
                        seen.emplace_back(name, backend.download(where.first, where.second));
                    return kOk;
                  };
                  if (stream != &late_side) return look();
                  late_side.calls.push_back(look);
                  return kOk;
                };
              });
      std::vector<int> wanted;
      for (int part = nest_num_parts(layers) - 1; part >= 0; --part) wanted.push_back(part);
      EXPECT_EQ(order, wanted);
      ASSERT_EQ(seen.size(), out.gradients.size());  // every parameter is of one part
      for (const auto& [name, values] : seen) {
        const auto at = std::find_if(out.gradients.begin(), out.gradients.end(),
                                     [&, &wanted_name = name](const auto& gradient) {
                                       return gradient.first == wanted_name;
                                     });
        EXPECT_EQ(values, at->second) << name;
      }
    }
}

// Two batches that add up their sums, each in a thread of its own.
class TwoRanks {
 public:
  int add_up(size_t rank, const ExchangedSums& sums) {
    calls_[rank].push_back({sums.layer, sums.backward});
    values_[rank] = sums.values;
    gate_.arrive_and_wait();
    std::vector<double> all;
    for (int64_t i = 0; i < sums.count; ++i) all.push_back(values_[0][i] + values_[1][i]);
    gate_.arrive_and_wait();
    std::copy(all.begin(), all.end(), sums.values);
    return kOk;
  }
  // A rank that fails does not keep the other waiting.
  void leave() { gate_.arrive_and_drop(); }
  const std::vector<std::pair<int, bool>>& calls(size_t rank) const { return calls_[rank]; }

 private:
  std::barrier<> gate_{2};
  std::array<double*, 2> values_{};
  std::array<std::vector<std::pair<int, bool>>, 2> calls_;
};

// Two unequal parts of a batch that exchange sums are the batch. Without an exchange they are not.
TEST(NestStepTest, PartsThatExchangeSumsAreTheWholeBatch) {
  const std::vector<int32_t> samples = {10000, 200, 7777, 9300};
  for (const bool valid_frames : {false, true})
    for (const Way& way : kWays) {
      if (way.late) continue;
      NestStepConfig c = in_way(small(Dtype::kF32), way);
      c.statistics_of_valid_frames = valid_frames;
      SCOPED_TRACE(overlap_name(way.overlap));
      const Outcome whole = run(*testing::reference_backend(), c, samples, true);
      ASSERT_GT(whole.rows, 2);
      c.exchange = true;
      const auto halves = [&](bool exchange) {
        TwoRanks ranks;
        std::array<Outcome, 2> out;
        const auto work = [&](size_t rank) {
          const auto backend = testing::reference_backend();
          const Part part{rank == 0 ? size_t{0} : size_t{3}, rank == 0 ? size_t{3} : size_t{1},
                          whole.rows};
          out[rank] = run(
              *backend, c, samples, true, -1, false, false,
              [&](NestStepInputs& in, Params&) {
                if (exchange)
                  in.exchange = [&ranks, rank](const ExchangedSums& sums, void*) {
                    return ranks.add_up(rank, sums);
                  };
              },
              part);
          ranks.leave();
        };
        std::thread other(work, 1);
        work(0);
        other.join();
        if (exchange) {
          const std::vector<std::pair<int, bool>> wanted = {
              {0, false}, {1, false}, {1, true}, {0, true}};
          EXPECT_EQ(ranks.calls(0), wanted);
          EXPECT_EQ(ranks.calls(1), wanted);
        }
        return out;
      };
      const auto sum_of = [](const std::array<Outcome, 2>& parts, size_t i) {
        std::vector<float> out = parts[0].gradients[i].second;
        for (size_t k = 0; k < out.size(); ++k) out[k] += parts[1].gradients[i].second[k];
        return out;
      };
      const std::array<Outcome, 2> parts = halves(true);
      EXPECT_EQ(parts[0].rows + parts[1].rows, whole.rows);
      EXPECT_NEAR(parts[0].loss + parts[1].loss, whole.loss, 1e-5 * whole.loss);
      for (size_t i = 0; i < whole.gradients.size(); ++i)
        testing::expect_close(sum_of(parts, i), whole.gradients[i].second, 1e-4,
                              vanishes(whole.gradients[i].first) ? 1e-4 : 1e-6,
                              whole.gradients[i].first);
      for (const Outcome& part : parts)
        for (size_t i = 0; i < whole.running.size(); ++i)
          testing::expect_close(part.running[i], whole.running[i], 1e-5, 0, "running statistics");
      if (way.overlap != Overlap::kNone) continue;
      const std::array<Outcome, 2> alone = halves(false);
      EXPECT_GT(std::abs(alone[0].loss + alone[1].loss - whole.loss), 1e-4 * whole.loss);
    }
}

AERIE_KERNEL_TEST(NestStep, Bf16IsNearTheReference) {
  NestStepConfig c = small(Dtype::kBF16);
  for (const bool keep : {false, true}) {
    c.plan.save_p = keep;
    compare(backend, c, 0.12);
  }
}

// Heads that fill no tile. Flat, weights of queries, keys and values lie one behind the other, but
// their biases, 88 values each, do not.
AERIE_KERNEL_TEST(NestStep, NarrowHeadsAreNearTheReference) {
  for (const auto& [dtype, flat, tolerance] : {std::tuple{Dtype::kF32, true, 1e-4},
                                               {Dtype::kBF16, false, 0.12},
                                               {Dtype::kF16, true, 0.05}}) {
    NestStepConfig c = small(dtype);
    c.heads = 2;
    c.width = c.heads * 44;
    c.feed_forward = 4 * c.width;
    c.layers = 1;
    c.plan.save_p = flat;
    compare(backend, c, tolerance, flat);
  }
}

TEST(NestStep, KeepsWeightsThatStayNear) {
  NestStepConfig c;
  c.dtype = Dtype::kBF16;
  c.frames = 1504;
  c.batch = 16;
  c.width = 1024;  // 128 values per head
  EXPECT_TRUE(saved_p_pays(c, {}));
  c.training = false;
  EXPECT_FALSE(saved_p_pays(c, {}));
  c.training = true;
  c.dtype = Dtype::kF32;
  EXPECT_FALSE(saved_p_pays(c, {}));
  c.dtype = Dtype::kF16;
  c.batch = 128;
  EXPECT_FALSE(saved_p_pays(c, {}));
  c.width = 512;  // on chip with them
  EXPECT_TRUE(saved_p_pays(c, {}));
  c.width = 8 * 44;  // and so are narrower heads
  EXPECT_TRUE(saved_p_pays(c, {}));
  c.batch = 2;
  EXPECT_TRUE(saved_p_pays(c, {}));
}

// Attention's weights that stay take memory; dropout's decisions need one array for all layers
// then.
TEST(NestStep, KeptWeightsTakeMemory) {
  NestStepConfig c = small(Dtype::kBF16);
  c.batch = 3;
  c.samples = 16000;
  const NestStepParams params{};
  const auto bytes = [&] { return NestStep(kReferenceKernels, c, params).memory_bytes(); };
  const size_t before = bytes();
  c.plan.save_p = true;
  const int frames = c.frames / 8;
  const size_t layers = static_cast<size_t>(c.layers);
  EXPECT_EQ(bytes() - before, layers * (2 * attention_p_size(c.batch, c.heads, frames) +
                                        4 * attention_tile_max_size(c.batch, c.heads, frames)) -
                                  (layers - 1) * 4 * attention_keep_size(c.batch, c.heads, frames));
  c.dtype = Dtype::kF32;
  const size_t plain = bytes();
  c.plan.save_p = false;
  EXPECT_EQ(bytes(), plain);
}

// Wide enough for the kernel that makes several gradients of weights at once.
TEST(NestStepGpuTest, WideLayersAreNearTheReference) {
  std::string reason;
  const auto backend = testing::cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  NestStepConfig c = small(Dtype::kBF16);
  c.width = 128;
  c.heads = 2;
  c.feed_forward = 256;
  compare(*backend, c, 0.12);
}

// Another back end's memory and kernels, but without products that do more.
class PlainProducts : public Backend {
 public:
  explicit PlainProducts(Backend& other) : other_(other), table_(other.kernels()) {
    table_.silu_product_backward = [](const DgradDsilu&, void*) { return kUnsupported; };
  }
  const KernelTable& kernels() const override { return table_; }
  void* allocate(size_t bytes) override { return other_.allocate(bytes); }
  void write(void* to, const void* from, size_t bytes) override { other_.write(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { other_.read(to, from, bytes); }

 private:
  Backend& other_;
  KernelTable table_;
};

// So many rows that products take SiLU along.
TEST(NestStepGpuTest, ManyRowsAreNearPlainProducts) {
  std::string reason;
  const auto backend = testing::cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  PlainProducts plain(*backend);
  std::vector<int32_t> samples;
  for (int i = 0; i < 800; ++i) samples.push_back(5000 + i * 37 % 6000);
  NestStepConfig c = small(Dtype::kBF16);
  c.layers = 1;
  c.feed_forward = 2048;
  c.plan.recompute = false;
  const Outcome e = run(plain, c, samples, false, 0), a = run(*backend, c, samples, false, 0);
  EXPECT_EQ(a.rows, e.rows);
  EXPECT_NEAR(a.loss, e.loss, 1e-3 * e.loss);
  for (size_t i = 0; i < e.gradients.size(); ++i) {
    const std::string& name = e.gradients[i].first;
    if (!vanishes(name))
      testing::expect_close(a.gradients[i].second, e.gradients[i].second, 0.03, 0, name);
  }
}

AERIE_KERNEL_TEST(NestStep, EvaluationGivesTheLossAlone) {
  NestStepConfig c = small(Dtype::kF32);
  c.training = false;
  const std::vector<int32_t> samples = {10000, 200, 7777};
  const Outcome e = run(*testing::reference_backend(), c, samples);
  const Outcome a = run(backend, c, samples);
  EXPECT_EQ(a.rows, e.rows);
  EXPECT_NEAR(a.loss, e.loss, 1e-5 * e.loss);
  for (const auto& [name, values] : a.gradients)
    for (const float value : values) ASSERT_TRUE(std::isnan(value)) << name;
}

}  // namespace
}  // namespace aerie::kernels
