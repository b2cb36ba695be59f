#include "aerie/archive/tensor_writer.h"

#include <atomic>
#include <chrono>
#include <unistd.h>
#include <unordered_set>

#include "aerie/archive/text.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"

namespace aerie::archive {

uint64_t OutTensor::numel() const {
  uint64_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<uint64_t>(dim);
  return count;
}

Status OutTensor::emit(const Sink& consume) const {
  const uint64_t bytes = nbytes();
  if (bytes == 0) return ok_status();
  if (data != nullptr) return consume({static_cast<const char*>(data), static_cast<size_t>(bytes)});
  AERIE_CHECK(fill != nullptr, "tensor '", name, "' has neither data nor a way to get it");
  std::string buffer(static_cast<size_t>(bytes), '\0');
  AERIE_RETURN_IF_ERROR(fill(buffer.data(), bytes));
  return consume(buffer);
}

std::vector<OutTensor> out_tensors(const TensorArchive& archive) {
  std::vector<OutTensor> out;
  out.reserve(archive.tensors().size());
  for (const TensorInfo& info : archive.tensors()) {
    OutTensor tensor;
    tensor.name = info.name;
    tensor.dtype = info.dtype;
    tensor.shape = info.shape;
    tensor.fill = [&archive, &info](void* to, uint64_t bytes) {
      return archive.read(info, to, bytes);
    };
    out.push_back(std::move(tensor));
  }
  return out;
}

Status check_out_tensors(const std::vector<OutTensor>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const OutTensor& tensor : tensors) {
    if (tensor.name.empty() || !is_utf8(tensor.name))
      return invalid_argument(str_cat("cannot write a tensor named ", quoted(tensor.name)));
    if (!names.insert(tensor.name).second)
      return invalid_argument(str_cat("two tensors are named ", quoted(tensor.name)));
    auto numel = checked_numel(tensor.shape);
    if (!numel.ok()) return numel.status().with_context(str_cat("tensor ", quoted(tensor.name)));
  }
  return ok_status();
}

Status write_atomically(Env& env, const std::string& path,
                        const std::function<Status(const Sink&)>& write) {
  static std::atomic<uint64_t> counter{0};
  // Process, time and a counter: a name that no one else picks and no crashed run has left behind.
  const auto now =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const std::string temporary =
      join_path(parent_path(path), str_cat(".", base_name(path), ".tmp-", ::getpid(), "-",
                                           now & 0xffffffffffull, "-", counter.fetch_add(1)));
  const auto run = [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(const auto file, env.open_writable(temporary, WriteMode::kCreateNew));
    AERIE_RETURN_IF_ERROR(write([&](std::string_view bytes) { return file->append(bytes); }));
    AERIE_RETURN_IF_ERROR(file->sync());
    AERIE_RETURN_IF_ERROR(file->close());
    return env.rename(temporary, path);
  };
  if (Status status = run(); !status.ok()) {
    (void)env.remove_file(temporary);
    return std::move(status).with_context(str_cat("writing '", path, "'"));
  }
  return env.fsync_dir(parent_path(path));
}

}  // namespace aerie::archive
