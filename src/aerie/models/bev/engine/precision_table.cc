#include "aerie/models/bev/engine/precision_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/data/batch.h"
#include "aerie/device/gpu.h"
#include "aerie/models/bev/engine/bev_engine.h"

namespace aerie::bev {
namespace {

// Operations that compute nothing: they make room, or look at what is there in another way.
constexpr std::string_view kNoArithmetic =
    "alias|as_strided|chunk|detach|detach_|diagonal|empty|empty_like|empty_strided|expand|"
    "expand_as|flatten|item|lift_fresh|narrow|new_empty|new_zeros|permute|reshape|resize_|"
    "resize_as_|resolve_conj|resolve_neg|select|set_|slice|split|squeeze|t|transpose|unbind|"
    "unflatten|unsqueeze|view|view_as|zeros|ones|full|fill_|zero_|to|contiguous|ones_like|"
    "zeros_like|empty_permuted|_local_scalar_dense|_to_copy|mT|_reshape_alias|_unsafe_view|"
    "result_type|is_nonzero|split_with_sizes|scalar_tensor|clone";

enum class Phase { kForward, kBackward, kUpdate };
constexpr const char* kPhaseNames[] = {"forward", "backward", "update"};

const char* dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    default:
      return "";
  }
}

void gather(const c10::IValue& value, std::set<std::string>& out) {
  const auto add = [&](const at::Tensor& tensor) {
    // Numbers of the code are float64 and take the precision of what they meet.
    if (tensor.defined() && tensor.is_floating_point() &&
        !tensor.unsafeGetTensorImpl()->is_wrapped_number())
      out.insert(dtype_name(tensor.scalar_type()));
  };
  if (value.isTensor()) {
    add(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  }
}

// Watches every operation of the process while it lives.
class Watch {
 public:
  struct Row {
    std::array<int64_t, 3> count = {};  // by phase
  };
  // "float16", or "float32 -> float16" of operations that change it.
  using Table = std::map<std::string, std::map<std::string, Row>>;

  Watch() {
    current_ = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&Watch::begin, &Watch::end)
            .needsInputs(true)
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~Watch() {
    at::removeCallback(handle_);
    current_ = nullptr;
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void set_phase(Phase phase) { phase_ = phase; }
  const Table& table() const { return table_; }

 private:
  // The operations that a thread is in, outermost first.
  struct Open : at::ObserverContext {
    Open* outer = nullptr;
    bool has_inner = false;  // operations that compute
    bool in_backward = false;
    std::set<std::string> in;
  };

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
    auto open = std::make_unique<Open>();
    open->outer = innermost_;
    const bool is_node = fn.scope() == at::RecordScope::BACKWARD_FUNCTION;
    open->in_backward = is_node || (innermost_ != nullptr && innermost_->in_backward);
    for (const c10::IValue& value : fn.inputs()) gather(value, open->in);
    innermost_ = open.get();
    return open;
  }

  static void end(const at::RecordFunction& fn, at::ObserverContext* context) {
    auto* open = static_cast<Open*>(context);
    innermost_ = open->outer;
    // Only what is not made of others that compute.
    bool computes = open->has_inner;
    if (!computes && fn.scope() == at::RecordScope::FUNCTION && current_ != nullptr) {
      std::set<std::string> out;
      for (const c10::IValue& value : fn.outputs()) gather(value, out);
      computes = current_->add(fn.name(), *open, out);
    }
    if (computes && innermost_ != nullptr) innermost_->has_inner = true;
  }

  // Whether it computes.
  bool add(std::string name, const Open& open, const std::set<std::string>& out) {
    if (starts_with(name, "aten::")) name = name.substr(6);
    if (config::is_choice(name, kNoArithmetic)) return false;
    std::string from = join(std::vector<std::string>(open.in.begin(), open.in.end()), ", ");
    const std::string to = join(std::vector<std::string>(out.begin(), out.end()), ", ");
    std::string dtype;
    if (name == "copy_") {
      // Both tensors are inputs; the second is what is read. One dtype: a plain copy.
      if (open.in.size() < 2) return false;
      name = str_cat("conversion to ", to);
      dtype = "conversions";
    } else if (from.empty() && to.empty()) {
      return false;  // whole numbers
    } else {
      dtype = from.empty() || from == to ? to : to.empty() ? from : str_cat(from, " -> ", to);
    }
    const Phase phase = open.in_backward ? Phase::kBackward : phase_;
    const std::lock_guard lock(mutex_);
    ++table_[dtype][name].count[static_cast<size_t>(phase)];
    // Conversions are said beside what they are part of.
    return dtype != "conversions";
  }

  static inline Watch* current_ = nullptr;
  static inline thread_local Open* innermost_ = nullptr;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
  Phase phase_ = Phase::kForward;
  std::mutex mutex_;
  Table table_;
};

// One sample whose cameras look along x.
class OneSample {
 public:
  explicit OneSample(const BevConfig& c) {
    RandomStream random(1, Purpose::kTest, 0, 0);
    const auto n = static_cast<size_t>(c.cameras);
    images_.resize(n * static_cast<size_t>(c.image_height * c.image_width * 3));
    for (uint8_t& value : images_) value = static_cast<uint8_t>(random.next_u32() >> 24);
    truth_.resize(static_cast<size_t>(c.num_classes() * c.map_height() * c.map_width()));
    for (size_t i = 0; i < truth_.size(); ++i) truth_[i] = i % 2;
    const auto identity = [](size_t count) {
      std::vector<float> out(count * 16, 0.0f);
      for (size_t i = 0; i < count; ++i)
        for (size_t d = 0; d < 4; ++d) out[i * 16 + d * 5] = 1.0f;
      return out;
    };
    image_aug_ = identity(n);
    bev_aug_ = identity(1);
    intrinsics_ = identity(n);
    frames_.assign(n * 16, 0.0f);
    for (size_t i = 0; i < n; ++i) {
      float* k = intrinsics_.data() + i * 16;
      k[0] = k[5] = static_cast<float>(c.image_width);
      k[2] = 0.5f * static_cast<float>(c.image_width);
      k[6] = 0.5f * static_cast<float>(c.image_height);
      float* f = frames_.data() + i * 16;
      f[2] = 1.0f;
      f[4] = f[9] = -1.0f;
      f[15] = 1.0f;
    }
    const auto add = [&](std::string_view name, Dtype dtype, std::vector<int64_t> shape,
                         void* data) {
      data::HostArray array;
      array.name = name;
      array.dtype = dtype;
      array.dims = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), array.shape.begin());
      array.data = data;
      batch_.mutable_arrays().push_back(array);
    };
    const int64_t cameras = c.cameras;
    add("img", Dtype::kU8, {cameras, c.image_height, c.image_width, 3}, images_.data());
    add("camera2lidar", Dtype::kF32, {1, cameras, 4, 4}, frames_.data());
    add("intrin", Dtype::kF32, {1, cameras, 4, 4}, intrinsics_.data());
    add("img_aug", Dtype::kF32, {1, cameras, 4, 4}, image_aug_.data());
    add("bev_aug", Dtype::kF32, {1, 4, 4}, bev_aug_.data());
    add("gt", Dtype::kU8, {1, c.num_classes(), c.map_height(), c.map_width()}, truth_.data());
    batch_.mutable_samples().resize(1);
  }
  OneSample(const OneSample&) = delete;
  OneSample& operator=(const OneSample&) = delete;
  const data::Batch& get() const { return batch_; }

 private:
  std::vector<uint8_t> images_, truth_;
  std::vector<float> frames_, intrinsics_, image_aug_, bev_aug_;
  data::ArrayBatch batch_;
};

Bound cut(const Bound& bound, int64_t cells) {
  return {bound.low, std::min(bound.high, bound.low + static_cast<double>(cells) * bound.step),
          bound.step};
}

// The same network on less.
void shrink(BevConfig& c) {
  c.cameras = 1;
  c.image_height = std::min<int64_t>(c.image_height, 64);
  c.image_width = std::min<int64_t>(c.image_width, 96);
  const int64_t cells = 16 * c.downsample;
  c.xbound = cut(c.xbound, cells);
  c.ybound = cut(c.ybound, cells);
  c.output_x = cut(c.output_x, 16);
  c.output_y = cut(c.output_y, 16);
}

std::string text_of(const Watch::Table& table) {
  constexpr size_t kWidth = 110;
  std::string out;
  for (const auto& [dtype, rows] : table) {
    int64_t all = 0;
    for (const auto& [name, row] : rows)
      for (const int64_t count : row.count) all += count;
    out += str_cat("\n", dtype, ": ", all, "\n");
    for (size_t phase = 0; phase < 3; ++phase) {
      std::string line = str_cat("  ", kPhaseNames[phase]);
      line.resize(12, ' ');
      const std::string indent(line.size(), ' ');
      bool any = false;
      for (const auto& [name, row] : rows) {
        if (row.count[phase] == 0) continue;
        const std::string item = str_cat(name, " ", row.count[phase]);
        if (any && line.size() + item.size() + 2 > kWidth) {
          out += line + ",\n";
          line = indent + item;
        } else {
          line += any ? ", " + item : item;
        }
        any = true;
      }
      if (any) out += line + "\n";
    }
  }
  return out;
}

}  // namespace

Result<std::string> precision_table(const BevRunConfig& given, bool gpu, int64_t gpu_index) {
  BevRunConfig run = given;
  if (!gpu) shrink(run.model);
  AERIE_RETURN_IF_ERROR(validate(run.model));
  at::Device device(at::kCPU);
  if (gpu) device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_index));
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<BevEngine> engine, BevEngine::create(run, device));
  // As a GPU does it: in operations that can be watched.
  engine->model().use_tensor_splat(true);
  const OneSample sample(run.model);
  const data::Batch* const batch = &sample.get();
  Watch watch;
  train::StepRequest request;
  request.micro_batches = std::span(&batch, 1);
  request.finish = false;
  AERIE_RETURN_IF_ERROR(engine->submit(request));
  watch.set_phase(Phase::kUpdate);
  request.micro_batches = {};
  request.finish = true;
  request.learning_rates = engine->optimizer().base_rates();
  AERIE_RETURN_IF_ERROR(engine->submit(request));
  return str_cat(
      "profile ", run.model.profile, ", precision ", config::precision_name(run.trainer.precision),
      ", ", device.str(), ": operations of one training step by the precision they compute in",
      gpu ? "" : " (smaller pictures and grid; on a CPU training in 16-mixed is in float32)", "\n",
      text_of(watch.table()));
}

}  // namespace aerie::bev
