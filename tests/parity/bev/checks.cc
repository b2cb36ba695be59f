#include "checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace aerie::bev::parity {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

void Checks::near(const std::string& group, const std::string& what, std::span<const double> got,
                  std::span<const double> want, double absolute, double relative) {
  Group& g = groups_[group];
  if (got.size() != want.size())
    return fail(group, what + ": " + std::to_string(got.size()) + " values instead of " +
                           std::to_string(want.size()));
  g.values += static_cast<int64_t>(got.size());
  double worst_gap = 0.0, worst_allowed = 0.0;
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double gap = std::abs(got[i] - want[i]);
    const double allowed = absolute + relative * std::abs(want[i]);
    const bool same = gap <= allowed;  // false for NaN
    if (!same && (wrong++ == 0 || gap > worst_gap)) {
      worst_gap = gap;
      worst_allowed = allowed;
    }
    if (!(gap <= g.worst)) g.worst = gap;
    const double used = gap == 0.0 ? 0.0 : gap / allowed;
    if (!(used < g.used) || g.values == static_cast<int64_t>(got.size())) {
      g.used = std::max(used, g.used);
      g.allowed = allowed;
    }
  }
  if (wrong > 0)
    fail(group, what + ": " + std::to_string(wrong) + " of " + std::to_string(got.size()) +
                    " values differ, by up to " + number(worst_gap) + " where " +
                    number(worst_allowed) + " is allowed");
}

void Checks::equal(const std::string& group, const std::string& what, std::span<const int64_t> got,
                   std::span<const int64_t> want) {
  const std::vector<double> a(got.begin(), got.end()), b(want.begin(), want.end());
  near(group, what, a, b, 0.0);
}

void Checks::fail(const std::string& group, const std::string& what) {
  groups_[group].failed = true;
  failures_.push_back(group + ": " + what);
}

std::string Checks::text() const {
  std::string out;
  char line[256];
  std::snprintf(line, sizeof line, "%-32s %8s %10s %10s %7s\n", "group", "values", "worst",
                "allowed", "used");
  out += line;
  for (const auto& [name, group] : groups_) {
    std::snprintf(line, sizeof line, "%-32s %8lld %10.3g %10.3g %6.1f%%  %s\n", name.c_str(),
                  static_cast<long long>(group.values), group.worst, group.allowed,
                  100.0 * group.used, group.failed ? "FAILED" : "ok");
    out += line;
  }
  constexpr size_t kShown = 20;
  for (size_t i = 0; i < std::min(kShown, failures_.size()); ++i)
    out += "failed: " + failures_[i] + "\n";
  if (failures_.size() > kShown)
    out += "... and " + std::to_string(failures_.size() - kShown) + " more\n";
  return out;
}

}  // namespace aerie::bev::parity
