// ConformerEncoder against NeMo's, for every variant: outputs, all gradients, running statistics.
#include <algorithm>
#include <map>

#include <ATen/ops/equal.h>

#include "aerie/nn/conformer_encoder.h"
#include "fixture.h"

namespace aerie::parity {
namespace {

// Tolerance: docs/numerics.md 7 for GEMM-heavy results.

class EncoderParity : public ::testing::TestWithParam<std::string> {};

TEST_P(EncoderParity, MatchesNemo) {
  const Fixture fixture(GetParam());
  ASSERT_EQ(fixture.kind, "encoder");
  const config::EncoderConfig config = encoder_config(fixture.config);
  const Status ok = nn::check_encoder_config(config);
  ASSERT_TRUE(ok.ok()) << ok.to_string();
  nn::ParameterRegistry registry;
  const nn::ConformerEncoder encoder(nn::Scope(registry, ""), config);
  const at::Device device = test_device();
  registry.materialize(device);

  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const Json& c = fixture.cases[i];
    SCOPED_TRACE(c.at("name").get<std::string>());
    auto key = [&](const std::string& name) { return Fixture::key(i, name); };
    fixture.load_weights(registry, "w.");
    registry.zero_grad();

    nn::InjectedDraws draws;
    if (c.contains("dropout_draws")) {
      const int64_t frames = fixture.get(key("out.encoded")).size(2);
      for (const Json& name : c.at("dropout_draws")) {
        at::Tensor keep = fixture.get(key("draw." + name.get<std::string>()));
        // NeMo's local attention pads its queries to whole windows; those rows are cut off later.
        if (keep.dim() == 4) keep = keep.narrow(2, 0, frames).contiguous();
        draws.dropout_keep.push_back(keep);
      }
    }
    if (c.contains("att_context"))
      draws.context = {c["att_context"][0].get<int64_t>(), c["att_context"][1].get<int64_t>()};
    if (c.contains("drop_layers")) draws.drop_layers = c["drop_layers"].get<std::vector<bool>>();

    std::map<std::string, at::Tensor> taps;
    nn::ForwardContext ctx;
    ctx.training = c.at("training").get<bool>();
    ctx.injected = &draws;
    ctx.tap = [&](const std::string& name, const at::Tensor& t) { taps[name] = t; };
    at::Tensor input = fixture.input(i, "audio_signal").to(device);
    input.requires_grad_(true);
    const nn::EncoderOutput out =
        encoder.forward(ctx, input, fixture.input(i, "length").to(device));
    EXPECT_EQ(draws.next_dropout, draws.dropout_keep.size());

    // NeMo splits a single item by channels when forced to, and forgets to mask it then.
    const bool unmasked_in_nemo =
        GetParam() == "enc_chunked_conv2.safetensors" && c.at("name") == "one_item";
    if (unmasked_in_nemo) continue;

    EXPECT_TRUE(at::equal(out.lengths.cpu(), fixture.get(key("out.encoded_len")).to(at::kLong)));
    EXPECT_TRUE(near(taps["pre_encode"], fixture.get(key("out.pre_encode")), kRel, kAbs));
    for (int64_t l = 0; l < config.n_layers; ++l) {
      const std::string layer = std::to_string(l);
      EXPECT_TRUE(
          near(taps["layers." + layer + ".out"], fixture.get(key("out.layer" + layer)), kRel, kAbs))
          << "layer " << l;
    }
    EXPECT_TRUE(near(out.encoded, fixture.get(key("out.encoded")), kRel, kAbs));

    for (const std::string& name : fixture.names(key("after.")))
      EXPECT_TRUE(near(registry[name], fixture.get(key("after." + name)), kRel, kAbs)) << name;
    if (!c.at("grads").get<bool>()) continue;

    (out.encoded * fixture.input(i, "cotangent").to(device)).sum().backward();
    double largest = 0.0;
    for (const std::string& name : fixture.names(key("grad.")))
      largest = std::max(largest, fixture.get(key("grad." + name)).abs().max().item<double>());
    size_t compared = 0;
    for (const std::string& name : fixture.names(key("grad."))) {
      const at::Tensor want = fixture.get(key("grad." + name));
      const at::Tensor got =
          name == "in.audio_signal" ? input.grad() : registry.grad(registry.find(name));
      // Gradients cancel to nothing in places (biases before BatchNorm): measure against the
      // largest.
      EXPECT_TRUE(near(got, want, kRel, kAbs * largest)) << name;
      ++compared;
    }
    // Every trainable parameter was compared.
    EXPECT_EQ(compared, registry.trainable().size() + 1);
  }
}

std::vector<std::string> encoder_files() {
  std::vector<std::string> files;
  for (const std::string& name : fixture_files("enc_"))
    // causal_downsampling is refused by the configuration: its frames do not fit NEST's loss.
    if (name.rfind("enc_causal_", 0) != 0) files.push_back(name);
  return files;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EncoderParity, ::testing::ValuesIn(encoder_files()),
                         [](const auto& param) {
                           std::string name = param.param.substr(4, param.param.find('.') - 4);
                           std::replace(name.begin(), name.end(), '_', 'X');
                           return name;
                         });

}  // namespace
}  // namespace aerie::parity
