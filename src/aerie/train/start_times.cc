#include "aerie/train/start_times.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unistd.h>

#include "aerie/base/format_text.h"
#include "aerie/base/strings.h"

namespace aerie::train {
namespace {

std::string seconds_text(double seconds) {
  return format_text("%.2f s", seconds);
}

std::string list_text(const std::vector<std::pair<std::string, double>>& parts) {
  std::string out;
  for (const auto& [name, seconds] : parts)
    out += str_cat(out.empty() ? "" : ", ", name, " ", seconds_text(seconds));
  return out;
}

}  // namespace

StartTimes::StartTimes(Clock& clock, double before_s)
    : clock_(clock), start_s_(clock.monotonic_s() - before_s), last_s_(clock.monotonic_s()) {
  if (before_s > 0.0) phases_.emplace_back("configuration", before_s);
}

void StartTimes::mark(const std::string& phase) {
  const double now = clock_.monotonic_s();
  phases_.emplace_back(phase, now - last_s_);
  last_s_ = now;
}

void StartTimes::beside(const std::string& what, double seconds) {
  beside_.emplace_back(what, seconds);
}

double StartTimes::total_s() const {
  return last_s_ - start_s_;
}

std::string StartTimes::sentence() const {
  return str_cat(
      "first step done ", seconds_text(total_s()), " after the launch: ", list_text(phases_),
      beside_.empty() ? "" : str_cat(" (in them or beside them: ", list_text(beside_), ")"));
}

void StartTimes::add_to(metrics::Record& record) const {
  record.add("start_s", total_s());
  for (const auto* list : {&phases_, &beside_})
    for (const auto& [name, seconds] : *list) {
      std::string key = name + "_s";
      std::replace(key.begin(), key.end(), ' ', '_');
      record.add(key, seconds);
    }
}

double process_age_s() {
  // Field 22 of stat, behind the name in parentheses: ticks after boot.
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return 0.0;
  std::istringstream rest(text.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i)
    if (!(rest >> field)) return 0.0;
  timespec now{};
  const long ticks = ::sysconf(_SC_CLK_TCK);
  if (ticks <= 0 || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0.0;
  const double started = std::strtod(field.c_str(), nullptr) / static_cast<double>(ticks);
  const double age = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return std::max(0.0, age - started);
}

}  // namespace aerie::train
