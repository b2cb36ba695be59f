// Expressions of Python files, evaluated while they are read. Internal to the dialect.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/dialects/mm/py_lexer.h"
#include "aerie/config/dialects/mm/py_reader.h"
#include "aerie/config/value.h"

namespace aerie::config::mm {

class ExpressionParser {
 public:
  struct Options {
    const Map* scope = nullptr;    // names that are defined; null: none
    bool attributes = false;       // `a.b` is a key of the map a
    bool inside_brackets = false;  // line ends do not count
  };
  ExpressionParser(std::string_view text, std::string_view name, const Options& options,
                   ReadBudget& budget);

  // The first token must be read before anything else.
  Status advance();
  const Token& current() const { return current_; }
  // The token behind the current one.
  Result<const Token*> peek();

  // With `tuple`, `1, 2` without brackets is a tuple.
  Result<Value> expression(bool tuple);
  Status error(const Token& token, std::string message) const;
  // What is wrong with the current token where something else was expected.
  Status unexpected(std::string_view expected) const;

 private:
  Result<Value> sum();
  Result<Value> term();
  Result<Value> signed_value();
  Result<Value> power();
  Result<Value> subscripted();
  Result<Value> sliced(const Token& open, const Value& value, const Value& first);
  Result<Value> atom();
  Result<Value> name();
  Result<Value> string();
  Result<Value> round_brackets();
  Result<Value> square_brackets();
  Result<Value> braces();
  Result<Value> dict_call();
  Status add_key(Map& map, MapEntry entry, const Token& where) const;
  Result<Value> combine(const Token& op, Value left, Value right);
  Result<Value> repeated(const Value& value, int64_t times);
  Result<Value> unpacked(bool is_dict);
  Status expect(std::string_view text);
  Origin origin(const Token& token) const;

  Lexer lexer_;
  Options options_;
  ReadBudget& budget_;
  std::shared_ptr<const std::string> source_;
  Token current_;
  std::optional<Token> ahead_;
  int depth_ = 0;
};

// Words that Python reserves.
bool is_keyword(std::string_view name);
// The hint of every refusal.
std::string_view allowed_in_files();

}  // namespace aerie::config::mm
