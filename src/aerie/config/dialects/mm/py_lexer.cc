#include "aerie/config/dialects/mm/py_lexer.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/config/grammar.h"

namespace aerie::config::mm {
namespace {

constexpr std::string_view kOperators[] = {
    "**=", "//=", ">>=", "<<=", "...", "**", "//", ">>", "<<", "<=", ">=", "==",
    "!=",  "->",  "+=",  "-=",  "*=",  "/=", "%=", "@=", "&=", "|=", "^=", ":=",
    "+",   "-",   "*",   "/",   "%",   "@",  "&",  "|",  "^",  "~",  "<",  ">",
    "(",   ")",   "[",   "]",   "{",   "}",  ",",  ":",  ".",  ";",  "=",  "!"};

bool starts_name(char c) {
  return is_letter(c) || c == '_';
}
bool continues_name(char c) {
  return starts_name(c) || is_digit(c);
}
int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | (code >> 6));
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

}  // namespace

Lexer::Lexer(std::string_view text, std::string_view name, bool inside_brackets)
    : text_(text), name_(name), depth_(inside_brackets ? 1 : 0), fresh_line_(!inside_brackets) {
  if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
}

Status Lexer::error(int line, int column, std::string message) const {
  return invalid_argument(str_cat(std::string(name_), ":", line, ":", column, ": ", message));
}

// Blanks, comments, joined lines and, inside brackets, line ends. Empty lines make no token.
Status Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == ' ' || c == '\t' || c == '\f') {
      ++at_;
    } else if (c == '#') {
      while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
    } else if (c == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      at_ += peek(1) == '\n' ? 2 : 3;
      ++line_;
      line_start_ = at_;
    } else if ((c == '\n' || c == '\r') && (depth_ > 0 || fresh_line_)) {
      at_ += c == '\r' && peek(1) == '\n' ? 2 : 1;
      ++line_;
      line_start_ = at_;
    } else {
      return ok_status();
    }
  }
  return ok_status();
}

Result<Token> Lexer::next() {
  AERIE_RETURN_IF_ERROR(skip_blanks());
  Token token;
  token.line = line_;
  token.column = column_of(at_);
  if (at_ >= text_.size()) {
    // The last line ends too.
    const bool ends_line = depth_ == 0 && !fresh_line_ && !done_;
    done_ = true;
    fresh_line_ = true;
    token.kind = ends_line ? Token::Kind::kNewline : Token::Kind::kEnd;
    return token;
  }
  const char c = text_[at_];
  if (c == '\n' || c == '\r') {
    token.kind = Token::Kind::kNewline;
    at_ += c == '\r' && peek(1) == '\n' ? 2 : 1;
    ++line_;
    line_start_ = at_;
    fresh_line_ = true;
    return token;
  }
  if (depth_ == 0 && fresh_line_ && token.column > 1)
    return error(token.line, token.column, "this line is indented");
  fresh_line_ = false;
  if (c == '\0') return error(token.line, token.column, "a zero byte: this is no text");
  if (base_reference(token)) return token;
  if (c == '"' || c == '\'') return string_literal(std::move(token), 0);
  if (starts_name(c)) {
    size_t end = at_ + 1;
    while (end < text_.size() && continues_name(text_[end])) ++end;
    const size_t length = end - at_;
    const bool quoted = end < text_.size() && (text_[end] == '"' || text_[end] == '\'');
    if (quoted && length <= 2) {
      const std::string prefix = to_lower(text_.substr(at_, length));
      if (prefix == "r" || prefix == "u") return string_literal(std::move(token), length);
      if (prefix == "f" || prefix == "fr" || prefix == "rf")
        return error(token.line, token.column, "f-strings are not allowed: they run code");
      if (prefix == "b" || prefix == "br" || prefix == "rb")
        return error(token.line, token.column, "bytes are not allowed: write a string");
    }
    token.kind = Token::Kind::kName;
    token.text = text_.substr(at_, length);
    at_ = end;
    return token;
  }
  if (is_digit(c) || (c == '.' && is_digit(peek(1)))) return number(std::move(token));
  for (const std::string_view one : kOperators) {
    if (!at(one)) continue;
    token.kind = Token::Kind::kOperator;
    token.text = text_.substr(at_, one.size());
    at_ += one.size();
    if (one == "(" || one == "[" || one == "{") ++depth_;
    if ((one == ")" || one == "]" || one == "}") && depth_ > 0) --depth_;
    return token;
  }
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x80)
    return error(token.line, token.column,
                 "a character beyond ASCII outside a string: names are of letters, digits and _");
  return error(token.line, token.column,
               byte < 0x20 || byte == 0x7F ? std::string("a control character")
                                           : str_cat("'", c, "' means nothing here"));
}

// {{ _base_.a.b }}, which mmcv replaces by the value of a base before Python sees it.
bool Lexer::base_reference(Token& token) {
  if (!at("{{")) return false;
  size_t end = at_ + 2;
  const auto skip = [&] {
    while (end < text_.size() && (is_blank(text_[end]) || text_[end] == '\n' || text_[end] == '\r'))
      ++end;
  };
  skip();
  if (!text_.substr(end).starts_with("_base_.")) return false;
  end += 7;
  const size_t from = end;
  while (end < text_.size() && (continues_name(text_[end]) || text_[end] == '.')) ++end;
  const std::string_view path = text_.substr(from, end - from);
  skip();
  if (path.empty() || !text_.substr(end).starts_with("}}")) return false;
  end += 2;
  token.kind = Token::Kind::kBaseReference;
  token.text = text_.substr(at_, end - at_);
  token.value = path;
  for (size_t i = at_; i < end; ++i)
    if (text_[i] == '\n') {
      ++line_;
      line_start_ = i + 1;
    }
  at_ = end;
  return true;
}

// At the backslash; unknown escapes stay as they are written, as in Python.
Status Lexer::escape(size_t& at, std::string& out) const {
  const auto here = [&](std::string message) {
    return error(line_, column_of(at), std::move(message));
  };
  const char c = at + 1 < text_.size() ? text_[at + 1] : '\0';
  const auto digits = [&](size_t count) -> Result<uint32_t> {
    uint32_t code = 0;
    for (size_t i = 0; i < count; ++i) {
      const int digit = at + 2 + i < text_.size() ? hex_digit(text_[at + 2 + i]) : -1;
      if (digit < 0) return here(str_cat("\\", c, " needs ", count, " hexadecimal digits"));
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      return here(str_cat("\\", c, " names no character"));
    at += 2 + count;
    return code;
  };
  constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
  if (const size_t simple = kFrom.find(c); c != '\0' && simple != std::string_view::npos) {
    out.push_back(kTo[simple]);
    at += 2;
  } else if (c == 'x' || c == 'u' || c == 'U') {
    AERIE_ASSIGN_OR_RETURN(const uint32_t code, digits(c == 'x' ? 2 : c == 'u' ? 4 : 8));
    append_utf8(out, code);
  } else if (c >= '0' && c <= '7') {
    uint32_t code = 0;
    size_t end = at + 1;
    for (; end < at + 4 && end < text_.size() && text_[end] >= '0' && text_[end] <= '7'; ++end)
      code = code * 8 + static_cast<uint32_t>(text_[end] - '0');
    append_utf8(out, code);
    at = end;
  } else if (c == 'N') {
    return here("\\N{name} is not known here: write the character itself, or \\uXXXX");
  } else {
    out.push_back('\\');
    ++at;
  }
  return ok_status();
}

Result<Token> Lexer::string_literal(Token token, size_t prefix) {
  const bool raw = prefix > 0 && (text_[at_] == 'r' || text_[at_] == 'R');
  size_t at = at_ + prefix;
  const char quote = text_[at];
  const bool triple = at + 2 < text_.size() && text_[at + 1] == quote && text_[at + 2] == quote;
  at += triple ? 3 : 1;
  token.kind = Token::Kind::kString;
  const auto unfinished = [&] {
    return error(token.line, token.column,
                 triple ? "this string has no closing triple quotes"
                        : "this string has no closing quote on its line");
  };
  const auto new_line = [&] {
    at += text_[at] == '\r' && at + 1 < text_.size() && text_[at + 1] == '\n' ? 2 : 1;
    ++line_;
    line_start_ = at;
  };
  for (;;) {
    if (at >= text_.size()) return unfinished();
    const char c = text_[at];
    if (c == '\0') return error(line_, column_of(at), "a zero byte: this is no text");
    if (c == quote && (!triple || text_.substr(at).starts_with(std::string(3, quote)))) break;
    if (c == '\n' || c == '\r') {
      if (!triple) return unfinished();
      new_line();
      token.value.push_back('\n');
    } else if (c == '\\' && at + 1 < text_.size() &&
               (text_[at + 1] == '\n' || text_[at + 1] == '\r')) {
      ++at;
      new_line();
      if (raw) token.value += "\\\n";
    } else if (c == '\\' && raw) {
      token.value.push_back(c);
      if (++at < text_.size()) token.value.push_back(text_[at++]);
    } else if (c == '\\') {
      AERIE_RETURN_IF_ERROR(escape(at, token.value));
    } else {
      token.value.push_back(c);
      ++at;
    }
  }
  at += triple ? 3 : 1;
  token.text = text_.substr(at_, at - at_);
  at_ = at;
  return token;
}

// The shape alone; what it means is found where values are made.
Result<Token> Lexer::number(Token token) {
  size_t end = at_;
  const bool based = text_[at_] == '0' &&
                     std::string_view("xXoObB").find(peek(1)) != std::string_view::npos &&
                     peek(1) != '\0';
  if (based) end += 2;
  while (end < text_.size()) {
    const char c = text_[end];
    const bool sign =
        !based && (c == '+' || c == '-') && (text_[end - 1] == 'e' || text_[end - 1] == 'E');
    if (!(continues_name(c) || sign || (c == '.' && !based))) break;
    ++end;
  }
  token.kind = Token::Kind::kNumber;
  token.text = text_.substr(at_, end - at_);
  at_ = end;
  return token;
}

}  // namespace aerie::config::mm
