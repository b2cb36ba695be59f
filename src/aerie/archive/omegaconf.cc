#include "aerie/archive/omegaconf.h"

#include <cstdlib>

#include "aerie/archive/text.h"
#include "aerie/base/check.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

class Decoder {
 public:
  explicit Decoder(const NodeTree& tree) : tree_(tree) {}

  Result<config::Value> decode(NodeId id, const std::string& path, int depth) {
    // Shared nodes may be visited again and again: "billion laughs".
    if (depth > config::kMaxDepth || ++visits_ > kMaxVisits)
      return error(path, "is nested too deep or too large for a configuration");
    switch (tree_.kind(id)) {
      case NodeKind::kNone:
        return config::Value();
      case NodeKind::kBool:
        return config::Value(*tree_.as_bool(id));
      case NodeKind::kInt:
        return config::Value(*tree_.as_int(id));
      case NodeKind::kFloat:
        return config::Value(*tree_.as_number(id));
      case NodeKind::kString:
        return config::Value::from_text(std::string(tree_.text(id)));
      case NodeKind::kList:
      case NodeKind::kTuple:
        return list(id, path, depth);
      case NodeKind::kDict:
        return map(id, path, depth);
      case NodeKind::kObject:
        return object(id, path, depth);
      default:
        break;
    }
    return error(path, str_cat("is a ", node_kind_name(tree_.kind(id))));
  }

 private:
  static constexpr size_t kMaxVisits = 200000;

  Status error(const std::string& path, std::string_view why) const {
    return data_error(str_cat("configuration ", quoted(path.empty() ? "(top)" : path), " ", why));
  }
  Result<config::Value> list(NodeId id, const std::string& path, int depth) {
    config::List out;
    const std::vector<NodeId>& items = tree_.items(id);
    for (size_t i = 0; i < items.size(); ++i) {
      AERIE_ASSIGN_OR_RETURN(config::Value value,
                             decode(items[i], str_cat(path, "[", i, "]"), depth + 1));
      out.push_back(std::move(value));
    }
    return config::Value(std::move(out));
  }
  Result<config::Value> map(NodeId id, const std::string& path, int depth) {
    config::Map out;
    const std::vector<NodeId>& items = tree_.items(id);
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      config::MapEntry entry;
      if (tree_.is(items[i], NodeKind::kString)) {
        entry.key = tree_.text(items[i]);
      } else if (tree_.is(items[i], NodeKind::kInt)) {
        entry.key = str_cat(*tree_.as_int(items[i]));
        entry.key_kind = config::Value::Kind::kInt;
      } else {
        return error(path, str_cat("has a ", node_kind_name(tree_.kind(items[i])), " for a key"));
      }
      AERIE_ASSIGN_OR_RETURN(
          entry.value, decode(items[i + 1],
                              path.empty() ? entry.key : str_cat(path, ".", entry.key), depth + 1));
      out.set(std::move(entry));
    }
    return config::Value(std::move(out));
  }
  Result<config::Value> object(NodeId id, const std::string& path, int depth) {
    const std::string name = tree_.object_class(id);
    if (starts_with(name, "omegaconf.")) {
      const NodeId state = tree_.object_state(id);
      const bool container = ends_with(name, ".DictConfig") || ends_with(name, ".ListConfig");
      const NodeId content =
          state == kNoNode ? kNoNode : tree_.find(state, container ? "_content" : "_val");
      if (content != kNoNode) return decode(content, path, depth + 1);
      // As we write it: DictConfig(dict).
      const NodeId args = tree_.object_args(id);
      if (state == kNoNode && tree_.is(args, NodeKind::kTuple) && tree_.items(args).size() == 1)
        return decode(tree_.items(args)[0], path, depth + 1);
      return error(path, str_cat("is an empty ", quoted(name)));
    }
    // A dict with extras, such as Lightning's AttributeDict.
    const NodeId items = tree_.object_items(id);
    if (items != kNoNode) return decode(items, path, depth + 1);
    return error(path, str_cat("is an object of ", quoted(name)));
  }

  const NodeTree& tree_;
  size_t visits_ = 0;
};

}  // namespace

Result<config::Value> decode_omegaconf(const NodeTree& tree, NodeId id) {
  return Decoder(tree).decode(id, "", 0);
}

NodeId add_plain_value(NodeTree& tree, const config::Value& value) {
  using Kind = config::Value::Kind;
  switch (value.kind()) {
    case Kind::kNull:
      return tree.add_none();
    case Kind::kBool:
      return tree.add_bool(value.as_bool());
    case Kind::kInt:
      return tree.add_int(value.as_int());
    case Kind::kBigInt:
    case Kind::kFloat:
      return tree.add_float(value.as_float());
    case Kind::kString:
    case Kind::kMissing:
    case Kind::kInterpolation:
      return tree.add_string(value.as_string());
    case Kind::kList: {
      const NodeId list = tree.add_list();
      for (const config::Value& item : value.as_list()) {
        const bool fits = tree.append(list, add_plain_value(tree, item));
        AERIE_CHECK(fits, "a configuration is nested less deep than a tree of nodes");
      }
      return list;
    }
    case Kind::kMap:
      break;
  }
  const NodeId map = tree.add_dict();
  for (const config::MapEntry& entry : value.as_map()) {
    const NodeId key = entry.key_kind == Kind::kInt
                           ? tree.add_int(std::strtoll(entry.key.c_str(), nullptr, 10))
                           : tree.add_string(entry.key);
    const bool fits = tree.set(map, key, add_plain_value(tree, entry.value));
    AERIE_CHECK(fits, "a configuration is nested less deep than a tree of nodes");
  }
  return map;
}

NodeId add_dict_config(NodeTree& tree, const config::Value& map) {
  AERIE_CHECK(map.is_map(), "a DictConfig of a ", map.kind_name());
  const NodeId args = tree.add_container(NodeKind::kTuple);
  const bool fits = tree.append(args, add_plain_value(tree, map));
  AERIE_CHECK(fits, "a configuration is nested less deep than a tree of nodes");
  return tree.add_object(tree.add_global("omegaconf.dictconfig", "DictConfig"), args);
}

Result<config::Value> model_config_of(const LightningCheckpoint& checkpoint) {
  const auto where = [&](Status status) {
    return std::move(status).with_context(checkpoint.file.tensors.name());
  };
  if (checkpoint.hyper_parameters == kNoNode)
    return where(not_found("the checkpoint carries no model configuration"));
  // One DictConfig around all of it, or a dict with a DictConfig inside.
  auto all = decode_omegaconf(checkpoint.file.tree, checkpoint.hyper_parameters);
  if (!all.ok()) return where(all.status());
  config::Value* cfg = all->is_map() ? all->child("cfg") : nullptr;
  if (cfg == nullptr || !cfg->is_map())
    return where(not_found("the checkpoint's hyper-parameters hold no model configuration"));
  return std::move(*cfg);
}

}  // namespace aerie::archive
