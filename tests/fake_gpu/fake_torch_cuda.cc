// libtorch_cuda.so for machines without a GPU: torch sees CUDA devices, whose operations run on the
// CPU. What code for a GPU does wrong without ever having run on one shows up here:
//
//   memory       addresses of a device are pages that may not be touched: a host that reads or
//                writes them ends with SIGSEGV. Fresh memory is NaN. Each device has 4 GiB
//                (AERIE_FAKE_GPU_MIB), then allocations throw c10::OutOfMemoryError
//   devices      tensors of the CPU (but numbers) or of another device among an operation's
//                arguments are an error, as on a GPU
//   determinism  in deterministic mode operations that CUDA has no deterministic kernel for are an
//                error, and so is a matrix product where CUBLAS_WORKSPACE_CONFIG was not set in
//                time
//   threads      backward passes run in a thread of the device
//
// What it does not show: anything of speed, of the order of streams, of cuDNN's and cuBLAS's
// algorithms and of kernels' limits.
//
// device::load_torch_cuda() loads it where AERIE_TORCH_CUDA names it.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr int kMostDevices = 8;
constexpr size_t kSpan = size_t{1} << 34;  // of its addresses
constexpr size_t kAlign = 512;
constexpr size_t kPoisoned = size_t{64} << 20;  // of a block, from its beginning

// Of a device.
size_t device_bytes() {
  static const size_t bytes = [] {
    const char* mib = std::getenv("AERIE_FAKE_GPU_MIB");
    return static_cast<size_t>(mib == nullptr ? 4096 : std::strtol(mib, nullptr, 10)) << 20;
  }();
  return bytes;
}

int device_count() {
  static const int count = [] {
    const char* text = std::getenv("AERIE_FAKE_GPUS");
    return text == nullptr ? 2
                           : static_cast<int>(
                                 std::clamp<long>(std::strtol(text, nullptr, 10), 0, kMostDevices));
  }();
  return count;
}

size_t place_of(c10::DeviceIndex index) {
  return static_cast<size_t>(static_cast<unsigned char>(index));
}

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kMostDevices> current_stream = {};

// Addresses of the device, which nobody may touch, and as far behind them the memory that stands
// for it.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  DeviceMemory() {
    const size_t all = kSpan * kMostDevices;
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* device = ::mmap(nullptr, all, PROT_NONE, kFlags, -1, 0);
    void* shadow = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, kFlags, -1, 0);
    if (device == MAP_FAILED || shadow == MAP_FAILED) std::abort();
    device_ = static_cast<char*>(device);
    shadow_ = static_cast<char*>(shadow);
  }

  c10::DataPtr allocate(size_t wanted) override {
    const c10::Device device(c10::kCUDA, current_device);
    if (wanted == 0) return {nullptr, nullptr, &DeviceMemory::free_block, device};
    const size_t bytes = (wanted + kAlign - 1) / kAlign * kAlign;
    const std::lock_guard lock(mutex_);
    One& one = devices_[place_of(current_device)];
    if (static_cast<size_t>(one.stats.allocated_bytes[0].current) + bytes > device_bytes()) {
      ++one.stats.num_ooms;
      C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory. Tried to allocate " +
                                            std::to_string(wanted) + " bytes. GPU " +
                                            std::to_string(current_device) +
                                            " has 0 bytes is free.");
    }
    auto hole = one.holes.begin();
    while (hole != one.holes.end() && hole->second < bytes) ++hole;
    if (hole == one.holes.end()) std::abort();
    const size_t offset = hole->first, rest = hole->second - bytes;
    one.holes.erase(hole);
    if (rest > 0) one.holes[offset + bytes] = rest;
    one.stats.allocated_bytes[0].increase(bytes);
    char* data = device_ + place_of(current_device) * kSpan + offset;
    sizes_[data] = bytes;
    std::memset(on_host(data), 0xff, std::min(bytes, kPoisoned));
    return {data, data, &DeviceMemory::free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &DeviceMemory::free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(on_host(to), on_host(const_cast<void*>(from)), bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    return devices_.at(place_of(device)).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    devices_.at(place_of(device)).stats.allocated_bytes[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    const std::lock_guard lock(mutex_);
    devices_.at(place_of(device)).stats.allocated_bytes[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const auto used = static_cast<size_t>(getDeviceStats(device).allocated_bytes[0].current);
    return {device_bytes() - used, device_bytes()};
  }

  bool owns(const void* data) const {
    return data >= device_ && data < device_ + kSpan * kMostDevices;
  }
  bool is_shadow(const void* data) const {
    return data >= shadow_ && data < shadow_ + kSpan * kMostDevices;
  }
  c10::DeviceIndex device_of(const void* data) const {
    return static_cast<c10::DeviceIndex>(
        static_cast<size_t>(static_cast<const char*>(data) - device_) / kSpan);
  }
  void* on_host(void* data) const {
    return owns(data) ? shadow_ + (static_cast<char*>(data) - device_) : data;
  }

 private:
  struct One {
    std::map<size_t, size_t> holes = {{0, kSpan}};  // sizes by offset
    c10::CachingDeviceAllocator::DeviceStats stats;
  };
  static void free_block(void* data);

  std::mutex mutex_;
  std::array<One, kMostDevices> devices_;
  std::unordered_map<void*, size_t> sizes_;
  char* device_ = nullptr;
  char* shadow_ = nullptr;
};

DeviceMemory& memory() {
  static auto* const made = new DeviceMemory;
  return *made;
}

void DeviceMemory::free_block(void* data) {
  if (data == nullptr) return;
  DeviceMemory& self = memory();
  const std::lock_guard lock(self.mutex_);
  const auto found = self.sizes_.find(data);
  if (found == self.sizes_.end()) std::abort();
  One& one = self.devices_[place_of(self.device_of(data))];
  const auto offset = static_cast<size_t>(static_cast<char*>(data) - self.device_) % kSpan;
  auto hole = one.holes.emplace(offset, found->second).first;
  const auto next = std::next(hole);
  if (next != one.holes.end() && hole->first + hole->second == next->first) {
    hole->second += next->second;
    one.holes.erase(next);
  }
  if (hole != one.holes.begin()) {
    const auto before = std::prev(hole);
    if (before->first + before->second == hole->first) {
      before->second += hole->second;
      one.holes.erase(hole);
    }
  }
  one.stats.allocated_bytes[0].decrease(found->second);
  self.sizes_.erase(found);
}

// Host memory that the device may copy from.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = std::aligned_alloc(4096, (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096);
    if (data == nullptr) throw std::bad_alloc();
    const std::lock_guard lock(mutex_);
    blocks_.insert(data);
    return {data, data, &PinnedMemory::free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &PinnedMemory::free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool owns(const void* data) {
    const std::lock_guard lock(mutex_);
    return blocks_.contains(const_cast<void*>(data));
  }

 private:
  static void free_block(void* data);
  std::mutex mutex_;
  std::unordered_set<void*> blocks_;
};

PinnedMemory& pinned() {
  static auto* const made = new PinnedMemory;
  return *made;
}

void PinnedMemory::free_block(void* data) {
  {
    const std::lock_guard lock(pinned().mutex_);
    pinned().blocks_.erase(data);
  }
  std::free(data);
}

// Everything is done when it is queued.
class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, current_device}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < device_count(), "CUDA error: invalid device ordinal");
    if (device.index() >= 0) current_device = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return stream_of(index, current_stream[place_of(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{1};
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return stream_of(index, next++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_stream[place_of(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Time;
    *static_cast<Time*>(*event) = Clock::now();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Time*>(event);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(*static_cast<Time*>(to) -
                                                     *static_cast<Time*>(from))
        .count();
  }

 private:
  static c10::Stream stream_of(c10::DeviceIndex index, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index), id);
  }
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
};

// ---- operations

bool is_device(const at::Tensor& t) {
  return t.defined() && t.is_cuda();
}

// The same tensor over the memory that stands for the device's.
at::Tensor on_host(const at::Tensor& t) {
  if (!is_device(t)) return t;
  const c10::Storage& storage = t.storage();
  void* data = memory().on_host(const_cast<void*>(storage.data()));
  c10::Storage host(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), storage.nbytes(),
      c10::DataPtr(data, c10::Device(c10::kCPU)), c10::GetCPUAllocator(), /*resizable=*/true));
  at::Tensor out = at::detail::make_tensor<c10::TensorImpl>(
      std::move(host), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  c10::TensorImpl* impl = out.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return out;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(at::Device(at::kCUDA, current_device)));
  return at::detail::empty_generic(size, &memory(), c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(at::Device(at::kCUDA, current_device)));
  return at::detail::empty_strided_generic(size, stride, &memory(),
                                           c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

at::Tensor to_device(const at::Tensor& t, at::Device device) {
  if (!t.defined()) return t;
  at::Tensor out =
      empty_strided(t.sizes(), t.strides(), t.scalar_type(), std::nullopt, device, std::nullopt);
  on_host(out).copy_(t);
  return out;
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<size_t>(self.storage_offset()));
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard guard(self.device());
    c10::DataPtr data = memory().allocate(bytes);
    if (storage->nbytes() > 0) memory().copy_data(data.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr(std::move(data));
    storage->set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

// Neither throws nor waits on a GPU: the copies between memories, whatever their sizes.
at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool) {
  const at::AutoDispatchBelowADInplaceOrView below;
  on_host(self).copy_(on_host(from));
  return self;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(on_host(self));
}

// Of torch 2.11: those whose CUDA kernels say so themselves in deterministic mode.
bool is_deterministic(std::string_view name, const std::vector<c10::IValue>& arguments) {
  static const std::unordered_set<std::string_view> others = {"_adaptive_avg_pool2d_backward",
                                                              "_adaptive_avg_pool3d_backward",
                                                              "_ctc_loss_backward",
                                                              "_embedding_bag_dense_backward",
                                                              "_upsample_bicubic2d_aa_backward",
                                                              "_upsample_bilinear2d_aa_backward",
                                                              "adaptive_max_pool2d_backward",
                                                              "adaptive_max_pool3d_backward",
                                                              "avg_pool3d_backward",
                                                              "bincount",
                                                              "fractional_max_pool2d_backward",
                                                              "fractional_max_pool3d_backward",
                                                              "grid_sampler_2d_backward",
                                                              "grid_sampler_3d_backward",
                                                              "histc",
                                                              "index_reduce",
                                                              "kthvalue",
                                                              "max_pool2d_with_indices_backward",
                                                              "max_pool3d_with_indices_backward",
                                                              "max_unpool2d",
                                                              "max_unpool3d",
                                                              "median",
                                                              "nanmedian",
                                                              "nll_loss2d_forward",
                                                              "put_",
                                                              "reflection_pad1d_backward",
                                                              "reflection_pad2d_backward",
                                                              "reflection_pad3d_backward",
                                                              "replication_pad1d_backward",
                                                              "replication_pad2d_backward",
                                                              "replication_pad3d_backward",
                                                              "scatter_add",
                                                              "scatter_add_",
                                                              "scatter_reduce",
                                                              "scatter_reduce_",
                                                              "upsample_bicubic2d_backward",
                                                              "upsample_bilinear2d_backward",
                                                              "upsample_linear1d_backward",
                                                              "upsample_trilinear3d_backward"};
  if (name == "cumsum" || name == "cumsum_") return !arguments.at(0).toTensor().is_floating_point();
  return !others.contains(name);
}

void check_determinism(std::string_view name, const std::vector<c10::IValue>& arguments) {
  static const std::unordered_set<std::string_view> products = {
      "addbmm", "addmm", "addmv", "baddbmm", "bmm", "dot", "mm", "mv", "vdot"};
  at::Context& context = at::globalContext();
  if (products.contains(name)) {
    static const bool fixed = [] {  // torch looks once
      const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
      return text != nullptr &&
             (std::strcmp(text, ":4096:8") == 0 || std::strcmp(text, ":16:8") == 0);
    }();
    TORCH_CHECK(
        fixed || !context.deterministicAlgorithms(),
        "Deterministic behavior was enabled, but CUBLAS_WORKSPACE_CONFIG was not set before "
        "the first product");
  }
  if (context.deterministicAlgorithms() && !is_deterministic(name, arguments))
    at::Context::alertNotDeterministic(c10::str(name, " of CUDA"));
}

// An operation of the device: runs on the CPU over the same memory.
class Operation {
 public:
  Operation(const c10::OperatorHandle& op, torch::jit::Stack* stack) : op_(op), stack_(*stack) {
    const size_t count = op.schema().arguments().size();
    begin_ = stack_.size() - count;
    given_.assign(stack_.begin() + static_cast<std::ptrdiff_t>(begin_), stack_.end());
    name_ = op.schema().name();
    if (name_.starts_with("aten::")) name_.remove_prefix(6);
  }

  void run() {
    for (size_t i = 0; i < given_.size(); ++i) look_at(i);
    check_determinism(name_, given_);
    for (size_t i = 0; i < given_.size(); ++i) stack_[begin_ + i] = host_value(i);
    widen_softmax();
    widen_products();
    op_.callBoxed(&stack_);
    for (auto& [theirs, ours] : written_) write_back(theirs, ours);
    const auto& returns = op_.schema().returns();
    for (size_t i = 0; i < returns.size(); ++i)
      stack_[begin_ + i] = device_value(returns[i], stack_[begin_ + i]);
  }

 private:
  void look_at(const at::Tensor& t) {
    // Numbers of the host may take part in anything; indices may come from it.
    if (!t.defined()) return;
    if (!t.is_cuda()) {
      const bool index = name_ == "index" || name_ == "index_put_" || name_ == "_index_put_impl_";
      TORCH_CHECK(t.dim() == 0 || index,
                  "Expected all tensors to be on the same device, but found ", t.device(), " in ",
                  name_);
      return;
    }
    if (!device_) device_ = t.device();
    TORCH_CHECK(*device_ == t.device(), "Expected all tensors to be on the same device, but found ",
                *device_, " and ", t.device(), " in ", name_);
  }
  void look_at(size_t i) {
    const c10::IValue& value = given_[i];
    if (value.isTensor()) {
      look_at(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) look_at(t);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
        if (t) look_at(*t);
    } else if (value.isDevice() && value.toDevice().is_cuda() && !device_) {
      const at::Device device = value.toDevice();
      device_ = at::Device(at::kCUDA, device.has_index() ? device.index() : current_device);
    }
  }
  bool writes(size_t i) const {
    const c10::AliasInfo* alias = op_.schema().arguments()[i].alias_info();
    return alias != nullptr && alias->isWrite();
  }
  at::Tensor host_tensor(const at::Tensor& t, bool write) {
    at::Tensor out = on_host(t);
    if (write && is_device(t)) written_.emplace_back(t, out);
    return out;
  }
  c10::IValue host_value(size_t i) {
    const c10::IValue& value = given_[i];
    if (value.isTensor()) return host_tensor(value.toTensor(), writes(i));
    if (value.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& t : value.toTensorVector()) out.push_back(host_tensor(t, writes(i)));
      return out;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> out;
      for (const std::optional<at::Tensor>& t : value.toOptionalTensorVector())
        out.push_back(t ? std::optional(on_host(*t)) : std::nullopt);
      return out;
    }
    if (value.isDevice() && value.toDevice().is_cuda()) return at::Device(at::kCPU);
    return value;
  }
  // A GPU's softmax of half precision gives float32 where asked, without a conversion; so does its
  // gradient the other way.
  void widen_softmax() {
    c10::IValue* const arguments = stack_.data() + begin_;
    if ((name_ == "_softmax" || name_ == "_log_softmax") && arguments[2].toBool()) {
      arguments[0] = arguments[0].toTensor().to(at::kFloat);
      arguments[2] = false;
    }
    if ((name_ == "_softmax_backward_data" || name_ == "_log_softmax_backward_data") &&
        given_.size() == 5 &&
        arguments[3].toScalarType() != arguments[0].toTensor().scalar_type()) {
      arguments[3] = arguments[0].toTensor().scalar_type();
      written_.back().second = at::empty(written_.back().first.sizes(), at::kFloat);
      arguments[4] = written_.back().second;
    }
  }
  // Products of float16 add up in float32 there, and are slow on many CPUs.
  void widen_products() {
    static const std::unordered_set<std::string_view> names = {
        "addmm", "baddbmm", "bmm", "convolution", "convolution_backward", "mm"};
    c10::IValue* const arguments = stack_.data() + begin_;
    if (!names.contains(name_) || arguments[0].toTensor().scalar_type() != at::kHalf) return;
    half_ = true;
    for (auto& [theirs, ours] : written_) ours = ours.to(at::kFloat);
    size_t next = 0;
    for (size_t i = 0; i < given_.size(); ++i)
      if (arguments[i].isTensor() && arguments[i].toTensor().defined())
        arguments[i] = writes(i) ? written_[next++].second : arguments[i].toTensor().to(at::kFloat);
  }
  // Outputs that were given without memory, or are of another type.
  static void write_back(const at::Tensor& theirs, const at::Tensor& ours) {
    if (theirs.sizes() == ours.sizes() && theirs.scalar_type() == ours.scalar_type()) return;
    resize(theirs, ours.sizes(), std::nullopt);
    on_host(theirs).copy_(ours);
  }
  c10::IValue device_value(const c10::Argument& what, const c10::IValue& value) {
    if (const c10::AliasInfo* alias = what.alias_info(); alias != nullptr) {
      for (size_t i = 0; i < given_.size(); ++i) {
        const c10::AliasInfo* of = op_.schema().arguments()[i].alias_info();
        if (of != nullptr && of->isWrite() && of->beforeSets() == alias->beforeSets())
          return given_[i];
      }
    }
    TORCH_CHECK(device_, name_, " names no device");
    if (value.isTensor()) return device_tensor(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> out;
      for (const at::Tensor& t : value.toTensorVector()) out.push_back(device_tensor(t));
      return out;
    }
    return value;
  }
  at::Tensor device_tensor(const at::Tensor& t) const {
    TORCH_CHECK(!t.defined() || t.numel() == 0 || !memory().is_shadow(t.storage().data()), name_,
                " gives a view, which the device without a GPU does not know");
    return to_device(half_ && t.defined() ? t.to(at::kHalf) : t, *device_);
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t begin_ = 0;
  std::vector<c10::IValue> given_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;
  std::string_view name_;
  std::optional<at::Device> device_;
  bool half_ = false;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Operation(op, stack).run();
}

// cuDNN's plans want memory to work in. Torch tries one after another, and says nothing of memory
// where it is too short for them all.
void convolve_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  constexpr size_t kWorkspace = size_t{2} << 20;
  try {
    {
      const size_t count = op.schema().arguments().size();
      const c10::DeviceGuard guard((*stack)[stack->size() - count].toTensor().device());
      (void)memory().allocate(kWorkspace);
    }
    run_on_cpu(op, stack);
  } catch (const c10::OutOfMemoryError&) {
    TORCH_CHECK(false, "GET was unable to find an engine to execute this computation");
  }
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize);
  m.impl("copy_", &copy);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("view.dtype", &at::native::view_dtype);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  // Made of others where a device has none of its own, as a GPU has.
  for (const char* name : {"native_layer_norm", "native_layer_norm_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  for (const char* name : {"convolution", "convolution_backward"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&convolve_on_cpu>());
}

}  // namespace

namespace at {

struct FakeCudaHooks final : CUDAHooksInterface {
  explicit FakeCudaHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasCUDA() const override { return device_count() > 0; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  int getNumGPUs() const override { return device_count(); }
  DeviceIndex current_device() const override { return ::current_device; }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  void setCurrentDevice(DeviceIndex device) const override { ::current_device = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return std::exchange(::current_device, device);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override {
    return std::exchange(::current_device, device);
  }
  Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(memory().owns(data), "the pointer is no memory of a device");
    return {kCUDA, memory().device_of(data)};
  }
  bool isPinnedPtr(const void* data) const override { return pinned().owns(data); }
  Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
  Allocator* getCUDADeviceAllocator() const override { return &memory(); }
  void deviceSynchronize(DeviceIndex) const override {}
};

// By the name under which torch asks for them.
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, FakeCudaHooks)

}  // namespace at

namespace {

const c10::impl::DeviceGuardImplRegistrar kGuardRegistrar(c10::kCUDA, new Guard);
const bool kHasAllocator = [] {
  c10::SetAllocator(c10::kCUDA, &memory());
  return true;
}();

}  // namespace
