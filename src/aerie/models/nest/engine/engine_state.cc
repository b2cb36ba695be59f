#include "aerie/models/nest/engine/engine_state.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"
#include "aerie/config/schema/run_config.h"
#include "aerie/optim/optimizer_state.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

const char* dtype_text(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "F32";
    case at::kDouble:
      return "F64";
    case at::kLong:
      return "I64";
    case at::kBFloat16:
      return "BF16";
    case at::kHalf:
      return "F16";
    default:
      return "";
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

Layout layout_of(NestCore& core) {
  Layout out;
  nn::ParameterRegistry& registry = core.model().parameters();
  optim::Ema* ema = core.ema();
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

  const std::vector<at::Tensor> moments = core.optimizer().buffers();
  std::vector<size_t> moment_buffers;
  for (const at::Tensor& moment : moments) moment_buffers.push_back(add(moment));
  for (const optim::NamedState& state : core.optimizer().state()) {
    for (size_t m = 0; m < moments.size(); ++m) {
      if (!state.tensor.is_alias_of(moments[m])) continue;
      out.pieces.push_back({"optimizer", state.name, state.tensor.sizes().vec(), moment_buffers[m],
                            state.tensor.storage_offset(), state.tensor.numel()});
      break;
    }
  }
  out.steps = add(core.optimizer().step_counts());
  if (optim::GradScaler* scaler = core.scaler()) {
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

class CoreSnapshot final : public StateSnapshot {
 public:
  CoreSnapshot(NestCore& core, std::shared_ptr<SnapshotMemory> memory, bool fallen_back)
      : memory_(std::move(memory)),
        optimizer_(&core.optimizer()),
        fallen_back_to_(fallen_back ? config::precision_name(core.precision()) : "") {
    at::NoGradGuard no_grad;
    layout_ = layout_of(core);
    host_ = memory_->take(layout_.buffers);
    memory_->read(layout_.buffers, host_);
    layout_.buffers.clear();
  }

  ~CoreSnapshot() override { memory_->give_back(std::move(host_)); }

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
      out.dtype = dtype_text(buffer.scalar_type());
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
    if (!fallen_back_to_.empty()) scalars["fallen_back_to"] = fallen_back_to_;
    scalars_ = scalars.dump();
  }

  std::shared_ptr<SnapshotMemory> memory_;
  const optim::Optimizer* optimizer_;  // names and kind only
  std::string fallen_back_to_;
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

int64_t snapshot_bytes(NestCore& core) {
  int64_t bytes = 0;
  for (const at::Tensor& buffer : layout_of(core).buffers)
    if (!buffer.is_cpu()) bytes += static_cast<int64_t>(buffer.nbytes());
  if (core.ema() != nullptr && !core.ema()->started())
    bytes += static_cast<int64_t>(core.model().parameters().flat_params().nbytes());
  return bytes;
}

Result<std::unique_ptr<StateSnapshot>> take_snapshot(NestCore& core,
                                                     std::shared_ptr<SnapshotMemory> memory,
                                                     bool fallen_back) {
  if (core.window_open())
    return internal_error("snapshot inside a window: its gradients would be lost");
  try {
    return std::unique_ptr<StateSnapshot>(
        std::make_unique<CoreSnapshot>(core, std::move(memory), fallen_back));
  } catch (const std::exception& error) {
    return torch_status(error).with_context("snapshot");
  }
}

Result<RestoredInfo> restore_state(NestCore& core, const StateSource& source) {
  at::NoGradGuard no_grad;
  const auto bad = [](std::string text) { return data_error(std::move(text)); };
  const auto scalars = nlohmann::json::parse(source.scalars_json(), nullptr, false);
  if (!scalars.is_object() || !scalars.contains("optimizer"))
    return bad("the checkpoint's engine state is damaged");
  AERIE_ASSIGN_OR_RETURN(const at::Tensor counts,
                         optim::parse_step_counts(core.optimizer(), scalars["optimizer"].dump()));

  RestoredInfo info;
  std::optional<std::pair<double, int64_t>> scaler;
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
    scaler = {scale, static_cast<int64_t>(tracker)};
  }
  std::optional<int64_t> ema_count;
  if (scalars.contains("ema")) {
    const auto& saved = scalars["ema"];
    if (!saved.is_object() || !saved.contains("count") || !saved["count"].is_number_unsigned())
      return bad("the state of the averaged weights is damaged");
    ema_count = saved["count"].get<int64_t>();
  }
  config::Precision precision = core.precision();
  if (scalars.contains("fallen_back_to")) {
    config::Precision saved = config::Precision::k32;
    if (scalars["fallen_back_to"] == "bf16-mixed") {
      saved = config::Precision::kBf16Mixed;
    } else if (scalars["fallen_back_to"] != "32") {
      return bad("the precision in the checkpoint is damaged");
    }
    // Only for a run that would otherwise start in 16-mixed again.
    if (precision == config::Precision::k16Mixed) {
      precision = saved;
      info.fallen_back = true;
    }
  }

  // All tensors go to host memory first: an error must not leave half a state behind.
  const bool with_ema = core.ema() != nullptr && ema_count && !source.names("ema").empty();
  nn::ParameterRegistry& registry = core.model().parameters();
  std::unordered_set<std::string> model_names, optimizer_names;
  for (const nn::ParamInfo& entry : registry.entries()) model_names.insert(entry.name);
  const std::vector<optim::NamedState> moments = core.optimizer().state();
  for (const optim::NamedState& state : moments) optimizer_names.insert(state.name);
  AERIE_RETURN_IF_ERROR(check_names(source, "model", model_names));
  if (!moments.empty() && source.names("optimizer").empty())
    return bad("the checkpoint holds no optimizer state")
        .with_hint("it was saved with save_weights_only; start from its weights instead");
  AERIE_RETURN_IF_ERROR(check_names(source, "optimizer", optimizer_names));

  try {
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // target, value
    const auto read = [&](const char* file, const std::string& name, const at::Tensor& target) {
      at::Tensor value = at::empty(target.sizes(), target.options().device(at::kCPU));
      const Status status = source.read(file, name, dtype_text(value.scalar_type()),
                                        target.sizes().vec(), value.mutable_data_ptr());
      if (status.ok()) copies.emplace_back(target, std::move(value));
      return status;
    };
    for (int64_t i = 0; i < registry.size(); ++i) {
      const nn::ParamInfo& entry = registry.entries()[static_cast<size_t>(i)];
      if (entry.alias_of < 0)
        AERIE_RETURN_IF_ERROR(read("model", entry.name, registry.tensor(i).detach()));
    }
    for (const optim::NamedState& state : moments)
      AERIE_RETURN_IF_ERROR(read("optimizer", state.name, state.tensor));
    if (with_ema) {
      for (const int64_t index : registry.parameters()) {
        const nn::ParamInfo& entry = registry.entries()[static_cast<size_t>(index)];
        if (entry.flat_offset >= 0)
          AERIE_RETURN_IF_ERROR(
              read("ema", entry.name, registry.flat_view(core.ema()->flat(), index)));
      }
    }

    core.drop_window();
    if (core.ema() != nullptr && core.ema()->swapped()) core.ema()->swap();
    for (auto& [target, value] : copies) target.copy_(value);
    core.optimizer().set_step_counts(counts);
    if (info.fallen_back) core.set_precision(precision);
    if (core.scaler() != nullptr && core.scaler()->settings().dynamic && scaler)
      core.scaler()->restore(scaler->first, scaler->second);
    if (with_ema) core.ema()->restore(*ema_count);
    return info;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("restoring the state");
  }
}

}  // namespace aerie::train
