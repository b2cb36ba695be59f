// Runs the Python side of a comparison in a process of its own and reads its result.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

struct PeerRequest {
  std::string tree;  // a folder with `nemo/`, or with a bench_step.py
  std::string python = "python3";
  int64_t batch = 16;
  double seconds = 15.0;
  std::string precision = "32";  // 32, 16-mixed, bf16-mixed
  bool tf32 = false;             // in matrix products, too
  int64_t d_model = 512, layers = 17, heads = 8;
  int64_t steps = 12, warmup = 4;
  bool gpu = false;
  std::string model_file;  // a `model` node in YAML; empty: the built-in model
};

struct PeerResult {
  double ms = 0.0;   // median of a step
  std::string json;  // the line it came from
};

// kNotFound: no script, or the tree is not one; kUnavailable: Python or the script failed, with the
// end of what it printed.
Result<PeerResult> run_peer_step(const PeerRequest& request);

struct ProcessOutput {
  int exit_code = 0;
  std::string text;  // stdout and stderr together
};
// Starts args[0] (looked up in PATH) with `variables` ("NAME=value") added to the environment and
// waits for it. No shell is involved. A signal to this process is passed on, and it ends with this
// process. Without `with_errors` what goes to stderr is left out.
Result<ProcessOutput> run_process(const std::vector<std::string>& args,
                                  const std::vector<std::string>& variables,
                                  bool with_errors = true);

// Runs the peer once for many cases: `cases` is a JSON file as bench/peers/nemo_step.py --cases
// reads it. A tree may bring a bench_cases.py of its own, which takes the same file.
Result<ProcessOutput> run_peer_cases(const std::string& tree, const std::string& python,
                                     const std::string& cases);
// The peers' own names of precisions: 32, 16, bf16.
std::string peer_precision(const std::string& precision);
// The end of what a process printed, for messages.
std::string tail_of(const std::string& text);

// The first JSON object with a number "ms" in a text of lines.
Result<PeerResult> find_peer_result(const std::string& text);

// bench/peers/nemo_step.py of this source tree, found from where the program lies; empty: not
// there.
std::string own_peer_script();
// configs/<name>: below the working directory, or of that source tree.
std::string config_folder(const std::string& name);

}  // namespace aerie::tools
