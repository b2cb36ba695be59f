// `aerie report RUN_DIR ...`: report.html from the files of a run, or one page for several runs.
#include <cstdio>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/ui/report.h"
#include "cli.h"
#include "command.h"

namespace aerie::tools {

Status run_report(const std::vector<std::string>& args) {
  CLI::App app(
      "Writes RUN/report.html, one self-contained page with the run's health, curves, machine, "
      "events,\nbad samples and the verdict on what limited it, from the metrics.jsonl in it; "
      "`aerie train` does\nthe same at its end. Several runs go onto one page: what came out of "
      "each, their curves\ntogether, and what differs in their configurations.",
      "aerie report");
  app.footer(
      "example: aerie report nemo_experiments/SSL-NEST-FastConformer\n"
      "         aerie report runs/lr1e-3 runs/lr3e-3 -o lr.html");
  std::vector<std::string> runs;
  std::string output;
  app.add_option("RUN", runs, "folders of runs")->required();
  app.add_option("-o,--output", output,
                 "file to write (default: report.html in the run's folder; for several runs "
                 "report.html in the working directory)");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  Env& env = Env::real();
  // Runs of versions that did not record their words were all of NEST.
  const ui::ReportWords words = nest::nest_report_words();
  for (std::string& run : runs) run = expand_user(run);
  if (runs.size() == 1 && output.empty()) {
    AERIE_ASSIGN_OR_RETURN(output, ui::write_report(env, runs[0], words));
  } else {
    output = output.empty() ? "report.html" : expand_user(output);
    AERIE_RETURN_IF_ERROR(ui::write_report_of(env, runs, output, words));
  }
  std::printf("%s\n", printable(output).c_str());
  return ok_status();
}

}  // namespace aerie::tools
