#include "aerie/data/speech/manifest_path.h"

#include <algorithm>

#include "aerie/base/path.h"
#include "aerie/base/retry.h"
#include "aerie/base/strings.h"

namespace aerie::data {

namespace {

constexpr size_t kLongPath = 255;  // characters

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

bool is_tar_member_name(std::string_view path, std::string_view manifest) {
  if (path.find('/') != std::string_view::npos) return false;
  const std::string name = base_name(manifest);
  if (name == "tarred_audio_manifest.json") return true;
  if (manifest.find("/sharded_manifests/") == std::string_view::npos) return false;
  constexpr std::string_view kBefore = "manifest_", kAfter = ".json";
  if (!starts_with(name, kBefore) || !ends_with(name, kAfter)) return false;
  const std::string_view digits = std::string_view(name).substr(
      kBefore.size(), name.size() - std::min(name.size(), kBefore.size() + kAfter.size()));
  return !digits.empty() &&
         std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool is_long_path(std::string_view path) {
  return count_characters(path) >= kLongPath;
}

std::vector<std::string> audio_path_candidates(std::string_view path, std::string_view manifest) {
  if (is_tar_member_name(path, manifest)) return {std::string(path)};
  if (is_absolute_path(path) || is_long_path(path)) return {expand_user(path)};
  const std::string folder = parent_path(expand_user(manifest));
  std::string beside = join_path(folder == "." ? "" : folder, path);
  std::string plain = expand_user(path);
  if (beside == plain) return {std::move(plain)};
  return {std::move(beside), std::move(plain)};
}

bool names_no_file(Env& env, const Status& status, const std::string& path) {
  if (status.ok() || status.code() == StatusCode::kNotFound) return !status.ok();
  const auto stat = env.stat(path);
  return stat.ok() && !stat->is_regular;
}

bool may_be_file(const Result<FileStat>& stat) {
  return stat.ok() ? stat->is_regular : is_passing(stat.status());
}

std::string resolve_audio_path(Env& env, std::string_view path, std::string_view manifest) {
  std::vector<std::string> candidates = audio_path_candidates(path, manifest);
  for (size_t i = 0; i + 1 < candidates.size(); ++i)
    if (may_be_file(env.stat(candidates[i]))) return std::move(candidates[i]);
  return std::move(candidates.back());
}

std::vector<std::string> split_manifest_list(std::string_view text) {
  return split(text, ',');
}

}  // namespace aerie::data
