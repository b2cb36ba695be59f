// bev_parity [--gpu] FILE.safetensors ...
//
// Compares this build with fixture files of the reference (README.md says what they hold) and
// prints, for every group of values, the worst difference beside the one allowed there. Exit code
// 0: all agree; 1: something differs; 2: nothing was given.
#include <cstdio>
#include <cstring>

#include "parity.h"

int main(int argc, char** argv) {
  using namespace aerie::bev::parity;
  RunOptions options;
  int files = 0, failed = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--gpu") == 0) {
      options.gpu = true;
      continue;
    }
    if (std::strcmp(argv[i], "--full") == 0) continue;  // files of full size once asked for it
    ++files;
    failed += !run_file(argv[i], options);
  }
  if (files == 0) {
    std::fprintf(stderr, "usage: bev_parity [--gpu] FILE.safetensors ...\n");
    return 2;
  }
  std::printf(failed == 0 ? "all %d files agree\n" : "%d files, %d of them FAILED\n", files,
              failed);
  return failed == 0 ? 0 : 1;
}
