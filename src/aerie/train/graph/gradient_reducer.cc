#include "aerie/train/graph/gradient_reducer.h"

#include "aerie/base/strings.h"

namespace aerie::train {

Status GradientReducer::error(int code) const {
  return internal_error(str_cat("adding up gradients over ranks: error ", code));
}

Status GradientReducer::add_up_on_host(std::span<double>) {
  return internal_error("this reducer adds up gradients alone");
}

Status GradientReducer::before_backward(const at::Tensor&) {
  return internal_error("this reducer does not watch backward passes");
}

int GradientReducer::gather(const at::Tensor&, void*) {
  return 1;
}

int GradientReducer::add_up_wide(double*, int64_t, void*) {
  return 1;
}

}  // namespace aerie::train
