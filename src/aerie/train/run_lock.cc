#include "aerie/train/run_lock.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_group.h"

namespace aerie::train {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 1;
constexpr uint64_t kMaxBytes = 1u << 20;
constexpr double kPollS = 1.0;
// After taking over from elsewhere: somebody else may have decided the same in this moment.
constexpr double kSettleS = 2.0;

// Serialises looking and writing between processes that share the file system. It ends with the
// process, so nothing stale stays; where the file system has no such locks the record alone counts.
class FolderGuard {
 public:
  explicit FolderGuard(const std::string& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    // Held for milliseconds: whoever holds it longer is stuck and must not stop others.
    for (int i = 0; fd_ >= 0 && i < 500; ++i) {
      if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) break;
      ::usleep(10000);
    }
  }
  ~FolderGuard() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderGuard(const FolderGuard&) = delete;
  FolderGuard& operator=(const FolderGuard&) = delete;

 private:
  const int fd_;
};

}  // namespace

std::string LockRecord::to_json() const {
  Json json;
  json["format"] = "aerie-lock";
  json["version"] = kVersion;
  json["host"] = owner.host;
  json["boot_id"] = owner.boot_id;
  json["pid_namespace"] = owner.pid_namespace;
  json["pid"] = owner.pid;
  json["start_ticks"] = owner.start_ticks;
  json["beat"] = beat;
  json["time"] = time;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<LockRecord> LockRecord::from_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != "aerie-lock" ||
      !json.value("version", Json()).is_number_integer())
    return data_error("not a lock of aerie");
  if (json["version"].get<int64_t>() > kVersion)
    return unsupported(
        str_cat("written by a newer aerie (version ", json["version"].get<int64_t>(), ")"));
  LockRecord out;
  const auto text_of = [&](const char* name) {
    const Json value = json.value(name, Json());
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  const auto number_of = [&](const char* name) {
    const Json value = json.value(name, Json());
    return value.is_number_integer() ? value.get<int64_t>() : int64_t{0};
  };
  out.owner = {text_of("host"), text_of("boot_id"), text_of("pid_namespace"), number_of("pid"),
               number_of("start_ticks")};
  out.beat = number_of("beat");
  out.time = text_of("time");
  return out;
}

RunLock::RunLock(Env& env, Clock& clock, const std::string& folder, RunLockOptions options)
    : env_(env),
      clock_(clock),
      folder_(folder),
      path_(str_cat(folder, "/", kLockName)),
      options_(std::move(options)) {}

Result<std::unique_ptr<RunLock>> RunLock::acquire(Env& env, Clock& clock, const std::string& folder,
                                                  RunLockOptions options) {
  std::unique_ptr<RunLock> lock(new RunLock(env, clock, folder, std::move(options)));
  AERIE_RETURN_IF_ERROR(env.create_dirs(folder));
  AERIE_RETURN_IF_ERROR(lock->take());
  lock->held_ = true;
  lock->thread_ = std::thread([owner = lock.get()] { owner->run(); });
  return lock;
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (!held_ || !lost_.ok()) return;
  const FolderGuard guard(folder_);
  const auto record = read();
  if (record.ok() && record->owner == options_.self) (void)env_.remove_file(path_);
}

Status RunLock::check() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

Result<LockRecord> RunLock::read() const {
  AERIE_ASSIGN_OR_RETURN(const std::string text, env_.read_file(path_, kMaxBytes));
  return LockRecord::from_json(text);
}

std::string RunLock::next_record() {
  LockRecord record;
  record.owner = options_.self;
  record.beat = ++beats_;
  record.time = iso_time(clock_.wall_ns());
  return record.to_json();
}

Status RunLock::write() {
  return env_.atomic_replace(path_, next_record());
}

Status RunLock::fill(WritableFile& file) {
  Status written = file.append(next_record());
  if (written.ok()) written = file.close();
  // An empty one would be taken for that of a process elsewhere, and waited for.
  if (!written.ok()) (void)env_.remove_file(path_);
  return written;
}

Status RunLock::in_use(const LockRecord& owner) const {
  return unavailable(str_cat("run folder ", folder_, " is in use by ", owner.owner.to_string(),
                             " (last sign of life ", owner.time, ")"))
      .with_hint(str_cat("wait until it has ended, or choose another exp_manager.name; if no such "
                         "process exists, remove ",
                         path_));
}

Status RunLock::take() {
  constexpr int kMaxVanished = 100;
  for (int vanished = 0;;) {
    std::string seen;
    LockRecord owner;
    {
      const FolderGuard guard(folder_);
      const auto created = env_.open_writable(path_, WriteMode::kCreateNew);
      if (created.ok())
        return fill(**created).with_context(str_cat("locking run folder ", folder_));
      auto text = env_.read_file(path_, kMaxBytes);
      // Given back in this moment, unless it never can be made.
      if (text.status().code() == StatusCode::kNotFound && ++vanished < kMaxVanished) continue;
      if (!text.ok()) return created.status().with_context(str_cat("locking run folder ", folder_));
      seen = std::move(text).value();
      // A torn record tells nothing about its owner: as if it were elsewhere.
      auto record = LockRecord::from_json(seen);
      if (record.status().code() == StatusCode::kUnsupported)
        return Status(record.status())
            .with_context(path_)
            .with_hint("update aerie, or remove the file when no run uses the folder");
      if (record.ok()) owner = std::move(record).value();
      const ProcessLife life =
          record.ok() && owner.owner.pid > 0 ? options_.life(owner.owner) : ProcessLife::kElsewhere;
      if (life == ProcessLife::kAlive) return in_use(owner);
      if (life == ProcessLife::kDead) {
        log_info("train", "run folder ", folder_, ": ", owner.owner.to_string(),
                 " has ended without giving it back; taking over");
        return write();
      }
    }
    AERIE_ASSIGN_OR_RETURN(const std::optional<bool> alive, wait_for_beat(seen));
    if (!alive) continue;
    if (*alive) {
      auto record = read();
      return in_use(record.ok() ? *record : owner);
    }
    {
      const FolderGuard guard(folder_);
      const auto text = env_.read_file(path_, kMaxBytes);
      if (!text.ok() || *text != seen) continue;
      log_warn("train", "run folder ", folder_, ": no sign of life of ", owner.owner.to_string(),
               " for ", human_duration(options_.patience_s), "; taking over");
      AERIE_RETURN_IF_ERROR(write());
    }
    clock_.sleep_ns(static_cast<int64_t>(kSettleS * 1e9));
    const auto record = read();
    if (record.ok() && record->owner == options_.self) return ok_status();
  }
}

Result<std::optional<bool>> RunLock::wait_for_beat(const std::string& seen) {
  const auto record = LockRecord::from_json(seen);
  log_info("train", "run folder ", folder_, " is locked by ",
           record.ok() ? record->owner.to_string() : std::string("an unknown process"),
           "; waiting up to ", human_duration(options_.patience_s), " for a sign of life");
  const double end = clock_.monotonic_s() + options_.patience_s;
  while (clock_.monotonic_s() < end) {
    if (options_.stop && options_.stop())
      return cancelled(str_cat("stopped while waiting for run folder ", folder_));
    clock_.sleep_ns(static_cast<int64_t>(kPollS * 1e9));
    const auto text = env_.read_file(path_, kMaxBytes);
    if (text.status().code() == StatusCode::kNotFound) return std::optional<bool>();
    if (text.ok() && *text != seen) return std::optional(true);
  }
  return std::optional(false);
}

void RunLock::beat() {
  const FolderGuard guard(folder_);
  const auto record = read();
  if (record.ok() && record->owner != options_.self) {
    const std::lock_guard lock(mutex_);
    lost_ = unavailable(
                str_cat("run folder ", folder_, " was taken over by ", record->owner.to_string()))
                .with_hint(
                    "this process gave no sign of life for too long and must not write there "
                    "any more; it ends without saving");
    return;
  }
  // Removed or damaged by somebody: written again, if need be with the folder.
  if (!record.ok()) (void)env_.create_dirs(folder_);
  if (const Status written = write(); !written.ok())
    AERIE_LOG_EVERY_S(warn, 60.0, "train",
                      "the lock of the run folder cannot be renewed: ", written.to_string());
}

void RunLock::run() {
  set_thread_name("run lock");
  std::unique_lock lock(mutex_);
  while (lost_.ok()) {
    wake_.wait_for(lock, std::chrono::duration<double>(options_.beat_s), [this] { return stop_; });
    if (stop_) return;
    lock.unlock();
    beat();
    lock.lock();
  }
}

}  // namespace aerie::train
