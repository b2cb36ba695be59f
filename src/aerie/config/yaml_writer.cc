// Writes the block style that PyYAML's dumper gives with OmegaConf's settings (indent 2, width 80,
// unicode allowed), character for character: files we write next to NeMo's should not differ from
// them, and libyaml's emitter folds and escapes differently.
#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "aerie/config/yaml_scalar.h"

namespace aerie::config {

namespace {

constexpr int kIndent = 2;
constexpr int kWidth = 80;
// A key longer than this, its (unwritten) tag counted, is written as `? key`.
constexpr size_t kMaxSimpleKey = 128;

// ---- Text --------------------------------------------------------------------------------------

// False when the bytes are not UTF-8.
bool decode_utf8(std::string_view bytes, std::u32string& out) {
  for (size_t i = 0; i < bytes.size();) {
    const auto lead = static_cast<unsigned char>(bytes[i]);
    const int length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4) return false;
    if (i + static_cast<size_t>(length) > bytes.size()) return false;
    char32_t code = length == 1 ? lead : lead & (0xFF >> (length + 1));
    for (int k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(bytes[i + static_cast<size_t>(k)]);
      if ((next & 0xC0) != 0x80) return false;
      code = (code << 6) | (next & 0x3F);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) return false;
    out += code;
    i += static_cast<size_t>(length);
  }
  return true;
}

void append_utf8(std::string& out, char32_t code) {
  const auto byte = [&](char32_t value) { out += static_cast<char>(value); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xC0 | (code >> 6));
    byte(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    byte(0xE0 | (code >> 12));
    byte(0x80 | ((code >> 6) & 0x3F));
    byte(0x80 | (code & 0x3F));
  } else {
    byte(0xF0 | (code >> 18));
    byte(0x80 | ((code >> 12) & 0x3F));
    byte(0x80 | ((code >> 6) & 0x3F));
    byte(0x80 | (code & 0x3F));
  }
}

bool is_break(char32_t c) {
  return c == U'\n' || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_white(char32_t c) {
  return c == 0 || c == U' ' || c == U'\t' || c == U'\r' || is_break(c);
}

bool is_in(char32_t c, std::u32string_view set) {
  return set.find(c) != std::u32string_view::npos;
}

bool is_unicode_text(char32_t c) {
  return (c >= 0xA0 && c <= 0xD7FF) || (c >= 0xE000 && c <= 0xFFFD);
}

// ---- Which styles a scalar may have
// --------------------------------------------------------------

struct Styles {
  bool multiline = false;
  bool plain = true;
  bool single_quoted = true;
};

Styles analyze(const std::u32string& text) {
  if (text.empty()) return {};
  bool indicators = text.compare(0, 3, U"---") == 0 || text.compare(0, 3, U"...") == 0;
  bool breaks = false, special = false;
  bool outer_white = false;  // a space or break at either end
  bool break_space = false, space_break = false;
  bool previous_space = false, previous_break = false;
  bool white_before = true;
  for (size_t i = 0; i < text.size(); ++i) {
    const char32_t c = text[i];
    const bool white_after = i + 1 >= text.size() || is_white(text[i + 1]);
    if (i == 0) {
      if (is_in(c, U"#,[]{}&*!|>'\"%@`")) indicators = true;
      if (is_in(c, U"?:-") && white_after) indicators = true;
    } else {
      if (c == U':' && white_after) indicators = true;
      if (c == U'#' && white_before) indicators = true;
    }
    if (is_break(c)) breaks = true;
    if (c != U'\n' && (c < 0x20 || c > 0x7E)) {
      // The other line breaks of YAML 1.1 are printable to PyYAML, which then reads back something
      // else; escaped they survive.
      const bool printable = is_unicode_text(c) || (c >= 0x10000 && c < 0x10FFFF);
      if (!printable || is_break(c) || c == 0xFEFF) special = true;
    }
    const bool at_end = i == 0 || i + 1 == text.size();
    if (c == U' ') {
      if (at_end) outer_white = true;
      if (previous_break) break_space = true;
    } else if (is_break(c)) {
      if (at_end) outer_white = true;
      if (previous_space) space_break = true;
    }
    previous_space = c == U' ';
    previous_break = is_break(c);
    white_before = is_white(c);
  }
  Styles styles;
  styles.multiline = breaks;
  styles.single_quoted = !break_space && !space_break && !special;
  styles.plain = styles.single_quoted && !outer_white && !breaks && !indicators;
  return styles;
}

// ---- Scalars as text
// -----------------------------------------------------------------------------

// OmegaConf quotes what YAML's own table calls a bool, although PyYAML reads `y` and `n` as
// strings.
bool is_yaml_bool(std::string_view text) {
  for (const std::string_view word :
       {"y",    "Y",    "yes",   "Yes",   "YES",   "n",  "N",  "no", "No",  "NO",  "true",
        "True", "TRUE", "false", "False", "FALSE", "on", "On", "ON", "off", "Off", "OFF"}) {
    if (text == word) return true;
  }
  return false;
}

std::string float_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  std::string text = python_float_repr(value);
  // YAML 1.1 wants a point in a float: 1e-05 becomes 1.0e-05.
  if (text.find('.') == std::string::npos) {
    if (const size_t e = text.find('e'); e != std::string::npos) text.insert(e, ".0");
  }
  return text;
}

// A string that holds `${` as plain text would be read back as an interpolation.
std::string escape_interpolations(const std::string& text) {
  std::string out;
  size_t slashes = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0) out.append(slashes + 1, '\\');
    slashes = text[i] == '\\' ? slashes + 1 : 0;
    out += text[i];
  }
  return out;
}

std::u32string escape_of(char32_t c) {
  constexpr char32_t kCodes[] = {0,    0x07, 0x08,  0x09, 0x0A, 0x0B,   0x0C,  0x0D,
                                 0x1B, U'"', U'\\', 0x85, 0xA0, 0x2028, 0x2029};
  constexpr std::u32string_view kLetters = U"0abtnvfre\"\\N_LP";
  std::u32string out = U"\\";
  for (size_t i = 0; i < kLetters.size(); ++i) {
    if (c == kCodes[i]) return out + kLetters[i];
  }
  const int digits = c <= 0xFF ? 2 : c <= 0xFFFF ? 4 : 8;
  out += digits == 2 ? U'x' : digits == 4 ? U'u' : U'U';
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += U"0123456789ABCDEF"[(c >> shift) & 15];
  }
  return out;
}

struct Scalar {
  std::u32string text;
  Styles styles;
  bool may_be_plain = true;  // reads back as the same type without quotes
  size_t tag_length = 0;     // of "!!str", which counts for the length of a key
};

// ---- The writer --------------------------------------------------------------------------------

class Writer {
 public:
  Result<std::string> write(const Value& value) {
    AERIE_RETURN_IF_ERROR(node(value, Context::kRoot));
    write_indent();
    if (open_ended_) out_ += "...\n";
    return std::move(out_);
  }

 private:
  enum class Context { kRoot, kSequence, kMapping, kSimpleKey };

  // `indent_` is -1 outside of any collection.
  class Indented {
   public:
    Indented(Writer& writer, bool flow, bool indentless = false)
        : writer_(writer), before_(writer.indent_) {
      if (before_ < 0) {
        writer.indent_ = flow ? kIndent : 0;
      } else if (!indentless) {
        writer.indent_ = before_ + kIndent;
      }
    }
    ~Indented() { writer_.indent_ = before_; }
    Indented(const Indented&) = delete;
    Indented& operator=(const Indented&) = delete;

   private:
    Writer& writer_;
    int before_;
  };

  static Result<Scalar> make_scalar(std::string_view text, ScalarType type) {
    Scalar scalar;
    if (!decode_utf8(text, scalar.text)) {
      return invalid_argument(
          str_cat("cannot write YAML: text that is not UTF-8: ", Value(text).brief(40)));
    }
    scalar.styles = analyze(scalar.text);
    scalar.may_be_plain = type_when_written(text) == type;
    if (type == ScalarType::kString && (is_yaml_bool(text) || python_takes_as_number(text))) {
      scalar.may_be_plain = false;
    }
    scalar.tag_length = type == ScalarType::kFloat                               ? 7
                        : type == ScalarType::kBool || type == ScalarType::kNull ? 6
                                                                                 : 5;
    return scalar;
  }

  static Result<Scalar> make_key(const MapEntry& entry) {
    switch (entry.key_kind) {
      case Value::Kind::kInt:
      case Value::Kind::kBigInt:
        return make_scalar(entry.key, ScalarType::kInt);
      case Value::Kind::kBool:
        return make_scalar(entry.key, ScalarType::kBool);
      case Value::Kind::kFloat:
        if (const auto number = python_float(entry.key)) {
          return make_scalar(float_text(*number), ScalarType::kFloat);
        }
        break;
      default:
        break;
    }
    return make_scalar(entry.key, ScalarType::kString);
  }

  Status node(const Value& value, Context context) {
    switch (value.kind()) {
      case Value::Kind::kNull:
        return scalar("null", ScalarType::kNull, context);
      case Value::Kind::kBool:
        return scalar(value.as_bool() ? "true" : "false", ScalarType::kBool, context);
      case Value::Kind::kInt:
        return scalar(std::to_string(value.as_int()), ScalarType::kInt, context);
      case Value::Kind::kBigInt:
        return scalar(value.as_string(), ScalarType::kInt, context);
      case Value::Kind::kFloat:
        return scalar(float_text(value.as_float()), ScalarType::kFloat, context);
      case Value::Kind::kString:
        return scalar(escape_interpolations(value.as_string()), ScalarType::kString, context);
      case Value::Kind::kMissing:
      case Value::Kind::kInterpolation:
        return scalar(value.as_string(), ScalarType::kString, context);
      case Value::Kind::kList:
        return sequence(value.as_list(), context);
      case Value::Kind::kMap:
        return mapping(value.as_map());
    }
    return internal_error("a value of no kind");
  }

  Status sequence(const List& list, Context context) {
    if (list.empty()) {
      write_indicator("[", true, true);
      write_indicator("]", false);
      return ok_status();
    }
    const Indented indented(*this, false, context == Context::kMapping && !indention_);
    for (const Value& item : list) {
      write_indent();
      write_indicator("-", true, false, true);
      AERIE_RETURN_IF_ERROR(node(item, Context::kSequence));
    }
    return ok_status();
  }

  Status mapping(const Map& map) {
    if (map.empty()) {
      write_indicator("{", true, true);
      write_indicator("}", false);
      return ok_status();
    }
    const Indented indented(*this, false);
    for (const MapEntry& entry : map) {
      write_indent();
      AERIE_ASSIGN_OR_RETURN(const Scalar key, make_key(entry));
      const bool simple = !key.text.empty() && !key.styles.multiline &&
                          key.text.size() + key.tag_length < kMaxSimpleKey;
      if (simple) {
        write_scalar(key, Context::kSimpleKey);
        write_indicator(":", false);
      } else {
        write_indicator("?", true, false, true);
        write_scalar(key, Context::kMapping);
        write_indent();
        write_indicator(":", true, false, true);
      }
      AERIE_RETURN_IF_ERROR(node(entry.value, Context::kMapping));
    }
    return ok_status();
  }

  Status scalar(std::string_view text, ScalarType type, Context context) {
    AERIE_ASSIGN_OR_RETURN(const Scalar scalar, make_scalar(text, type));
    write_scalar(scalar, context);
    return ok_status();
  }

  void write_scalar(const Scalar& scalar, Context context) {
    const Indented indented(*this, true);
    const bool simple_key = context == Context::kSimpleKey;
    const bool quoted_first = simple_key && (scalar.text.empty() || scalar.styles.multiline);
    if (scalar.may_be_plain && scalar.styles.plain && !quoted_first) {
      if (context == Context::kRoot) open_ended_ = true;
      write_plain(scalar.text, !simple_key);
    } else if (scalar.styles.single_quoted && !(simple_key && scalar.styles.multiline)) {
      write_single_quoted(scalar.text, !simple_key);
    } else {
      write_double_quoted(scalar.text, !simple_key);
    }
  }

  // What goes out, and the column it leaves behind.

  void put(std::u32string_view text) {
    for (const char32_t c : text) append_utf8(out_, c);
    column_ += static_cast<int>(text.size());
  }

  void write_indicator(std::string_view indicator, bool need_white, bool white = false,
                       bool indention = false) {
    if (!white_ && need_white) {
      out_ += ' ';
      ++column_;
    }
    out_ += indicator;
    column_ += static_cast<int>(indicator.size());
    white_ = white;
    indention_ = indention_ && indention;
    open_ended_ = false;
  }

  void write_break(char32_t c = U'\n') {
    append_utf8(out_, c);
    white_ = true;
    indention_ = true;
    column_ = 0;
  }

  void write_indent() {
    const int indent = std::max(indent_, 0);
    if (!indention_ || column_ > indent || (column_ == indent && !white_)) write_break();
    if (column_ < indent) {
      white_ = true;
      out_.append(static_cast<size_t>(indent - column_), ' ');
      column_ = indent;
    }
  }

  void write_plain(std::u32string_view text, bool split) {
    if (text.empty()) return;
    if (!white_) {
      out_ += ' ';
      ++column_;
    }
    white_ = false;
    indention_ = false;
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      const bool spaces = text[at] == U' ';
      while (at < text.size() && (text[at] == U' ') == spaces) ++at;
      if (spaces && at - start == 1 && column_ > kWidth && split) {
        write_indent();
        white_ = false;
        indention_ = false;
      } else {
        put(text.substr(start, at - start));
      }
    }
  }

  void write_single_quoted(std::u32string_view text, bool split) {
    write_indicator("'", true);
    for (size_t at = 0; at < text.size();) {
      const size_t start = at;
      if (text[at] == U' ') {
        while (at < text.size() && text[at] == U' ') ++at;
        if (at - start == 1 && column_ > kWidth && split && start != 0 && at != text.size()) {
          write_indent();
        } else {
          put(text.substr(start, at - start));
        }
      } else if (is_break(text[at])) {
        while (at < text.size() && is_break(text[at])) ++at;
        if (text[start] == U'\n') write_break();
        for (const char32_t c : text.substr(start, at - start)) write_break(c);
        write_indent();
      } else if (text[at] == U'\'') {
        put(U"''");
        ++at;
      } else {
        while (at < text.size() && text[at] != U' ' && text[at] != U'\'' && !is_break(text[at])) {
          ++at;
        }
        put(text.substr(start, at - start));
      }
    }
    write_indicator("'", false);
  }

  void write_double_quoted(std::u32string_view text, bool split) {
    write_indicator("\"", true);
    size_t start = 0;
    for (size_t at = 0; at <= text.size(); ++at) {
      const bool at_end = at == text.size();
      const char32_t c = at_end ? 0 : text[at];
      const bool as_it_is = !at_end && !is_in(c, U"\"\\\x85\x2028\x2029\xFEFF") &&
                            ((c >= 0x20 && c <= 0x7E) || is_unicode_text(c));
      if (!as_it_is) {
        put(text.substr(start, at - start));
        start = at;
        if (!at_end) {
          put(escape_of(c));
          start = at + 1;
        }
      }
      // A fold: the rest goes to the next line, behind a backslash that joins the two.
      const bool inside = at > 0 && at + 1 < text.size();
      if (inside && (c == U' ' || start >= at) && split &&
          column_ + static_cast<int>(at) - static_cast<int>(start) > kWidth) {
        if (start < at) {
          put(text.substr(start, at - start));
          start = at;
        }
        put(U"\\");
        write_indent();
        white_ = false;
        indention_ = false;
        if (text[start] == U' ') put(U"\\");
      }
    }
    write_indicator("\"", false);
  }

  std::string out_;
  int indent_ = -1;
  int column_ = 0;
  bool white_ = true;      // the last character was a space or a break
  bool indention_ = true;  // nothing but indentation and indicators on this line yet
  bool open_ended_ = false;
};

}  // namespace

Result<std::string> emit_yaml(const Value& value) {
  if (value.depth() > kMaxDepth * 2) return invalid_argument("nested too deep to be written");
  Writer writer;
  return writer.write(value);
}

}  // namespace aerie::config
