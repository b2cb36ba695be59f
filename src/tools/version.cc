#include "version.h"

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/version.h"

namespace aerie::tools {

std::string version_text() {
  std::string text = str_cat("aerie ", kVersion, " (commit ", kCommit, ")\n");
  text += str_cat("torch   ", kTorchVersion, "\n");
  const device::DriverInfo& driver = device::driver();
  text += str_cat("CUDA    ", kCudaCompiler[0] != '\0'
                                  ? str_cat("compiled with ", kCudaCompiler, " for ", kCudaArchs)
                                  : "not compiled in");
  if (driver.cuda_version != 0)
    text += str_cat(", driver ", driver.cuda_version / 1000, ".", driver.cuda_version % 1000 / 10);
  text += "\n";
  if (!driver.problem.empty()) text += str_cat("driver  ", driver.problem, "\n");
  if (driver.gpus.empty()) {
    text += "devices CPU only (no GPU found)\n";
    return text;
  }
  for (const device::GpuInfo& gpu : driver.gpus) {
    text += str_cat("device  ", gpu.index, ": ", gpu.name, ", compute ", gpu.compute_major, ".",
                    gpu.compute_minor, ", ", gpu.memory_bytes >> 30, " GiB\n");
  }
  const auto module = device::gpu_module();
  if (!module.ok()) text += str_cat("warning: ", module.status().to_string(), "\n");
  return text;
}

}  // namespace aerie::tools
