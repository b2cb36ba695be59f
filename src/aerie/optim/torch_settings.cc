#include "aerie/optim/torch_settings.h"

namespace aerie::optim {

config::Map torch_settings(config::OptimizerKind kind, const GroupSettings& s) {
  using Kind = config::OptimizerKind;
  config::Map out;
  const config::Value betas(config::List{config::Value(s.betas[0]), config::Value(s.betas[1])});
  switch (kind) {
    case Kind::kAdamW:
    case Kind::kAdam:
      out.set("betas", betas);
      out.set("eps", s.eps);
      out.set("weight_decay", s.weight_decay);
      out.set("amsgrad", s.amsgrad);
      out.set("maximize", s.maximize);
      out.set("foreach", config::Value());
      out.set("capturable", false);
      out.set("differentiable", false);
      out.set("fused", config::Value());
      out.set("decoupled_weight_decay", kind == Kind::kAdamW);
      break;
    case Kind::kSgd:
      out.set("momentum", s.momentum);
      out.set("dampening", s.dampening);
      out.set("weight_decay", s.weight_decay);
      out.set("nesterov", s.nesterov);
      out.set("maximize", s.maximize);
      out.set("foreach", config::Value());
      out.set("differentiable", false);
      out.set("fused", config::Value());
      break;
    case Kind::kNovograd:
      out.set("betas", betas);
      out.set("eps", s.eps);
      out.set("weight_decay", s.weight_decay);
      out.set("grad_averaging", s.grad_averaging);
      out.set("amsgrad", s.amsgrad);
      break;
  }
  return out;
}

}  // namespace aerie::optim
