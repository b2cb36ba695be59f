#include "aerie/checkpoint/lightning_mirror.h"

#include <utility>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie::train {
namespace {

constexpr std::string_view kExtension = ".ckpt", kLast = "-last.ckpt", kAverages = "-EMA.ckpt";

std::string averages_of(const std::string& name) {
  return str_cat(name.substr(0, name.size() - kExtension.size()), kAverages);
}

}  // namespace

bool is_own_lightning_file(Env& env, const std::string& path) {
  const auto file = archive::read_lightning_checkpoint(env, path);
  return file.ok() && file->file.tree.find(file->file.root, "aerie") != archive::kNoNode;
}

LightningMirror::LightningMirror(Env& env, std::string folder, Write write)
    : env_(env), folder_(std::move(folder)), write_(std::move(write)) {}

Status LightningMirror::adopt() {
  if (!env_.exists(folder_)) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env_.list_dir(folder_));
  for (const DirEntry& entry : entries)
    if (!entry.is_dir && ends_with(entry.name, kExtension) && !ends_with(entry.name, kAverages) &&
        is_own_lightning_file(env_, join_path(folder_, entry.name)))
      ours_.insert(entry.name);
  return ok_status();
}

Status LightningMirror::write(const std::string& stem, const TrainState& state,
                              StateSnapshot& snapshot) {
  AERIE_RETURN_IF_ERROR(snapshot.wait());
  const std::string name = str_cat(stem, kExtension);
  AERIE_RETURN_IF_ERROR(write_(join_path(folder_, name), state, snapshot));
  ours_.insert(name);
  return ok_status();
}

Status LightningMirror::write_last(const std::string& stem, const TrainState& state,
                                   StateSnapshot& snapshot) {
  const std::string last = str_cat(stem, kLast);
  AERIE_RETURN_IF_ERROR(write(last.substr(0, last.size() - kExtension.size()), state, snapshot));
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env_.list_dir(folder_));
  for (const DirEntry& entry : entries) {
    if (entry.is_dir || entry.name == last || !ends_with(entry.name, kLast)) continue;
    if (ours_.count(entry.name) != 0) {
      AERIE_RETURN_IF_ERROR(remove_file(entry.name));
      continue;
    }
    for (const std::string& name : {entry.name, averages_of(entry.name)}) {
      const std::string path = join_path(folder_, name);
      if (!env_.exists(path)) continue;
      log_info("train", path, " is now ", name, ".superseded: ", last, " has come further");
      AERIE_RETURN_IF_ERROR(env_.rename(path, path + ".superseded"));
    }
  }
  return ok_status();
}

Status LightningMirror::remove(const std::string& stem) {
  const std::string name = str_cat(stem, kExtension);
  return ours_.count(name) != 0 ? remove_file(name) : ok_status();
}

Status LightningMirror::remove_file(const std::string& name) {
  for (const std::string& one : {name, averages_of(name)}) {
    const std::string path = join_path(folder_, one);
    if (env_.exists(path)) AERIE_RETURN_IF_ERROR(env_.remove_file(path));
  }
  ours_.erase(name);
  return ok_status();
}

}  // namespace aerie::train
