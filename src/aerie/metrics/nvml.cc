#include "aerie/metrics/nvml.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <dlfcn.h>
#include <mutex>
#include <system_error>
#include <thread>

#include "aerie/base/log.h"
#include "aerie/base/thread_group.h"
#include "aerie/metrics/nvml_types.h"

namespace aerie::metrics {

namespace {

using Device = void*;
constexpr int kSuccess = 0;
constexpr int kTemperatureGpu = 0;
constexpr double kGib = 1073741824.0;

struct Api {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*by_index)(unsigned, Device*) = nullptr;
  int (*by_pci)(const char*, Device*) = nullptr;
  int (*utilization)(Device, NvmlUtilization*) = nullptr;
  int (*memory)(Device, NvmlMemory*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;
  int (*temperature)(Device, int, unsigned*) = nullptr;
  int (*mig_mode)(Device, unsigned*, unsigned*) = nullptr;  // null: a driver without MIG

  bool load() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return false;
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      complete = complete && function != nullptr;
    };
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(by_index, "nvmlDeviceGetHandleByIndex_v2");
    find(by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(temperature, "nvmlDeviceGetTemperature");
    mig_mode = reinterpret_cast<decltype(mig_mode)>(dlsym(library, "nvmlDeviceGetMigMode"));
    return complete;
  }

  bool in_parts(Device device) const {
    unsigned current = 0, pending = 0;
    return mig_mode != nullptr && mig_mode(device, &current, &pending) == kSuccess && current != 0;
  }
};

class Sampler final : public NvmlSampler {
 public:
  Sampler(const Api& api, Device device, double interval_s)
      : api_(api), device_(device), interval_s_(interval_s) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      log_warn("metrics", "no GPU figures: ", thread_error(error).to_string());
    }
  }
  ~Sampler() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
    api_.shutdown();
  }

  std::optional<GpuSample> read() override {
    std::lock_guard lock(mutex_);
    return take();
  }
  std::optional<GpuSample> read_now() override {
    const std::optional<GpuSample> now = ask();
    std::lock_guard lock(mutex_);
    store(now);
    return take();
  }

 private:
  std::optional<GpuSample> take() {
    if (!have_sample_) return std::nullopt;
    GpuSample out = latest_;
    if (counted_ > 0) out.utilisation_percent = utilisation_sum_ / counted_;
    if (count_ > 0) out.power_w = power_sum_ / count_;
    utilisation_sum_ = power_sum_ = 0.0;
    count_ = counted_ = 0;
    return out;
  }

  // Takes NVML's time: without the lock, which the training loop may wait for.
  std::optional<GpuSample> ask() const {
    GpuSample sample;
    NvmlUtilization utilization{};
    NvmlMemory memory{};
    unsigned milliwatts = 0, celsius = 0;
    // Some drivers (virtual GPUs, WSL2) know memory and count no utilisation.
    if (api_.memory(device_, &memory) != kSuccess) return std::nullopt;
    if (api_.utilization(device_, &utilization) == kSuccess)
      sample.utilisation_percent = utilization.gpu;
    if (api_.power(device_, &milliwatts) == kSuccess) sample.power_w = milliwatts / 1000.0;
    if (api_.temperature(device_, kTemperatureGpu, &celsius) == kSuccess)
      sample.temperature_c = celsius;
    sample.memory_used_gib = static_cast<double>(memory.used) / kGib;
    sample.memory_total_gib = static_cast<double>(memory.total) / kGib;
    return sample;
  }

  void store(const std::optional<GpuSample>& sample) {
    if (!sample) return;
    const double peak = std::max(latest_.peak_memory_used_gib, sample->memory_used_gib);
    latest_ = *sample;
    latest_.peak_memory_used_gib = peak;
    have_sample_ = true;
    if (sample->utilisation_percent >= 0.0) {
      utilisation_sum_ += sample->utilisation_percent;
      ++counted_;
    }
    power_sum_ += sample->power_w;
    ++count_;
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      lock.unlock();
      const std::optional<GpuSample> now = ask();
      lock.lock();
      store(now);
      wake_.wait_for(lock, std::chrono::duration<double>(interval_s_), [this] { return stop_; });
    }
  }

  const Api api_;
  const Device device_;
  const double interval_s_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  bool have_sample_ = false;
  GpuSample latest_;
  double utilisation_sum_ = 0.0;
  double power_sum_ = 0.0;
  int count_ = 0, counted_ = 0;  // samples; those with a utilisation
  std::thread thread_;
};

}  // namespace

std::unique_ptr<NvmlSampler> NvmlSampler::start(const char* pci_bus_id, double interval_s) {
  Api api;
  if (!api.load() || api.init() != kSuccess) return nullptr;
  Device device = nullptr;
  const bool found = pci_bus_id != nullptr && pci_bus_id[0] != '\0'
                         ? api.by_pci(pci_bus_id, &device) == kSuccess
                         : api.by_index(0, &device) == kSuccess;
  const bool in_parts = found && api.in_parts(device);
  if (in_parts)
    log_info("metrics",
             "the GPU is divided (MIG): the driver tells what the whole card does, so "
             "utilisation and memory are not recorded");
  if (!found || in_parts) {
    api.shutdown();
    return nullptr;
  }
  return std::make_unique<Sampler>(api, device, interval_s);
}

}  // namespace aerie::metrics
