#include <algorithm>
#include <filesystem>

#include "aerie/data/speech/config/speech_keys.h"
#include "aerie/data/speech/config/speech_schema.h"

namespace aerie::config {
namespace {

DatasetConfig build_dataset(const NodeReader& node, int64_t sample_rate) {
  DatasetConfig out;
  out.sample_rate = sample_rate;
  dataset_fields().read(node, out);
  if (node.given("use_lhotse") && !out.use_lhotse) {
    // Turned off in so many words: as NeMo, which then reads none of its keys.
    out.use_bucketing = false;
    out.batch_duration.reset();
    out.quadratic_duration.reset();
    out.bucket_duration_bins.clear();
    out.bucket_batch_size.clear();
  }
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
