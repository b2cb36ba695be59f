// The rows of `aerie bench claims`. To add one: a ClaimRow with a name, the guides' promise and two
// or more settings; everything else (data, trials, table, chart) follows from it.
#include "aerie/advisor/claims.h"
#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

using Overrides = std::vector<std::string>;

std::string train_ds(const char* key, const std::string& value) {
  return str_cat("model.train_ds.", key, "=", value);
}

ClaimSetting setting(std::string label, Overrides overrides, ClaimData data = ClaimData::kClips) {
  return {std::move(label), std::move(overrides), data};
}

// Settings that differ in one key.
std::vector<ClaimSetting> values_of(const std::string& key, const Overrides& values,
                                    const Overrides& also = {}) {
  std::vector<ClaimSetting> out;
  for (const std::string& value : values) {
    Overrides all = also;
    all.push_back(str_cat(key, "=", value));
    out.push_back(setting(value, std::move(all)));
  }
  return out;
}

// Without workers nothing is prefetched and nothing stays.
std::vector<ClaimSetting> workers_of(const Overrides& counts) {
  std::vector<ClaimSetting> out;
  for (const std::string& count : counts) {
    const bool none = count == "0";
    out.push_back(setting(count, {train_ds("num_workers", count),
                                  train_ds("persistent_workers", none ? "false" : "true"),
                                  train_ds("prefetch_factor", none ? "null" : "2")}));
  }
  return out;
}

// Validation is on in these rows alone.
ClaimRow validation_row(std::string name, std::string what, std::string claim, int64_t often,
                        int64_t seldom, int64_t steps, int64_t batches) {
  ClaimRow row;
  row.name = std::move(name);
  row.what = std::move(what);
  row.claim = std::move(claim);
  row.settings = {
      setting(str_cat("every ", often), {str_cat("trainer.val_check_interval=", often)}),
      setting(str_cat("every ", seldom), {str_cat("trainer.val_check_interval=", seldom)})};
  row.overrides = {str_cat("trainer.limit_val_batches=", batches)};
  row.steps = steps;
  row.note = str_cat("trials are short: a validation of ", batches, " batches every ", often,
                     " or ", seldom, " steps; it costs its share of the time, no more");
  return row;
}

ClaimRow ranks_row(std::string name, std::string what, std::string claim,
                   std::vector<ClaimSetting> settings, std::string note) {
  ClaimRow row;
  row.name = std::move(name);
  row.what = std::move(what);
  row.claim = std::move(claim);
  row.settings = std::move(settings);
  row.gpus = 2;
  row.overrides = {"trainer.strategy._target_=lightning.pytorch.strategies.DDPStrategy"};
  row.note = std::move(note);
  return row;
}

std::vector<ClaimRow> nest_rows(bool small) {
  const std::string batch = "model.train_ds.batch_size";
  std::vector<ClaimRow> out;
  const auto add = [&](ClaimRow row) { out.push_back(std::move(row)); };
  for (const auto& [from, to] : {std::pair{"2", "8"}, {"8", "16"}, {"16", "32"}})
    add({.name = str_cat("batch_", from, "_", to),
         .what = str_cat("batch_size ", from, " → ", to),
         .claim = "faster, uses more memory",
         .settings = values_of(batch, {from, to})});
  add({.name = "workers",
       .what = "num_workers 0 → 4 → 8 → 16",
       .claim = "the GPU no longer waits for data",
       .settings = workers_of({"0", "4", "8", "16"})});
  add({.name = "persistent_workers",
       .what = "persistent_workers false → true",
       .claim = "no restart of workers at every epoch",
       .settings = values_of("model.train_ds.persistent_workers", {"false", "true"}),
       .overrides = {"trainer.limit_train_batches=8"},
       .note = "loader threads always stay between epochs here, so the key changes nothing; epochs "
               "of 8 batches"});
  add({.name = "prefetch",
       .what = "prefetch_factor 2 → 4 → 8",
       .claim = "smooths out slow batches",
       .settings = values_of("model.train_ds.prefetch_factor", {"2", "4", "8"})});
  add({.name = "pin_memory",
       .what = "pin_memory false → true",
       .claim = "faster copies to the GPU",
       .settings = values_of("model.train_ds.pin_memory", {"false", "true"}),
       .gpus = 1,
       .note = "without a GPU nothing is copied"});
  add({.name = "tarred",
       .what = "plain files → tar shards",
       .claim = "faster reading of many small files",
       .settings = {setting("files", {}), setting("tar", {}, ClaimData::kTarred)},
       .note =
           "the files are in the page cache here; on a network or rotational disk seeks count"});
  add({.name = "packed",
       .what = "plain files → packed cache",
       .claim = "decoded once: the loader costs less",
       .settings = {setting("files", {}), setting("packed", {}, ClaimData::kPacked)}});
  const std::string all = small ? "6" : "30", half = small ? "3" : "15";
  add({.name = "max_duration",
       .what = str_cat("max_duration ", all, " → ", half, " s"),
       .claim = "less padding and memory, faster steps",
       .settings = {setting(all, {train_ds("max_duration", all)}, ClaimData::kMixed),
                    setting(half, {train_ds("max_duration", half)}, ClaimData::kMixed)},
       .note = "longer clips are left out of training"});
  add({.name = "fp16",
       .what = "precision 32 → 16-mixed",
       .claim = "faster, half the memory of activations",
       .settings = values_of("trainer.precision", {"32", "16-mixed"}),
       .gpus = 1});
  add({.name = "bf16",
       .what = "precision 32 → bf16-mixed",
       .claim = "faster, half the memory of activations",
       .settings = values_of("trainer.precision", {"32", "bf16-mixed"})});
  add({.name = "accumulation",
       .what = "accumulate_grad_batches 1 → 4",
       .claim = "a larger effective batch, no more memory",
       .promise = Promise::kNoMemory,
       .settings = values_of("trainer.accumulate_grad_batches", {"1", "4"}),
       .note = "fewer updates of the same data: not the same training"});
  add({.name = "log_every_n_steps",
       .what = "log_every_n_steps 10 → 50",
       .claim = "less overhead",
       .settings = values_of("trainer.log_every_n_steps", {"10", "50"}),
       // The shorter a step, the more a log line costs of it.
       .overrides = {train_ds("batch_size", "2")},
       .least_steps = 230});
  add(small ? validation_row("val_check_interval", "val_check_interval 5 → 25", "less time lost", 5,
                             25, 110, 2)
            : validation_row("val_check_interval", "val_check_interval 10 → 50", "less time lost",
                             10, 50, 210, 4));
  add({.name = "captured_step",
       .what = "eager → captured step (compile, reduce-overhead)",
       .claim = "no launch overhead: faster small batches",
       .settings = {setting("eager", {"aerie.engine=reference"}),
                    setting("captured", {"aerie.engine=fast"})},
       .overrides = {"trainer.precision=bf16-mixed"},
       .gpus = 1,
       .note = "the fast engine also has kernels of its own"});
  add(ranks_row("gradient_as_bucket_view", "gradient_as_bucket_view false → true",
                "saves a copy of the gradients",
                values_of("trainer.strategy.gradient_as_bucket_view", {"false", "true"}),
                "one copy of all gradients a step"));
  add(ranks_row("static_graph", "static_graph false → true", "no search for unused parameters",
                values_of("trainer.strategy.static_graph", {"false", "true"}),
                "this model uses all of its parameters in every step"));
  add(ranks_row("bucket_cap_mb", "bucket_cap_mb 5 → 25 → 100", "fewer, larger all-reduces",
                values_of("trainer.strategy.bucket_cap_mb", {"5", "25", "100"}),
                "larger buckets also overlap less with the backward pass"));
  const std::string wide = small ? "96" : "512", narrow = small ? "48" : "256";
  add({.name = "d_model",
       .what = str_cat("d_model ", wide, " → ", narrow),
       .claim = "faster, a smaller model",
       .settings = values_of("model.encoder.d_model", {wide, narrow}),
       .note = "another model: it learns less"});
  const std::string deep = small ? "4" : "17", shallow = small ? "2" : "8";
  add({.name = "n_layers",
       .what = str_cat("n_layers ", deep, " → ", shallow),
       .claim = "faster, a smaller model",
       .settings = values_of("model.encoder.n_layers", {deep, shallow}),
       .note = "another model: it learns less"});
  const std::string precision = small ? "32" : "bf16-mixed";
  add({.name = "all",
       .what = str_cat("all together: batch 2, no workers, 32 → batch 32, 8 workers, prefetch 4, ",
                       precision),
       .claim = "3-10x",
       .promise = Promise::kInput,
       .low = 3.0,
       .high = 10.0,
       .settings = {setting("untuned", {train_ds("batch_size", "2"), train_ds("num_workers", "0"),
                                        train_ds("persistent_workers", "false"),
                                        train_ds("prefetch_factor", "null"),
                                        train_ds("pin_memory", "false"), "trainer.precision=32",
                                        str_cat("trainer.log_every_n_steps=", small ? 1 : 10)}),
                    setting(
                        "tuned",
                        {train_ds("batch_size", "32"), train_ds("num_workers", "8"),
                         train_ds("persistent_workers", "true"), train_ds("prefetch_factor", "4"),
                         train_ds("pin_memory", "true"), "trainer.precision=" + precision,
                         str_cat("trainer.log_every_n_steps=", small ? 1 : 50)})},
       .least_steps = small ? 0 : 120});
  return out;
}

std::vector<ClaimRow> bev_rows(bool small) {
  const std::string batch = "model.train_ds.batch_size";
  std::vector<ClaimRow> out;
  const auto add = [&](ClaimRow row) { out.push_back(std::move(row)); };
  // The guide's figures are iterations a second: 7.45 at batch 4.
  add({.name = "batch_4_6",
       .what = "samples_per_gpu 4 → 6",
       .claim = "5-6 iter/s after 7.45: 0.67-0.81x",
       .promise = Promise::kSteps,
       .low = 5.0 / 7.45,
       .high = 6.0 / 7.45,
       .settings = values_of(batch, {"4", "6"})});
  add({.name = "batch_4_8",
       .what = "samples_per_gpu 4 → 8",
       .claim = "\"51 % slower\": 3.64 iter/s after 7.45, 0.49x",
       .promise = Promise::kSteps,
       .low = 3.64 / 7.45,
       .high = 3.64 / 7.45,
       .settings = values_of(batch, {"4", "8"}),
       .note = "an iteration of twice the samples: samples a second is what counts"});
  add({.name = "fp16",
       .what = "float32 → fp16",
       .claim = "8-9 iter/s after 7.45: 1.07-1.21x",
       .promise = Promise::kInput,
       .low = 8.0 / 7.45,
       .high = 9.0 / 7.45,
       .settings = values_of("trainer.precision", {"32", "16-mixed"}),
       .gpus = 1});
  add({.name = "workers",
       .what = "workers_per_gpu 8 → 12 → 16",
       .claim = "the GPU no longer waits for data",
       .settings = workers_of({"8", "12", "16"})});
  add({.name = "prefetch",
       .what = "prefetch_factor 4 → 8",
       .claim = "smooths out slow batches",
       .settings = values_of("model.train_ds.prefetch_factor", {"4", "8"})});
  add({.name = "compile",
       .what = "eager → compile, reduce-overhead",
       .claim = "slow first step, then faster",
       .settings = values_of("aerie.compile.enabled", {"false", "true"}),
       .gpus = 1});
  add({.name = "accumulation",
       .what = "accumulative_counts 1 → 2",
       .claim = "batch 4 acts as 8, no more memory",
       .promise = Promise::kNoMemory,
       .settings = values_of("trainer.accumulate_grad_batches", {"1", "2"})});
  add(small ? validation_row("evaluation_interval", "evaluation.interval doubled", "less time lost",
                             4, 8, 20, 1)
            : validation_row("evaluation_interval", "evaluation.interval doubled", "less time lost",
                             20, 40, 110, 4));
  add({.name = "loss_scale",
       .what = "loss_scale 512 → 128",
       .claim = "\"lower it for speed\"",
       .settings =
           values_of("aerie.loss_scale", {"512.0", "128.0"}, {"trainer.precision=16-mixed"}),
       .gpus = 1,
       .note = "the scale is a factor of the loss; the same kernels run whatever it is"});
  add({.name = "all",
       .what = "baseline → speed: fp16, 16 workers, prefetch 8",
       .claim = "8-9 iter/s after 7.45: 1.07-1.21x",
       .promise = Promise::kInput,
       .low = 8.0 / 7.45,
       .high = 9.0 / 7.45,
       .settings = {setting("baseline", {"trainer.precision=32", train_ds("num_workers", "8")}),
                    setting("speed",
                            {str_cat("trainer.precision=", small ? "32" : "16-mixed"),
                             train_ds("num_workers", "16"), train_ds("prefetch_factor", "8")})},
       .note = small ? "without fp16, which needs a GPU" : ""});
  return out;
}

}  // namespace

std::vector<ClaimRow> claim_rows(const ClaimProfile& profile) {
  return profile.model == "bev" ? bev_rows(profile.small) : nest_rows(profile.small);
}

std::vector<std::string> claim_base(const ClaimProfile& profile) {
  // Nothing but steps, as far as a row does not say so.
  Overrides out{"trainer.limit_val_batches=0", "trainer.num_sanity_val_steps=0",
                "exp_manager.create_checkpoint_callback=false",
                "exp_manager.create_tensorboard_logger=false"};
  const auto add = [&](const Overrides& more) { out.insert(out.end(), more.begin(), more.end()); };
  if (profile.model == "bev") {
    add({train_ds("num_workers", profile.small ? "1" : "8")});
    return out;
  }
  // An interval of validation may be longer than an epoch.
  add({"trainer.check_val_every_n_epoch=null"});
  if (profile.small)
    add({"model.num_classes=64", "model.encoder.n_layers=2", "model.encoder.d_model=96",
         "model.encoder.n_heads=4", "model.encoder.subsampling_conv_channels=16",
         train_ds("batch_size", "8"), train_ds("num_workers", "1"),
         train_ds("persistent_workers", "true"), train_ds("prefetch_factor", "2")});
  else
    add({"trainer.precision=bf16-mixed", train_ds("batch_size", "16"), train_ds("num_workers", "8"),
         train_ds("persistent_workers", "true"), train_ds("prefetch_factor", "2")});
  return out;
}

}  // namespace aerie::advisor
