#include "aerie/nn/recompute.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

namespace aerie::nn {
namespace {

using Run = std::function<at::Tensor(const at::Tensor& x, bool again)>;

// How the graph's node holds on to the function.
struct RunHolder : public torch::CustomClassHolder {
  explicit RunHolder(Run f) : run(std::move(f)) {}
  Run run;
};

class Segment : public torch::autograd::Function<Segment> {
 public:
  // `anchor` needs a gradient, so that the node is recorded even where x needs none (a frozen
  // stack in front).
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& /*anchor*/,
                            const c10::intrusive_ptr<RunHolder>& holder) {
    ctx->save_for_backward({x});
    ctx->saved_data["run"] = c10::IValue::make_capsule(holder);
    ctx->saved_data["needs_grad"] = x.requires_grad();
    return holder->run(x, false);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto holder =
        c10::static_intrusive_pointer_cast<RunHolder>(ctx->saved_data["run"].toCapsule());
    at::Tensor x = ctx->get_saved_variables()[0].detach();
    x.set_requires_grad(ctx->saved_data["needs_grad"].toBool());
    at::Tensor y;
    {
      const at::AutoGradMode enable(true);
      y = holder->run(x, true);
    }
    torch::autograd::backward({y}, {grads[0]});
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recomputed(Run run, const at::Tensor& x) {
  const at::Tensor anchor =
      at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(x.device())).requires_grad_(true);
  return Segment::apply(x, anchor, c10::make_intrusive<RunHolder>(std::move(run)));
}

}  // namespace aerie::nn
