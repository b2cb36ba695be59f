#include "aerie/device/gpu.h"

#include <gtest/gtest.h>

namespace aerie::device {
namespace {

TEST(DriverTest, ModuleIsThereExactlyWhenAGpuIs) {
  const Result<GpuModule*> module = gpu_module();
  if (driver().gpus.empty()) {
    ASSERT_FALSE(module.ok());
    EXPECT_EQ(module.status().code(), StatusCode::kUnavailable);
    EXPECT_FALSE(module.status().message().empty());
    return;
  }
#ifdef AERIE_HAVE_CUDA
  ASSERT_TRUE(module.ok()) << module.status().to_string();
  EXPECT_FALSE((*module)->cuda_runtime_version().empty());
#else
  // A GPU without a CUDA build is never ignored in silence: the reason and the remedy are given.
  ASSERT_FALSE(module.ok());
  EXPECT_NE(module.status().hint().find("--cuda"), std::string::npos);
#endif
}

TEST(DriverTest, DriverReportsWholeDevices) {
  for (const GpuInfo& gpu : driver().gpus) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.compute_major, 0);
    EXPECT_GT(gpu.memory_bytes, 0u);
  }
}

TEST(DriverTest, TorchCudaIsRefusedWithoutTorchInTheProcess) {
  EXPECT_EQ(load_torch_cuda().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace aerie::device
