#include <algorithm>
#include <filesystem>

#include "aerie/config/schema/targets.h"
#include "aerie/data/speech/config/path_list.h"
#include "aerie/data/speech/config/speech_keys.h"
#include "aerie/data/speech/config/speech_schema.h"

namespace aerie::config {
namespace {

void read_paths(const NodeReader& node, std::string_view key, PathList& out) {
  // NodeReader::find() hides `???`, which must be remembered here.
  const Value* value = node.is_map() ? node.node()->child(key) : nullptr;
  if (value == nullptr) return;
  auto parsed = parse_path_list(*value);
  if (parsed.ok())
    out = std::move(parsed).value();
  else
    node.fail(key, *value, parsed.status().message());
}

std::optional<BatchAugmentorConfig> build_batch_augmentor(const NodeReader& node) {
  if (!node.is_map()) return std::nullopt;
  BatchAugmentorConfig out;
  if (const Value* target = node.find("_target_"); target && target->is_string())
    out.kind = find_target(speech_targets(), "model.<ds>.batch_augmentor", target->as_string()) ==
                       "SpeakerNoiseAugmentation"
                   ? BatchAugmentorConfig::Kind::kSpeakerNoise
                   : BatchAugmentorConfig::Kind::kMultiSpeakerNoise;
  node.read("prob", out.prob);
  node.read("noise_ratio", out.noise_ratio);
  node.read("min_r_speech", out.min_r_speech);
  node.read("max_r_speech", out.max_r_speech);
  node.read("min_r_noise", out.min_r_noise);
  node.read("max_r_noise", out.max_r_noise);
  node.read("min_mix_rate", out.min_mix_rate);
  node.read("max_mix_rate", out.max_mix_rate);
  node.read("min_num_segments", out.min_num_segments);
  node.read("max_num_segments", out.max_num_segments);
  node.read("min_num_speakers", out.min_num_speakers);
  node.read("max_num_speakers", out.max_num_speakers);
  return out;
}

std::vector<PerturbationConfig> build_augmentor(const NodeReader& node) {
  std::vector<PerturbationConfig> list;
  if (!node.is_map()) return list;
  for (const MapEntry& entry : node.node()->as_map()) {
    const NodeReader item = node.child(entry.key);
    if (!item.is_map()) continue;
    PerturbationConfig out;
    out.name = entry.key;
    item.read("prob", out.prob);
    if (entry.key == "speed") {
      SpeedPerturbation params;
      item.read("sr", params.sr);
      item.read("resample_type", params.resample_type);
      item.read("min_speed_rate", params.min_speed_rate);
      item.read("max_speed_rate", params.max_speed_rate);
      item.read("num_rates", params.num_rates);
      out.params = params;
    } else if (entry.key == "gain") {
      GainPerturbation params;
      item.read("min_gain_dbfs", params.min_gain_dbfs);
      item.read("max_gain_dbfs", params.max_gain_dbfs);
      out.params = params;
    } else if (entry.key == "shift") {
      ShiftPerturbation params;
      item.read("min_shift_ms", params.min_shift_ms);
      item.read("max_shift_ms", params.max_shift_ms);
      out.params = params;
    } else if (entry.key == "white_noise") {
      WhiteNoisePerturbation params;
      item.read("min_level", params.min_level);
      item.read("max_level", params.max_level);
      out.params = params;
    } else {
      item.fail("prob", entry.value, str_cat("perturbation '", entry.key, "' is not built in"));
      continue;
    }
    list.push_back(std::move(out));
  }
  return list;
}

void read_channel_selector(const NodeReader& node, ChannelSelector& out) {
  const Value* value = node.find("channel_selector");
  if (value == nullptr || value->is_null()) return;
  if (value->is_string()) {
    out.kind = ChannelSelector::Kind::kAverage;
    return;
  }
  out.kind = ChannelSelector::Kind::kIndices;
  node.read("channel_selector", out.indices);
}

DatasetConfig build_dataset(const NodeReader& node, int64_t sample_rate) {
  DatasetConfig out;
  if (const Value* name = node.find("name"); name && name->is_string())
    out.name = name->as_string();
  read_paths(node, "manifest_filepath", out.manifest_filepath);
  read_paths(node, "noise_manifest", out.noise_manifest);
  out.sample_rate = sample_rate;
  node.read("sample_rate", out.sample_rate);
  node.read("batch_size", out.batch_size);
  node.read("shuffle", out.shuffle);
  node.read("drop_last", out.drop_last);
  if (const Value* workers = node.find("num_workers"); workers && workers->is_string())
    out.num_workers = DatasetConfig::kAutoWorkers;
  else
    node.read("num_workers", out.num_workers);
  node.read("pin_memory", out.pin_memory);
  node.read("prefetch_factor", out.prefetch_factor);
  node.read("persistent_workers", out.persistent_workers);
  node.read("min_duration", out.min_duration);
  node.read("max_duration", out.max_duration);
  node.read("trim_silence", out.trim_silence);
  node.read("int_values", out.int_values);
  read_channel_selector(node, out.channel_selector);
  node.read("defer_setup", out.defer_setup);
  out.batch_augmentor = build_batch_augmentor(node.child("batch_augmentor"));
  out.augmentor = build_augmentor(node.child("augmentor"));

  node.read("is_concat", out.is_concat);
  if (const Value* value = node.find("concat_sampling_technique"); value && value->is_null())
    out.concat_sampling_technique = ConcatTechnique::kRoundRobin;
  node.read_enum("concat_sampling_technique", out.concat_sampling_technique,
                 {{"temperature", ConcatTechnique::kTemperature},
                  {"random", ConcatTechnique::kRandom},
                  {"round-robin", ConcatTechnique::kRoundRobin}});
  node.read("concat_sampling_temperature", out.concat_sampling_temperature);
  node.read("concat_sampling_probabilities", out.concat_sampling_probabilities);
  node.read("concat_sampling_scale", out.concat_sampling_scale);
  node.read("concat_shuffle", out.concat_shuffle);
  node.read("concat_sampling_seed", out.concat_sampling_seed);

  node.read("is_tarred", out.is_tarred);
  read_paths(node, "tarred_audio_filepaths", out.tarred_audio_filepaths);
  node.read("shuffle_n", out.shuffle_n);
  node.read_enum("tarred_shard_strategy", out.tarred_shard_strategy,
                 {{"scatter", ShardStrategy::kScatter}, {"replicate", ShardStrategy::kReplicate}});

  node.read_enum("bucketing_strategy", out.bucketing_strategy,
                 {{"fixed_order", BucketingStrategy::kFixedOrder},
                  {"synced_randomized", BucketingStrategy::kSyncedRandomized},
                  {"fully_randomized", BucketingStrategy::kFullyRandomized}});
  node.read("bucketing_weights", out.bucketing_weights);
  node.read("bucketing_batch_size", out.bucketing_batch_size);
  if (const Value* sizes = node.find("bucketing_batch_size"))
    out.bucketing_batch_size_is_list = sizes->is_list();

  node.read("use_lhotse", out.use_lhotse);
  node.read("batch_duration", out.batch_duration);
  node.read("quadratic_duration", out.quadratic_duration);
  node.read("use_bucketing", out.use_bucketing);
  node.read("num_buckets", out.num_buckets);
  node.read("bucket_duration_bins", out.bucket_duration_bins);
  node.read("bucket_batch_size", out.bucket_batch_size);
  if (node.given("use_lhotse") && !out.use_lhotse) {
    // Turned off in so many words: as NeMo, which then reads none of its keys.
    out.use_bucketing = false;
    out.batch_duration.reset();
    out.quadratic_duration.reset();
    out.bucket_duration_bins.clear();
    out.bucket_batch_size.clear();
  }
  node.read("num_cuts_for_bins_estimate", out.num_cuts_for_bins_estimate);
  node.read("bucket_buffer_size", out.bucket_buffer_size);
  node.read("shuffle_buffer_size", out.shuffle_buffer_size);
  if (const Value* seed = node.find("seed"); seed && seed->is_number()) node.read("seed", out.seed);
  node.read("skip_missing_manifest_entries", out.skip_missing_manifest_entries);
  bool random_access = false;
  node.read("tarred_random_access", random_access);
  out.skip_missing_manifest_entries = out.skip_missing_manifest_entries || random_access;
  node.read("force_finite", out.force_finite);
  return out;
}

// NeMo makes one loader of each manifest of a plain list, or of each node of ds_item.
std::vector<DatasetConfig> build_loaders(const NodeReader& node, int64_t sample_rate,
                                         int64_t dl_idx) {
  std::vector<DatasetConfig> loaders;
  if (!node.is_map()) return loaders;
  if (const Value* items = node.find("ds_item"); items && items->is_list()) {
    const NodeReader list = node.child("ds_item");
    for (size_t i = 0; i < items->as_list().size(); ++i) {
      DatasetConfig one = build_dataset(list.item(i), sample_rate);
      if (one.name.empty() && !one.manifest_filepath.empty())
        one.name = one.manifest_filepath.groups[0][0];
      one.name = dataset_metric_name(one.name);
      loaders.push_back(std::move(one));
    }
    return loaders;
  }
  DatasetConfig all = build_dataset(node, sample_rate);
  const PathList& manifests = all.manifest_filepath;
  if (manifests.empty() && !manifests.is_missing) return loaders;
  std::vector<std::string> names;
  node.read("name", names);
  const bool split =
      manifests.is_list && !manifests.is_nested && manifests.groups.size() > 1 && dl_idx >= 0;
  if (!split) {
    all.name = names.empty() ? "" : dataset_metric_name(names[0]);
    loaders.push_back(std::move(all));
    return loaders;
  }
  const PathList& tars = all.tarred_audio_filepaths;
  const bool pair_tars = tars.is_list && tars.groups.size() == manifests.groups.size();
  for (size_t i = 0; i < manifests.groups.size(); ++i) {
    DatasetConfig one = all;
    one.manifest_filepath.groups = {manifests.groups[i]};
    one.manifest_filepath.is_list = false;
    if (pair_tars) {
      one.tarred_audio_filepaths.groups = {tars.groups[i]};
      one.tarred_audio_filepaths.is_list = tars.is_nested;
      one.tarred_audio_filepaths.is_nested = false;
    }
    const std::string& source = i < names.size() ? names[i] : manifests.groups[i][0];
    one.name = dataset_metric_name(source);
    if (one.name.empty())
      node.fail("manifest_filepath", *node.find("manifest_filepath"),
                str_cat("'", source, "' leaves no name for its metrics; rename the file or give ",
                        node.path(), ".name"));
    loaders.push_back(std::move(one));
  }
  return loaders;
}

}  // namespace

std::string dataset_metric_name(std::string_view manifest_or_name) {
  std::string name(manifest_or_name);
  // NeMo takes the stem of what exists on disk; a path that does not exist yet gets the same name.
  if (name.find('/') != std::string::npos || ends_with(name, ".json") || ends_with(name, ".jsonl"))
    name = std::filesystem::path(name).stem().string();
  std::replace(name.begin(), name.end(), '-', '_');
  for (const std::string_view word : {"manifest", "dataset"})
    for (size_t at = name.find(word); at != std::string::npos; at = name.find(word))
      name.erase(at, word.size());
  if (!name.empty() && name.back() != '_') name += '_';
  return name;
}

void build_datasets(const NodeReader& model, int64_t sample_rate, SpeechDatasets& out) {
  out.train_ds = build_dataset(model.child("train_ds"), sample_rate);
  model.child("validation_ds").read("val_dl_idx", out.val_dl_idx);
  model.child("test_ds").read("test_dl_idx", out.test_dl_idx);
  out.validation_ds = build_loaders(model.child("validation_ds"), sample_rate, out.val_dl_idx);
  out.test_ds = build_loaders(model.child("test_ds"), sample_rate, out.test_dl_idx);
}

}  // namespace aerie::config
