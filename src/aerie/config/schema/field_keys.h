// Keys declared once: a table of rows bound to the fields of the struct that a node fills. Type and
// default of a row come from the field, the names of an enum are its choices, and the table reads
// the node into the struct. What one field cannot say (values of several kinds, defaults that hang
// on other keys) brings its own texts and its own way to be read, in the same row.
//
//   const FieldKeys<EmaConfig>& ema_keys() {
//     static const FieldKeys<EmaConfig> table("exp_manager.ema", [](FieldKeys<EmaConfig>& keys) {
//       keys.key("decay", &EmaConfig::decay, works("Share that is kept.").range("[0,1]"));
//     });
//     return table;
//   }
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/node_reader.h"

namespace aerie::config {

// What a row says beyond its field: works("Share that is kept.").range("[0,1]").
class KeyText {
 public:
  KeyText(KeyStatus status, std::string_view help, std::string_view note) {
    spec_.status = status;
    spec_.help = help;
    spec_.note = note;
  }
  KeyText& range(std::string_view text) { return spec_.range = text, *this; }
  KeyText& note(std::string_view text) { return spec_.note = text, *this; }
  // Of strings that are no enum: "a|b".
  KeyText& choices(std::string_view names) { return spec_.choices = names, *this; }
  // Further names of a choice() that NeMo knows, and why they are refused.
  KeyText& refuses(std::string_view names, std::string_view why) {
    spec_.refused = names;
    spec_.note = why;
    return *this;
  }
  // Null may be written; it leaves the field as it is.
  KeyText& nullable() { return nullable_ = true, *this; }
  // ... and is what an absent key is shown as.
  KeyText& absent_is_null() { return absent_is_null_ = true, nullable(); }
  // A whole default of a float is shown without its fraction.
  KeyText& whole() { return whole_ = true, *this; }
  // There is no default: the key must be written, or what an absent key means hangs on others.
  KeyText& required() { return default_ = kRequired, *this; }
  KeyText& no_default() { return default_ = std::string_view(), *this; }
  // An optional that is empty when the key is absent; null may not be written.
  KeyText& not_null() { return not_null_ = true, no_default(); }
  // Say so when the value is not the default.
  KeyText& warn() { return spec_.warn = true, *this; }

 private:
  template <typename S>
  friend class FieldKeys;

  KeySpec spec_{};
  bool nullable_ = false;
  bool absent_is_null_ = false;
  bool whole_ = false;
  bool not_null_ = false;
  std::optional<std::string_view> default_;  // instead of the field's
};

inline KeyText works(std::string_view help) {
  return {KeyStatus::kWorks, help, {}};
}
inline KeyText no_effect(std::string_view help) {
  return {KeyStatus::kNoEffect, help, {}};
}
inline KeyText later(std::string_view help, std::string_view waits_for) {
  return {KeyStatus::kLater, help, waits_for};
}
inline KeyText refused(std::string_view help, std::string_view why) {
  return {KeyStatus::kRefused, help, why};
}

// Type and YAML text of fields.
struct FieldText {
  static std::string type(const bool*) { return "bool"; }
  static std::string type(const int64_t*) { return "int"; }
  static std::string type(const uint64_t*) { return "int"; }
  static std::string type(const double*) { return "float"; }
  static std::string type(const std::string*) { return "str"; }
  template <typename T>
  static std::string type(const std::optional<T>*) {
    return type(static_cast<const T*>(nullptr)) + "|null";
  }
  template <typename T>
  static std::string type(const std::vector<T>*) {
    return str_cat("list[", type(static_cast<const T*>(nullptr)), "]");
  }
  template <typename T, size_t N>
  static std::string type(const std::array<T, N>*) {
    return str_cat("list[", type(static_cast<const T*>(nullptr)), "]");
  }

  static std::string text(bool value) { return value ? "true" : "false"; }
  static std::string text(int64_t value) { return str_cat(value); }
  static std::string text(uint64_t value) { return str_cat(value); }
  static std::string text(double value) { return python_float_repr(value); }
  static std::string text(const std::string& value) { return value.empty() ? "null" : value; }
  template <typename T>
  static std::string text(const std::optional<T>& value) {
    return value ? text(*value) : "null";
  }
  template <typename T>
  static std::string text(const std::vector<T>& value) {
    return list_text(value);
  }
  template <typename T, size_t N>
  static std::string text(const std::array<T, N>& value) {
    return list_text(value);
  }

 private:
  template <typename List>
  static std::string list_text(const List& value) {
    std::vector<std::string> items;
    for (const auto& item : value) items.push_back(text(item));
    return str_cat("[", join(items, ", "), "]");
  }
};

template <typename S>
class FieldKeys {
 public:
  // The names of an enum, or of what else has names; the first name of a value is the one shown.
  template <typename E>
  using Names = std::initializer_list<std::pair<std::string_view, E>>;
  // Reads the key out of its node.
  using Read = std::function<void(const NodeReader& node, std::string_view key, S& out)>;

  explicit FieldKeys(std::string_view node) : node_(node) {}
  // fill(*this) declares the rows.
  template <typename Fill>
  FieldKeys(std::string_view node, const Fill& fill) : node_(node) {
    fill(*this);
  }

  // A field of a plain type, an optional, a list. An empty string stands for null.
  template <typename T>
  FieldKeys& key(std::string_view name, T S::*field, KeyText text) {
    const S initial{};
    if constexpr (std::is_same_v<T, std::string>)
      text.nullable_ = text.nullable_ || (initial.*field).empty();
    std::string shown = FieldText::text(initial.*field);
    if (text.whole_ && ends_with(shown, ".0")) shown.resize(shown.size() - 2);
    add(name, FieldText::type(static_cast<const T*>(nullptr)), shown, text);
    read_with(name, [field](const NodeReader& node, std::string_view key, S& out) {
      read_field(node, key, out.*field);
    });
    return *this;
  }

  // A flag for which null means false, as Python's None does in NeMo's optional flags.
  FieldKeys& flag(std::string_view name, bool S::*field, KeyText text) {
    text.nullable();
    add(name, "bool", FieldText::text(S{}.*field), text);
    read_with(name, [field](const NodeReader& node, std::string_view key, S& out) {
      node.read_flag(key, out.*field);
    });
    return *this;
  }

  // A field whose values have names.
  template <typename E>
  FieldKeys& choice(std::string_view name, E S::*field, Names<E> names, KeyText text) {
    const S initial{};
    std::string shown;
    std::vector<std::string> all;
    for (const auto& [spelled, value] : names) {
      all.emplace_back(spelled);
      if (shown.empty() && value == initial.*field) shown = spelled;
    }
    if (!text.spec_.refused.empty()) all.emplace_back(text.spec_.refused);
    text.choices(keep(join(all, "|")));
    add(name, "str", shown, text);
    read_with(name, [field, list = std::vector<std::pair<std::string_view, E>>(names)](
                        const NodeReader& node, std::string_view key, S& out) {
      node.read_enum(key, out.*field, std::span<const std::pair<std::string_view, E>>(list));
    });
    return *this;
  }

  // A field that one of value_parsers.h reads; absent and null leave it.
  template <typename T, typename Parse>
  FieldKeys& parsed(std::string_view name, T S::*field, Parse parse, std::string_view type,
                    std::string_view shown, KeyText text) {
    add(name, type, shown, text);
    read_with(name, [field, parse](const NodeReader& node, std::string_view key, S& out) {
      const Value* value = node.find(key);
      if (value == nullptr || value->is_null()) return;
      auto result = parse(*value);
      if (result.ok())
        out.*field = std::move(result).value();
      else
        node.fail(key, *value, result.status().message());
    });
    return *this;
  }

  // A row with its own way to be read; without one nothing is read, or another row reads it.
  FieldKeys& row(std::string_view name, std::string_view type, std::string_view shown, KeyText text,
                 Read read = {}) {
    add(name, type, shown, text);
    if (read) read_with(name, std::move(read));
    return *this;
  }

  // A node below this one that fills a struct of its own; its rows come here.
  template <typename T>
  FieldKeys& child(std::string_view name, T S::*field, const FieldKeys<T>& keys) {
    rows_.insert(rows_.end(), keys.rows().begin(), keys.rows().end());
    read_with(name, [field, &keys](const NodeReader& node, std::string_view key, S& out) {
      keys.read(node.child(key), out.*field);
    });
    return *this;
  }

  // The rows of another table, which one of our own reads.
  template <typename T>
  FieldKeys& rows_of(const FieldKeys<T>& keys) {
    rows_.insert(rows_.end(), keys.rows().begin(), keys.rows().end());
    return *this;
  }

  std::span<const KeySpec> rows() const { return rows_; }
  // In the order of the rows.
  void read(const NodeReader& node, S& out) const {
    for (const auto& [name, one] : reads_) {
      // "step_timing_kwargs.reduction" stands in a node below.
      const size_t dot = name.rfind('.');
      if (dot == std::string_view::npos)
        one(node, name, out);
      else
        one(node.child(name.substr(0, dot)), name.substr(dot + 1), out);
    }
  }

 private:
  template <typename T>
  static void read_field(const NodeReader& node, std::string_view name, T& out) {
    if constexpr (std::is_same_v<T, uint64_t>) {
      auto number = static_cast<int64_t>(out);
      node.read(name, number);
      out = static_cast<uint64_t>(number);
    } else {
      node.read(name, out);
    }
  }

  std::string_view keep(std::string text) { return texts_->emplace_back(std::move(text)); }

  void add(std::string_view name, std::string_view type, std::string_view shown,
           const KeyText& text) {
    KeySpec row = text.spec_;
    row.path = keep(str_cat(node_, ".", std::string(name)));
    if (text.not_null_ && ends_with(type, "|null")) type.remove_suffix(5);
    row.type =
        keep(str_cat(std::string(type), text.nullable_ && !ends_with(type, "null") ? "|null" : ""));
    if (text.default_)
      row.default_value = *text.default_;
    else
      row.default_value = text.absent_is_null_ ? "null" : keep(std::string(shown));
    rows_.push_back(row);
  }

  void read_with(std::string_view name, Read read) { reads_.emplace_back(name, std::move(read)); }

  std::string node_;
  std::vector<KeySpec> rows_;
  std::vector<std::pair<std::string_view, Read>> reads_;
  // Texts that rows show; shared by copies of the table, since rows point into it.
  std::shared_ptr<std::deque<std::string>> texts_ = std::make_shared<std::deque<std::string>>();
};

}  // namespace aerie::config
