#include "aerie/kernels/testing/backend.h"

#include <algorithm>
#include <cstdlib>

#include "aerie/device/gpu.h"
#include "aerie/kernels/emulation/emulation.h"
#include "aerie/kernels/gemm/persistent_gemm.h"

namespace aerie::kernels::emulated {

// Kernels of our own where a tile is named; otherwise a library's on the device.
int gemm(const Gemm& args, void* stream) {
  return args.tile.m > 0 ? persistent_gemm(args, stream) : reference::gemm(args, stream);
}

}  // namespace aerie::kernels::emulated

namespace aerie::kernels::testing {
namespace {

#define AERIE_KERNEL_EMULATED(name, Args) &emulated::name,
constexpr KernelTable kEmulatedKernels = {AERIE_KERNELS(AERIE_KERNEL_EMULATED)};

class HostBackend final : public Backend {
 public:
  explicit HostBackend(const KernelTable& table) : table_(&table) {}
  ~HostBackend() override {
    for (void* memory : memory_) std::free(memory);
  }
  const KernelTable& kernels() const override { return *table_; }
  void* allocate(size_t bytes) override {
    void* out = nullptr;
    if (posix_memalign(&out, 256, bytes) != 0) std::abort();
    memory_.push_back(out);
    return out;
  }
  void write(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void read(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

 private:
  const KernelTable* table_;
  std::vector<void*> memory_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(device::GpuModule* module) : module_(module) {}
  ~CudaBackend() override {
    for (void* memory : memory_) module_->free_device(memory);
  }
  const KernelTable& kernels() const override { return module_->kernels(); }
  void* allocate(size_t bytes) override {
    auto memory = module_->allocate_device(bytes);
    if (!memory.ok()) {
      ADD_FAILURE() << memory.status().to_string();
      return nullptr;
    }
    memory_.push_back(*memory);
    return *memory;
  }
  void write(void* to, const void* from, size_t bytes) override {
    const Status status = module_->copy_to_device(to, from, bytes);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  void read(void* to, const void* from, size_t bytes) override {
    const Status status = module_->copy_from_device(to, from, bytes);
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

 private:
  device::GpuModule* module_;
  std::vector<void*> memory_;
};

template <typename T>
std::vector<T> convert(const std::vector<float>& values) {
  std::vector<T> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), from_float<T>);
  return out;
}

template <typename T>
std::vector<float> widen(const std::vector<T>& values) {
  std::vector<float> out(values.size());
  std::transform(values.begin(), values.end(), out.begin(), [](T v) { return to_float(v); });
  return out;
}

}  // namespace

void* Backend::upload_as(Dtype dtype, const std::vector<float>& values) {
  switch (dtype) {
    case Dtype::kF32:
      return upload(values);
    case Dtype::kBF16:
      return upload(convert<Bf16>(values));
    case Dtype::kF16:
      return upload(convert<Half>(values));
    default:
      return nullptr;
  }
}

std::vector<float> Backend::download_as(Dtype dtype, const void* from, size_t count) {
  switch (dtype) {
    case Dtype::kF32:
      return download(static_cast<const float*>(from), count);
    case Dtype::kBF16:
      return widen(download(static_cast<const Bf16*>(from), count));
    case Dtype::kF16:
      return widen(download(static_cast<const Half*>(from), count));
    default:
      return {};
  }
}

RowLayout Packing::upload(Backend& backend) const {
  RowLayout out;
  if (rows.empty()) return out;
  std::vector<int32_t> cu_seqlens = {0};
  std::vector<RowPosition> positions;
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int t = 0; t < rows[i]; ++t) positions.push_back({static_cast<int32_t>(i), t});
    cu_seqlens.push_back(static_cast<int32_t>(positions.size()));
  }
  out.rows = cu_seqlens.back();
  out.cu_seqlens = backend.upload(cu_seqlens);
  out.positions = backend.upload(positions);
  return out;
}

size_t Packing::num_rows(int batch, int frames) const {
  size_t out = 0;
  for (const int count : rows) out += static_cast<size_t>(count);
  return rows.empty() ? static_cast<size_t>(batch * frames) : out;
}

std::vector<float> Packing::pack(const std::vector<float>& padded, int frames,
                                 size_t channels) const {
  if (rows.empty()) return padded;
  std::vector<float> out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto from =
        padded.begin() + static_cast<int64_t>(i * static_cast<size_t>(frames) * channels);
    out.insert(out.end(), from, from + rows[i] * static_cast<int64_t>(channels));
  }
  return out;
}

std::unique_ptr<Backend> reference_backend() {
  return std::make_unique<HostBackend>(kReferenceKernels);
}

std::unique_ptr<Backend> emulated_backend() {
  return std::make_unique<HostBackend>(kEmulatedKernels);
}

std::unique_ptr<Backend> cuda_backend(std::string* reason) {
  const auto module = device::gpu_module();
  if (!module.ok()) {
    *reason = module.status().to_string();
    return nullptr;
  }
  return std::make_unique<CudaBackend>(*module);
}

void for_each_order(void (*body)(Backend& backend)) {
  using emulation::Order;
#ifdef AERIE_SANITIZE_ADDRESS
  // What a thread reads and writes is the same in every order, and one takes minutes here.
  constexpr Order kOrders[] = {Order::kForward};
#else
  constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kShuffled};
#endif
  for (const Order order : kOrders) {
    emulation::set_order(order);
    SCOPED_TRACE(::testing::Message() << "thread order " << static_cast<int>(order));
    body(*emulated_backend());
  }
  emulation::set_order(Order::kForward);
}

float round_to(Dtype dtype, float value) {
  switch (dtype) {
    case Dtype::kBF16:
      return to_float(from_float<Bf16>(value));
    case Dtype::kF16:
      return to_float(from_float<Half>(value));
    default:
      return value;
  }
}

std::vector<float> random_values(size_t count, uint64_t seed, float scale, Dtype dtype) {
  RandomStream random(seed, Purpose::kTest, 0, 0);
  std::vector<float> out(count);
  for (float& value : out)
    value = round_to(dtype, (u32_to_unit_float(random.next_u32()) * 2.0f - 1.0f) * scale);
  return out;
}

void expect_close(const std::vector<float>& actual, const std::vector<float>& expected,
                  double relative, double absolute, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double largest = 0.0;
  for (const float value : expected)
    if (std::isfinite(value)) largest = std::max(largest, std::abs(static_cast<double>(value)));
  double worst = 0.0;
  size_t where = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i] == expected[i]) continue;  // infinities too
    double error = std::abs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
    if (!(error <= worst)) {  // NaN counts as worse than anything
      worst = std::isnan(error) ? INFINITY : error;
      where = i;
    }
  }
  if (worst > absolute + relative * largest)
    ADD_FAILURE() << what << "[" << where << "] of " << expected.size() << " is " << actual[where]
                  << ", not " << expected[where] << ": error " << worst << ", allowed "
                  << absolute + relative * largest;
}

}  // namespace aerie::kernels::testing
