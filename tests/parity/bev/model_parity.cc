// Whole models and the parts of them that need torch.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include "aerie/device/gpu.h"
#include "aerie/models/bev/bev_model.h"
#include "aerie/models/bev/net/splat_op.h"
#include "aerie/nn/dtype_policy.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/optimizer.h"
#include "hash_uniform.h"
#include "parity.h"

namespace aerie::bev::parity {
namespace {

std::vector<double> numbers(const at::Tensor& t) {
  const at::Tensor flat = t.detach().to(at::kCPU, at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

template <typename T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor out = at::empty(shape, type);
  if (out.numel() != static_cast<int64_t>(values.size()))
    throw std::runtime_error("a tensor has another number of values than its shape says");
  std::copy(values.begin(), values.end(), out.template mutable_data_ptr<T>());
  return out;
}

at::Tensor float_tensor(const Fixture& fixture, const std::string& name) {
  return tensor_of(fixture.floats(name), fixture.shape(name), at::kFloat);
}

// Values at flattened positions floor(k*n/m), all n where n <= m.
std::vector<double> sampled(const std::vector<double>& values, size_t m) {
  if (values.size() <= m) return values;
  std::vector<double> out(m);
  for (size_t k = 0; k < m; ++k) out[k] = values[k * values.size() / m];
  return out;
}

// The same as a row of exactly m values, repeated where there are fewer.
std::vector<double> sampled_row(const std::vector<double>& values, size_t m) {
  const std::vector<double> some = sampled(values, m);
  std::vector<double> out(m);
  for (size_t k = 0; k < m; ++k) out[k] = some[k % some.size()];
  return out;
}

double largest(const std::vector<double>& values) {
  double out = 0.0;
  for (double value : values) out = std::max(out, std::abs(value));
  return out;
}

double norm(const std::vector<double>& values) {
  double sum = 0.0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

std::vector<double> row(const std::vector<double>& table, size_t index, size_t columns) {
  const auto begin = table.begin() + static_cast<std::ptrdiff_t>(index * columns);
  return {begin, begin + static_cast<std::ptrdiff_t>(columns)};
}

// Activations of a pass; their gradients are kept.
class Taps {
 public:
  void operator()(const std::string& name, const at::Tensor& value) {
    if (value.requires_grad()) value.retain_grad();
    seen_[name] = value;
  }
  const at::Tensor* find(const std::string& name) const {
    const auto found = seen_.find(name);
    return found == seen_.end() ? nullptr : &found->second;
  }

 private:
  std::map<std::string, at::Tensor> seen_;
};

// Where torch computes. TF32 is off: its fifth digit is already another one.
at::Device device_of(bool gpu) {
  nn::set_tf32(config::Tf32::kNone);
  if (!gpu) return at::kCPU;
  if (const Status status = device::load_torch_cuda(); !status.ok())
    throw std::runtime_error(status.to_string());
  return at::Device(at::kCUDA, 0);
}

struct Run {
  std::unique_ptr<BevModel> model;
  BevBatch batch;
  Taps taps;
  std::shared_ptr<const SplatPlan> plan;
  std::map<std::string, double> losses;
};

ViewMatrices matrices_of(const Fixture& fixture) {
  return {float_tensor(fixture, "in/camera2lidar"), float_tensor(fixture, "in/intrin"),
          float_tensor(fixture, "in/img_aug"), float_tensor(fixture, "in/bev_aug")};
}

// A training pass with its gradients.
void run(Run& r) {
  r.plan = take(r.model->plan(r.batch));
  ForwardOptions options;
  options.training = true;
  options.tap = [&](const std::string& name, const at::Tensor& value) { r.taps(name, value); };
  const at::Tensor logits = take(r.model->forward(r.batch, options));
  const BevConfig& config = r.model->config();
  const std::vector<int64_t> expected = {logits.size(0), config.num_classes(), config.map_height(),
                                         config.map_width()};
  if (logits.sizes() != at::IntArrayRef(expected) || r.batch.truth.sizes() != logits.sizes())
    throw std::runtime_error("the map has another size than the truth");
  const MapLosses losses = map_losses(config, logits, r.batch.truth);
  for (const auto& [name, value] : losses.parts) r.losses[name] = value.item<double>();
  losses.total.backward();
}

// [images][pixels][depths][width] to [images][depths][pixels][width]
std::vector<double> depths_first(const std::vector<double>& values, int64_t pixels, int64_t depths,
                                 int64_t width) {
  std::vector<double> out(values.size());
  const auto images = static_cast<int64_t>(values.size()) / (pixels * depths * width);
  size_t next = 0;
  for (int64_t i = 0; i < images; ++i)
    for (int64_t d = 0; d < depths; ++d)
      for (int64_t p = 0; p < pixels; ++p)
        for (int64_t k = 0; k < width; ++k)
          out[next++] = values[static_cast<size_t>(((i * pixels + p) * depths + d) * width + k)];
  return out;
}

std::vector<double> cells_of(const Run& r) {
  const SplatPlan& plan = *r.plan;
  // Those of a GPU lie there.
  const std::vector<double> cells = plan.cell_of_point.defined()
                                        ? numbers(at::where(plan.kept > 0, plan.cell_of_point, -1))
                                        : std::vector<double>(plan.cell.begin(), plan.cell.end());
  return depths_first(cells, plan.shape.pixels, plan.shape.depths, 1);
}

std::vector<double> points_of(const Run& r) {
  const BevConfig& c = r.model->config();
  const FrustumAxes axes = take(
      frustum_axes(c.image_height, c.image_width, c.feature_height(), c.feature_width(), c.dbound));
  const ViewMatrices& m = r.batch.matrices;
  const int64_t cameras = m.camera_to_lidar.size(1);
  std::vector<double> out;
  for (int64_t i = 0; i < m.camera_to_lidar.size(0) * cameras; ++i) {
    const auto matrix = [](const at::Tensor& t, int64_t index) {
      return std::span<const float, 16>(t.const_data_ptr<float>() + index * 16, 16);
    };
    const CameraRays rays = take(
        fused_geometry(matrix(m.camera_to_lidar, i), matrix(m.intrinsics, i),
                       matrix(m.image_augmentation, i), matrix(m.bev_augmentation, i / cameras)));
    std::vector<float> points(static_cast<size_t>(axes.points() * 3));
    frustum_points(rays, axes, points);
    out.insert(out.end(), points.begin(), points.end());
  }
  return depths_first(out, c.feature_height() * c.feature_width(), c.num_depth_bins(), 3);
}

// An activation of the run; throws where the model has none of the name.
std::vector<double> activation(const Run& r, const std::string& name) {
  if (name == "points") return points_of(r);
  if (name == "cell") return cells_of(r);
  const at::Tensor* tensor = r.taps.find(name);
  if (tensor == nullptr) throw std::runtime_error("the model has no activation '" + name + "'");
  return numbers(*tensor);
}

std::map<std::string, std::vector<double>> gradients_of(const BevModel& model) {
  std::map<std::string, std::vector<double>> out;
  const nn::ParameterRegistry& registry = model.parameters();
  for (int64_t i : registry.trainable())
    out[registry.entries()[static_cast<size_t>(i)].name] = numbers(registry.grad(i));
  return out;
}

// The reference's parameters must be ours, in the same order.
std::vector<std::string> parameter_names(const Fixture& fixture, const BevModel& model) {
  const std::vector<std::string> names = string_list(fixture.text("parameters"));
  const nn::ParameterRegistry& registry = model.parameters();
  std::vector<std::string> ours;
  for (int64_t i : registry.trainable())
    ours.push_back(registry.entries()[static_cast<size_t>(i)].name);
  for (size_t i = 0; i < std::max(names.size(), ours.size()); ++i)
    if (i >= names.size() || i >= ours.size() || names[i] != ours[i])
      throw std::runtime_error("parameter " + std::to_string(i) + " is called '" +
                               (i < ours.size() ? ours[i] : "-") + "' instead of '" +
                               (i < names.size() ? names[i] : "-") + "'");
  return names;
}

void load_weights(const Fixture& fixture, BevModel& model) {
  const at::NoGradGuard no_grad;
  nn::ParameterRegistry& registry = model.parameters();
  size_t parameters = 0;
  for (const std::string& name : fixture.names("w/")) {
    const int64_t entry = registry.find(name.substr(2));
    if (entry < 0) throw std::runtime_error("the model has no parameter '" + name.substr(2) + "'");
    const at::Tensor& tensor = registry.tensor(entry);
    if (tensor.sizes() != at::IntArrayRef(fixture.shape(name)))
      throw std::runtime_error("'" + name + "' has another shape than the model's");
    if (!registry.entries()[static_cast<size_t>(entry)].is_buffer) ++parameters;
    if (tensor.scalar_type() == at::kFloat) tensor.copy_(float_tensor(fixture, name));
  }
  if (parameters != registry.trainable().size())
    throw std::runtime_error("weights of " + std::to_string(parameters) +
                             " parameters instead of " +
                             std::to_string(registry.trainable().size()));
}

// Every parameter from its name: tables 0.5 f; vectors 1 + 0.25 f (weights) or 0.125 f (biases);
// others f * sqrt(3 / fan-in).
void fill_weights(BevModel& model, uint64_t seed) {
  const at::NoGradGuard no_grad;
  nn::ParameterRegistry& registry = model.parameters();
  for (int64_t i : registry.trainable()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    std::vector<float> values = hash_uniform(info.name, info.numel, seed);
    const auto ends_with = [&](std::string_view end) { return info.name.ends_with(end); };
    const float scale =
        static_cast<float>(std::sqrt(3.0 / static_cast<double>(info.numel / info.shape[0])));
    for (float& value : values) {
      if (ends_with("relative_position_bias_table"))
        value = 0.5f * value;
      else if (info.shape.size() == 1)
        value = ends_with("weight") ? 1.0f + 0.25f * value : 0.125f * value;
      else
        value = value * scale;
    }
    registry.tensor(i).copy_(tensor_of(values, info.shape, at::kFloat));
  }
}

double text_number(const Fixture& fixture, const std::string& name) {
  return std::stod(fixture.text(name));
}

void check_step(const Fixture& fixture, Run& r, const std::vector<std::string>& names,
                const std::map<std::string, std::vector<double>>& gradients, Checks& checks) {
  nn::ParameterRegistry& registry = r.model->parameters();
  const double clip = text_number(fixture, "clip"), lr = text_number(fixture, "lr");
  optim::ClipSettings settings;
  settings.value = clip;
  const optim::GradientReport report =
      optim::prepare_gradients(registry.flat_grads(), {}, settings);
  const double total = report.norm.item<double>();
  checks.near("grad_norm", "grad_norm", {&total, 1}, fixture.numbers("grad_norm"), 0.0, 1e-5);
  optim::OptimizerGroup group;
  group.entries = registry.parameters();
  group.settings.lr = lr;
  group.settings.weight_decay = text_number(fixture, "weight_decay");
  optim::Optimizer optimizer(registry, config::OptimizerKind::kAdamW, {group},
                             undecayed_parameters());
  optimizer.step({&lr, 1});

  const double factor = std::min(1.0, clip / (total + 1e-6));
  constexpr size_t kColumns = 32;
  const std::vector<double> want = fixture.numbers("step_sampled"),
                            g = fixture.numbers("g_sampled");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<double> got = sampled_row(numbers(registry[names[i]]), kColumns);
    const std::vector<double> expected = row(want, i, kColumns), of_step = row(g, i, kColumns);
    const double top = largest(gradients.at(names[i]));
    // Adam's first step is lr*g/(|g|+eps): where g is rounding noise, so is its sign.
    std::vector<double> solid, solid_want, noise, noise_want;
    for (size_t k = 0; k < kColumns; ++k) {
      const double size = std::abs(of_step[k]);
      const bool firm = size * factor > 1e-6 && size > 1e-3 * top / std::max(factor, 1e-12);
      (firm ? solid : noise).push_back(got[k]);
      (firm ? solid_want : noise_want).push_back(expected[k]);
    }
    checks.near("step", names[i], solid, solid_want, 5e-7);
    checks.near("step where gradients are noise", names[i], noise, noise_want, 2.1 * lr);
  }
}

void compare_losses(const Fixture& fixture, const Run& r, double tolerance, Checks& checks) {
  for (const std::string& name : fixture.names("loss")) {
    const auto found = r.losses.find(name);
    if (found == r.losses.end())
      checks.fail("loss", "there is no " + name);
    else
      checks.near("loss", name, {&found->second, 1}, fixture.numbers(name), tolerance);
  }
}

}  // namespace

void check_model(const Fixture& fixture, bool gpu, Checks& checks) {
  Run r;
  const at::Device device = device_of(gpu);
  r.model = take(BevModel::create(config_of(fixture), /*seed=*/0, device));
  load_weights(fixture, *r.model);
  r.batch.images =
      tensor_of(fixture.bytes("in/img"), fixture.shape("in/img"), at::kByte).to(device);
  r.batch.truth = tensor_of(fixture.bytes("in/gt"), fixture.shape("in/gt"), at::kByte).to(device);
  r.batch.matrices = matrices_of(fixture);
  const std::vector<std::string> names = parameter_names(fixture, *r.model);
  run(r);

  for (const std::string& name : fixture.names("x/")) {
    const std::string what = name.substr(2);
    checks.near(what == "cell" ? "cells" : "activations", what, activation(r, what),
                fixture.numbers(name), what == "cell" ? 0.0 : 5e-5);
  }
  for (const std::string& name : fixture.names("dx/")) {
    const at::Tensor* tensor = r.taps.find(name.substr(3));
    if (tensor == nullptr || !tensor->grad().defined()) {
      checks.fail("gradients of activations", name + " has none");
      continue;
    }
    const std::vector<double> want = fixture.numbers(name);
    checks.near("gradients of activations", name, numbers(tensor->grad()), want,
                1e-4 * largest(want));
  }
  compare_losses(fixture, r, 2e-6, checks);
  const nn::ParameterRegistry& registry = r.model->parameters();
  for (const std::string& name : fixture.names("bn/")) {
    const int64_t entry = registry.find(name.substr(3));
    if (entry < 0)
      checks.fail("running statistics", "there is no " + name.substr(3));
    else
      checks.near("running statistics", name, numbers(registry.tensor(entry)),
                  fixture.numbers(name), 1e-5);
  }

  // Some gradients are zero in exact arithmetic (key biases, for example).
  const double noise = 1e-7 * fixture.scalar("grad_norm");
  const auto gradients = gradients_of(*r.model);
  for (const std::string& name : fixture.names("g/")) {
    const auto found = gradients.find(name.substr(2));
    const std::vector<double> want = fixture.numbers(name);
    if (found == gradients.end())
      checks.fail("gradients", "there is no " + name.substr(2));
    else
      checks.near("gradients", name, found->second, want, 1e-4 * largest(want) + noise);
  }
  const std::vector<double> norms = fixture.numbers("gnorm"), g = fixture.numbers("g_sampled");
  std::vector<double> our_norms;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<double>& ours = gradients.at(names[i]);
    our_norms.push_back(norm(ours));
    checks.near("sampled gradients", names[i], sampled_row(ours, 32), row(g, i, 32),
                1e-4 * largest(ours) + noise);
  }
  checks.near("norms of gradients", "gnorm", our_norms, norms, 1e-5 * largest(norms), 1e-4);
  check_step(fixture, r, names, gradients, checks);

  const at::NoGradGuard no_grad;
  const at::Tensor logits = take(r.model->forward(r.batch, ForwardOptions()));
  // After a step whose noisy part is not reproducible.
  checks.near("eval_prob", "eval_prob", numbers(at::sigmoid(logits)), fixture.numbers("eval_prob"),
              2e-3);
}

void check_full_model(const Fixture& fixture, bool gpu, Checks& checks) {
  const auto seed = static_cast<uint64_t>(std::stoull(fixture.text("weight_seed")));
  Run r;
  const at::Device device = device_of(gpu);
  r.model = take(BevModel::create(config_of(fixture), /*seed=*/0, device));
  fill_weights(*r.model, seed);
  const BevConfig& c = r.model->config();
  const auto bytes = [&](const char* name, const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    std::vector<uint8_t> out;
    out.reserve(static_cast<size_t>(count));
    for (float value : hash_uniform(name, count, seed))
      out.push_back(static_cast<uint8_t>((value + 1.0f) * 128.0f));
    return tensor_of(out, shape, at::kByte).to(device);
  };
  r.batch.images = bytes("img", {1, c.cameras, 3, c.image_height, c.image_width});
  r.batch.truth =
      (bytes("gt", {1, c.num_classes(), c.map_height(), c.map_width()}) < 77).to(at::kByte);
  r.batch.matrices = matrices_of(fixture);
  const std::vector<std::string> names = parameter_names(fixture, *r.model);
  run(r);
  for (const std::string& name : fixture.names("x/")) {
    const std::string what = name.substr(2);
    checks.near(what == "points" ? "points" : "activations", what,
                sampled(activation(r, what), 128), fixture.numbers(name),
                what == "points" ? 1e-3 : 2e-4);
  }
  compare_losses(fixture, r, 5e-6, checks);
  const std::vector<double> norms = fixture.numbers("gnorm"), g = fixture.numbers("g");
  const double total = norm(norms);
  const auto gradients = gradients_of(*r.model);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<double>& ours = gradients.at(names[i]);
    const double size = norm(ours);
    checks.near("norms of gradients", names[i], {&size, 1}, {&norms[i], 1}, 1e-6 * total, 2e-3);
    checks.near("sampled gradients", names[i], sampled_row(ours, 8), row(g, i, 8),
                1e-2 * largest(ours) + 1e-7 * total);
  }
}

namespace {

// One block with given decisions of stochastic depth.
void check_block(const Fixture& fixture, at::Device device, Checks& checks) {
  const std::string& text = fixture.text("block");
  long long shift = 0;
  double rate = 0.0;
  const size_t at_shift = text.find("shift "), at_rate = text.find("drop rate ");
  if (at_shift == std::string::npos || at_rate == std::string::npos ||
      std::sscanf(text.c_str() + at_shift, "shift %lld", &shift) != 1 ||
      std::sscanf(text.c_str() + at_rate, "drop rate %lf", &rate) != 1)
    throw std::runtime_error("metadata 'block' does not name its shift and drop rate");
  SwinBlockShape shape;
  const std::vector<int64_t> table =
      fixture.shape("block/w/attn.w_msa.relative_position_bias_table");
  shape.width = fixture.shape("block/w/norm1.weight").at(0);
  shape.heads = table.at(1);
  shape.window = (std::llround(std::sqrt(static_cast<double>(table.at(0)))) + 1) / 2;
  shape.shift = shift;
  shape.mlp_ratio = fixture.shape("block/w/ffn.layers.0.0.bias").at(0) / shape.width;
  shape.drop_path = rate;
  nn::ParameterRegistry registry;
  const SwinBlock block(nn::Scope(registry), shape);
  registry.materialize(device);
  const at::NoGradGuard no_grad;
  const std::vector<std::string> names = fixture.names("block/w/");
  for (const std::string& name : names) registry[name.substr(8)].copy_(float_tensor(fixture, name));
  if (names.size() != registry.trainable().size())
    throw std::runtime_error("the block has other parameters than the fixture");
  const at::Tensor keep =
      tensor_of(fixture.bytes("block/keep"), fixture.shape("block/keep"), at::kByte);
  nn::InjectedDraws draws;
  draws.dropout_keep = {keep[0].contiguous(), keep[1].contiguous()};
  nn::ForwardContext ctx;
  ctx.training = true;
  ctx.injected = &draws;
  checks.near("matrices block", "block/out",
              numbers(block.forward(ctx, float_tensor(fixture, "block/in").to(device))),
              fixture.numbers("block/out"), 2e-5);
}

// bilinear_ac_<true|false>_<HxW|xN>
void check_bilinear(const Fixture& fixture, at::Device device, Checks& checks) {
  const at::Tensor in = float_tensor(fixture, "bilinear_in").to(device);
  for (const std::string& name : fixture.names("bilinear_ac_")) {
    const bool align = name.find("_true_") != std::string::npos;
    const std::vector<int64_t> shape = fixture.shape(name);
    const BilinearResize resize(align);
    checks.near("matrices bilinear", name, numbers(resize.forward(in, shape.at(2), shape.at(3))),
                fixture.numbers(name), 2e-6);
  }
}

// "src x +-6.4 y +-4.8 (16x12), out x +-6.5 y +-3.5 step 0.5 (26x14)"
void check_grid(const Fixture& fixture, at::Device device, Checks& checks) {
  double x = 0, y = 0, out_x = 0, out_y = 0, step = 0;
  if (std::sscanf(fixture.text("grid").c_str(),
                  "src x +-%lf y +-%lf (%*dx%*d), out x +-%lf y +-%lf step %lf", &x, &y, &out_x,
                  &out_y, &step) != 5)
    throw std::runtime_error("metadata 'grid' does not name its ranges");
  const at::Tensor in = float_tensor(fixture, "grid_in").to(device);
  const Resampler resampler = grid_to_map({-x, x, 1}, in.size(2), {-out_x, out_x, step}, {-y, y, 1},
                                          in.size(3), {-out_y, out_y, step});
  checks.near("matrices grid", "grid_out", numbers(resampler.forward(in)),
              fixture.numbers("grid_out"), 2e-5);
}

}  // namespace

void check_layers(const Fixture& fixture, bool gpu, Checks& checks) {
  const at::Device device = device_of(gpu);
  if (fixture.has("block/in")) check_block(fixture, device, checks);
  if (fixture.has("bilinear_in")) check_bilinear(fixture, device, checks);
  if (fixture.has("grid_in")) check_grid(fixture, device, checks);
}

// check_splat() has seen that shapes and cells are sound.
void check_splat_tensors(const Fixture& fixture, bool gpu, Checks& checks) {
  const at::Device device = device_of(gpu);
  for (const std::string& name : fixture.cases()) {
    const std::string at = name + "/";
    const std::vector<int64_t> extents = fixture.shape(at + "cell");
    const std::vector<int64_t> grid = fixture.integers(at + "grid");
    kernels::SplatShape shape;
    shape.batch = extents[0];
    shape.images = extents[0] * extents[1];
    shape.depths = extents[2];
    shape.pixels = extents[3] * extents[4];
    shape.channels = fixture.shape(at + "context")[1];
    shape.nx = grid[0];
    shape.ny = grid[1];
    shape.nz = grid[2];
    const std::vector<int64_t> cells = fixture.integers(at + "cell");
    std::vector<int64_t> cell(cells.size());
    for (int64_t i = 0; i < shape.images; ++i)
      for (int64_t d = 0; d < shape.depths; ++d)
        for (int64_t p = 0; p < shape.pixels; ++p)
          cell[static_cast<size_t>((i * shape.pixels + p) * shape.depths + d)] =
              cells[static_cast<size_t>((i * shape.depths + d) * shape.pixels + p)];
    const auto count = static_cast<int64_t>(cell.size());
    const auto plan = SplatPlan::of_tensor(shape, extents[3], extents[4],
                                           tensor_of(cell, {count}, at::kLong).to(device));
    const at::Tensor logits =
        float_tensor(fixture, at + "depth_logits").to(device).requires_grad_(true);
    const at::Tensor context =
        float_tensor(fixture, at + "context").to(device).requires_grad_(true);
    const at::Tensor pooled = splat(logits, context, plan).pooled;
    (pooled * float_tensor(fixture, at + "dout").to(device)).sum().backward();
    checks.near("splat by tensors", at + "pooled", numbers(pooled), fixture.numbers(at + "pooled"),
                1e-5, 1e-5);
    checks.near("splat by tensors", at + "d_depth_logits", numbers(logits.grad()),
                fixture.numbers(at + "d_depth_logits"), 1e-5);
    checks.near("splat by tensors", at + "d_context", numbers(context.grad()),
                fixture.numbers(at + "d_context"), 1e-5);
  }
}

void check_count_tensors(const Fixture& fixture, bool gpu, Checks& checks) {
  const at::Device device = device_of(gpu);
  const at::Tensor truth =
      tensor_of(fixture.bytes("gt"), fixture.shape("gt"), at::kByte).to(device);
  const at::Tensor counts =
      map_counts(float_tensor(fixture, "prob").to(device), truth).to(at::kCPU).contiguous();
  const int64_t* first = counts.const_data_ptr<int64_t>();
  checks.equal("metrics by tensors", "tp_fp_fn",
               std::vector<int64_t>(first, first + counts.numel()), fixture.integers("tp_fp_fn"));
}

}  // namespace aerie::bev::parity
