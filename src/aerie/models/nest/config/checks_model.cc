// Rules about the model: sizes that must agree, features that NEST cannot have, keys that are idle.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/value_parsers.h"
#include "aerie/models/nest/config/att_context.h"
#include "aerie/models/nest/config/nest_keys.h"

namespace aerie::config {
namespace {

void require_nodes(CheckContext& context) {
  if (!context.options().for_training) return;
  if (context.written("model") == nullptr) {
    context.error("model", "the config has no model node", "is this a NEST config?");
    return;
  }
  for (const char* node : {"preprocessor", "masking", "quantizer", "encoder", "decoder", "loss",
                           "optim", "train_ds"}) {
    const std::string path = str_cat("model.", node);
    if (context.written(path) == nullptr)
      context.error(path, "this node is needed to train NEST",
                    "start from configs/nest/nest_fast-conformer.yaml");
  }
}

void check_preprocessor(CheckContext& context) {
  const std::string base = "model.preprocessor.";
  for (const char* key : {"window_size", "window_stride"}) {
    if (context.written(base + key) != nullptr &&
        context.written(str_cat(base, "n_", key)) != nullptr)
      context.error(str_cat(base, "n_", key), str_cat("given together with ", key),
                    str_cat("set ", base, key, "=null"));
  }
  const auto rate = context.number(base + "sample_rate");
  const auto samples = [&](const char* key, double fallback) -> double {
    if (const Value* value = context.written(str_cat(base, "n_", key)); value && value->is_number())
      return value->as_float();
    return std::trunc(context.number(base + key).value_or(fallback) * rate.value_or(16000));
  };
  const double window = samples("window_size", 0.02);
  const double stride = samples("window_stride", 0.01);
  if (window < 1 || stride < 1)
    context.error(base + (window < 1 ? "window_size" : "window_stride"),
                  "is shorter than one sample");
  const auto n_fft = context.written(base + "n_fft");
  if (n_fft != nullptr && n_fft->is_number() && n_fft->as_float() < window)
    context.error(base + "n_fft", str_cat("is smaller than the window of ", window, " samples"));
  if (context.flag(base + "exact_pad").value_or(false) && std::fmod(stride, 2.0) != 0)
    context.error(base + "exact_pad", "needs an even window stride");
  const double nyquist = rate.value_or(16000) / 2;
  const double high = context.number(base + "highfreq").value_or(nyquist);
  if (high > nyquist)
    context.error(base + "highfreq", str_cat("is above half the sample rate, ", nyquist, " Hz"));
  if (context.number(base + "lowfreq").value_or(0) >= high)
    context.error(base + "lowfreq", str_cat("is not below highfreq, ", high, " Hz"));
  if (const Value* normalize = context.written(base + "normalize")) {
    if (normalize->is_bool() && normalize->as_bool())
      context.error(base + "normalize", "true says not how", "write per_feature");
    if (normalize->is_map()) {
      const auto features = context.integer(base + "features");
      for (const char* key : {"fixed_mean", "fixed_std"}) {
        const Value* list = context.written(str_cat(base, "normalize.", key));
        if (list == nullptr || !list->is_list())
          context.error(base + "normalize", str_cat("needs ", key));
        else if (features && static_cast<int64_t>(list->as_list().size()) != *features)
          context.error(
              str_cat(base, "normalize.", key),
              str_cat("has ", list->as_list().size(), " values for ", *features, " features"));
      }
    }
  }
}

bool is_power_of_two(int64_t value) {
  return value > 0 && std::has_single_bit(static_cast<uint64_t>(value));
}

void check_attention(CheckContext& context, const std::string& base, int64_t d_model) {
  const auto heads = context.integer(base + "n_heads");
  if (heads && *heads > 0 && d_model % *heads != 0)
    context.error(base + "n_heads",
                  str_cat("d_model ", d_model, " is not a multiple of ", *heads, " heads"));
  if (d_model % 2 != 0) context.error(base + "d_model", "must be even: positions come in pairs");
  const Value* written = context.written(base + "att_context_size");
  const auto contexts = parse_att_context(written != nullptr ? *written : Value());
  if (!contexts.ok()) {
    context.error(base + "att_context_size", contexts.status().message());
    return;
  }
  const bool chunked =
      context.text(base + "att_context_style").value_or("regular") == "chunked_limited";
  for (const auto& [left, right] : *contexts) {
    if (chunked && right >= 0 && left > 0 && left % (right + 1) != 0)
      context.error(
          base + "att_context_size",
          str_cat("chunked_limited: left ", left, " is not a multiple of right + 1 = ", right + 1));
    if (chunked && right < 0 && contexts->size() == 1)
      context.error(base + "att_context_size", "chunked_limited needs a limited right context");
    if (context.text(base + "self_attention_model").value_or("") == "rel_pos_local_attn" &&
        std::max(left, right) <= 0)
      context.error(base + "att_context_size", "local attention needs a context above 0",
                    "for example [128, 128]");
  }
  const Value* probs = context.written(base + "att_context_probs");
  if (probs == nullptr || !probs->is_list()) return;
  double sum = 0;
  for (const Value& item : probs->as_list()) sum += item.is_number() ? item.as_float() : 0;
  if (probs->as_list().size() != contexts->size())
    context.error(
        base + "att_context_probs",
        str_cat("has ", probs->as_list().size(), " values for ", contexts->size(), " contexts"));
  else if (std::fabs(sum - 1) > 1e-6)
    context.error(base + "att_context_probs", str_cat("sums to ", sum, ", not to 1"));
}

void check_convolution(CheckContext& context, const std::string& base, int64_t d_model) {
  const auto kernel = context.integer(base + "conv_kernel_size");
  if (kernel && *kernel % 2 == 0) context.error(base + "conv_kernel_size", "must be odd");
  const Value* written = context.written(base + "conv_context_size");
  if (written != nullptr && written->is_list() && kernel) {
    int64_t sum = 1;
    for (const Value& item : written->as_list()) {
      if (!item.is_number() || !(std::fabs(item.as_float()) <= 1e9)) return;  // reported
      sum += whole_number(item);
    }
    if (written->as_list().size() != 2 || sum != *kernel)
      context.error(base + "conv_context_size",
                    str_cat("expected [left, right] with left + right + 1 = ", *kernel, ", got ",
                            written->brief()));
  }
  const std::string norm = context.text(base + "conv_norm_type").value_or("");
  if (!starts_with(norm, "group_norm")) return;
  int64_t groups = 0;
  const char* const end = norm.data() + norm.size();
  const auto [stopped, failed] = std::from_chars(norm.data() + 10, end, groups);
  if (failed != std::errc() || stopped != end || groups < 1)
    context.error(base + "conv_norm_type", str_cat("'", norm, "' names no number of groups"),
                  "for example group_norm8");
  else if (d_model % groups != 0)
    context.error(base + "conv_norm_type",
                  str_cat("d_model ", d_model, " is not a multiple of ", groups, " groups"));
}

void check_encoder(CheckContext& context) {
  const std::string base = "model.encoder.";
  const auto d_model = context.integer(base + "d_model");
  if (!d_model || *d_model < 1) return;
  check_attention(context, base, *d_model);
  check_convolution(context, base, *d_model);
  const auto factor = context.integer(base + "subsampling_factor");
  const std::string kind = context.text(base + "subsampling").value_or("striding");
  if (factor && ends_with(kind, "striding") && !is_power_of_two(*factor))
    context.error(base + "subsampling_factor", str_cat("must be a power of two for ", kind));
  for (const char* key : {"feat_out", "subsampling_conv_channels"})
    if (context.integer(base + key) == 0) context.error(base + key, "must be -1 or above 0");
}

// Equal numbers in different places; the stock file ties them by interpolation.
void check_equal(CheckContext& context, const char* path, const char* what,
                 std::optional<int64_t> expected) {
  const std::string_view parent =
      std::string_view(path).substr(0, std::string_view(path).rfind('.'));
  const auto value = context.integer(path);
  if (context.written(parent) == nullptr || !value || !expected || *value == *expected) return;
  context.error(path, str_cat("is ", *value, " where ", what, " is ", *expected));
}

void check_sizes(CheckContext& context) {
  const bool post_conv = context.text("model.mask_position").value_or("") == "post_conv";
  const auto features = context.integer("model.preprocessor.features");
  const auto splicing = context.integer("model.preprocessor.frame_splicing");
  std::optional<int64_t> width;
  if (context.written("model.preprocessor") != nullptr && features && splicing)
    width = *features * *splicing;
  const char* preprocessor = "the preprocessor's number of features";
  check_equal(context, "model.encoder.feat_in", preprocessor, width);
  if (!post_conv) {
    check_equal(context, "model.masking.feat_in", preprocessor, width);
    check_equal(context, "model.quantizer.feat_in", preprocessor, width);
  }
  if (context.written("model.encoder") != nullptr) {
    auto output = context.integer("model.encoder.feat_out");
    if (!output || *output <= 0) output = context.integer("model.encoder.d_model");
    check_equal(context, "model.decoder.feat_in", "the encoder's output width", output);
    if (!post_conv) {
      const auto factor = context.integer("model.encoder.subsampling_factor");
      const char* what = "model.encoder.subsampling_factor";
      check_equal(context, "model.quantizer.combine_time_steps", what, factor);
      check_equal(context, "model.loss.combine_time_steps", what, factor);
      const auto pad_to = context.integer("model.preprocessor.pad_to");
      if (width && factor && pad_to && *factor > 0 && (*pad_to == 0 || *pad_to % *factor != 0))
        context.warn("model.preprocessor.pad_to",
                     str_cat("is ", *pad_to, ", not a multiple of the subsampling factor ", *factor,
                             ": targets and encoder frames may not line up"));
    }
  }
  if (context.written("model.quantizer") != nullptr) {
    check_equal(context, "model.decoder.num_classes", "model.quantizer.num_classes",
                context.integer("model.quantizer.num_classes"));
    const auto books = context.integer("model.quantizer.num_books");
    check_equal(context, "model.decoder.num_decoders", "model.quantizer.num_books", books);
    check_equal(context, "model.loss.num_decoders", "model.quantizer.num_books", books);
    const auto combine = context.integer("model.quantizer.combine_time_steps");
    if (post_conv && combine && *combine != 1)
      context.warn("model.quantizer.combine_time_steps",
                   str_cat("is ", *combine, "; with mask_position post_conv it is taken as 1"));
  }
  const auto rate = context.integer("model.sample_rate");
  const auto feature_rate = context.integer("model.preprocessor.sample_rate");
  if (context.written("model.preprocessor") != nullptr && rate && feature_rate &&
      *rate != *feature_rate)
    context.warn("model.preprocessor.sample_rate",
                 str_cat("is ", *feature_rate, " where model.sample_rate is ", *rate));
}

bool no_local_attention(const Situation& s) {
  return s.config.text("model.encoder.self_attention_model").value_or("") != "rel_pos_local_attn";
}

constexpr std::string_view kNoLocal = "self_attention_model is not rel_pos_local_attn";

constexpr IdleRule kRules[] = {
    {"model.encoder.sync_max_audio_length", [](const Situation& s) { return s.one_device; },
     "one device"},
    {"model.encoder.global_tokens", no_local_attention, kNoLocal},
    {"model.encoder.global_tokens_spacing", no_local_attention, kNoLocal},
    {"model.encoder.global_attn_separate", no_local_attention, kNoLocal},
    {"model.preprocessor.nb_max_freq",
     [](const Situation& s) {
       return s.config.number("model.preprocessor.nb_augmentation_prob").value_or(0.0) == 0.0;
     },
     "nb_augmentation_prob is 0"},
};

}  // namespace

std::span<const IdleRule> model_idle_rules() {
  return kRules;
}

void check_model(CheckContext& context) {
  require_nodes(context);
  if (context.written("model") == nullptr) return;
  if (context.written("model.preprocessor") != nullptr) check_preprocessor(context);
  if (context.written("model.encoder") != nullptr) check_encoder(context);
  check_sizes(context);
}

}  // namespace aerie::config
