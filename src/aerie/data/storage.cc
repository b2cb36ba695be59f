#include "aerie/data/storage.h"

#include <cstdio>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "aerie/base/strings.h"

namespace aerie::data {

StorageInfo classify_filesystem(uint64_t type) {
  struct Known {
    uint64_t type;
    const char* name;
    bool network;
    bool memory = false;
  };
  static constexpr Known kKnown[] = {
      {0xEF53, "ext", false},
      {0x58465342, "xfs", false},
      {0x9123683E, "btrfs", false},
      {0x794C7630, "overlay", false},
      {0x2FC12FC1, "zfs", false},
      {0x01021994, "tmpfs", false, true},
      {0x858458F6, "ramfs", false, true},
      {0x6969, "nfs", true},
      {0xFF534D42, "cifs", true},
      {0xFE534D42, "smb2", true},
      {0x517B, "smb", true},
      {0x0BD00BD0, "lustre", true},
      {0x65735546, "fuse", true},
      {0x00C36400, "ceph", true},
      {0x47504653, "gpfs", true},
      {0x19830326, "beegfs", true},
      {0x5346414F, "afs", true},
      {0x01021997, "9p", true},
      {0x6A656A63, "virtiofs", true},
      {0x18031977, "wekafs", true},
      {0xAAD7AAEA, "panfs", true},
      {0x786F4256, "vboxsf", true},
  };
  StorageInfo out;
  for (const Known& known : kKnown) {
    if (known.type != type) continue;
    out.filesystem = known.name;
    out.network = known.network;
    out.memory = known.memory;
    return out;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "type 0x%llx", static_cast<unsigned long long>(type));
  out.filesystem = text;
  return out;
}

std::string StorageInfo::kind() const {
  if (network) return str_cat("network file system (", filesystem, ")");
  if (memory) return "memory";
  return rotational ? "rotational disk" : solid_state ? "solid-state disk" : "";
}

StorageInfo storage_info(const std::string& path, Env& env, const std::string& sysfs) {
  struct statfs filesystem {};
  if (::statfs(path.c_str(), &filesystem) != 0) return {};
  StorageInfo out = classify_filesystem(static_cast<uint32_t>(filesystem.f_type));
  struct stat file {};
  if (::stat(path.c_str(), &file) != 0) return out;
  // A partition has no queue of its own: its disk is the folder above.
  const std::string device =
      str_cat(sysfs, "/dev/block/", major(file.st_dev), ":", minor(file.st_dev));
  for (const char* place : {"/queue/rotational", "/../queue/rotational"}) {
    const Result<std::string> text = env.read_file(device + place, 16);
    if (!text.ok()) continue;
    out.rotational = trim(*text) == "1";
    out.solid_state = !out.rotational;
    break;
  }
  return out;
}

}  // namespace aerie::data
