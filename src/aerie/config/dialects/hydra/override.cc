#include "aerie/config/dialects/hydra/override.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/hydra/override_functions.h"
#include "aerie/config/grammar.h"
#include "aerie/config/resolver.h"

namespace aerie::config {

namespace {

constexpr size_t kMaxOverrideBytes = 1u << 20;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Override> parse() {
    Override out;
    out.text = std::string(text_);
    if (text_.size() > kMaxOverrideBytes) return error("it is longer than a megabyte");
    take_prefix(out);
    const size_t key_start = at_;
    const size_t equal = std::min(text_.find('=', at_), text_.size());
    AERIE_RETURN_IF_ERROR(key(out, text_.substr(key_start, equal - key_start)));
    at_ = equal;
    if (end()) {
      if (out.kind == Override::Kind::kDelete) return out;
      return error("'=' is missing")
          .with_hint("an override is key=value, +key=value, ++key=value or ~key");
    }
    ++at_;
    AERIE_RETURN_IF_ERROR(value(out));
    return out;
  }

 private:
  bool end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  void skip_blanks() {
    while (!end() && is_blank(peek())) ++at_;
  }
  char peek_past_blanks() const {
    size_t at = at_;
    while (at < text_.size() && is_blank(text_[at])) ++at;
    return at < text_.size() ? text_[at] : '\0';
  }

  Status error(std::string_view what) const {
    return invalid_argument(str_cat("Error parsing override '", text_.substr(0, 120),
                                    text_.size() > 120 ? "..." : "", "': ", what, " at character ",
                                    std::min(at_, text_.size()) + 1));
  }

  struct Nested {
    explicit Nested(int& depth) : depth_(depth) { ++depth_; }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth_;
  };

  void take_prefix(Override& out) {
    if (peek() == '~') {
      out.kind = Override::Kind::kDelete;
      ++at_;
    } else if (peek() == '+') {
      out.kind = Override::Kind::kAdd;
      ++at_;
      if (peek() == '+') {
        out.kind = Override::Kind::kForceAdd;
        ++at_;
      }
    }
  }

  // ---- Keys ----

  // (CHAR|_|$) (CHAR|DIGIT|_|-|$)*
  static bool is_special_key(std::string_view part) {
    if (part.empty() || !(is_letter(part[0]) || part[0] == '_' || part[0] == '$')) return false;
    return std::all_of(part.begin(), part.end(), [](char c) {
      return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '$';
    });
  }

  static bool is_index(std::string_view part) {
    if (part == "0") return true;
    if (part.empty() || part[0] < '1' || part[0] > '9') return false;
    for (size_t i = 1; i < part.size(); ++i) {
      if (is_digit(part[i])) continue;
      if (part[i] != '_' || i + 1 == part.size() || !is_digit(part[i + 1])) return false;
    }
    return true;
  }

  Status path(std::string_view path) const {
    if (path.empty()) return ok_status();
    const std::vector<std::string> parts = split(path, '.');
    if (parts.size() > static_cast<size_t>(kMaxDepth)) return error("the key is too long");
    for (const std::string& part : parts) {
      if (is_special_key(part) || (parts.size() > 1 && is_index(part))) continue;
      if (part.empty()) return error(str_cat("the key '", path, "' has an empty part"));
      Status status = error(str_cat("'", part, "' is not a key"));
      if (part.find_first_of("[]") != std::string::npos) {
        return std::move(status).with_hint("items of a list are addressed as key.0");
      }
      return status;
    }
    return ok_status();
  }

  Status key(Override& out, std::string_view text) const {
    const size_t at_sign = text.find('@');
    const std::string_view name = text.substr(0, at_sign);
    if (name.empty()) return error("a key was expected");
    if (name.find('/') != std::string_view::npos) {
      for (const std::string& part : split(name, '/')) {
        if (!is_identifier(part)) return error(str_cat("'", name, "' is not a config group"));
      }
    } else {
      AERIE_RETURN_IF_ERROR(path(name));
    }
    out.key = std::string(name);
    if (at_sign == std::string_view::npos) return ok_status();
    AERIE_RETURN_IF_ERROR(path(text.substr(at_sign + 1)));
    out.package = std::string(text.substr(at_sign + 1));
    return ok_status();
  }

  // ---- Values ----

  Status value(Override& out) {
    skip_blanks();
    if (end()) {
      out.value = Value("");
    } else {
      AERIE_ASSIGN_OR_RETURN(Value first, element());
      const char next = peek_past_blanks();
      if (next == ',') {
        // Read on, so that bad syntax is called bad syntax.
        while (peek_past_blanks() == ',') {
          skip_blanks();
          ++at_;
          skip_blanks();
          AERIE_RETURN_IF_ERROR(element().status());
        }
        if (end()) return sweep();
      }
      if (!end()) return unexpected();
      out.value = std::move(first);
    }
    AERIE_RETURN_IF_ERROR(classify(*out.value));
    out.value->set_origin_deep(Origin::command_line(std::string(text_)));
    return ok_status();
  }

  Status sweep() const {
    return invalid_argument(str_cat(
        "Ambiguous value for argument '", text_.substr(0, 200),
        "': a sweep over several values needs --multirun, which is not supported; to use it "
        "as a list write key=[value1,value2], as a string quote the value: "
        "key=\\'value1,value2\\'"));
  }

  Status unexpected() const {
    const char c = peek();
    size_t length = 1;
    while ((static_cast<unsigned char>(peek(length)) & 0xC0) == 0x80) ++length;
    const Status status = error(str_cat("unexpected '", text_.substr(at_, length), "'"));
    if (c == '=' || c == '(' || c == ')' || c == '[' || c == ']' || c == '{' || c == '}') {
      return status.with_hint(
          "quote the value (key=\\'...\\') or put a backslash before the character");
    }
    return status.with_hint("quote the value: key=\\'...\\'");
  }

  // Strings become what they mean in a config; interpolations must parse.
  Status classify(Value& value) const {
    if (value.is_string()) {
      value = Value::from_text(value.as_string());
      if (!value.is_interpolation()) return ok_status();
      return check_interpolation(value.as_string())
          .with_context(str_cat("override '", text_.substr(0, 120), "'"));
    }
    if (value.is_list()) {
      for (Value& item : value.as_list()) AERIE_RETURN_IF_ERROR(classify(item));
    } else if (value.is_map()) {
      for (MapEntry& entry : value.as_map()) AERIE_RETURN_IF_ERROR(classify(entry.value));
    }
    return ok_status();
  }

  Result<Value> element() {
    const Nested nested(depth_);
    if (depth_ > kMaxValueNesting) return error("nested too deep");
    const char c = peek();
    if (c == '\'' || c == '"') return quoted(c);
    if (c == '[') return list();
    if (c == '{') return map();
    return primitive_or_call();
  }

  // Backslashes are taken in pairs only before a quote; elsewhere they stand for themselves.
  Result<Value> quoted(char quote) {
    std::string out;
    const size_t start = at_++;
    while (!end()) {
      size_t slashes = 0;
      while (peek() == '\\') {
        ++slashes;
        ++at_;
      }
      if (end()) break;
      if (peek() != quote) {
        out.append(slashes, '\\');
        out += text_[at_++];
        continue;
      }
      out.append(slashes / 2, '\\');
      ++at_;
      if (slashes % 2 == 0) return Value(std::move(out));
      out += quote;
    }
    at_ = start;
    return error("a quote is not closed");
  }

  Result<Value> list() {
    ++at_;
    skip_blanks();
    List out;
    if (peek() == ']') {
      ++at_;
      return Value(std::move(out));
    }
    while (true) {
      AERIE_ASSIGN_OR_RETURN(Value item, element());
      out.push_back(std::move(item));
      skip_blanks();
      const char c = peek();
      if (c != ',' && c != ']') return end() ? error("a bracket is not closed") : unexpected();
      ++at_;
      if (c == ']') return Value(std::move(out));
      skip_blanks();
    }
  }

  Result<Value> map() {
    ++at_;
    skip_blanks();
    Map out;
    if (peek() == '}') {
      ++at_;
      return Value(std::move(out));
    }
    while (true) {
      if (peek() == '\'' || peek() == '"') {
        return error("keys between braces are not quoted").with_hint("write {key: value}");
      }
      AERIE_ASSIGN_OR_RETURN(const std::string key, unquoted(true));
      if (key.empty()) return error("a key was expected");
      auto entry = make_map_key(key, escaped_);
      if (!entry.ok()) return error(entry.status().message());
      skip_blanks();
      if (peek() != ':') return error("':' was expected");
      ++at_;
      skip_blanks();
      AERIE_ASSIGN_OR_RETURN(entry->value, element());
      out.set(std::move(entry).value());
      skip_blanks();
      const char c = peek();
      if (c != ',' && c != '}') return end() ? error("a brace is not closed") : unexpected();
      ++at_;
      if (c == '}') return Value(std::move(out));
      skip_blanks();
    }
  }

  // Unquoted text up to a delimiter, unescaped; blanks before a delimiter are not part of it.
  Result<std::string> unquoted(bool is_key) {
    std::string out;
    escaped_ = false;
    while (!end()) {
      const char c = peek();
      if (is_blank(c)) {
        const size_t start = at_;
        skip_blanks();
        const char next = peek();
        const bool delimiter = end() ||
                               std::string_view(",])}(=").find(next) != std::string_view::npos ||
                               (is_key && next == ':');
        if (delimiter) break;
        out += text_.substr(start, at_ - start);
        continue;
      }
      if (c == '\\' && at_ + 1 < text_.size() && is_escapable(peek(1))) {
        out += peek(1);
        at_ += 2;
        escaped_ = true;
        continue;
      }
      if (c == ':') {
        if (is_key) break;
        const size_t start = at_++;
        skip_blanks();
        out += text_.substr(start, at_ - start);
        continue;
      }
      if (c == '$' && peek(1) == '{') {
        // Hydra's command line ends an interpolation at the first brace.
        const size_t close = text_.find('}', at_);
        if (is_key || close == std::string_view::npos || close == at_ + 2) {
          return error("an interpolation is out of place or not closed");
        }
        if (text_.substr(at_ + 2, close - at_ - 2).find("${") != std::string_view::npos) {
          return error("nested interpolations must be quoted")
              .with_hint("write key=\\'${a.${b}}\\'");
        }
        out += text_.substr(at_, close + 1 - at_);
        at_ = close + 1;
        continue;
      }
      if (!is_unquoted_char(c)) break;
      out += c;
      ++at_;
    }
    return out;
  }

  Result<Value> primitive_or_call() {
    const size_t start = at_;
    AERIE_ASSIGN_OR_RETURN(std::string text, unquoted(false));
    if (at_ == start || (text.empty() && !escaped_)) {
      return end() ? error("a value was expected") : unexpected();
    }
    if (peek() == '(' && !escaped_ && is_identifier(text)) return call(text);
    if (!escaped_) {
      auto constant = parse_constant(text);
      if (!constant.ok()) return error(constant.status().message());
      if (*constant) return std::move(**constant);
    }
    return Value(std::move(text));
  }

  Result<Value> call(const std::string& name) {
    const size_t start = at_;
    ++at_;
    skip_blanks();
    FunctionCall call{name, {}, {}};
    if (peek() == ')') {
      ++at_;
    } else {
      while (true) {
        AERIE_RETURN_IF_ERROR(argument(call));
        skip_blanks();
        const char c = peek();
        if (c != ',' && c != ')')
          return end() ? error("a parenthesis is not closed") : unexpected();
        ++at_;
        if (c == ')') break;
        skip_blanks();
      }
    }
    auto result = evaluate_function(call);
    if (result.ok()) return result;
    if (result.status().code() == StatusCode::kUnsupported) {
      return invalid_argument(str_cat("'", text_, "': ", result.status().message()));
    }
    at_ = start;
    return error(result.status().message());
  }

  Status argument(FunctionCall& call) {
    // name=value: a lone `=` cannot occur in a value.
    size_t scan = at_;
    while (scan < text_.size() && (is_letter(text_[scan]) || is_digit(text_[scan]) ||
                                   text_[scan] == '_' || text_[scan] == '-')) {
      ++scan;
    }
    const std::string_view name = text_.substr(at_, scan - at_);
    while (scan < text_.size() && is_blank(text_[scan])) ++scan;
    if (scan < text_.size() && text_[scan] == '=' && is_identifier(name)) {
      at_ = scan + 1;
      skip_blanks();
      AERIE_ASSIGN_OR_RETURN(Value value, element());
      call.named.emplace_back(std::string(name), std::move(value));
      return ok_status();
    }
    if (!call.named.empty()) return error("a positional argument follows a named one");
    AERIE_ASSIGN_OR_RETURN(Value value, element());
    call.arguments.push_back(std::move(value));
    return ok_status();
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool escaped_ = false;
};

}  // namespace

Result<Override> parse_override(std::string_view text) {
  return Parser(text).parse();
}

}  // namespace aerie::config
