#include "aerie/config/dialects/mm/py_expression.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/py_numbers.h"

namespace aerie::config::mm {
namespace {

constexpr std::string_view kKeywords[] = {
    "and",  "as",     "assert", "async",  "await",  "break",   "class",    "continue", "def",
    "del",  "elif",   "else",   "except", "False",  "finally", "for",      "from",     "global",
    "if",   "import", "in",     "is",     "lambda", "None",    "nonlocal", "not",      "or",
    "pass", "raise",  "return", "True",   "try",    "while",   "with",     "yield"};

std::string shown(std::string_view text) {
  constexpr size_t kMost = 40;
  return str_cat("'", printable(std::string(text.substr(0, kMost))),
                 text.size() > kMost ? "..." : "", "'");
}

// What a token that ends an expression too early was meant to do.
std::string meaning_of(const Token& token) {
  if (token.kind == Token::Kind::kEnd) return "the text ends here";
  if (token.kind == Token::Kind::kNewline) return "the line ends here";
  const std::string_view text = token.text;
  if (text == "for" || text == "async") return "comprehensions are not allowed";
  if (text == "if" || text == "else") return "conditions are not allowed";
  if (text == "lambda") return "functions are not allowed";
  if (text == "and" || text == "or" || text == "not" || text == "in" || text == "is" ||
      text == "==" || text == "!=" || text == "<" || text == ">" || text == "<=" || text == ">=")
    return str_cat("the comparison ", shown(text), " is not allowed");
  if (text == "(") return "calls are not allowed, except dict(...)";
  if (text == ".") return "attributes are not allowed";
  if (text == ":=" ||
      (token.kind == Token::Kind::kOperator && text.size() > 1 && text.back() == '='))
    return str_cat("the assignment ", shown(text), " is not allowed");
  if (text == "~" || text == "&" || text == "|" || text == "^" || text == "<<" || text == ">>" ||
      text == "@")
    return str_cat("the operator ", shown(text), " is not allowed");
  if (text == "*" || text == "**")
    return "unpacking is for [*list], {**dict} and dict(**dict) alone";
  if (token.kind == Token::Kind::kName && is_keyword(text))
    return str_cat(shown(text), " is not allowed");
  return "";
}

class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(++depth) {}
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

}  // namespace

bool is_keyword(std::string_view name) {
  return std::find(std::begin(kKeywords), std::end(kKeywords), name) != std::end(kKeywords);
}

std::string_view allowed_in_files() {
  return "a configuration is read, not run: it may hold NAME = VALUE with numbers, strings, True, "
         "False, None, [...], (...), {...}, dict(...), names defined above, their items and "
         "slices, "
         "*list and **dict inside them, arithmetic and {{_base_.name}}";
}

ExpressionParser::ExpressionParser(std::string_view text, std::string_view name,
                                   const Options& options, ReadBudget& budget)
    : lexer_(text, name, options.inside_brackets),
      options_(options),
      budget_(budget),
      source_(std::make_shared<const std::string>(name)) {}

Status ExpressionParser::advance() {
  if (ahead_) {
    current_ = std::move(*ahead_);
    ahead_.reset();
    return ok_status();
  }
  auto token = lexer_.next();
  if (!token.ok()) return token.status().with_hint(std::string(allowed_in_files()));
  current_ = std::move(token).value();
  return ok_status();
}

Result<const Token*> ExpressionParser::peek() {
  if (!ahead_) {
    auto token = lexer_.next();
    if (!token.ok()) return token.status().with_hint(std::string(allowed_in_files()));
    ahead_ = std::move(token).value();
  }
  return &*ahead_;
}

Status ExpressionParser::error(const Token& token, std::string message) const {
  return lexer_.error(token.line, token.column, std::move(message))
      .with_hint(std::string(allowed_in_files()));
}

Status ExpressionParser::unexpected(std::string_view expected) const {
  const std::string meaning = meaning_of(current_);
  const bool at_end = current_.kind == Token::Kind::kEnd || current_.kind == Token::Kind::kNewline;
  if (!meaning.empty() && !at_end) return error(current_, meaning);
  return error(current_, str_cat("expected ", std::string(expected), ", ",
                                 at_end ? meaning : str_cat("got ", shown(current_.text))));
}

Status ExpressionParser::expect(std::string_view text) {
  if (!current_.is(text)) return unexpected(shown(text));
  return advance();
}

Origin ExpressionParser::origin(const Token& token) const {
  return Origin::file(source_, token.line, token.column);
}

Result<Value> ExpressionParser::expression(bool tuple) {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth)
    return error(current_, str_cat("more than ", kMaxDepth, " brackets inside each other"));
  const Token first = current_;
  AERIE_ASSIGN_OR_RETURN(Value value, sum());
  if (!tuple || !current_.is(",")) return value;
  List items;
  items.push_back(std::move(value));
  while (current_.is(",")) {
    AERIE_RETURN_IF_ERROR(advance());
    if (current_.ends_statement() || current_.is(")") || current_.is("=")) break;
    AERIE_ASSIGN_OR_RETURN(Value item, sum());
    items.push_back(std::move(item));
  }
  AERIE_RETURN_IF_ERROR(budget_.take(1, 0));
  return Value(std::move(items)).with_origin(origin(first));
}

Result<Value> ExpressionParser::sum() {
  AERIE_ASSIGN_OR_RETURN(Value value, term());
  while (current_.is("+") || current_.is("-")) {
    const Token op = current_;
    AERIE_RETURN_IF_ERROR(advance());
    AERIE_ASSIGN_OR_RETURN(Value right, term());
    AERIE_ASSIGN_OR_RETURN(value, combine(op, std::move(value), std::move(right)));
  }
  return value;
}

Result<Value> ExpressionParser::term() {
  AERIE_ASSIGN_OR_RETURN(Value value, signed_value());
  while (current_.is("*") || current_.is("/") || current_.is("//") || current_.is("%")) {
    const Token op = current_;
    AERIE_RETURN_IF_ERROR(advance());
    AERIE_ASSIGN_OR_RETURN(Value right, signed_value());
    AERIE_ASSIGN_OR_RETURN(value, combine(op, std::move(value), std::move(right)));
  }
  return value;
}

Result<Value> ExpressionParser::signed_value() {
  const Token first = current_;
  bool is_negative = false, any = false;
  while (current_.is("-") || current_.is("+")) {
    is_negative ^= current_.is("-");
    any = true;
    AERIE_RETURN_IF_ERROR(advance());
  }
  AERIE_ASSIGN_OR_RETURN(Value value, power());
  if (!any) return value;
  if (!value.is_number() && !value.is_bool())
    return error(first, str_cat(shown(first.text), " stands before ", value.kind_phrase()));
  if (is_negative) {
    auto result = negative(value);
    if (!result.ok()) return error(first, result.status().message());
    value = std::move(result).value();
  } else if (value.is_bool()) {
    value = Value(static_cast<int64_t>(value.as_bool()));
  }
  return std::move(value).with_origin(origin(first));
}

Result<Value> ExpressionParser::power() {
  AERIE_ASSIGN_OR_RETURN(Value base, subscripted());
  if (!current_.is("**")) return base;
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) return error(current_, "too many powers of powers");
  const Token op = current_;
  AERIE_RETURN_IF_ERROR(advance());
  AERIE_ASSIGN_OR_RETURN(Value exponent, signed_value());
  return combine(op, std::move(base), std::move(exponent));
}

Result<Value> ExpressionParser::combine(const Token& op, Value left, Value right) {
  const auto number = [](const Value& value) { return value.is_number() || value.is_bool(); };
  if (number(left) && number(right)) {
    auto result = arithmetic(op.text, left, right);
    if (!result.ok()) return error(op, result.status().message());
    return std::move(result).value().with_origin(left.origin());
  }
  if (op.is("+") && left.is_string() && right.is_string()) {
    AERIE_RETURN_IF_ERROR(budget_.take(1, left.as_string().size() + right.as_string().size()));
    return Value(left.as_string() + right.as_string()).with_origin(left.origin());
  }
  if (op.is("+") && left.is_list() && right.is_list()) {
    for (Value& item : right.as_list()) left.as_list().push_back(std::move(item));
    return left;
  }
  if (op.is("*") && left.is_int() && !right.is_int()) std::swap(left, right);
  if (op.is("*") && right.is_int() && (left.is_list() || left.is_string()))
    return repeated(left, right.as_int());
  if (left.is_interpolation() || right.is_interpolation())
    return error(op, "nothing can be computed with {{_base_...}}: its value comes in later");
  return error(op, str_cat(shown(op.text), " does not go with ", left.kind_phrase(), " and ",
                           right.kind_phrase()));
}

// [a] * 3, '-' * 3; less than one time is nothing.
Result<Value> ExpressionParser::repeated(const Value& value, int64_t times) {
  // Taken one by one, so that a hostile number ends where the budget does.
  if (value.is_string()) {
    std::string text;
    for (int64_t i = 0; i < times; ++i) {
      AERIE_RETURN_IF_ERROR(budget_.take(1, value.as_string().size()));
      text += value.as_string();
    }
    return Value(std::move(text)).with_origin(value.origin());
  }
  List items;
  for (int64_t i = 0; i < times; ++i) {
    AERIE_RETURN_IF_ERROR(budget_.take_copy(value));
    for (const Value& item : value.as_list()) items.push_back(item);
  }
  return Value(std::move(items)).with_origin(value.origin());
}

// Behind * and **: what is put into the list or dict around it.
Result<Value> ExpressionParser::unpacked(bool is_dict) {
  const Token star = current_;
  AERIE_RETURN_IF_ERROR(advance());
  AERIE_ASSIGN_OR_RETURN(Value value, expression(false));
  if (value.is_interpolation())
    return error(star, "{{_base_...}} cannot be unpacked: its value comes in later");
  if (is_dict ? !value.is_map() : !value.is_list())
    return error(star, str_cat(shown(star.text), is_dict ? " takes a dict" : " takes a list",
                               ", not ", value.kind_phrase()));
  return value;
}

Result<Value> ExpressionParser::subscripted() {
  AERIE_ASSIGN_OR_RETURN(Value value, atom());
  for (;;) {
    const Token open = current_;
    if (options_.attributes && open.is(".")) {
      AERIE_RETURN_IF_ERROR(advance());
      if (current_.kind != Token::Kind::kName) return unexpected("a key behind the dot");
      const std::string key(current_.text);
      const Value* child = value.is_map() ? value.child(key) : nullptr;
      if (child == nullptr) return error(current_, str_cat("there is no key '", key, "' here"));
      AERIE_RETURN_IF_ERROR(advance());
      Value copy = *child;
      value = std::move(copy);
      continue;
    }
    if (!open.is("[")) return value;
    AERIE_RETURN_IF_ERROR(advance());
    if (current_.is(":")) {
      AERIE_ASSIGN_OR_RETURN(value, sliced(open, value, Value()));
      continue;
    }
    AERIE_ASSIGN_OR_RETURN(const Value index, expression(false));
    if (current_.is(":")) {
      AERIE_ASSIGN_OR_RETURN(value, sliced(open, value, index));
      continue;
    }
    AERIE_RETURN_IF_ERROR(expect("]"));
    const Value* child = nullptr;
    if (value.is_list() && index.is_int()) {
      const auto size = static_cast<int64_t>(value.as_list().size());
      const int64_t at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
      if (at < 0 || at >= size)
        return error(open, str_cat("index ", index.as_int(), " of a list of ", size));
      child = &value.as_list()[static_cast<size_t>(at)];
    } else if (value.is_map() && index.is_string()) {
      child = value.as_map().find(index.as_string());
      if (child == nullptr)
        return error(open, str_cat("there is no key ", index.brief(40), " here"));
    } else {
      return error(open, str_cat("[", index.brief(40), "] does not go with ", value.kind_phrase()));
    }
    Value copy = *child;
    value = std::move(copy);
  }
}

// What follows [first of a list, at the colon.
Result<Value> ExpressionParser::sliced(const Token& open, const Value& value, const Value& first) {
  if (!value.is_list())
    return error(open, str_cat("slices are of lists, not of ", value.kind_phrase()));
  std::array<Value, 3> bounds = {first, Value(), Value()};  // begin, end, step
  for (size_t i = 1; i < bounds.size() && current_.is(":"); ++i) {
    AERIE_RETURN_IF_ERROR(advance());
    if (current_.is(":") || current_.is("]")) continue;
    AERIE_ASSIGN_OR_RETURN(bounds[i], expression(false));
  }
  AERIE_RETURN_IF_ERROR(expect("]"));
  for (const Value& bound : bounds)
    if (!bound.is_int() && !bound.is_null())
      return error(open, str_cat("a slice takes whole numbers, not ", bound.brief(40)));
  const int64_t step = bounds[2].is_null() ? 1 : bounds[2].as_int();
  if (step == 0) return error(open, "a slice's step is 0");
  const auto size = static_cast<int64_t>(value.as_list().size());
  // Python's slice.indices(): backwards from the last element to one before the first.
  const int64_t low = step < 0 ? -1 : 0, high = step < 0 ? size - 1 : size;
  const auto place = [&](const Value& bound, int64_t otherwise) {
    if (bound.is_null()) return otherwise;
    const int64_t at = bound.as_int();
    return std::clamp(at < 0 ? at + size : at, low, high);
  };
  const int64_t begin = place(bounds[0], step < 0 ? high : low);
  const int64_t end = place(bounds[1], step < 0 ? low : high);
  // A step beyond the list comes to one element.
  const int64_t stride = std::clamp(step, -size - 1, size + 1);
  List items;
  for (int64_t at = begin; stride > 0 ? at < end : at > end; at += stride)
    items.push_back(value.as_list()[static_cast<size_t>(at)]);
  Value out = Value(std::move(items)).with_origin(value.origin());
  AERIE_RETURN_IF_ERROR(budget_.take_copy(out));  // slices of slices of slices
  return out;
}

Result<Value> ExpressionParser::atom() {
  const Token token = current_;
  AERIE_RETURN_IF_ERROR(budget_.take(1, 0));
  switch (token.kind) {
    case Token::Kind::kNumber: {
      auto number = parse_number(token.text);
      if (!number.ok()) return error(token, number.status().message());
      AERIE_RETURN_IF_ERROR(advance());
      return std::move(number).value().with_origin(origin(token));
    }
    case Token::Kind::kString:
      return string();
    case Token::Kind::kBaseReference:
      AERIE_RETURN_IF_ERROR(advance());
      return Value::interpolation(str_cat("{{_base_.", token.value, "}}"))
          .with_origin(origin(token));
    case Token::Kind::kName:
      return name();
    case Token::Kind::kOperator:
      if (token.is("(")) return round_brackets();
      if (token.is("[")) return square_brackets();
      if (token.is("{")) return braces();
      break;
    default:
      break;
  }
  return unexpected("a value");
}

Result<Value> ExpressionParser::string() {
  const Token first = current_;
  std::string text;
  while (current_.kind == Token::Kind::kString) {
    AERIE_RETURN_IF_ERROR(budget_.take(0, current_.value.size()));
    text += current_.value;
    AERIE_RETURN_IF_ERROR(advance());
  }
  return Value(std::move(text)).with_origin(origin(first));
}

Result<Value> ExpressionParser::name() {
  const Token token = current_;
  AERIE_ASSIGN_OR_RETURN(const Token* ahead, peek());
  const bool call = ahead->is("(");
  if (token.text == "dict" && call) return dict_call();
  if (token.text == "True" || token.text == "False" || token.text == "None") {
    AERIE_RETURN_IF_ERROR(advance());
    Value value = token.text == "None" ? Value() : Value(token.text == "True");
    return std::move(value).with_origin(origin(token));
  }
  if (is_keyword(token.text)) return unexpected("a value");
  if (call) return error(token, str_cat("a call of ", shown(token.text), " is not allowed"));
  const Value* found = options_.scope != nullptr ? options_.scope->find(token.text) : nullptr;
  if (found == nullptr && ahead->is_name("for"))
    return error(token, "comprehensions are not allowed");
  if (found == nullptr) {
    std::vector<std::string> known;
    for (const char* constant : {"True", "False", "None"})
      if (to_lower(token.text) == to_lower(constant)) known.emplace_back(constant);
    if (options_.scope != nullptr)
      for (const MapEntry& entry : *options_.scope) known.push_back(entry.key);
    const std::string near = nearest_name(token.text, known);
    return lexer_
        .error(token.line, token.column,
               str_cat("the name ", shown(token.text), " is not defined above"))
        .with_hint(near.empty() ? std::string(allowed_in_files())
                                : str_cat("did you mean '", near, "'?"));
  }
  AERIE_RETURN_IF_ERROR(budget_.take_copy(*found));
  if (budget_.names_read != nullptr) budget_.names_read->emplace(token.text);
  AERIE_RETURN_IF_ERROR(advance());
  return *found;
}

Result<Value> ExpressionParser::round_brackets() {
  const Token open = current_;
  AERIE_RETURN_IF_ERROR(advance());
  if (current_.is(")")) {
    AERIE_RETURN_IF_ERROR(advance());
    return Value(List()).with_origin(origin(open));
  }
  AERIE_ASSIGN_OR_RETURN(Value value, expression(true));
  AERIE_RETURN_IF_ERROR(expect(")"));
  return value;
}

Result<Value> ExpressionParser::square_brackets() {
  const Token open = current_;
  AERIE_RETURN_IF_ERROR(advance());
  List items;
  while (!current_.is("]")) {
    if (current_.is("*")) {
      AERIE_ASSIGN_OR_RETURN(Value more, unpacked(/*is_dict=*/false));
      for (Value& item : more.as_list()) items.push_back(std::move(item));
    } else {
      AERIE_ASSIGN_OR_RETURN(Value item, expression(false));
      items.push_back(std::move(item));
    }
    if (!current_.is(",")) break;
    AERIE_RETURN_IF_ERROR(advance());
  }
  AERIE_RETURN_IF_ERROR(expect("]"));
  return Value(std::move(items)).with_origin(origin(open));
}

Status ExpressionParser::add_key(Map& map, MapEntry entry, const Token& where) const {
  if (const MapEntry* old = map.find_entry(entry.key);
      old != nullptr && old->key_kind != entry.key_kind)
    return error(where, str_cat("the keys ", entry.key, " and '", entry.key,
                                "' cannot stand beside each other"));
  entry.key_origin = origin(where);
  map.set(std::move(entry));
  return ok_status();
}

Result<Value> ExpressionParser::braces() {
  const Token open = current_;
  AERIE_RETURN_IF_ERROR(advance());
  Map map;
  while (!current_.is("}")) {
    const Token where = current_;
    if (where.is("**")) {
      AERIE_ASSIGN_OR_RETURN(Value more, unpacked(/*is_dict=*/true));
      for (MapEntry& entry : more.as_map())
        AERIE_RETURN_IF_ERROR(add_key(map, std::move(entry), where));
      if (!current_.is(",")) break;
      AERIE_RETURN_IF_ERROR(advance());
      continue;
    }
    AERIE_ASSIGN_OR_RETURN(const Value key, expression(false));
    if (current_.is(",") || current_.is("}")) return error(open, "sets are not allowed");
    AERIE_RETURN_IF_ERROR(expect(":"));
    MapEntry entry;
    if (key.is_container() || key.is_interpolation())
      return error(where, str_cat(key.kind_phrase(), " cannot be a key"));
    entry.key = key.is_null() ? "null" : key.is_string() ? key.as_string() : python_str(key);
    if (key.is_bool()) entry.key = key.as_bool() ? "true" : "false";
    entry.key_kind = key.is_big_int() ? Value::Kind::kInt : key.kind();
    AERIE_ASSIGN_OR_RETURN(entry.value, expression(false));
    AERIE_RETURN_IF_ERROR(add_key(map, std::move(entry), where));
    if (!current_.is(",")) break;
    AERIE_RETURN_IF_ERROR(advance());
  }
  AERIE_RETURN_IF_ERROR(expect("}"));
  return Value(std::move(map)).with_origin(origin(open));
}

// dict(a=1), dict(other, a=1), dict(**other, a=1)
Result<Value> ExpressionParser::dict_call() {
  const Token open = current_;
  AERIE_RETURN_IF_ERROR(advance());
  AERIE_RETURN_IF_ERROR(advance());
  Map map;
  bool first = true;
  std::unordered_set<std::string> given;
  while (!current_.is(")")) {
    const Token where = current_;
    AERIE_ASSIGN_OR_RETURN(const Token* ahead, peek());
    if (where.is("**")) {
      AERIE_ASSIGN_OR_RETURN(Value more, unpacked(/*is_dict=*/true));
      for (MapEntry& entry : more.as_map()) {
        if (entry.key_kind != Value::Kind::kString)
          return error(where, "the keys of ** in a call must be strings");
        if (!given.insert(entry.key).second)
          return error(where, str_cat("the key '", entry.key, "' is given twice"));
        AERIE_RETURN_IF_ERROR(add_key(map, std::move(entry), where));
      }
    } else if (where.kind == Token::Kind::kName && ahead->is("=")) {
      if (is_keyword(where.text)) return unexpected("a key");
      const std::string key(where.text);
      if (!given.insert(key).second)
        return error(where, str_cat("the key '", key, "' is given twice"));
      AERIE_RETURN_IF_ERROR(advance());
      AERIE_RETURN_IF_ERROR(advance());
      MapEntry entry;
      entry.key = key;
      AERIE_ASSIGN_OR_RETURN(entry.value, expression(false));
      AERIE_RETURN_IF_ERROR(add_key(map, std::move(entry), where));
    } else {
      AERIE_ASSIGN_OR_RETURN(Value start, expression(false));
      if (!first || !start.is_map())
        return error(where, "dict(...) takes key=value and **dict, or one dict before them");
      map = std::move(start.as_map());
    }
    first = false;
    if (!current_.is(",")) break;
    AERIE_RETURN_IF_ERROR(advance());
  }
  AERIE_RETURN_IF_ERROR(expect(")"));
  return Value(std::move(map)).with_origin(origin(open));
}

}  // namespace aerie::config::mm
