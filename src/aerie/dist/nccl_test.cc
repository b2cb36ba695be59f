// NCCL through the module, in a world of one: all that a machine with one GPU can show.
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "aerie/device/gpu.h"
#include "aerie/dist/address.h"
#include "aerie/dist/join.h"
#include "aerie/dist/nccl_backend.h"
#include "aerie/dist/torch_group.h"

namespace aerie::dist {
namespace {

TEST(NcclGpuTest, AWorldOfOne) {
  if (device::driver().gpus.empty()) GTEST_SKIP() << "no GPU here";
  ASSERT_TRUE(nccl_available().ok()) << nccl_available().to_string();
  const Listener listener = listen_anywhere("127.0.0.1").value();
  World world;
  world.master_addr = "127.0.0.1";
  world.master_port = listener.port;
  world.listen_fd = listener.fd;
  auto group = join_ranks(world, {.backend = "nccl", .timeout_s = 60, .gpu_index = 0});
  ASSERT_TRUE(group.ok()) << group.status().to_string();
  std::vector<at::Tensor> tensors{at::ones({1000}, at::TensorOptions(at::kCUDA)) * 3};
  torch_group(**group)->allreduce(tensors)->wait();
  EXPECT_TRUE(tensors[0].eq(3).all().item<bool>());
  // Values of the host go by Gloo beside it.
  int64_t one = 1;
  EXPECT_TRUE((*group)->sum(std::span<int64_t>(&one, 1)).ok());
  EXPECT_EQ(one, 1);
  // Left to its destructor NCCL would be cut off, and torch would warn.
  tensors.clear();
  testing::internal::CaptureStderr();
  (*group)->leave();
  group->reset();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("destroy_process_group"), std::string::npos) << said;
}

// Whatever the environment says: ranks that capture at different times must not register buffers.
TEST(NcclTest, CapturesRegisterNoBuffers) {
  for (const char* given : {static_cast<const char*>(nullptr), "1", "0"}) {
    if (given == nullptr)
      unsetenv("NCCL_GRAPH_REGISTER");
    else
      setenv("NCCL_GRAPH_REGISTER", given, /*overwrite=*/1);
    // On a machine without NCCL too.
    (void)make_nccl_backend(nullptr, {.gpu_index = -1});
    EXPECT_EQ(process_variable("NCCL_GRAPH_REGISTER"), "0") << (given == nullptr ? "" : given);
  }
}

// Without a GPU or without the module the reason is given, nothing breaks.
TEST(NcclTest, IsRefusedWithAReason) {
  const Status available = nccl_available();
  if (!available.ok()) {
    EXPECT_EQ(available.code(), StatusCode::kUnavailable);
    EXPECT_FALSE(available.hint().empty()) << available.to_string();
  }
}

}  // namespace
}  // namespace aerie::dist
