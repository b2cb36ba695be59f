#include "aerie/archive/legacy_torch_file.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

// The pickle of 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyMagic{"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.",
                                        15};
constexpr int64_t kProtocol = 1001;
// No element of a tensor is larger.
constexpr uint64_t kMaxElement = 16;

Result<StorageRef> no_storage(std::string_view, uint64_t) {
  return data_error("refers to a storage where none belongs");
}

// One pickle after the other.
class Pickles {
 public:
  Pickles(std::string_view bytes, std::string name, const PickleOptions& options)
      : rest_(bytes), name_(std::move(name)), options_(options) {}

  Result<Unpickled> next(const char* what, const StorageResolver& resolve = no_storage) {
    size_t used = 0;
    auto out = unpickle_first(rest_, str_cat(name_, ": ", what), resolve, options_, used);
    if (out.ok()) {
      rest_.remove_prefix(used);
      at_ += used;
    }
    return out;
  }
  uint64_t at() const { return at_; }

 private:
  std::string_view rest_;
  uint64_t at_ = 0;
  std::string name_;
  PickleOptions options_;
};

// Storages as the object refers to them, before it is known where they lie.
struct Referred {
  std::unordered_map<std::string, uint32_t> index;
  std::vector<uint64_t> bytes;
};

// Cuts the storages out of what follows the pickles.
Result<std::vector<SourcePtr>> cut_storages(const SourcePtr& source, uint64_t at,
                                            const Unpickled& keys, const Referred& referred) {
  const auto error = [&](std::string message) {
    return data_error(std::move(message)).with_context(source->name());
  };
  if (!keys.tree.is(keys.root, NodeKind::kList)) return error("its list of storages is none");
  std::vector<SourcePtr> storages(referred.bytes.size());
  for (const NodeId item : keys.tree.items(keys.root)) {
    const auto key = keys.tree.as_string(item);
    if (!key) return error("the key of a storage is not a string");
    const auto found = referred.index.find(*key);
    if (found == referred.index.end())
      return error(str_cat("storage ", quoted(*key), " belongs to nothing"));
    if (storages[found->second] != nullptr)
      return error(str_cat("storage ", quoted(*key), " is there twice"));
    uint64_t count = 0;
    if (source->size() - at < sizeof count) return error("ends before its storages do");
    AERIE_RETURN_IF_ERROR(source->read(at, &count, sizeof count));
    at += sizeof count;
    const uint64_t bytes = referred.bytes[found->second];
    const bool fits =
        bytes == 0 ? count == 0 : count > 0 && bytes % count == 0 && bytes / count <= kMaxElement;
    if (!fits)
      return error(str_cat("storage ", quoted(*key), " holds ", count,
                           " elements, its tensors want ", bytes, " bytes"));
    if (source->size() - at < bytes)
      return error(str_cat("storage ", quoted(*key), " wants ", bytes, " bytes, ",
                           source->size() - at, " are left: the file was cut short"));
    AERIE_ASSIGN_OR_RETURN(storages[found->second],
                           slice_source(source, at, bytes, source->name()));
    at += bytes;
  }
  for (const auto& [key, index] : referred.index)
    if (storages[index] == nullptr) return error(str_cat("storage ", quoted(key), " is missing"));
  if (at != source->size()) return error("has bytes behind its end");
  return storages;
}

}  // namespace

Result<bool> is_legacy_torch_file(const ByteSource& source) {
  char head[kLegacyMagic.size()];
  if (source.size() < sizeof head) return false;
  AERIE_RETURN_IF_ERROR(source.read(0, head, sizeof head));
  return std::string_view(head, sizeof head) == kLegacyMagic;
}

Result<LegacyTorchFile> read_legacy_torch_file(const SourcePtr& source,
                                               const PickleOptions& options) {
  // The pickles are small; what lies behind them is read when tensors are asked for.
  std::string head(
      static_cast<size_t>(std::min<uint64_t>(source->size(), 2 * options.limits.max_bytes)), '\0');
  AERIE_RETURN_IF_ERROR(source->read(0, head.data(), head.size()));
  Pickles pickles(head, source->name(), options);
  AERIE_RETURN_IF_ERROR(pickles.next("magic number").status());
  AERIE_ASSIGN_OR_RETURN(const Unpickled protocol, pickles.next("protocol"));
  if (protocol.tree.as_int(protocol.root) != kProtocol)
    return unsupported(str_cat("an unknown protocol of torch's format from before 1.6"))
        .with_context(source->name())
        .with_hint("load it in Python and torch.save it again");
  AERIE_ASSIGN_OR_RETURN(const Unpickled machine, pickles.next("machine"));
  if (machine.tree.as_bool(machine.tree.find(machine.root, "little_endian")) == false)
    return unsupported("written on a big-endian machine, only little-endian ones are read")
        .with_context(source->name());

  Referred referred;
  const StorageResolver refer = [&](std::string_view key, uint64_t bytes) -> Result<StorageRef> {
    const auto index = static_cast<uint32_t>(referred.bytes.size());
    const auto [place, fresh] = referred.index.emplace(key, index);
    if (fresh) {
      // Not more than a whole file can hold, so that tensors are bounded before it is cut up.
      if (bytes > source->size()) return data_error("a storage is larger than the file");
      referred.bytes.push_back(bytes);
    }
    return StorageRef{place->second, referred.bytes[place->second]};
  };
  LegacyTorchFile out;
  AERIE_ASSIGN_OR_RETURN(out.unpickled, pickles.next("object", refer));
  AERIE_ASSIGN_OR_RETURN(const Unpickled keys, pickles.next("keys"));
  AERIE_ASSIGN_OR_RETURN(out.storages, cut_storages(source, pickles.at(), keys, referred));
  return out;
}

}  // namespace aerie::archive
