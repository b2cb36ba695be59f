// The machine behind unpickle(): a stack, marks, a memo, and the calls it understands. Internal to
// the pickle reader; opcodes are in pickle_reader.cc, calls and tensors in pickle_calls.cc.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/archive/pickle_globals.h"
#include "aerie/archive/pickle_reader.h"
#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive::detail {

inline constexpr size_t kMaxGlobalBytes = 512;

// A storage as a pickle refers to it: which bytes, seen as which type.
struct Storage {
  StorageRef ref;
  std::optional<Dtype> dtype;  // none: untyped
  uint64_t bytes = 0;          // that the pickle claims; at most ref.bytes
};

class Machine final {
 public:
  Machine(std::string_view bytes, const StorageResolver& resolve, const PickleOptions& options)
      : bytes_(bytes), resolve_(resolve), options_(options) {}

  // Up to the stop, behind which nothing may stand.
  Status run();
  Status run_to_stop();
  size_t position() const { return op_at_; }
  size_t used() const { return at_; }  // after the stop: the pickle's length
  Unpickled take() { return std::move(out_); }

 private:
  NodeTree& tree() { return out_.tree; }

  // Input.
  Status need(uint64_t n) const {
    if (n > bytes_.size() - at_)
      return data_error(str_cat("wants ", n, " more bytes, ", bytes_.size() - at_, " are left"));
    return ok_status();
  }
  template <typename T>
  Result<T> number() {
    AERIE_RETURN_IF_ERROR(need(sizeof(T)));
    T value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  Result<std::string_view> chunk(uint64_t n) {
    AERIE_RETURN_IF_ERROR(need(n));
    const std::string_view piece = bytes_.substr(at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    return piece;
  }
  Result<std::string_view> line();
  template <typename Length>
  Status push_text(NodeKind kind) {
    AERIE_ASSIGN_OR_RETURN(const Length length, number<Length>());
    AERIE_ASSIGN_OR_RETURN(const std::string_view text, chunk(length));
    if (kind == NodeKind::kString && !is_utf8(text)) return data_error("a string is not UTF-8");
    return push(tree().add_text(kind, text));
  }

  // Stack.
  Status push(NodeId id) {
    if (stack_.size() + marks_.size() >= options_.limits.max_stack)
      return data_error(str_cat("more than ", options_.limits.max_stack, " values at once"));
    stack_.push_back(id);
    return ok_status();
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Result<NodeId> pop() {
    if (stack_.size() <= floor()) return data_error("takes a value where there is none");
    const NodeId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Result<NodeId> top() const {
    if (stack_.size() <= floor()) return data_error("takes a value where there is none");
    return stack_.back();
  }
  Result<std::vector<NodeId>> pop_to_mark() {
    if (marks_.empty()) return data_error("no mark");
    std::vector<NodeId> items(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }

  // Memo.
  Status put(uint64_t index);
  Status get(uint64_t index);

  Status step(uint8_t op);
  Status push_container(NodeKind kind, const std::vector<NodeId>& items);
  Status add_items(NodeId target, const std::vector<NodeId>& items);
  Status set_items(NodeId target, const std::vector<NodeId>& items);
  Status push_long(std::string_view bytes);
  Status push_global(std::string_view module, std::string_view name);
  Status build(NodeId target, NodeId state);
  Status persistent(NodeId id);
  Status reduce(NodeId callable, NodeId args);
  Status new_object(NodeId callable, NodeId args);
  Status push_foreign(NodeId callable, NodeId args);
  Status push_tensor(const std::vector<NodeId>& args, std::optional<Dtype> dtype);
  Status push_numpy_scalar(const std::vector<NodeId>& args);
  Status encode_latin1(NodeId text);
  Result<std::vector<int64_t>> dims(NodeId id, const char* what);
  GlobalInfo role_of(NodeId id);
  std::string describe(NodeId id);
  Status too_deep() const {
    return data_error(str_cat("nested deeper than ", NodeTree::kMaxDepth, " levels"));
  }

  std::string_view bytes_;
  const StorageResolver& resolve_;
  const PickleOptions& options_;
  size_t at_ = 0;
  size_t op_at_ = 0;
  bool stopped_ = false;
  Unpickled out_;
  std::vector<NodeId> stack_;
  std::vector<size_t> marks_;
  std::vector<NodeId> memo_;
  std::vector<Storage> storages_;
  uint64_t elements_ = 0;  // put into containers and shapes so far
};

}  // namespace aerie::archive::detail
