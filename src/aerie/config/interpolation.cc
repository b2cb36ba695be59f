#include "aerie/config/interpolation.h"

#include "aerie/base/strings.h"
#include "aerie/config/grammar.h"

namespace aerie::config {

namespace {

bool is_key_char(char c) {
  return std::string_view("\\{}()[]:. \t'\"").find(c) == std::string_view::npos;
}

class Parser {
 public:
  explicit Parser(std::string_view source) : source_(source) {}

  Result<Text> whole_text() {
    AERIE_ASSIGN_OR_RETURN(Text text, this->text('\0'));
    return text;
  }

  Result<Element> whole_element() {
    AERIE_ASSIGN_OR_RETURN(Element element, this->element(true));
    if (!end()) return error("more text than one value");
    return element;
  }

 private:
  bool end() const { return at_ >= source_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0';
  }
  bool opens() const { return peek() == '$' && peek(1) == '{'; }
  void skip_blanks() {
    while (!end() && is_blank(peek())) ++at_;
  }
  // The first character that is not a blank.
  char peek_past_blanks() const {
    size_t at = at_;
    while (at < source_.size() && is_blank(source_[at])) ++at;
    return at < source_.size() ? source_[at] : '\0';
  }

  Status error(std::string_view what) const {
    const size_t from = at_ > 30 ? at_ - 30 : 0;
    return invalid_argument(str_cat("bad interpolation syntax: ", what, " at character ", at_ + 1,
                                    end() ? " (the end)" : "", " of ",
                                    Value(source_.substr(from, 70)).brief()));
  }

  struct Nested {
    explicit Nested(int& depth) : depth_(depth) { ++depth_; }
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    int& depth_;
  };

  static void append(Text& text, std::string_view piece) {
    if (piece.empty()) return;
    if (text.empty() || text.back().interpolation) text.emplace_back();
    text.back().text += piece;
  }

  // Up to the closing quote (which it takes), or to the end of the source when `quote` is 0.
  Result<Text> text(char quote) {
    Text out;
    while (true) {
      if (end()) {
        if (quote) return error("a quote is not closed");
        return out;
      }
      const size_t start = at_;
      while (!end() && peek() != '\\' && peek() != '$' && (quote == '\0' || peek() != quote)) ++at_;
      append(out, source_.substr(start, at_ - start));
      size_t slashes = 0;
      while (peek() == '\\') {
        ++slashes;
        ++at_;
      }
      const bool at_quote = quote && !end() && peek() == quote;
      if (opens() || at_quote) {
        // Backslashes count in pairs only where something could be escaped.
        append(out, std::string(slashes / 2, '\\'));
        if (slashes % 2 == 1) {
          const size_t length = at_quote ? 1 : 2;
          append(out, source_.substr(at_, length));
          at_ += length;
          continue;
        }
        if (at_quote) {
          ++at_;
          return out;
        }
        AERIE_ASSIGN_OR_RETURN(auto interpolation, this->interpolation());
        out.push_back({"", std::move(interpolation)});
        continue;
      }
      append(out, std::string(slashes, '\\'));
      if (peek() == '$') {
        append(out, "$");
        ++at_;
      }
    }
  }

  Result<std::unique_ptr<Interpolation>> interpolation() {
    const Nested nested(depth_);
    if (depth_ > kMaxValueNesting) return error("nested too deep");
    at_ += 2;
    skip_blanks();
    auto out = std::make_unique<Interpolation>();
    while (peek() == '.') {
      ++out->dots;
      ++at_;
      if (out->dots > kMaxDepth) return error("too many dots");
    }
    bool expect_key = true;
    while (true) {
      if (peek() == '[') {
        if (expect_key && !out->keys.empty()) return error("a key was expected");
        ++at_;
        AERIE_RETURN_IF_ERROR(key(*out, true));
        if (peek() != ']') return error("']' was expected");
        ++at_;
      } else if (expect_key) {
        AERIE_RETURN_IF_ERROR(key(*out, false));
      } else {
        return error("'.', '[', ':' or '}' was expected");
      }
      expect_key = false;
      if (peek() == '.') {
        ++at_;
        expect_key = true;
        continue;
      }
      if (peek() == '[') continue;
      const char next = peek_past_blanks();
      if (next == '}') {
        skip_blanks();
        ++at_;
        return out;
      }
      if (next == ':') break;
      return error("'.', '[', ':' or '}' was expected");
    }
    AERIE_RETURN_IF_ERROR(check_resolver_name(*out));
    skip_blanks();
    ++at_;
    skip_blanks();
    out->is_resolver = true;
    AERIE_ASSIGN_OR_RETURN(out->arguments, sequence('}'));
    return out;
  }

  Status key(Interpolation& out, bool bracketed) {
    if (out.keys.size() > static_cast<size_t>(kMaxDepth)) return error("too many keys");
    if (opens()) {
      AERIE_ASSIGN_OR_RETURN(auto inner, interpolation());
      out.keys.push_back({"", std::move(inner)});
    } else {
      const size_t start = at_;
      while (!end() && is_key_char(peek()) && !opens()) ++at_;
      // The `$` before a brace belongs to the key in OmegaConf, and the brace is then out of place.
      if (opens()) return error("an interpolation must be a whole key");
      if (at_ == start) return error("a key was expected");
      out.keys.push_back({std::string(source_.substr(start, at_ - start)), nullptr});
    }
    out.bracketed.push_back(bracketed);
    return ok_status();
  }

  Status check_resolver_name(const Interpolation& out) const {
    if (out.dots > 0) return error("the name of a resolver cannot begin with a dot");
    for (size_t i = 0; i < out.keys.size(); ++i) {
      if (out.bracketed[i] || (!out.keys[i].interpolation && !is_identifier(out.keys[i].text))) {
        return error("not a resolver's name before ':'");
      }
    }
    return ok_status();
  }

  // Elements between commas up to and with `close`; an empty one is the empty string.
  Result<std::vector<Element>> sequence(char close) {
    std::vector<Element> out;
    if (peek_past_blanks() == close) {
      skip_blanks();
      ++at_;
      return out;
    }
    while (true) {
      const char next = peek_past_blanks();
      if (next == ',' || next == close) {
        Element empty;
        empty.constant = Value("");
        out.push_back(std::move(empty));
      } else {
        AERIE_ASSIGN_OR_RETURN(Element one, element(false));
        out.push_back(std::move(one));
      }
      skip_blanks();
      if (peek() == ',') {
        ++at_;
        skip_blanks();
        continue;
      }
      if (!end() && peek() == close) {
        ++at_;
        return out;
      }
      return error(close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
    }
  }

  Result<Element> element(bool top) {
    const Nested nested(depth_);
    if (depth_ > kMaxValueNesting) return error("nested too deep");
    Element out;
    const char first = peek();
    if (first == '\'' || first == '"') {
      ++at_;
      out.kind = Element::Kind::kQuoted;
      AERIE_ASSIGN_OR_RETURN(out.text, text(first));
      return out;
    }
    if (first == '[') {
      ++at_;
      skip_blanks();
      out.kind = Element::Kind::kList;
      AERIE_ASSIGN_OR_RETURN(out.items, sequence(']'));
      return out;
    }
    if (first == '{') return map();
    return primitive(top);
  }

  Result<Element> map() {
    Element out;
    out.kind = Element::Kind::kMap;
    ++at_;
    skip_blanks();
    if (peek() == '}') {
      ++at_;
      return out;
    }
    while (true) {
      AERIE_ASSIGN_OR_RETURN(Text key, unquoted(true, false));
      AERIE_ASSIGN_OR_RETURN(MapEntry entry, map_key(key));
      if (peek_past_blanks() != ':') return error("':' was expected");
      skip_blanks();
      ++at_;
      skip_blanks();
      AERIE_ASSIGN_OR_RETURN(Element value, element(false));
      out.map_keys.push_back(std::move(entry));
      out.items.push_back(std::move(value));
      skip_blanks();
      if (peek() == ',') {
        ++at_;
        skip_blanks();
        continue;
      }
      if (peek() != '}') return error("',' or '}' was expected");
      ++at_;
      return out;
    }
  }

  Result<MapEntry> map_key(const Text& key) const {
    if (key.empty() || key[0].text.empty()) return error("a key was expected");
    return make_map_key(key[0].text, escaped_);
  }

  // Unquoted text: several tokens are joined as they stand, one token may be a constant. Blanks
  // before a delimiter belong to the delimiter; at the very top they stay.
  Result<Text> unquoted(bool is_key, bool top) {
    Text out;
    escaped_ = false;
    while (!end()) {
      const char c = peek();
      if (opens()) {
        if (is_key) return error("a key cannot hold an interpolation");
        AERIE_ASSIGN_OR_RETURN(auto inner, interpolation());
        out.push_back({"", std::move(inner)});
        continue;
      }
      if (is_blank(c)) {
        const char next = peek_past_blanks();
        const bool delimiter = next == ',' || next == ']' || next == '}' || (is_key && next == ':');
        if (delimiter) break;
        const size_t start = at_;
        skip_blanks();
        if (end() && !top) break;
        append(out, source_.substr(start, at_ - start));
        continue;
      }
      if (c == '\\' && at_ + 1 < source_.size() && is_escapable(peek(1))) {
        append(out, source_.substr(at_ + 1, 1));
        at_ += 2;
        escaped_ = true;
        continue;
      }
      if (c == ':' && is_key) break;
      if (c == ':') {
        // A colon is one token with the blanks around it.
        const size_t start = at_++;
        skip_blanks();
        append(out, source_.substr(start, at_ - start));
        continue;
      }
      if (!is_unquoted_char(c)) break;
      append(out, source_.substr(at_, 1));
      ++at_;
    }
    return out;
  }

  Result<Element> primitive(bool top) {
    AERIE_ASSIGN_OR_RETURN(Text text, unquoted(false, top));
    if (text.empty()) return error("a value was expected");
    Element out;
    if (text.size() == 1 && !text[0].interpolation) {
      out.constant = Value(text[0].text);
      if (!escaped_) {
        AERIE_ASSIGN_OR_RETURN(auto constant, parse_constant(text[0].text));
        if (constant) out.constant = std::move(*constant);
      }
      return out;
    }
    out.kind = Element::Kind::kText;
    out.text = std::move(text);
    return out;
  }

  std::string_view source_;
  size_t at_ = 0;
  int depth_ = 0;
  bool escaped_ = false;  // whether the last unquoted text held an escape
};

}  // namespace

Result<Text> parse_text(std::string_view text) {
  return Parser(text).whole_text();
}

Result<Element> parse_element(std::string_view text) {
  return Parser(text).whole_element();
}

}  // namespace aerie::config
