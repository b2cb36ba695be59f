#include <cstdio>
#include <exception>
#include <string>

#include "parity.h"

namespace aerie::bev::parity {
namespace {

void check_file(const Fixture& fixture, const RunOptions& options, Checks& checks) {
  if (fixture.has_text("profiles")) return check_geometry(fixture, checks);
  const bool metrics = fixture.has("tp_fp_fn"), splat = fixture.has_text("cases");
  if (metrics) check_metrics(fixture, checks);
  if (splat) check_splat(fixture, checks);
#ifdef AERIE_HAVE_TORCH
  if (metrics) return check_count_tensors(fixture, options.gpu, checks);
  if (splat) return check_splat_tensors(fixture, options.gpu, checks);
#endif
  if (metrics || splat) return;
  const bool model = fixture.has_text("config") && fixture.has_text("parameters");
  const bool matrices = fixture.has("hash_uniform");
  if (!model && !matrices) return checks.fail("file", "it is none of the known kinds of fixtures");
  if (matrices) check_matrices(fixture, checks);
#ifdef AERIE_HAVE_TORCH
  if (matrices) return check_layers(fixture, options.gpu, checks);
  if (!fixture.names("w/").empty()) return check_model(fixture, options.gpu, checks);
  return check_full_model(fixture, options.gpu, checks);
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
