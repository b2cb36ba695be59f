// The keys of `model:` except data, encoder and optimizer.
#include "aerie/config/schema/field_keys.h"
#include "aerie/models/nest/config/nest_keys.h"

namespace aerie::config {
namespace {

// For these NeMo's null is a name of its own.
void read_window(const NodeReader& node, std::string_view key, PreprocessorConfig& out) {
  if (const Value* value = node.find(key); value && value->is_null()) out.window = "none";
  node.read(key, out.window);
}
void read_mel_norm(const NodeReader& node, std::string_view key, PreprocessorConfig& out) {
  if (const Value* value = node.find(key); value && value->is_null()) out.mel_norm = "none";
  node.read(key, out.mel_norm);
}

// A number, or the name of one of float32's.
void read_guard(const NodeReader& node, std::string_view key, PreprocessorConfig& out) {
  if (const Value* guard = node.find(key); guard && guard->is_string())
    node.read_enum(key, out.log_zero_guard_value,
                   {{"tiny", 1.1754943508222875e-38}, {"eps", 1.1920928955078125e-07}});
  else
    node.read(key, out.log_zero_guard_value);
}

// A name, a mapping of fixed values, or null and false for none.
void read_normalize(const NodeReader& node, std::string_view key, PreprocessorConfig& out) {
  const Value* normalize = node.find(key);
  if (normalize == nullptr) return;
  if (normalize->is_map()) {
    out.normalize = FeatureNormalize::kFixed;
    node.child(key).read("fixed_mean", out.fixed_mean);
    node.child(key).read("fixed_std", out.fixed_std);
  } else if (normalize->is_string()) {
    node.read_enum(key, out.normalize,
                   {{"per_feature", FeatureNormalize::kPerFeature},
                    {"all_features", FeatureNormalize::kAllFeatures},
                    {"none", FeatureNormalize::kNone},
                    {"NA", FeatureNormalize::kNone}});
  } else {
    out.normalize = FeatureNormalize::kNone;
  }
}

void read_pad_to(const NodeReader& node, std::string_view key, PreprocessorConfig& out) {
  if (const Value* pad = node.find(key); pad && pad->is_string())
    out.pad_to = PreprocessorConfig::kPadToMax;
  else
    node.read(key, out.pad_to);
}

void read_time_width(const NodeReader& node, std::string_view key, SpecAugmentConfig& out) {
  node.read(key, out.time_width);
  const Value* width = node.find(key);
  out.time_width_is_fraction = width != nullptr && width->is_float();
}

void read_init_mode(const NodeReader& node, std::string_view key, DecoderConfig& out) {
  if (const Value* init = node.find(key); init && init->is_null())
    out.init_mode = DecoderInit::kDefault;
  node.read_enum(key, out.init_mode,
                 {{"xavier_uniform", DecoderInit::kXavierUniform},
                  {"xavier_normal", DecoderInit::kXavierNormal},
                  {"kaiming_uniform", DecoderInit::kKaimingUniform},
                  {"kaiming_normal", DecoderInit::kKaimingNormal}});
}

const FieldKeys<PreprocessorConfig>& preprocessor_keys() {
  using T = PreprocessorConfig;
  static const FieldKeys<T> table("model.preprocessor", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
             works("Class that turns audio into log-mel features; one of NeMo's spellings."));
    keys.key("sample_rate", &T::sample_rate,
             works("Sample rate of the audio that comes in, in Hz.").range("[1,1e9]"));
    keys.key("window_size", &T::window_size,
             works("Seconds. Either this or n_window_size.").range("(0,1e6]"));
    keys.key("window_stride", &T::window_stride,
             works("Seconds. Either this or n_window_stride.").range("(0,1e6]"));
    keys.key("n_window_size", &T::n_window_size,
             works("Length of an analysis window in samples; stands in for window_size.")
                 .range("[1,1e9]"));
    keys.key("n_window_stride", &T::n_window_stride,
             works("Samples between two frames; stands in for window_stride.").range("[1,1e9]"));
    keys.row("window", "str|null", "hann",
             works("Shape of the analysis window (symmetric).")
                 .choices("hann|hamming|blackman|bartlett|none"),
             read_window);
    keys.row("normalize", "str|map|bool|null", "per_feature",
             works("Per bin, over all bins, by fixed values (`{fixed_mean: [...], fixed_std: "
                   "[...]}`), or not.")
                 .choices("per_feature|all_features|none|NA"),
             read_normalize);
    keys.row("normalize.fixed_mean", "list[float]", "",
             works("Mean to subtract, one for every feature."));
    keys.row("normalize.fixed_std", "list[float]", "",
             works("Deviation to divide by, one for every feature.").range(">0"));
    keys.key("n_fft", &T::n_fft,
             works("FFT size; null: the next power of two from the window.").range("[1,1e9]"));
    keys.key("preemph", &T::preemph,
             works("Coefficient of the pre-emphasis filter x[t] - c x[t-1]; null: none."));
    keys.key("features", &T::features,
             works("Mel bins of a frame: the width of what the encoder sees.").range("[1,1e9]"));
    keys.key("lowfreq", &T::lowfreq,
             works("Lower end of the mel filters, in Hz.").range(">=0").whole());
    keys.key("highfreq", &T::highfreq,
             works("Upper end of the mel filters, in Hz; null: half the sample rate.").range(">0"));
    keys.row("mel_norm", "str|null", "slaney",
             works("Area normalisation of the mel filters.").choices("slaney|none"), read_mel_norm);
    keys.key("log", &T::log, works("Logarithm of the mel energies."));
    keys.choice("log_zero_guard_type", &T::log_zero_guard_clamp, {{"add", false}, {"clamp", true}},
                works("How zeros are kept from the logarithm."));
    keys.row("log_zero_guard_value", "float|str", "5.9604644775390625e-08",
             works("The guard; `tiny` and `eps` are float32's.").range(">0").choices("tiny|eps"),
             read_guard);
    keys.key("dither", &T::dither, works("Noise added to the waveform in training.").range(">=0"));
    keys.row("pad_to", "int|str", "16",
             works("Frames are padded to a multiple of this; 0: not; `max`: to 16.7 s.")
                 .range("[0,1e9]")
                 .choices("max"),
             read_pad_to);
    keys.key("frame_splicing", &T::frame_splicing,
             works("Neighbouring frames stacked into one.").range("[1,1e9]"));
    keys.key("exact_pad", &T::exact_pad,
             works("Pad the waveform so that there are exactly floor(n/hop) frames."));
    keys.key("pad_value", &T::pad_value, works("Value of the features in padding frames.").whole());
    keys.key("mag_power", &T::mag_power,
             works("Exponent of the spectrum's magnitude; 2 is power.").range(">0"));
    keys.key("nb_augmentation_prob", &T::nb_augmentation_prob,
             works("Training: share of utterances that lose the bins above nb_max_freq.")
                 .range("[0,1]")
                 .whole());
    keys.key(
        "nb_max_freq", &T::nb_max_freq,
        works("Bins above this frequency (Hz) are cut by nb_augmentation_prob.").range("[1,1e9]"));
    keys.row(
        "use_torchaudio", "bool", "false",
        refused("The other featurizer.",
                "its frame count differs by one and would shift every target; leave it false"));
    keys.row("rng", "any", "null", no_effect("Never set from a config."));
    keys.row("stft_conv", "bool", "false", no_effect("Deprecated in NeMo."));
    keys.row("stft_exact_pad", "bool", "false", no_effect("Deprecated in NeMo."));
  });
  return table;
}

const FieldKeys<SpecAugmentConfig>& spec_augment_keys() {
  using T = SpecAugmentConfig;
  static const FieldKeys<T> table("model.spec_augment", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.modules.SpectrogramAugmentation",
             no_effect("The class."));
    keys.key("freq_masks", &T::freq_masks, no_effect("Unused.").range("[0,1e9]"));
    keys.key("time_masks", &T::time_masks, no_effect("Unused.").range("[0,1e9]"));
    keys.key("freq_width", &T::freq_width, no_effect("Unused.").range("[0,1e9]"));
    keys.row("time_width", "float", "10", no_effect("Unused.").range(">=0"), read_time_width);
    keys.row("rect_masks", "int", "0", no_effect("Unused.").range("[0,1e9]"));
    keys.row("rect_time", "int", "5", no_effect("Unused.").range("[0,1e9]"));
    keys.row("rect_freq", "int", "20", no_effect("Unused.").range("[0,1e9]"));
    keys.row("rng", "any", "null", no_effect("Unused."));
    keys.key("mask_value", &T::mask_value, no_effect("Unused.").whole());
    keys.row("use_vectorized_spec_augment", "bool", "true", no_effect("Unused."));
    keys.row("use_numba_spec_augment", "bool", "false", no_effect("Unused."));
  });
  return table;
}

const FieldKeys<MaskingConfig>& masking_keys() {
  using T = MaskingConfig;
  static const FieldKeys<T> table("model.masking", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.modules.RandomBlockMasking",
             works("Class that masks blocks of frames; one of NeMo's spellings."));
    keys.key(
        "feat_in", &T::feat_in,
        works("Features per frame, as model.preprocessor.features.").range("[1,1e9]").required());
    keys.key("mask_prob", &T::mask_prob,
             works("Probability that a block starts at a frame (allow_overlap), else the share of "
                   "frames to "
                   "mask.")
                 .range("[0,1]"));
    keys.key("block_size", &T::block_size,
             works("Length of a masked block in feature frames.").range("[1,1e9]"));
    keys.key("mask_value", &T::mask_value,
             works("What masked frames become; null: a random vector, drawn once."));
    keys.key("freeze", &T::freeze, works("Keep that vector as it is."));
    keys.key("allow_overlap", &T::allow_overlap,
             works("Masked blocks may overlap; false: they are placed apart."));
    keys.key("max_mask_ratio", &T::max_mask_ratio,
             works("Clips for which a block is longer than this share get the short-clip rule.")
                 .range("(0,1]"));
  });
  return table;
}

const FieldKeys<QuantizerConfig>& quantizer_keys() {
  using T = QuantizerConfig;
  static const FieldKeys<T> table("model.quantizer", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.modules.RandomProjectionVectorQuantizer",
             works("Class that makes the training targets; one of NeMo's spellings."));
    keys.key(
        "feat_in", &T::feat_in,
        works("Features per frame, as model.preprocessor.features.").range("[1,1e9]").required());
    keys.key("code_dim", &T::code_dim,
             works("Width of a code vector, to which frames are projected.")
                 .range("[1,1e9]")
                 .required());
    keys.key("num_classes", &T::num_classes,
             works("Codes in each codebook: the classes the model predicts.")
                 .range("[1,1e9]")
                 .required());
    keys.key("num_books", &T::num_books,
             works("Number of codebooks, each with its own targets and loss.")
                 .range("[1,1e9]")
                 .required());
    keys.choice("dist_fn", &T::dist_fn,
                {{"l2", QuantizerDistance::kL2}, {"cosine", QuantizerDistance::kCosine}},
                works("Distance; both pick the same code, as all vectors have unit length."));
    keys.row("time_ahead", "bool", "false",
             refused("Whether the quantizer's input has time before features.",
                     "the model hands over features with time last, in NeMo too"));
    keys.key("freeze", &T::freeze,
             works("Keep the random projection and the codes as they were drawn."));
    keys.key("squeeze_single", &T::squeeze_single,
             works("Drop the codebook axis when there is one."));
    keys.key("combine_time_steps", &T::combine_time_steps,
             works("Frames stacked into one target; the subsampling factor, 1 for post_conv.")
                 .range("[1,1e9]"));
  });
  return table;
}

const FieldKeys<DecoderConfig>& decoder_keys() {
  using T = DecoderConfig;
  static const FieldKeys<T> table("model.decoder", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.modules.MultiSoftmaxDecoder",
             works("Class that predicts the codes; one of NeMo's spellings."));
    keys.key("feat_in", &T::feat_in,
             works("Width of the encoder's output.").range("[1,1e9]").required());
    keys.key("num_classes", &T::num_classes,
             works("Codes in each codebook, as model.quantizer.num_classes.")
                 .range("[1,1e9]")
                 .required());
    keys.key("num_decoders", &T::num_decoders,
             works("Number of codebooks, each with its own output layer.").range("[1,1e9]"));
    keys.row("init_mode", "str|null", "xavier_uniform",
             works("Distribution of the initial weights; null: torch's.")
                 .choices("xavier_uniform|xavier_normal|kaiming_uniform|kaiming_normal"),
             read_init_mode);
    keys.key("use_bias", &T::use_bias, works("Whether the output layers have a bias."));
    keys.key("squeeze_single", &T::squeeze_single,
             works("Drop the codebook axis when there is one."));
  });
  return table;
}

const FieldKeys<LossConfig>& loss_keys() {
  using T = LossConfig;
  static const FieldKeys<T> table("model.loss", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "nemo.collections.asr.losses.MultiMLMLoss",
             works("Class of the loss; one of NeMo's spellings."));
    keys.key("combine_time_steps", &T::combine_time_steps,
             works("Feature frames per encoder frame.").range("[1,1e9]"));
    keys.key("mask_threshold", &T::mask_threshold,
             works("An encoder frame counts when more than this share of its features is masked."));
    keys.key("num_decoders", &T::num_decoders,
             works("Number of codebooks the loss is averaged over.").range("[1,1e9]"));
    keys.key("squeeze_single", &T::squeeze_single,
             works("Drop the codebook axis when there is one."));
  });
  return table;
}

}  // namespace

const FieldKeys<ModelConfig>& model_fields() {
  using T = ModelConfig;
  static const FieldKeys<T> table("model", [](FieldKeys<T>& keys) {
    keys.key("sample_rate", &T::sample_rate,
             works("Hz. The data sets take it where they name none.").range("[1,1e9]"));
    keys.key("num_classes", &T::num_classes,
             works("Codes per codebook; quantizer and decoder read it.").range("[1,1e9]"));
    keys.key("num_books", &T::num_books,
             works("Codebooks, each with its own targets.").range("[1,1e9]"));
    keys.key("code_dim", &T::code_dim,
             works("Width of a code; the quantizer reads it.").range("[1,1e9]"));
    keys.key(
        "squeeze_single", &T::squeeze_single,
        works("Drop the codebook axis when there is one codebook; changes shapes, not numbers."));
    keys.choice("mask_position", &T::mask_position,
                {{"pre_conv", MaskPosition::kPreConv}, {"post_conv", MaskPosition::kPostConv}},
                works("Mask the features, or the output of the subsampling stack."));
    keys.row("target", "str|null", "null",
             no_effect("Class name that NeMo writes into saved configs."));
    keys.row("nemo_version", "str|null", "null",
             no_effect("Version that NeMo writes into saved configs."));
  });
  return table;
}

const FieldKeys<ModelConfig>& model_part_fields() {
  using T = ModelConfig;
  static const FieldKeys<T> table("model", [](FieldKeys<T>& keys) {
    keys.child("preprocessor", &T::preprocessor, preprocessor_keys());
    keys.row("spec_augment", "map|null", "",
             no_effect("NeMo demands the node for NEST and never applies it."));
    keys.child("spec_augment", &T::spec_augment, spec_augment_keys());
    keys.child("masking", &T::masking, masking_keys());
    keys.child("quantizer", &T::quantizer, quantizer_keys());
    keys.child("decoder", &T::decoder, decoder_keys());
    keys.child("loss", &T::loss, loss_keys());
  });
  return table;
}

void build_model_parts(const NodeReader& model, ModelConfig& out) {
  model_fields().read(model, out);
  // A window in samples replaces the default in seconds.
  const NodeReader preprocessor = model.child("preprocessor");
  if (preprocessor.given("n_window_size") && !preprocessor.given("window_size"))
    out.preprocessor.window_size.reset();
  if (preprocessor.given("n_window_stride") && !preprocessor.given("window_stride"))
    out.preprocessor.window_stride.reset();
  model_part_fields().read(model, out);
  encoder_fields().read(model.child("encoder"), out.encoder);
}

}  // namespace aerie::config
