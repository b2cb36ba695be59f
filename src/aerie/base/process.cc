#include "aerie/base/process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <unistd.h>

#include "aerie/base/hash.h"
#include "aerie/base/parse.h"
#include "aerie/base/strings.h"

namespace aerie {

namespace {

constexpr uint64_t kMaxProcFile = 1u << 20;

std::string read_trimmed(Env& env, const std::string& path) {
  const auto text = env.read_file(path, kMaxProcFile);
  return text.ok() ? std::string(trim(*text)) : std::string();
}

struct ProcessStat {
  char state = '?';
  int64_t start_ticks = 0;
};

// /proc/<pid>/stat. The name in brackets may hold anything: what counts starts after the last ')'.
std::optional<ProcessStat> process_stat(Env& env, const std::string& root, int64_t pid) {
  const std::string text = read_trimmed(env, str_cat(root, "/proc/", pid, "/stat"));
  const size_t bracket = text.rfind(')');
  if (bracket == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields = split(trim(text.substr(bracket + 1)), ' ');
  constexpr size_t kStartField = 19;  // field 22 of the whole line
  if (fields.size() <= kStartField || fields[0].size() != 1) return std::nullopt;
  const auto start = parse_int64(fields[kStartField]);
  if (!start.ok()) return std::nullopt;
  return ProcessStat{fields[0][0], *start};
}

std::string pid_namespace(const std::string& root) {
  char buffer[128];
  const ssize_t length =
      ::readlink((root + "/proc/self/ns/pid").c_str(), buffer, sizeof buffer - 1);
  return length > 0 ? std::string(buffer, static_cast<size_t>(length)) : std::string();
}

bool is_running(Env& env, const std::string& root, int64_t pid, int64_t start_ticks) {
  const auto stat = process_stat(env, root, pid);
  // Where /proc hides the processes of others only a signal tells whether the number is in use.
  if (!stat)
    return root.empty() && pid > 0 && (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
  if (stat->state == 'Z' || stat->state == 'X') return false;
  return start_ticks == 0 || stat->start_ticks == start_ticks;
}

// Machine, boot and container as one number.
uint64_t place_hash(const ProcessIdentity& process) {
  XxHash64 hash;
  hash.update(process.host);
  hash.update("\n");
  hash.update(process.boot_id);
  hash.update("\n");
  hash.update(process.pid_namespace);
  return hash.digest();
}

}  // namespace

std::string ProcessIdentity::to_string() const {
  return str_cat("process ", pid, " on ", host.empty() ? "an unknown machine" : host);
}

ProcessIdentity this_process(Env& env, const std::string& root) {
  ProcessIdentity out;
  char host[256] = {};
  if (::gethostname(host, sizeof host - 1) == 0) out.host = host;
  out.boot_id = read_trimmed(env, root + "/proc/sys/kernel/random/boot_id");
  out.pid_namespace = pid_namespace(root);
  out.pid = ::getpid();
  if (const auto stat = process_stat(env, root, out.pid)) out.start_ticks = stat->start_ticks;
  return out;
}

ProcessLife process_life(const ProcessIdentity& process, Env& env, const std::string& root) {
  const ProcessIdentity self = this_process(env, root);
  if (process.boot_id.empty() || process.boot_id != self.boot_id || process.host != self.host ||
      process.pid_namespace != self.pid_namespace)
    return ProcessLife::kElsewhere;
  return is_running(env, root, process.pid, process.start_ticks) ? ProcessLife::kAlive
                                                                 : ProcessLife::kDead;
}

bool pid_may_have_written(int64_t pid, int64_t mtime_ns, Env& env, const std::string& root) {
  if (!is_running(env, root, pid, 0)) return false;
  const auto stat = process_stat(env, root, pid);
  if (!stat) return true;
  for (const std::string& line : split(read_trimmed(env, root + "/proc/stat"), '\n')) {
    if (!starts_with(line, "btime ")) continue;
    const auto boot_s = parse_int64(line.substr(6));
    if (!boot_s.ok()) break;
    const int64_t started_s = *boot_s + stat->start_ticks / ::sysconf(_SC_CLK_TCK);
    // Seconds of grace: the boot time is rounded, and clocks are set.
    return mtime_ns / 1'000'000'000 + 5 >= started_s;
  }
  return true;
}

std::string process_tag(const ProcessIdentity& process) {
  return str_cat(hex64(place_hash(process)), "-", process.pid, "-", process.start_ticks);
}

ProcessLife tag_life(std::string_view tag, Env& env, const std::string& root) {
  const std::vector<std::string> parts = split(tag, '-');
  if (parts.size() != 3) return ProcessLife::kElsewhere;
  const auto pid = parse_int64(parts[1]);
  const auto start = parse_int64(parts[2]);
  const ProcessIdentity self = this_process(env, root);
  if (!pid.ok() || !start.ok() || self.boot_id.empty() || parts[0] != hex64(place_hash(self)))
    return ProcessLife::kElsewhere;
  return is_running(env, root, *pid, *start) ? ProcessLife::kAlive : ProcessLife::kDead;
}

}  // namespace aerie
