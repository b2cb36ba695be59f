#include "aerie/base/testing/mem_env.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "aerie/base/path.h"

namespace aerie {

namespace {

// Bytes of one file; lives on after its name is removed as long as someone has it open.
struct MemFile {
  mutable std::mutex mutex;
  std::string bytes;
  int64_t mtime_ns = 0;
};

struct Node {
  std::shared_ptr<MemFile> file;  // null: a folder
  bool is_dir() const { return file == nullptr; }
};

Status mem_error(const char* what, const std::string& path, int error_number) {
  return errno_error(str_cat("cannot ", what, " '", path, "'"), error_number);
}

// One spelling per name: absolute, no doubled or trailing slashes, no "." parts.
std::string rooted(const std::string& path) {
  std::string out;
  for (const std::string& part : split(path, '/'))
    if (!part.empty() && part != ".") out += "/" + part;
  return out.empty() ? "/" : out;
}

class MemRandomAccessFile final : public RandomAccessFile {
 public:
  MemRandomAccessFile(std::string path, std::shared_ptr<MemFile> file)
      : RandomAccessFile(std::move(path)), file_(std::move(file)), size_(file_->bytes.size()) {}
  uint64_t size() const override { return size_; }

 protected:
  Result<size_t> read_some(uint64_t offset, void* out, size_t size) const override {
    const std::lock_guard lock(file_->mutex);
    if (offset >= file_->bytes.size()) return size_t{0};
    const size_t count = std::min(size, file_->bytes.size() - static_cast<size_t>(offset));
    std::memcpy(out, file_->bytes.data() + offset, count);
    return count;
  }

 private:
  std::shared_ptr<MemFile> file_;
  uint64_t size_;
};

class MemWritableFile final : public WritableFile {
 public:
  MemWritableFile(std::string path, std::shared_ptr<MemFile> file, Clock& clock)
      : path_(std::move(path)), file_(std::move(file)), clock_(clock) {}

  Status append(std::string_view bytes) override {
    if (closed_) return io_error(str_cat("'", path_, "' is closed already"));
    const std::lock_guard lock(file_->mutex);
    file_->bytes.append(bytes);
    file_->mtime_ns = clock_.wall_ns();
    return ok_status();
  }
  Status flush() override {
    if (closed_) return io_error(str_cat("'", path_, "' is closed already"));
    return ok_status();
  }
  Status sync() override { return flush(); }
  Status close() override {
    closed_ = true;
    return ok_status();
  }
  uint64_t size() const override {
    const std::lock_guard lock(file_->mutex);
    return file_->bytes.size();
  }

 private:
  std::string path_;
  std::shared_ptr<MemFile> file_;
  Clock& clock_;
  bool closed_ = false;
};

class MemEnv final : public Env {
 public:
  explicit MemEnv(Clock& clock) : clock_(clock) { nodes_["/"] = Node{}; }

  Result<std::unique_ptr<RandomAccessFile>> open_random_access(const std::string& path) override {
    AERIE_ASSIGN_OR_RETURN(auto file, find_file(path));
    return std::unique_ptr<RandomAccessFile>(
        std::make_unique<MemRandomAccessFile>(path, std::move(file)));
  }

  Result<MappedFile> map_file(const std::string& path) override {
    AERIE_ASSIGN_OR_RETURN(const auto file, find_file(path));
    const std::lock_guard lock(file->mutex);
    const auto copy = std::make_shared<const std::string>(file->bytes);
    if (copy->empty()) return MappedFile();
    return MappedFile(copy->data(), copy->size(), copy);
  }

  Result<std::unique_ptr<WritableFile>> open_writable(const std::string& path,
                                                      WriteMode mode) override {
    const std::lock_guard lock(mutex_);
    const std::string name = rooted(path);
    AERIE_RETURN_IF_ERROR(check_parent("create", path));
    auto found = nodes_.find(name);
    if (found == nodes_.end()) {
      found = nodes_.emplace(name, Node{std::make_shared<MemFile>()}).first;
      found->second.file->mtime_ns = clock_.wall_ns();
    } else if (found->second.is_dir()) {
      return mem_error("create", path, EISDIR);
    } else if (mode == WriteMode::kCreateNew) {
      return mem_error("create", path, EEXIST);
    } else if (mode == WriteMode::kTruncate) {
      const std::lock_guard file_lock(found->second.file->mutex);
      found->second.file->bytes.clear();
      found->second.file->mtime_ns = clock_.wall_ns();
    }
    return std::unique_ptr<WritableFile>(
        std::make_unique<MemWritableFile>(path, found->second.file, clock_));
  }

  Result<FileStat> stat(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const auto found = nodes_.find(rooted(path));
    if (found == nodes_.end()) return mem_error("find", path, ENOENT);
    FileStat out;
    out.is_dir = found->second.is_dir();
    out.is_regular = !out.is_dir;
    if (out.is_regular) {
      const std::lock_guard file_lock(found->second.file->mutex);
      out.size = found->second.file->bytes.size();
      out.mtime_ns = found->second.file->mtime_ns;
    }
    return out;
  }

  Result<std::vector<DirEntry>> list_dir(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::string name = rooted(path);
    AERIE_RETURN_IF_ERROR(check_dir("list", path, name));
    std::vector<DirEntry> out;
    for (auto [it, end] = below(name); it != end; ++it) {
      const std::string child = it->first.substr(prefix(name).size());
      if (child.find('/') == std::string::npos)
        out.push_back(DirEntry{child, it->second.is_dir(), false});
    }
    std::sort(out.begin(), out.end(),
              [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
    return out;
  }

  Status create_dir(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::string name = rooted(path);
    if (const auto found = nodes_.find(name); found != nodes_.end()) {
      if (found->second.is_dir()) return ok_status();
      return mem_error("create folder", path, EEXIST);
    }
    AERIE_RETURN_IF_ERROR(check_parent("create folder", path));
    nodes_[name] = Node{};
    return ok_status();
  }

  Status rename(const std::string& from, const std::string& to) override {
    const std::lock_guard lock(mutex_);
    const std::string source = rooted(from);
    const std::string target = rooted(to);
    const auto found = nodes_.find(source);
    if (found == nodes_.end()) return mem_error("rename", from, ENOENT);
    if (source == target) return ok_status();
    AERIE_RETURN_IF_ERROR(check_parent("rename", to));
    if (starts_with(target, prefix(source))) return mem_error("rename", from, EINVAL);
    if (const auto there = nodes_.find(target); there != nodes_.end()) {
      if (there->second.is_dir() && !found->second.is_dir())
        return mem_error("rename", from, EISDIR);
      if (!there->second.is_dir() && found->second.is_dir())
        return mem_error("rename", from, ENOTDIR);
      if (const auto [it, end] = below(target); it != end)
        return mem_error("rename", from, ENOTEMPTY);
    }
    std::map<std::string, Node> moved;
    moved[target] = found->second;
    for (auto [it, end] = below(source); it != end; ++it)
      moved[prefix(target) + it->first.substr(prefix(source).size())] = it->second;
    auto [first, last] = below(source);
    nodes_.erase(first, last);
    nodes_.erase(source);
    for (auto& [name, node] : moved) nodes_[name] = std::move(node);
    return ok_status();
  }

  Status remove_file(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const auto found = nodes_.find(rooted(path));
    if (found == nodes_.end()) return mem_error("remove", path, ENOENT);
    if (found->second.is_dir()) return mem_error("remove", path, EISDIR);
    nodes_.erase(found);
    return ok_status();
  }

  Status remove_dir(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    const std::string name = rooted(path);
    AERIE_RETURN_IF_ERROR(check_dir("remove folder", path, name));
    if (name == "/") return mem_error("remove folder", path, EBUSY);
    if (const auto [it, end] = below(name); it != end)
      return mem_error("remove folder", path, ENOTEMPTY);
    nodes_.erase(name);
    return ok_status();
  }

  Status fsync_dir(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    return check_dir("open folder", path, rooted(path));
  }

  Result<uint64_t> free_space(const std::string& path) override {
    const std::lock_guard lock(mutex_);
    if (nodes_.find(rooted(path)) == nodes_.end()) return mem_error("inspect", path, ENOENT);
    return uint64_t{1} << 40;
  }

 private:
  using Iterator = std::map<std::string, Node>::iterator;

  static std::string prefix(const std::string& dir) { return dir == "/" ? dir : dir + "/"; }

  // Everything inside a folder, at any depth: the names between "dir/" and "dir0" ('0' follows
  // '/').
  std::pair<Iterator, Iterator> below(const std::string& dir) {
    std::string end = prefix(dir);
    end.back() = '0';
    return {nodes_.upper_bound(prefix(dir)), nodes_.lower_bound(end)};
  }

  Status check_dir(const char* what, const std::string& path, const std::string& name) {
    const auto found = nodes_.find(name);
    if (found == nodes_.end()) return mem_error(what, path, ENOENT);
    if (!found->second.is_dir()) return mem_error(what, path, ENOTDIR);
    return ok_status();
  }

  Status check_parent(const char* what, const std::string& path) {
    return check_dir(what, path, parent_path(rooted(path)));
  }

  Result<std::shared_ptr<MemFile>> find_file(const std::string& path) {
    const std::lock_guard lock(mutex_);
    const auto found = nodes_.find(rooted(path));
    if (found == nodes_.end()) return mem_error("open", path, ENOENT);
    if (found->second.is_dir()) return io_error(str_cat("'", path, "' is a folder, not a file"));
    return found->second.file;
  }

  Clock& clock_;
  std::mutex mutex_;
  std::map<std::string, Node> nodes_;
};

}  // namespace

std::unique_ptr<Env> new_mem_env(Clock& clock) {
  return std::make_unique<MemEnv>(clock);
}

}  // namespace aerie
