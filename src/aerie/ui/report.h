// report.html of a run, or one page for several: self-contained (own SVG, own script, nothing
// fetched), drawn from metrics.jsonl and the files beside it.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/ui/run_view.h"

namespace aerie::ui {

// A page of our style around `body`, which is HTML.
std::string report_page(const std::string& title, const std::string& body);

// One run in detail, or several side by side.
std::string render_report(const std::vector<ReportInput>& runs);

// Reads the files of a run's folder. Only metrics.jsonl must be there. `otherwise`: the words of
// runs whose records do not say them.
Result<ReportInput> load_report_input(Env& env, const std::string& run_dir,
                                      const ReportWords& otherwise);
// load + render + atomic write of <run_dir>/report.html; returns its path.
Result<std::string> write_report(Env& env, const std::string& run_dir,
                                 const ReportWords& otherwise);
// Several runs on one page at `path`.
Status write_report_of(Env& env, const std::vector<std::string>& run_dirs, const std::string& path,
                       const ReportWords& otherwise);

}  // namespace aerie::ui
