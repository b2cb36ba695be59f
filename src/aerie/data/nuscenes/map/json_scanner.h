// Reads JSON front to back, value by value, without building a tree: memory does not grow with the
// text. The first mistake stays: afterwards everything answers false, and error() says what it was
// and where.
//
//   for (bool first = true; scanner.next_member(first, key);)
//     if (key == "x") scanner.read_number(x); else scanner.skip();
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "aerie/base/status.h"

namespace aerie::nuscenes {

class JsonScanner {
 public:
  enum class Kind : uint8_t { kObject, kArray, kString, kNumber, kLiteral, kNothing };

  explicit JsonScanner(std::string_view text) : text_(text) {}

  bool failed() const { return !error_.empty(); }
  Status error() const;  // a data error with line and byte
  size_t offset() const { return place_; }

  // What the next value is, judged by its first character.
  Kind peek();
  // After begin_*() each next_*() stands before a value, until it answers false.
  bool begin_object();
  bool next_member(bool& first, std::string_view& key);
  bool begin_array();
  bool next_element(bool& first);
  // Views live as long as text and scanner.
  bool read_string(std::string_view& out);
  // NaN and Infinity, which Python writes, are numbers here.
  bool read_number(double& out);
  bool skip();  // any value
  bool at_end();

  bool fail(std::string_view what);

 private:
  void skip_blanks();
  bool take(char expected, std::string_view what);
  bool skip_value(int depth);
  bool scan_string(std::string_view& raw, bool& escaped);
  bool decode(std::string_view raw, std::string_view& out);

  std::string_view text_;
  size_t place_ = 0;
  std::string error_;
  size_t error_place_ = 0;
  std::deque<std::string> decoded_;  // strings with escapes
};

}  // namespace aerie::nuscenes
