// What kind of disk a file lies on, as far as Linux tells.
#pragma once

#include <string>

namespace aerie::advisor {

enum class DiskKind { kUnknown, kSolidState, kRotational, kNetwork, kMemory };
const char* disk_kind_name(DiskKind kind);  // "rotational disk", ...

// Of the nearest folder of `path` that exists. `sys` is for tests.
DiskKind disk_kind(const std::string& path, const std::string& sys = "/sys");

}  // namespace aerie::advisor
