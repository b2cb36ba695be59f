#include "aerie/checkpoint/mm_mirror.h"

#include <utility>
#include <vector>

#include "aerie/base/link.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/checkpoint/checkpoint_store.h"

namespace aerie::train {
namespace {

constexpr std::string_view kPth = ".pth";
constexpr const char* kLatest = "latest";

// N of iter_N or epoch_N; -1: another name.
int64_t number_of(const std::string& name) {
  for (const std::string_view prefix : {"iter_", "epoch_"}) {
    if (!starts_with(name, prefix)) continue;
    const auto number = parse_int64(name.substr(prefix.size()), 0);
    return number.ok() ? *number : -1;
  }
  return -1;
}

std::string without_extension(const std::string& name) {
  return name.substr(0, name.size() - kPth.size());
}

// `path` from the files of `folder`: relative where it lies below.
std::string relative_to(const std::string& folder, const std::string& path) {
  return starts_with(path, folder + "/") ? path.substr(folder.size() + 1) : path;
}

}  // namespace

std::optional<MmMark> mm_mark(const archive::TorchFile& file) {
  const archive::NodeId node = file.tree.find(file.tree.find(file.root, "meta"), "aerie");
  const auto native = file.tree.as_string(file.tree.find(node, "checkpoint"));
  const auto step = file.tree.as_int(file.tree.find(node, "step"));
  if (!native || !step) return std::nullopt;
  return MmMark{*native, *step};
}

Result<std::optional<MmMark>> read_mm_mark(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(archive::SourcePtr source, archive::file_source(env, path));
  AERIE_ASSIGN_OR_RETURN(const archive::TorchFile file,
                         archive::read_torch_file(std::move(source)));
  return mm_mark(file);
}

Result<std::string> native_checkpoint_of(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const std::optional<MmMark> mark, read_mm_mark(env, path));
  if (!mark) return std::string();
  const std::string native =
      starts_with(mark->native, "/") ? mark->native : join_path(parent_path(path), mark->native);
  const CheckpointStore store(env, parent_path(native));
  AERIE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> all, store.list());
  std::string other;
  for (const CheckpointInfo& info : all) {
    if (!info.manifest.ok() || info.step != mark->step) continue;
    if (info.stem == base_name(native)) return info.path;
    other = info.path;
  }
  return other;
}

std::optional<int64_t> mm_iterations(const archive::TorchFile& file, const std::string& path) {
  const archive::NodeId meta = file.tree.find(file.root, "meta");
  const auto iter = file.tree.as_int(file.tree.find(meta, "iter"));
  if (!iter || *iter < 0) return std::nullopt;
  if (mm_mark(file)) return iter;
  std::string name = base_name(path);
  // A link or a copy still knows what it was called.
  if (const auto last =
          file.tree.as_string(file.tree.find(file.tree.find(meta, "hook_msgs"), "last_ckpt"));
      number_of(file_stem(name)) < 0 && last)
    name = base_name(*last);
  const bool one_less = starts_with(name, "iter_") && number_of(file_stem(name)) == *iter + 1;
  return one_less ? *iter + 1 : *iter;
}

Result<std::string> latest_mm_file(Env& env, const std::string& folder) {
  if (!env.exists(folder)) return std::string();
  const std::string latest = join_path(folder, str_cat(kLatest, kPth));
  if (env.exists(latest)) return latest;
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder));
  std::string out;
  int64_t highest = -1;
  for (const DirEntry& entry : entries) {
    if (entry.is_dir || !ends_with(entry.name, kPth)) continue;
    const int64_t number = number_of(without_extension(entry.name));
    if (number <= highest) continue;
    highest = number;
    out = join_path(folder, entry.name);
  }
  return out;
}

MmMirror::MmMirror(Env& env, std::string folder, Write write, bool link)
    : env_(env), folder_(std::move(folder)), write_(std::move(write)), link_(link) {}

Status MmMirror::adopt() {
  if (!env_.exists(folder_)) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env_.list_dir(folder_));
  for (const DirEntry& entry : entries) {
    if (entry.is_dir || entry.is_symlink || !ends_with(entry.name, kPth)) continue;
    const std::string name = without_extension(entry.name);
    if (name == kLatest || (number_of(name) < 0 && !starts_with(name, "best_"))) continue;
    // One that cannot be read is nobody's.
    const auto mark = read_mm_mark(env_, join_path(folder_, entry.name));
    if (mark.ok() && *mark) ours_.insert(name);
  }
  return ok_status();
}

Status MmMirror::write(const std::string& name, const std::string& native, const TrainState& state,
                       StateSnapshot& snapshot, bool latest) {
  AERIE_RETURN_IF_ERROR(snapshot.wait());
  const std::string file = str_cat(name, kPth), path = join_path(folder_, file);
  if (ours_.count(name) == 0 && env_.exists(path)) {
    log_info("train", path, " is now ", file, ".superseded: this run has come there itself");
    AERIE_RETURN_IF_ERROR(env_.rename(path, path + ".superseded"));
  }
  AERIE_RETURN_IF_ERROR(write_(path, {relative_to(folder_, native), state.step}, state, snapshot));
  ours_.insert(name);
  if (!latest || !link_) return ok_status();
  const std::string link = join_path(folder_, str_cat(kLatest, kPth));
  const Status linked =
      &env_ == &Env::real() ? replace_link(file, link) : unsupported("no links here");
  // mmcv copies where there are no links.
  if (linked.code() == StatusCode::kUnsupported)
    return write_(link, {relative_to(folder_, native), state.step}, state, snapshot);
  return linked;
}

Status MmMirror::remove(const std::string& name) {
  if (ours_.count(name) == 0) return ok_status();
  const std::string path = join_path(folder_, str_cat(name, kPth));
  if (env_.exists(path)) AERIE_RETURN_IF_ERROR(env_.remove_file(path));
  ours_.erase(name);
  return ok_status();
}

Status MmMirror::retain(const std::set<std::string>& names) {
  const std::set<std::string> all = ours_;
  for (const std::string& name : all)
    if (names.count(name) == 0) AERIE_RETURN_IF_ERROR(remove(name));
  return ok_status();
}

}  // namespace aerie::train
