// GPU utilisation, memory, power and temperature from NVML, loaded at run time and sampled by a
// thread of its own. Where there is no driver, sampling is simply absent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace aerie::metrics {

struct GpuSample {
  // Share of time in which any kernel ran; below 0: the driver does not count it.
  double utilisation_percent = -1.0;
  double memory_used_gib = 0.0;       // of the whole device, all processes
  double peak_memory_used_gib = 0.0;  // the most that was seen since the start
  double memory_total_gib = 0.0;
  double power_w = 0.0;
  double temperature_c = 0.0;
};

class NvmlSampler {
 public:
  // Starts sampling GPU `pci_bus_id` ("0000:3b:00.0"; empty: the first one) every `interval_s`;
  // null without NVML, and in MIG mode, where its figures are those of the whole card and not of
  // the part that this process has.
  static std::unique_ptr<NvmlSampler> start(const char* pci_bus_id, double interval_s);
  virtual ~NvmlSampler() = default;

  // Mean of utilisation and power since the previous call, latest of the rest; nothing before the
  // first sample.
  virtual std::optional<GpuSample> read() = 0;
  // The same with a sample taken now.
  virtual std::optional<GpuSample> read_now() = 0;
};

}  // namespace aerie::metrics
