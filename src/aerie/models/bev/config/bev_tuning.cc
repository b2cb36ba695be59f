#include "aerie/models/bev/config/bev_tuning.h"

#include <string>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/mm_args.h"

namespace aerie::bev {

namespace {

constexpr const char* kBatchKey = "model.train_ds.batch_size";
constexpr int64_t kFirstBatch = 2;  // where a search for `auto` begins
constexpr const char* kWithCp = "model.encoders.camera.backbone.with_cp";

}  // namespace

advisor::TuneSpace bev_tune_space(const LoadedBevConfig& loaded,
                                  const advisor::TuneMachine& machine) {
  using advisor::knob_at;
  const BevRunConfig& run = loaded.run;
  const nuscenes::DataConfig& set = run.data.train_ds;
  advisor::TuneSpace out;
  out.batch.key = kBatchKey;
  out.batch.unit = "samples";
  out.batch.automatic = set.auto_batch_size;
  out.batch.start = set.auto_batch_size ? kFirstBatch : set.batch_size;
  out.batch.most = 4096;
  out.batch.changes = [](int64_t size) {
    return std::vector<std::string>{str_cat(kBatchKey, "=", size)};
  };
  out.rate = {"model.optim.lr", run.optim.base_lr, ""};
  const LrScalingRule rule = run.optim.lr_scaling.rule;
  if (rule != LrScalingRule::kNone)
    out.rate.scaled_by_config =
        str_cat("model.optim.lr_scaling scales it with the batch by the ",
                rule == LrScalingRule::kSqrt ? "square-root" : "linear", " rule (",
                run.optim.base_lr, " at ", run.optim.lr_scaling.base_batch,
                ", as the configuration asks); model.optim.lr stays as it is");
  out.throughput_unit = "samples/s";

  if (set.num_workers != nuscenes::DataConfig::kAutoWorkers)
    out.knobs.push_back(
        advisor::worker_knob("model.train_ds.num_workers", set.num_workers, machine.cpus));
  out.knobs.push_back(advisor::prefetch_knob("model.train_ds.prefetch_factor", set.prefetch_factor,
                                             "model.train_ds.num_workers"));
  // `auto` is exact.
  if (set.decode != nuscenes::DecodeChoice::kScaled) {
    out.knobs.push_back(knob_at("model.train_ds.decode",
                                set.decode == nuscenes::DecodeChoice::kAuto ? "auto" : "exact",
                                {"scaled"}));
    out.knobs.back().loader = true;
  }
  if (!machine.gpu) return out;

  if (!set.pin_memory)
    out.knobs.push_back(knob_at("model.train_ds.pin_memory", "false", {"false", "true"}));
  out.knobs.push_back(
      advisor::precision_knob(config::precision_name(run.trainer.precision), machine.bf16));
  const config::Value* with_cp = loaded.resolved.find(kWithCp);
  const bool in_backbone = with_cp != nullptr && with_cp->is_bool() && with_cp->as_bool();
  out.knobs.push_back(
      advisor::recompute_knob(in_backbone ? kWithCp : "aerie.activation_checkpointing",
                              run.aerie.activation_checkpointing));
  return out;
}

Result<std::vector<std::string>> with_batch(Env& env, const std::vector<std::string>& args,
                                            const std::vector<std::string>& changes) {
  const std::string start = str_cat(kBatchKey, "=");
  if (changes.size() != 1 || !starts_with(changes[0], start))
    return internal_error("only the batch can be changed behind a command line");
  const std::string size = changes[0].substr(start.size());
  for (const char* key :
       {kBatchKey, "data.samples_per_gpu", "data.train_dataloader.samples_per_gpu"}) {
    std::vector<std::string> out = args;
    out.push_back(str_cat("--", key, "=", size));
    AERIE_ASSIGN_OR_RETURN(const config::mm::MmArgs parsed, config::mm::parse_mm_args(out));
    const auto loaded = load_bev_config(env, parsed);
    if (loaded.ok() && !loaded->run.data.train_ds.auto_batch_size &&
        str_cat(loaded->run.data.train_ds.batch_size) == size)
      return out;
  }
  return invalid_argument("the batch size of this configuration cannot be set from outside")
      .with_hint("write model.train_ds.batch_size or data.samples_per_gpu in the file");
}

}  // namespace aerie::bev
