#include "aerie/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/archive/safetensors.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"

namespace aerie::train {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFormatVersion = 1;
constexpr char kManifest[] = "manifest.json";
constexpr char kState[] = "state.json";
constexpr char kUnfinished[] = "-unfinished";
// Our marks, behind "." and the stem.
constexpr char kNew[] = ".aerie-new";      // being written
constexpr char kOld[] = ".aerie-old";      // moved aside for a new one of its name
constexpr char kGone[] = ".aerie-gone";    // being removed
constexpr char kFormerOld[] = ".tmp-old";  // before there were marks
constexpr char kFormerNew[] = ".tmp-new";
constexpr uint64_t kMaxJson = 64u << 20;

constexpr char kNativeLast[] = "native-last-step=";

bool is_last_stem(const std::string& stem) {
  return ends_with(stem, "-last") || starts_with(stem, kNativeLast);
}

struct FileEntry {
  uint64_t bytes = 0;
  std::string xxh64;
};

// Writes through a checksum.
class HashedFile {
 public:
  static Result<HashedFile> create(Env& env, const std::string& path) {
    AERIE_ASSIGN_OR_RETURN(auto file, env.open_writable(path, WriteMode::kTruncate));
    HashedFile out;
    out.file_ = std::move(file);
    return out;
  }
  Status append(std::string_view bytes) {
    hash_.update(bytes);
    entry_.bytes += bytes.size();
    return file_->append(bytes);
  }
  Result<FileEntry> finish() {
    AERIE_RETURN_IF_ERROR(file_->sync());
    AERIE_RETURN_IF_ERROR(file_->close());
    entry_.xxh64 = hex64(hash_.digest());
    return entry_;
  }

 private:
  HashedFile() = default;
  std::unique_ptr<WritableFile> file_;
  XxHash64 hash_;
  FileEntry entry_;
};

Result<FileEntry> write_bytes(Env& env, const std::string& path, std::string_view bytes) {
  AERIE_ASSIGN_OR_RETURN(HashedFile file, HashedFile::create(env, path));
  AERIE_RETURN_IF_ERROR(file.append(bytes));
  return file.finish();
}

Result<FileEntry> hash_file(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const auto file, env.open_random_access(path));
  XxHash64 hash;
  FileEntry out;
  std::string buffer(4u << 20, '\0');
  while (true) {
    AERIE_ASSIGN_OR_RETURN(const size_t got,
                           file->read_at(out.bytes, buffer.data(), buffer.size()));
    if (got == 0) break;
    hash.update(buffer.data(), got);
    out.bytes += got;
  }
  out.xxh64 = hex64(hash.digest());
  return out;
}

// Creates a folder such that it is still there after a power cut: every new level is synced into
// the one above.
Status create_dirs_durably(Env& env, const std::string& path) {
  if (env.exists(path)) return ok_status();
  const size_t slash = path.find_last_of('/');
  const std::string parent = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  if (parent != path) AERIE_RETURN_IF_ERROR(create_dirs_durably(env, parent));
  AERIE_RETURN_IF_ERROR(env.create_dir(path));
  return env.fsync_dir(parent);
}

struct Manifest {
  int64_t step = 0;
  std::map<std::string, FileEntry> files;
};

Result<Manifest> read_manifest(Env& env, const std::string& dir) {
  AERIE_ASSIGN_OR_RETURN(const std::string text,
                         env.read_file(str_cat(dir, "/", kManifest), kMaxJson));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("format") || json["format"] != "aerie-checkpoint" ||
      !json.contains("version") || !json["version"].is_number_integer() || !json.contains("step") ||
      !json["step"].is_number_integer() || !json.contains("files") || !json["files"].is_object())
    return data_error(str_cat(dir, "/", kManifest, " is damaged"));
  if (json["version"].get<int64_t>() > kFormatVersion)
    return data_error(str_cat(dir, " was written by a newer aerie (format ",
                              json["version"].get<int64_t>(), ")"))
        .with_hint("update aerie");
  Manifest out;
  out.step = json["step"].get<int64_t>();
  for (const auto& [name, entry] : json["files"].items()) {
    // Names come from a file: they must stay inside the directory.
    if (name.empty() || name.find('/') != std::string::npos || name[0] == '.' ||
        !entry.is_object() || !entry.contains("bytes") || !entry["bytes"].is_number_unsigned() ||
        !entry.contains("xxh64") || !entry["xxh64"].is_string())
      return data_error(str_cat(dir, "/", kManifest, ": entry '", name, "' is damaged"));
    out.files[name] = {entry["bytes"].get<uint64_t>(), entry["xxh64"].get<std::string>()};
  }
  if (!out.files.contains(kState) || !out.files.contains("model.safetensors"))
    return data_error(str_cat(dir, "/", kManifest, " lists no state or no model"));
  return out;
}

// The TrainState of a checkpoint and the engine's scalars as JSON.
Result<std::pair<TrainState, std::string>> read_state_file(Env& env, const std::string& dir) {
  AERIE_ASSIGN_OR_RETURN(const std::string text,
                         env.read_file(str_cat(dir, "/", kState), kMaxJson));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("train") || !json.contains("engine"))
    return data_error(str_cat(dir, "/", kState, " is damaged"));
  auto state = TrainState::from_json(json["train"].dump());
  if (!state.ok()) return state.status().with_context(str_cat(dir, "/", kState));
  return std::make_pair(std::move(state).value(), json["engine"].dump());
}

// Compares a file with what the manifest says of it.
Status verify_file(Env& env, const std::string& path, const FileEntry& expected) {
  AERIE_ASSIGN_OR_RETURN(const FileEntry actual, hash_file(env, path));
  if (actual.bytes != expected.bytes)
    return data_error(str_cat(path, " has ", actual.bytes, " bytes instead of ", expected.bytes));
  if (actual.xxh64 != expected.xxh64)
    return data_error(str_cat(path, " does not match its checksum"));
  return ok_status();
}

// The stem in ".<stem><mark>"; empty for other names.
std::string stem_of(const std::string& name, std::string_view mark) {
  if (!starts_with(name, ".") || !ends_with(name, mark) || name.size() < mark.size() + 2) return "";
  return name.substr(1, name.size() - 1 - mark.size());
}

class StoredCheckpoint final : public LoadedCheckpoint {
 public:
  static Result<std::unique_ptr<LoadedCheckpoint>> open(Env& env, const std::string& dir,
                                                        CheckpointInfo info) {
    AERIE_ASSIGN_OR_RETURN(const Manifest manifest, read_manifest(env, dir));
    for (const auto& [name, expected] : manifest.files)
      AERIE_RETURN_IF_ERROR(verify_file(env, str_cat(dir, "/", name), expected));
    auto out = std::make_unique<StoredCheckpoint>();
    info.step = manifest.step;
    out->info_ = std::move(info);
    AERIE_ASSIGN_OR_RETURN(std::tie(out->state_, out->scalars_), read_state_file(env, dir));
    for (const auto& [name, entry] : manifest.files) {
      if (!ends_with(name, ".safetensors")) continue;
      AERIE_ASSIGN_OR_RETURN(auto archive, archive::read_safetensors(env, str_cat(dir, "/", name)));
      out->archives_.emplace(name.substr(0, name.size() - 12), std::move(archive));
    }
    return std::unique_ptr<LoadedCheckpoint>(std::move(out));
  }

  std::vector<std::string> names(const std::string& file) const override {
    std::vector<std::string> out;
    if (const auto found = archives_.find(file); found != archives_.end())
      for (const auto& tensor : found->second.tensors()) out.push_back(tensor.name);
    return out;
  }

  Status read(const std::string& file, const std::string& name, Dtype dtype,
              const std::vector<int64_t>& shape, void* target) const override {
    const auto found = archives_.find(file);
    const archive::TensorInfo* tensor =
        found == archives_.end() ? nullptr : found->second.find(name);
    if (tensor == nullptr)
      return data_error(str_cat("checkpoint ", info_.path, " has no tensor '", name, "' in ", file,
                                ".safetensors"));
    if (tensor->dtype != dtype || tensor->shape != shape)
      return data_error(str_cat("checkpoint ", info_.path, ": '", name, "' is ",
                                dtype_safetensors(tensor->dtype),
                                archive::shape_text(tensor->shape), ", the model has ",
                                dtype_safetensors(dtype), archive::shape_text(shape)))
          .with_hint("the configuration differs from the one that wrote the checkpoint");
    return found->second.read(*tensor, target, tensor->nbytes());
  }

  const std::string& scalars_json() const override { return scalars_; }
  const TrainState& state() const override { return state_; }
  const CheckpointInfo& info() const override { return info_; }

 private:
  CheckpointInfo info_;
  TrainState state_;
  std::string scalars_;
  std::map<std::string, archive::TensorArchive> archives_;
};

}  // namespace

bool looks_like_checkpoint(Env& env, const std::string& dir) {
  const auto has = [&](const char* name) { return env.exists(str_cat(dir, "/", name)); };
  return has(kManifest) || has(kState) || has("model.safetensors");
}

std::string native_last_stem(int64_t step) {
  return str_cat(kNativeLast, step);
}

CheckpointStore::CheckpointStore(Env& env, std::string folder)
    : env_(env), folder_(std::move(folder)) {}

Result<uint64_t> CheckpointStore::save(const std::string& stem, const TrainState& state,
                                       StateSnapshot& snapshot) {
  auto written = write(stem, state, snapshot);
  if (written.ok()) return written;
  // What is left of a failed save would only keep a full disk full.
  const std::string target = str_cat(folder_, "/", stem);
  const std::string old = marked(stem, kOld);
  if (env_.exists(old) && !env_.exists(target)) (void)env_.rename(old, target);
  (void)env_.remove_tree(marked(stem, kNew));
  if (env_.exists(target + kUnfinished)) (void)env_.remove_file(target + kUnfinished);
  return written;
}

Result<uint64_t> CheckpointStore::write(const std::string& stem, const TrainState& state,
                                        StateSnapshot& snapshot) {
  AERIE_RETURN_IF_ERROR(snapshot.wait());
  AERIE_RETURN_IF_ERROR(create_dirs_durably(env_, folder_));
  const std::string target = str_cat(folder_, "/", stem);
  const std::string temporary = marked(stem, kNew);
  const std::string marker = target + kUnfinished;
  AERIE_RETURN_IF_ERROR(env_.remove_tree(temporary));
  AERIE_RETURN_IF_ERROR(env_.write_file(marker, ""));
  AERIE_RETURN_IF_ERROR(env_.create_dir(temporary));

  std::map<std::string, std::vector<archive::OutTensor>> files;
  for (const SnapshotTensor& tensor : snapshot.tensors())
    files[tensor.file].push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data, {}});
  uint64_t total = 0;
  Json listed = Json::object();
  const auto list = [&](const std::string& name, const FileEntry& entry) {
    listed[name] = {{"bytes", entry.bytes}, {"xxh64", entry.xxh64}};
    total += entry.bytes;
  };
  for (const auto& [file, tensors] : files) {
    const std::string name = file + ".safetensors";
    AERIE_ASSIGN_OR_RETURN(HashedFile out, HashedFile::create(env_, str_cat(temporary, "/", name)));
    AERIE_RETURN_IF_ERROR(archive::write_safetensors(
        archive::Sink([&](std::string_view bytes) { return out.append(bytes); }), tensors,
        {{"format", "pt"}}));
    AERIE_ASSIGN_OR_RETURN(const FileEntry entry, out.finish());
    list(name, entry);
  }
  TrainState named = state;
  named.saved_as = stem;
  Json state_json;
  state_json["train"] = Json::parse(named.to_json());
  state_json["engine"] = snapshot.scalars_json().empty()
                             ? Json::object()
                             : Json::parse(snapshot.scalars_json(), nullptr, false);
  AERIE_ASSIGN_OR_RETURN(const FileEntry state_entry,
                         write_bytes(env_, str_cat(temporary, "/", kState), state_json.dump(1)));
  list(kState, state_entry);
  Json manifest;
  manifest["format"] = "aerie-checkpoint";
  manifest["version"] = kFormatVersion;
  manifest["step"] = state.step;
  manifest["files"] = listed;
  AERIE_ASSIGN_OR_RETURN(const FileEntry manifest_entry,
                         write_bytes(env_, str_cat(temporary, "/", kManifest), manifest.dump(1)));
  AERIE_RETURN_IF_ERROR(env_.fsync_dir(temporary));

  // A directory cannot be replaced in one step: the old one is moved aside first. If the power
  // fails in between, the old one is found under its other name by clean_up().
  const std::string old = marked(stem, kOld);
  AERIE_RETURN_IF_ERROR(env_.remove_tree(old));
  const bool replaces = env_.exists(target);
  if (replaces) AERIE_RETURN_IF_ERROR(env_.rename(target, old));
  AERIE_RETURN_IF_ERROR(env_.rename(temporary, target));
  AERIE_RETURN_IF_ERROR(env_.remove_file(marker));
  AERIE_RETURN_IF_ERROR(env_.fsync_dir(folder_));
  if (replaces) AERIE_RETURN_IF_ERROR(env_.remove_tree(old));
  return total + manifest_entry.bytes;
}

std::string CheckpointStore::marked(const std::string& stem, const char* mark) const {
  return str_cat(folder_, "/.", stem, mark);
}

Status CheckpointStore::remove(const std::string& stem) {
  const std::string dir = str_cat(folder_, "/", stem);
  if (!env_.exists(dir)) return ok_status();
  // Under a name that nobody takes for a checkpoint or for a folder of the user's.
  const std::string gone = marked(stem, kGone);
  AERIE_RETURN_IF_ERROR(env_.remove_tree(gone));
  AERIE_RETURN_IF_ERROR(env_.rename(dir, gone));
  AERIE_RETURN_IF_ERROR(env_.fsync_dir(folder_));
  return env_.remove_tree(gone);
}

Result<std::vector<CheckpointInfo>> CheckpointStore::list() const {
  std::vector<CheckpointInfo> out;
  if (!env_.exists(folder_)) return out;
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env_.list_dir(folder_));
  for (const DirEntry& entry : entries) {
    const std::string path = str_cat(folder_, "/", entry.name);
    if (!entry.is_dir || starts_with(entry.name, ".") ||
        !env_.exists(str_cat(path, "/", kManifest)))
      continue;
    CheckpointInfo info;
    info.path = path;
    info.stem = entry.name;
    info.is_last = is_last_stem(entry.name);
    info.is_unhealthy = ends_with(entry.name, kUnhealthySuffix);
    // A damaged manifest still makes a candidate: newest_valid() reports it.
    const auto manifest = read_manifest(env_, path);
    info.manifest = manifest.status();
    if (manifest.ok()) info.step = manifest->step;
    out.push_back(std::move(info));
  }
  std::stable_sort(out.begin(), out.end(), [](const CheckpointInfo& a, const CheckpointInfo& b) {
    if (a.step != b.step) return a.step > b.step;
    return a.is_last > b.is_last;
  });
  return out;
}

Result<std::vector<UnusableCheckpoint>> CheckpointStore::unusable() const {
  std::vector<UnusableCheckpoint> out;
  if (!env_.exists(folder_)) return out;
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env_.list_dir(folder_));
  for (const DirEntry& entry : entries) {
    const std::string path = str_cat(folder_, "/", entry.name);
    if (starts_with(entry.name, ".")) continue;
    if (entry.is_dir) {
      const bool has_files =
          env_.exists(path + "/model.safetensors") || env_.exists(str_cat(path, "/", kState));
      if (has_files && !env_.exists(str_cat(path, "/", kManifest)))
        out.push_back({path, str_cat("it has no ", kManifest)});
    } else if (ends_with(entry.name, "-last") || ends_with(entry.name, kUnhealthySuffix)) {
      out.push_back({path, !entry.is_symlink   ? "it is a file, not the directory of a checkpoint"
                           : env_.exists(path) ? "it is a link, not the directory of a checkpoint"
                                               : "it is a link to something that is not there"});
    }
  }
  return out;
}

Result<std::unique_ptr<LoadedCheckpoint>> CheckpointStore::open(const std::string& stem) const {
  CheckpointInfo info;
  info.stem = stem;
  info.path = str_cat(folder_, "/", stem);
  info.is_last = is_last_stem(stem);
  return StoredCheckpoint::open(env_, info.path, info);
}

Result<std::unique_ptr<LoadedCheckpoint>> CheckpointStore::newest_valid(
    const std::function<void(const CheckpointInfo&, const Status&)>& report) const {
  AERIE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, list());
  const auto tell = [&](const CheckpointInfo& info, const Status& status) {
    if (report) report(info, status);
  };
  // Nobody knows how new one with a damaged manifest is.
  for (const CheckpointInfo& info : all)
    if (!info.manifest.ok()) tell(info, info.manifest);
  for (const CheckpointInfo& info : all) {
    if (!info.manifest.ok()) continue;
    if (info.is_unhealthy) {
      tell(info, data_error("it was saved after a step that was not finite"));
      continue;
    }
    auto opened = open(info.stem);
    if (opened.ok()) return opened;
    tell(info, opened.status());
  }
  return std::unique_ptr<LoadedCheckpoint>();
}

Result<TrainState> CheckpointStore::read_state(const std::string& stem) const {
  const std::string dir = str_cat(folder_, "/", stem);
  AERIE_ASSIGN_OR_RETURN(const Manifest manifest, read_manifest(env_, dir));
  AERIE_RETURN_IF_ERROR(verify_file(env_, str_cat(dir, "/", kState), manifest.files.at(kState)));
  AERIE_ASSIGN_OR_RETURN(auto state, read_state_file(env_, dir));
  return std::move(state.first);
}

Status CheckpointStore::clean_up() {
  if (!env_.exists(folder_)) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env_.list_dir(folder_));
  for (const DirEntry& entry : entries)
    AERIE_RETURN_IF_ERROR(entry.is_dir ? clean_up_directory(entry.name) : clean_up_file(entry));
  return env_.fsync_dir(folder_);
}

Status CheckpointStore::clean_up_directory(const std::string& name) {
  const std::string path = str_cat(folder_, "/", name);
  for (const char* mark : {kOld, kFormerOld}) {
    const std::string stem = stem_of(name, mark);
    const std::string target = str_cat(folder_, "/", stem);
    if (stem.empty() || env_.exists(target)) continue;
    if (mark == kFormerOld && !read_manifest(env_, path).ok()) continue;
    log_info("train", "putting checkpoint ", target, " back, which was to be replaced");
    return env_.rename(path, target);
  }
  for (const char* mark : {kNew, kOld, kGone}) {
    if (stem_of(name, mark).empty()) continue;
    log_info("train", "removing ", path, ", left by an interrupted save or removal");
    return env_.remove_tree(path);
  }
  const bool former = !stem_of(name, kFormerNew).empty() || !stem_of(name, kFormerOld).empty();
  const bool remainder = !starts_with(name, ".") && !env_.exists(str_cat(path, "/", kManifest)) &&
                         looks_like_checkpoint(env_, path);
  if (former || remainder)
    log_warn("train", path,
             " looks like part of a checkpoint without its manifest, left by an "
             "interrupted save or removal; it is not used and can be deleted");
  return ok_status();
}

Status CheckpointStore::clean_up_file(const DirEntry& entry) {
  if (entry.is_symlink || !ends_with(entry.name, kUnfinished)) return ok_status();
  const std::string path = str_cat(folder_, "/", entry.name);
  const std::string stem = entry.name.substr(0, entry.name.size() - (sizeof kUnfinished - 1));
  const std::string file = str_cat(folder_, "/", stem, ".ckpt");
  if (env_.exists(file)) {
    log_warn("train", file, " was not finished, as ", entry.name,
             " beside it says; it is not used and can be deleted");
    return ok_status();
  }
  // Directories appear whole, so a marker says nothing about them. Ours are empty.
  AERIE_ASSIGN_OR_RETURN(const FileStat stat, env_.stat(path));
  if (stat.size != 0) return ok_status();
  log_info("train", "removing ", path, ", left by an interrupted save");
  return env_.remove_file(path);
}

}  // namespace aerie::train
