#include "aerie/data/nuscenes/synth/synth_nuscenes.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/nuscenes/synth/dataset_plan.h"
#include "aerie/data/nuscenes/synth/ground_map.h"
#include "aerie/data/nuscenes/synth/map_file.h"
#include "aerie/data/nuscenes/synth/point_files.h"
#include "aerie/data/nuscenes/synth/renderer.h"
#include "aerie/data/nuscenes/synth/scene.h"
#include "aerie/data/nuscenes/synth/table_rows.h"
#include "aerie/data/nuscenes/synth/town.h"
#include "aerie/image/jpeg.h"
#include "aerie/image/png.h"

namespace aerie::nuscenes {

namespace {

using namespace synth;  // NOLINT: this file puts its pieces together
using Json = nlohmann::ordered_json;

constexpr char kGenerator[] = "aerie data synth --kind nuscenes";
constexpr char kDescription[] = "synth.json";

// What makes two data sets the same.
Json options_json(const SynthOptions& options) {
  return Json{{"version", options.version_name()},
              {"seed", options.seed},
              {"size", synth_size_name(options.size)},
              {"scenes", options.scenes},
              {"samples_per_scene", options.samples_per_scene},
              {"image_width", options.image_width},
              {"image_height", options.image_height},
              {"pictures", options.pictures}};
}

std::string describe(const SynthOptions& options, bool complete) {
  return Json{{"generator", kGenerator},
              {"format_version", 1},
              {"complete", complete},
              {"options", options_json(options)}}
             .dump(1) +
         "\n";
}

enum class Found { kNothing, kUnfinished, kSame, kOther };

// Looks at what is in the folder already. Only a data set of ours is ever replaced or continued.
Result<Found> inspect_folder(const SynthOptions& options, Env& env) {
  auto entries = env.list_dir(options.out);
  if (!entries.ok()) {
    if (entries.status().code() == StatusCode::kNotFound) return Found::kNothing;
    return entries.status();
  }
  if (entries->empty()) return Found::kNothing;
  const auto text = env.read_file(join_path(options.out, kDescription), 1 << 20);
  const Json there = Json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  // Compared, never converted: the file may be anyone's, with any types in it.
  const auto entry = [&](const char* key) {
    const auto found = there.find(key);
    return found == there.end() ? Json() : *found;
  };
  if (!there.is_object() || entry("generator") != kGenerator)
    return invalid_argument(
               str_cat("'", options.out, "' is not empty and holds no synthetic data set"))
        .with_hint("choose another folder");
  if (options.force) return Found::kOther;
  if (entry("options") != options_json(options))
    return invalid_argument(
               str_cat("'", options.out, "' holds a synthetic data set made with other options"))
        .with_hint("choose another folder, or --force to replace it");
  return entry("complete") == true ? Found::kSame : Found::kUnfinished;
}

// Removes what make_nuscenes() makes and nothing else.
Status remove_old(const SynthOptions& options, Env& env) {
  for (const char* name :
       {kDescription, "v1.0-mini", "v1.0-trainval", "v1.0-test", "samples", "sweeps", "maps"})
    AERIE_RETURN_IF_ERROR(env.remove_tree(join_path(options.out, name)));
  return ok_status();
}

Status stopped() {
  if (const int signal_number = caught_signal(); signal_number != 0)
    return cancelled(str_cat("stopped by ", signal_name(signal_number)));
  return ok_status();
}

class Maker final {
 public:
  Maker(const SynthOptions& options, DatasetPlan plan, Env& env)
      : options_(options),
        plan_(std::move(plan)),
        env_(env),
        tokens_(options.seed),
        pool_({.name = "synth",
               .num_threads = options.num_workers > 0 ? options.num_workers : cpu_count()}) {}

  Result<SynthReport> make() {
    AERIE_RETURN_IF_ERROR(check_space());
    AERIE_RETURN_IF_ERROR(make_folders());
    AERIE_RETURN_IF_ERROR(make_maps());
    AERIE_RETURN_IF_ERROR(write_tables());
    if (!plan_.tables_only) AERIE_RETURN_IF_ERROR(write_sensor_files());
    report_.bytes = bytes_.load();
    return report_;
  }

 private:
  std::string path(std::string_view name) const { return join_path(options_.out, name); }
  std::string table_path(std::string_view name) const {
    return join_path(path(options_.version_name()), str_cat(name, ".json"));
  }
  ProgressOptions progress(std::string label, uint64_t total, std::string unit) const {
    return {.label = std::move(label),
            .total = total,
            .unit = std::move(unit),
            .show = options_.quiet ? ProgressOptions::Show::kNever : ProgressOptions::Show::kAuto};
  }
  Status write(std::string_view name, std::string_view bytes) {
    bytes_ += bytes.size();
    return env_.write_file(path(name), bytes);
  }

  Status check_space() {
    const double samples = static_cast<double>(plan_.samples);
    const double picture = 0.12 * options_.image_width * options_.image_height + 4000.0;
    const double needed =
        plan_.tables_only ? samples * 85e3 + 30e6 : samples * (6 * picture + 160e3);
    const auto free = env_.free_space(options_.out);
    if (free.ok() && static_cast<double>(*free) < needed)
      return io_error(str_cat("the data set takes about ", human_bytes(needed), ", '", options_.out,
                              "' has room for ", human_bytes(static_cast<double>(*free))))
          .with_hint(
              "fewer --scenes or --samples-per-scene, a smaller --image-size, or another "
              "folder");
    return ok_status();
  }

  Status make_folders() {
    AERIE_RETURN_IF_ERROR(env_.create_dirs(path(options_.version_name())));
    AERIE_RETURN_IF_ERROR(env_.create_dirs(path("maps/expansion")));
    if (plan_.tables_only) return ok_status();
    for (int sensor = 0; sensor < kNumSensors; ++sensor)
      for (const char* kind : {"samples/", "sweeps/"})
        if (plan_.sweeps[sensor] > 0 || std::string_view(kind) == "samples/")
          AERIE_RETURN_IF_ERROR(env_.create_dirs(path(str_cat(kind, kSensorNames[sensor]))));
    return ok_status();
  }

  TownOptions town_options(int location) const {
    TownOptions town{.seed = options_.seed, .location = location, .counts = std::nullopt};
    if (plan_.tables_only) {
      town.width = published_canvas(location).x;
      town.height = published_canvas(location).y;
      town.counts = published_counts(location);
      return town;
    }
    static constexpr Point2 sizes[kNumLocations] = {{400, 360}, {370, 430}, {450, 350}, {390, 400}};
    const double factor = options_.size == SynthSize::kSmall ? 1.75 : 1.0;
    town.width = factor * sizes[location].x;
    town.height = factor * sizes[location].y;
    // A node every 92 m.
    town.columns = static_cast<int>((town.width - 90.0) / 92.0 + 1.1);
    town.rows = static_cast<int>((town.height - 90.0) / 92.0 + 1.1);
    return town;
  }

  Status make_maps() {
    towns_.resize(kNumLocations);
    grounds_.resize(kNumLocations);
    return pool_.parallel_for(kNumLocations, [&](size_t i) -> Status {
      AERIE_RETURN_IF_ERROR(stopped());
      const int location = static_cast<int>(i);
      towns_[i] = make_town(town_options(location));
      AERIE_RETURN_IF_ERROR(write(str_cat("maps/expansion/", kLocations[i], ".json"),
                                  map_expansion_json(towns_[i], tokens_)));
      // Masks of the published size would take gigabytes: tables-only has empty ones.
      image::Image mask(8, 8, 1);
      mask.fill(0);
      if (!plan_.tables_only) {
        grounds_[i] = std::make_unique<GroundMap>(towns_[i]);
        mask = grounds_[i]->semantic_mask();
      }
      AERIE_ASSIGN_OR_RETURN(const std::vector<uint8_t> png,
                             image::write_png(mask.view(), {.compression = 1}));
      return write(mask_file_name(tokens_, location),
                   {reinterpret_cast<const char*>(png.data()), png.size()});
    });
  }

  Scene make_scene(size_t number) const {
    return Scene(options_, plan_, towns_[static_cast<size_t>(plan_.scenes[number].location)],
                 static_cast<int>(number));
  }

  // In slices, so that memory stays small however many scenes there are.
  Status write_tables() {
    constexpr size_t kSlice = 32;
    for (const TableFile& file : common_tables(plan_, tokens_)) {
      bytes_ += file.text.size();
      AERIE_RETURN_IF_ERROR(env_.write_file(table_path(file.name), file.text));
    }
    std::vector<std::unique_ptr<WritableFile>> files;
    for (const std::string_view name : kSceneTableNames) {
      AERIE_ASSIGN_OR_RETURN(files.emplace_back(), env_.open_writable(table_path(name)));
      AERIE_RETURN_IF_ERROR(files.back()->append("[\n"));
    }
    Progress bar(progress("tables", plan_.scenes.size(), "scenes"));
    for (size_t first = 0; first < plan_.scenes.size(); first += kSlice) {
      const size_t count = std::min(kSlice, plan_.scenes.size() - first);
      AERIE_ASSIGN_OR_RETURN(
          const std::vector<SceneRows> made,
          pool_.parallel_map<SceneRows>(count, [&](size_t i) -> Result<SceneRows> {
            AERIE_RETURN_IF_ERROR(stopped());
            return scene_rows(options_, make_scene(first + i), tokens_);
          }));
      for (size_t i = 0; i < count; ++i) {
        for (size_t table = 0; table < files.size(); ++table) {
          if (made[i].text[table].empty()) continue;
          if (files[table]->size() > 2) AERIE_RETURN_IF_ERROR(files[table]->append(",\n"));
          AERIE_RETURN_IF_ERROR(files[table]->append(made[i].text[table]));
        }
        report_.scenes += 1;
        report_.samples += static_cast<uint64_t>(plan_.scenes[first + i].samples);
        report_.sample_data += made[i].num_sample_data;
        report_.instances += made[i].num_instances;
        report_.annotations += made[i].num_annotations;
        bar.add();
      }
    }
    for (const auto& file : files) {
      AERIE_RETURN_IF_ERROR(file->append("\n]\n"));
      bytes_ += file->size();
      AERIE_RETURN_IF_ERROR(file->close());
    }
    return ok_status();
  }

  Status write_sensor_files() {
    std::vector<Scene> scenes;
    std::vector<std::pair<size_t, size_t>> jobs;  // scene, row
    for (size_t s = 0; s < plan_.scenes.size(); ++s) {
      scenes.push_back(make_scene(s));
      for (size_t r = 0; r < scenes[s].rows().size(); ++r) {
        if (is_camera(scenes[s].rows()[r].sensor)) {
          if (!options_.pictures) continue;
          ++report_.pictures;
        }
        jobs.emplace_back(s, r);
      }
    }
    Progress bar(progress("pictures and points", jobs.size(), "files"));
    return pool_.parallel_for(jobs.size(), [&](size_t i) -> Status {
      AERIE_RETURN_IF_ERROR(stopped());
      const Scene& scene = scenes[jobs[i].first];
      const DataRow& row = scene.rows()[jobs[i].second];
      bar.add();
      if (!is_camera(row.sensor))
        return write(scene.file_name(row), row.sensor == kLidarSensor ? lidar_points(scene, row)
                                                                      : radar_points(scene, row));
      image::Image picture;
      render_picture(options_, scene, row, *grounds_[static_cast<size_t>(scene.quota().location)],
                     picture);
      AERIE_ASSIGN_OR_RETURN(const std::vector<uint8_t> jpeg, image::write_jpeg(picture.view()));
      return write(scene.file_name(row), {reinterpret_cast<const char*>(jpeg.data()), jpeg.size()});
    });
  }

  const SynthOptions& options_;
  const DatasetPlan plan_;
  Env& env_;
  const TokenMaker tokens_;
  ThreadPool pool_;
  std::vector<Town> towns_;
  std::vector<std::unique_ptr<GroundMap>> grounds_;
  std::atomic<uint64_t> bytes_{0};
  SynthReport report_;
};

}  // namespace

Result<SynthSize> parse_synth_size(const std::string& name) {
  if (name == "tiny") return SynthSize::kTiny;
  if (name == "small") return SynthSize::kSmall;
  if (name == "tables-only") return SynthSize::kTablesOnly;
  return invalid_argument(
      str_cat("--size ", printable(name), " is none of tiny, small, tables-only"));
}

const char* synth_size_name(SynthSize size) {
  return size == SynthSize::kTiny ? "tiny" : size == SynthSize::kSmall ? "small" : "tables-only";
}

std::string SynthOptions::version_name() const {
  if (!version.empty()) return version;
  return size == SynthSize::kTablesOnly ? "v1.0-trainval" : "v1.0-mini";
}

Status SynthOptions::validate() const {
  if (out.empty()) return invalid_argument("no folder given").with_hint("--out DIR");
  const std::string name = version_name();
  if (name != "v1.0-mini" && name != "v1.0-trainval" && name != "v1.0-test")
    return invalid_argument(str_cat("--version ", printable(name), " is not known"))
        .with_hint("v1.0-mini, v1.0-trainval or v1.0-test");
  if (scenes < 0 || scenes > 850)
    return invalid_argument(str_cat("--scenes ", scenes, " is not between 1 and 850"));
  if (samples_per_scene < 0 || samples_per_scene > 1000)
    return invalid_argument(
        str_cat("--samples-per-scene ", samples_per_scene, " is not between 1 and 1000"));
  if (image_width < 16 || image_width > 6400 || image_width * 9 != image_height * 16)
    return invalid_argument(str_cat("--image-size ", image_width, "x", image_height,
                                    " is not 16:9 between 16x9 and 6400x3600"))
        .with_hint("1600x900, 800x450 or 400x225");
  if (num_workers < 0 || num_workers > 1024)
    return invalid_argument(str_cat("--workers ", num_workers, " is not between 0 and 1024"));
  return ok_status();
}

Result<SynthReport> make_nuscenes(const SynthOptions& options, Env& env) {
  AERIE_RETURN_IF_ERROR(options.validate());
  AERIE_ASSIGN_OR_RETURN(DatasetPlan plan, plan_dataset(options));
  const Stopwatch watch;
  AERIE_ASSIGN_OR_RETURN(const Found found, inspect_folder(options, env));
  if (found == Found::kSame) {
    SynthReport report;
    report.reused = true;
    report.scenes = plan.scenes.size();
    report.samples = static_cast<uint64_t>(plan.samples);
    return report;
  }
  if (found == Found::kOther) AERIE_RETURN_IF_ERROR(remove_old(options, env));
  AERIE_RETURN_IF_ERROR(env.create_dirs(options.out));
  const std::string description = join_path(options.out, kDescription);
  AERIE_RETURN_IF_ERROR(env.atomic_replace(description, describe(options, false)));
  AERIE_ASSIGN_OR_RETURN(SynthReport report, Maker(options, std::move(plan), env).make());
  AERIE_RETURN_IF_ERROR(env.atomic_replace(description, describe(options, true)));
  report.elapsed_s = watch.elapsed_s();
  return report;
}

}  // namespace aerie::nuscenes
