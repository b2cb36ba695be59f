#include "aerie/train/graph/snapshot_memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aerie/device/gpu.h"

namespace aerie::train {
namespace {

constexpr int64_t kChunk = 16 << 20;
constexpr size_t kChunks = 4;
constexpr size_t kAlign = 256;
constexpr size_t kTensors = 4096;  // room for so many boundaries

size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Large ones on huge pages, whose first use costs little.
at::Tensor ordinary_memory(const at::Tensor& like) {
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

// From a device to ordinary memory, through page-locked chunks: a copy to ordinary memory would
// hold up every other call to the driver.
void read_through_chunks(const at::Tensor& from, const at::Tensor& to,
                         const std::vector<at::Tensor>& chunks) {
  const c10::impl::VirtualGuardImpl guard(from.device().type());
  const c10::Stream stream = guard.getStream(from.device());
  const at::Tensor bytes = from.detach().reshape({-1}).view(at::kByte);
  auto* out = static_cast<unsigned char*>(to.mutable_data_ptr());
  struct Slot {
    c10::Event sent;
    unsigned char* to = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Slot> slots;
  for (size_t i = 0; i < chunks.size(); ++i) slots.push_back({c10::Event(from.device().type())});
  const auto finish = [&](size_t i) {
    if (slots[i].bytes == 0) return;
    slots[i].sent.synchronize();
    std::memcpy(slots[i].to, chunks[i].const_data_ptr(), static_cast<size_t>(slots[i].bytes));
    slots[i].bytes = 0;
  };
  size_t next = 0;
  for (int64_t at = 0; at < bytes.numel(); at += kChunk) {
    const size_t i = next++ % slots.size();
    finish(i);
    const int64_t count = std::min(kChunk, bytes.numel() - at);
    chunks[i].narrow(0, 0, count).copy_(bytes.narrow(0, at, count), /*non_blocking=*/true);
    slots[i].sent.record(stream);
    slots[i].to = out + at;
    slots[i].bytes = count;
  }
  for (size_t k = 0; k < slots.size(); ++k) finish(next++ % slots.size());
}

}  // namespace

// One block of page-locked memory.
class SnapshotMemory::Pinned {
 public:
  static std::unique_ptr<Pinned> make(at::Device device, size_t bytes) {
    const Result<device::GpuModule*> module = device::gpu_module();
    if (!module.ok()) return nullptr;
    const int index = std::max<int>(0, device.index());
    if (!(*module)->make_context(index).ok()) return nullptr;
    auto block = (*module)->allocate_pinned(bytes);
    if (!block.ok()) return nullptr;
    return std::unique_ptr<Pinned>(new Pinned(*module, *block, bytes));
  }
  ~Pinned() { module_->free_pinned(data_); }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  unsigned char* data() const { return static_cast<unsigned char*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Pinned(device::GpuModule* module, void* data, size_t bytes)
      : module_(module), data_(data), bytes_(bytes) {}
  device::GpuModule* module_;
  void* data_;
  size_t bytes_;
};

SnapshotMemory::SnapshotMemory() = default;

SnapshotMemory::~SnapshotMemory() {
  if (reserving_.joinable()) reserving_.join();
}

void SnapshotMemory::reserve(at::Device device, int64_t bytes) {
  if (!device.is_cuda() || reserving_.joinable()) return;
  const size_t wanted = static_cast<size_t>(bytes) + kTensors * kAlign;
  try {
    reserving_ = std::thread([this, device, wanted] {
      auto block = Pinned::make(device, wanted);
      const std::lock_guard lock(mutex_);
      pinned_ = std::move(block);
    });
  } catch (const std::system_error&) {  // ordinary memory will do
  }
}

bool SnapshotMemory::is_pinned(const at::Tensor& tensor) const {
  if (pinned_ == nullptr) return false;
  const auto* data = static_cast<const unsigned char*>(tensor.const_data_ptr());
  return data >= pinned_->data() && data < pinned_->data() + pinned_->bytes();
}

std::vector<at::Tensor> SnapshotMemory::take(const std::vector<at::Tensor>& buffers) {
  if (reserving_.joinable()) reserving_.join();
  const std::lock_guard lock(mutex_);
  size_t needed = 0;
  for (const at::Tensor& buffer : buffers) needed += aligned(buffer.nbytes());
  std::vector<at::Tensor> out;
  if (pinned_ != nullptr && !pinned_in_use_ && needed <= pinned_->bytes()) {
    unsigned char* at = pinned_->data();
    for (const at::Tensor& buffer : buffers) {
      out.push_back(
          at::from_blob(at, buffer.sizes(), at::TensorOptions().dtype(buffer.scalar_type())));
      at += aligned(buffer.nbytes());
    }
    pinned_in_use_ = true;
    return out;
  }
  const bool fits =
      std::equal(spare_.begin(), spare_.end(), buffers.begin(), buffers.end(),
                 [](const at::Tensor& a, const at::Tensor& b) {
                   return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type();
                 });
  if (fits) return std::exchange(spare_, {});
  spare_.clear();
  for (const at::Tensor& buffer : buffers) out.push_back(ordinary_memory(buffer));
  return out;
}

void SnapshotMemory::give_back(std::vector<at::Tensor> tensors) {
  const std::lock_guard lock(mutex_);
  if (!tensors.empty() && is_pinned(tensors.front())) {
    pinned_in_use_ = false;
  } else {
    spare_ = std::move(tensors);
  }
}

void SnapshotMemory::read(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  at::NoGradGuard no_grad;
  bool pinned = false;
  {
    const std::lock_guard lock(mutex_);
    pinned = !to.empty() && is_pinned(to.front());
  }
  for (size_t b = 0; b < from.size(); ++b) {
    if (pinned || !from[b].is_cuda() || from[b].numel() == 0) {
      // Page-locked copies are launched one behind the other; the last one waits for all.
      to[b].copy_(from[b], /*non_blocking=*/pinned && b + 1 < from.size());
      continue;
    }
    while (chunks_.size() < kChunks)
      chunks_.push_back(
          at::empty({kChunk}, at::TensorOptions().dtype(at::kByte).pinned_memory(true)));
    read_through_chunks(from[b], to[b], chunks_);
  }
  if (!pinned) return;
  for (const at::Tensor& tensor : from)
    if (tensor.is_cuda()) {
      const c10::impl::VirtualGuardImpl guard(tensor.device().type());
      guard.synchronizeStream(guard.getStream(tensor.device()));
      break;
    }
}

}  // namespace aerie::train
