// Tokens of a Python file, as far as configurations need them. Internal to the dialect.
#pragma once

#include <string>
#include <string_view>

#include "aerie/base/status.h"

namespace aerie::config::mm {

struct Token {
  enum class Kind { kName, kNumber, kString, kOperator, kBaseReference, kNewline, kEnd };
  Kind kind = Kind::kEnd;
  std::string_view text;  // as written; empty at the end
  std::string value;      // of a string literal: what it means; of {{_base_.a.b}}: "a.b"
  int line = 1;
  int column = 1;

  bool is(std::string_view operator_text) const {
    return kind == Kind::kOperator && text == operator_text;
  }
  bool is_name(std::string_view name) const { return kind == Kind::kName && text == name; }
  bool ends_statement() const { return kind == Kind::kNewline || kind == Kind::kEnd || is(";"); }
};

// Reads one token after the other; `text` and `name` outlive it. Lines end a statement outside
// brackets only, as in Python.
class Lexer {
 public:
  // `inside_brackets`: line ends never count, as in an expression of its own.
  Lexer(std::string_view text, std::string_view name, bool inside_brackets = false);

  Result<Token> next();
  // invalid_argument("NAME:LINE:COLUMN: MESSAGE")
  Status error(int line, int column, std::string message) const;

 private:
  Status skip_blanks();
  Result<Token> string_literal(Token token, size_t prefix);
  Status escape(size_t& at, std::string& out) const;
  Result<Token> number(Token token);
  bool base_reference(Token& token);
  bool at(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  int column_of(size_t position) const { return static_cast<int>(position - line_start_) + 1; }

  std::string_view text_;
  std::string_view name_;
  size_t at_ = 0;
  size_t line_start_ = 0;
  int line_ = 1;
  int depth_ = 0;
  bool fresh_line_ = true;  // nothing but blanks so far on a line outside brackets
  bool done_ = false;
};

}  // namespace aerie::config::mm
