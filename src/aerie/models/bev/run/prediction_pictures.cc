#include "aerie/models/bev/run/prediction_pictures.h"

#include <algorithm>

#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie::bev {
namespace {

constexpr const char* kStepFolder = "step_";

// Folders of validations below `folder`, the earliest first.
std::vector<std::pair<int64_t, std::string>> picture_folders(Env& env, const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> out;
  const auto entries = env.list_dir(folder);
  if (!entries.ok()) return out;
  for (const DirEntry& entry : *entries) {
    if (!entry.is_dir || !starts_with(entry.name, kStepFolder)) continue;
    const auto step = parse_int<int64_t>(entry.name.substr(std::string(kStepFolder).size()));
    if (step.ok()) out.emplace_back(*step, join_path(folder, entry.name));
  }
  std::sort(out.begin(), out.end());
  return out;
}

// Nothing but what this class writes is removed.
Status remove_pictures(Env& env, const std::string& folder) {
  AERIE_ASSIGN_OR_RETURN(const auto entries, env.list_dir(folder));
  for (const DirEntry& entry : entries)
    if (!entry.is_dir && ends_with(entry.name, ".jpg"))
      AERIE_RETURN_IF_ERROR(env.remove_file(join_path(folder, entry.name)));
  return env.remove_dir(folder);
}

}  // namespace

PredictionPictures::PredictionPictures(std::shared_ptr<const nuscenes::NuscenesDataset> dataset,
                                       int64_t count, int64_t batches, uint64_t seed)
    : dataset_(std::move(dataset)), seed_(seed) {
  const int64_t batch_size = std::max<int64_t>(1, dataset_->config().batch_size);
  const int64_t samples =
      std::min(batches * batch_size, static_cast<int64_t>(dataset_->samples()->size()));
  count = std::min(count, samples);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t number = (2 * i + 1) * samples / (2 * count);
    wanted_[number / batch_size].push_back(number % batch_size);
  }
}

bool PredictionPictures::wants(const data::Batch& batch) const {
  return wanted_.contains(batch.index_in_epoch());
}

Status PredictionPictures::take(const data::Batch& batch, std::span<const float> probability) {
  const int64_t number = batch.index_in_epoch();
  for (const int64_t row : wanted_.at(number)) {
    // Samples that could not be read may leave a batch with fewer.
    if (row >= batch.num_samples()) continue;
    AERIE_ASSIGN_OR_RETURN(seen_[std::pair(number, row)],
                           nuscenes::predicted_sample(batch, row, probability));
  }
  return ok_status();
}

Status PredictionPictures::write(Env& env, const std::string& run_dir, int64_t step,
                                 const std::vector<float>& thresholds) {
  if (seen_.empty()) return ok_status();
  const std::string all = join_path(run_dir, "pictures");
  const std::string folder = join_path(all, str_cat(kStepFolder, step));
  AERIE_RETURN_IF_ERROR(env.create_dirs(folder));
  nuscenes::PredictionSheetOptions options;
  options.title = str_cat("step ", step);
  options.thresholds = thresholds;
  options.seed = seed_;
  for (const auto& [place, sample] : seen_) {
    AERIE_ASSIGN_OR_RETURN(const image::Image sheet,
                           nuscenes::prediction_sheet(*dataset_, sample, options));
    AERIE_RETURN_IF_ERROR(nuscenes::write_picture(
        env, join_path(folder, nuscenes::prediction_file_name(*dataset_, sample) + ".jpg"), sheet));
  }
  seen_.clear();
  const auto folders = picture_folders(env, all);
  for (size_t i = 1; i + kKeptValidations < folders.size(); ++i)
    AERIE_RETURN_IF_ERROR(remove_pictures(env, folders[i].second));
  return ok_status();
}

}  // namespace aerie::bev
