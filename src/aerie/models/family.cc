#include "aerie/models/family.h"

#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/train/dry_run.h"

namespace aerie::models {

const Dialect* Families::dialect_of(const std::vector<std::string>& args) const {
  for (const Dialect* dialect : dialects)
    if (dialect->accepts(args)) return dialect;
  return nullptr;
}

const Family* Families::find(std::string_view name) const {
  for (const Family* family : families)
    if (family->name() == name) return family;
  return nullptr;
}

Result<std::string> Family::dry_run(const Configuration& config,
                                    const DryRunRequest& request) const {
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Job> job, make_job(config));
  train::JobDryRunOptions options;
  options.env = request.env;
  options.stop = request.stop;
  AERIE_ASSIGN_OR_RETURN(const train::JobDryRun report, train::dry_run_job(*job, options));
  return request.json ? printable_json(report.to_json()) + "\n" : report.to_text();
}

Result<Opened> open_configuration(const Families& families, const std::vector<std::string>& args) {
  Opened out;
  out.dialect = families.dialect_of(args);
  if (out.dialect == nullptr) {
    std::string known;
    for (const Dialect* one : families.dialects)
      known += str_cat(known.empty() ? "" : ", ", std::string(one->name()));
    return invalid_argument(str_cat("this is no configuration that is known here (", known, ")"));
  }
  AERIE_ASSIGN_OR_RETURN(out.config, out.dialect->load(args));
  for (const std::string& warning : out.config->warnings()) log_warn("config", warning);
  for (const std::string& note : out.config->notes()) log_info("config", note);
  return out;
}

Result<train::RunResult> train(const Opened& opened, const train::RunOptions& options) {
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Job> job,
                         opened.dialect->family().make_job(*opened.config));
  return train::run_training(*job, options);
}

}  // namespace aerie::models
