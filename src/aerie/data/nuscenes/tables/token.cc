#include "aerie/data/nuscenes/tables/token.h"

#include <array>

#include "aerie/base/hash.h"
#include "aerie/base/strings.h"

namespace aerie::nuscenes {

namespace {

constexpr uint8_t kNoDigit = 0xFF;

constexpr std::array<uint8_t, 256> make_digits() {
  std::array<uint8_t, 256> out{};
  for (uint8_t& value : out) value = kNoDigit;
  for (int i = 0; i < 10; ++i) out['0' + i] = static_cast<uint8_t>(i);
  for (int i = 0; i < 6; ++i) {
    out['a' + i] = static_cast<uint8_t>(10 + i);
    out['A' + i] = static_cast<uint8_t>(10 + i);
  }
  return out;
}
constexpr std::array<uint8_t, 256> kDigits = make_digits();

// False: not 16 digits.
bool half(const char* text, uint64_t& out) {
  uint64_t value = 0;
  uint8_t seen = 0;
  for (int i = 0; i < 16; ++i) {
    const uint8_t digit = kDigits[static_cast<uint8_t>(text[i])];
    seen |= digit;
    value = value << 4 | (digit & 15);
  }
  out = value;
  return seen < 16;
}

}  // namespace

bool parse_token(std::string_view text, Token& out) {
  return text.size() == 32 && half(text.data(), out.hi) && half(text.data() + 16, out.lo);
}

Result<Token> parse_token(std::string_view text) {
  Token out;
  if (!parse_token(text, out))
    return data_error(str_cat("'", text.substr(0, 40), text.size() > 40 ? "..." : "",
                              "' is not a token of 32 hexadecimal digits"));
  return out;
}

std::string to_string(const Token& token) {
  return hex64(token.hi) + hex64(token.lo);
}

}  // namespace aerie::nuscenes
