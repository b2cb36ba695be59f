// All parameters and buffers of a model: name, public order, shape, dtype, group, over flat
// storage.
//
// Modules declare what they own while they are built and keep ParamRef handles; materialize() then
// allocates. Trainable parameters live in one flat buffer, their gradients in a second one of the
// same layout; the tensors a module sees (and their .grad) are views into them. Optimizer, EMA and
// checkpoints know only this registry.
//
// Public order is the order of declaration and equals the order of NeMo's state dict. Memory order
// is free (FlatLayout). A name may be an alias of another entry (shared biases, the duplicated keys
// of post_conv): it appears in the state dict, but not among the parameters.
//
// The registry owns all tensors. Handles are valid while it lives and must not be used before
// materialize(). Not synchronised.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace aerie::nn {

// How initialize() (init.h) fills an entry.
struct Init {
  enum class Kind {
    kConstant,        // a
    kUniform,         // U(-a, a)
    kNormal,          // N(0, a^2)
    kUnitNormalRows,  // N(0, 1), then every last-axis row divided by its norm
    kComputed,        // values(), row-major
  };
  Kind kind = Kind::kConstant;
  double a = 0.0;
  // Called when the entry is filled, not when it is declared: nothing is computed for a model that
  // is refused before materialize().
  std::function<std::vector<float>()> values;

  static Init constant(double value) { return {Kind::kConstant, value, nullptr}; }
  static Init uniform(double bound) { return {Kind::kUniform, bound, nullptr}; }
  static Init normal(double stddev) { return {Kind::kNormal, stddev, nullptr}; }
  static Init unit_normal_rows() { return {Kind::kUnitNormalRows, 0.0, nullptr}; }
  static Init computed(std::function<std::vector<float>()> values) {
    return {Kind::kComputed, 0.0, std::move(values)};
  }
};

struct ParamInfo {
  std::string name;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  bool trainable = true;
  bool is_buffer = false;
  // Buffers of the front end stay float32 when materialize() is asked for another dtype.
  bool fixed_dtype = false;
  Init init;

  std::string group;      // top-level attribute: "encoder" of "encoder.layers.0.norm_out.weight"
  int64_t alias_of = -1;  // index of the entry that owns the tensor; -1: this one does
  int64_t numel = 0;
  int64_t flat_offset = -1;  // in elements, into flat_params() and flat_grads(); -1: not flat
};

class ParameterRegistry;

class ParamRef {
 public:
  ParamRef() = default;
  bool defined() const { return registry_ != nullptr; }
  const at::Tensor& tensor() const;
  // The tensor, or an undefined one for a handle that was never set (a missing bias).
  at::Tensor tensor_or_none() const { return defined() ? tensor() : at::Tensor(); }
  int64_t index() const { return index_; }

 private:
  friend class ParameterRegistry;
  ParamRef(const ParameterRegistry* registry, int64_t index) : registry_(registry), index_(index) {}
  const ParameterRegistry* registry_ = nullptr;
  int64_t index_ = -1;
};

// Memory order of trainable parameters as entry indices; empty: public order.
struct FlatLayout {
  std::vector<int64_t> order;
  int64_t align_elements = 64;  // every tensor starts at a multiple of this
};

class ParameterRegistry {
 public:
  // Far beyond any tensor, and small enough that sums over all entries fit 64 bits.
  static constexpr int64_t kMaxElements = int64_t{1} << 40;

  ParameterRegistry() = default;
  ParameterRegistry(const ParameterRegistry&) = delete;
  ParameterRegistry& operator=(const ParameterRegistry&) = delete;

  // Throws std::length_error for a tensor of more than kMaxElements.
  ParamRef add(ParamInfo info);
  ParamRef alias(std::string name, ParamRef owner);
  ParamRef ref(int64_t index) const { return ParamRef(this, index); }
  // Only before materialize(): takes a parameter out of training (frozen stacks).
  void freeze(ParamRef ref);
  void set_init(ParamRef ref, Init init) { entries_[static_cast<size_t>(ref.index_)].init = init; }

  // Allocates zero-filled storage. Called again it moves every value to the new device and dtype
  // (gradients are dropped), so that a model can be built in float64 for tests. `dtype` applies to
  // float32 entries without fixed_dtype; float64 and int64 entries keep theirs.
  void materialize(at::Device device, at::ScalarType dtype = at::kFloat,
                   const FlatLayout& layout = {});
  bool materialized() const { return !tensors_.empty(); }

  const std::vector<ParamInfo>& entries() const { return entries_; }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  const at::Tensor& tensor(int64_t index) const;
  // -1 when there is no such name.
  int64_t find(std::string_view name) const;
  const at::Tensor& operator[](std::string_view name) const;  // the name must exist

  // Entries that own trainable tensors, in public order.
  const std::vector<int64_t>& trainable() const { return trainable_; }
  // Entries that own parameters, frozen ones included: torch's optimizer indices.
  std::vector<int64_t> parameters() const;
  int64_t num_trainable_elements() const;
  int64_t num_frozen_elements() const;

  const at::Tensor& flat_params() const { return flat_params_; }
  const at::Tensor& flat_grads() const { return flat_grads_; }
  // A tensor shaped like flat_params() seen as entry `index`.
  at::Tensor flat_view(const at::Tensor& flat, int64_t index) const;
  // Gradient view of a trainable entry.
  at::Tensor grad(int64_t index) const { return flat_view(flat_grads_, index); }
  void zero_grad();

  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }

 private:
  std::vector<ParamInfo> entries_;
  std::unordered_map<std::string, int64_t> by_name_;
  std::vector<at::Tensor> tensors_;
  std::vector<int64_t> trainable_;
  at::Tensor flat_params_;
  at::Tensor flat_grads_;
  at::Device device_ = at::kCPU;
  at::ScalarType dtype_ = at::kFloat;
};

inline const at::Tensor& ParamRef::tensor() const {
  return registry_->tensor(index_);
}

// A registry and a name prefix, handed to module constructors. freeze_all marks everything declared
// below it as not trainable.
class Scope {
 public:
  explicit Scope(ParameterRegistry& registry, std::string prefix = "", bool frozen = false)
      : registry_(&registry), prefix_(std::move(prefix)), frozen_(frozen) {}

  Scope child(std::string_view name) const { return Scope(*registry_, full(name), frozen_); }
  Scope frozen() const { return Scope(*registry_, prefix_, true); }

  ParamRef param(std::string_view name, std::vector<int64_t> shape, Init init,
                 at::ScalarType dtype = at::kFloat) const;
  ParamRef buffer(std::string_view name, std::vector<int64_t> shape, Init init,
                  at::ScalarType dtype = at::kFloat, bool fixed_dtype = false) const;
  ParamRef alias(std::string_view name, ParamRef owner) const;
  std::string full(std::string_view name) const;
  ParameterRegistry& registry() const { return *registry_; }

 private:
  ParameterRegistry* registry_;
  std::string prefix_;
  bool frozen_;
};

}  // namespace aerie::nn
