#include "aerie/nn/cpu_runtime.h"

#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "aerie/nn/random_fill.h"

namespace aerie::nn {
namespace {

// Draws are keyed by position, so how the work is cut does not matter.
TEST(CpuRuntimeTest, RandomTensorsDoNotDependOnTheNumberOfThreads) {
  prepare_cpu_runtime();
  prepare_cpu_runtime();
  RandomKey key;
  key.seed = 5;
  key.micro_step = 3;
  const int before = at::get_num_threads();
  std::vector<at::Tensor> first;
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    const std::vector<at::Tensor> drawn = {
        dropout_factors(dropout_of_btc(key, 2, 0.1, 5, 300, 48), {5, 300, 48}),
        dropout_factors(dropout_of_attention(key, 3, 0.2, 3, 4, 70, 70), {3, 4, 70, 70}),
        dither_normals(key, 1, 4, 40001)};
    if (first.empty()) first = drawn;
    for (size_t i = 0; i < drawn.size(); ++i) EXPECT_TRUE(at::equal(drawn[i], first[i])) << i;
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace aerie::nn
