#include "fixture.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include "aerie/base/testing/paths.h"
#include "aerie/nn/dtype_policy.h"

namespace aerie::parity {
namespace {

bool wants_cuda() {
  const char* wanted = std::getenv("AERIE_TEST_DEVICE");
  return wanted != nullptr && std::string(wanted) == "cuda";
}

// Loading the library registers the backend. It must happen before the first tensor: torch asks for
// the backend once and remembers that there was none.
const bool kCudaLoaded =
    wants_cuda() && dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;

// Reads keys out of a JSON object and remembers which were used.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) { used_.insert("_target_"); }
  template <typename T>
  void get(const char* key, T& out) {
    used_.insert(key);
    if (json_.contains(key) && !json_.at(key).is_null()) out = json_.at(key).get<T>();
  }
  template <typename T>
  void get(const char* key, std::optional<T>& out) {
    used_.insert(key);
    if (!json_.contains(key)) return;
    if (json_.at(key).is_null()) {
      out.reset();
    } else {
      out = json_.at(key).get<T>();
    }
  }
  template <typename E>
  void pick(const char* key, E& out, const std::vector<std::pair<std::string, E>>& names) {
    used_.insert(key);
    if (!json_.contains(key) || json_.at(key).is_null()) return;
    for (const auto& [name, value] : names) {
      if (json_.at(key) == name) {
        out = value;
        return;
      }
    }
    throw std::runtime_error("fixture key " + std::string(key) + " has value " +
                             json_.at(key).dump());
  }
  const Json* raw(const char* key) {
    used_.insert(key);
    return json_.contains(key) && !json_.at(key).is_null() ? &json_.at(key) : nullptr;
  }
  bool is_null(const char* key) const { return json_.contains(key) && json_.at(key).is_null(); }
  void finish() const {
    for (const auto& [key, value] : json_.items())
      if (!used_.count(key)) throw std::runtime_error("fixture key " + key + " is not understood");
  }

 private:
  const Json& json_;
  std::set<std::string> used_;
};

}  // namespace

std::string data_path(const std::string& name) {
  return test_data("/") + name;
}

at::Device test_device() {
  if (!wants_cuda()) return at::kCPU;
  if (!kCudaLoaded) throw std::runtime_error("libtorch_cuda.so cannot be loaded");
  nn::set_tf32(config::Tf32::kNone);
  return at::Device(at::kCUDA, 0);
}

void Fixture::load_weights(nn::ParameterRegistry& registry, const std::string& prefix) const {
  at::NoGradGuard no_grad;
  std::set<std::string> wanted;
  for (const nn::ParamInfo& info : registry.entries()) wanted.insert(info.name);
  for (const std::string& name : names(prefix)) {
    EXPECT_EQ(wanted.erase(name), 1u) << "the model has no " << name;
    if (registry.find(name) < 0) continue;
    const at::Tensor value = get(prefix + name);
    EXPECT_EQ(value.sizes(), registry[name].sizes()) << name;
    registry[name].copy_(value);
  }
  for (const std::string& name : wanted) ADD_FAILURE() << "the fixture has no " << name;
}

config::EncoderConfig encoder_config(const Json& json) {
  using namespace config;  // NOLINT: a table of enumerators
  EncoderConfig c;
  Reader r(json);
  r.get("feat_in", c.feat_in);
  r.get("feat_out", c.feat_out);
  r.get("n_layers", c.n_layers);
  r.get("d_model", c.d_model);
  r.pick<Subsampling>("subsampling", c.subsampling,
                      {{"dw_striding", Subsampling::kDwStriding},
                       {"striding", Subsampling::kStriding},
                       {"stacking", Subsampling::kStacking},
                       {"stacking_norm", Subsampling::kStackingNorm}});
  r.get("subsampling_factor", c.subsampling_factor);
  if (r.is_null("subsampling")) c.subsampling_factor = 1;
  r.get("subsampling_conv_channels", c.subsampling_conv_channels);
  r.get("subsampling_conv_chunking_factor", c.subsampling_conv_chunking_factor);
  r.get("ff_expansion_factor", c.ff_expansion_factor);
  r.pick<SelfAttentionModel>("self_attention_model", c.self_attention_model,
                             {{"rel_pos", SelfAttentionModel::kRelPos},
                              {"abs_pos", SelfAttentionModel::kAbsPos},
                              {"rel_pos_local_attn", SelfAttentionModel::kRelPosLocalAttn}});
  r.get("n_heads", c.n_heads);
  if (const Json* context = r.raw("att_context_size")) {
    c.att_context_size.clear();
    if (context->at(0).is_array()) {
      for (const Json& pair : *context)
        c.att_context_size.push_back({pair[0].get<int64_t>(), pair[1].get<int64_t>()});
    } else {
      c.att_context_size.push_back({context->at(0).get<int64_t>(), context->at(1).get<int64_t>()});
    }
  }
  r.get("att_context_probs", c.att_context_probs);
  r.pick<AttContextStyle>("att_context_style", c.att_context_style,
                          {{"regular", AttContextStyle::kRegular},
                           {"chunked_limited", AttContextStyle::kChunkedLimited}});
  r.get("xscaling", c.xscaling);
  r.get("untie_biases", c.untie_biases);
  r.get("pos_emb_max_len", c.pos_emb_max_len);
  r.get("conv_kernel_size", c.conv_kernel_size);
  if (const Json* norm = r.raw("conv_norm_type")) {
    const std::string name = norm->get<std::string>();
    if (name.rfind("group_norm", 0) == 0) {
      c.conv_norm_type = ConvNorm::kGroupNorm;
      c.conv_norm_groups = std::stoll(name.substr(10));
    } else {
      r.pick<ConvNorm>("conv_norm_type", c.conv_norm_type,
                       {{"batch_norm", ConvNorm::kBatchNorm},
                        {"layer_norm", ConvNorm::kLayerNorm},
                        {"instance_norm", ConvNorm::kInstanceNorm},
                        {"fused_batch_norm", ConvNorm::kFusedBatchNorm}});
    }
  }
  if (const Json* context = r.raw("conv_context_size")) {
    if (context->is_string()) {
      c.conv_context_size = std::array<int64_t, 2>{c.conv_kernel_size - 1, 0};
    } else {
      c.conv_context_size =
          std::array<int64_t, 2>{context->at(0).get<int64_t>(), context->at(1).get<int64_t>()};
    }
  }
  r.get("use_bias", c.use_bias);
  r.get("dropout", c.dropout);
  r.get("dropout_pre_encoder", c.dropout_pre_encoder);
  r.get("dropout_emb", c.dropout_emb);
  r.get("dropout_att", c.dropout_att);
  r.get("stochastic_depth_drop_prob", c.stochastic_depth_drop_prob);
  r.pick<StochasticDepthMode>(
      "stochastic_depth_mode", c.stochastic_depth_mode,
      {{"linear", StochasticDepthMode::kLinear}, {"uniform", StochasticDepthMode::kUniform}});
  r.get("stochastic_depth_start_layer", c.stochastic_depth_start_layer);
  r.get("global_tokens", c.global_tokens);
  r.get("global_tokens_spacing", c.global_tokens_spacing);
  r.get("global_attn_separate", c.global_attn_separate);
  r.get("use_pytorch_sdpa", c.use_pytorch_sdpa);
  r.finish();
  return c;
}

config::PreprocessorConfig preprocessor_config(const Json& json) {
  config::PreprocessorConfig c;
  Reader r(json);
  r.get("sample_rate", c.sample_rate);
  r.get("window_size", c.window_size);
  r.get("window_stride", c.window_stride);
  r.get("n_window_size", c.n_window_size);
  r.get("n_window_stride", c.n_window_stride);
  r.get("window", c.window);
  r.get("n_fft", c.n_fft);
  r.get("preemph", c.preemph);
  r.get("features", c.features);
  r.get("lowfreq", c.lowfreq);
  r.get("highfreq", c.highfreq);
  if (r.is_null("mel_norm")) c.mel_norm.clear();
  if (const Json* norm = r.raw("mel_norm"))
    c.mel_norm =
        norm->is_string() ? norm->get<std::string>() : std::to_string(norm->get<int64_t>());
  r.get("mag_power", c.mag_power);
  r.get("log", c.log);
  r.pick<bool>("log_zero_guard_type", c.log_zero_guard_clamp, {{"add", false}, {"clamp", true}});
  if (const Json* guard = r.raw("log_zero_guard_value")) {
    if (*guard == "tiny") {
      c.log_zero_guard_value = std::numeric_limits<float>::min();
    } else if (*guard == "eps") {
      c.log_zero_guard_value = std::numeric_limits<float>::epsilon();
    } else {
      c.log_zero_guard_value = guard->get<double>();
    }
  }
  if (r.is_null("normalize")) c.normalize = config::FeatureNormalize::kNone;
  if (const Json* normalize = r.raw("normalize")) {
    if (normalize->is_object()) {
      c.normalize = config::FeatureNormalize::kFixed;
      c.fixed_mean = normalize->at("fixed_mean").get<std::vector<double>>();
      c.fixed_std = normalize->at("fixed_std").get<std::vector<double>>();
    } else {
      c.normalize = *normalize == "per_feature"    ? config::FeatureNormalize::kPerFeature
                    : *normalize == "all_features" ? config::FeatureNormalize::kAllFeatures
                                                   : config::FeatureNormalize::kNone;
    }
  }
  r.get("dither", c.dither);
  r.get("frame_splicing", c.frame_splicing);
  if (const Json* pad = r.raw("pad_to"))
    c.pad_to = *pad == "max" ? config::PreprocessorConfig::kPadToMax : pad->get<int64_t>();
  r.get("pad_value", c.pad_value);
  r.get("exact_pad", c.exact_pad);
  r.get("nb_augmentation_prob", c.nb_augmentation_prob);
  r.get("nb_max_freq", c.nb_max_freq);
  r.finish();
  return c;
}

config::MaskingConfig masking_config(const Json& json) {
  config::MaskingConfig c;
  Reader r(json);
  r.get("feat_in", c.feat_in);
  r.get("mask_prob", c.mask_prob);
  r.get("block_size", c.block_size);
  r.get("mask_value", c.mask_value);
  r.get("freeze", c.freeze);
  r.get("allow_overlap", c.allow_overlap);
  r.get("max_mask_ratio", c.max_mask_ratio);
  r.finish();
  return c;
}

config::QuantizerConfig quantizer_config(const Json& json) {
  config::QuantizerConfig c;
  Reader r(json);
  r.get("feat_in", c.feat_in);
  r.get("code_dim", c.code_dim);
  r.get("num_classes", c.num_classes);
  r.get("num_books", c.num_books);
  r.pick<config::QuantizerDistance>(
      "dist_fn", c.dist_fn,
      {{"l2", config::QuantizerDistance::kL2}, {"cosine", config::QuantizerDistance::kCosine}});
  (void)r.raw("time_ahead");  // a layout of the input, not of the result
  r.get("freeze", c.freeze);
  r.get("squeeze_single", c.squeeze_single);
  r.get("combine_time_steps", c.combine_time_steps);
  r.finish();
  return c;
}

config::DecoderConfig decoder_config(const Json& json) {
  config::DecoderConfig c;
  Reader r(json);
  r.get("feat_in", c.feat_in);
  r.get("num_classes", c.num_classes);
  r.get("num_decoders", c.num_decoders);
  r.get("use_bias", c.use_bias);
  r.get("squeeze_single", c.squeeze_single);
  r.finish();
  return c;
}

config::LossConfig loss_config(const Json& json) {
  config::LossConfig c;
  Reader r(json);
  r.get("combine_time_steps", c.combine_time_steps);
  r.get("mask_threshold", c.mask_threshold);
  r.get("num_decoders", c.num_decoders);
  r.get("squeeze_single", c.squeeze_single);
  r.finish();
  return c;
}

::testing::AssertionResult near(const at::Tensor& got, const at::Tensor& want, double rel,
                                double abs) {
  if (got.sizes() != want.sizes()) {
    return ::testing::AssertionFailure()
           << "shape " << got.sizes() << " instead of " << want.sizes();
  }
  if (want.numel() == 0) return ::testing::AssertionSuccess();
  const at::Tensor g = got.detach().to(at::kCPU, at::kDouble).flatten();
  const at::Tensor w = want.detach().to(at::kCPU, at::kDouble).flatten();
  if (!at::equal(g.isnan(), w.isnan()))
    return ::testing::AssertionFailure() << "NaN in different places";
  const at::Tensor excess = ((g - w).abs() - (abs + rel * w.abs())).nan_to_num(-1.0);
  if (excess.max().item<double>() <= 0.0) return ::testing::AssertionSuccess();
  const int64_t worst = excess.argmax().item<int64_t>();
  return ::testing::AssertionFailure()
         << "element " << worst << " is " << g[worst].item<double>() << " instead of "
         << w[worst].item<double>() << "; largest difference "
         << (g - w).abs().max().item<double>();
}

double deviation(const at::Tensor& got, const at::Tensor& want, double scale) {
  if (want.numel() == 0) return 0.0;
  const at::Tensor g = got.detach().to(at::kCPU, at::kDouble);
  const at::Tensor w = want.detach().to(at::kCPU, at::kDouble);
  const double size = std::max({w.abs().max().item<double>(), scale, 1e-30});
  return (g - w).abs().max().item<double>() / size;
}

std::vector<std::string> fixture_files(const std::string& prefix) {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(data_path("fixtures"))) {
    const std::string name = entry.path().filename().string();
    if (name.rfind(prefix, 0) == 0 && name.ends_with(".safetensors")) out.push_back(name);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace aerie::parity
