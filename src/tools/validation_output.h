// What the `aerie data validate` of all kinds of data print: a progress line, a list of what is
// broken.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"

namespace aerie::tools {

// `Broken` has a kind, a place and a reason.
template <typename Broken>
void print_broken(const char* title, const std::vector<Broken>& list) {
  constexpr size_t kShown = 200;
  if (list.empty()) return;
  std::printf("%s: %s\n", title, group_digits(list.size()).c_str());
  for (size_t i = 0; i < list.size() && i < kShown; ++i)
    std::printf("  %s: %s: %s\n", list[i].kind.c_str(), printable_lines(list[i].place).c_str(),
                printable_lines(list[i].reason).c_str());
  if (list.size() > kShown)
    std::printf("  ... and %zu more (--json lists all)\n", list.size() - kShown);
}

// `progress` shows how far the check has come, and a signal ends it. `Check` has on_start,
// on_sample and stop; `progress` outlives it.
template <typename Check>
void watch_check(Check& check, const std::string& label, const char* unit,
                 std::unique_ptr<Progress>& progress) {
  check.on_start = [label, unit, &progress](uint64_t total) {
    ProgressOptions bar;
    bar.label = label;
    bar.total = total;
    bar.unit = unit;
    progress = std::make_unique<Progress>(bar);
  };
  check.on_sample = [&progress] { progress->add(); };
  check.stop = [] { return caught_signal() != 0; };
}

}  // namespace aerie::tools
