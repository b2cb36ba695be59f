// A dict of an mm-style configuration while it is translated: keys are taken one by one, and what
// nobody took is unknown. Internal to the folder.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"

namespace aerie::bev {

// What a translation gathers.
struct MmState {
  config::Value native{config::Map()};
  config::Findings findings;
  std::vector<std::string> notes;
  bool allow_unknown = false;

  void error(const std::string& key, const config::Value& at, std::string message,
             std::string hint = {});
  void warn(const std::string& key, const config::Value& at, std::string message,
            std::string hint = {});
  void note(std::string text) { notes.push_back(std::move(text)); }
  // Sets a key of our own; the value keeps its origin. A second, different value of the same key
  // is an error that names both.
  void set(std::string_view path, config::Value value, const std::string& from = {});
};

class MmNode {
 public:
  // `value` may be null: a dict that is not there, or None.
  MmNode(MmState& state, const config::Value* value, std::string path);

  bool present() const { return map_ != nullptr; }
  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const;
  const config::Value& value() const { return *map_; }

  // The value of a known key; null when it is absent or None.
  const config::Value* take(std::string_view key);
  // A known key that is a dict.
  MmNode child(std::string_view key);
  // Text of a known key; empty when absent. Anything but text is an error.
  std::string text(std::string_view key);
  // A known key goes over as it is.
  void move(std::string_view key, std::string_view native_path);
  // Known keys that change nothing here; said once for those that are there.
  void ignore(std::initializer_list<std::string_view> keys, std::string_view why = {});
  // Whatever was not taken is unknown.
  void finish();
  std::vector<std::string> rest() const;  // keys that were not taken

 private:
  MmState& state_;
  const config::Value* map_ = nullptr;
  std::string path_;
  std::vector<std::string> known_;
};

}  // namespace aerie::bev
