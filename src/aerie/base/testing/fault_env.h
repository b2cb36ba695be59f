// FaultEnv: a file system that fails on demand, wrapped around another one (mem_env.h or the real
// one). With it, "disk full" and "power cut" are ordinary unit tests:
//
//   auto memory = new_mem_env();
//   for (uint64_t n = 1;; ++n) {
//     FaultEnv env(*memory);
//     env.crash_at(n);                       // operation n and all later ones fail
//     const bool finished = save(env).ok();
//     env.power_loss();                      // what was not synced is gone; the env works again
//     check that load(env) finds the old or the new state, never a broken one;
//     if (finished) break;
//   }
//
// Operations are counted one by one: opening, each append, flush, sync, close, each read, mapping,
// stat, list, create, rename, remove, fsync_dir, free_space. Numbers in the calls below count from
// now; 1 is the next operation of that kind.
//
// Threads: any.
// Meant for tests: what is removed or replaced is kept in memory until its folder is synced.
#pragma once

#include <cerrno>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "aerie/base/env.h"

namespace aerie {

enum class FaultOp {
  kAny,
  kRead,  // open for reading, read, map, stat, list, free space
  kOpen,  // open for writing
  kAppend,
  kFlush,  // also close
  kSync,   // of a file
  kSyncDir,
  kRename,
  kRemove,  // of files and folders
  kCreateDir,
};

class FaultEnv final : public Env {
 public:
  explicit FaultEnv(Env& wrapped) : wrapped_(wrapped) {}  // `wrapped` must outlive this
  ~FaultEnv() override;  // every file opened through it must be gone

  // Operations of a kind since the beginning.
  uint64_t num_operations(FaultOp kind = FaultOp::kAny) const;

  // The nth operation of this kind fails with this errno and has no effect; once.
  void fail_at(uint64_t nth, FaultOp kind = FaultOp::kAny, int error_number = EIO);
  // The nth operation and all later ones (of every kind) fail, until power_loss() or
  // clear_faults().
  void crash_at(uint64_t nth, FaultOp kind = FaultOp::kAny);
  // Of the nth append only the first `keep_bytes` reach the file. It reports an
  // error, or success when `silent`.
  void tear_append(uint64_t nth, size_t keep_bytes, bool silent);
  // The nth rename reports success and does not happen.
  void lose_rename(uint64_t nth);
  // Appends beyond this many bytes fail with ENOSPC after the part that fits; removing files gives
  // room back. free_space() answers accordingly.
  void set_space(uint64_t bytes);
  // A read returns at most this many bytes at a time (callers must go on reading); 0: no limit.
  void set_max_read(size_t bytes);
  // Everything that changes the file system fails with EROFS.
  void set_read_only(bool read_only);
  void clear_faults();  // all of the above

  // Cuts the power and starts again. Lost are: appended bytes that were not synced; new names,
  // renames and removals whose folder was not synced since. Open files are dead afterwards. Pending
  // faults are cleared.
  Status power_loss();
  // As a real disk may do it: of the unsynced changes of names a random first part survives, of
  // each file's unsynced bytes a random first part.
  Status power_loss(uint64_t seed);

  Result<std::unique_ptr<RandomAccessFile>> open_random_access(const std::string& path) override;
  Result<MappedFile> map_file(const std::string& path) override;
  Result<std::unique_ptr<WritableFile>> open_writable(const std::string& path,
                                                      WriteMode mode) override;
  Result<FileStat> stat(const std::string& path) override;
  Result<std::vector<DirEntry>> list_dir(const std::string& path) override;
  Status create_dir(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove_file(const std::string& path) override;
  Status remove_dir(const std::string& path) override;
  Status fsync_dir(const std::string& path) override;
  Result<uint64_t> free_space(const std::string& path) override;

 private:
  friend class FaultReadFile;
  class Writer;

  struct Fault {
    enum class Effect { kFail, kCrash, kTear, kLoseRename };
    Effect effect;
    FaultOp kind;
    uint64_t countdown;
    int error_number = EIO;
    size_t keep_bytes = 0;
    bool silent = false;
  };
  // How much of a file written through this env would survive.
  struct Tracked {
    uint64_t synced = 0;
    uint64_t written = 0;
  };
  // A change of names that its folder has not synced yet, with what is needed to undo it.
  struct Change {
    enum class Kind { kCreateFile, kCreateDir, kRename, kRemoveFile, kRemoveDir };
    Kind kind;
    std::string path;
    std::string target;                // of a rename
    std::optional<std::string> bytes;  // of the file removed or replaced
    std::shared_ptr<Tracked> tracked;  // of the file removed or replaced, if it was written here
    bool replaced_dir = false;
  };

  // All with the lock held.
  Result<std::optional<Fault>> begin(FaultOp kind, const std::string& path, bool changes);
  Status undo(const Change& change);
  void forget_below(const std::string& path);
  void move_tracked(const std::string& from, const std::string& to);
  Status cut_power(std::optional<uint64_t> seed);
  void give_back_space(const std::string& path);

  Env& wrapped_;
  mutable std::mutex mutex_;
  std::map<FaultOp, uint64_t> counts_;
  std::list<Fault> faults_;
  bool crashed_ = false;
  bool read_only_ = false;
  std::optional<uint64_t> space_left_;
  size_t max_read_ = 0;
  std::map<std::string, std::shared_ptr<Tracked>> tracked_;
  std::vector<Change> changes_;
  std::set<Writer*> writers_;
};

}  // namespace aerie
