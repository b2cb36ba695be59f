// Reads typed fields out of a map node. Absent keys and `???` leave the field as it is; null
// empties an optional, and leaves anything else. The first value of a wrong type is remembered as
// the error.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/base/strings.h"
#include "aerie/config/value.h"

namespace aerie::config {

class NodeReader {
 public:
  // `node` may be null (nothing is read); `status` collects the first error of several readers.
  NodeReader(const Value* node, std::string path, Status* status)
      : node_(node), path_(std::move(path)), status_(status) {}

  NodeReader child(std::string_view key) const {
    return {find(key), str_cat(path_, path_.empty() ? "" : ".", std::string(key)), status_};
  }
  NodeReader item(size_t index) const {
    const bool there = node_ != nullptr && node_->is_list() && index < node_->as_list().size();
    return {there ? &node_->as_list()[index] : nullptr, str_cat(path_, ".", index), status_};
  }
  const Value* node() const { return node_; }
  bool is_map() const { return node_ != nullptr && node_->is_map(); }
  const std::string& path() const { return path_; }

  // The value, unless absent or `???`.
  const Value* find(std::string_view key) const {
    if (!is_map()) return nullptr;
    const Value* value = node_->child(key);
    return value == nullptr || value->is_missing() ? nullptr : value;
  }
  bool given(std::string_view key) const {
    const Value* value = find(key);
    return value != nullptr && !value->is_null();
  }

  void read(std::string_view key, bool& out) const;
  void read(std::string_view key, int64_t& out) const;
  void read(std::string_view key, double& out) const;
  void read(std::string_view key, std::string& out) const;

  template <typename T>
  void read(std::string_view key, std::optional<T>& out) const {
    const Value* value = find(key);
    if (value == nullptr) return;
    out.reset();
    if (value->is_null()) return;
    T element{};
    read(key, element);
    out = std::move(element);
  }

  // A list; one scalar counts as a list of one.
  template <typename T>
  void read(std::string_view key, std::vector<T>& out) const {
    const Value* value = find(key);
    if (value == nullptr) return;
    out.clear();
    if (value->is_null()) return;
    if (!value->is_list()) {
      T element{};
      read(key, element);
      out.push_back(std::move(element));
      return;
    }
    for (const Value& item : value->as_list()) {
      T element{};
      if (!convert(item, element)) return fail(key, item);
      out.push_back(std::move(element));
    }
  }

  template <typename T, size_t N>
  void read(std::string_view key, std::array<T, N>& out) const {
    std::vector<T> items;
    if (!given(key)) return;
    read(key, items);
    if (items.size() != N) return fail(key, *find(key));
    for (size_t i = 0; i < N; ++i) out[i] = items[i];
  }

  // Null means false, as Python's None does in NeMo's optional flags.
  void read_flag(std::string_view key, bool& out) const {
    const Value* value = find(key);
    if (value != nullptr && value->is_null())
      out = false;
    else
      read(key, out);
  }

  template <typename E>
  void read_enum(std::string_view key, E& out,
                 std::initializer_list<std::pair<std::string_view, E>> names) const {
    read_enum(key, out,
              std::span<const std::pair<std::string_view, E>>(names.begin(), names.size()));
  }
  template <typename E>
  void read_enum(std::string_view key, E& out,
                 std::span<const std::pair<std::string_view, E>> names) const {
    const Value* value = find(key);
    if (value == nullptr || value->is_null()) return;
    // On the command line `nan` is a number; as a choice it is a name.
    std::string text;
    if (!convert(*value, text)) return fail(key, *value);
    for (const auto& [name, enumerator] : names)
      if (text == name) {
        out = enumerator;
        return;
      }
    fail(key, *value);
  }

  void fail(std::string_view key, const Value& value) const {
    fail(key, value, str_cat("cannot use ", value.brief(40)));
  }
  void fail(std::string_view key, const Value& value, const std::string& message) const;

 private:
  static bool convert(const Value& value, bool& out);
  static bool convert(const Value& value, int64_t& out);
  static bool convert(const Value& value, double& out);
  static bool convert(const Value& value, std::string& out);
  template <typename T>
  void read_scalar(std::string_view key, T& out) const {
    const Value* value = find(key);
    if (value == nullptr || value->is_null()) return;
    if (!convert(*value, out)) fail(key, *value);
  }

  const Value* node_;
  std::string path_;
  Status* status_;
};

}  // namespace aerie::config
