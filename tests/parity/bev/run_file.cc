#include <cstdio>
#include <exception>

#include "parity.h"

namespace aerie::bev::parity {
namespace {

void check_file(const Fixture& fixture, const RunOptions& options, Checks& checks) {
  if (fixture.has_text("profiles")) return check_geometry(fixture, checks);
  if (fixture.has("tp_fp_fn")) return check_metrics(fixture, checks);
  if (fixture.has_text("cases")) return check_splat(fixture, checks);
  const bool model = fixture.has_text("config") && fixture.has_text("parameters");
  const bool matrices = fixture.has("hash_uniform");
  if (!model && !matrices) return checks.fail("file", "it is none of the known kinds of fixtures");
  if (matrices) check_matrices(fixture, checks);
#ifdef AERIE_HAVE_TORCH
  if (matrices) return check_layers(fixture, checks);
  if (!fixture.names("w/").empty()) return check_model(fixture, checks);
  if (options.full) return check_full_model(fixture, checks);
  checks.fail("file", "a model of full size, which takes minutes: --full runs it");
#else
  (void)options;
  if (model) checks.fail("file", "this build is without torch");
#endif
}

}  // namespace

bool run_file(const std::string& path, const RunOptions& options) {
  std::printf("%s\n", path.c_str());
  Checks checks;
  try {
    check_file(Fixture(path), options, checks);
  } catch (const std::exception& error) {
    checks.fail("file", error.what());
  }
  std::fputs(checks.text().c_str(), stdout);
  return checks.passed();
}

}  // namespace aerie::bev::parity
