#include "aerie/data/nuscenes/tables/splits.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"

namespace aerie::nuscenes {

namespace {

struct OfficialSplit {
  std::string_view name;
  std::string_view runs;
};
constexpr OfficialSplit kOfficialSplits[] = {
#include "aerie/data/nuscenes/tables/official_splits.inc"
};

constexpr uint64_t kMaxSplitFileBytes = 16 << 20;
constexpr size_t kSplitExamples = 3;

// "1-2,41" to "scene-0001", "scene-0002", "scene-0041".
void add_runs(std::string_view runs, std::vector<std::string>& out) {
  for (const std::string& run : split(runs, ',')) {
    const std::vector<std::string> ends = split(run, '-');
    const int first = parse_int<int>(ends.front()).value();
    const int last = parse_int<int>(ends.back()).value();
    for (int number = first; number <= last; ++number) {
      const std::string digits = std::to_string(number);
      out.push_back(str_cat("scene-", std::string(4 - digits.size(), '0'), digits));
    }
  }
}

// A list of names in splits.json beside the tables, as the devkit reads own splits.
Result<std::vector<std::string>> read_splits_json(Env& env, const NuscenesIndex& index,
                                                  const std::string& name) {
  const std::string path = join_path(index.tables_dir(), "splits.json");
  AERIE_ASSIGN_OR_RETURN(const std::string text, env.read_file(path, kMaxSplitFileBytes));
  // Depth is limited by hand: the library has no limit and recurses.
  int depth = 0;
  for (const char c : text) {
    if ((c == '[' || c == '{') && ++depth > 16)
      return data_error("it is nested too deep").with_context(path);
    if (c == ']' || c == '}') --depth;
  }
  const nlohmann::json document = nlohmann::json::parse(text, nullptr, false);
  if (!document.is_object()) return data_error("it is not a JSON object").with_context(path);
  const auto found = document.find(name);
  if (found == document.end())
    return not_found(str_cat("split '", name, "' is not in it")).with_context(path);
  const Status wrong = data_error("it is not a list of scene names")
                           .with_context(str_cat("key '", name, "'"))
                           .with_context(path);
  if (!found->is_array()) return wrong;
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (const nlohmann::json& scene : *found) {
    if (!scene.is_string()) return wrong;
    if (seen.insert(scene.get<std::string>()).second) out.push_back(scene.get<std::string>());
  }
  return out;
}

struct SceneList {
  std::string name;
  std::vector<std::string> scenes;
};

Result<SceneList> scenes_of(Env& env, const NuscenesIndex& index, const SplitOptions& options) {
  SceneList out;
  out.name = options.split;
  if (!options.file.empty()) {
    out.name = options.split.empty() ? options.file : options.split;
    AERIE_ASSIGN_OR_RETURN(out.scenes, read_split_file(env, options.file));
    return out;
  }
  if (options.split == "all") {
    for (uint32_t i = 0; i < index.num_scenes(); ++i) out.scenes.emplace_back(index.scene(i).name);
    return out;
  }
  if (ends_with(index.version(), "mini") && (out.name == "train" || out.name == "val"))
    out.name = "mini_" + out.name;
  out.scenes = official_split(out.name);
  if (!out.scenes.empty()) return out;
  Result<std::vector<std::string>> own = read_splits_json(env, index, options.split);
  if (own.ok()) {
    out.scenes = std::move(own).value();
    return out;
  }
  if (own.status().code() != StatusCode::kNotFound) return own.status();
  const std::string nearest = nearest_name(options.split, official_split_names());
  return invalid_argument(str_cat("there is no split '", options.split, "'",
                                  nearest.empty() ? "" : str_cat("; did you mean ", nearest, "?")))
      .with_hint(
          str_cat("official splits are ", join(official_split_names(), ", "),
                  "; all takes every scene; own ones are a file with a scene name a line, or "
                  "a list in splits.json beside the tables"));
}

void sort_samples(const NuscenesIndex& index, SampleOrder order, std::vector<uint32_t>& samples) {
  struct Key {
    Token scene;
    int64_t timestamp_us;
    uint32_t table_row, sample;
    bool operator<(const Key& other) const {
      return std::tie(scene, timestamp_us, table_row, sample) <
             std::tie(other.scene, other.timestamp_us, other.table_row, other.sample);
    }
  };
  std::vector<Key> keys;
  keys.reserve(samples.size());
  for (const uint32_t sample : samples) {
    const SampleInfo info = index.sample(sample);
    const Token scene = order == SampleOrder::kScene ? index.scene(info.scene).token : Token{};
    // At equal times the order of the table, as a stable sort of it would leave them.
    keys.push_back({scene, info.timestamp_us, info.table_row, sample});
  }
  std::sort(keys.begin(), keys.end());
  for (size_t i = 0; i < keys.size(); ++i) samples[i] = keys[i].sample;
}

bool has_all_rows(const NuscenesIndex& index, uint32_t sample) {
  bool out = index.has_lidar(sample);
  for (int c = 0; c < kNumCameras; ++c) out = out && index.has_camera(sample, c);
  return out;
}

std::string first_missing_file(const NuscenesIndex& index, uint32_t sample) {
  for (int c = 0; c < kNumCameras; ++c) {
    const CameraFrame frame = index.camera(sample, c);
    if (!frame.present) return std::string(frame.filename);
  }
  return {};
}

// What was left out, in words; empty: nothing.
std::string left_out(const SplitSamples& split) {
  std::vector<std::string> parts;
  if (split.num_missing_scenes > 0)
    parts.push_back(str_cat(split.num_missing_scenes, " of its ",
                            split.num_missing_scenes + split.num_scenes,
                            " scenes are not in the tables"));
  if (split.num_incomplete > 0)
    parts.push_back(
        str_cat(split.num_incomplete, " samples lack a key frame of a camera or of the lidar"));
  if (split.num_without_files > 0)
    parts.push_back(str_cat(split.num_without_files, " samples lack a picture"));
  if (parts.empty()) return {};
  return split.examples.empty()
             ? join(parts, ", ")
             : str_cat(join(parts, ", "), " (for example ", join(split.examples, ", "), ")");
}

}  // namespace

std::vector<std::string> official_split_names() {
  std::vector<std::string> out = {"train"};
  for (const OfficialSplit& entry : kOfficialSplits) out.emplace_back(entry.name);
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<std::string> official_split(std::string_view name) {
  std::vector<std::string> out;
  for (const OfficialSplit& entry : kOfficialSplits) {
    const bool half_of_train = entry.name == "train_detect" || entry.name == "train_track";
    if (entry.name == name || (name == "train" && half_of_train)) add_runs(entry.runs, out);
  }
  std::sort(out.begin(), out.end());
  return out;
}

Result<std::vector<std::string>> read_split_file(Env& env, const std::string& path) {
  const std::string full = expand_user(path);
  Result<std::string> text = env.read_file(full, kMaxSplitFileBytes);
  if (!text.ok())
    return data_error(str_cat("the split file cannot be read: ", text.status().to_string()));
  std::string_view rest = *text;
  if (starts_with(rest, "\xEF\xBB\xBF")) rest.remove_prefix(3);
  std::vector<std::string> out;
  std::set<std::string> seen;
  uint64_t number = 0;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    line = trim(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (line.size() > 256 || line.find_first_of(" \t,;\"") != std::string_view::npos)
      return data_error(str_cat("'", printable(line.substr(0, 60)), "' is not a scene name"))
          .with_context(str_cat(full, ":", number))
          .with_hint("a split file has one scene name a line");
    if (seen.emplace(line).second) out.emplace_back(line);
  }
  if (out.empty()) return data_error("it names no scene").with_context(full);
  return out;
}

Result<SplitSamples> samples_of_split(Env& env, const NuscenesIndex& index,
                                      const SplitOptions& options) {
  AERIE_ASSIGN_OR_RETURN(const SceneList list, scenes_of(env, index, options));
  // Two scenes of one name are two scenes of the split.
  std::unordered_map<std::string_view, std::vector<uint32_t>> by_name;
  for (uint32_t i = 0; i < index.num_scenes(); ++i) by_name[index.scene(i).name].push_back(i);
  SplitSamples out;
  out.name = list.name;
  std::vector<std::string> files;
  for (const std::string& name : list.scenes) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      if (out.num_missing_scenes++ < kSplitExamples) out.examples.push_back(name);
      continue;
    }
    ++out.num_scenes;
    for (const uint32_t number : found->second) {
      const SceneInfo scene = index.scene(number);
      for (uint32_t i = 0; i < scene.num_samples; ++i) {
        const uint32_t sample = scene.first_sample + i;
        if (!has_all_rows(index, sample)) {
          ++out.num_incomplete;
        } else if (options.need_files && !index.is_complete(sample)) {
          if (out.num_without_files++ < kSplitExamples)
            files.push_back(first_missing_file(index, sample));
        } else {
          out.samples.push_back(sample);
        }
      }
    }
  }
  out.examples.insert(out.examples.end(), files.begin(), files.end());
  const std::string words = left_out(out);
  if (out.samples.empty())
    return data_error(
               str_cat("split '", out.name, "' of ", index.version(), " has no sample: ", words))
        .with_context(std::string(index.root()))
        .with_hint(str_cat("the tables have ", index.num_scenes(), " scenes, the first is ",
                           index.scene(0).name));
  if (!words.empty() && !options.quiet)
    log_warn("data", "split ", out.name, " of ", index.version(), ": ", words);
  sort_samples(index, options.order, out.samples);
  return out;
}

}  // namespace aerie::nuscenes
