// Numbers from text, strictly: the whole text must be the number, in range, in the C locale. Errors
// are kInvalidArgument and quote the text (shortened).
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "aerie/base/status.h"

namespace aerie {

// Decimal, an optional sign, nothing else: no blanks, no "0x", no digit separators.
Result<int64_t> parse_int64(std::string_view text,
                            int64_t min = std::numeric_limits<int64_t>::min(),
                            int64_t max = std::numeric_limits<int64_t>::max());
Result<uint64_t> parse_uint64(std::string_view text, uint64_t min = 0,
                              uint64_t max = std::numeric_limits<uint64_t>::max());
// Decimal or scientific notation; never infinite or nan.
Result<double> parse_double(std::string_view text,
                            double min = std::numeric_limits<double>::lowest(),
                            double max = std::numeric_limits<double>::max());
// true/false, yes/no, on/off, 1/0 in any case.
Result<bool> parse_bool(std::string_view text);
// Bytes: "1048576", "64K", "1.5 GiB", "2GB" (K, M, G, T and Ki... are powers of 1024, KB... of
// 1000).
Result<uint64_t> parse_bytes(std::string_view text);

// parse_int<int>("12"): range-checked to the type.
template <typename T>
Result<T> parse_int(std::string_view text, T min = std::numeric_limits<T>::min(),
                    T max = std::numeric_limits<T>::max()) {
  static_assert(std::is_integral_v<T> && !std::is_same_v<T, bool>);
  if constexpr (std::is_signed_v<T>) {
    AERIE_ASSIGN_OR_RETURN(const int64_t value, parse_int64(text, min, max));
    return static_cast<T>(value);
  } else {
    AERIE_ASSIGN_OR_RETURN(const uint64_t value, parse_uint64(text, min, max));
    return static_cast<T>(value);
  }
}

}  // namespace aerie
