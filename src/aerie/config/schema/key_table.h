// Rows of a schema: one per configuration key with its type, range, default, status and help.
// Validation (validate.h), the defaults of the `aerie:` node, docs/config.md and the tests all come
// from the rows; a key without a row does not exist. A family puts the rows it knows together in a
// Schema (schema.h): the engine's and its own. Texts of rows are literals, or live as long.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aerie/config/value.h"

namespace aerie::config {

enum class KeyStatus {
  kWorks,     // does what it says
  kNoEffect,  // accepted; changes nothing, by design
  kLater,     // accepted; takes effect with a feature that is still to come
  kRefused,   // only its default is accepted; the note says why
};

struct KeySpec {
  // Dots between parts. `*` stands for any key of a map or index of a list; a placeholder of the
  // schema, such as `<ds>`, for the names it lists.
  std::string_view path;
  // Alternatives of null, bool, int, float (takes ints), str (takes numbers), map, any, list[T].
  std::string_view type;
  // YAML text of the value that an absent key means; empty: none. "required": must be written.
  std::string_view default_value;
  // Numbers, also those inside lists: ">=1", ">0", "[0,1]", "(0,1]"; empty: any.
  std::string_view range;
  // Strings: "a|b|c"; a part that ends in '*' is a prefix. Empty: any.
  std::string_view choices;
  KeyStatus status = KeyStatus::kWorks;
  std::string_view help;
  // Why it is refused or what it waits for. With `refused` it explains those values.
  std::string_view note = {};
  // Choices that exist in NeMo and are refused here.
  std::string_view refused = {};
  // kLater: say so when the value is not the default.
  bool warn = false;
};

inline constexpr std::string_view kRequired = "required";

// One documentation section per group.
struct KeyGroup {
  std::string_view title;
  std::string_view intro;
  std::vector<KeySpec> keys;
};

// The row's default as a value; null Value when it has none.
Value default_of(const KeySpec& key);

const char* key_status_name(KeyStatus status);  // "works", "no effect", "later", "refused"

}  // namespace aerie::config
