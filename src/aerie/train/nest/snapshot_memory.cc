#include "aerie/train/nest/snapshot_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace aerie::train {
namespace {

constexpr int64_t kChunk = 16 << 20;
constexpr size_t kChunks = 4;
constexpr int64_t kAlign = 256;

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}
int64_t aligned(int64_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}
at::Tensor as_bytes(const at::Tensor& tensor) {
  return tensor.detach().reshape({-1}).view(at::kByte);
}

}  // namespace

at::Tensor snapshot_host_tensor(const at::Tensor& like) {
  const auto options = at::TensorOptions().dtype(like.scalar_type());
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = like.nbytes();
  if (bytes < kHugePage) return at::empty(like.sizes(), options);
  const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* data = std::aligned_alloc(kHugePage, rounded);
  if (data == nullptr) throw std::bad_alloc();
  ::madvise(data, rounded, MADV_HUGEPAGE);
  return at::from_blob(
      data, like.sizes(), [](void* block) { std::free(block); }, options);
}

Drain::Drain(std::vector<at::Tensor> from, std::vector<at::Tensor> to,
             std::vector<at::Tensor> pinned, at::Device device)
    : from_(std::move(from)), to_(std::move(to)), pinned_(std::move(pinned)), device_(device) {
  const c10::impl::VirtualGuardImpl guard(device_.type());
  ready_.emplace(device_.type());
  ready_->record(guard.getStream(device_));
}

void Drain::cancel() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  from_.clear();
}

void Drain::run() {
  const std::lock_guard lock(mutex_);
  if (done_) return;
  at::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.setDevice(device_);
  const c10::Stream stream = guard.getStreamFromGlobalPool(device_);
  const c10::StreamGuard on_stream(stream);
  ready_->block(stream);
  struct Slot {
    c10::Event sent;
    void* to = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Slot> slots;
  for (size_t i = 0; i < pinned_.size(); ++i) slots.push_back({c10::Event(device_.type())});
  const auto finish = [&](size_t i) {
    Slot& slot = slots[i];
    if (slot.bytes == 0) return;
    slot.sent.synchronize();
    std::memcpy(slot.to, pinned_[i].const_data_ptr(), static_cast<size_t>(slot.bytes));
    slot.bytes = 0;
  };
  size_t next = 0;
  for (size_t b = 0; b < from_.size(); ++b) {
    if (!from_[b].is_cuda() || from_[b].numel() == 0) continue;
    const at::Tensor bytes = as_bytes(from_[b]);
    auto* to = static_cast<unsigned char*>(to_[b].mutable_data_ptr());
    for (int64_t at = 0; at < bytes.numel(); at += kChunk) {
      const size_t i = next++ % slots.size();
      finish(i);
      const int64_t count = std::min(kChunk, bytes.numel() - at);
      pinned_[i].narrow(0, 0, count).copy_(bytes.narrow(0, at, count), /*non_blocking=*/true);
      slots[i].sent.record(stream);
      slots[i].to = to + at;
      slots[i].bytes = count;
    }
  }
  for (size_t k = 0; k < slots.size(); ++k) finish(next++ % slots.size());
  from_.clear();
  done_ = true;
}

std::vector<at::Tensor> SnapshotMemory::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(spare_, {});
}

void SnapshotMemory::give_back(std::vector<at::Tensor> buffers) {
  const std::lock_guard lock(mutex_);
  spare_ = std::move(buffers);
}

std::vector<at::Tensor> SnapshotMemory::pinned() {
  const std::lock_guard lock(mutex_);
  while (pinned_.size() < kChunks)
    pinned_.push_back(
        at::empty({kChunk}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
  return pinned_;
}

void SnapshotMemory::reserve(at::Device device, int64_t bytes) {
  if (!device.is_cuda()) return;
  try {
    (void)pinned();
    // Each tensor begins at a boundary of its own; there are a few hundred at most.
    const int64_t wanted = bytes + 1024 * kAlign;
    const auto [free, total] =
        at::accelerator::getMemoryInfo(std::max<c10::DeviceIndex>(device.index(), 0));
    const auto needed = static_cast<size_t>(wanted);
    if (needed > total / 8 || needed + total / 32 > free) return;
    const at::Tensor stage = at::empty({wanted}, at::TensorOptions(device).dtype(at::kByte));
    const std::lock_guard lock(mutex_);
    stage_ = stage;
  } catch (const std::exception&) {  // saves then read the state directly
  }
}

bool SnapshotMemory::drop_stage() {
  const std::lock_guard lock(mutex_);
  return std::exchange(stage_, at::Tensor()).defined();
}

std::shared_ptr<Drain> SnapshotMemory::start(const std::vector<at::Tensor>& from,
                                             std::vector<at::Tensor> to, at::Device device) {
  // One copy, one set of page-locked chunks: an earlier snapshot that still waits for the disk is
  // brought to the host first.
  if (last_ != nullptr) std::exchange(last_, nullptr)->run();
  at::Tensor stage;
  {
    const std::lock_guard lock(mutex_);
    stage = stage_;
  }
  int64_t needed = 0;
  for (const at::Tensor& tensor : from)
    if (tensor.is_cuda()) needed += aligned(bytes_of(tensor));
  std::vector<at::Tensor> source = from;
  const bool staged = stage.defined() && needed <= stage.numel();
  if (staged) {
    int64_t at = 0;
    for (at::Tensor& tensor : source) {
      if (!tensor.is_cuda() || tensor.numel() == 0) continue;
      const int64_t bytes = bytes_of(tensor);
      const at::Tensor copy = stage.narrow(0, at, bytes);
      copy.copy_(as_bytes(tensor), /*non_blocking=*/true);
      tensor = copy;
      at += aligned(bytes);
    }
  }
  auto drain = std::make_shared<Drain>(std::move(source), std::move(to), pinned(), device);
  if (staged) {
    last_ = drain;
  } else {
    drain->run();
  }
  return drain;
}

}  // namespace aerie::train
