// What a Conformer encoder is built from. Field names are NeMo's keys; member initialisers are
// NeMo's class defaults, std::optional stands where NeMo has null.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace aerie::config {

enum class Subsampling { kDwStriding, kStriding, kStacking, kStackingNorm };
enum class SelfAttentionModel { kRelPos, kAbsPos, kRelPosLocalAttn };
enum class AttContextStyle { kRegular, kChunkedLimited };
enum class ConvNorm { kBatchNorm, kLayerNorm, kInstanceNorm, kGroupNorm, kFusedBatchNorm };
enum class StochasticDepthMode { kLinear, kUniform };

// ConformerEncoder. feat_in, n_layers and d_model have no default in NeMo; those here are NEST-L's.
struct EncoderConfig {
  int64_t feat_in = 80;
  int64_t feat_out = -1;
  int64_t n_layers = 17;
  int64_t d_model = 512;
  Subsampling subsampling = Subsampling::kStriding;
  int64_t subsampling_factor = 4;
  int64_t subsampling_conv_channels = -1;        // -1: d_model
  int64_t subsampling_conv_chunking_factor = 1;  // changes memory, not results
  int64_t ff_expansion_factor = 4;
  SelfAttentionModel self_attention_model = SelfAttentionModel::kRelPos;
  int64_t n_heads = 4;
  std::vector<std::array<int64_t, 2>> att_context_size = {
      {-1, -1}};                          // one or several [left, right]
  std::vector<double> att_context_probs;  // empty: uniform
  AttContextStyle att_context_style = AttContextStyle::kRegular;
  bool xscaling = true;
  bool untie_biases = true;
  int64_t pos_emb_max_len = 5000;
  int64_t conv_kernel_size = 31;
  ConvNorm conv_norm_type = ConvNorm::kBatchNorm;
  int64_t conv_norm_groups = 0;  // N of group_norm<N>
  // [left, right] with left + right + 1 = conv_kernel_size; null: centred. "causal" is translated.
  std::optional<std::array<int64_t, 2>> conv_context_size;
  bool use_bias = true;
  double dropout = 0.1;
  double dropout_pre_encoder = 0.1;
  double dropout_emb = 0.1;
  double dropout_att = 0.0;
  double stochastic_depth_drop_prob = 0.0;
  StochasticDepthMode stochastic_depth_mode = StochasticDepthMode::kLinear;
  int64_t stochastic_depth_start_layer = 1;
  int64_t global_tokens = 0;
  int64_t global_tokens_spacing = 1;
  bool global_attn_separate = false;
  bool use_pytorch_sdpa = false;

  int64_t conv_channels() const;
  std::array<int64_t, 2> conv_context() const;
  bool operator==(const EncoderConfig&) const = default;
};

}  // namespace aerie::config
