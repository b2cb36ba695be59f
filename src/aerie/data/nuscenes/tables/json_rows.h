// The rows of a table, one after the other: a JSON array of objects, read in blocks. A row is
// handed out as text; nothing but the row at hand and one block is in memory, whatever the file
// holds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::nuscenes {

// A row is at most this long; those of nuScenes are below 4 KiB.
inline constexpr size_t kMaxRowBytes = 1 << 20;
inline constexpr int kMaxRowDepth = 32;
// Bytes behind a row that may be read (not written), as simdjson wants them.
inline constexpr size_t kRowPadding = 64;

// The object's text, from "{" to "}", and its number, counted from 0.
using RowVisitor = std::function<Status(std::string_view object, uint64_t row)>;

// Cuts an array into rows, block by block. Braces and strings are followed, so that a row ends
// where it ends; whether it is JSON inside is the visitor's to find out. One thread.
class RowSplitter {
 public:
  // `file_bytes`: how much will come, if that is known; only small files need less room for it.
  explicit RowSplitter(RowVisitor visit, uint64_t file_bytes = kMaxRowBytes);

  // Where to put the next bytes: at least one fits.
  char* room(size_t& size);
  // `size` bytes were put there.
  Status add(size_t size);
  // No more bytes.
  Status finish();
  uint64_t num_rows() const { return row_; }

 private:
  enum class Place { kStart, kBeforeFirst, kBeforeRow, kInRow, kAfterRow, kEnd };
  Status scan();
  Status scan_between();
  Status scan_row();
  Status wrong(std::string_view what) const;

  RowVisitor visit_;
  const size_t block_bytes_;  // asked for at a time
  std::vector<char> buffer_;
  size_t begin_ = 0;  // of the row at hand, or of what is not scanned
  size_t at_ = 0;     // scanned up to here
  size_t end_ = 0;    // of the bytes
  Place place_ = Place::kStart;
  uint64_t row_ = 0;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool first_bytes_ = true;
};

// All rows of a file. Errors name the file and the row. `bytes_read` is counted up on the way.
Status read_rows(Env& env, const std::string& path, const RowVisitor& visit,
                 const std::function<void(uint64_t bytes)>& progress = {});

// "row 17 (counted from 0)": as messages name a row.
std::string row_name(uint64_t row);

}  // namespace aerie::nuscenes
