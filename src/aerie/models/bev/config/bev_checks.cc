// Rules about several keys of a bird's-eye-view configuration.
#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/bev/config/bev_keys.h"
#include "aerie/models/bev/config/policies.h"

namespace aerie::bev {
namespace {

using config::CheckContext;
using config::Value;

void check_policy(CheckContext& context, const std::string& path, bool momentum) {
  const Value* node = context.written(path);
  const auto name = context.text(path + ".name");
  const Policy* policy = node != nullptr && node->is_map() && name ? find_policy(*name) : nullptr;
  if (policy == nullptr) return;
  const std::string_view own = momentum ? policy->momentum_arguments : policy->arguments;
  for (const config::MapEntry& entry : node->as_map()) {
    if (config::is_choice(entry.key, kPolicyArguments) ||
        (!own.empty() && config::is_choice(entry.key, own)))
      continue;
    const bool is_null = entry.value.is_null();
    if (!is_null)
      context.error(str_cat(path, ".", entry.key),
                    str_cat(*name, " has no argument '", entry.key, "'"),
                    own.empty() ? "leave it out"
                                : str_cat("it takes ", join(config::choice_names(own), ", ")));
  }
  const auto given = [&](const char* key) {
    const Value* value = context.written(path + "." + key);
    return value != nullptr && !value->is_null();
  };
  const auto needs = [&](const char* key) {
    if (!given(key))
      context.error(str_cat(path, ".", key), str_cat("is needed by ", std::string(policy->name)));
  };
  const std::string noun = momentum ? "momentum" : "lr";
  switch (policy->policy) {
    case optim::MmPolicy::kStep:
      needs("step");
      break;
    case optim::MmPolicy::kExp:
    case optim::MmPolicy::kInv:
      needs("gamma");
      break;
    case optim::MmPolicy::kCosineRestart:
      needs("periods");
      [[fallthrough]];
    case optim::MmPolicy::kCosineAnnealing:
    case optim::MmPolicy::kFlatCosineAnnealing:
    case optim::MmPolicy::kLinearAnnealing: {
      const std::string least = "min_" + noun, ratio = least + "_ratio";
      if (given(least.c_str()) == given(ratio.c_str()))
        context.error(str_cat(path, ".", least),
                      str_cat(std::string(policy->name), " needs either ", least, " or ", ratio));
      break;
    }
    case optim::MmPolicy::kOneCycle:
      if (!momentum) needs("max_lr");
      break;
    default:
      break;
  }
  if (given("warmup") && context.integer(path + ".warmup_iters").value_or(0) <= 0)
    context.error(path + ".warmup_iters", "must be above 0 with a warmup");
}

void check_loss_scale(CheckContext& context) {
  const Value* scale = context.written("aerie.loss_scale");
  if (scale == nullptr || !scale->is_map()) return;
  const std::vector<std::string> known = {"init_scale", "growth_factor", "backoff_factor",
                                          "growth_interval"};
  for (const config::MapEntry& entry : scale->as_map()) {
    const std::string path = str_cat("aerie.loss_scale.", entry.key);
    if (std::find(known.begin(), known.end(), entry.key) == known.end()) {
      const std::string near = nearest_name(entry.key, known);
      context.error(path, "unknown key in 'aerie.loss_scale'",
                    near.empty() ? str_cat("there are ", join(known, ", "))
                                 : str_cat("did you mean '", near, "'?"));
      continue;
    }
    const bool number = entry.value.is_number() && std::isfinite(entry.value.as_float());
    const double value = number ? entry.value.as_float() : 0.0;
    const bool fits = entry.key == "init_scale"       ? value > 0.0
                      : entry.key == "growth_factor"  ? value > 1.0
                      : entry.key == "backoff_factor" ? value > 0.0 && value < 1.0
                                                      : value >= 1.0 && value == std::floor(value);
    if (!number || !fits) context.error(path, str_cat("cannot use ", entry.value.brief(40)));
  }
}

void check_metrics(CheckContext& context) {
  const Value* metrics = context.written("model.metrics");
  if (metrics == nullptr) return;
  const config::List list = metrics->is_list() ? metrics->as_list() : config::List{*metrics};
  for (const Value& metric : list)
    if (metric.is_string() && metric.as_string() != "mIoU" && metric.as_string() != "map")
      context.error("model.metrics", str_cat("there is no metric ", metric.brief(40)),
                    "mIoU and map are there, and mean the same");
}

// Nothing is downloaded, so an address is of no use to a run.
void check_weights(CheckContext& context, const char* path) {
  const auto file = context.text(path);
  if (!file || file->find("://") == std::string::npos) return;
  const std::string message = "is an address, and aerie downloads nothing";
  const std::string hint = "fetch the file and name it here, or null to start without";
  if (context.options().for_training)
    context.error(path, message, hint);
  else
    context.warn(path, message, hint);
}

void check_run(CheckContext& context) {
  const Value* data = context.written("model.train_ds");
  if (context.options().for_training) {
    const bool root = data != nullptr && data->is_map() &&
                      (context.written("model.train_ds.root") != nullptr ||
                       context.written("model.train_ds.data_root") != nullptr);
    if (!root)
      context.error("model.train_ds.root", "the folder of the nuScenes data is not given",
                    "model.train_ds.root=DIR, in mm-style files data.train.data_root");
  }
  const Value* model = context.written("model");
  const Value* optim = model != nullptr && model->is_map() ? model->child("optim") : nullptr;
  if (context.options().for_training && optim != nullptr && optim->is_null())
    context.error("model.optim", "is null: nothing would be trained",
                  "model.optim={name: adamw, lr: 2e-4}, in mm-style files optimizer");
  const auto precision = context.text("trainer.precision");
  const auto scale = context.written("aerie.loss_scale");
  if (scale != nullptr && precision && starts_with(*precision, "bf16"))
    context.warn("aerie.loss_scale", "bf16 needs no loss scale; it is left out");
}

}  // namespace

void check_bev(CheckContext& context) {
  check_policy(context, "model.optim.sched", false);
  check_policy(context, "model.optim.momentum_sched", true);
  check_loss_scale(context);
  check_metrics(context);
  check_weights(context, "load_from");
  check_weights(context, "model.encoders.camera.backbone.init_cfg.checkpoint");
  check_run(context);
}

}  // namespace aerie::bev
