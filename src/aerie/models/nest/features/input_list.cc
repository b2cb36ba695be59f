#include "aerie/models/nest/features/input_list.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie::features {
namespace {

constexpr size_t kMaxStemBytes = 251;  // 255 less ".npy"
constexpr int kMaxFolderDepth = 64;

Status search_folder(Env& env, const std::string& folder, const std::vector<std::string>& endings,
                     int depth, std::vector<std::string>& out) {
  if (depth > kMaxFolderDepth)
    return data_error(str_cat("folders are nested more than ", kMaxFolderDepth, " deep"))
        .with_context(folder);
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder));
  for (const DirEntry& entry : entries) {
    const std::string path = join_path(folder, entry.name);
    if (entry.is_dir) {
      AERIE_RETURN_IF_ERROR(search_folder(env, path, endings, depth + 1, out));
      continue;
    }
    const bool wanted = std::any_of(endings.begin(), endings.end(), [&](const std::string& end) {
      return ends_with(entry.name, end);
    });
    if (!wanted) continue;
    if (entry.is_symlink && !(env.stat(path).ok() && env.stat(path)->is_regular)) continue;
    out.push_back(path);
  }
  return ok_status();
}

Result<InputList> list_folder(Env& env, const std::string& folder, const std::string& type) {
  std::vector<std::string> endings;
  for (const std::string& part : split(type, ',')) {
    const std::string name(trim(part));
    if (!name.empty()) endings.push_back(name[0] == '.' ? name : "." + name);
  }
  if (endings.empty())
    return invalid_argument("--type names no extension").with_hint("for example --type wav,flac");
  std::vector<std::string> paths;
  AERIE_RETURN_IF_ERROR(search_folder(env, folder, endings, 0, paths));
  if (paths.empty())
    return data_error(str_cat("no *", join(endings, " or *"), " in this folder"))
        .with_context(folder)
        .with_hint("--type chooses the extension");
  std::sort(paths.begin(), paths.end());
  InputList out;
  for (std::string& path : paths) out.recordings.push_back({{path}, false, path, ""});
  return out;
}

// NeMo makes a path that it found below the manifest's folder absolute, and keeps all others as
// they are written; names of feature files depend on it.
std::string full_path(const std::string& resolved, const std::string& written,
                      const std::string& manifest) {
  if (is_absolute_path(written)) return resolved;
  if (resolved == written && parent_path(manifest) != ".") return resolved;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(resolved, error);
  return error ? resolved : absolute.lexically_normal().string();
}

Result<InputList> list_manifest(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const data::Manifest manifest, open_manifest(env, path));
  InputList out;
  out.recordings.reserve(manifest.size());
  for (uint64_t i = 0; i < manifest.size(); ++i) {
    Recording recording;
    recording.paths = manifest.resolve_paths(i);
    recording.is_list = manifest.is_list(i);
    const std::string written = manifest.written_path(i);
    for (std::string& resolved : recording.paths) resolved = full_path(resolved, written, path);
    recording.place = manifest.place(i);
    AERIE_ASSIGN_OR_RETURN(recording.line, manifest.raw_line(i));
    if (manifest.offset_s(i) > 0.0) ++out.num_with_offset;
    out.recordings.push_back(std::move(recording));
  }
  return out;
}

}  // namespace

Result<data::Manifest> open_manifest(Env& env, const std::string& path) {
  data::ManifestOptions options;
  options.use_index_cache = false;
  options.quiet = true;
  options.env = &env;
  AERIE_ASSIGN_OR_RETURN(data::Manifest manifest, data::Manifest::open({path}, options));
  if (manifest.size() == 0) return data_error("the manifest has no lines").with_context(path);
  return manifest;
}

Result<InputList> list_input(Env& env, const std::string& input, const std::string& type) {
  const std::string path = expand_user(input);
  const auto stat = env.stat(path);
  if (!stat.ok()) {
    if (stat.status().code() != StatusCode::kNotFound) return stat.status();
    return invalid_argument(str_cat("there is no '", path, "'"))
        .with_hint("--input takes a manifest, a folder or an audio file");
  }
  if (stat->is_dir) return list_folder(env, path, type);
  if (ends_with(path, ".json") || ends_with(path, ".jsonl")) return list_manifest(env, path);
  InputList out;
  out.recordings.push_back({{path}, false, path, ""});
  return out;
}

std::string feature_stem(std::string_view path) {
  std::string out(path);
  std::replace(out.begin(), out.end(), '/', '_');
  std::replace(out.begin(), out.end(), '.', '_');
  if (out.size() > kMaxStemBytes) {
    size_t begin = out.size() - kMaxStemBytes;
    while (begin < out.size() && (static_cast<unsigned char>(out[begin]) & 0xC0u) == 0x80u) ++begin;
    out.erase(0, begin);
  }
  return out;
}

std::vector<std::string> feature_stems(const std::vector<Recording>& recordings) {
  std::unordered_map<std::string, std::string> by_path;
  std::unordered_set<std::string> taken;
  std::vector<std::string> out;
  out.reserve(recordings.size());
  for (const Recording& recording : recordings) {
    // A list of channels is named after its first file.
    const std::string path = join(recording.paths, "\n");
    const auto [entry, is_new] = by_path.try_emplace(path);
    if (is_new) {
      const std::string plain = feature_stem(recording.paths.front());
      std::string stem = plain;
      for (uint64_t number = 2; !taken.insert(stem).second; ++number) {
        const std::string suffix = str_cat("-", number);
        stem =
            plain.substr(plain.size() + suffix.size() > kMaxStemBytes ? suffix.size() : 0) + suffix;
      }
      entry->second = std::move(stem);
    }
    out.push_back(entry->second);
  }
  return out;
}

Result<std::vector<int64_t>> parse_layers(const std::string& text, int64_t num_layers) {
  std::vector<int64_t> out;
  if (text == "all") {
    for (int64_t i = 0; i < num_layers; ++i) out.push_back(i);
    return out;
  }
  if (text == "last") return std::vector<int64_t>{num_layers - 1};
  const auto bad = [&](std::string message) {
    return invalid_argument(std::move(message))
        .with_context("--layers")
        .with_hint(str_cat("all, last, or numbers from 0 to ", num_layers - 1, " such as 0,1"));
  };
  for (const std::string& part : split(text, ',')) {
    const auto number = parse_int64(trim(part));
    if (!number.ok()) return bad(str_cat("'", part, "' is not the number of a layer"));
    if (*number < -num_layers || *number >= num_layers)
      return bad(str_cat("there is no layer ", *number, ", the encoder has ", num_layers));
    out.push_back(*number < 0 ? *number + num_layers : *number);
  }
  return out;
}

}  // namespace aerie::features
