#include "aerie/models/bev/config/mm_node.h"

#include <algorithm>

#include "aerie/base/strings.h"

namespace aerie::bev {

using config::Finding;
using config::Value;

namespace {

std::string where_of(const Value& value) {
  return value.origin().kind == config::Origin::Kind::kDefault ? "" : value.origin().to_string();
}

// Where the key itself stands, if `at` is the dict that holds it.
std::string where_of(const std::string& key, const Value& at) {
  const Value* own = at.is_map() ? at.child(key.substr(key.rfind('.') + 1)) : nullptr;
  return where_of(own != nullptr ? *own : at);
}

}  // namespace

void MmState::error(const std::string& key, const Value& at, std::string message,
                    std::string hint) {
  findings.add(
      {Finding::Severity::kError, key, std::move(message), std::move(hint), where_of(key, at)});
}

void MmState::warn(const std::string& key, const Value& at, std::string message, std::string hint) {
  findings.add(
      {Finding::Severity::kWarning, key, std::move(message), std::move(hint), where_of(key, at)});
}

void MmState::set(std::string_view path, Value value, const std::string& from) {
  if (const Value* old = native.find(path); old != nullptr && !from.empty() && !(*old == value))
    return error(
        from, value,
        str_cat("says ", value.brief(40), " where ", where_of(*old), " says ", old->brief(40)),
        str_cat("both mean ", std::string(path), ": write one"));
  const Status status = native.set(path, std::move(value));
  AERIE_CHECK(status.ok(), "translation of ", std::string(path), ": ", status.to_string());
}

MmNode::MmNode(MmState& state, const Value* value, std::string path)
    : state_(state), path_(std::move(path)), known_({"_delete_"}) {
  if (value == nullptr || value->is_null()) return;
  if (value->is_map())
    map_ = value;
  else
    state_.error(path_, *value, str_cat("expected a dict, got ", value->brief(40)));
}

std::string MmNode::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : str_cat(path_, ".", std::string(key));
}

const Value* MmNode::take(std::string_view key) {
  known_.emplace_back(key);
  const Value* value = map_ != nullptr ? map_->as_map().find(key) : nullptr;
  return value == nullptr || value->is_null() ? nullptr : value;
}

MmNode MmNode::child(std::string_view key) {
  return MmNode(state_, take(key), path_of(key));
}

std::string MmNode::text(std::string_view key) {
  const Value* value = take(key);
  if (value == nullptr) return {};
  if (value->is_string()) return value->as_string();
  state_.error(path_of(key), *value, str_cat("expected text, got ", value->brief(40)));
  return {};
}

void MmNode::move(std::string_view key, std::string_view native_path) {
  if (const Value* value = take(key); value != nullptr) state_.set(native_path, *value);
}

void MmNode::ignore(std::initializer_list<std::string_view> keys, std::string_view why) {
  for (const std::string_view key : keys)
    if (take(key) != nullptr && !why.empty())
      state_.note(str_cat(path_of(key), " has no effect: ", std::string(why)));
}

std::vector<std::string> MmNode::rest() const {
  std::vector<std::string> out;
  if (map_ == nullptr) return out;
  for (const config::MapEntry& entry : map_->as_map())
    if (std::find(known_.begin(), known_.end(), entry.key) == known_.end())
      out.push_back(entry.key);
  return out;
}

void MmNode::finish() {
  for (const std::string& key : rest()) {
    const std::string near = nearest_name(key, known_);
    const std::string hint = near.empty() || near == "_delete_"
                                 ? "--allow-unknown goes on without it"
                                 : str_cat("did you mean '", path_of(near), "'?");
    const Value& value = *map_->as_map().find(key);
    if (state_.allow_unknown)
      state_.warn(path_of(key), value, "unknown key, not used", hint);
    else
      state_.error(path_of(key), value, "unknown key", hint);
  }
}

}  // namespace aerie::bev
