// Rows of `model.encoder` (ConformerEncoder).
#include "aerie/models/nest/config/nest_keys.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;
constexpr KeyStatus kNoEffect = KeyStatus::kNoEffect;
constexpr KeyStatus kLater = KeyStatus::kLater;
constexpr KeyStatus kRefused = KeyStatus::kRefused;

constexpr std::string_view kReductionNote =
    "it shortens the encoder's output, and the targets would no longer line up with it";
constexpr std::string_view kRopeNote = "rotary positions belong to a later NeMo";

constexpr KeySpec kEncoder[] = {
    {"model.encoder._target_", "str", "nemo.collections.asr.modules.ConformerEncoder", "", "",
     kWorks, "Class of the encoder; one of NeMo's spellings."},
    {"model.encoder.feat_in", "int", kRequired, "[1,1e9]", "", kWorks,
     "Features per frame, as model.preprocessor.features."},
    {"model.encoder.feat_out", "int", "-1", "[-1,1e9]", "", kWorks,
     "Output width; above 0 and not d_model: one more projection."},
    {"model.encoder.n_layers", "int", kRequired, "[1,1e9]", "", kWorks,
     "Number of Conformer layers; time and memory grow in proportion."},
    {"model.encoder.d_model", "int", kRequired, "[1,1e9]", "", kWorks,
     "Width of the encoder: numbers per frame between the layers and in the features it gives "
     "out."},
    {"model.encoder.subsampling", "str", "striding", "",
     "dw_striding|striding|stacking|stacking_norm|vggnet|striding_conv1d|dw_striding_conv1d",
     kWorks, "How frames are reduced in front of the layers.",
     "it fails in NeMo 2.6 too; use dw_striding or striding",
     "vggnet|striding_conv1d|dw_striding_conv1d"},
    {"model.encoder.subsampling_factor", "int", "4", "[1,1e9]", "", kWorks,
     "Feature frames per encoder frame; a power of two for the striding kinds."},
    {"model.encoder.subsampling_conv_channels", "int", "-1", "[-1,1e9]", "", kWorks,
     "Channels of the subsampling convolutions; -1: d_model."},
    {"model.encoder.subsampling_conv_chunking_factor", "int", "1", "[1,1e9]", "", kNoEffect,
     "NeMo splits large inputs by it; memory is managed otherwise here."},
    {"model.encoder.causal_downsampling", "bool", "false", "", "", kRefused,
     "Causal subsampling convolutions.",
     "it gives one frame more than there are targets, so that the NEST loss cannot be computed"},
    {"model.encoder.reduction", "str|null", "null", "", "pooling|striding", kRefused,
     "A second reduction inside the encoder.", kReductionNote},
    {"model.encoder.reduction_position", "int|null", "null", "", "", kRefused,
     "Layer of the reduction.", kReductionNote},
    {"model.encoder.reduction_factor", "int", "1", "[1,1e9]", "", kRefused,
     "Size of the reduction.", kReductionNote},
    {"model.encoder.ff_expansion_factor", "int", "4", "[1,1e9]", "", kWorks,
     "Inner width of the feed-forward modules, times d_model."},
    {"model.encoder.self_attention_model", "str", "rel_pos", "",
     "rel_pos|abs_pos|rel_pos_local_attn|rope", kWorks,
     "Kind of attention: relative positions, absolute positions, or relative ones in a local "
     "window.",
     kRopeNote, "rope"},
    {"model.encoder.n_heads", "int", "4", "[1,1e9]", "", kWorks,
     "Attention heads; d_model is a multiple of it. The fast engine takes heads (d_model / "
     "n_heads) of any multiple of 4 up to 128; 64 and 128 are fastest."},
    {"model.encoder.att_context_size", "list[int]|list[list[int]]|null", "null", "[-1,1e9]", "",
     kWorks,
     "[left, right] frames of attention, -1: unlimited; or a list of such pairs, one of which is "
     "drawn per training step."},
    {"model.encoder.att_context_probs", "list[float]|null", "null", "[0,1]", "", kWorks,
     "Probability of each pair; null: equal."},
    {"model.encoder.att_context_style", "str", "regular", "",
     "regular|chunked_limited|chunked_limited_with_rc", kWorks,
     "A window around each frame, or chunks.", "it belongs to a later NeMo",
     "chunked_limited_with_rc"},
    {"model.encoder.xscaling", "bool", "true", "", "", kWorks, "Scale the input by sqrt(d_model)."},
    {"model.encoder.untie_biases", "bool", "true", "", "", kWorks,
     "Own position biases in every layer."},
    {"model.encoder.pos_emb_max_len", "int", "5000", "[1,1e9]", "", kNoEffect,
     "First size of NeMo's position table, which grows; ours fits the batch."},
    {"model.encoder.conv_kernel_size", "int", "31", "[1,1e9]", "", kWorks,
     "Kernel of the depthwise convolution; odd."},
    {"model.encoder.conv_norm_type", "str", "batch_norm", "",
     "batch_norm|layer_norm|instance_norm|group_norm*|fused_batch_norm", kWorks,
     "Norm of the convolution module; `group_norm8` has 8 groups; `fused_batch_norm` is weight and "
     "bias alone, what NeMo makes of a frozen BatchNorm."},
    {"model.encoder.conv_context_size", "str|list[int]|null", "null", "[0,1e9]", "causal", kWorks,
     "[left, right] of the depthwise convolution with left + right + 1 = conv_kernel_size, "
     "`causal`, or null: centred."},
    {"model.encoder.conv_context_style", "str", "regular", "", "regular|dcc", kWorks,
     "Later NeMo: how chunks see the convolution.", "it belongs to a later NeMo", "dcc"},
    {"model.encoder.use_bias", "bool", "true", "", "", kWorks,
     "Biases of the layers' linear maps and convolutions."},
    {"model.encoder.dropout", "float", "0.1", "[0,1)", "", kWorks,
     "Share of activations dropped inside the layers."},
    {"model.encoder.dropout_pre_encoder", "float", "0.1", "[0,1)", "", kWorks,
     "Share of activations dropped between subsampling and the first layer."},
    {"model.encoder.dropout_emb", "float", "0.1", "[0,1)", "", kWorks,
     "Share of the position vectors' entries dropped."},
    {"model.encoder.dropout_att", "float", "0.0", "[0,1)", "", kWorks,
     "Share of the attention weights dropped."},
    {"model.encoder.stochastic_depth_drop_prob", "float", "0.0", "[0,1)", "", kWorks,
     "Probability that the last layer is skipped in training."},
    {"model.encoder.stochastic_depth_mode", "str", "linear", "", "linear|uniform", kWorks,
     "How the probability grows with depth."},
    {"model.encoder.stochastic_depth_start_layer", "int", "1", "[1,1e9]", "", kWorks,
     "Layers up to this one are never skipped."},
    {"model.encoder.global_tokens", "int", "0", "[0,1e9]", "", kWorks,
     "Local attention: frames that see and are seen by all."},
    {"model.encoder.global_tokens_spacing", "int", "1", "[1,1e9]", "", kWorks,
     "Frames from one global frame to the next."},
    {"model.encoder.global_attn_separate", "bool", "false", "", "", kWorks,
     "Own projections for global frames."},
    {"model.encoder.use_pytorch_sdpa", "bool", "false", "", "", kNoEffect,
     "Another way to compute the same attention."},
    {"model.encoder.use_pytorch_sdpa_backends", "any", "null", "", "", kNoEffect,
     "Belongs to use_pytorch_sdpa."},
    {"model.encoder.sync_max_audio_length", "bool", "true", "", "", kLater,
     "Agreement on the longest batch between devices.", "several devices; ours needs no such step"},
    {"model.encoder.rope_base", "float", "10000", ">0", "", kRefused, "Later NeMo.", kRopeNote},
    {"model.encoder.rotary_fraction", "float", "1.0", "(0,1]", "", kRefused, "Later NeMo.",
     kRopeNote},
};

}  // namespace

std::span<const KeySpec> encoder_keys() {
  return kEncoder;
}

}  // namespace aerie::config
