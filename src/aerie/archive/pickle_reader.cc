#include "aerie/archive/pickle_reader.h"

#include <bit>
#include <cstdio>

#include "aerie/archive/pickle_machine.h"
#include "aerie/archive/pickle_ops.h"

namespace aerie::archive {
namespace detail {

Status Machine::run() {
  AERIE_RETURN_IF_ERROR(run_to_stop());
  if (at_ != bytes_.size()) return data_error("has bytes behind its end");
  return ok_status();
}

Status Machine::run_to_stop() {
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

}  // namespace detail

Result<Unpickled> unpickle(std::string_view bytes, const std::string& where,
                           const StorageResolver& resolve, const PickleOptions& options) {
  detail::Machine machine(bytes, resolve, options);
  const Status status = machine.run();
  if (!status.ok()) return status.with_context(str_cat(where, ": byte ", machine.position()));
  return machine.take();
}

Result<Unpickled> unpickle_first(std::string_view bytes, const std::string& where,
                                 const StorageResolver& resolve, const PickleOptions& options,
                                 size_t& used) {
  detail::Machine machine(bytes.substr(0, options.limits.max_bytes), resolve, options);
  const Status status = machine.run_to_stop();
  if (!status.ok()) return status.with_context(str_cat(where, ": byte ", machine.position()));
  used = machine.used();
  return machine.take();
}

}  // namespace aerie::archive
