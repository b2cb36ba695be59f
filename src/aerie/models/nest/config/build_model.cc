#include <charconv>

#include "aerie/models/nest/config/att_context.h"
#include "aerie/models/nest/config/build_parts.h"

namespace aerie::config {
namespace {

void build_preprocessor(const NodeReader& node, PreprocessorConfig& out) {
  node.read("sample_rate", out.sample_rate);
  // A window in samples replaces the default in seconds.
  if (node.given("n_window_size") && !node.given("window_size")) out.window_size.reset();
  if (node.given("n_window_stride") && !node.given("window_stride")) out.window_stride.reset();
  node.read("window_size", out.window_size);
  node.read("window_stride", out.window_stride);
  node.read("n_window_size", out.n_window_size);
  node.read("n_window_stride", out.n_window_stride);
  if (const Value* window = node.find("window"); window != nullptr && window->is_null())
    out.window = "none";
  node.read("window", out.window);
  node.read("n_fft", out.n_fft);
  node.read("preemph", out.preemph);
  node.read("features", out.features);
  node.read("lowfreq", out.lowfreq);
  node.read("highfreq", out.highfreq);
  if (const Value* norm = node.find("mel_norm"); norm != nullptr && norm->is_null())
    out.mel_norm = "none";
  node.read("mel_norm", out.mel_norm);
  node.read("mag_power", out.mag_power);
  node.read("log", out.log);
  node.read_enum("log_zero_guard_type", out.log_zero_guard_clamp,
                 {{"add", false}, {"clamp", true}});
  if (const Value* guard = node.find("log_zero_guard_value"); guard && guard->is_string())
    node.read_enum("log_zero_guard_value", out.log_zero_guard_value,
                   {{"tiny", 1.1754943508222875e-38}, {"eps", 1.1920928955078125e-07}});
  else
    node.read("log_zero_guard_value", out.log_zero_guard_value);
  if (const Value* normalize = node.find("normalize")) {
    if (normalize->is_map()) {
      out.normalize = FeatureNormalize::kFixed;
      node.child("normalize").read("fixed_mean", out.fixed_mean);
      node.child("normalize").read("fixed_std", out.fixed_std);
    } else if (normalize->is_string()) {
      node.read_enum("normalize", out.normalize,
                     {{"per_feature", FeatureNormalize::kPerFeature},
                      {"all_features", FeatureNormalize::kAllFeatures},
                      {"none", FeatureNormalize::kNone},
                      {"NA", FeatureNormalize::kNone}});
    } else {
      out.normalize = FeatureNormalize::kNone;  // null, false
    }
  }
  node.read("dither", out.dither);
  node.read("frame_splicing", out.frame_splicing);
  if (const Value* pad = node.find("pad_to"); pad && pad->is_string())
    out.pad_to = PreprocessorConfig::kPadToMax;
  else
    node.read("pad_to", out.pad_to);
  node.read("pad_value", out.pad_value);
  node.read("exact_pad", out.exact_pad);
  node.read("nb_augmentation_prob", out.nb_augmentation_prob);
  node.read("nb_max_freq", out.nb_max_freq);
}

void build_encoder(const NodeReader& node, EncoderConfig& out) {
  node.read("feat_in", out.feat_in);
  node.read("feat_out", out.feat_out);
  node.read("n_layers", out.n_layers);
  node.read("d_model", out.d_model);
  node.read_enum("subsampling", out.subsampling,
                 {{"dw_striding", Subsampling::kDwStriding},
                  {"striding", Subsampling::kStriding},
                  {"stacking", Subsampling::kStacking},
                  {"stacking_norm", Subsampling::kStackingNorm}});
  node.read("subsampling_factor", out.subsampling_factor);
  node.read("subsampling_conv_channels", out.subsampling_conv_channels);
  node.read("subsampling_conv_chunking_factor", out.subsampling_conv_chunking_factor);
  node.read("ff_expansion_factor", out.ff_expansion_factor);
  node.read_enum("self_attention_model", out.self_attention_model,
                 {{"rel_pos", SelfAttentionModel::kRelPos},
                  {"abs_pos", SelfAttentionModel::kAbsPos},
                  {"rel_pos_local_attn", SelfAttentionModel::kRelPosLocalAttn}});
  node.read("n_heads", out.n_heads);
  if (const Value* context = node.find("att_context_size")) {
    auto parsed = parse_att_context(*context);
    if (parsed.ok())
      out.att_context_size = std::move(parsed).value();
    else
      node.fail("att_context_size", *context, parsed.status().message());
  }
  node.read("att_context_probs", out.att_context_probs);
  node.read_enum("att_context_style", out.att_context_style,
                 {{"regular", AttContextStyle::kRegular},
                  {"chunked_limited", AttContextStyle::kChunkedLimited}});
  node.read("xscaling", out.xscaling);
  node.read("untie_biases", out.untie_biases);
  node.read("pos_emb_max_len", out.pos_emb_max_len);
  node.read("conv_kernel_size", out.conv_kernel_size);
  const Value* norm = node.find("conv_norm_type");
  if (norm != nullptr && norm->is_string() && starts_with(norm->as_string(), "group_norm")) {
    const std::string& text = norm->as_string();
    const char* const end = text.data() + text.size();
    const auto [stopped, failed] = std::from_chars(text.data() + 10, end, out.conv_norm_groups);
    if (failed != std::errc() || stopped != end) node.fail("conv_norm_type", *norm);
    out.conv_norm_type = ConvNorm::kGroupNorm;
  } else {
    node.read_enum("conv_norm_type", out.conv_norm_type,
                   {{"batch_norm", ConvNorm::kBatchNorm},
                    {"layer_norm", ConvNorm::kLayerNorm},
                    {"instance_norm", ConvNorm::kInstanceNorm},
                    {"fused_batch_norm", ConvNorm::kFusedBatchNorm}});
  }
  if (const Value* context = node.find("conv_context_size"); context && context->is_string())
    out.conv_context_size = {out.conv_kernel_size - 1, 0};  // "causal"
  else
    node.read("conv_context_size", out.conv_context_size);
  node.read("use_bias", out.use_bias);
  node.read("dropout", out.dropout);
  node.read("dropout_pre_encoder", out.dropout_pre_encoder);
  node.read("dropout_emb", out.dropout_emb);
  node.read("dropout_att", out.dropout_att);
  node.read("stochastic_depth_drop_prob", out.stochastic_depth_drop_prob);
  node.read_enum(
      "stochastic_depth_mode", out.stochastic_depth_mode,
      {{"linear", StochasticDepthMode::kLinear}, {"uniform", StochasticDepthMode::kUniform}});
  node.read("stochastic_depth_start_layer", out.stochastic_depth_start_layer);
  node.read("global_tokens", out.global_tokens);
  node.read("global_tokens_spacing", out.global_tokens_spacing);
  node.read("global_attn_separate", out.global_attn_separate);
  node.read("use_pytorch_sdpa", out.use_pytorch_sdpa);
}

void build_small_parts(const NodeReader& model, ModelConfig& out) {
  const NodeReader augment = model.child("spec_augment");
  augment.read("freq_masks", out.spec_augment.freq_masks);
  augment.read("time_masks", out.spec_augment.time_masks);
  augment.read("freq_width", out.spec_augment.freq_width);
  augment.read("time_width", out.spec_augment.time_width);
  const Value* width = augment.find("time_width");
  out.spec_augment.time_width_is_fraction = width != nullptr && width->is_float();
  augment.read("mask_value", out.spec_augment.mask_value);

  const NodeReader masking = model.child("masking");
  masking.read("feat_in", out.masking.feat_in);
  masking.read("mask_prob", out.masking.mask_prob);
  masking.read("block_size", out.masking.block_size);
  masking.read("mask_value", out.masking.mask_value);
  masking.read("freeze", out.masking.freeze);
  masking.read("allow_overlap", out.masking.allow_overlap);
  masking.read("max_mask_ratio", out.masking.max_mask_ratio);

  const NodeReader quantizer = model.child("quantizer");
  quantizer.read("feat_in", out.quantizer.feat_in);
  quantizer.read("code_dim", out.quantizer.code_dim);
  quantizer.read("num_classes", out.quantizer.num_classes);
  quantizer.read("num_books", out.quantizer.num_books);
  quantizer.read_enum("dist_fn", out.quantizer.dist_fn,
                      {{"l2", QuantizerDistance::kL2}, {"cosine", QuantizerDistance::kCosine}});
  quantizer.read("freeze", out.quantizer.freeze);
  quantizer.read("squeeze_single", out.quantizer.squeeze_single);
  quantizer.read("combine_time_steps", out.quantizer.combine_time_steps);

  const NodeReader decoder = model.child("decoder");
  decoder.read("feat_in", out.decoder.feat_in);
  decoder.read("num_classes", out.decoder.num_classes);
  decoder.read("num_decoders", out.decoder.num_decoders);
  if (const Value* init = decoder.find("init_mode"); init != nullptr && init->is_null())
    out.decoder.init_mode = DecoderInit::kDefault;
  decoder.read_enum("init_mode", out.decoder.init_mode,
                    {{"xavier_uniform", DecoderInit::kXavierUniform},
                     {"xavier_normal", DecoderInit::kXavierNormal},
                     {"kaiming_uniform", DecoderInit::kKaimingUniform},
                     {"kaiming_normal", DecoderInit::kKaimingNormal}});
  decoder.read("use_bias", out.decoder.use_bias);
  decoder.read("squeeze_single", out.decoder.squeeze_single);

  const NodeReader loss = model.child("loss");
  loss.read("combine_time_steps", out.loss.combine_time_steps);
  loss.read("mask_threshold", out.loss.mask_threshold);
  loss.read("num_decoders", out.loss.num_decoders);
  loss.read("squeeze_single", out.loss.squeeze_single);
}

}  // namespace

void build_model_parts(const NodeReader& model, ModelConfig& out) {
  model.read("sample_rate", out.sample_rate);
  model.read("num_classes", out.num_classes);
  model.read("num_books", out.num_books);
  model.read("code_dim", out.code_dim);
  model.read("squeeze_single", out.squeeze_single);
  model.read_enum("mask_position", out.mask_position,
                  {{"pre_conv", MaskPosition::kPreConv}, {"post_conv", MaskPosition::kPostConv}});
  build_preprocessor(model.child("preprocessor"), out.preprocessor);
  build_encoder(model.child("encoder"), out.encoder);
  build_small_parts(model, out);
}

}  // namespace aerie::config
