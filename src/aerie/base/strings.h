// Small string helpers that every layer may use. No fmt here: torch ships its own copy of fmt, so
// translation units that see torch headers must not see ours.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace aerie {

namespace detail {
inline void append_piece(std::string& out, std::string_view piece) {
  out.append(piece);
}
inline void append_piece(std::string& out, const std::string& piece) {
  out.append(piece);
}
inline void append_piece(std::string& out, const char* piece) {
  out.append(piece);
}
inline void append_piece(std::string& out, char piece) {
  out.push_back(piece);
}
inline void append_piece(std::string& out, bool piece) {
  out.append(piece ? "true" : "false");
}
void append_piece(std::string& out, double piece);  // shortest form that reads back equal
inline void append_piece(std::string& out, float piece) {
  append_piece(out, static_cast<double>(piece));
}
template <typename T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool> &&
         !std::is_same_v<T, char>) void append_piece(std::string& out, T piece) {
  out.append(std::to_string(piece));
}
}  // namespace detail

// str_cat("step ", 3, " took ", 1.5, " ms"): concatenation of strings, numbers and bools.
template <typename... Pieces>
std::string str_cat(const Pieces&... pieces) {
  std::string out;
  (detail::append_piece(out, pieces), ...);
  return out;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::vector<std::string> split(std::string_view text, char separator);
std::string_view trim(std::string_view text);
bool starts_with(std::string_view text, std::string_view prefix);
bool ends_with(std::string_view text, std::string_view suffix);
std::string to_lower(std::string_view text);

// Levenshtein distance with transpositions; used for "did you mean".
size_t edit_distance(std::string_view a, std::string_view b);
// The candidate nearest to `name`, or empty when none is near enough to be a plausible misspelling.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace aerie
