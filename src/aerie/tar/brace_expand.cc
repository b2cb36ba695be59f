#include "aerie/tar/brace_expand.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "aerie/base/strings.h"

namespace aerie::tar {
namespace {

constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
constexpr int kMaxDepth = 64;

using Strings = std::vector<std::string>;

class Expander {
 public:
  Expander(std::string_view whole, bool escape, size_t max_results)
      : whole_(whole), escape_(escape), max_results_(max_results) {}

  // Literals and brace expressions next to each other: all combinations, the last varying fastest.
  Result<Strings> pattern(std::string_view text, int depth) {
    if (depth > kMaxDepth) return error("braces are nested too deeply");
    Strings results{""};
    size_t start = 0;
    size_t at = 0;
    int open = 0;
    const auto append = [&](const Strings& choices) -> Status {
      if (choices.empty()) {
        results.clear();
        return ok_status();
      }
      if (results.size() > max_results_ / choices.size()) return error("expands to too many names");
      Strings longer;
      longer.reserve(results.size() * choices.size());
      for (const std::string& left : results)
        for (const std::string& right : choices) longer.push_back(left + right);
      results = std::move(longer);
      return ok_status();
    };
    while (at < text.size()) {
      if (escape_ && text[at] == '\\') {
        at += 2;
        continue;
      }
      if (text[at] == '{') {
        if (open == 0 && at > start) {
          AERIE_RETURN_IF_ERROR(append({std::string(text.substr(start, at - start))}));
          start = at;
        }
        ++open;
      } else if (text[at] == '}') {
        --open;
        if (open == 0) {
          const std::string_view inner = text.substr(start + 1, at - start - 1);
          AERIE_ASSIGN_OR_RETURN(std::optional<Strings> choices, expression(inner, depth));
          if (choices) {
            AERIE_RETURN_IF_ERROR(append(*choices));
          } else {
            // Neither range nor list: the braces stay.
            AERIE_ASSIGN_OR_RETURN(const Strings middle, pattern(inner, depth + 1));
            AERIE_RETURN_IF_ERROR(append({"{"}));
            AERIE_RETURN_IF_ERROR(append(middle));
            AERIE_RETURN_IF_ERROR(append({"}"}));
          }
          start = at + 1;
        } else if (open < 0) {
          return error("unbalanced braces");
        }
      }
      ++at;
    }
    if (open != 0) return error("unbalanced braces");
    if (start < text.size()) AERIE_RETURN_IF_ERROR(append({std::string(text.substr(start))}));
    return results;
  }

 private:
  Status error(const char* what) const {
    return invalid_argument(str_cat(what, " in '", whole_, "'"));
  }

  Result<std::optional<Strings>> expression(std::string_view text, int depth) {
    AERIE_ASSIGN_OR_RETURN(std::optional<Strings> numbers, int_range(text));
    if (numbers) return numbers;
    if (std::optional<Strings> letters = letter_range(text)) return letters;
    return sequence(text, depth);
  }

  static std::optional<int64_t> integer(std::string_view text) {
    const bool negative = starts_with(text, "-");
    if (negative) text.remove_prefix(1);
    if (text.empty() || text.size() > 15) return std::nullopt;
    int64_t value = 0;
    for (const char c : text) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + (c - '0');
    }
    return negative ? -value : value;
  }

  struct Range {
    std::string_view first;
    std::string_view last;
    int64_t step = 1;
  };
  // "a..b" or "a..b..step"
  static std::optional<Range> split_range(std::string_view text) {
    const size_t dots = text.find("..");
    if (dots == std::string_view::npos) return std::nullopt;
    Range range;
    range.first = text.substr(0, dots);
    std::string_view rest = text.substr(dots + 2);
    const size_t more = rest.find("..");
    if (more != std::string_view::npos) {
      const std::optional<int64_t> step = integer(rest.substr(more + 2));
      if (!step) return std::nullopt;
      range.step = std::max<int64_t>(1, *step < 0 ? -*step : *step);
      rest = rest.substr(0, more);
    }
    range.last = rest;
    return range;
  }

  static bool asks_for_padding(std::string_view text) {
    return text != "0" && text != "-0" && (starts_with(text, "0") || starts_with(text, "-0"));
  }

  Result<std::optional<Strings>> int_range(std::string_view text) const {
    const std::optional<Range> range = split_range(text);
    if (!range) return std::optional<Strings>();
    const std::optional<int64_t> first = integer(range->first);
    const std::optional<int64_t> last = integer(range->last);
    if (!first || !last) return std::optional<Strings>();
    const size_t width = asks_for_padding(range->first) || asks_for_padding(range->last)
                             ? std::max(range->first.size(), range->last.size())
                             : 0;
    const int64_t distance = *first < *last ? *last - *first : *first - *last;
    if (static_cast<uint64_t>(distance / range->step) >= max_results_)
      return error("expands to too many names");
    Strings out;
    for (int64_t i = 0; i <= distance; i += range->step) {
      const int64_t value = *first < *last ? *first + i : *first - i;
      std::string digits = str_cat(value < 0 ? -value : value);
      const size_t sign = value < 0 ? 1 : 0;
      if (digits.size() + sign < width) digits.insert(0, width - sign - digits.size(), '0');
      out.push_back(sign != 0 ? "-" + digits : digits);
    }
    return std::optional<Strings>(std::move(out));
  }

  static std::optional<Strings> letter_range(std::string_view text) {
    const std::optional<Range> range = split_range(text);
    if (!range || range->first.size() != 1 || range->last.size() != 1) return std::nullopt;
    const size_t first = kLetters.find(range->first[0]);
    const size_t last = kLetters.find(range->last[0]);
    if (first == std::string_view::npos || last == std::string_view::npos) return std::nullopt;
    Strings out;
    const int64_t step = first < last ? range->step : -range->step;
    for (int64_t i = static_cast<int64_t>(first);
         step > 0 ? i <= static_cast<int64_t>(last) : i >= static_cast<int64_t>(last); i += step)
      out.emplace_back(1, kLetters[static_cast<size_t>(i)]);
    return out;
  }

  // "a,b{1,2},c"; nullopt without a comma outside of inner braces.
  Result<std::optional<Strings>> sequence(std::string_view text, int depth) {
    Strings out;
    size_t start = 0;
    size_t at = 0;
    int open = 0;
    bool any = false;
    const auto take = [&](size_t end) -> Status {
      AERIE_ASSIGN_OR_RETURN(const Strings part,
                             pattern(text.substr(start, end - start), depth + 1));
      out.insert(out.end(), part.begin(), part.end());
      return out.size() > max_results_ ? error("expands to too many names") : ok_status();
    };
    while (at < text.size()) {
      if (escape_ && text[at] == '\\') {
        at += 2;
        continue;
      }
      if (text[at] == '{') ++open;
      if (text[at] == '}') --open;
      if (text[at] == ',' && open == 0) {
        any = true;
        AERIE_RETURN_IF_ERROR(take(at));
        start = at + 1;
      }
      ++at;
    }
    if (open != 0 || !any) return std::optional<Strings>();
    AERIE_RETURN_IF_ERROR(take(text.size()));
    return std::optional<Strings>(std::move(out));
  }

  std::string_view whole_;
  const bool escape_;
  const size_t max_results_;
};

void replace_all(std::string& text, std::string_view from, char to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + 1))
    text.replace(at, from.size(), 1, to);
}

}  // namespace

Result<std::vector<std::string>> brace_expand(std::string_view pattern, bool escape,
                                              size_t max_results) {
  AERIE_ASSIGN_OR_RETURN(Strings names, Expander(pattern, escape, max_results).pattern(pattern, 0));
  if (escape) {
    for (std::string& name : names) {
      std::string plain;
      for (size_t i = 0; i < name.size(); ++i) {
        if (name[i] == '\\' && i + 1 < name.size()) ++i;
        plain += name[i];
      }
      name = std::move(plain);
    }
  }
  return names;
}

std::string normalize_shard_braces(std::string_view pattern) {
  std::string text(pattern);
  for (const char* open : {"(", "[", "<", "_OP_"}) replace_all(text, open, '{');
  for (const char* close : {")", "]", ">", "_CL_"}) replace_all(text, close, '}');
  return text;
}

Result<std::vector<std::string>> expand_shard_pattern(std::string_view pattern,
                                                      size_t max_results) {
  Result<Strings> names = brace_expand(normalize_shard_braces(pattern), false, max_results);
  if (!names.ok()) return names.status().with_hint("write shards as audio_{0..127}.tar");
  return names;
}

}  // namespace aerie::tar
