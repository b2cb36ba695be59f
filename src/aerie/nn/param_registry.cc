#include "aerie/nn/param_registry.h"

#include <stdexcept>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/check.h"

namespace aerie::nn {

ParamRef ParameterRegistry::add(ParamInfo info) {
  AERIE_CHECK(!materialized(), "parameter ", info.name, " added after materialize()");
  info.group = info.name.substr(0, info.name.find('.'));
  info.numel = 1;
  for (int64_t extent : info.shape) {
    AERIE_CHECK(extent >= 0, info.name, " has a negative size");
    if (extent > 0 && info.numel > kMaxElements / extent)
      throw std::length_error(info.name + " would have more than 2^40 elements");
    info.numel *= extent;
  }
  const int64_t index = size();
  const bool fresh = by_name_.emplace(info.name, index).second;
  AERIE_CHECK(fresh, "two parameters are called ", info.name);
  entries_.push_back(std::move(info));
  return ParamRef(this, index);
}

ParamRef ParameterRegistry::alias(std::string name, ParamRef owner) {
  AERIE_CHECK(owner.registry_ == this, "alias ", name, " of a parameter of another registry");
  ParamInfo info = entries_[static_cast<size_t>(owner.index_)];
  info.name = std::move(name);
  if (info.alias_of < 0) info.alias_of = owner.index_;
  return add(std::move(info));
}

void ParameterRegistry::freeze(ParamRef ref) {
  AERIE_CHECK(!materialized(), "freeze() after materialize()");
  entries_[static_cast<size_t>(ref.index_)].trainable = false;
}

void ParameterRegistry::materialize(at::Device device, at::ScalarType dtype,
                                    const FlatLayout& layout) {
  at::NoGradGuard no_grad;
  const std::vector<at::Tensor> old = std::move(tensors_);
  tensors_.assign(entries_.size(), at::Tensor());
  device_ = device;
  dtype_ = dtype;

  trainable_.clear();
  for (int64_t i = 0; i < size(); ++i) {
    ParamInfo& info = entries_[static_cast<size_t>(i)];
    info.flat_offset = -1;
    if (info.alias_of < 0 && info.trainable && !info.is_buffer) trainable_.push_back(i);
  }
  std::vector<int64_t> order = layout.order.empty() ? trainable_ : layout.order;
  AERIE_CHECK(order.size() == trainable_.size(), "layout names ", order.size(), " of ",
              trainable_.size(), " trainable parameters");
  int64_t offset = 0;
  for (int64_t i : order) {
    ParamInfo& info = entries_[static_cast<size_t>(i)];
    AERIE_CHECK(info.trainable && !info.is_buffer && info.alias_of < 0 && info.flat_offset < 0,
                "layout names ", info.name, " twice, or it is not trainable");
    AERIE_CHECK(info.dtype == at::kFloat, info.name, " is trainable but not float32");
    info.flat_offset = offset;
    const int64_t align = layout.align_elements;
    offset += (info.numel + align - 1) / align * align;
  }
  const auto options = at::TensorOptions().device(device).dtype(dtype);
  flat_params_ = at::zeros({offset}, options);
  flat_grads_ = at::zeros({offset}, options);

  for (int64_t i = 0; i < size(); ++i) {
    const ParamInfo& info = entries_[static_cast<size_t>(i)];
    if (info.alias_of >= 0) continue;
    at::Tensor tensor;
    if (info.flat_offset >= 0) {
      // variable_data(): a leaf of its own over the same memory, not an autograd view of the
      // buffer.
      tensor = flat_view(flat_params_, i).variable_data();
      tensor.set_requires_grad(true);
      tensor.mutable_grad() = flat_view(flat_grads_, i).variable_data();
    } else {
      const bool follow = info.dtype == at::kFloat && !info.fixed_dtype;
      tensor = at::zeros(info.shape, options.dtype(follow ? dtype : info.dtype));
    }
    if (!old.empty()) tensor.copy_(old[static_cast<size_t>(i)]);
    tensors_[static_cast<size_t>(i)] = tensor;
  }
  for (int64_t i = 0; i < size(); ++i) {
    const int64_t owner = entries_[static_cast<size_t>(i)].alias_of;
    if (owner >= 0) tensors_[static_cast<size_t>(i)] = tensors_[static_cast<size_t>(owner)];
  }
}

const at::Tensor& ParameterRegistry::tensor(int64_t index) const {
  AERIE_CHECK(materialized(), "parameters used before materialize()");
  return tensors_[static_cast<size_t>(index)];
}

int64_t ParameterRegistry::find(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? -1 : it->second;
}

const at::Tensor& ParameterRegistry::operator[](std::string_view name) const {
  const int64_t index = find(name);
  AERIE_CHECK(index >= 0, "no parameter ", name);
  return tensor(index);
}

std::vector<int64_t> ParameterRegistry::parameters() const {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size(); ++i) {
    const ParamInfo& info = entries_[static_cast<size_t>(i)];
    if (!info.is_buffer && info.alias_of < 0) out.push_back(i);
  }
  return out;
}

int64_t ParameterRegistry::num_trainable_elements() const {
  int64_t total = 0;
  for (const ParamInfo& info : entries_)
    if (info.trainable && !info.is_buffer && info.alias_of < 0) total += info.numel;
  return total;
}

int64_t ParameterRegistry::num_frozen_elements() const {
  int64_t total = 0;
  for (const ParamInfo& info : entries_)
    if (!info.trainable && !info.is_buffer && info.alias_of < 0) total += info.numel;
  return total;
}

at::Tensor ParameterRegistry::flat_view(const at::Tensor& flat, int64_t index) const {
  const ParamInfo& info = entries_[static_cast<size_t>(index)];
  AERIE_CHECK(info.flat_offset >= 0, info.name, " is not in the flat buffer");
  return flat.narrow(0, info.flat_offset, info.numel).view(info.shape);
}

void ParameterRegistry::zero_grad() {
  flat_grads_.zero_();
}

ParamRef Scope::param(std::string_view name, std::vector<int64_t> shape, Init init,
                      at::ScalarType dtype) const {
  ParamInfo info;
  info.name = full(name);
  info.shape = std::move(shape);
  info.init = init;
  info.dtype = dtype;
  info.trainable = !frozen_;
  return registry_->add(std::move(info));
}

ParamRef Scope::buffer(std::string_view name, std::vector<int64_t> shape, Init init,
                       at::ScalarType dtype, bool fixed_dtype) const {
  ParamInfo info;
  info.name = full(name);
  info.shape = std::move(shape);
  info.init = init;
  info.dtype = dtype;
  info.trainable = false;
  info.is_buffer = true;
  info.fixed_dtype = fixed_dtype;
  return registry_->add(std::move(info));
}

ParamRef Scope::alias(std::string_view name, ParamRef owner) const {
  return registry_->alias(full(name), owner);
}

std::string Scope::full(std::string_view name) const {
  std::string out = prefix_;
  if (!out.empty()) out += '.';
  out += name;
  return out;
}

}  // namespace aerie::nn
