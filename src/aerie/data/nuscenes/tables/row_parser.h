// One row of a table, with its values by key and type. Keys that are not asked for are ignored,
// whatever they hold; of a key that stands twice the last counts, as in Python.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/token.h"
#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes {

// Bounds of what a table may say. No coordinate of the Earth in metres is beyond the first.
inline constexpr double kMaxCoordinate = 1e9;
inline constexpr double kMaxSize = 1e6;

// One thread. Errors name the key and what it holds.
class RowParser {
 public:
  // Numbers below mean places in `keys`, which must outlive the parser.
  explicit RowParser(std::span<const std::string_view> keys);
  ~RowParser();
  RowParser(const RowParser&) = delete;
  RowParser& operator=(const RowParser&) = delete;

  // `object` must have kRowPadding readable bytes behind it. Views below live until the next call.
  Status parse(std::string_view object);

  Status token(int key, Token& out) const;
  // "" and null: none.
  Status optional_token(int key, Token& out, bool& present) const;
  Status text(int key, std::string_view& out) const;
  Status optional_text(int key, std::string_view& out) const;  // null: empty
  // A path below the data root: relative, without "..".
  Status path(int key, std::string_view& out) const;
  Status boolean(int key, bool& out) const;
  Status integer(int key, int64_t min, int64_t max, int64_t& out) const;
  // As integer(), but absent or null is 0.
  Status optional_integer(int key, int64_t min, int64_t max, int64_t& out) const;
  Status translation(int key, Vec3& out) const;
  Status size(int key, Vec3& out) const;                      // not negative
  Status rotation(int key, Quaternion& out) const;            // w, x, y, z, with a length
  Status intrinsic(int key, Mat3& out, bool& present) const;  // [] : none; else invertible
  Status tokens(int key, std::vector<Token>& out) const;      // a list

 private:
  struct Impl;
  Status parse_slowly(std::string_view object);
  Status wrong(int key, std::string_view need) const;
  Status numbers(int key, std::span<double> out) const;

  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::nuscenes
