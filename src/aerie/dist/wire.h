// Numbers and texts in the messages of watch.h.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace aerie::dist {

template <typename T>
void put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

inline void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

// Takes a value off the front; false: there is not enough.
template <typename T>
bool take(std::string_view& in, T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (in.size() < sizeof(T)) return false;
  std::memcpy(&value, in.data(), sizeof(T));
  in.remove_prefix(sizeof(T));
  return true;
}

inline bool take_text(std::string_view& in, std::string& text) {
  uint32_t size = 0;
  if (!take(in, size) || in.size() < size) return false;
  text.assign(in.substr(0, size));
  in.remove_prefix(size);
  return true;
}

}  // namespace aerie::dist
