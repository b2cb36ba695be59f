// Rules about data sets, and when their keys are idle.
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/data/speech/config/speech_keys.h"
#include "aerie/data/speech/config/speech_schema.h"

namespace aerie::config {
namespace {

class DatasetCheck {
 public:
  DatasetCheck(CheckContext& context, std::string path) : context_(context), path_(path + ".") {}

  void run() {
    check_loader();
    check_concat();
    check_tar_and_buckets();
    if (context_.written(path_ + "batch_augmentor") != nullptr) check_augmentor();
    check_ordered("min_duration", "max_duration");
    check_ordered("augmentor.speed.min_speed_rate", "augmentor.speed.max_speed_rate");
    check_ordered("augmentor.gain.min_gain_dbfs", "augmentor.gain.max_gain_dbfs");
    check_ordered("augmentor.shift.min_shift_ms", "augmentor.shift.max_shift_ms");
    check_ordered("augmentor.white_noise.min_level", "augmentor.white_noise.max_level");
  }

 private:
  size_t list_size(const std::string& key) const {
    const Value* value = context_.written(path_ + key);
    return value != nullptr && value->is_list() ? value->as_list().size() : 0;
  }
  bool flag(const std::string& key) const { return context_.flag(path_ + key).value_or(false); }

  void check_ordered(const std::string& low, const std::string& high) {
    const auto least = context_.number(path_ + low);
    const auto most = context_.number(path_ + high);
    const size_t dot = low.rfind('.');
    if (dot != std::string::npos && context_.written(path_ + low.substr(0, dot)) == nullptr) return;
    if (least && most && *least > *most)
      context_.error(path_ + low, str_cat("is ", *least, ", above ", high, " = ", *most));
  }

  void check_loader() {
    const auto workers = context_.integer(path_ + "num_workers");
    if (workers && *workers == 0) {
      if (context_.written(path_ + "prefetch_factor") != nullptr)
        context_.error(path_ + "prefetch_factor", "must be null when num_workers is 0",
                       str_cat("set ", path_, "prefetch_factor=null or num_workers above 0"));
      if (flag("persistent_workers"))
        context_.error(path_ + "persistent_workers", "must be false when num_workers is 0",
                       str_cat("set ", path_, "persistent_workers=false or num_workers above 0"));
    }
    const bool has_batch = context_.written(path_ + "batch_size") != nullptr;
    const bool has_other = context_.written(path_ + "batch_duration") != nullptr ||
                           context_.written(path_ + "bucket_batch_size") != nullptr;
    if (context_.text(path_ + "batch_size") == "auto") {
      if (path_ != "model.train_ds.")
        context_.error(path_ + "batch_size", "auto is for model.train_ds alone", "write a number");
      if (has_other || context_.written(path_ + "bucketing_batch_size") != nullptr)
        context_.error(path_ + "batch_size", "is auto, and another key says how large batches are",
                       "leave out batch_duration, bucket_batch_size and bucketing_batch_size, or "
                       "let `aerie tune` change them");
    }
    const bool has_items = context_.written(path_ + "ds_item") != nullptr;
    if (!has_batch && !has_other && !has_items)
      context_.error(path_ + "batch_size", "is needed",
                     "or batch_duration, or bucket_batch_size, with use_lhotse");
    const bool off = context_.written(path_ + "use_lhotse") != nullptr && !flag("use_lhotse");
    if (off && (has_other || flag("use_bucketing")))
      context_.warn(path_ + "use_lhotse",
                    "is false: use_bucketing, batch_duration and bucket_batch_size have no effect",
                    str_cat("set ", path_, "use_lhotse=true, or leave it out"));
    const size_t bins = list_size("bucket_duration_bins");
    const size_t sizes = list_size("bucket_batch_size");
    // Bins are upper bounds: as many as buckets, or one less with the last bucket open.
    if (bins > 0 && sizes > 0 && sizes != bins && sizes != bins + 1)
      context_.error(path_ + "bucket_batch_size",
                     str_cat("has ", sizes, " values for ", bins, " bucket_duration_bins"));
    const Value* list = context_.written(path_ + "bucket_duration_bins");
    if (list != nullptr && list->is_list())
      for (size_t i = 1; i < list->as_list().size(); ++i) {
        const Value& before = list->as_list()[i - 1];
        const Value& here = list->as_list()[i];
        if (before.is_number() && here.is_number() && before.as_float() >= here.as_float()) {
          context_.error(path_ + "bucket_duration_bins", "must increase");
          break;
        }
      }
  }

  void check_concat() {
    if (!flag("is_concat")) return;
    const Value* probabilities = context_.written(path_ + "concat_sampling_probabilities");
    if (probabilities == nullptr || !probabilities->is_list()) return;
    double sum = 0;
    for (const Value& item : probabilities->as_list())
      sum += item.is_number() ? item.as_float() : 0;
    const std::string key = path_ + "concat_sampling_probabilities";
    if (std::fabs(sum - 1) > 1e-6)
      context_.error(key, str_cat("need to sum to 1 within 1e-6, they sum to ", sum));
    const size_t sets = list_size("manifest_filepath");
    if (sets > 0 && probabilities->as_list().size() != sets)
      context_.error(key, str_cat("has ", probabilities->as_list().size(), " values for ", sets,
                                  " manifests"));
  }

  void check_tar_and_buckets() {
    const bool tarred = flag("is_tarred");
    const Value* tars = context_.written(path_ + "tarred_audio_filepaths");
    const Value* manifests = context_.written(path_ + "manifest_filepath");
    if (tarred && tars == nullptr && manifests != nullptr)
      context_.error(path_ + "tarred_audio_filepaths", "is needed when is_tarred is true");
    if (!tarred && tars != nullptr)
      context_.warn(path_ + "is_tarred", "is false, so tarred_audio_filepaths is not read",
                    str_cat("set ", path_, "is_tarred=true"));
    const auto nested = [](const Value* value) {
      return value != nullptr && value->is_list() && !value->as_list().empty() &&
             value->as_list()[0].is_list();
    };
    if (tarred && nested(tars) && nested(manifests) &&
        tars->as_list().size() != manifests->as_list().size())
      context_.error(path_ + "tarred_audio_filepaths",
                     str_cat("has ", tars->as_list().size(), " buckets, manifest_filepath has ",
                             manifests->as_list().size()));
    if (context_.written(path_ + "bucketing_batch_size") != nullptr) {
      const auto batch = context_.integer(path_ + "batch_size");
      if (batch && *batch != 1)
        context_.error(path_ + "batch_size",
                       str_cat("is ", *batch, "; bucketing_batch_size needs it to be 1"));
    }
    const size_t buckets = nested(tars)        ? tars->as_list().size()
                           : nested(manifests) ? manifests->as_list().size()
                                               : 0;
    for (const char* key : {"bucketing_weights", "bucketing_batch_size"}) {
      const size_t size = list_size(key);
      if (size > 0 && buckets > 0 && size != buckets)
        context_.error(path_ + key, str_cat("has ", size, " values for ", buckets, " buckets"));
    }
  }

  void check_augmentor() {
    for (const char* what : {"r_speech", "r_noise", "mix_rate", "num_segments", "num_speakers"})
      check_ordered(str_cat("batch_augmentor.min_", what), str_cat("batch_augmentor.max_", what));
  }

  CheckContext& context_;
  std::string path_;
};

bool not_tarred(const Situation& s) {
  return s.off(s.node + "is_tarred");
}
bool not_concat(const Situation& s) {
  return s.off(s.node + "is_concat");
}
bool no_bucket_lists(const Situation& s) {
  const Value* manifests = s.config.written(s.node + "manifest_filepath");
  return manifests == nullptr || !manifests->is_list() || manifests->as_list().empty() ||
         !manifests->as_list().front().is_list();
}

constexpr std::string_view kNotTarred = "is_tarred is false";
constexpr std::string_view kNotConcat = "is_concat is false";
constexpr std::string_view kNoBuckets = "manifest_filepath is no list of lists";

constexpr IdleRule kRules[] = {
    {"model.<ds>.pin_memory", [](const Situation& s) { return !s.gpu; }, "the run is on the CPU"},
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
    {"aerie.data.build_cache", [](const Situation& s) { return s.absent("aerie.data.cache_dir"); },
     "aerie.data.cache_dir is null"},
    {"aerie.data.cache_format",
     [](const Situation& s) {
       return s.absent("aerie.data.cache_dir") || s.off("aerie.data.build_cache");
     },
     "aerie.data.build_cache is false"},
};

}  // namespace

std::span<const IdleRule> speech_idle_rules() {
  return kRules;
}

void check_datasets(CheckContext& context) {
  for (const char* name : {"train_ds", "validation_ds", "test_ds"}) {
    const std::string path = str_cat("model.", name);
    const Value* node = context.written(path);
    if (node == nullptr || !node->is_map()) continue;
    DatasetCheck(context, path).run();
    const Value* items = context.written(path + ".ds_item");
    if (items != nullptr && items->is_list())
      for (size_t i = 0; i < items->as_list().size(); ++i)
        if (items->as_list()[i].is_map())
          DatasetCheck(context, str_cat(path, ".ds_item.", i)).run();
    if (std::string_view(name) == "train_ds") {
      if (items != nullptr)
        context.error("model.train_ds.ds_item", "is for validation_ds and test_ds",
                      "train_ds takes a list in manifest_filepath");
      continue;
    }
    const Value* names = context.written(path + ".name");
    const Value* manifests = context.written(path + ".manifest_filepath");
    if (names != nullptr && manifests != nullptr) {
      const size_t loaders = manifests->is_list() ? manifests->as_list().size() : 1;
      const size_t given = names->is_list() ? names->as_list().size() : 1;
      if (loaders != given)
        context.error(path + ".name", str_cat("gives ", given, " names for ", loaders, " loaders"));
    }
  }
}

}  // namespace aerie::config
