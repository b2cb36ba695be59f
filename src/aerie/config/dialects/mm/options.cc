#include "aerie/config/dialects/mm/options.h"

#include <algorithm>
#include <limits>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/config_file.h"
#include "aerie/config/dialects/mm/py_numbers.h"
#include "aerie/config/grammar.h"

namespace aerie::config::mm {
namespace {

constexpr size_t kMostBytes = 1u << 20;

// Where the element that begins `text` ends: a comma outside brackets, or its end.
Result<size_t> element_end(std::string_view text) {
  std::string open;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ',' && open.empty()) return i;
    if (c == '(' || c == '[') open.push_back(c == '(' ? ')' : ']');
    if (c != ')' && c != ']') continue;
    if (open.empty() || open.back() != c)
      return invalid_argument(
          str_cat("the brackets of '", std::string(text.substr(0, 40)), "' do not match"));
    open.pop_back();
  }
  if (!open.empty())
    return invalid_argument(
        str_cat("a bracket of '", std::string(text.substr(0, 40)), "' is not closed"));
  return text.size();
}

// Python's int() and float(): a sign, then digits; leading zeros are fine in int().
bool as_number(std::string_view text, Value& out) {
  const bool is_negative = text.starts_with("-");
  if (is_negative || text.starts_with("+")) text.remove_prefix(1);
  const std::string lower = to_lower(text);
  if (lower == "inf" || lower == "infinity" || lower == "nan") {
    const double value = lower == "nan" ? std::numeric_limits<double>::quiet_NaN()
                                        : std::numeric_limits<double>::infinity();
    out = Value(is_negative ? -value : value);
    return true;
  }
  if (text.empty() || !(is_digit(text[0]) || text[0] == '.')) return false;
  const bool zero_first = text.size() > 1 && text[0] == '0';
  if (zero_first && is_letter(text[1]) && text[1] != 'e' && text[1] != 'E') return false;
  // int("007") is 7, which a literal may not write.
  if (text.find_first_not_of("0123456789_") == std::string_view::npos)
    while (text.size() > 1 && text[0] == '0') text.remove_prefix(text[1] == '_' ? 2 : 1);
  if (text.empty()) return false;
  const auto number = parse_number(text);
  if (!number.ok()) return false;
  auto value = is_negative ? negative(*number) : number;
  if (!value.ok()) return false;
  out = std::move(value).value();
  return true;
}

Value scalar(std::string_view text) {
  Value number;
  if (as_number(text, number)) return number;
  const std::string lower = to_lower(text);
  if (lower == "true" || lower == "false") return Value(lower == "true");
  if (text == "None") return Value();
  return Value(text);
}

Result<Value> parse(std::string_view text, int depth) {
  if (depth > kMaxValueNesting)
    return invalid_argument(str_cat("more than ", kMaxValueNesting, " brackets inside each other"));
  while (!text.empty() && (text.front() == '\'' || text.front() == '"')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == '\'' || text.back() == '"')) text.remove_suffix(1);
  AERIE_ASSIGN_OR_RETURN(const size_t first, element_end(text));
  const bool bracketed =
      first == text.size() && text.size() >= 2 &&
      ((text.front() == '(' && text.back() == ')') || (text.front() == '[' && text.back() == ']'));
  if (bracketed)
    text = text.substr(1, text.size() - 2);
  else if (first == text.size())
    return scalar(text);
  List items;
  while (!text.empty()) {
    AERIE_ASSIGN_OR_RETURN(const size_t end, element_end(text));
    AERIE_ASSIGN_OR_RETURN(Value item, parse(text.substr(0, end), depth + 1));
    items.push_back(std::move(item));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return Value(std::move(items));
}

}  // namespace

Result<Value> parse_option_value(std::string_view text) {
  if (text.size() > kMostBytes) return invalid_argument("the value is longer than 1 MiB");
  std::string dense;
  for (const char c : text)
    if (c != ' ') dense.push_back(c);
  return parse(dense, 0);
}

Status apply_options(const std::vector<std::string>& options, Value& config) {
  for (const std::string& option : options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos || equals == 0)
      return invalid_argument(str_cat("'", option, "' is no option KEY=VALUE"))
          .with_hint("for example --options runner.max_iters=100");
    auto value = parse_option_value(std::string_view(option).substr(equals + 1));
    if (!value.ok()) return value.status().with_context(str_cat("command line: ", option));
    std::vector<std::string> parts = split(option.substr(0, equals), '.');
    if (parts.size() > static_cast<size_t>(kMaxDepth))
      return invalid_argument(str_cat("the key has more than ", kMaxDepth, " parts"));
    const Origin origin = Origin::command_line(option);
    Value change = std::move(value).value();
    change.set_origin_deep(origin);
    for (size_t i = parts.size(); i-- > 0;) {
      if (parts[i].empty())
        return invalid_argument(str_cat("'", option, "': the key has an empty part"));
      Map map;
      map.set(parts[i], std::move(change));
      change = Value(std::move(map)).with_origin(origin);
    }
    AERIE_RETURN_IF_ERROR(merge_child(std::move(change), config, /*list_keys=*/true));
  }
  return ok_status();
}

}  // namespace aerie::config::mm
