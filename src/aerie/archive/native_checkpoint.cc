#include "aerie/archive/native_checkpoint.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormatVersion = 1;
constexpr uint64_t kMaxText = 64u << 20;

bool is_directory(Env& env, const std::string& path) {
  const auto stat = env.stat(path);
  return stat.ok() && stat->is_dir;
}

struct NativeManifest {
  int64_t step = 0;
  uint64_t bytes = 0;  // of the weights
  std::string xxh64;
};

Result<NativeManifest> read_native_manifest(Env& env, const std::string& dir) {
  const std::string path = join_path(dir, kNativeManifest);
  AERIE_ASSIGN_OR_RETURN(const std::string text, env.read_file(path, kMaxText));
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto entry = [](const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return object.is_object() && found != object.end() ? *found : Json();
  };
  const Json version = entry(json, "version");
  const Json step = entry(json, "step");
  const Json weights = entry(entry(json, "files"), kNativeWeights);
  const Json bytes = entry(weights, "bytes");
  const Json xxh64 = entry(weights, "xxh64");
  if (entry(json, "format") != "aerie-checkpoint" || !version.is_number_integer() ||
      !step.is_number_integer() || !bytes.is_number_unsigned() || !xxh64.is_string())
    return data_error("not the manifest of a checkpoint, or damaged").with_context(path);
  if (version.get<int64_t>() > kFormatVersion)
    return data_error(str_cat("written by a newer aerie (format ", version.get<int64_t>(), ")"))
        .with_context(path)
        .with_hint("update aerie");
  return NativeManifest{step.get<int64_t>(), bytes.get<uint64_t>(), xxh64.get<std::string>()};
}

Status verify_weights(Env& env, const std::string& dir) {
  AERIE_ASSIGN_OR_RETURN(const NativeManifest manifest, read_native_manifest(env, dir));
  const std::string path = join_path(dir, kNativeWeights);
  AERIE_ASSIGN_OR_RETURN(const auto file, env.open_random_access(path));
  if (file->size() != manifest.bytes)
    return data_error(str_cat(file->size(), " bytes instead of ", manifest.bytes))
        .with_context(path)
        .with_hint("the checkpoint is damaged; take another one");
  XxHash64 hash;
  std::string buffer(4u << 20, '\0');
  for (uint64_t at = 0;;) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(at, buffer.data(), buffer.size()));
    if (got == 0) break;
    hash.update(buffer.data(), got);
    at += got;
  }
  if (hex64(hash.digest()) != manifest.xxh64)
    return data_error("the bytes do not match their checksum")
        .with_context(path)
        .with_hint("the checkpoint is damaged; take another one");
  return ok_status();
}

// The newest native checkpoint in a folder of them that verifies.
Result<std::string> newest_checkpoint(Env& env, const std::string& folder) {
  struct Candidate {
    int64_t step;
    std::string dir;
    bool healthy;
  };
  std::vector<Candidate> candidates;
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder));
  for (const DirEntry& entry : entries) {
    // Names that begin with a dot are saves that were interrupted.
    if (starts_with(entry.name, ".")) continue;
    const std::string dir = join_path(folder, entry.name);
    if (!env.exists(join_path(dir, kNativeManifest))) continue;
    const auto manifest = read_native_manifest(env, dir);
    if (manifest.ok()) {
      candidates.push_back({manifest->step, dir, !ends_with(entry.name, "-unhealthy")});
    } else {
      log_warn("checkpoint", "passed over: ", manifest.status().to_string());
    }
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.healthy != b.healthy ? a.healthy : a.step > b.step;
                   });
  for (const Candidate& candidate : candidates) {
    const Status status = verify_weights(env, candidate.dir);
    if (status.ok()) return candidate.dir;
    log_warn("checkpoint", "passed over: ", status.to_string());
  }
  return data_error("no usable checkpoint in this folder")
      .with_context(folder)
      .with_hint("give a .nemo or .safetensors file, or another run's folder");
}

}  // namespace

Result<std::string> find_native_checkpoint(Env& env, const std::string& path) {
  if (env.exists(join_path(path, kNativeWeights))) {
    AERIE_RETURN_IF_ERROR(verify_weights(env, path));
    return path;
  }
  const std::string below = join_path(path, "checkpoints");
  return newest_checkpoint(env, is_directory(env, below) ? below : path);
}

}  // namespace aerie::archive
