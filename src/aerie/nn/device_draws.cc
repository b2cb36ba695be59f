#include "aerie/nn/device_draws.h"

#include <atomic>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "aerie/device/gpu.h"
#include "aerie/nn/ops.h"

namespace aerie::nn {
namespace {

std::atomic<const kernels::KernelTable*> cpu_kernels{nullptr};

std::optional<kernels::Dtype> kernel_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return kernels::Dtype::kF32;
    case at::kBFloat16:
      return kernels::Dtype::kBF16;
    case at::kHalf:
      return kernels::Dtype::kF16;
    default:
      return std::nullopt;
  }
}

// x * factors in one pass over memory; undefined where the kernel does not do it.
at::Tensor multiply(const kernels::KernelTable& table, const at::Tensor& x,
                    kernels::DropoutDraws draws) {
  const std::optional<kernels::Dtype> dtype = kernel_dtype(x.scalar_type());
  if (!dtype) return {};
  const at::Tensor dense = x.contiguous();
  at::Tensor out = at::empty_like(dense);
  draws.dtype = *dtype;
  draws.x = dense.const_data_ptr();
  draws.out = out.mutable_data_ptr();
  const bool done = queue_draws(x.device(), "dropout",
                                [&](void* stream) { return table.dropout_draws(draws, stream); });
  return done ? out : at::Tensor();
}

at::Tensor factors_for(const kernels::KernelTable* table, const at::Tensor& x,
                       kernels::DropoutDraws draws) {
  if (table != nullptr) {
    at::Tensor out = at::empty(x.sizes(), at::TensorOptions(x.device()).dtype(at::kFloat));
    draws.out = out.mutable_data_ptr();
    if (queue_draws(x.device(), "dropout",
                    [&](void* stream) { return table->dropout_draws(draws, stream); }))
      return out;
  }
  return dropout_factors(draws, x.sizes()).to(x.device());
}

// How the graph's node holds on to what it needs.
struct DrawsHolder : public torch::CustomClassHolder {
  DrawsHolder(const kernels::KernelTable& kernels, const kernels::DropoutDraws& of)
      : table(kernels), draws(of) {}
  const kernels::KernelTable& table;
  kernels::DropoutDraws draws;
};

// Keeps no factors: the backward pass draws them again.
class Dropout : public torch::autograd::Function<Dropout> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const c10::intrusive_ptr<DrawsHolder>& holder) {
    ctx->saved_data["draws"] = c10::IValue::make_capsule(holder);
    return times_factors(*holder, x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
    const auto holder =
        c10::static_intrusive_pointer_cast<DrawsHolder>(ctx->saved_data["draws"].toCapsule());
    return {times_factors(*holder, grads[0]), at::Tensor()};
  }

 private:
  static at::Tensor times_factors(const DrawsHolder& holder, const at::Tensor& x) {
    at::Tensor out = multiply(holder.table, x, holder.draws);
    return out.defined() ? out : apply_dropout(x, factors_for(&holder.table, x, holder.draws));
  }
};

}  // namespace

const kernels::KernelTable* draw_kernels(at::Device device) {
  if (device.is_cpu()) return cpu_kernels.load();
  if (!device.is_cuda()) return nullptr;
  const Result<device::GpuModule*> module = device::gpu_module();
  return module.ok() ? &(*module)->kernels() : nullptr;
}

bool queue_draws(at::Device device, const char* what,
                 const std::function<int(void* stream)>& call) {
  void* stream = nullptr;
  std::optional<c10::DeviceGuard> on_device;
  if (!device.is_cpu()) {
    on_device.emplace(device);
    stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  }
  const int code = call(stream);
  if (code == kernels::kUnsupported) return false;
  TORCH_CHECK(code == kernels::kOk, "drawing ", what, " on ", device, ": CUDA error ", code);
  return true;
}

at::Tensor sent_to(at::Device device, const at::Tensor& small) {
  // A blocking copy would wait for all that is queued. This one has read `small` when it returns,
  // since its memory is pageable.
  return small.to(at::TensorOptions(device), /*non_blocking=*/true);
}

at::Tensor drawn_dropout(const at::Tensor& x, const kernels::DropoutDraws& draws) {
  const kernels::KernelTable* table = draw_kernels(x.device());
  if (table == nullptr || !kernel_dtype(x.scalar_type()))
    return apply_dropout(x, factors_for(table, x, draws));
  return Dropout::apply(x, c10::make_intrusive<DrawsHolder>(*table, draws));
}

at::Tensor dither_normals_on(at::Device device, const RandomKey& key, uint32_t signal,
                             int64_t batch, int64_t samples) {
  if (const kernels::KernelTable* table = draw_kernels(device)) {
    at::Tensor out = at::empty({batch, samples}, at::TensorOptions(device).dtype(at::kFloat));
    kernels::NormalDraws draws;
    draws.stream = dither_stream(key, signal);
    draws.items = batch;
    draws.samples = samples;
    draws.out = out.mutable_data_ptr<float>();
    if (queue_draws(device, "dither",
                    [&](void* stream) { return table->normal_draws(draws, stream); }))
      return out;
  }
  return dither_normals(key, signal, batch, samples).to(device);
}

DrawOnCpuWith::DrawOnCpuWith(const kernels::KernelTable& kernels) {
  cpu_kernels.store(&kernels);
}
DrawOnCpuWith::~DrawOnCpuWith() {
  cpu_kernels.store(nullptr);
}

}  // namespace aerie::nn
