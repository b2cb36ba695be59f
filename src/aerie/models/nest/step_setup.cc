#include "aerie/models/nest/step_setup.h"

#include <cmath>
#include <cstdlib>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "aerie/base/strings.h"
#include "aerie/kernels/features/log_mel.h"

namespace aerie::nest {

std::string not_covered_by_step(const config::ModelConfig& m, const config::NestAerieConfig& aerie,
                                config::Precision precision) {
  const config::PreprocessorConfig& p = m.preprocessor;
  const config::EncoderConfig& e = m.encoder;
  const auto refuse = [](bool is, const char* why) {
    return is ? std::string(why) : std::string();
  };
  const bool mixed = precision != config::Precision::k32;
  const int64_t per_head = e.n_heads > 0 ? e.d_model / e.n_heads : 0;
  for (const std::string& reason : {
           refuse(m.mask_position == config::MaskPosition::kPostConv,
                  "model.mask_position post_conv"),
           refuse(p.fft_size() != kernels::kFftSize, "model.preprocessor.n_fft other than 512"),
           refuse(p.win_length() > kernels::kFftSize, "a window longer than 512 samples"),
           refuse(p.window == "none", "model.preprocessor.window none"),
           refuse(p.mag_power != 2.0, "model.preprocessor.mag_power other than 2"),
           refuse(!p.log, "model.preprocessor.log false"),
           refuse(p.normalize != config::FeatureNormalize::kPerFeature,
                  "model.preprocessor.normalize other than per_feature"),
           refuse(p.frame_splicing != 1, "model.preprocessor.frame_splicing"),
           refuse(p.exact_pad, "model.preprocessor.exact_pad"),
           refuse(p.pad_to <= 0 || p.pad_to % 8 != 0,
                  "model.preprocessor.pad_to that is no multiple of 8"),
           refuse(p.nb_augmentation_prob > 0.0, "model.preprocessor.nb_augmentation_prob"),
           refuse(!m.masking.freeze, "model.masking.freeze false"),
           refuse(!m.quantizer.freeze, "model.quantizer.freeze false"),
           refuse(m.quantizer.code_dim % 4 != 0 || m.quantizer.code_dim > 64,
                  "model.quantizer.code_dim that is no multiple of 4 up to 64"),
           refuse(m.quantizer.combine_time_steps != 8 || m.loss.combine_time_steps != 8,
                  "combine_time_steps other than 8"),
           refuse(m.decoder.num_classes % 8 != 0, "classes that are no multiple of 8"),
           refuse(aerie.tokens_precision == config::TokensPrecision::kAutocast && mixed,
                  "aerie.tokens_precision autocast"),
           refuse(e.subsampling != config::Subsampling::kDwStriding || e.subsampling_factor != 8,
                  "subsampling other than dw_striding by 8"),
           refuse(e.self_attention_model != config::SelfAttentionModel::kRelPos,
                  "model.encoder.self_attention_model other than rel_pos"),
           refuse(e.att_context_size.size() != 1, "several attention contexts"),
           refuse(!e.untie_biases, "model.encoder.untie_biases false"),
           refuse(e.conv_norm_type != config::ConvNorm::kBatchNorm,
                  "model.encoder.conv_norm_type other than batch_norm"),
           refuse(e.conv_kernel_size != 5 && e.conv_kernel_size != 9,
                  "model.encoder.conv_kernel_size other than 5 and 9"),
           refuse(e.dropout_emb > 0.0, "model.encoder.dropout_emb"),
           refuse(e.stochastic_depth_drop_prob > 0.0, "model.encoder.stochastic_depth_drop_prob"),
           refuse(e.feat_out > 0 && e.feat_out != e.d_model, "model.encoder.feat_out"),
           refuse(e.d_model % 8 != 0, "model.encoder.d_model that is no multiple of 8"),
           refuse(e.conv_channels() % 8 != 0,
                  "model.encoder.subsampling_conv_channels that is no multiple of 8"),
           refuse(e.n_heads <= 0 || per_head * e.n_heads != e.d_model || per_head % 4 != 0,
                  "attention heads whose width is no multiple of 4"),
           refuse(per_head > 256, "attention heads wider than 256"),
           refuse(mixed && per_head > 128, "attention heads wider than 128 in mixed precision"),
       })
    if (!reason.empty()) return reason;
  return "";
}

kernels::Dtype step_dtype(config::Precision precision) {
  switch (precision) {
    case config::Precision::kBf16Mixed:
      return kernels::Dtype::kBF16;
    case config::Precision::k16Mixed:
      return kernels::Dtype::kF16;
    default:
      return kernels::Dtype::kF32;
  }
}

kernels::NestStepConfig step_config(const NestSettings& settings,
                                    const config::NestAerieConfig& aerie) {
  const config::ModelConfig& m = settings.model;
  const config::EncoderConfig& e = m.encoder;
  const config::PreprocessorConfig& p = m.preprocessor;
  kernels::NestStepConfig c;
  c.tf32 = aerie.tf32 == config::Tf32::kAll;
  c.bins = static_cast<int>(p.features);
  c.sub_channels = static_cast<int>(e.conv_channels());
  c.width = static_cast<int>(e.d_model);
  c.heads = static_cast<int>(e.n_heads);
  c.feed_forward = static_cast<int>(e.d_model * e.ff_expansion_factor);
  c.layers = static_cast<int>(e.n_layers);
  c.conv_kernel = static_cast<int>(e.conv_kernel_size);
  c.conv_left = static_cast<int>(e.conv_context()[0]);
  c.classes = static_cast<int>(m.decoder.num_classes);
  c.books = static_cast<int>(m.quantizer.num_books);
  c.code_dim = static_cast<int>(m.quantizer.code_dim);
  c.code_classes = static_cast<int>(m.quantizer.num_classes);
  c.dropout = e.dropout;
  c.dropout_pre_encoder = e.dropout_pre_encoder;
  c.dropout_att = e.dropout_att;
  c.xscaling = e.xscaling;
  c.left = static_cast<int>(e.att_context_size[0][0]);
  c.right = static_cast<int>(e.att_context_size[0][1]);
  if (e.att_context_style == config::AttContextStyle::kChunkedLimited && c.right >= 0) {
    c.chunk = c.right + 1;
    c.left_chunks = c.left >= 0 ? c.left / c.chunk : 10000;
  }
  c.statistics_of_valid_frames = aerie.batch_norm_frames == config::BatchNormFrames::kValid;
  c.dither = static_cast<float>(p.dither);
  c.preemphasis = static_cast<float>(p.preemph.value_or(0.0));
  c.hop = static_cast<int>(p.hop_length());
  c.window_length = static_cast<int>(p.win_length());
  c.log_guard = static_cast<float>(p.log_zero_guard_value);
  c.clamp_guard = p.log_zero_guard_clamp;
  c.pad_value = static_cast<float>(p.pad_value);
  c.masking.probability = m.masking.mask_prob;
  c.masking.block = static_cast<int>(settings.mask_block_size);
  c.masking.allow_overlap = m.masking.allow_overlap;
  c.masking.rules_of_2_6 = aerie.compat_nemo_2_6;
  c.masking.max_mask_ratio = m.masking.max_mask_ratio;
  c.masking.loss_threshold = static_cast<float>(m.loss.mask_threshold);
  c.nan_when_empty = aerie.empty_mask == config::EmptyMask::kNan;
  return c;
}

kernels::NestStepParams step_params(const NestModel& model, const FindParam& param) {
  const nn::ParameterRegistry& registry = model.parameters();
  const auto linear = [&](const std::string& name) {
    return kernels::NestLayerParams::Linear{param(name + ".weight"), param(name + ".bias")};
  };
  const auto norm = [&](const std::string& name) {
    return kernels::NestLayerParams::Norm{param(name + ".weight"), param(name + ".bias")};
  };
  const auto values = [&](const char* name) { return registry[name].const_data_ptr<float>(); };
  kernels::NestStepParams p;
  p.conv0 = linear("encoder.pre_encode.conv.0");
  p.conv2 = linear("encoder.pre_encode.conv.2");
  p.conv3 = linear("encoder.pre_encode.conv.3");
  p.conv5 = linear("encoder.pre_encode.conv.5");
  p.conv6 = linear("encoder.pre_encode.conv.6");
  p.pre_encode_out = linear("encoder.pre_encode.out");
  for (int64_t i = 0; i < model.settings().model.encoder.n_layers; ++i) {
    const std::string at = str_cat("encoder.layers.", i, ".");
    kernels::NestLayerParams l;
    l.norm_feed_forward1 = norm(at + "norm_feed_forward1");
    l.norm_self_att = norm(at + "norm_self_att");
    l.norm_conv = norm(at + "norm_conv");
    l.norm_feed_forward2 = norm(at + "norm_feed_forward2");
    l.norm_out = norm(at + "norm_out");
    l.feed_forward1 = {linear(at + "feed_forward1.linear1"), linear(at + "feed_forward1.linear2")};
    l.feed_forward2 = {linear(at + "feed_forward2.linear1"), linear(at + "feed_forward2.linear2")};
    l.q = linear(at + "self_attn.linear_q");
    l.k = linear(at + "self_attn.linear_k");
    l.v = linear(at + "self_attn.linear_v");
    l.out = linear(at + "self_attn.linear_out");
    l.pos = linear(at + "self_attn.linear_pos");
    l.bias_u = param(at + "self_attn.pos_bias_u");
    l.bias_v = param(at + "self_attn.pos_bias_v");
    l.pointwise1 = linear(at + "conv.pointwise_conv1");
    l.depthwise = linear(at + "conv.depthwise_conv");
    l.pointwise2 = linear(at + "conv.pointwise_conv2");
    l.batch_norm = norm(at + "conv.batch_norm");
    p.layers.push_back(l);
  }
  p.decoder = linear("decoder.decoder_layers.0");
  p.projection = values("quantizer.proj.weight");
  p.codebooks = registry["quantizer.codebooks"].const_data_ptr<double>();
  p.mask_embedding = values("mask_processor.mask_embedding");
  p.window = values("preprocessor.featurizer.window");
  p.filterbank = values("preprocessor.featurizer.fb");
  return p;
}

int step_part(const NestModel& model, const std::string& name) {
  const auto layers = static_cast<int>(model.settings().model.encoder.n_layers);
  constexpr std::string_view kLayer = "encoder.layers.", kDecoder = "decoder.";
  if (name.starts_with(kDecoder)) return kernels::nest_layer_part(layers);
  if (!name.starts_with(kLayer) || name.find(".linear_pos.") != std::string::npos) return 0;
  const int layer = std::atoi(name.c_str() + kLayer.size());
  const bool first_norm = name.find(".norm_feed_forward1.") != std::string::npos;
  return kernels::nest_layer_part(first_norm && layer > 0 ? layer - 1 : layer);
}

StepTables step_tables(const NestModel& model) {
  StepTables out;
  for (int k = 0; k < kernels::kFftSize; ++k) {
    const double angle = -2.0 * M_PI * k / kernels::kFftSize;
    out.twiddles.push_back(static_cast<float>(std::cos(angle)));
    out.twiddles.push_back(static_cast<float>(std::sin(angle)));
  }
  const at::Tensor filters =
      model.parameters()["preprocessor.featurizer.fb"].to(at::kCPU).contiguous();
  const int64_t bins = model.settings().model.preprocessor.features;
  const float* value = filters.const_data_ptr<float>();
  for (int64_t bin = 0; bin < bins; ++bin, value += kernels::kFftBins) {
    int32_t first = 0, last = kernels::kFftBins;
    while (first < last && value[first] == 0.0f) ++first;
    while (last > first && value[last - 1] == 0.0f) --last;
    out.bands.push_back(first);
    out.bands.push_back(last);
  }
  const at::Tensor tokens = model.quantizer().silent_tokens().to(at::kCPU).contiguous();
  for (int64_t i = 0; i < tokens.numel(); ++i)
    out.silent_tokens.push_back(static_cast<int32_t>(tokens.const_data_ptr<int64_t>()[i]));
  return out;
}

StepLengths step_lengths(const NestModel& model, int64_t samples) {
  StepLengths out;
  out.frames = static_cast<int32_t>(model.preprocessor().frames_of(samples));
  out.frames_quarter = kernels::strided(kernels::strided(out.frames));
  out.frames_encoder = kernels::strided(out.frames_quarter);
  return out;
}

int64_t step_frames(const NestModel& model, int64_t samples) {
  return (model.preprocessor().padded_frames_of(samples) + 7) / 8 * 8;
}

int64_t step_frames_counted(const NestModel& model, int64_t samples) {
  const int frames = static_cast<int>(model.preprocessor().padded_frames_of(samples));
  return kernels::strided(kernels::strided(kernels::strided(frames)));
}

}  // namespace aerie::nest
