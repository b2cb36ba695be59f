// The keys of `model.encoder` (ConformerEncoder).
#include <charconv>

#include "aerie/base/strings.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/models/nest/config/att_context.h"
#include "aerie/models/nest/config/nest_keys.h"

namespace aerie::config {
namespace {

constexpr std::string_view kReductionNote =
    "it shortens the encoder's output, and the targets would no longer line up with it";
constexpr std::string_view kRopeNote = "rotary positions belong to a later NeMo";

void read_att_context(const NodeReader& node, std::string_view key, EncoderConfig& out) {
  const Value* context = node.find(key);
  if (context == nullptr) return;
  auto parsed = parse_att_context(*context);
  if (parsed.ok())
    out.att_context_size = std::move(parsed).value();
  else
    node.fail(key, *context, parsed.status().message());
}

// group_norm8 carries its number of groups.
void read_conv_norm(const NodeReader& node, std::string_view key, EncoderConfig& out) {
  const Value* norm = node.find(key);
  if (norm != nullptr && norm->is_string() && starts_with(norm->as_string(), "group_norm")) {
    const std::string& text = norm->as_string();
    const char* const end = text.data() + text.size();
    const auto [stopped, failed] = std::from_chars(text.data() + 10, end, out.conv_norm_groups);
    if (failed != std::errc() || stopped != end) node.fail(key, *norm);
    out.conv_norm_type = ConvNorm::kGroupNorm;
    return;
  }
  node.read_enum(key, out.conv_norm_type,
                 {{"batch_norm", ConvNorm::kBatchNorm},
                  {"layer_norm", ConvNorm::kLayerNorm},
                  {"instance_norm", ConvNorm::kInstanceNorm},
                  {"fused_batch_norm", ConvNorm::kFusedBatchNorm}});
}

// "causal" needs the kernel, whose row stands before.
void read_conv_context(const NodeReader& node, std::string_view key, EncoderConfig& out) {
  if (const Value* context = node.find(key); context && context->is_string())
    out.conv_context_size = {out.conv_kernel_size - 1, 0};
  else
    node.read(key, out.conv_context_size);
}

}  // namespace

const FieldKeys<EncoderConfig>& encoder_fields() {
  using T = EncoderConfig;
  static const FieldKeys<T> table("model.encoder", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.modules.ConformerEncoder",
             works("Class of the encoder; one of NeMo's spellings."));
    keys.key(
        "feat_in", &T::feat_in,
        works("Features per frame, as model.preprocessor.features.").range("[1,1e9]").required());
    keys.key(
        "feat_out", &T::feat_out,
        works("Output width; above 0 and not d_model: one more projection.").range("[-1,1e9]"));
    keys.key("n_layers", &T::n_layers,
             works("Number of Conformer layers; time and memory grow in proportion.")
                 .range("[1,1e9]")
                 .required());
    keys.key("d_model", &T::d_model,
             works("Width of the encoder: numbers per frame between the layers and in the features "
                   "it gives "
                   "out.")
                 .range("[1,1e9]")
                 .required());
    keys.choice("subsampling", &T::subsampling,
                {{"dw_striding", Subsampling::kDwStriding},
                 {"striding", Subsampling::kStriding},
                 {"stacking", Subsampling::kStacking},
                 {"stacking_norm", Subsampling::kStackingNorm}},
                works("How frames are reduced in front of the layers.")
                    .refuses("vggnet|striding_conv1d|dw_striding_conv1d",
                             "it fails in NeMo 2.6 too; use dw_striding or striding"));
    keys.key("subsampling_factor", &T::subsampling_factor,
             works("Feature frames per encoder frame; a power of two for the striding kinds.")
                 .range("[1,1e9]"));
    keys.key("subsampling_conv_channels", &T::subsampling_conv_channels,
             works("Channels of the subsampling convolutions; -1: d_model.").range("[-1,1e9]"));
    keys.key("subsampling_conv_chunking_factor", &T::subsampling_conv_chunking_factor,
             no_effect("NeMo splits large inputs by it; memory is managed otherwise here.")
                 .range("[1,1e9]"));
    keys.row("causal_downsampling", "bool", "false",
             refused("Causal subsampling convolutions.",
                     "it gives one frame more than there are targets, so that the NEST loss cannot "
                     "be computed"));
    keys.row("reduction", "str|null", "null",
             refused("A second reduction inside the encoder.", kReductionNote)
                 .choices("pooling|striding"));
    keys.row("reduction_position", "int|null", "null",
             refused("Layer of the reduction.", kReductionNote));
    keys.row("reduction_factor", "int", "1",
             refused("Size of the reduction.", kReductionNote).range("[1,1e9]"));
    keys.key("ff_expansion_factor", &T::ff_expansion_factor,
             works("Inner width of the feed-forward modules, times d_model.").range("[1,1e9]"));
    keys.choice("self_attention_model", &T::self_attention_model,
                {{"rel_pos", SelfAttentionModel::kRelPos},
                 {"abs_pos", SelfAttentionModel::kAbsPos},
                 {"rel_pos_local_attn", SelfAttentionModel::kRelPosLocalAttn}},
                works("Kind of attention: relative positions, absolute positions, or relative ones "
                      "in a local "
                      "window.")
                    .refuses("rope", kRopeNote));
    keys.key(
        "n_heads", &T::n_heads,
        works(
            "Attention heads; d_model is a multiple of it. The fast engine takes heads (d_model / "
            "n_heads) of any multiple of 4 up to 128; 64 and 128 are fastest.")
            .range("[1,1e9]"));
    keys.row("att_context_size", "list[int]|list[list[int]]|null", "null",
             works("[left, right] frames of attention, -1: unlimited; or a list of such pairs, one "
                   "of which is "
                   "drawn per training step.")
                 .range("[-1,1e9]"),
             read_att_context);
    keys.key("att_context_probs", &T::att_context_probs,
             works("Probability of each pair; null: equal.").range("[0,1]").absent_is_null());
    keys.choice("att_context_style", &T::att_context_style,
                {{"regular", AttContextStyle::kRegular},
                 {"chunked_limited", AttContextStyle::kChunkedLimited}},
                works("A window around each frame, or chunks.")
                    .refuses("chunked_limited_with_rc", "it belongs to a later NeMo"));
    keys.key("xscaling", &T::xscaling, works("Scale the input by sqrt(d_model)."));
    keys.key("untie_biases", &T::untie_biases, works("Own position biases in every layer."));
    keys.key("pos_emb_max_len", &T::pos_emb_max_len,
             no_effect("First size of NeMo's position table, which grows; ours fits the batch.")
                 .range("[1,1e9]"));
    keys.key("conv_kernel_size", &T::conv_kernel_size,
             works("Kernel of the depthwise convolution; odd.").range("[1,1e9]"));
    keys.row("conv_norm_type", "str", "batch_norm",
             works("Norm of the convolution module; `group_norm8` has 8 groups; `fused_batch_norm` "
                   "is weight and "
                   "bias alone, what NeMo makes of a frozen BatchNorm.")
                 .choices("batch_norm|layer_norm|instance_norm|group_norm*|fused_batch_norm"),
             read_conv_norm);
    keys.row(
        "conv_context_size", "str|list[int]|null", "null",
        works(
            "[left, right] of the depthwise convolution with left + right + 1 = conv_kernel_size, "
            "`causal`, or null: centred.")
            .range("[0,1e9]")
            .choices("causal"),
        read_conv_context);
    keys.row("conv_context_style", "str", "regular",
             works("Later NeMo: how chunks see the convolution.")
                 .choices("regular|dcc")
                 .refuses("dcc", "it belongs to a later NeMo"));
    keys.key("use_bias", &T::use_bias,
             works("Biases of the layers' linear maps and convolutions."));
    keys.key("dropout", &T::dropout,
             works("Share of activations dropped inside the layers.").range("[0,1)"));
    keys.key("dropout_pre_encoder", &T::dropout_pre_encoder,
             works("Share of activations dropped between subsampling and the first layer.")
                 .range("[0,1)"));
    keys.key("dropout_emb", &T::dropout_emb,
             works("Share of the position vectors' entries dropped.").range("[0,1)"));
    keys.key("dropout_att", &T::dropout_att,
             works("Share of the attention weights dropped.").range("[0,1)"));
    keys.key("stochastic_depth_drop_prob", &T::stochastic_depth_drop_prob,
             works("Probability that the last layer is skipped in training.").range("[0,1)"));
    keys.choice(
        "stochastic_depth_mode", &T::stochastic_depth_mode,
        {{"linear", StochasticDepthMode::kLinear}, {"uniform", StochasticDepthMode::kUniform}},
        works("How the probability grows with depth."));
    keys.key("stochastic_depth_start_layer", &T::stochastic_depth_start_layer,
             works("Layers up to this one are never skipped.").range("[1,1e9]"));
    keys.key("global_tokens", &T::global_tokens,
             works("Local attention: frames that see and are seen by all.").range("[0,1e9]"));
    keys.key("global_tokens_spacing", &T::global_tokens_spacing,
             works("Frames from one global frame to the next.").range("[1,1e9]"));
    keys.key("global_attn_separate", &T::global_attn_separate,
             works("Own projections for global frames."));
    keys.key("use_pytorch_sdpa", &T::use_pytorch_sdpa,
             no_effect("Another way to compute the same attention."));
    keys.row("use_pytorch_sdpa_backends", "any", "null", no_effect("Belongs to use_pytorch_sdpa."));
    keys.row("sync_max_audio_length", "bool", "true",
             no_effect("Devices need not agree on the longest batch: positions are made for any "
                       "length."));
    keys.row("rope_base", "float", "10000", refused("Later NeMo.", kRopeNote).range(">0"));
    keys.row("rotary_fraction", "float", "1.0", refused("Later NeMo.", kRopeNote).range("(0,1]"));
  });
  return table;
}

}  // namespace aerie::config
