#include "aerie/base/env.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <sys/mman.h>
#include <unistd.h>

#include "aerie/base/path.h"

namespace aerie {

namespace {

constexpr size_t kChunk = 1 << 20;

// A name beside `path` that no other process or thread picks: pid, time and a counter.
std::string temporary_name(const std::string& path) {
  static std::atomic<uint64_t> counter{0};
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  return join_path(parent_path(path),
                   str_cat(".", base_name(path), ".tmp-", static_cast<int64_t>(::getpid()), "-",
                           static_cast<uint64_t>(now) & 0xffffffffffull, "-", counter++));
}

}  // namespace

Result<size_t> RandomAccessFile::read_at(uint64_t offset, void* out, size_t size) const {
  size_t done = 0;
  while (done < size) {
    AERIE_ASSIGN_OR_RETURN(const size_t got,
                           read_some(offset + done, static_cast<char*>(out) + done, size - done));
    if (got == 0) break;
    done += got;
  }
  return done;
}

Status RandomAccessFile::read_exact_at(uint64_t offset, void* out, size_t size) const {
  AERIE_ASSIGN_OR_RETURN(const size_t got, read_at(offset, out, size));
  if (got == size) return ok_status();
  return data_error(str_cat("'", path(), "' ends after ", offset + got, " bytes, ", size,
                            " bytes at offset ", offset, " were expected"))
      .with_hint("the file is cut short; copy or create it again");
}

void MappedFile::advise(Advice advice) const {
  if (size_ == 0) return;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(data_);
  if (address % page != 0) return;  // not a mapping of the operating system
  const int value = advice == Advice::kSequential ? MADV_SEQUENTIAL
                    : advice == Advice::kRandom   ? MADV_RANDOM
                                                  : MADV_WILLNEED;
  (void)::madvise(reinterpret_cast<void*>(address), size_, value);
}

bool Env::exists(const std::string& path) {
  return stat(path).ok();
}

Result<std::string> Env::read_file(const std::string& path, uint64_t max_size) {
  AERIE_ASSIGN_OR_RETURN(const auto file, open_random_access(path));
  const auto too_big = [&] {
    return data_error(str_cat("'", path, "' is larger than the ", max_size, " bytes allowed here"));
  };
  if (file->size() > max_size) return too_big();
  // Files of /proc say 0 and others may have grown: read to the end, not to the size.
  std::string out(static_cast<size_t>(file->size()), '\0');
  AERIE_ASSIGN_OR_RETURN(size_t have, file->read_at(0, out.data(), out.size()));
  while (have == out.size()) {
    out.resize(have + std::clamp<size_t>(have, 4096, kChunk));
    AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(have, &out[have], out.size() - have));
    have += got;
    if (have > max_size) return too_big();
  }
  out.resize(have);
  return out;
}

Result<std::string> Env::read_range(const std::string& path, uint64_t offset, size_t size) {
  AERIE_ASSIGN_OR_RETURN(const auto file, open_random_access(path));
  // The caller's size may come from a damaged index: never allocate more than the file can fill.
  const uint64_t there = offset < file->size() ? file->size() - offset : 0;
  if (there < size) {
    return data_error(str_cat("'", path, "' has ", file->size(), " bytes, ", size,
                              " bytes at offset ", offset, " were expected"))
        .with_hint("the file is cut short; copy or create it again");
  }
  std::string out(size, '\0');
  AERIE_RETURN_IF_ERROR(file->read_exact_at(offset, out.data(), size));
  return out;
}

Status Env::write_file(const std::string& path, std::string_view bytes) {
  AERIE_ASSIGN_OR_RETURN(const auto file, open_writable(path, WriteMode::kTruncate));
  AERIE_RETURN_IF_ERROR(file->append(bytes));
  return file->close();
}

Status Env::atomic_replace(const std::string& path, std::string_view bytes) {
  const std::string temporary = temporary_name(path);
  const auto write = [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(const auto file, open_writable(temporary, WriteMode::kCreateNew));
    AERIE_RETURN_IF_ERROR(file->append(bytes));
    AERIE_RETURN_IF_ERROR(file->sync());
    AERIE_RETURN_IF_ERROR(file->close());
    return rename(temporary, path);
  };
  if (Status status = write(); !status.ok()) {
    (void)remove_file(temporary);
    return std::move(status).with_context(str_cat("replacing '", path, "'"));
  }
  return fsync_dir(parent_path(path));
}

Status Env::create_dirs(const std::string& path) {
  if (path.empty()) return ok_status();
  if (auto there = stat(path); there.ok() && there->is_dir) return ok_status();
  const std::string parent = parent_path(path);
  if (parent != path && parent != ".") AERIE_RETURN_IF_ERROR(create_dirs(parent));
  return create_dir(path);
}

Status Env::remove_tree(const std::string& path) {
  // Removing it as a file first is what keeps a link to a folder from being followed.
  Status as_file = remove_file(path);
  if (as_file.ok() || as_file.code() == StatusCode::kNotFound) return ok_status();
  auto entries = list_dir(path);
  if (!entries.ok()) return as_file;
  for (const DirEntry& entry : *entries) {
    const std::string child = join_path(path, entry.name);
    AERIE_RETURN_IF_ERROR(entry.is_dir ? remove_tree(child) : remove_file(child));
  }
  return remove_dir(path);
}

Status Env::copy_file(const std::string& from, const std::string& to) {
  AERIE_ASSIGN_OR_RETURN(const auto in, open_random_access(from));
  AERIE_ASSIGN_OR_RETURN(const auto out, open_writable(to, WriteMode::kTruncate));
  std::vector<char> buffer(kChunk);
  for (uint64_t offset = 0;;) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, in->read_at(offset, buffer.data(), buffer.size()));
    if (got == 0) break;
    AERIE_RETURN_IF_ERROR(out->append(buffer.data(), got));
    offset += got;
  }
  return out->close();
}

}  // namespace aerie
