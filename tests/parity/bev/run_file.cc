#include <cstdio>
#include <exception>

#include "parity.h"

namespace aerie::bev::parity {

bool run_file(const std::string& path, const RunOptions& options) {
  std::printf("%s\n", path.c_str());
  Checks checks;
  try {
    const Fixture fixture(path);
    if (fixture.has_text("profiles"))
      check_geometry(fixture, checks);
    else if (fixture.has("tp_fp_fn"))
      check_metrics(fixture, checks);
    else if (fixture.has("hash_uniform"))
      check_matrices(fixture, checks);
    else if (fixture.has_text("cases"))
      check_splat(fixture, checks);
    else
      checks.fail("file", "it is none of the known kinds of fixtures");
    (void)options;
  } catch (const std::exception& error) {
    checks.fail("file", error.what());
  }
  std::fputs(checks.text().c_str(), stdout);
  return checks.passed();
}

}  // namespace aerie::bev::parity
