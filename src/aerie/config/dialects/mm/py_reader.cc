#include "aerie/config/dialects/mm/py_reader.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/py_expression.h"

namespace aerie::config::mm {
namespace {

void measure(const Value& value, size_t& nodes, size_t& text) {
  ++nodes;
  if (value.is_list()) {
    for (const Value& item : value.as_list()) measure(item, nodes, text);
  } else if (value.is_map()) {
    for (const MapEntry& entry : value.as_map()) {
      text += entry.key.size();
      measure(entry.value, nodes, text);
    }
  } else if (value.is_string()) {
    text += value.as_string().size();
  }
}

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t k) {
      return i + k < text.size() ? static_cast<unsigned char>(text[i + k]) : 0u;
    };
    const unsigned first = byte(0);
    if (first < 0x80) {
      ++i;
      continue;
    }
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4) return false;
    for (size_t k = 1; k < length; ++k)
      if ((byte(k) & 0xC0) != 0x80) return false;
    if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
        (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F))
      return false;
    i += length;
  }
  return true;
}

// What a statement that is no assignment was meant to do.
std::string refusal(const Token& token, const Token& ahead) {
  const std::string name(token.text);
  if (name == "import" || name == "from") return "imports are not allowed";
  if (name == "def" || name == "class" || name == "lambda" || name == "async")
    return "functions and classes are not allowed";
  if (is_keyword(name)) return str_cat("'", name, "' statements are not allowed");
  if (ahead.is("(")) return str_cat("a call of '", name.substr(0, 40), "' is not allowed");
  if (ahead.is(".")) return "attributes are not allowed";
  if (ahead.is("[")) return "an assignment to a part of a value is not allowed";
  if (ahead.is(":")) return "type annotations are not allowed";
  if (ahead.is(",")) return "assignments of several names at once are not allowed";
  if (ahead.kind == Token::Kind::kOperator && ahead.text.size() > 1 && ahead.text.back() == '=')
    return str_cat("'", std::string(ahead.text), "' is not allowed: only NAME = VALUE");
  return "this is no assignment NAME = VALUE";
}

class FileParser {
 public:
  FileParser(std::string_view text, std::string_view name, ReadBudget& budget)
      : parser_(text, name, {.scope = &names_}, budget), budget_(budget) {}

  Result<Value> run() {
    AERIE_RETURN_IF_ERROR(parser_.advance());
    while (parser_.current().kind != Token::Kind::kEnd) {
      if (!parser_.current().ends_statement()) AERIE_RETURN_IF_ERROR(statement());
      if (!parser_.current().ends_statement()) return parser_.unexpected("the end of the line");
      if (parser_.current().kind != Token::Kind::kEnd) AERIE_RETURN_IF_ERROR(parser_.advance());
    }
    Map out;
    for (MapEntry& entry : names_)
      if (!starts_with(entry.key, "__")) out.set(std::move(entry));
    return Value(std::move(out));
  }

 private:
  Status statement() {
    const Token first = parser_.current();
    // Text on its own is a comment of the file.
    if (first.kind == Token::Kind::kString) return parser_.expression(false).status();
    if (first.is_name("pass")) return parser_.advance();
    if (first.kind != Token::Kind::kName)
      return parser_.error(first, "this is no assignment NAME = VALUE");
    std::vector<Token> targets;
    for (;;) {
      const Token target = parser_.current();
      if (target.kind != Token::Kind::kName) break;
      AERIE_ASSIGN_OR_RETURN(const Token* ahead, parser_.peek());
      if (!ahead->is("=")) {
        if (targets.empty()) return parser_.error(target, refusal(target, *ahead));
        break;
      }
      if (is_keyword(target.text))
        return parser_.error(target, str_cat("'", std::string(target.text), "' is no name"));
      targets.push_back(target);
      AERIE_RETURN_IF_ERROR(parser_.advance());
      AERIE_RETURN_IF_ERROR(parser_.advance());
    }
    AERIE_ASSIGN_OR_RETURN(Value value, parser_.expression(true));
    if (parser_.current().is("=")) return parser_.unexpected("the end of the line");
    if (value.depth() > kMaxDepth)
      return parser_.error(first, str_cat("a value more than ", kMaxDepth, " levels deep"));
    for (size_t i = 0; i < targets.size(); ++i) {
      MapEntry entry;
      entry.key = std::string(targets[i].text);
      if (i + 1 < targets.size()) {
        AERIE_RETURN_IF_ERROR(budget_.take_copy(value));
        entry.value = value;
      } else {
        entry.value = std::move(value);
      }
      names_.set(std::move(entry));
    }
    return ok_status();
  }

  Map names_;
  ExpressionParser parser_;
  ReadBudget& budget_;
};

Status check_text(std::string_view text, std::string_view name) {
  if (valid_utf8(text)) return ok_status();
  return invalid_argument(str_cat(std::string(name), ": is not UTF-8 text"))
      .with_hint("save the file as UTF-8");
}

}  // namespace

Status ReadBudget::take_source(size_t size) {
  if (size > bytes)
    return invalid_argument(str_cat("the files of a configuration may have ", (4u << 20),
                                    " bytes together, this is too much"));
  bytes -= size;
  return ok_status();
}

Status ReadBudget::take(size_t node_count, size_t text_count) {
  if (node_count > nodes || text_count > text_bytes)
    return invalid_argument(
        "the configuration describes more values than 500000, or more text "
        "than 16 MiB");
  nodes -= node_count;
  text_bytes -= text_count;
  return ok_status();
}

Status ReadBudget::take_copy(const Value& value) {
  size_t node_count = 0, text_count = 0;
  measure(value, node_count, text_count);
  return take(node_count, text_count);
}

Result<Value> parse_py(std::string_view text, std::string_view name, ReadBudget& budget) {
  AERIE_RETURN_IF_ERROR(budget.take_source(text.size()).with_context(std::string(name)));
  AERIE_RETURN_IF_ERROR(check_text(text, name));
  return FileParser(text, name, budget).run();
}

Result<Value> parse_py_expression(std::string_view text, std::string_view name, const Value* scope,
                                  ReadBudget& budget) {
  AERIE_RETURN_IF_ERROR(budget.take_source(text.size()).with_context(std::string(name)));
  AERIE_RETURN_IF_ERROR(check_text(text, name));
  ExpressionParser::Options options;
  options.scope = scope != nullptr && scope->is_map() ? &scope->as_map() : nullptr;
  options.attributes = scope != nullptr;
  options.inside_brackets = true;
  ExpressionParser parser(text, name, options, budget);
  AERIE_RETURN_IF_ERROR(parser.advance());
  AERIE_ASSIGN_OR_RETURN(Value value, parser.expression(true));
  if (parser.current().kind != Token::Kind::kEnd) return parser.unexpected("the end");
  if (value.depth() > kMaxDepth)
    return parser.error(parser.current(), str_cat("a value more than ", kMaxDepth, " levels deep"));
  return value;
}

std::string_view base_reference_path(const Value& value) {
  if (!value.is_interpolation()) return {};
  std::string_view text = value.as_string();
  if (!text.starts_with("{{_base_.")) return {};
  text.remove_prefix(9);
  return text.substr(0, text.size() - 2);
}

}  // namespace aerie::config::mm
