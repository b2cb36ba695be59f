// The model with draws made by kernels (nn/device_draws.h) against the model whose host draws.
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include "aerie/device/gpu.h"
#include "aerie/models/nest/test_util.h"
#include "aerie/nn/device_draws.h"

namespace aerie::nest::draws_test {
namespace {

struct MaskCase {
  bool overlap;
  MaskRule rule;
  double probability;
  int64_t block;
};

void check_masks(at::Device device) {
  const std::vector<int64_t> lengths = {0, 1, 7, 8, 39, 40, 41, 50, 51, 120, 333, 1500};
  const int64_t frames = 1504;
  for (const MaskCase& c :
       {MaskCase{true, MaskRule::kR1, 0.01, 40}, MaskCase{true, MaskRule::kR0, 0.01, 40},
        MaskCase{true, MaskRule::kR1, 0.3, 5}, MaskCase{false, MaskRule::kR1, 0.4, 40},
        MaskCase{false, MaskRule::kR0, 0.4, 40}, MaskCase{false, MaskRule::kR1, 1.0, 3}}) {
    config::MaskingConfig config;
    config.mask_prob = c.probability;
    config.block_size = c.block;
    config.allow_overlap = c.overlap;
    nn::ParameterRegistry registry;
    const BlockMasking masking(nn::Scope(registry, "mask_processor"), config, 4, c.block, c.rule);
    nn::RandomKey key;
    key.seed = 19;
    key.first_item = 3;
    key.item_stride = 2;
    for (key.micro_step = 0; key.micro_step < 5; ++key.micro_step) {
      const at::Tensor on_device = at::tensor(lengths, at::kLong).to(device);
      const at::Tensor want = mask_from_spans(masking.draw(key, on_device), frames);
      const at::Tensor got = masking.drawn_mask(key, on_device, frames);
      EXPECT_EQ(got.device(), on_device.device());
      EXPECT_EQ(got.scalar_type(), at::kBool);
      EXPECT_TRUE(at::equal(got.to(at::kCPU), want))
          << "overlap " << c.overlap << ", block " << c.block << ", p " << c.probability;
    }
  }
}

TEST(DrawMaskTest, TheHostsMask) {
  check_masks(at::kCPU);
}

TEST(DrawMaskTest, TheKernelsMaskIsTheHosts) {
  const nn::DrawOnCpuWith kernels(kernels::kReferenceKernels);
  check_masks(at::kCPU);
}

TEST(DrawMaskGpuTest, TheDevicesMaskIsTheHosts) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  check_masks(at::Device(at::kCUDA, 0));
}

struct Outcome {
  at::Tensor loss, grads;
};

Outcome run(const config::ModelConfig& config, config::Precision precision) {
  auto model = make_model(config, {});
  NestBatch batch;
  batch.audio = reference_audio().narrow(1, 0, 6400);
  batch.noisy = batch.audio.flip(0) * 0.5 + batch.audio;
  batch.lengths = at::tensor({int64_t{6400}, int64_t{4300}}, at::kLong);
  batch.noisy_lengths = batch.lengths;
  batch.random.seed = 7;
  batch.random.micro_step = 11;
  ForwardOptions options;
  options.training = true;
  options.policy = nn::DtypePolicy(precision);
  auto result = model->forward(batch, options);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  result->loss.backward();
  return {result->loss.detach().clone(), model->parameters().flat_grads().clone()};
}

TEST(DrawnStepTest, LossAndGradientsAreThoseOfTheHostsDraws) {
  config::ModelConfig full = reference_model_config();
  full.encoder.dropout = 0.2;
  full.encoder.dropout_pre_encoder = 0.1;
  full.encoder.dropout_emb = 0.1;
  full.encoder.dropout_att = 0.3;
  full.preprocessor.dither = 1e-3;
  full.masking.mask_prob = 0.2;
  full.masking.block_size = 8;
  config::ModelConfig local = full;
  local.encoder.self_attention_model = config::SelfAttentionModel::kRelPosLocalAttn;
  local.encoder.att_context_size = {{3, 2}};
  local.encoder.global_tokens = 1;
  for (const config::ModelConfig& config : {full, local})
    for (const auto precision : {config::Precision::k32, config::Precision::kBf16Mixed}) {
      const Outcome host = run(config, precision);
      const nn::DrawOnCpuWith kernels(kernels::kReferenceKernels);
      const Outcome drawn = run(config, precision);
      EXPECT_GT(value(host.loss), 0.0);
      EXPECT_GT(l2(host.grads), 0.0);
      EXPECT_TRUE(at::equal(host.loss, drawn.loss));
      EXPECT_TRUE(at::equal(host.grads, drawn.grads));
    }
}

}  // namespace
}  // namespace aerie::nest::draws_test
