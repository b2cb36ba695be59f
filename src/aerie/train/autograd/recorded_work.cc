#include "aerie/train/autograd/recorded_work.h"

#include <algorithm>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include "aerie/base/log.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

// Libraries load kernels, choose algorithms and make workspaces, constants are made: none of that
// may happen in a capture.
constexpr int64_t kRunsBefore = 2;
// After a capture for which there was no memory; a failing one takes about as long as a step.
constexpr int64_t kRunsBetween = 100;
// Batches of other shapes are the last of an epoch, and parts where memory is short.
constexpr size_t kMostShapes = 8;

std::vector<int64_t> key_of(const RecordedWork::Tensors& inputs, int64_t kind) {
  std::vector<int64_t> out{kind};
  for (const at::Tensor& t : inputs) {
    out.push_back(t.defined() ? t.dim() : -1);
    if (!t.defined()) continue;
    out.push_back(static_cast<int64_t>(t.scalar_type()));
    out.insert(out.end(), t.sizes().begin(), t.sizes().end());
    out.insert(out.end(), t.strides().begin(), t.strides().end());
  }
  return out;
}

}  // namespace

RecordedWork::Tensors RecordedWork::Graph::replay(const Tensors& inputs,
                                                  std::vector<uint8_t>& flags) const {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined()) at::Tensor(inputs_[i]).copy_(inputs[i], /*non_blocking=*/true);
  graph_->replay();
  for (size_t i = 0; i < flags_.size(); ++i) flags[i] |= flags_[i];
  Tensors out;
  for (const at::Tensor& output : outputs_) out.push_back(output.clone());
  return out;
}

RecordedWork::Graph* RecordedWork::find(const Tensors& inputs, int64_t kind, const Work& work,
                                        std::vector<uint8_t>& flags) {
  if (refused_) return nullptr;
  std::vector<int64_t> key = key_of(inputs, kind);
  auto at = std::find_if(shapes_.begin(), shapes_.end(),
                         [&](const Shape& shape) { return shape.key == key; });
  if (at == shapes_.end()) {
    if (shapes_.size() >= kMostShapes) return nullptr;
    at = shapes_.insert(shapes_.end(), Shape{std::move(key), 0, nullptr});
  }
  if (at->graph != nullptr) return at->graph.get();
  if (at->runs++ < kRunsBefore) return nullptr;
  const std::vector<uint8_t> before = flags;
  try {
    at->graph = capture(inputs, work, flags);
  } catch (const std::exception& error) {
    const Status status = refine_torch_status(torch_status(error));
    // What takes the memory now may be an evaluation, or another process.
    const bool again = status.code() == StatusCode::kOutOfMemory;
    at->runs = kRunsBefore - kRunsBetween;
    refused_ = !again;
    log_warn("train", "steps are launched operation by operation, which is slower: no CUDA graph (",
             status.message(), ")", again ? "; tried again later" : "");
  }
  flags = before;
  return at->graph.get();
}

std::unique_ptr<RecordedWork::Graph> RecordedWork::capture(const Tensors& inputs, const Work& work,
                                                           std::vector<uint8_t>& flags) const {
  auto made = make_(device_);
  if (!made.ok()) throw std::runtime_error(made.status().message());
  auto out = std::make_unique<Graph>();
  out->graph_ = std::move(made).value();
  // What steps before have used would be held beside the graph's own.
  if (!device_.is_cpu()) at::accelerator::emptyCache();
  for (const at::Tensor& input : inputs)
    out->inputs_.push_back(input.defined()
                               ? at::empty_strided(input.sizes(), input.strides(), input.options())
                               : at::Tensor());
  std::fill(flags.begin(), flags.end(), uint8_t{0});
  out->graph_->capture([graph = out.get(), work] { graph->outputs_ = work(graph->inputs_); });
  out->flags_ = flags;
  return out;
}

int64_t RecordedWork::num_graphs() const {
  return std::count_if(shapes_.begin(), shapes_.end(),
                       [](const Shape& shape) { return shape.graph != nullptr; });
}

}  // namespace aerie::train
