#include "aerie/config/schema/effect.h"

#include <cctype>
#include <optional>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/schema/key_tree.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {
namespace {

// What rules look at.
struct Situation {
  const CheckContext& config;
  bool one_device = true;
  bool gpu = false;
  std::string ds;  // of a key in a data set: "model.train_ds."

  bool off(std::string_view key) const { return !config.flag(key).value_or(false); }
  bool ds_off(const char* key) const { return off(str_cat(ds, key)); }
  bool absent(std::string_view key) const { return config.written(key) == nullptr; }
};

// A rule covers its key and all below it, and is judged whatever the value.
struct Rule {
  std::string_view key;  // `model.<ds>` stands for every data set
  bool (*idle)(const Situation&);
  std::string_view why;
};

bool one_device(const Situation& s) {
  return s.one_device;
}
bool not_tarred(const Situation& s) {
  return s.ds_off("is_tarred");
}
bool not_concat(const Situation& s) {
  return s.ds_off("is_concat");
}
bool no_bucket_lists(const Situation& s) {
  const Value* manifests = s.config.written(s.ds + "manifest_filepath");
  return manifests == nullptr || !manifests->is_list() || manifests->as_list().empty() ||
         !manifests->as_list().front().is_list();
}
bool no_ema(const Situation& s) {
  return s.off("exp_manager.ema.enable");
}
bool no_resume(const Situation& s) {
  return s.off("exp_manager.resume_if_exists");
}
bool no_local_attention(const Situation& s) {
  return s.config.text("model.encoder.self_attention_model").value_or("") != "rel_pos_local_attn";
}

constexpr std::string_view kOneDevice = "one device";
constexpr std::string_view kNotTarred = "is_tarred is false";
constexpr std::string_view kNotConcat = "is_concat is false";
constexpr std::string_view kNoBuckets = "manifest_filepath is no list of lists";
constexpr std::string_view kNoEma = "ema.enable is false";
constexpr std::string_view kNoResume = "resume_if_exists is false";
constexpr std::string_view kNoLocal = "self_attention_model is not rel_pos_local_attn";

constexpr Rule kRules[] = {
    {"trainer.strategy", one_device, kOneDevice},
    {"trainer.sync_batchnorm", one_device, kOneDevice},
    {"exp_manager.log_local_rank_0_only", one_device, kOneDevice},
    {"exp_manager.log_global_rank_0_only", one_device, kOneDevice},
    {"model.encoder.sync_max_audio_length", one_device, kOneDevice},
    {"trainer.gradient_clip_algorithm",
     [](const Situation& s) {
       return !(s.config.number("trainer.gradient_clip_val").value_or(0.0) > 0.0);
     },
     "gradient_clip_val bounds nothing"},
    {"model.<ds>.pin_memory", [](const Situation& s) { return !s.gpu; }, "the run is on the CPU"},
    {"aerie.tf32", [](const Situation& s) { return !s.gpu; }, "the run is on the CPU"},
    {"model.<ds>.tarred_audio_filepaths", not_tarred, kNotTarred},
    {"model.<ds>.shuffle_n", not_tarred, kNotTarred},
    {"model.<ds>.tarred_shard_strategy", not_tarred, kNotTarred},
    {"model.<ds>.skip_missing_manifest_entries", not_tarred, kNotTarred},
    {"model.<ds>.concat_sampling_technique", not_concat, kNotConcat},
    {"model.<ds>.concat_sampling_temperature", not_concat, kNotConcat},
    {"model.<ds>.concat_sampling_probabilities", not_concat, kNotConcat},
    {"model.<ds>.concat_sampling_scale", not_concat, kNotConcat},
    {"model.<ds>.concat_sampling_seed", not_concat, kNotConcat},
    {"model.<ds>.concat_shuffle", not_concat, kNotConcat},
    {"model.<ds>.bucketing_strategy", no_bucket_lists, kNoBuckets},
    {"model.<ds>.bucketing_weights", no_bucket_lists, kNoBuckets},
    {"model.encoder.global_tokens", no_local_attention, kNoLocal},
    {"model.encoder.global_tokens_spacing", no_local_attention, kNoLocal},
    {"model.encoder.global_attn_separate", no_local_attention, kNoLocal},
    {"model.preprocessor.nb_max_freq",
     [](const Situation& s) {
       return s.config.number("model.preprocessor.nb_augmentation_prob").value_or(0.0) == 0.0;
     },
     "nb_augmentation_prob is 0"},
    {"exp_manager.checkpoint_callback_params",
     [](const Situation& s) { return s.off("exp_manager.create_checkpoint_callback"); },
     "create_checkpoint_callback is false"},
    {"exp_manager.early_stopping_callback_params",
     [](const Situation& s) { return s.off("exp_manager.create_early_stopping_callback"); },
     "create_early_stopping_callback is false"},
    {"exp_manager.step_timing_kwargs",
     [](const Situation& s) { return s.off("exp_manager.log_step_timing"); },
     "log_step_timing is false"},
    {"exp_manager.ema.decay", no_ema, kNoEma},
    {"exp_manager.ema.cpu_offload", no_ema, kNoEma},
    {"exp_manager.ema.validate_original_weights", no_ema, kNoEma},
    {"exp_manager.ema.every_n_steps", no_ema, kNoEma},
    {"exp_manager.resume_past_end", no_resume, kNoResume},
    {"exp_manager.resume_ignore_no_checkpoint", no_resume, kNoResume},
    {"aerie.data.build_cache", [](const Situation& s) { return s.absent("aerie.data.cache_dir"); },
     "aerie.data.cache_dir is null"},
    {"aerie.data.cache_format",
     [](const Situation& s) {
       return s.absent("aerie.data.cache_dir") || s.off("aerie.data.build_cache");
     },
     "aerie.data.build_cache is false"},
    {"aerie.loss_scale",
     [](const Situation& s) {
       const Value* written = s.config.written("trainer.precision");
       const auto precision = parse_precision(written != nullptr ? *written : Value());
       return precision.ok() && *precision != Precision::k16Mixed;
     },
     "trainer.precision is not 16-mixed"},
};

bool covers(std::string_view rule, std::string_view key) {
  return starts_with(key, rule) && (key.size() == rule.size() || key[rule.size()] == '.');
}

// "The order of shards follows aerie.seed." as part of a sentence.
std::string as_clause(std::string_view help) {
  std::string out(help);
  if (!out.empty() && out.back() == '.') out.pop_back();
  const bool one_capital = out.size() > 1 && std::isupper(static_cast<unsigned char>(out[0])) &&
                           std::islower(static_cast<unsigned char>(out[1]));
  if (one_capital) out[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(out[0])));
  return out;
}

class Finder {
 public:
  Finder(const Value& root, const CheckContext& context, bool one_device, bool gpu)
      : root_(root), context_(context), one_device_(one_device), gpu_(gpu) {}

  std::map<std::string, IdleKey> run() {
    walk(root_, "");
    return std::move(found_);
  }

 private:
  void walk(const Value& value, const std::string& path) {
    if (value.is_map() && !value.as_map().empty()) {
      for (const MapEntry& entry : value.as_map())
        walk(entry.value, path.empty() ? entry.key : str_cat(path, ".", entry.key));
      return;
    }
    if (value.is_null() || value.is_missing()) return;
    const KeyNode* node = find_key_node(path);
    if (node == nullptr || node->spec == nullptr) return;
    const KeySpec& spec = *node->spec;
    const bool at_default = !spec.default_value.empty() && spec.default_value != kRequired &&
                            python_equal(value, node->default_value);
    if (const auto why = rule_for(path)) {
      found_[path] = {std::string(*why), at_default};
      return;
    }
    if (at_default) return;
    if (spec.status == KeyStatus::kNoEffect) found_[path] = {as_clause(spec.help), false};
    if (spec.status == KeyStatus::kLater) found_[path] = {as_clause(spec.note), false};
  }

  std::optional<std::string_view> rule_for(const std::string& path) const {
    Situation situation{context_, one_device_, gpu_, {}};
    std::string key = path;
    for (const char* ds : {"train_ds", "validation_ds", "test_ds"}) {
      const std::string prefix = str_cat("model.", ds, ".");
      if (!starts_with(path, prefix)) continue;
      situation.ds = prefix;
      key = str_cat("model.<ds>.", path.substr(prefix.size()));
    }
    for (const Rule& rule : kRules)
      if (covers(rule.key, key) && rule.idle(situation)) return rule.why;
    return std::nullopt;
  }

  const Value& root_;
  const CheckContext& context_;
  const bool one_device_, gpu_;
  std::map<std::string, IdleKey> found_;
};

}  // namespace

std::map<std::string, IdleKey> keys_without_effect(const Value& resolved, int num_gpus) {
  if (!resolved.is_map()) return {};
  const ValidateOptions options;
  Findings unused;
  const CheckContext context(resolved, options, unused);
  const TrainerConfig trainer = device_keys(context);
  const auto plan = plan_devices(trainer, num_gpus);
  return Finder(resolved, context, !plan.ok() || plan->world_size == 1,
                plan.ok() ? plan->gpu : trainer.accelerator == Accelerator::kGpu)
      .run();
}

std::string idle_keys_sentence(const std::map<std::string, IdleKey>& keys) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const auto& [key, idle] : keys) {
    if (idle.at_default) continue;
    auto at = reasons.begin();
    while (at != reasons.end() && at->first != idle.why) ++at;
    if (at == reasons.end()) at = reasons.insert(at, {idle.why, {}});
    at->second.push_back(key);
  }
  std::vector<std::string> parts;
  for (const auto& [why, names] : reasons)
    parts.push_back(str_cat(join(names, ", "), " (", why, ")"));
  return join(parts, "; ");
}

}  // namespace aerie::config
