#include "aerie/config/schema/effect.h"

#include <cctype>
#include <optional>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/schema.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {
namespace {

bool one_device(const Situation& s) {
  return s.one_device;
}
bool no_ema(const Situation& s) {
  return s.off("exp_manager.ema.enable");
}
bool no_resume(const Situation& s) {
  return s.off("exp_manager.resume_if_exists");
}

constexpr std::string_view kOneDevice = "one device";
constexpr std::string_view kNoEma = "ema.enable is false";
constexpr std::string_view kNoResume = "resume_if_exists is false";

constexpr IdleRule kRules[] = {
    {"trainer.strategy", one_device, kOneDevice},
    {"trainer.sync_batchnorm", one_device, kOneDevice},
    {"aerie.dist", one_device, kOneDevice},
    {"aerie.shard_optimizer", one_device, kOneDevice},
    {"exp_manager.log_local_rank_0_only", one_device, kOneDevice},
    {"exp_manager.log_global_rank_0_only", one_device, kOneDevice},
    {"trainer.gradient_clip_algorithm",
     [](const Situation& s) {
       return !(s.config.number("trainer.gradient_clip_val").value_or(0.0) > 0.0);
     },
     "gradient_clip_val bounds nothing"},
    {"aerie.tf32", [](const Situation& s) { return !s.gpu; }, "the run is on the CPU"},
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
  Finder(const Schema& schema, const Value& root, const CheckContext& context, bool one_device,
         bool gpu)
      : schema_(schema), root_(root), context_(context), one_device_(one_device), gpu_(gpu) {}

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
    const KeyNode* node = schema_.find_node(path);
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
    const Schema::Spelling spelling = schema_.spelling_of(path);
    const Situation situation{context_, one_device_, gpu_, spelling.node};
    for (const IdleRule& rule : schema_.parts().idle_rules)
      if (covers(rule.key, spelling.path) && rule.idle(situation)) return rule.why;
    return std::nullopt;
  }

  const Schema& schema_;
  const Value& root_;
  const CheckContext& context_;
  const bool one_device_, gpu_;
  std::map<std::string, IdleKey> found_;
};

}  // namespace

std::span<const IdleRule> engine_idle_rules() {
  return kRules;
}

std::map<std::string, IdleKey> keys_without_effect(const Schema& schema, const Value& resolved,
                                                   int num_gpus) {
  if (!resolved.is_map()) return {};
  const ValidateOptions options;
  Findings unused;
  const CheckContext context(schema, resolved, options, unused);
  const TrainerConfig trainer = device_keys(context);
  const auto plan = plan_devices(trainer, num_gpus);
  return Finder(schema, resolved, context, !plan.ok() || plan->world_size == 1,
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
