#include "aerie/archive/any_archive.h"

#include <algorithm>
#include <cstring>

#include "aerie/archive/npy.h"
#include "aerie/archive/safetensors.h"
#include "aerie/archive/zip_reader.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/tar/tar_format.h"

namespace aerie::archive {
namespace {

Result<AnyArchive> open_torch(const SourcePtr& source) {
  AnyArchive out;
  AERIE_ASSIGN_OR_RETURN(TorchFile file, read_torch_file(source));
  if (file.tree.find(file.root, "state_dict") != kNoNode) {
    out.kind = FileKind::kLightning;
    AERIE_ASSIGN_OR_RETURN(out.lightning, as_lightning_checkpoint(std::move(file)));
    out.tensors = out.lightning->weights;
    return out;
  }
  out.kind = FileKind::kTorch;
  if (find_state_dict(file) != kNoNode) {
    AERIE_ASSIGN_OR_RETURN(out.tensors, weights_of(file));
  } else {
    out.tensors = file.tensors;
  }
  out.torch = std::move(file);
  return out;
}

// A zip is a torch file unless all of it is .npy members.
Result<bool> is_npz(const SourcePtr& source) {
  AERIE_ASSIGN_OR_RETURN(const ZipReader zip, ZipReader::open(source));
  for (const ZipEntry& entry : zip.entries())
    if (!ends_with(entry.name, ".npy")) return false;
  return !zip.entries().empty();
}

Result<AnyArchive> open_source(Env& env, const SourcePtr& source, const std::string& path) {
  char head[512] = {};
  const auto size = static_cast<size_t>(std::min<uint64_t>(source->size(), sizeof head));
  if (size == 0) return data_error("the file is empty").with_context(path);
  AERIE_RETURN_IF_ERROR(source->read(0, head, size));
  const std::string_view start(head, size);
  AnyArchive out;
  if (starts_with(start, "PK")) {
    AERIE_ASSIGN_OR_RETURN(const bool npz, is_npz(source));
    if (!npz) return open_torch(source);
    out.kind = FileKind::kNpz;
    AERIE_ASSIGN_OR_RETURN(out.tensors, read_npz(source));
    return out;
  }
  if (starts_with(start, "\x93NUMPY")) {
    out.kind = FileKind::kNpy;
    AERIE_ASSIGN_OR_RETURN(out.tensors, read_npy(source));
    return out;
  }
  const bool packed = tar::sniff_compression(reinterpret_cast<const uint8_t*>(head), size) !=
                      tar::Compression::kNone;
  if (packed || (size == sizeof head && start.substr(257, 5) == "ustar")) {
    out.kind = FileKind::kNemo;
    AERIE_ASSIGN_OR_RETURN(out.nemo, read_nemo(env, path));
    out.tensors = out.nemo->weights;
    return out;
  }
  uint64_t header_size = 0;
  if (size > sizeof header_size) std::memcpy(&header_size, head, sizeof header_size);
  // Also a damaged one: its own reader says best what is wrong with it.
  if ((size > sizeof header_size && head[8] == '{' && header_size <= kMaxSafetensorsHeader) ||
      ends_with(path, ".safetensors")) {
    out.kind = FileKind::kSafetensors;
    AERIE_ASSIGN_OR_RETURN(out.tensors, read_safetensors(source));
    return out;
  }
  if (ends_with(path, ".nemo")) {  // v7 tars have no magic
    out.kind = FileKind::kNemo;
    AERIE_ASSIGN_OR_RETURN(out.nemo, read_nemo(env, path));
    out.tensors = out.nemo->weights;
    return out;
  }
  if (head[0] == '\x80') return open_torch(source);  // explains itself: legacy or bare pickle
  return data_error("is neither a NeMo archive, a torch file, safetensors, .npy nor .npz")
      .with_context(path);
}

}  // namespace

const char* file_kind_name(FileKind kind) {
  switch (kind) {
    case FileKind::kNemo:
      return "NeMo archive";
    case FileKind::kLightning:
      return "Lightning checkpoint";
    case FileKind::kTorch:
      return "torch file";
    case FileKind::kSafetensors:
      return "safetensors";
    case FileKind::kCheckpoint:
      return "aerie checkpoint";
    case FileKind::kNpy:
      return "npy array";
    case FileKind::kNpz:
      return "npz arrays";
  }
  return "?";
}

Result<AnyArchive> open_any(Env& env, const std::string& path) {
  if (auto stat = env.stat(path); stat.ok() && stat->is_dir) {
    const std::string weights = join_path(path, "model.safetensors");
    if (!env.exists(weights))
      return data_error("is a folder, but not a checkpoint: it holds no model.safetensors")
          .with_context(path);
    AERIE_ASSIGN_OR_RETURN(AnyArchive archive, open_any(env, weights));
    archive.kind = FileKind::kCheckpoint;
    return archive;
  }
  AERIE_ASSIGN_OR_RETURN(const SourcePtr source, file_source(env, path));
  AERIE_ASSIGN_OR_RETURN(AnyArchive archive, open_source(env, source, path));
  archive.file_bytes = source->size();
  return archive;
}

Result<TensorArchive> open_weights(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(AnyArchive archive, open_any(env, path));
  return std::move(archive.tensors);
}

Result<TensorArchive> select_tensors(const TensorArchive& archive,
                                     const std::vector<std::string>& include,
                                     const std::vector<std::string>& exclude) {
  const auto contains_any = [](const std::string& name, const std::vector<std::string>& parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
  };
  std::vector<TensorInfo> chosen;
  for (const TensorInfo& info : archive.tensors()) {
    if (!include.empty() && !contains_any(info.name, include)) continue;
    if (!contains_any(info.name, exclude)) chosen.push_back(info);
  }
  return archive.with_tensors(std::move(chosen));
}

}  // namespace aerie::archive
