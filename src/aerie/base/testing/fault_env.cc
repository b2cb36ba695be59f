#include "aerie/base/testing/fault_env.h"

#include <algorithm>

#include "aerie/base/path.h"
#include "aerie/base/philox.h"

namespace aerie {

namespace {

// One spelling per name, so that "a//b" and "a/./b" are the same file here too.
std::string normal(const std::string& path) {
  std::string out = is_absolute_path(path) ? "/" : "";
  for (const std::string& part : split(path, '/')) {
    if (part.empty() || part == ".") continue;
    if (!out.empty() && out.back() != '/') out += '/';
    out += part;
  }
  return out.empty() ? "." : out;
}

Status fault(const std::string& path, int error_number) {
  return errno_error(str_cat("'", path, "' (injected fault)"), error_number);
}

}  // namespace

// A file being written. Owned by the caller; known to the env, which closes it when power is cut.
class FaultEnv::Writer final : public WritableFile {
 public:
  Writer(FaultEnv& env, std::string path, std::unique_ptr<WritableFile> file,
         std::shared_ptr<Tracked> tracked)
      : env_(env), path_(std::move(path)), file_(std::move(file)), tracked_(std::move(tracked)) {
    env_.writers_.insert(this);
  }
  ~Writer() override {
    const std::lock_guard lock(env_.mutex_);
    env_.writers_.erase(this);
    if (file_ != nullptr) (void)file_->close();
  }

  Status append(std::string_view bytes) override {
    const std::lock_guard lock(env_.mutex_);
    AERIE_RETURN_IF_ERROR(usable());
    AERIE_ASSIGN_OR_RETURN(const auto hit, env_.begin(FaultOp::kAppend, path_, true));
    size_t keep = bytes.size();
    Status status;
    if (hit) {
      keep = std::min(keep, hit->keep_bytes);
      if (!hit->silent) status = fault(path_, hit->error_number);
    }
    if (env_.space_left_ && keep > *env_.space_left_) {
      keep = static_cast<size_t>(*env_.space_left_);
      status = fault(path_, ENOSPC).with_hint("free some space or choose another folder");
    }
    AERIE_RETURN_IF_ERROR(file_->append(bytes.substr(0, keep)));
    tracked_->written += keep;
    if (env_.space_left_) *env_.space_left_ -= keep;
    if (!status.ok()) broken_ = status;
    return status;
  }

  Status flush() override {
    const std::lock_guard lock(env_.mutex_);
    AERIE_RETURN_IF_ERROR(usable());
    AERIE_RETURN_IF_ERROR(env_.begin(FaultOp::kFlush, path_, true).status());
    return file_->flush();
  }

  Status sync() override {
    const std::lock_guard lock(env_.mutex_);
    AERIE_RETURN_IF_ERROR(usable());
    if (Status status = env_.begin(FaultOp::kSync, path_, true).status(); !status.ok())
      return broken_ = status;
    AERIE_RETURN_IF_ERROR(file_->sync());
    tracked_->synced = tracked_->written;
    return ok_status();
  }

  Status close() override {
    const std::lock_guard lock(env_.mutex_);
    if (file_ == nullptr) return broken_;
    Status status = broken_.ok() ? env_.begin(FaultOp::kFlush, path_, true).status() : broken_;
    Status closed = std::exchange(file_, nullptr)->close();
    return status.ok() ? closed : status;
  }

  uint64_t size() const override {
    const std::lock_guard lock(env_.mutex_);
    return tracked_->written;
  }

  // With the env's lock held: the process is gone as far as this file is concerned.
  void lose_power() {
    if (file_ != nullptr) (void)std::exchange(file_, nullptr)->close();
    broken_ = io_error(str_cat("'", path_, "' was open when the power was cut"));
  }

 private:
  Status usable() const {
    if (!broken_.ok()) return broken_;
    if (file_ == nullptr) return io_error(str_cat("'", path_, "' is closed already"));
    return ok_status();
  }

  FaultEnv& env_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  std::shared_ptr<Tracked> tracked_;
  Status broken_;
};

class FaultReadFile final : public RandomAccessFile {
 public:
  FaultReadFile(FaultEnv& env, const std::string& path, std::unique_ptr<RandomAccessFile> file)
      : RandomAccessFile(path), env_(env), file_(std::move(file)) {}
  uint64_t size() const override { return file_->size(); }

 protected:
  Result<size_t> read_some(uint64_t offset, void* out, size_t size) const override {
    size_t limit = size;
    {
      const std::lock_guard lock(env_.mutex_);
      AERIE_RETURN_IF_ERROR(env_.begin(FaultOp::kRead, path(), false).status());
      if (env_.max_read_ != 0) limit = std::min(limit, env_.max_read_);
    }
    return file_->read_at(offset, out, limit);
  }

 private:
  FaultEnv& env_;
  std::unique_ptr<RandomAccessFile> file_;
};

FaultEnv::~FaultEnv() = default;

uint64_t FaultEnv::num_operations(FaultOp kind) const {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find(kind);
  return found == counts_.end() ? 0 : found->second;
}

void FaultEnv::fail_at(uint64_t nth, FaultOp kind, int error_number) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({Fault::Effect::kFail, kind, nth, error_number});
}

void FaultEnv::crash_at(uint64_t nth, FaultOp kind) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({Fault::Effect::kCrash, kind, nth});
}

void FaultEnv::tear_append(uint64_t nth, size_t keep_bytes, bool silent) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({Fault::Effect::kTear, FaultOp::kAppend, nth, EIO, keep_bytes, silent});
}

void FaultEnv::lose_rename(uint64_t nth) {
  const std::lock_guard lock(mutex_);
  faults_.push_back({Fault::Effect::kLoseRename, FaultOp::kRename, nth});
}

void FaultEnv::set_space(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  space_left_ = bytes;
}

void FaultEnv::set_max_read(size_t bytes) {
  const std::lock_guard lock(mutex_);
  max_read_ = bytes;
}

void FaultEnv::set_read_only(bool read_only) {
  const std::lock_guard lock(mutex_);
  read_only_ = read_only;
}

void FaultEnv::clear_faults() {
  const std::lock_guard lock(mutex_);
  faults_.clear();
  crashed_ = read_only_ = false;
  space_left_.reset();
  max_read_ = 0;
}

// Counts the operation and decides: an error; a fault that the operation carries out itself;
// nothing.
Result<std::optional<FaultEnv::Fault>> FaultEnv::begin(FaultOp kind, const std::string& path,
                                                       bool changes) {
  ++counts_[kind];
  ++counts_[FaultOp::kAny];
  std::optional<Fault> hit;
  for (auto it = faults_.begin(); it != faults_.end();) {
    const bool counts = it->kind == FaultOp::kAny || it->kind == kind;
    if (counts && --it->countdown == 0) {
      if (it->effect == Fault::Effect::kCrash) crashed_ = true;
      if (!hit) hit = *it;
      it = faults_.erase(it);
    } else {
      ++it;
    }
  }
  if (crashed_) return fault(path, EIO).with_hint("the process counts as dead");
  if (read_only_ && changes) return fault(path, EROFS);
  if (hit && hit->effect == Fault::Effect::kFail) return fault(path, hit->error_number);
  return hit;
}

Result<std::unique_ptr<RandomAccessFile>> FaultEnv::open_random_access(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRead, path, false).status());
  AERIE_ASSIGN_OR_RETURN(auto file, wrapped_.open_random_access(path));
  return std::unique_ptr<RandomAccessFile>(
      std::make_unique<FaultReadFile>(*this, path, std::move(file)));
}

Result<MappedFile> FaultEnv::map_file(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRead, path, false).status());
  return wrapped_.map_file(path);
}

Result<std::unique_ptr<WritableFile>> FaultEnv::open_writable(const std::string& path,
                                                              WriteMode mode) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kOpen, path, true).status());
  const std::string name = normal(path);
  const bool existed = wrapped_.exists(name);
  if (existed && mode == WriteMode::kTruncate) give_back_space(name);
  AERIE_ASSIGN_OR_RETURN(auto file, wrapped_.open_writable(path, mode));
  auto& tracked = tracked_[name];
  if (tracked == nullptr) {
    tracked = std::make_shared<Tracked>();
    // What was there before this env counts as synced.
    if (existed) tracked->synced = tracked->written = file->size();
  }
  // The worst case of cutting a file short: the old bytes are gone at once, the new ones need a
  // sync.
  if (mode == WriteMode::kTruncate) *tracked = Tracked{};
  if (!existed) changes_.push_back({Change::Kind::kCreateFile, name, "", {}, nullptr});
  return std::unique_ptr<WritableFile>(
      std::make_unique<Writer>(*this, path, std::move(file), tracked));
}

Result<FileStat> FaultEnv::stat(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRead, path, false).status());
  return wrapped_.stat(path);
}

Result<std::vector<DirEntry>> FaultEnv::list_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRead, path, false).status());
  return wrapped_.list_dir(path);
}

Status FaultEnv::create_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kCreateDir, path, true).status());
  const bool existed = wrapped_.exists(path);
  AERIE_RETURN_IF_ERROR(wrapped_.create_dir(path));
  if (!existed) changes_.push_back({Change::Kind::kCreateDir, normal(path), "", {}, nullptr});
  return ok_status();
}

Status FaultEnv::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  AERIE_ASSIGN_OR_RETURN(const auto hit, begin(FaultOp::kRename, from, true));
  if (hit && hit->effect == Fault::Effect::kLoseRename) return ok_status();
  const std::string source = normal(from);
  const std::string target = normal(to);
  if (source == target) return wrapped_.rename(from, to);
  Change change{Change::Kind::kRename, source, target, {}, nullptr};
  if (auto there = wrapped_.stat(target); there.ok()) {
    change.replaced_dir = there->is_dir;
    if (!there->is_dir) {
      AERIE_ASSIGN_OR_RETURN(change.bytes, wrapped_.read_file(target));
      if (const auto found = tracked_.find(target); found != tracked_.end())
        change.tracked = found->second;
    }
  }
  AERIE_RETURN_IF_ERROR(wrapped_.rename(from, to));
  if (space_left_ && change.bytes) *space_left_ += change.bytes->size();
  forget_below(target);
  move_tracked(source, target);
  changes_.push_back(std::move(change));
  return ok_status();
}

Status FaultEnv::remove_file(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRemove, path, true).status());
  const std::string name = normal(path);
  Change change{Change::Kind::kRemoveFile, name, "", {}, nullptr};
  if (auto bytes = wrapped_.read_file(name); bytes.ok()) change.bytes = std::move(*bytes);
  if (const auto found = tracked_.find(name); found != tracked_.end())
    change.tracked = found->second;
  AERIE_RETURN_IF_ERROR(wrapped_.remove_file(path));
  if (space_left_ && change.bytes) *space_left_ += change.bytes->size();
  tracked_.erase(name);
  changes_.push_back(std::move(change));
  return ok_status();
}

Status FaultEnv::remove_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRemove, path, true).status());
  AERIE_RETURN_IF_ERROR(wrapped_.remove_dir(path));
  changes_.push_back({Change::Kind::kRemoveDir, normal(path), "", {}, nullptr});
  return ok_status();
}

Status FaultEnv::fsync_dir(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kSyncDir, path, true).status());
  AERIE_RETURN_IF_ERROR(wrapped_.fsync_dir(path));
  const std::string folder = normal(path);
  std::erase_if(changes_, [&](const Change& change) {
    const std::string& name = change.kind == Change::Kind::kRename ? change.target : change.path;
    return parent_path(name) == folder;
  });
  return ok_status();
}

Result<uint64_t> FaultEnv::free_space(const std::string& path) {
  const std::lock_guard lock(mutex_);
  AERIE_RETURN_IF_ERROR(begin(FaultOp::kRead, path, false).status());
  AERIE_ASSIGN_OR_RETURN(const uint64_t real, wrapped_.free_space(path));
  return space_left_ ? std::min(real, *space_left_) : real;
}

void FaultEnv::give_back_space(const std::string& path) {
  if (!space_left_) return;
  if (auto there = wrapped_.stat(path); there.ok()) *space_left_ += there->size;
}

void FaultEnv::forget_below(const std::string& path) {
  std::erase_if(tracked_, [&](const auto& entry) {
    return entry.first == path || starts_with(entry.first, path + "/");
  });
}

void FaultEnv::move_tracked(const std::string& from, const std::string& to) {
  std::map<std::string, std::shared_ptr<Tracked>> moved;
  for (const auto& [name, tracked] : tracked_) {
    if (name == from || starts_with(name, from + "/"))
      moved[to + name.substr(from.size())] = tracked;
    else
      moved[name] = tracked;
  }
  tracked_ = std::move(moved);
}

Status FaultEnv::undo(const Change& change) {
  // A folder whose removal did reach the disk took this change with it.
  if (!wrapped_.exists(parent_path(change.path))) return ok_status();
  const auto restore = [&](const std::string& name) -> Status {
    if (change.replaced_dir) return wrapped_.create_dir(name);
    if (!change.bytes) return ok_status();
    if (change.tracked != nullptr) tracked_[name] = change.tracked;
    return wrapped_.write_file(name, *change.bytes);
  };
  switch (change.kind) {
    case Change::Kind::kCreateFile:
    case Change::Kind::kCreateDir:
      // May have been moved elsewhere by a change that did reach the disk.
      forget_below(change.path);
      return wrapped_.remove_tree(change.path);
    case Change::Kind::kRename:
      if (wrapped_.exists(change.target)) {
        AERIE_RETURN_IF_ERROR(wrapped_.rename(change.target, change.path));
        move_tracked(change.target, change.path);
      }
      return restore(change.target);
    case Change::Kind::kRemoveFile:
      return restore(change.path);
    case Change::Kind::kRemoveDir:
      return wrapped_.create_dir(change.path);
  }
  return ok_status();
}

Status FaultEnv::power_loss() {
  return cut_power(std::nullopt);
}

Status FaultEnv::power_loss(uint64_t seed) {
  return cut_power(seed);
}

Status FaultEnv::cut_power(std::optional<uint64_t> seed) {
  {
    const std::lock_guard lock(mutex_);
    for (Writer* writer : writers_) writer->lose_power();
    RandomStream random(seed.value_or(0), Purpose::kTest, 0, 0);
    const size_t survivors = seed ? random.below(changes_.size() + 1) : 0;
    for (size_t i = changes_.size(); i > survivors; --i)
      AERIE_RETURN_IF_ERROR(undo(changes_[i - 1]));
    for (const auto& [name, tracked] : tracked_) {
      if (tracked->synced == tracked->written || !wrapped_.exists(name)) continue;
      const uint64_t lost = tracked->written - tracked->synced;
      const uint64_t keep = tracked->synced + (seed ? random.below(lost + 1) : 0);
      AERIE_ASSIGN_OR_RETURN(std::string bytes, wrapped_.read_file(name));
      bytes.resize(std::min<size_t>(bytes.size(), static_cast<size_t>(keep)));
      AERIE_RETURN_IF_ERROR(wrapped_.write_file(name, bytes));
    }
    changes_.clear();
    tracked_.clear();
  }
  clear_faults();
  return ok_status();
}

}  // namespace aerie
