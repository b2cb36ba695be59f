#include "aerie/archive/nemo.h"

#include <algorithm>

#include "aerie/archive/text.h"
#include "aerie/archive/torch_file.h"
#include "aerie/base/strings.h"
#include "aerie/tar/tar_stream.h"
#include "aerie/tar/tar_writer.h"

namespace aerie::archive {
namespace {

constexpr std::string_view kConfig = "model_config.yaml", kWeights = "model_weights.ckpt";
constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr size_t kMaxMembers = 100000;
constexpr size_t kChunk = size_t{1} << 20;

tar::TarOptions tar_options() {
  tar::TarOptions options;
  options.max_member_bytes = uint64_t{1} << 50;  // the file's own size is the bound
  options.max_name_bytes = 1024;
  options.max_expansion = 16;
  return options;
}

// The current member of a compressed stream. Memory grows with the bytes that really arrive.
Result<SourcePtr> unpack(tar::TarStream& stream, std::string name) {
  std::vector<std::string> chunks;
  while (true) {
    std::string chunk(kChunk, '\0');
    size_t filled = 0;
    while (filled < kChunk) {
      AERIE_ASSIGN_OR_RETURN(
          const size_t got,
          stream.read_some(reinterpret_cast<uint8_t*>(chunk.data()) + filled, kChunk - filled));
      if (got == 0) break;
      filled += got;
    }
    chunk.resize(filled);
    if (filled < kChunk) chunk.shrink_to_fit();
    if (filled > 0) chunks.push_back(std::move(chunk));
    if (filled < kChunk) return chunked_source(std::move(chunks), kChunk, std::move(name));
  }
}

// `plain` gives the bytes of an uncompressed archive.
Result<NemoArchive> read(tar::TarStream& stream, const SourcePtr& plain, const std::string& name) {
  NemoArchive archive;
  archive.compressed = stream.compression() != tar::Compression::kNone;
  SourcePtr config, weights;
  while (true) {
    AERIE_ASSIGN_OR_RETURN(const std::optional<tar::TarMember> member, stream.next());
    if (!member) break;
    if (archive.members.size() == kMaxMembers)
      return data_error(str_cat("holds more than ", kMaxMembers, " members")).with_context(name);
    archive.members.push_back({member->name, member->size});
    SourcePtr* slot = member->name == kConfig    ? &config
                      : member->name == kWeights ? &weights
                                                 : nullptr;
    if (slot == nullptr) continue;
    const std::string member_name = str_cat(name, ": ", member->name);
    if (archive.compressed) {
      AERIE_ASSIGN_OR_RETURN(*slot, unpack(stream, member_name));
    } else {
      AERIE_ASSIGN_OR_RETURN(*slot, slice_source(plain, member->offset, member->size, member_name));
    }
  }
  if (config == nullptr || weights == nullptr) {
    Status status =
        data_error(str_cat("not a NeMo archive: ", config ? kWeights : kConfig, " is missing"))
            .with_context(name);
    for (const NemoMember& member : archive.members) {
      if (ends_with(member.name, str_cat("/", kWeights)) ||
          starts_with(member.name, "model_weights/"))
        return std::move(status).with_hint(
            "sharded or distributed NeMo checkpoints are not read; merge them with NeMo first");
    }
    return status;
  }
  AERIE_ASSIGN_OR_RETURN(archive.config_yaml, read_all(*config, kMaxConfigBytes));
  if (!is_utf8(archive.config_yaml))
    return data_error("is not UTF-8 text").with_context(config->name());
  PickleOptions options;
  options.foreign = ForeignObjects::kRefuse;
  AERIE_ASSIGN_OR_RETURN(const TorchFile file, read_torch_file(weights, options));
  AERIE_ASSIGN_OR_RETURN(archive.weights, weights_of(file));
  return archive;
}

std::span<const uint8_t> as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Result<NemoArchive> read_nemo(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const SourcePtr plain, file_source(env, path));
  AERIE_ASSIGN_OR_RETURN(const auto stream, tar::TarStream::open(path, tar_options()));
  return read(*stream, plain, path);
}

Result<NemoArchive> read_nemo(std::span<const uint8_t> bytes, const std::string& name) {
  AERIE_ASSIGN_OR_RETURN(const auto stream,
                         tar::TarStream::open_memory(bytes, name, tar_options()));
  return read(*stream, borrowed_source(bytes.data(), bytes.size(), name), name);
}

Status write_nemo(const Sink& sink, const std::string& config_yaml,
                  const std::vector<OutTensor>& tensors, const ProgressFn& progress) {
  if (!is_utf8(config_yaml)) return invalid_argument("model_config.yaml would not be UTF-8 text");
  AERIE_RETURN_IF_ERROR(check_out_tensors(tensors));
  NodeTree tree;
  const NodeId root = add_state_dict(tree, tensors);
  AERIE_ASSIGN_OR_RETURN(const TorchWriter weights,
                         TorchWriter::make(tree, root, tensors, "model_weights"));
  tar::TarWriter out([&](std::span<const uint8_t> bytes) {
    return sink({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  });
  AERIE_RETURN_IF_ERROR(out.add_directory("./"));
  AERIE_RETURN_IF_ERROR(out.add(str_cat("./", kConfig), as_bytes(config_yaml)));
  AERIE_RETURN_IF_ERROR(out.begin(str_cat("./", kWeights), weights.size()));
  AERIE_RETURN_IF_ERROR(
      weights.write([&](std::string_view bytes) { return out.write(as_bytes(bytes)); }, progress));
  AERIE_RETURN_IF_ERROR(out.end());
  return out.finish();
}

Status write_nemo(Env& env, const std::string& path, const std::string& config_yaml,
                  const std::vector<OutTensor>& tensors, const ProgressFn& progress) {
  return write_atomically(env, path, [&](const Sink& sink) {
    return write_nemo(sink, config_yaml, tensors, progress);
  });
}

}  // namespace aerie::archive
