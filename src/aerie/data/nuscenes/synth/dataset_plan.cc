#include "aerie/data/nuscenes/synth/dataset_plan.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/synth/town.h"
#include "aerie/data/nuscenes/tables/splits.h"

namespace aerie::nuscenes::synth {

namespace {

// v1.0-trainval.
constexpr double kSamples = 34149, kSampleData = 2631083, kInstances = 64386,
                 kAnnotations = 1166187, kScenes = 850, kLogs = 68;
// Where the ten scenes of v1.0-mini are, in the order of their names.
constexpr std::array<int, 10> kMiniLocations = {0, 3, 3, 3, 3, 2, 2, 1, 1, 1};

int default_samples(SynthSize size) {
  return size == SynthSize::kTiny ? 4 : 40;
}

void plan_logs(const std::string& version, DatasetPlan& plan) {
  const int count = static_cast<int>(plan.scenes.size());
  if (version == "v1.0-mini") {
    for (int i = 0; i < count; ++i) {
      plan.scenes[i].log = i;
      plan.log_locations.push_back(kMiniLocations[i]);
    }
  } else {
    const int logs = std::clamp(static_cast<int>(std::lround(count * kLogs / kScenes)),
                                std::min(count, 4), count);
    for (int i = 0; i < logs; ++i) plan.log_locations.push_back(i % kNumLocations);
    for (int i = 0; i < count; ++i) plan.scenes[i].log = i * logs / count;
  }
  for (SceneQuota& scene : plan.scenes) scene.location = plan.log_locations[scene.log];
}

}  // namespace

std::vector<std::string> scene_names(const std::string& version) {
  std::vector<std::string> names;
  const auto add = [&](const char* split) {
    for (std::string& name : official_split(split)) names.push_back(std::move(name));
  };
  if (version == "v1.0-mini") {
    add("mini_train");
    add("mini_val");
  } else if (version == "v1.0-trainval") {
    add("train");
    add("val");
  } else if (version == "v1.0-test") {
    add("test");
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<DatasetPlan> plan_dataset(const SynthOptions& options) {
  const std::string version = options.version_name();
  const std::vector<std::string> names = scene_names(version);
  const int count = options.scenes > 0 ? options.scenes : static_cast<int>(names.size());
  if (static_cast<size_t>(count) > names.size())
    return invalid_argument(str_cat("--scenes ", count, ": ", version, " has ", names.size()))
        .with_hint("--version v1.0-trainval has 850");
  DatasetPlan plan;
  plan.tables_only = options.size == SynthSize::kTablesOnly;
  const int each =
      options.samples_per_scene > 0 ? options.samples_per_scene : default_samples(options.size);
  // With nothing said, tables-only has exactly the published number of samples: 40 or 41 a scene.
  const bool published = plan.tables_only && options.samples_per_scene == 0;
  const double total =
      published ? std::round(kSamples * count / kScenes) : static_cast<double>(each) * count;
  plan.samples = static_cast<int64_t>(total);
  const auto share = [&](double whole, int64_t part, int64_t of) {
    return static_cast<int64_t>(
        std::floor(whole * static_cast<double>(part) / static_cast<double>(of)));
  };
  const double instances = std::round(kInstances * total / kSamples);
  const double annotations = std::round(kAnnotations * total / kSamples);
  for (int i = 0; i < count; ++i) {
    SceneQuota scene;
    scene.name = names[i];
    scene.first_sample = share(total, i, count);
    const int64_t after = share(total, i + 1, count);
    scene.samples = static_cast<int>(after - scene.first_sample);
    scene.actors = 26;
    if (plan.tables_only) {
      const auto quota = [&](double whole) {
        return static_cast<int>(share(whole, after, plan.samples) -
                                share(whole, scene.first_sample, plan.samples));
      };
      scene.actors = std::max(1, quota(instances));
      scene.annotations =
          std::clamp(quota(annotations), scene.actors, scene.actors * scene.samples);
    }
    plan.scenes.push_back(std::move(scene));
  }
  plan_logs(version, plan);
  plan.sweeps.fill(0);
  plan.sweeps[kLidarSensor] = 1;
  if (plan.tables_only) {
    plan.sweeps = {5, 5, 5, 5, 5, 5, 9, 6, 5, 5, 5, 5};
    int a_sample = kNumSensors;
    for (const int sweeps : plan.sweeps) a_sample += sweeps;
    plan.extra_sweeps =
        static_cast<int64_t>(std::round((kSampleData / kSamples - a_sample) * total));
  }
  return plan;
}

}  // namespace aerie::nuscenes::synth
