#include "aerie/train/graph/flat_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/optim/optimizer_state.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

// As a checkpoint stores it.
Dtype stored_dtype(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Dtype::kF32;
    case at::kDouble:
      return Dtype::kF64;
    case at::kLong:
      return Dtype::kI64;
    case at::kBFloat16:
      return Dtype::kBF16;
    case at::kHalf:
      return Dtype::kF16;
    default:
      AERIE_CHECK(false, "a state of type ", c10::toString(type));
      return Dtype::kF32;
  }
}

// A tensor of the checkpoint inside one of the copied buffers.
struct Piece {
  const char* file = "";
  std::string name;
  std::vector<int64_t> shape;
  size_t buffer = 0;
  int64_t offset = 0;  // in elements
  int64_t numel = 0;
};

// Everything a checkpoint holds, as a few large buffers and the pieces in them.
struct Layout {
  std::vector<at::Tensor> buffers;
  std::vector<Piece> pieces;
  size_t steps = 0;
  std::optional<size_t> scale, growth_tracker, ema_count;
};

Layout layout_of(const FlatState& state) {
  Layout out;
  const nn::ParameterRegistry& registry = state.registry;
  const optim::Ema* ema = state.ema;
  const bool swapped = ema != nullptr && ema->swapped();
  const auto add = [&](const at::Tensor& tensor) {
    out.buffers.push_back(tensor);
    return out.buffers.size() - 1;
  };

  const size_t flat = add(swapped ? ema->flat() : registry.flat_params());
  std::vector<std::pair<size_t, int64_t>> place(static_cast<size_t>(registry.size()));
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (info.alias_of >= 0) continue;
    place[static_cast<size_t>(i)] = info.flat_offset >= 0
                                        ? std::make_pair(flat, info.flat_offset)
                                        : std::make_pair(add(registry.tensor(i)), int64_t{0});
  }
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    const auto [buffer, offset] =
        place[static_cast<size_t>(info.alias_of >= 0 ? info.alias_of : i)];
    out.pieces.push_back({"model", info.name, info.shape, buffer, offset, info.numel});
  }

  const std::vector<at::Tensor> moments = state.optimizer.buffers();
  std::vector<size_t> moment_buffers;
  for (const at::Tensor& moment : moments) moment_buffers.push_back(add(moment));
  for (const optim::NamedState& one : state.optimizer.state()) {
    for (size_t m = 0; m < moments.size(); ++m) {
      if (!one.tensor.is_alias_of(moments[m])) continue;
      out.pieces.push_back({"optimizer", one.name, one.tensor.sizes().vec(), moment_buffers[m],
                            one.tensor.storage_offset(), one.tensor.numel()});
      break;
    }
  }
  out.steps = add(state.optimizer.step_counts());
  if (const optim::GradScaler* scaler = state.scaler) {
    out.scale = add(scaler->scale());
    out.growth_tracker = add(scaler->growth_tracker());
  }
  if (ema != nullptr && ema->started()) {
    const size_t average = add(swapped ? registry.flat_params() : ema->flat());
    for (const int64_t index : registry.parameters()) {
      const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
      const auto [buffer, offset] = place[static_cast<size_t>(index)];
      out.pieces.push_back({"ema", info.name, info.shape, info.flat_offset >= 0 ? average : buffer,
                            offset, info.numel});
    }
    out.ema_count = add(ema->count());
  }
  return out;
}

class FlatSnapshot final : public StateSnapshot {
 public:
  FlatSnapshot(const FlatState& state, std::shared_ptr<SnapshotMemory> memory, TextScalars texts)
      : memory_(std::move(memory)), optimizer_(&state.optimizer), texts_(std::move(texts)) {
    at::NoGradGuard no_grad;
    layout_ = layout_of(state);
    host_ = memory_->take(layout_.buffers);
    memory_->read(layout_.buffers, host_);
    layout_.buffers.clear();
  }

  ~FlatSnapshot() override { memory_->give_back(std::move(host_)); }

  Status wait() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) return ok_status();
    try {
      describe();
      done_ = true;
      return ok_status();
    } catch (const std::exception& error) {
      return torch_status(error).with_context("describing the state");
    }
  }

  const std::vector<SnapshotTensor>& tensors() const override { return tensors_; }
  const std::string& scalars_json() const override { return scalars_; }

 private:
  void describe() {
    for (const Piece& piece : layout_.pieces) {
      const at::Tensor& buffer = host_[piece.buffer];
      const auto size = static_cast<size_t>(buffer.element_size());
      SnapshotTensor out;
      out.file = piece.file;
      out.name = piece.name;
      out.dtype = stored_dtype(buffer.scalar_type());
      out.shape = piece.shape;
      out.data = static_cast<const char*>(buffer.const_data_ptr()) +
                 static_cast<size_t>(piece.offset) * size;
      out.bytes = static_cast<size_t>(piece.numel) * size;
      tensors_.push_back(std::move(out));
    }
    nlohmann::ordered_json scalars;
    scalars["optimizer"] =
        nlohmann::ordered_json::parse(optim::step_counts_json(*optimizer_, host_[layout_.steps]));
    if (layout_.scale) {
      scalars["scaler"]["scale"] = static_cast<double>(host_[*layout_.scale].item<float>());
      scalars["scaler"]["growth_tracker"] = host_[*layout_.growth_tracker].item<int>();
    }
    if (layout_.ema_count) scalars["ema"]["count"] = host_[*layout_.ema_count].item<int64_t>();
    for (const auto& [name, text] : texts_) scalars[name] = text;
    scalars_ = scalars.dump();
  }

  std::shared_ptr<SnapshotMemory> memory_;
  const optim::Optimizer* optimizer_;  // names and kind only
  TextScalars texts_;
  Layout layout_;
  std::vector<at::Tensor> host_;
  std::mutex mutex_;
  bool done_ = false;
  std::vector<SnapshotTensor> tensors_;
  std::string scalars_;
};

// Names of a file, all of which must be known.
Status check_names(const StateSource& source, const char* file,
                   const std::unordered_set<std::string>& known) {
  for (const std::string& name : source.names(file))
    if (known.count(name) == 0)
      return data_error(str_cat("the checkpoint has '", name, "' in ", file,
                                ".safetensors, which this run does not know"))
          .with_hint("the configuration differs from the one that wrote the checkpoint");
  return ok_status();
}

}  // namespace

int64_t snapshot_bytes(const FlatState& state) {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : layout_of(state).buffers)
    if (!buffer.is_cpu()) bytes += static_cast<int64_t>(buffer.nbytes());
  if (state.ema != nullptr && !state.ema->started())
    bytes += static_cast<int64_t>(state.registry.flat_params().nbytes());
  return bytes;
}

Result<std::unique_ptr<StateSnapshot>> take_snapshot(const FlatState& state,
                                                     std::shared_ptr<SnapshotMemory> memory,
                                                     TextScalars texts) {
  try {
    return std::unique_ptr<StateSnapshot>(
        std::make_unique<FlatSnapshot>(state, std::move(memory), std::move(texts)));
  } catch (const std::exception& error) {
    return torch_status(error).with_context("snapshot");
  }
}

// What was read, in host memory.
struct ReadState::Values {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // target, value
  at::Tensor counts;
  std::optional<std::pair<double, int64_t>> scaler;
  std::optional<int64_t> ema_count;
  std::map<std::string, std::string> texts;
};

ReadState::ReadState(std::unique_ptr<Values> values) : values_(std::move(values)) {}
ReadState::ReadState(ReadState&&) noexcept = default;
ReadState::~ReadState() = default;

std::optional<std::string> ReadState::text(const std::string& name) const {
  const auto found = values_->texts.find(name);
  if (found == values_->texts.end()) return std::nullopt;
  return found->second;
}

Result<ReadState> read_state(const FlatState& state, const StateSource& source) {
  at::NoGradGuard no_grad;
  const auto bad = [](std::string text) { return data_error(std::move(text)); };
  const auto scalars = nlohmann::json::parse(source.scalars_json(), nullptr, false);
  if (!scalars.is_object() || !scalars.contains("optimizer"))
    return bad("the checkpoint's engine state is damaged");
  auto values = std::make_unique<ReadState::Values>();
  AERIE_ASSIGN_OR_RETURN(values->counts,
                         optim::parse_step_counts(state.optimizer, scalars["optimizer"].dump()));
  if (scalars.contains("scaler")) {
    const auto& saved = scalars["scaler"];
    const auto number = [&](const char* key) {
      return saved.is_object() && saved.contains(key) && saved[key].is_number()
                 ? saved[key].get<double>()
                 : std::nan("");
    };
    const double scale = number("scale");
    const double tracker = number("growth_tracker");
    if (!std::isfinite(scale) || scale <= 0.0 || !(tracker >= 0.0 && tracker < 2147483648.0))
      return bad("the loss scale in the checkpoint is damaged");
    values->scaler = {scale, static_cast<int64_t>(tracker)};
  }
  if (scalars.contains("ema")) {
    const auto& saved = scalars["ema"];
    if (!saved.is_object() || !saved.contains("count") || !saved["count"].is_number_unsigned())
      return bad("the state of the averaged weights is damaged");
    values->ema_count = saved["count"].get<int64_t>();
  }
  for (const auto& [name, value] : scalars.items())
    if (!value.is_object()) values->texts[name] = value.is_string() ? value.get<std::string>() : "";

  if (state.ema == nullptr || source.names("ema").empty()) values->ema_count.reset();
  const nn::ParameterRegistry& registry = state.registry;
  std::unordered_set<std::string> model_names, optimizer_names;
  for (const nn::ParamInfo& entry : registry.entries()) model_names.insert(entry.name);
  const std::vector<optim::NamedState> moments = state.optimizer.state();
  for (const optim::NamedState& one : moments) optimizer_names.insert(one.name);
  AERIE_RETURN_IF_ERROR(check_names(source, "model", model_names));
  if (!moments.empty() && source.names("optimizer").empty())
    return bad("the checkpoint holds no optimizer state")
        .with_hint("it was saved with save_weights_only; start from its weights instead");
  AERIE_RETURN_IF_ERROR(check_names(source, "optimizer", optimizer_names));

  try {
    const auto read = [&](const char* file, const std::string& name, const at::Tensor& target) {
      at::Tensor value = at::empty(target.sizes(), target.options().device(at::kCPU));
      const Status status = source.read(file, name, stored_dtype(value.scalar_type()),
                                        target.sizes().vec(), value.mutable_data_ptr());
      if (status.ok()) values->copies.emplace_back(target, std::move(value));
      return status;
    };
    for (int64_t i = 0; i < registry.size(); ++i) {
      const nn::ParamInfo& entry = registry.entries()[static_cast<size_t>(i)];
      if (entry.alias_of < 0)
        AERIE_RETURN_IF_ERROR(read("model", entry.name, registry.tensor(i).detach()));
    }
    for (const optim::NamedState& one : moments)
      AERIE_RETURN_IF_ERROR(read("optimizer", one.name, one.tensor));
    if (values->ema_count) {
      for (const int64_t index : registry.parameters()) {
        const nn::ParamInfo& entry = registry.entries()[static_cast<size_t>(index)];
        if (entry.flat_offset >= 0)
          AERIE_RETURN_IF_ERROR(
              read("ema", entry.name, registry.flat_view(state.ema->flat(), index)));
      }
    }
    return ReadState(std::move(values));
  } catch (const std::exception& error) {
    return torch_status(error).with_context("restoring the state");
  }
}

Status ReadState::write(const FlatState& state) {
  try {
    at::NoGradGuard no_grad;
    if (state.ema != nullptr && state.ema->swapped()) state.ema->swap();
    for (auto& [target, value] : values_->copies) target.copy_(value);
    state.optimizer.set_step_counts(values_->counts);
    if (state.scaler != nullptr && state.scaler->settings().dynamic && values_->scaler)
      state.scaler->restore(values_->scaler->first, values_->scaler->second);
    if (values_->ema_count) state.ema->restore(*values_->ema_count);
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("restoring the state");
  }
}

}  // namespace aerie::train
