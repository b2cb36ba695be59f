// `aerie report RUN_DIR`: writes report.html from the files of a run.
#include <cstdio>

#include "aerie/base/env.h"
#include "aerie/ui/report.h"
#include "command.h"

namespace aerie::tools {

Status run_report(const std::vector<std::string>& args) {
  if (args.size() != 1 || args[0] == "--help" || args[0] == "-h") {
    std::printf(
        "usage: aerie report RUN_DIR\n\n"
        "Writes RUN_DIR/report.html, one self-contained page with the curves, events, bad samples "
        "and the verdict on what\n"
        "limited the run, from the metrics.jsonl in it. `aerie train` does the same at its end.\n\n"
        "example: aerie report nemo_experiments/SSL-NEST-FastConformer\n");
    return args.size() == 1 ? ok_status() : invalid_argument("one run folder is needed");
  }
  AERIE_ASSIGN_OR_RETURN(const std::string path, ui::write_report(Env::real(), args[0]));
  std::printf("%s\n", path.c_str());
  return ok_status();
}

}  // namespace aerie::tools
