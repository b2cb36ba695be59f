#include "aerie/kernels/device_model.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "aerie/base/strings.h"

namespace aerie::kernels {
namespace {

// A GPU without measurements of its own. Rows stay multiples of 16.
DeviceModel scaled(std::string name, int compute_major, int sms, double bandwidth,
                   size_t l2_bytes) {
  const DeviceModel h200;
  DeviceModel out;
  out.name = std::move(name);
  out.sms = sms;
  out.compute_major = compute_major;
  out.bandwidth = bandwidth;
  out.l2_bytes = l2_bytes;
  out.measured = false;
  const auto rows = [&](int of) { return std::max(16, of * sms / h200.sms / 16 * 16); };
  const auto bytes = [&](size_t of) {
    return static_cast<size_t>(static_cast<double>(of) * static_cast<double>(l2_bytes) /
                               static_cast<double>(h200.l2_bytes));
  };
  out.overlap_wgrad_rows = rows(h200.overlap_wgrad_rows);
  out.overlap_update_rows = rows(h200.overlap_update_rows);
  out.overlap_update_min_rows = rows(h200.overlap_update_min_rows);
  out.small_layer_parameters =
      std::llround(static_cast<double>(h200.small_layer_parameters) * bandwidth / h200.bandwidth);
  out.recompute_bytes = bytes(h200.recompute_bytes);
  out.saved_p_bytes = bytes(h200.saved_p_bytes);
  out.prefetch_bytes = bytes(h200.prefetch_bytes);
  return out;
}

constexpr size_t mib(size_t n) {
  return n << 20;
}

// As the driver calls them, and as the table does. Names that contain others come first.
struct Known {
  std::string_view gpu;
  size_t model;
};
constexpr Known kKnown[] = {{"H200", 0}, {"H100 PCIe", 2}, {"H100", 1},
                            {"B200", 3}, {"A100-SXM4", 4}, {"A100", 5},
                            {"L40S", 6}, {"L4", 7},        {"RTX 4090", 8}};

}  // namespace

std::span<const DeviceModel> device_models() {
  static const std::array<DeviceModel, 9> models = {
      DeviceModel{},
      scaled("h100", 9, 132, 3.35e12, mib(50)),
      scaled("h100-pcie", 9, 114, 2.0e12, mib(50)),
      scaled("b200", 10, 148, 8.0e12, mib(126)),
      scaled("a100", 8, 108, 2.04e12, mib(40)),
      scaled("a100-pcie", 8, 108, 1.94e12, mib(40)),
      scaled("l40s", 8, 142, 0.864e12, mib(96)),
      scaled("l4", 8, 58, 0.3e12, mib(48)),
      scaled("rtx4090", 8, 128, 1.008e12, mib(72)),
  };
  return models;
}

Result<DeviceModel> find_device_model(std::string_view name) {
  std::string names;
  for (const DeviceModel& one : device_models()) {
    if (one.name == name) return one;
    names += str_cat(names.empty() ? "" : ", ", one.name);
  }
  return invalid_argument(str_cat("no device model is called '", name, "'"))
      .with_hint(str_cat("known are ", names));
}

DeviceModel device_model_of(std::string_view gpu_name, int compute_major, int sms,
                            size_t l2_bytes) {
  for (const Known& known : kKnown) {
    const size_t at = gpu_name.find(known.gpu);
    if (at == std::string_view::npos) continue;
    const size_t end = at + known.gpu.size();  // "L4" is no "L40"
    if (end < gpu_name.size() && gpu_name[end] >= '0' && gpu_name[end] <= '9') continue;
    const DeviceModel& model = device_models()[known.model];
    // Parts of a GPU (MIG) and variants have the name, but not the size.
    if (sms <= 0 || sms == model.sms) return model;
  }
  const DeviceModel h200;
  const int count = sms > 0 ? sms : h200.sms;
  return scaled(gpu_name.empty() ? "unknown" : std::string(gpu_name), compute_major, count,
                h200.bandwidth * count / h200.sms, l2_bytes > 0 ? l2_bytes : h200.l2_bytes);
}

}  // namespace aerie::kernels
