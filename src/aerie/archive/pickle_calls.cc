// What the unpickler makes of calls: dicts, tensors, storages, scalars, and opaque records of all
// else.
#include <cstring>

#include "aerie/archive/pickle_machine.h"

namespace aerie::archive::detail {

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
  // ('storage', type, key, location, numel); old files add a sixth, None since torch 0.4.
  if (parts.size() < 5 || parts.size() > 6) return bad("does not have five parts");
  if (parts.size() == 6 && !tree().is(parts[5], NodeKind::kNone))
    return bad("is a view of another");
  if (tree().as_string(parts[0]) != "storage") return bad("is of an unknown kind");
  const GlobalInfo type = role_of(parts[1]);
  if (type.role != GlobalRole::kStorage && type.role != GlobalRole::kUntypedStorage)
    return bad(str_cat("has ", describe(parts[1]), " for its type"));
  const auto key = tree().as_string(parts[2]);
  if (!key) return bad("has no key");
  const auto count = tree().is(parts[4], NodeKind::kInt) ? tree().as_int(parts[4]) : std::nullopt;
  if (!count || *count < 0) return bad("has no size");
  Storage storage;
  uint64_t element = 1;
  if (type.role == GlobalRole::kStorage) {
    storage.dtype = type.dtype;
    element = dtype_size(type.dtype);
  }
  if (static_cast<uint64_t>(*count) > UINT64_MAX / 2 / element) return bad("has no possible size");
  AERIE_ASSIGN_OR_RETURN(const StorageRef ref,
                         resolve_(*key, static_cast<uint64_t>(*count) * element));
  storage.ref = ref;
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

Status Machine::push_tensor(const std::vector<NodeId>& args, std::optional<Dtype> dtype) {
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

}  // namespace aerie::archive::detail
