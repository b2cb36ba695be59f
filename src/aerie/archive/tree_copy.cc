#include "aerie/archive/tree_copy.h"

#include <optional>
#include <unordered_map>

#include "aerie/archive/pickle_globals.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

class Copier {
 public:
  Copier(const NodeTree& from, NodeTree& to, std::vector<std::string>& left_out)
      : from_(from), to_(to), left_out_(left_out) {}

  NodeId copy(NodeId id, const std::string& path, uint32_t depth) {
    if (const auto it = done_.find(id); it != done_.end()) {
      if (it->second == kNoNode) note(path, "a value inside itself");
      return it->second;
    }
    if (depth > NodeTree::kMaxDepth) return kNoNode;
    switch (from_.kind(id)) {
      case NodeKind::kNone:
        return to_.add_none();
      case NodeKind::kBool:
        return to_.add_bool(*from_.as_bool(id));
      case NodeKind::kInt:
        return to_.add_int(*from_.as_int(id));
      case NodeKind::kFloat:
        return to_.add_float(*from_.as_number(id));
      case NodeKind::kString:
      case NodeKind::kBytes:
      case NodeKind::kBigInt:
        return to_.add_text(from_.kind(id), from_.text(id));
      case NodeKind::kTensor:
        return done_[id] = to_.add_tensor(from_.tensor(id));
      case NodeKind::kDict:
      case NodeKind::kList:
      case NodeKind::kTuple:
        return container(id, path, depth);
      case NodeKind::kGlobal: {
        const std::string full(from_.text(id));
        const size_t dot = full.rfind('.');
        const std::string module = full.substr(0, dot), name = full.substr(dot + 1);
        if (classify_global(module, name).role == GlobalRole::kDType)
          return to_.add_global(module, name);
        return note(path, str_cat("the name ", full));
      }
      case NodeKind::kObject:
        return note(path, str_cat("an object of ", from_.object_class(id)));
      case NodeKind::kSet:
      case NodeKind::kStorage:
        break;
    }
    return note(path, str_cat("a ", node_kind_name(from_.kind(id))));
  }

 private:
  NodeId note(const std::string& path, const std::string& what) {
    if (left_out_.size() < 20) left_out_.push_back(str_cat(path, ": ", what));
    return kNoNode;
  }

  NodeId container(NodeId id, const std::string& path, uint32_t depth) {
    done_[id] = kNoNode;  // while it is being copied, it may not be met again
    const NodeKind kind = from_.kind(id);
    const NodeId out = to_.add_container(kind, from_.ordered(id));
    const std::vector<NodeId>& items = from_.items(id);
    const size_t step = kind == NodeKind::kDict ? 2 : 1;
    for (size_t i = 0; i + step <= items.size(); i += step) {
      std::string name = str_cat(i);
      if (step == 2) {
        const auto text = from_.as_string(items[i]);
        const auto number = from_.as_int(items[i]);
        name = text ? *text : number ? str_cat(*number) : "?";
      }
      std::string below = path.empty() ? name : str_cat(path, ".", name);
      if (below.size() > 512) below.resize(512);
      const NodeId value = copy(items[i + step - 1], below, depth + 1);
      if (value == kNoNode) continue;
      const NodeId key = step == 2 ? copy(items[i], below, depth + 1) : value;
      if (key == kNoNode) continue;
      if (!(step == 2 ? to_.set(out, key, value) : to_.append(out, value)))
        (void)note(below, "nested too deep");
    }
    return done_[id] = out;
  }

  const NodeTree& from_;
  NodeTree& to_;
  std::vector<std::string>& left_out_;
  std::unordered_map<NodeId, NodeId> done_;  // containers and tensors
};

}  // namespace

PlainCopy copy_plain(const NodeTree& from, NodeId root, NodeTree& to) {
  PlainCopy out;
  out.root = Copier(from, to, out.left_out).copy(root, "", 0);
  return out;
}

}  // namespace aerie::archive
