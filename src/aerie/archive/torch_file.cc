#include "aerie/archive/torch_file.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "aerie/archive/legacy_torch_file.h"
#include "aerie/archive/text.h"
#include "aerie/archive/zip_reader.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

Status not_torch(const ByteSource& source) {
  char head[262] = {};
  const auto size = static_cast<size_t>(std::min<uint64_t>(source.size(), sizeof head));
  AERIE_RETURN_IF_ERROR(source.read(0, head, size));
  const std::string_view start(head, size);
  if (starts_with(start, "\x80"))
    return data_error("a bare pickle, not a file of torch.save").with_context(source.name());
  if (size == sizeof head && start.substr(257, 5) == "ustar")
    return data_error("a tar archive, not a file of torch.save")
        .with_context(source.name())
        .with_hint("give it the extension .nemo if it is a NeMo archive");
  return ok_status();
}

// Gives every tensor the path that leads to it first.
class Namer {
 public:
  Namer(const NodeTree& tree, std::vector<TensorInfo>& tensors) : tree_(tree), tensors_(tensors) {}

  void run(NodeId root) {
    walk(root, "", 0);
    std::unordered_set<std::string> used;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      std::string& name = tensors_[i].name;
      // Tensors that hang in foreign objects or nowhere; and keys with dots that look like paths.
      if (name.empty()) name = str_cat("#", i);
      if (!used.insert(name).second) {
        name += str_cat("#", i);
        used.insert(name);
      }
    }
  }

 private:
  // Long keys are not repeated down a deep tree.
  static constexpr size_t kMaxPath = 1024;
  void walk(NodeId id, const std::string& path, uint32_t depth) {
    if (depth > NodeTree::kMaxDepth || path.size() > kMaxPath) return;
    switch (tree_.kind(id)) {
      case NodeKind::kTensor: {
        std::string& name = tensors_[tree_.tensor(id)].name;
        if (name.empty()) name = path.empty() ? "tensor" : path;
        return;
      }
      case NodeKind::kDict:
      case NodeKind::kList:
      case NodeKind::kTuple:
      case NodeKind::kSet:
        break;
      case NodeKind::kObject:
        if (tree_.object_items(id) != kNoNode) walk(tree_.object_items(id), path, depth + 1);
        return;
      default:
        return;
    }
    if (!seen_.insert(id).second) return;
    const std::vector<NodeId>& items = tree_.items(id);
    const bool dict = tree_.kind(id) == NodeKind::kDict;
    for (size_t i = 0; i < items.size(); ++i) {
      std::string key = str_cat(i);
      if (dict) {
        const NodeId node = items[i++];
        if (i == items.size()) return;
        if (tree_.is(node, NodeKind::kString)) {
          key = tree_.text(node);
        } else if (const auto number = tree_.as_int(node)) {
          key = str_cat(*number);
        } else {
          key.assign(1, '?');
        }
      }
      walk(items[i], path.empty() ? key : str_cat(path, ".", key), depth + 1);
    }
  }

  const NodeTree& tree_;
  std::vector<TensorInfo>& tensors_;
  std::unordered_set<NodeId> seen_;
};

Result<TorchFile> torch_file_of(Unpickled unpickled, std::vector<SourcePtr> storages,
                                const std::string& name) {
  TorchFile file;
  file.tree = std::move(unpickled.tree);
  file.root = unpickled.root;
  Namer(file.tree, unpickled.tensors).run(file.root);
  AERIE_ASSIGN_OR_RETURN(
      file.tensors, TensorArchive::make(name, std::move(storages), std::move(unpickled.tensors)));
  return file;
}

}  // namespace

const TensorInfo* TorchFile::tensor(NodeId id) const {
  return tree.is(id, NodeKind::kTensor) ? &tensors.tensors()[tree.tensor(id)] : nullptr;
}

Result<TorchFile> read_torch_file(SourcePtr source, const PickleOptions& options) {
  AERIE_ASSIGN_OR_RETURN(const bool legacy, is_legacy_torch_file(*source));
  if (legacy) {
    AERIE_ASSIGN_OR_RETURN(LegacyTorchFile parts, read_legacy_torch_file(source, options));
    return torch_file_of(std::move(parts.unpickled), std::move(parts.storages), source->name());
  }
  auto opened = ZipReader::open(source);
  if (!opened.ok()) {
    AERIE_RETURN_IF_ERROR(not_torch(*source));
    return opened.status();
  }
  const ZipReader& zip = *opened;
  const auto error = [&](std::string message) {
    return data_error(std::move(message)).with_context(source->name());
  };
  const ZipEntry* pickle = nullptr;
  std::string prefix;
  for (const ZipEntry& entry : zip.entries()) {
    const size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash) != "/data.pkl") continue;
    if (pickle != nullptr) return error("two data.pkl: not one file of torch.save");
    pickle = &entry;
    prefix = entry.name.substr(0, slash + 1);
  }
  if (pickle == nullptr) return error("a zip archive without data.pkl: not a file of torch.save");
  if (zip.find(prefix + "constants.pkl") != nullptr)
    return unsupported("a TorchScript archive, not a checkpoint")
        .with_context(source->name())
        .with_hint("save the state_dict with torch.save instead");
  if (const ZipEntry* order = zip.find(prefix + "byteorder")) {
    AERIE_ASSIGN_OR_RETURN(const std::string text, zip.read(*order, 64));
    if (text != "little")
      return unsupported(str_cat("written with byte order ", quoted(text), ", only little is read"))
          .with_context(source->name());
  }

  std::vector<SourcePtr> storages;
  std::unordered_map<std::string, uint32_t> by_key;
  const StorageResolver resolve = [&](std::string_view key, uint64_t) -> Result<StorageRef> {
    const auto known = by_key.find(std::string(key));
    if (known != by_key.end()) return StorageRef{known->second, storages[known->second]->size()};
    const ZipEntry* entry = zip.find(str_cat(prefix, "data/", key));
    if (entry == nullptr) return data_error(str_cat("storage ", quoted(key), " is missing"));
    auto storage = zip.open_entry(*entry);
    if (!storage.ok())
      return data_error(storage.status().message()).with_hint(storage.status().hint());
    const auto index = static_cast<uint32_t>(storages.size());
    storages.push_back(std::move(storage).value());
    by_key.emplace(key, index);
    return StorageRef{index, storages.back()->size()};
  };
  AERIE_ASSIGN_OR_RETURN(const std::string bytes, zip.read(*pickle, options.limits.max_bytes));
  AERIE_ASSIGN_OR_RETURN(
      Unpickled unpickled,
      unpickle(bytes, str_cat(source->name(), ": ", printable(pickle->name)), resolve, options));
  return torch_file_of(std::move(unpickled), std::move(storages), source->name());
}

Result<TensorArchive> state_dict_of(const TorchFile& file, NodeId dict) {
  const NodeTree& tree = file.tree;
  const auto error = [&](std::string message) {
    return data_error(std::move(message)).with_context(file.tensors.name());
  };
  if (tree.is(dict, NodeKind::kObject)) dict = tree.object_items(dict);
  if (!tree.is(dict, NodeKind::kDict)) return error("its state_dict is not a dict");
  const std::vector<NodeId>& items = tree.items(dict);
  std::vector<TensorInfo> tensors;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto name = tree.as_string(items[i]);
    if (!name)
      return error(
          str_cat("its state_dict has a ", node_kind_name(tree.kind(items[i])), " for a name"));
    const TensorInfo* info = file.tensor(items[i + 1]);
    if (info == nullptr) {
      if (ends_with(*name, "_extra_state")) continue;
      const NodeId value = items[i + 1];
      return error(str_cat("state_dict entry ", quoted(*name), " is not a tensor but ",
                           tree.is(value, NodeKind::kObject)
                               ? str_cat("an object of ", quoted(tree.object_class(value)))
                               : str_cat("a ", node_kind_name(tree.kind(value)))));
    }
    tensors.push_back(*info);
    tensors.back().name = *name;
  }
  return file.tensors.with_tensors(std::move(tensors));
}

NodeId find_state_dict(const TorchFile& file) {
  const NodeTree& tree = file.tree;
  for (const char* key : {"state_dict", "model_state_dict", "model"}) {
    const NodeId node = tree.find(file.root, key);
    if (tree.is(node, NodeKind::kDict) || tree.is(node, NodeKind::kObject)) return node;
  }
  if (!tree.is(file.root, NodeKind::kDict)) return kNoNode;
  // Nothing but tensors, or as good as.
  for (const NodeId item : tree.items(file.root))
    if (tree.is(item, NodeKind::kTensor)) return file.root;
  return tree.items(file.root).empty() ? file.root : kNoNode;
}

Result<TensorArchive> weights_of(const TorchFile& file) {
  const NodeId dict = find_state_dict(file);
  if (dict == kNoNode)
    return data_error("holds no state_dict")
        .with_context(file.tensors.name())
        .with_hint("`aerie inspect` shows what it holds");
  return state_dict_of(file, dict);
}

}  // namespace aerie::archive
