// Rules about several keys of a nuScenes data set, and when keys are idle.
#include <algorithm>
#include <cmath>
#include <set>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/data/nuscenes/config/data_keys.h"
#include "aerie/data/nuscenes/config/data_schema.h"

namespace aerie::nuscenes {
namespace {

using config::CheckContext;
using config::Value;

constexpr int64_t kMostCells = 4096;  // along one side of the grid

template <size_t kCount>
std::vector<std::string> as_strings(const std::string_view (&names)[kCount]) {
  return {std::begin(names), std::end(names)};
}

// Which of the official splits a version's tables hold; empty: nobody knows.
std::vector<std::string> splits_of_version(std::string_view version) {
  if (ends_with(version, "mini")) return {"train", "val", "mini_train", "mini_val"};
  if (ends_with(version, "trainval"))
    return {"train", "val", "train_detect", "train_track", "mini_train", "mini_val"};
  if (ends_with(version, "test")) return {"test"};
  return {};
}

bool is_official(std::string_view split) {
  for (const std::string_view name :
       {"train", "val", "test", "train_detect", "train_track", "mini_train", "mini_val"})
    if (split == name) return true;
  return false;
}

class DatasetCheck {
 public:
  DatasetCheck(CheckContext& context, DataRole role, const std::string& path)
      : context_(context), role_(role), path_(path + ".") {}

  void run() {
    check_data();
    check_loader();
    check_evaluation();
    check_cameras();
    check_pairs();
    check_gt();
  }

 private:
  bool flag(const std::string& key) const { return context_.flag(path_ + key).value_or(false); }
  const Value* written(const std::string& key) const { return context_.written(path_ + key); }
  void error(const std::string& key, std::string message, std::string hint = {}) {
    context_.error(path_ + key, std::move(message), std::move(hint));
  }

  void check_data() {
    const auto root = context_.text(path_ + "root");
    const auto data_root = context_.text(path_ + "data_root");
    if (root && data_root && written("root") != nullptr && written("data_root") != nullptr &&
        *root != *data_root)
      error("data_root", str_cat("is ", *data_root, " and root is ", *root),
            "both mean the same: write one");
    const Value* version = written("version");
    const Value* split = written("split");
    if (version == nullptr || !version->is_string()) return;
    const std::vector<std::string> there = splits_of_version(version->as_string());
    if (there.empty()) return;
    DataConfig named;
    named.role = role_;
    if (split != nullptr && split->is_string()) named.split = split->as_string();
    const std::string name = named.split_name();
    // An own split may have any name.
    if (const Value* own = written("splits");
        own != nullptr && own->is_map() && own->as_map().contains(name))
      return;
    if (is_official(name) && std::find(there.begin(), there.end(), name) == there.end())
      error("split", str_cat("'", name, "' is not in ", version->as_string()),
            str_cat("it has ", join(there, ", "), "; or give splits: {", name, ": FILE}"));
  }

  void check_loader() {
    const auto workers = context_.integer(path_ + "num_workers");
    if (!workers || *workers != 0) return;
    if (written("prefetch_factor") != nullptr)
      error("prefetch_factor", "must be null when num_workers is 0",
            "batches are then made in the training thread; set num_workers above 0 or "
            "prefetch_factor=null");
    if (flag("persistent_workers"))
      error("persistent_workers", "must be false when num_workers is 0",
            "there are no workers to keep; set num_workers above 0 or persistent_workers=false");
  }

  // What would make figures of an evaluation wrong or not comparable.
  void check_evaluation() {
    if (role_ == DataRole::kTrain) return;
    if (context_.text(path_ + "batch_size") == "auto")
      error("batch_size", "auto is for model.train_ds alone", "write a number");
    if (context_.text(path_ + "decode") == "scaled")
      error("decode", "scaled is for training: evaluation always decodes exactly",
            "leave it out, or write exact");
    if (context_.text(path_ + "sampler.type") == "cbgs")
      error("sampler.type", "cbgs repeats samples: an evaluation counts each once",
            "leave it out, or write random");
    if (context_.integer(path_ + "sampler.repeat").value_or(1) > 1)
      error("sampler.repeat", "an evaluation counts each sample once", "leave it out");
    if (const Value* cameras = written("cameras");
        cameras != nullptr && cameras->is_number() && cameras->as_float() < 6)
      error("cameras", "a number draws other cameras for every sample: training only",
            "name the cameras, or leave it out for all six");
  }

  void check_cameras() {
    const Value* cameras = written("cameras");
    if (cameras == nullptr || !cameras->is_list()) return;
    if (cameras->as_list().empty()) return error("cameras", "is an empty list");
    std::set<std::string> seen;
    for (const Value& item : cameras->as_list()) {
      if (!item.is_string()) continue;
      const std::string& name = item.as_string();
      const std::vector<std::string> known = as_strings(kCameraNames);
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        const std::string near = nearest_name(name, known);
        error("cameras", str_cat("there is no camera '", name, "'"),
              near.empty() ? str_cat("there are ", join(known, ", "))
                           : str_cat("did you mean '", near, "'?"));
      } else if (!seen.insert(name).second) {
        error("cameras", str_cat("names ", name, " twice"));
      }
    }
  }

  // Two numbers, the first not above the second.
  void check_pair(const std::string& key) {
    const Value* value = written(key);
    if (value == nullptr || !value->is_list()) return;
    const config::List& list = value->as_list();
    if (list.size() != 2) return error(key, str_cat("has ", list.size(), " values, not 2"));
    if (key != "image.size" && list[0].is_number() && list[1].is_number() &&
        list[0].as_float() > list[1].as_float())
      error(key, str_cat("begins with ", list[0].as_float(), ", above ", list[1].as_float()));
  }

  void check_pairs() {
    for (const char* key : {"image.size", "image.resize_lim", "image.bot_pct_lim", "image.rot_lim",
                            "bev.scale_lim", "bev.rot_lim"})
      check_pair(key);
  }

  void check_bound(const std::string& key) {
    const Value* value = written(key);
    if (value == nullptr || !value->is_list()) return;
    const config::List& list = value->as_list();
    if (list.size() != 3)
      return error(key, str_cat("has ", list.size(), " values, not from, to and step"));
    for (const Value& item : list)
      if (!item.is_number()) return;
    const double from = list[0].as_float(), to = list[1].as_float(), step = list[2].as_float();
    if (!(from < to)) return error(key, str_cat("goes from ", from, " to ", to));
    if (!(step > 0)) return error(key, str_cat("has cells of ", step, " m"));
    const double cells = (to - from) / step;
    if (std::fabs(cells - std::round(cells)) > 1e-6 || cells < 0.5)
      return error(key, str_cat((to - from), " m are no whole number of cells of ", step, " m"));
    if (cells > static_cast<double>(kMostCells))
      error(key, str_cat("makes ", cells, " cells, more than ", kMostCells));
  }

  void check_gt() {
    check_bound("gt.xbound");
    check_bound("gt.ybound");
    const Value* classes = written("gt.classes");
    if (classes == nullptr || !classes->is_list()) return;
    if (classes->as_list().empty()) return error("gt.classes", "is an empty list");
    const auto task = context_.text(path_ + "gt.task");
    if (task && *task != "map")
      error("gt.classes", str_cat("belong to the map; gt.task is ", *task),
            "leave one of them out");
    const std::vector<std::string> known = as_strings(kMapClassNames);
    std::set<std::string> seen;
    for (const Value& item : classes->as_list()) {
      if (!item.is_string()) continue;
      const std::string& name = item.as_string();
      if (std::find(known.begin(), known.end(), name) == known.end()) {
        const std::string near = nearest_name(name, known);
        error("gt.classes", str_cat("there is no class '", name, "'"),
              near.empty() ? str_cat("there are ", join(known, ", "))
                           : str_cat("did you mean '", near, "'?"));
      } else if (!seen.insert(name).second) {
        error("gt.classes", str_cat("names ", name, " twice"));
      }
    }
  }

  CheckContext& context_;
  const DataRole role_;
  const std::string path_;
};

constexpr config::IdleRule kRules[] = {
    {"model.<ds>.pin_memory", [](const config::Situation& s) { return !s.gpu; },
     "the run is on the CPU"},
};

}  // namespace

std::span<const config::IdleRule> data_idle_rules() {
  return kRules;
}

void check_nuscenes_datasets(CheckContext& context) {
  constexpr std::pair<std::string_view, DataRole> kNodes[] = {
      {"model.train_ds", DataRole::kTrain},
      {"model.validation_ds", DataRole::kValidation},
      {"model.test_ds", DataRole::kTest}};
  for (const auto& [path, role] : kNodes) {
    const Value* node = context.written(path);
    if (node == nullptr || !node->is_map()) continue;
    DatasetCheck(context, role, std::string(path)).run();
  }
}

}  // namespace aerie::nuscenes
