#include "aerie/models/nest/nest_model.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/strings.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/nn/init.h"
#include "aerie/nn/torch_error.h"

namespace aerie::nest {
namespace {

// Far beyond any model; they keep products of sizes inside 64 bits.
constexpr int64_t kMaxClasses = 1 << 24;
constexpr int64_t kMaxBooks = 1024;
constexpr int64_t kMaxCodeDim = 1 << 16;
constexpr int64_t kMaxCombine = 1 << 12;
constexpr int64_t kMaxBlock = 1 << 24;

Status from_exception(const std::exception& error) {
  std::string text = nn::torch_message(error);
  if (nn::is_out_of_memory(error))
    return out_of_memory(std::move(text))
        .with_hint("use a smaller model or batch, or shorter clips");
  if (dynamic_cast<const std::length_error*>(&error) != nullptr)
    return invalid_argument(std::move(text)).with_hint("check the sizes in the model section");
  return internal_error(std::move(text));
}

// Names the state dict of post_conv repeats: NeMo keeps the wrapper {pre_encode, masking} both
// inside the encoder and as `pre_encoder`.
void add_wrapper_aliases(const nn::Scope& root, const nn::SubsamplingModule& pre_encode,
                         nn::ParamRef embedding) {
  const nn::Scope inner = root.child("pre_encoder.pre_encode");
  for (const auto& [name, ref] : pre_encode.parameters()) inner.alias(name, ref);
  root.child("pre_encoder.masking").alias("mask_embedding", embedding);
}

}  // namespace

Result<NestSettings> nest_settings(const config::ModelConfig& model) {
  NestSettings out;
  out.model = model;
  config::ModelConfig& m = out.model;
  auto bad = [](std::string text) {
    return invalid_argument(std::move(text)).with_context("model");
  };
  AERIE_RETURN_IF_ERROR(nn::check_encoder_config(m.encoder));
  const int64_t features = m.preprocessor.features * m.preprocessor.frame_splicing;
  const int64_t factor = m.encoder.subsampling_factor;
  const int64_t width = m.encoder.d_model;
  out.post_conv = m.mask_position == config::MaskPosition::kPostConv;
  out.mask_block_size = m.masking.block_size;

  if (out.post_conv) {
    // NeMo rewrites these keys in the constructor and stores them rewritten, so that restoring an
    // archive divides block_size a second time. An archive in that state is recognised here.
    const bool rewritten = m.quantizer.feat_in == width && m.masking.feat_in == width &&
                           m.loss.combine_time_steps == 1;
    if (!rewritten) out.mask_block_size = m.masking.block_size / factor;
    m.quantizer.feat_in = width;
    m.masking.feat_in = width;
    m.loss.combine_time_steps = 1;
    if (out.mask_block_size < 1)
      return bad(str_cat("masking.block_size ", m.masking.block_size,
                         " is less than one frame after subsampling by ", factor))
          .with_hint(str_cat("use at least ", factor));
    if (m.quantizer.combine_time_steps != 1) {
      out.warnings.push_back(str_cat("mask_position post_conv: quantizer.combine_time_steps ",
                                     m.quantizer.combine_time_steps,
                                     " set to 1, since tokens are made behind the subsampling"));
      m.quantizer.combine_time_steps = 1;
    }
  }

  if (m.encoder.feat_in != features)
    return bad(str_cat("encoder.feat_in ", m.encoder.feat_in, " but the preprocessor makes ",
                       features, " features"));
  if (!out.post_conv) {
    if (m.masking.feat_in != features)
      return bad(str_cat("masking.feat_in ", m.masking.feat_in, " but the preprocessor makes ",
                         features, " features"));
    if (m.quantizer.feat_in != features)
      return bad(str_cat("quantizer.feat_in ", m.quantizer.feat_in, " but the preprocessor makes ",
                         features, " features"));
    if (m.loss.combine_time_steps != factor)
      return bad(str_cat("loss.combine_time_steps ", m.loss.combine_time_steps,
                         " must equal encoder.subsampling_factor ", factor));
    if (m.quantizer.combine_time_steps != factor) {
      out.warnings.push_back(str_cat("quantizer.combine_time_steps ",
                                     m.quantizer.combine_time_steps,
                                     " differs from encoder.subsampling_factor ", factor,
                                     ": tokens and encoder frames are not aligned"));
    }
  }
  const int64_t encoder_out = m.encoder.feat_out > 0 ? m.encoder.feat_out : width;
  if (m.decoder.feat_in != encoder_out)
    return bad(
        str_cat("decoder.feat_in ", m.decoder.feat_in, " but the encoder gives ", encoder_out));
  if (m.decoder.num_decoders != m.quantizer.num_books ||
      m.loss.num_decoders != m.quantizer.num_books)
    return bad(str_cat("quantizer.num_books ", m.quantizer.num_books, ", decoder.num_decoders ",
                       m.decoder.num_decoders, " and loss.num_decoders ", m.loss.num_decoders,
                       " must be equal"));
  if (m.decoder.num_classes < m.quantizer.num_classes)
    return bad(str_cat("decoder.num_classes ", m.decoder.num_classes,
                       " is less than quantizer.num_classes ", m.quantizer.num_classes));
  if (m.quantizer.num_classes < 1 || m.quantizer.num_books < 1 || m.quantizer.code_dim < 1)
    return bad("quantizer.num_classes, num_books and code_dim must be at least 1");
  if (!(m.masking.mask_prob >= 0.0 && m.masking.mask_prob <= 1.0))
    return bad(str_cat("masking.mask_prob ", m.masking.mask_prob, " is not in [0, 1]"));
  if (m.masking.block_size < 1) return bad("masking.block_size must be at least 1");
  if (m.quantizer.num_classes > kMaxClasses || m.decoder.num_classes > kMaxClasses ||
      m.quantizer.num_books > kMaxBooks || m.quantizer.code_dim > kMaxCodeDim ||
      m.quantizer.combine_time_steps > kMaxCombine || m.masking.block_size > kMaxBlock)
    return bad(str_cat("num_classes may be at most ", kMaxClasses, ", num_books ", kMaxBooks,
                       ", code_dim ", kMaxCodeDim, ", combine_time_steps ", kMaxCombine,
                       ", block_size ", kMaxBlock));
  return out;
}

namespace {

// Trainable parameters in the order in which backward finishes their gradients (decoder, last layer
// to first, subsampling), so that a reduction over ranks can begin while backward still runs.
// Query, key and value projections lie side by side: one matrix product reads them.
nn::FlatLayout flat_layout(const nn::ParameterRegistry& registry) {
  struct Place {
    int64_t layer;  // behind the decoder: n_layers - 1 .. 0, then -1
    int64_t part;   // inside the layer
    int64_t entry;
    auto key() const { return std::make_tuple(-layer, part, entry); }
  };
  std::vector<Place> places;
  for (int64_t entry = 0; entry < registry.size(); ++entry) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(entry)];
    if (info.alias_of >= 0 || !info.trainable || info.is_buffer) continue;
    const std::string& name = info.name;
    Place place{-1, 1, entry};
    const std::string layers = "encoder.layers.";
    if (starts_with(name, layers)) {
      place.layer = std::strtoll(name.c_str() + layers.size(), nullptr, 10);
    } else if (starts_with(name, "decoder.")) {
      place.layer = std::numeric_limits<int64_t>::max();
    }
    int64_t rank = 2;
    for (const char* kind : {".weight", ".bias"})
      for (const char* projection : {"linear_q", "linear_k", "linear_v"}) {
        if (ends_with(name, str_cat(".self_attn.", projection, kind))) place.part = rank;
        ++rank;
      }
    places.push_back(place);
  }
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.key() < b.key(); });
  nn::FlatLayout layout;
  for (const Place& place : places) layout.order.push_back(place.entry);
  return layout;
}

}  // namespace

Result<std::unique_ptr<NestModel>> NestModel::create(const config::ModelConfig& model,
                                                     const config::NestAerieConfig& aerie,
                                                     at::Device device,
                                                     const Precheck& before_allocation) {
  AERIE_ASSIGN_OR_RETURN(NestSettings settings, nest_settings(model));
  nn::prepare_cpu_runtime();
  try {
    std::unique_ptr<NestModel> out(new NestModel());
    out->settings_ = std::move(settings);
    out->aerie_ = aerie;
    out->registry_ = std::make_unique<nn::ParameterRegistry>();
    const config::ModelConfig& m = out->settings_.model;
    const bool post_conv = out->settings_.post_conv;
    const MaskRule rule = aerie.compat_nemo_2_6 ? MaskRule::kR0 : MaskRule::kR1;
    const nn::Scope root(*out->registry_);

    // The order of these lines is the order of NeMo's state dict.
    AERIE_ASSIGN_OR_RETURN(
        Preprocessor preprocessor,
        Preprocessor::create(root.child("preprocessor.featurizer"), m.preprocessor));
    out->preprocessor_ = std::move(preprocessor);

    nn::ConformerEncoder::Options encoder_options;
    if (post_conv) {
      // The mask embedding's first name lies between subsampling and layers.
      encoder_options.pre_encode_name = "pre_encode.pre_encode";
      encoder_options.freeze_pre_encode = !aerie.train_pre_encode;
      encoder_options.after_pre_encode = [&] {
        const nn::Scope scope = root.child("encoder.pre_encode.masking");
        out->masking_ = std::make_unique<BlockMasking>(
            aerie.train_pre_encode ? scope : scope.frozen(), m.masking, m.masking.feat_in,
            out->settings_.mask_block_size, rule);
      };
    }
    out->encoder_ =
        std::make_unique<nn::ConformerEncoder>(root.child("encoder"), m.encoder, encoder_options);
    out->quantizer_ = std::make_unique<Quantizer>(root.child("quantizer"), m.quantizer);
    if (post_conv) {
      root.child("mask_processor").alias("mask_embedding", out->masking_->embedding());
    } else {
      out->masking_ =
          std::make_unique<BlockMasking>(root.child("mask_processor"), m.masking, m.masking.feat_in,
                                         out->settings_.mask_block_size, rule);
    }
    out->decoder_ = std::make_unique<Decoder>(root.child("decoder"), m.decoder);
    if (post_conv)
      add_wrapper_aliases(root, out->encoder_->pre_encode(), out->masking_->embedding());

    if (before_allocation) AERIE_RETURN_IF_ERROR(before_allocation(*out->registry_));
    out->registry_->materialize(device, at::kFloat, flat_layout(*out->registry_));
    nn::initialize(*out->registry_, aerie.seed);
    return out;
  } catch (const std::exception& error) {
    return from_exception(error).with_context("building the model");
  }
}

nn::ForwardContext NestModel::context(const ForwardOptions& options,
                                      const nn::RandomKey& random) const {
  nn::ForwardContext ctx;
  ctx.training = options.training;
  ctx.policy = options.policy;
  ctx.random = random;
  ctx.batch_norm_valid_frames = aerie_.batch_norm_frames == config::BatchNormFrames::kValid;
  ctx.recompute_layers = aerie_.activation_checkpointing;
  ctx.injected = options.injected;
  ctx.tap = options.tap;
  ctx.exchange = options.exchange;
  return ctx;
}

at::Tensor NestModel::draw_mask(const ForwardOptions& options, const nn::RandomKey& random,
                                const at::Tensor& lengths, int64_t frames) const {
  if (!options.apply_mask)
    return at::zeros({lengths.size(0), frames}, lengths.options().dtype(at::kBool));
  if (options.mask_spans != nullptr)
    return mask_from_spans(*options.mask_spans, frames).to(lengths.device());
  return masking_->drawn_mask(random, lengths, frames);
}

NestOutput NestModel::run(const Features& clean, const Features& noisy, const nn::RandomKey& random,
                          const ForwardOptions& options) const {
  const nn::ForwardContext ctx = context(options, random);
  const config::ModelConfig& m = settings_.model;
  const nn::DtypePolicy token_policy = aerie_.tokens_precision == config::TokensPrecision::kAutocast
                                           ? options.policy
                                           : nn::DtypePolicy();
  const at::ScalarType dtype = registry_->dtype();
  const at::Tensor clean_values = clean.values.to(dtype);
  const at::Tensor noisy_values = noisy.values.to(dtype);

  NestOutput out;
  nn::EncoderOutput encoded;
  if (settings_.post_conv) {
    at::Tensor clean_sub;
    {
      at::NoGradGuard no_grad;
      // Subsampling for the targets follows tokens_precision too.
      nn::ForwardContext token_ctx = ctx;
      token_ctx.policy = token_policy;
      token_ctx.tap = nullptr;
      clean_sub = encoder_->subsample(token_ctx, clean_values, clean.lengths).x;
    }
    out.tokens = quantizer_->forward(token_policy, clean_sub.transpose(1, 2));
    const auto sub = encoder_->subsample(ctx, noisy_values, noisy.lengths);
    out.mask = draw_mask(options, random, sub.lengths, sub.x.size(1));
    at::Tensor x = options.apply_mask
                       ? masking_->apply(sub.x.transpose(1, 2), out.mask).transpose(1, 2)
                       : sub.x;
    // NeMo detaches here: nothing in front of the mask is trained.
    if (!aerie_.train_pre_encode) x = x.detach();
    encoded = encoder_->forward_subsampled(ctx, x, sub.lengths);
  } else {
    out.tokens = quantizer_->forward(token_policy, clean_values);
    out.mask = draw_mask(options, random, noisy.lengths, noisy_values.size(2));
    const at::Tensor x =
        options.apply_mask ? masking_->apply(noisy_values, out.mask) : noisy_values;
    encoded = encoder_->forward(ctx, x, noisy.lengths);
  }
  out.encoded = encoded.encoded;
  out.encoded_lengths = encoded.lengths;
  out.log_probs = decoder_->forward(ctx.policy, out.encoded);
  out.selected = loss_frames(out.mask, m.loss.combine_time_steps, m.loss.mask_threshold);
  out.loss_parts = masked_token_loss(out.log_probs, out.tokens, out.selected);
  out.loss = mean_loss(out.loss_parts, aerie_.empty_mask == config::EmptyMask::kNan);
  return out;
}

Result<NestOutput> NestModel::forward_features(const Features& clean, const Features& noisy,
                                               const nn::RandomKey& random,
                                               const ForwardOptions& options) const {
  const config::ModelConfig& m = settings_.model;
  const int64_t frames = noisy.values.size(2);
  const int64_t multiple = std::max(m.quantizer.combine_time_steps, m.encoder.subsampling_factor);
  if (frames % multiple != 0) {
    return invalid_argument(str_cat("features have ", frames, " frames, not a multiple of ",
                                    multiple, " (subsampling_factor)"))
        .with_context("model.preprocessor.pad_to")
        .with_hint(str_cat("set it to a multiple of that, such as ",
                           (16 + multiple - 1) / multiple * multiple));
  }
  try {
    return run(clean, noisy, random, options);
  } catch (const std::exception& error) {
    return from_exception(error).with_context("forward pass");
  }
}

Result<NestOutput> NestModel::forward(const NestBatch& batch, const ForwardOptions& options) const {
  try {
    const int64_t samples = batch.padded_samples > 0 ? batch.padded_samples : batch.capacity();
    Preprocessor::Mode mode;
    mode.training = options.training;
    mode.random = batch.random;
    mode.signal = 0;
    const Features clean =
        preprocessor_->forward(batch.audio.narrow(1, 0, samples), batch.lengths, mode);
    mode.signal = 1;
    const Features noisy =
        preprocessor_->forward(batch.noisy.narrow(1, 0, samples), batch.noisy_lengths, mode);
    return forward_features(clean, noisy, batch.random, options);
  } catch (const std::exception& error) {
    return from_exception(error).with_context("forward pass");
  }
}

Result<nn::EncoderOutput> NestModel::encode(const at::Tensor& audio, const at::Tensor& lengths,
                                            const nn::DtypePolicy& policy, bool keep_layers) const {
  try {
    at::NoGradGuard no_grad;
    const Features features = preprocessor_->forward(audio, lengths, {});
    ForwardOptions options;
    options.policy = policy;
    return encoder_->forward(context(options, {}), features.values.to(registry_->dtype()),
                             features.lengths, keep_layers);
  } catch (const std::exception& error) {
    return from_exception(error).with_context("feature extraction");
  }
}

}  // namespace aerie::nest
