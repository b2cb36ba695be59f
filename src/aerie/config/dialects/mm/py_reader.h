// Configurations written as Python files (mmcv's style), read and never run: assignments of
// literals, names defined above, *list and **dict and arithmetic become a tree; everything else is
// an error that says where it stands and what is allowed.
//
//   lr = 2e-4
//   data = dict(samples_per_gpu=4, train=dict(ann_file=data_root + 'train.json'))
//   lr_config = {{_base_.lr_config}}
//
// Tuples become lists; a hostile file cannot take more than the limits say.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config::mm {

// What is left of the bounds, for one configuration with all its bases: names may be used again
// and again, so that a small file could describe a large tree.
struct ReadBudget {
  size_t bytes = 4u << 20;        // of source text
  size_t nodes = 500'000;         // values in the tree, counting each use of a name
  size_t text_bytes = 16u << 20;  // text in the tree, counted the same way
  // Names that expressions used, where somebody wants to know.
  std::set<std::string>* names_read = nullptr;

  Status take_source(size_t size);
  Status take(size_t node_count, size_t text_count);
  // A copy of `value` is about to be made.
  Status take_copy(const Value& value);
};

// One file without its bases: `_base_` is a key like any other, and {{_base_.a.b}} an interpolation
// "{{_base_.a.b}}" which the caller replaces. Keys that begin with `__` are left out, as in mmcv.
// Errors are kInvalidArgument: "a.py:3:7: a call of 'len' is not allowed".
Result<Value> parse_py(std::string_view text, std::string_view name, ReadBudget& budget);

// One expression: names are keys of `scope` (a map), `a.b` is a key of the map `a`. Without a scope
// only literals.
Result<Value> parse_py_expression(std::string_view text, std::string_view name, const Value* scope,
                                  ReadBudget& budget);

// "a.b" of "{{_base_.a.b}}", or empty when `value` is none.
std::string_view base_reference_path(const Value& value);

}  // namespace aerie::config::mm
