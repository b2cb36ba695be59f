#include "aerie/base/system.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <optional>
#include <sched.h>
#include <set>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>

#include "aerie/base/parse.h"
#include "aerie/base/path.h"

namespace aerie {

namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

std::vector<std::string> lines_of(Env& env, const std::string& path) {
  auto text = env.read_file(path, 1 << 20);
  return text.ok() ? split(*text, '\n') : std::vector<std::string>();
}

std::optional<uint64_t> number_in(Env& env, const std::string& path) {
  auto text = env.read_file(path, 4096);
  if (!text.ok()) return std::nullopt;
  auto value = parse_uint64(trim(*text));
  return value.ok() ? std::optional<uint64_t>(*value) : std::nullopt;
}

// Value of "Name:   123 kB" in bytes, or of "name 123".
std::optional<uint64_t> field(const std::vector<std::string>& lines, const std::string& name) {
  for (const std::string& line : lines) {
    if (!starts_with(line, name)) continue;
    std::string_view rest = trim(std::string_view(line).substr(name.size()));
    const bool in_kib = ends_with(rest, "kB");
    if (in_kib) rest = trim(rest.substr(0, rest.size() - 2));
    if (auto value = parse_uint64(rest); value.ok()) return in_kib ? *value * 1024 : *value;
  }
  return std::nullopt;
}

// Folders of the process's cgroup for a controller, innermost first. A container often sees its own
// group as the root: every level up to the root that exists is considered.
std::vector<std::string> cgroup_folders(Env& env, const std::string& root,
                                        const std::string& controller, bool* unified) {
  std::string below;
  std::string mount;
  *unified = false;
  for (const std::string& line : lines_of(env, root + "/proc/self/cgroup")) {
    const std::vector<std::string> parts = split(line, ':');
    if (parts.size() < 3) continue;
    std::string path = parts[2];
    for (size_t i = 3; i < parts.size(); ++i) path += ":" + parts[i];
    const std::vector<std::string> controllers = split(parts[1], ',');
    if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      mount = root + "/sys/fs/cgroup/" + controller;
      below = path;
      *unified = false;
      break;
    }
    if (parts[0] == "0" && parts[1].empty()) {
      mount = root + "/sys/fs/cgroup";
      below = path;
      *unified = true;
    }
  }
  std::vector<std::string> out;
  if (mount.empty()) return out;
  while (true) {
    out.push_back(below == "/" || below.empty() ? mount : mount + below);
    if (below == "/" || below.empty()) return out;
    below = parent_path(below);
  }
}

// CPUs that the cgroup's quota pays for; infinity when there is none.
double cpu_quota(Env& env, const std::string& root) {
  bool unified = false;
  double quota = std::numeric_limits<double>::infinity();
  for (const std::string& folder : cgroup_folders(env, root, "cpu", &unified)) {
    if (unified) {
      auto text = env.read_file(folder + "/cpu.max", 4096);
      if (!text.ok()) continue;
      const std::vector<std::string> parts = split(trim(*text), ' ');
      if (parts.size() != 2) continue;
      auto used = parse_uint64(parts[0]);
      auto period = parse_uint64(parts[1], 1);
      if (used.ok() && period.ok())
        quota = std::min(quota, static_cast<double>(*used) / static_cast<double>(*period));
    } else {
      // -1 means no quota and does not parse as unsigned.
      const auto used = number_in(env, folder + "/cpu.cfs_quota_us");
      const auto period = number_in(env, folder + "/cpu.cfs_period_us");
      if (used && period && *period > 0)
        quota = std::min(quota, static_cast<double>(*used) / static_cast<double>(*period));
    }
  }
  return quota;
}

}  // namespace

std::vector<int> allowed_cpus() {
  std::vector<int> out;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0)
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
      if (CPU_ISSET(static_cast<size_t>(cpu), &set)) out.push_back(cpu);
  if (out.empty()) out.push_back(0);
  return out;
}

int cpu_count(Env& env, const std::string& root) {
  const double quota = std::ceil(std::max(1.0, cpu_quota(env, root)));
  const double cpus = static_cast<double>(allowed_cpus().size());
  return static_cast<int>(std::min(quota, cpus));
}

int physical_core_count(Env& env, const std::string& root) {
  std::set<std::pair<uint64_t, uint64_t>> cores;
  const std::vector<int> cpus = allowed_cpus();
  for (const int cpu : cpus) {
    const std::string folder = str_cat(root, "/sys/devices/system/cpu/cpu", cpu, "/topology/");
    const auto package = number_in(env, folder + "physical_package_id");
    const auto core = number_in(env, folder + "core_id");
    // Unknown: count the CPU as a core of its own.
    cores.emplace(package.value_or(kNoLimit), core.value_or(static_cast<uint64_t>(cpu)));
  }
  return std::min(static_cast<int>(cores.size()), cpu_count(env, root));
}

MemoryInfo memory_info(Env& env, const std::string& root) {
  MemoryInfo out;
  const std::vector<std::string> lines = lines_of(env, root + "/proc/meminfo");
  out.total_bytes = field(lines, "MemTotal:").value_or(0);
  out.available_bytes = field(lines, "MemAvailable:").value_or(out.total_bytes);
  bool unified = false;
  for (const std::string& folder : cgroup_folders(env, root, "memory", &unified)) {
    const auto limit =
        number_in(env, folder + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
    // Version 1 writes "no limit" as a number near 2^63.
    if (!limit || *limit >= out.total_bytes) continue;
    out.total_bytes = *limit;
    const auto used =
        number_in(env, folder + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
    if (!used) continue;
    const uint64_t cache = field(lines_of(env, folder + "/memory.stat"),
                                 unified ? "inactive_file " : "total_inactive_file ")
                               .value_or(0);
    const uint64_t needed = *used - std::min(cache, *used);
    out.available_bytes = std::min(out.available_bytes, *limit - std::min(*limit, needed));
  }
  return out;
}

ProcessMemory process_memory(Env& env, const std::string& root) {
  const std::vector<std::string> lines = lines_of(env, root + "/proc/self/status");
  ProcessMemory out;
  out.rss_bytes = field(lines, "VmRSS:").value_or(0);
  out.anonymous_bytes = field(lines, "RssAnon:").value_or(out.rss_bytes);
  out.peak_rss_bytes = std::max(field(lines, "VmHWM:").value_or(0), out.rss_bytes);
  return out;
}

std::string cpu_name(Env& env, const std::string& root) {
  // x86 says "model name", ARM often only what the maker calls it, or nothing.
  for (const std::string_view key : {"model name", "Processor", "cpu model"})
    for (const std::string& line : lines_of(env, root + "/proc/cpuinfo")) {
      const size_t colon = line.find(':');
      if (colon != std::string::npos && trim(line.substr(0, colon)) == key)
        return std::string(trim(line.substr(colon + 1)));
    }
  return "";
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) return "";
  return name;
}

double process_cpu_s() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double thread_cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::string human_bytes(double bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  // 1023.95 would be shown as 1024.0.
  while (std::fabs(bytes) >= (unit == 0 ? 1023.5 : 1023.95) && unit + 1 < std::size(units)) {
    bytes /= 1024.0;
    ++unit;
  }
  char out[48];
  std::snprintf(out, sizeof out, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return out;
}

}  // namespace aerie
