// What the disk below a path is like, for warnings at the start of a run. Linux.
#pragma once

#include <string>

#include "aerie/base/env.h"

namespace aerie::data {

struct StorageInfo {
  std::string filesystem;    // "ext4-like" names where known, else "type 0x..."; empty: unknown
  bool network = false;      // NFS, CIFS, Lustre, FUSE, ...
  bool rotational = false;   // a hard disk; false when unknown
  bool solid_state = false;  // a disk that does not turn; false when unknown
  bool memory = false;       // tmpfs and the like
  // "network file system (nfs)", "rotational disk", "solid-state disk", "memory"; empty: unknown
  std::string kind() const;
};

// `sysfs` exists for tests.
StorageInfo storage_info(const std::string& path, Env& env = Env::real(),
                         const std::string& sysfs = "/sys");

// The name of a file system by its statfs number, and whether it is reached over a network.
StorageInfo classify_filesystem(uint64_t statfs_type);

}  // namespace aerie::data
