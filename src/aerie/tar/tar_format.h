// What every tar reader here accepts and refuses, and one member as they report it.
//
// Understood: v7, ustar, GNU long names, PAX (path, size). Refused: links, devices, FIFOs, sparse
// and multi-volume members, absolute names, names with "..", bad checksums, sizes beyond the
// archive, duplicate names, archives that end early and archives with data behind their end.
// Directories are passed over.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::tar {

struct TarOptions {
  // An archive cut at a member boundary shows only in its missing end marker.
  bool require_end_marker = true;
  bool refuse_duplicates = true;
  uint64_t max_member_bytes = uint64_t{4} << 30;
  uint64_t max_name_bytes = 4096;
  // Compressed archives may unpack to this many times their size (plus 16 MiB).
  uint64_t max_expansion = 2000;
  Env* env = nullptr;  // null: the real file system
};

struct TarMember {
  std::string name;     // without a leading "./"
  uint64_t offset = 0;  // of the data, in the (uncompressed) archive
  uint64_t size = 0;
};

// "a/../b", "/a", "", a name with control characters: an error that says why; otherwise ok.
Status check_member_name(std::string_view name);

enum class Compression : uint8_t { kNone, kGzip, kBzip2, kXz };
// By magic bytes; 6 are enough.
Compression sniff_compression(const uint8_t* head, size_t size);
const char* compression_name(Compression compression);

}  // namespace aerie::tar
