// The schema table: one row per configuration key with its type, range, default, status and help.
// Validation (validate.h), the defaults of the `aerie:` node, docs/config.md and the tests all come
// from these rows; a key that is not here does not exist. Rows are constants: any thread may read.
//
// Adding a key: a row here, a field in the struct, a line in build_*.cc, then
// `aerie config keys --markdown > docs/config.md`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

enum class KeyStatus {
  kWorks,     // does what it says
  kNoEffect,  // accepted; changes nothing, by design
  kLater,     // accepted; takes effect with a feature that is still to come
  kRefused,   // only its default is accepted; the note says why
};

struct KeySpec {
  // Dots between parts. `*` stands for any key of a map or index of a list, `<ds>` for train_ds,
  // validation_ds and test_ds.
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

// One documentation section per group, in the order of docs/config.md.
struct KeyGroup {
  std::string_view title;
  std::string_view intro;
  std::span<const KeySpec> keys;
};
std::span<const KeyGroup> key_groups();

// Every row of every group.
std::vector<const KeySpec*> all_keys();
// The row of a concrete key ("model.validation_ds.batch_size"), or null.
const KeySpec* find_key(std::string_view path);
// The row's default as a value; null Value when it has none.
Value default_of(const KeySpec& key);
// The `aerie:` node with every default: {aerie: {...}}. What compose() calls known_defaults.
const Value& aerie_defaults();

const char* key_status_name(KeyStatus status);  // "works", "no effect", "later", "refused"

// docs/config.md.
std::string key_table_markdown();

// --- the tables themselves, one file each ---
std::span<const KeySpec> top_level_keys();
std::span<const KeySpec> model_keys();
std::span<const KeySpec> encoder_keys();
std::span<const KeySpec> dataset_keys();
std::span<const KeySpec> optim_keys();
std::span<const KeySpec> trainer_keys();
std::span<const KeySpec> exp_manager_keys();
std::span<const KeySpec> own_keys();

}  // namespace aerie::config
