#include "aerie/advisor/storage.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie::advisor {

const char* disk_kind_name(DiskKind kind) {
  switch (kind) {
    case DiskKind::kUnknown:
      return "disk of unknown kind";
    case DiskKind::kSolidState:
      return "solid-state disk";
    case DiskKind::kRotational:
      return "rotational disk";
    case DiskKind::kNetwork:
      return "network file system";
    case DiskKind::kMemory:
      return "memory";
  }
  return "";
}

DiskKind disk_kind(const std::string& path, const std::string& sys) {
  std::string at = path;
  struct stat info {};
  while (::stat(at.c_str(), &info) != 0) {
    const std::string above = parent_path(at);
    if (above == at || at.empty()) return DiskKind::kUnknown;
    at = above;
  }
  struct statfs fs {};
  if (::statfs(at.c_str(), &fs) != 0) return DiskKind::kUnknown;
  // Magic numbers of linux/magic.h and of the file systems themselves.
  switch (static_cast<uint32_t>(fs.f_type)) {
    case 0x6969:      // NFS
    case 0xff534d42:  // CIFS
    case 0xfe534d42:  // SMB2
    case 0x517b:      // SMB
    case 0x0bd00bd0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x00c36400:  // Ceph
    case 0x5346414f:  // AFS
      return DiskKind::kNetwork;
    case 0x01021994:  // tmpfs
    case 0x858458f6:  // ramfs
      return DiskKind::kMemory;
    default:
      break;
  }
  // The disk itself, or the one that a partition is part of.
  const std::string device =
      str_cat(sys, "/dev/block/", major(info.st_dev), ":", minor(info.st_dev));
  for (const char* file : {"/queue/rotational", "/../queue/rotational"})
    if (const auto text = Env::real().read_file(device + file, 16); text.ok())
      return trim(*text) == "1" ? DiskKind::kRotational : DiskKind::kSolidState;
  return DiskKind::kUnknown;
}

}  // namespace aerie::advisor
