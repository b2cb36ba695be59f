#include "aerie/archive/pickle_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "aerie/archive/pickle_globals.h"
#include "aerie/archive/pickle_ops.h"
#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

constexpr size_t kMaxGlobalBytes = 512;

// One value of a pickle stream that is a storage: which bytes, seen as which type.
struct Storage {
  StorageRef ref;
  std::optional<DType> dtype;  // none: untyped
  uint64_t bytes = 0;          // that the pickle claims; at most ref.bytes
};

class Machine {
 public:
  Machine(std::string_view bytes, const StorageResolver& resolve, const PickleOptions& options)
      : bytes_(bytes), resolve_(resolve), options_(options) {}

  Status run();
  size_t position() const { return op_at_; }
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
  Status push_tensor(const std::vector<NodeId>& args, std::optional<DType> dtype);
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

Status Machine::run() {
  if (bytes_.size() > options_.limits.max_bytes)
    return data_error(str_cat("holds ", bytes_.size(), " bytes, at most ",
                              options_.limits.max_bytes, " are accepted"));
  while (!stopped_) {
    op_at_ = at_;
    if (at_ == bytes_.size()) return data_error("ends without a stop: it was cut short");
    const auto op = static_cast<uint8_t>(bytes_[at_++]);
    AERIE_RETURN_IF_ERROR(step(op));
    if (tree().size() > options_.limits.max_nodes)
      return data_error(str_cat("holds more than ", options_.limits.max_nodes, " values"));
    // Every element and every character of an honest pickle costs at least a byte of it, and is
    // copied once at most (a list made into an OrderedDict). More comes only from repeating
    // memoized values without end.
    if (elements_ > 2 * bytes_.size() || tree().text_bytes() > 4 * bytes_.size() + 65536)
      return data_error("unfolds to far more than it holds");
  }
  if (at_ != bytes_.size()) return data_error("has bytes behind its end");
  return ok_status();
}

Result<std::string_view> Machine::line() {
  const std::string_view rest = bytes_.substr(at_, kMaxGlobalBytes + 1);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos)
    return data_error(str_cat("a name is cut short or longer than ", kMaxGlobalBytes, " bytes"));
  at_ += end + 1;
  return rest.substr(0, end);
}

Status Machine::put(uint64_t index) {
  AERIE_ASSIGN_OR_RETURN(const NodeId id, top());
  if (index >= options_.limits.max_memo)
    return data_error(str_cat("memo index ", index, " is beyond ", options_.limits.max_memo));
  if (index >= memo_.size()) memo_.resize(static_cast<size_t>(index) + 1, kNoNode);
  memo_[static_cast<size_t>(index)] = id;
  return ok_status();
}

Status Machine::get(uint64_t index) {
  if (index >= memo_.size() || memo_[static_cast<size_t>(index)] == kNoNode)
    return data_error(str_cat("refers to memo ", index, ", which was never set"));
  return push(memo_[static_cast<size_t>(index)]);
}

Status Machine::step(uint8_t op) {
  switch (op) {
    case kOpProto: {
      AERIE_ASSIGN_OR_RETURN(const uint8_t version, number<uint8_t>());
      if (version < 2 || version > 5)
        return data_error(str_cat("pickle protocol ", version, " is not read, 2 to 5 are"));
      return ok_status();
    }
    case kOpFrame: {
      AERIE_ASSIGN_OR_RETURN(const uint64_t length, number<uint64_t>());
      return need(length);
    }
    case kOpStop: {
      if (stack_.size() != 1 || !marks_.empty())
        return data_error(str_cat("ends with ", stack_.size(), " values instead of one"));
      out_.root = stack_[0];
      stopped_ = true;
      return ok_status();
    }
    case kOpMark: {
      if (stack_.size() + marks_.size() >= options_.limits.max_stack)
        return data_error(str_cat("more than ", options_.limits.max_stack, " values at once"));
      marks_.push_back(stack_.size());
      return ok_status();
    }
    case kOpPop: {
      if (stack_.size() == floor() && !marks_.empty()) {
        marks_.pop_back();
        return ok_status();
      }
      return pop().status();
    }
    case kOpPopMark:
      return pop_to_mark().status();

    case kOpNone:
      return push(tree().add_none());
    case kOpNewTrue:
      return push(tree().add_bool(true));
    case kOpNewFalse:
      return push(tree().add_bool(false));
    case kOpBinInt: {
      AERIE_ASSIGN_OR_RETURN(const int32_t value, number<int32_t>());
      return push(tree().add_int(value));
    }
    case kOpBinInt1: {
      AERIE_ASSIGN_OR_RETURN(const uint8_t value, number<uint8_t>());
      return push(tree().add_int(value));
    }
    case kOpBinInt2: {
      AERIE_ASSIGN_OR_RETURN(const uint16_t value, number<uint16_t>());
      return push(tree().add_int(value));
    }
    case kOpLong1: {
      AERIE_ASSIGN_OR_RETURN(const uint8_t length, number<uint8_t>());
      AERIE_ASSIGN_OR_RETURN(const std::string_view digits, chunk(length));
      return push_long(digits);
    }
    case kOpLong4: {
      AERIE_ASSIGN_OR_RETURN(const int32_t length, number<int32_t>());
      if (length < 0) return data_error("an integer of negative length");
      AERIE_ASSIGN_OR_RETURN(const std::string_view digits, chunk(static_cast<uint64_t>(length)));
      return push_long(digits);
    }
    case kOpBinFloat: {
      AERIE_ASSIGN_OR_RETURN(const uint64_t big_endian, number<uint64_t>());
      return push(tree().add_float(std::bit_cast<double>(__builtin_bswap64(big_endian))));
    }
    case kOpShortBinUnicode:
      return push_text<uint8_t>(NodeKind::kString);
    case kOpBinUnicode:
      return push_text<uint32_t>(NodeKind::kString);
    case kOpBinUnicode8:
      return push_text<uint64_t>(NodeKind::kString);
    case kOpShortBinBytes:
      return push_text<uint8_t>(NodeKind::kBytes);
    case kOpBinBytes:
      return push_text<uint32_t>(NodeKind::kBytes);
    case kOpBinBytes8:
    case kOpByteArray8:
      return push_text<uint64_t>(NodeKind::kBytes);
    // Python 2 strings: text if they can be.
    case kOpShortBinString:
    case kOpBinString: {
      uint64_t length = 0;
      if (op == kOpShortBinString) {
        AERIE_ASSIGN_OR_RETURN(length, number<uint8_t>());
      } else {
        AERIE_ASSIGN_OR_RETURN(const int32_t signed_length, number<int32_t>());
        if (signed_length < 0) return data_error("a string of negative length");
        length = static_cast<uint64_t>(signed_length);
      }
      AERIE_ASSIGN_OR_RETURN(const std::string_view text, chunk(length));
      return push(tree().add_text(is_utf8(text) ? NodeKind::kString : NodeKind::kBytes, text));
    }

    case kOpEmptyList:
      return push(tree().add_list());
    case kOpEmptyTuple:
      return push(tree().add_container(NodeKind::kTuple));
    case kOpEmptyDict:
      return push(tree().add_dict());
    case kOpEmptySet:
      return push(tree().add_container(NodeKind::kSet));
    case kOpTuple1:
    case kOpTuple2:
    case kOpTuple3: {
      std::vector<NodeId> items(op - kOpTuple1 + 1u);
      for (size_t i = items.size(); i-- > 0;) {
        AERIE_ASSIGN_OR_RETURN(items[i], pop());
      }
      return push_container(NodeKind::kTuple, items);
    }
    case kOpTuple:
    case kOpList:
    case kOpFrozenSet: {
      AERIE_ASSIGN_OR_RETURN(const std::vector<NodeId> items, pop_to_mark());
      return push_container(op == kOpTuple  ? NodeKind::kTuple
                            : op == kOpList ? NodeKind::kList
                                            : NodeKind::kSet,
                            items);
    }
    case kOpDict: {
      AERIE_ASSIGN_OR_RETURN(const std::vector<NodeId> items, pop_to_mark());
      const NodeId dict = tree().add_dict();
      AERIE_RETURN_IF_ERROR(set_items(dict, items));
      return push(dict);
    }
    case kOpAppend: {
      AERIE_ASSIGN_OR_RETURN(const NodeId item, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId target, top());
      return add_items(target, {item});
    }
    case kOpAppends:
    case kOpAddItems: {
      AERIE_ASSIGN_OR_RETURN(const std::vector<NodeId> items, pop_to_mark());
      AERIE_ASSIGN_OR_RETURN(const NodeId target, top());
      return add_items(target, items);
    }
    case kOpSetItem: {
      AERIE_ASSIGN_OR_RETURN(const NodeId value, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId key, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId target, top());
      return set_items(target, {key, value});
    }
    case kOpSetItems: {
      AERIE_ASSIGN_OR_RETURN(const std::vector<NodeId> items, pop_to_mark());
      AERIE_ASSIGN_OR_RETURN(const NodeId target, top());
      return set_items(target, items);
    }

    case kOpBinPut: {
      AERIE_ASSIGN_OR_RETURN(const uint8_t index, number<uint8_t>());
      return put(index);
    }
    case kOpLongBinPut: {
      AERIE_ASSIGN_OR_RETURN(const uint32_t index, number<uint32_t>());
      return put(index);
    }
    case kOpMemoize:
      return put(memo_.size());
    case kOpBinGet: {
      AERIE_ASSIGN_OR_RETURN(const uint8_t index, number<uint8_t>());
      return get(index);
    }
    case kOpLongBinGet: {
      AERIE_ASSIGN_OR_RETURN(const uint32_t index, number<uint32_t>());
      return get(index);
    }

    case kOpGlobal: {
      AERIE_ASSIGN_OR_RETURN(const std::string_view module, line());
      AERIE_ASSIGN_OR_RETURN(const std::string_view name, line());
      return push_global(module, name);
    }
    case kOpStackGlobal: {
      AERIE_ASSIGN_OR_RETURN(const NodeId name, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId module, pop());
      if (!tree().is(name, NodeKind::kString) || !tree().is(module, NodeKind::kString))
        return data_error("a global without a name");
      // Copies: adding the node may move the text these would point into.
      const std::string module_text(tree().text(module)), name_text(tree().text(name));
      return push_global(module_text, name_text);
    }
    case kOpReduce:
    case kOpNewObj: {
      AERIE_ASSIGN_OR_RETURN(const NodeId args, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId callable, pop());
      return op == kOpReduce ? reduce(callable, args) : new_object(callable, args);
    }
    case kOpNewObjEx: {
      AERIE_ASSIGN_OR_RETURN(const NodeId keywords, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId args, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId callable, pop());
      const NodeId both = tree().add_container(NodeKind::kTuple);
      if (!tree().append(both, args) || !tree().append(both, keywords)) return too_deep();
      return push_foreign(callable, both);
    }
    case kOpBuild: {
      AERIE_ASSIGN_OR_RETURN(const NodeId state, pop());
      AERIE_ASSIGN_OR_RETURN(const NodeId target, top());
      return build(target, state);
    }
    case kOpBinPersId: {
      AERIE_ASSIGN_OR_RETURN(const NodeId id, pop());
      return persistent(id);
    }
    default:
      break;
  }
  char hex[8];
  std::snprintf(hex, sizeof hex, "0x%02x", op);
  return data_error(str_cat("unknown or refused opcode ", hex));
}

Status Machine::push_container(NodeKind kind, const std::vector<NodeId>& items) {
  const NodeId id = tree().add_container(kind);
  elements_ += items.size();
  for (const NodeId item : items)
    if (!tree().append(id, item)) return too_deep();
  return push(id);
}

Status Machine::add_items(NodeId target, const std::vector<NodeId>& items) {
  const NodeKind kind = tree().kind(target);
  if (kind != NodeKind::kList && kind != NodeKind::kSet && kind != NodeKind::kObject)
    return data_error(str_cat("appends to a ", node_kind_name(kind)));
  elements_ += items.size();
  for (const NodeId item : items) {
    if (kind != NodeKind::kObject) {
      if (!tree().append(target, item)) return too_deep();
      continue;
    }
    const NodeId held = tree().object_items(target);
    if (held != kNoNode && !tree().is(held, NodeKind::kList))
      return data_error("an object with both keys and elements");
    if (!tree().add_object_item(target, NodeKind::kList, item)) return too_deep();
  }
  return ok_status();
}

Status Machine::set_items(NodeId target, const std::vector<NodeId>& items) {
  const NodeKind kind = tree().kind(target);
  if (kind != NodeKind::kDict && kind != NodeKind::kObject)
    return data_error(str_cat("sets a key of a ", node_kind_name(kind)));
  if (items.size() % 2 != 0) return data_error("a key without a value");
  elements_ += items.size();
  for (size_t i = 0; i < items.size(); ++i) {
    if (kind == NodeKind::kDict) {
      if (!tree().append(target, items[i])) return too_deep();
      continue;
    }
    const NodeId held = tree().object_items(target);
    if (held != kNoNode && !tree().is(held, NodeKind::kDict))
      return data_error("an object with both keys and elements");
    if (!tree().add_object_item(target, NodeKind::kDict, items[i])) return too_deep();
  }
  return ok_status();
}

Status Machine::push_long(std::string_view digits) {
  if (digits.size() > 8) return push(tree().add_text(NodeKind::kBigInt, digits));
  uint64_t value = 0;
  std::memcpy(&value, digits.data(), digits.size());
  // Little-endian two's complement: the top bit of the last byte is the sign.
  if (!digits.empty() && digits.size() < 8 && (digits.back() & 0x80) != 0)
    value |= ~uint64_t{0} << (8 * digits.size());
  return push(tree().add_int(static_cast<int64_t>(value)));
}

Status Machine::push_global(std::string_view module, std::string_view name) {
  if (module.size() + name.size() > kMaxGlobalBytes || !is_utf8(module) || !is_utf8(name))
    return data_error("a global with an impossible name");
  const GlobalInfo info = classify_global(module, name);
  const std::string full = str_cat(module, ".", name);
  if (info.role == GlobalRole::kAttack)
    return data_error(str_cat("asks for ", quoted(full),
                              ", which would run code: this is not an honest checkpoint"))
        .with_hint("do not load this file with other tools either");
  if (info.role == GlobalRole::kForeign && options_.foreign == ForeignObjects::kRefuse)
    return data_error(str_cat("holds an object of ", quoted(full), "; only tensors belong here"));
  return push(tree().add_global(module, name));
}

GlobalInfo Machine::role_of(NodeId id) {
  if (!tree().is(id, NodeKind::kGlobal)) return {};
  // The module is everything before the last dot; names on our list contain none.
  const std::string_view full = tree().text(id);
  const size_t dot = full.rfind('.');
  return classify_global(full.substr(0, dot), full.substr(dot + 1));
}

std::string Machine::describe(NodeId id) {
  if (tree().is(id, NodeKind::kGlobal)) return quoted(tree().text(id));
  if (tree().is(id, NodeKind::kObject))
    return str_cat("an object of ", quoted(tree().object_class(id)));
  return str_cat("a ", node_kind_name(tree().kind(id)));
}

Status Machine::push_foreign(NodeId callable, NodeId args) {
  if (options_.foreign == ForeignObjects::kRefuse)
    return data_error(str_cat("calls ", describe(callable), "; only tensors belong here"));
  const NodeId object = tree().add_object(callable, args);
  if (tree().depth(object) > NodeTree::kMaxDepth) return too_deep();
  return push(object);
}

Status Machine::build(NodeId target, NodeId state) {
  switch (tree().kind(target)) {
    // Attributes of an OrderedDict (a state dict's _metadata) or of a tensor: of no use to us.
    case NodeKind::kDict:
    case NodeKind::kTensor:
    case NodeKind::kSet:
    case NodeKind::kList:
      return ok_status();
    case NodeKind::kObject:
      return tree().set_state(target, state) ? ok_status() : too_deep();
    default:
      return data_error(str_cat("sets attributes of ", describe(target)));
  }
}

Status Machine::persistent(NodeId id) {
  const auto bad = [](std::string_view why) {
    return data_error(str_cat("storage reference ", why));
  };
  if (!tree().is(id, NodeKind::kTuple)) return bad("is not a tuple");
  const std::vector<NodeId>& parts = tree().items(id);
  // ('storage', type, key, location, numel); old files add a sixth, always None.
  if (parts.size() < 5 || parts.size() > 6) return bad("does not have five parts");
  if (tree().as_string(parts[0]) != "storage") return bad("is of an unknown kind");
  const GlobalInfo type = role_of(parts[1]);
  if (type.role != GlobalRole::kStorage && type.role != GlobalRole::kUntypedStorage)
    return bad(str_cat("has ", describe(parts[1]), " for its type"));
  const auto key = tree().as_string(parts[2]);
  if (!key) return bad("has no key");
  const auto count = tree().is(parts[4], NodeKind::kInt) ? tree().as_int(parts[4]) : std::nullopt;
  if (!count || *count < 0) return bad("has no size");
  AERIE_ASSIGN_OR_RETURN(const StorageRef ref, resolve_(*key));
  Storage storage;
  storage.ref = ref;
  uint64_t element = 1;
  if (type.role == GlobalRole::kStorage) {
    storage.dtype = type.dtype;
    element = dtype_size(type.dtype);
  }
  if (static_cast<uint64_t>(*count) > ref.bytes / element)
    return data_error(str_cat("storage ", quoted(*key), " claims ", *count, " elements of ",
                              element, " bytes, the file holds ", ref.bytes, " bytes of it"));
  storage.bytes = static_cast<uint64_t>(*count) * element;
  if (ref.bytes - storage.bytes >= element)
    return data_error(str_cat("storage ", quoted(*key), " claims ", storage.bytes,
                              " bytes, the file holds ", ref.bytes));
  if (storages_.size() >= options_.limits.max_tensors)
    return data_error(str_cat("holds more than ", options_.limits.max_tensors, " storages"));
  storages_.push_back(storage);
  return push(tree().add_storage(static_cast<uint32_t>(storages_.size() - 1)));
}

Status Machine::new_object(NodeId callable, NodeId args) {
  // cls.__new__(cls, *args): for the classes we know the same as calling them.
  return reduce(callable, args);
}

Status Machine::reduce(NodeId callable, NodeId args) {
  if (!tree().is(args, NodeKind::kTuple)) return data_error("a call without an argument tuple");
  // Copied, because adding nodes below would leave a reference dangling in a moved container.
  const std::vector<NodeId> list = tree().items(args);
  const auto wrong = [&] {
    return data_error(
        str_cat(describe(callable), " with ", list.size(), " arguments that do not fit"));
  };
  const GlobalInfo info = role_of(callable);
  switch (info.role) {
    case GlobalRole::kOrderedDict:
    case GlobalRole::kDefaultDict:
    case GlobalRole::kCounter: {
      const NodeId dict = tree().add_dict(info.role == GlobalRole::kOrderedDict);
      const size_t first = info.role == GlobalRole::kDefaultDict ? 1 : 0;
      if (list.size() > first + 1) return wrong();
      if (list.size() == first + 1) {
        const NodeId from = list[first];
        if (tree().is(from, NodeKind::kDict)) {
          AERIE_RETURN_IF_ERROR(set_items(dict, std::vector<NodeId>(tree().items(from))));
        } else if (tree().is(from, NodeKind::kList) || tree().is(from, NodeKind::kTuple)) {
          for (const NodeId pair : std::vector<NodeId>(tree().items(from))) {
            if (!tree().is(pair, NodeKind::kList) && !tree().is(pair, NodeKind::kTuple))
              return wrong();
            if (tree().items(pair).size() != 2) return wrong();
            AERIE_RETURN_IF_ERROR(set_items(dict, std::vector<NodeId>(tree().items(pair))));
          }
        } else {
          return wrong();
        }
      }
      return push(dict);
    }
    case GlobalRole::kSet:
    case GlobalRole::kFrozenSet:
    case GlobalRole::kSize: {
      const NodeKind kind = info.role == GlobalRole::kSize ? NodeKind::kTuple : NodeKind::kSet;
      if (list.empty()) return push(tree().add_container(kind));
      const NodeKind from = tree().kind(list[0]);
      if (list.size() != 1 || (from != NodeKind::kList && from != NodeKind::kTuple)) return wrong();
      return push_container(kind, std::vector<NodeId>(tree().items(list[0])));
    }
    case GlobalRole::kDevice: {
      const auto type = list.empty() ? std::nullopt : tree().as_string(list[0]);
      if (!type) return wrong();
      const auto index = list.size() > 1 ? tree().as_int(list[1]) : std::nullopt;
      return push(tree().add_string(index ? str_cat(*type, ":", *index) : *type));
    }
    case GlobalRole::kCodecsEncode: {
      if (list.empty() || list.size() > 2 || !tree().is(list[0], NodeKind::kString)) return wrong();
      const auto encoding = list.size() == 2 ? tree().as_string(list[1]) : "utf-8";
      if (encoding == "latin1" || encoding == "latin-1") return encode_latin1(list[0]);
      if (encoding != "utf-8" && encoding != "utf8") return wrong();
      return push(tree().add_bytes(std::string(tree().text(list[0]))));
    }
    case GlobalRole::kRebuildTensor: {
      if (list.size() != 4) return wrong();
      return push_tensor(list, std::nullopt);
    }
    case GlobalRole::kRebuildTensorV2: {
      if (list.size() < 6 || list.size() > 7) return wrong();
      return push_tensor(list, std::nullopt);
    }
    case GlobalRole::kRebuildTensorV3: {
      if (list.size() < 7 || list.size() > 8) return wrong();
      const GlobalInfo type = role_of(list[6]);
      if (type.role != GlobalRole::kDType)
        return data_error(str_cat("a tensor of type ", describe(list[6]), " is not read"));
      return push_tensor(list, type.dtype);
    }
    case GlobalRole::kRebuildParameter:
    case GlobalRole::kRebuildParameterWithState: {
      const size_t wanted = info.role == GlobalRole::kRebuildParameter ? 3 : 4;
      if (list.size() != wanted || !tree().is(list[0], NodeKind::kTensor)) return wrong();
      return push(list[0]);
    }
    case GlobalRole::kRebuildFromType: {
      // (function, class, arguments, state): a tensor with attributes or of a subclass.
      if (list.size() != 4) return wrong();
      const GlobalRole inner = role_of(list[0]).role;
      const bool tensor = inner == GlobalRole::kRebuildTensorV2 ||
                          inner == GlobalRole::kRebuildTensorV3 ||
                          inner == GlobalRole::kRebuildParameter;
      if (!tensor) return push_foreign(callable, args);
      return reduce(list[0], list[2]);
    }
    case GlobalRole::kNumpyScalar:
      return push_numpy_scalar(list);
    case GlobalRole::kNumpyDtype: {
      // Needed by scalars only; harmless as an object even where foreign ones are refused.
      const NodeId object = tree().add_object(callable, args);
      if (tree().depth(object) > NodeTree::kMaxDepth) return too_deep();
      return push(object);
    }
    case GlobalRole::kLayout: {
      if (list.size() != 1 || !tree().is(list[0], NodeKind::kString)) return wrong();
      return push(list[0]);
    }
    case GlobalRole::kStorage:
    case GlobalRole::kUntypedStorage:
    case GlobalRole::kDType:
      return data_error(str_cat("calls ", describe(callable)));
    case GlobalRole::kForeign:
    case GlobalRole::kAttack:
      break;
  }
  return push_foreign(callable, args);
}

Result<std::vector<int64_t>> Machine::dims(NodeId id, const char* what) {
  if (!tree().is(id, NodeKind::kTuple) && !tree().is(id, NodeKind::kList))
    return data_error(str_cat("a tensor whose ", what, " is ", describe(id)));
  const std::vector<NodeId>& items = tree().items(id);
  if (items.size() > 64) return data_error(str_cat("a tensor with ", items.size(), " dimensions"));
  elements_ += items.size();
  std::vector<int64_t> out;
  out.reserve(items.size());
  for (const NodeId item : items) {
    if (!tree().is(item, NodeKind::kInt))
      return data_error(str_cat("a tensor whose ", what, " holds ", describe(item)));
    out.push_back(*tree().as_int(item));
  }
  return out;
}

Status Machine::push_tensor(const std::vector<NodeId>& args, std::optional<DType> dtype) {
  if (out_.tensors.size() >= options_.limits.max_tensors)
    return data_error(str_cat("holds more than ", options_.limits.max_tensors, " tensors"));
  if (!tree().is(args[0], NodeKind::kStorage))
    return data_error(str_cat("a tensor on ", describe(args[0]), " instead of a storage"));
  const Storage& storage = storages_[tree().tensor(args[0])];
  if (!dtype) dtype = storage.dtype;
  if (!dtype) return data_error("a tensor without an element type");
  const auto offset = tree().is(args[1], NodeKind::kInt) ? tree().as_int(args[1]) : std::nullopt;
  if (!offset || *offset < 0) return data_error("a tensor with a negative or missing offset");
  TensorInfo info;
  info.dtype = *dtype;
  AERIE_ASSIGN_OR_RETURN(info.shape, dims(args[2], "shape"));
  AERIE_ASSIGN_OR_RETURN(info.strides, dims(args[3], "strides"));
  if (info.strides.size() != info.shape.size())
    return data_error(str_cat("a tensor with ", info.shape.size(), " dimensions but ",
                              info.strides.size(), " strides"));
  const uint64_t element = dtype_size(*dtype);
  if (static_cast<uint64_t>(*offset) > storage.bytes / element)
    return data_error(str_cat("a tensor that begins at element ", *offset, " of a storage of ",
                              storage.bytes / element));
  info.offset = static_cast<uint64_t>(*offset) * element;
  info.storage = storage.ref.index;
  const Status bounds = check_bounds(info, storage.bytes);
  if (!bounds.ok()) return data_error(str_cat("a tensor: ", bounds.message()));
  if (info.contiguous()) info.strides.clear();
  out_.tensors.push_back(std::move(info));
  return push(tree().add_tensor(static_cast<uint32_t>(out_.tensors.size() - 1)));
}

Status Machine::encode_latin1(NodeId text) {
  std::string bytes;
  const std::string_view utf8 = tree().text(text);
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    if (lead < 0x80) {
      bytes.push_back(utf8[i]);
    } else if ((lead == 0xc2 || lead == 0xc3) && i + 1 < utf8.size()) {
      bytes.push_back(static_cast<char>((lead & 3) << 6 | (utf8[++i] & 0x3f)));
    } else {
      return data_error("bytes written as text that is not Latin-1");
    }
  }
  return push(tree().add_bytes(bytes));
}

Status Machine::push_numpy_scalar(const std::vector<NodeId>& args) {
  const auto wrong = [] { return data_error("a numpy scalar that does not make sense"); };
  if (args.size() != 2 || !tree().is(args[0], NodeKind::kObject) ||
      !tree().is(args[1], NodeKind::kBytes))
    return wrong();
  const NodeId dtype_args = tree().object_args(args[0]);
  if (role_of(tree().object_callable(args[0])).role != GlobalRole::kNumpyDtype ||
      !tree().is(dtype_args, NodeKind::kTuple) || tree().items(dtype_args).empty())
    return wrong();
  const auto type = tree().as_string(tree().items(dtype_args)[0]);
  const std::string bytes(tree().text(args[1]));
  const auto value = [&]<typename T>(T out) -> std::optional<T> {
    if (bytes.size() != sizeof out) return std::nullopt;
    std::memcpy(&out, bytes.data(), sizeof out);
    return out;
  };
  if (type == "f8") {
    if (const auto v = value(double{})) return push(tree().add_float(*v));
  } else if (type == "f4") {
    if (const auto v = value(float{})) return push(tree().add_float(static_cast<double>(*v)));
  } else if (type == "i8") {
    if (const auto v = value(int64_t{})) return push(tree().add_int(*v));
  } else if (type == "i4") {
    if (const auto v = value(int32_t{})) return push(tree().add_int(*v));
  } else if (type == "b1") {
    if (const auto v = value(uint8_t{})) return push(tree().add_bool(*v != 0));
  } else {
    return push(args[1]);  // rarer types keep their bytes
  }
  return wrong();
}

}  // namespace

Result<Unpickled> unpickle(std::string_view bytes, const std::string& where,
                           const StorageResolver& resolve, const PickleOptions& options) {
  Machine machine(bytes, resolve, options);
  const Status status = machine.run();
  if (!status.ok()) return status.with_context(str_cat(where, ": byte ", machine.position()));
  return machine.take();
}

}  // namespace aerie::archive
