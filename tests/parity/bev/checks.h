// What a parity run found: the worst difference of every group of values, beside what was allowed.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace aerie::bev::parity {

class Checks {
 public:
  // |got - want| <= absolute + relative * |want| for every value; NaN agrees with nothing.
  void near(const std::string& group, const std::string& what, std::span<const double> got,
            std::span<const double> want, double absolute, double relative = 0.0);
  void equal(const std::string& group, const std::string& what, std::span<const int64_t> got,
             std::span<const int64_t> want);
  void fail(const std::string& group, const std::string& what);

  bool passed() const { return failures_.empty(); }
  const std::vector<std::string>& failures() const { return failures_; }
  // A line for each group, then what failed.
  std::string text() const;

 private:
  struct Group {
    int64_t values = 0;
    double worst = 0.0;    // difference
    double used = 0.0;     // of what was allowed, at the value that came closest to it
    double allowed = 0.0;  // there
    bool failed = false;
  };
  std::map<std::string, Group> groups_;
  std::vector<std::string> failures_;
};

}  // namespace aerie::bev::parity
