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
  AERIE_ASSIGN_OR_RETURN(const train::JobDryRun report, train::JobDryRunner(*job, options).go());
  return request.json ? printable_json(report.to_json()) + "\n" : report.to_text();
}

Result<advisor::TuneSpace> Family::tune_space(const Configuration&,
                                              const advisor::TuneMachine&) const {
  return unsupported(str_cat("there is nothing to tune of ", std::string(name())));
}

Result<std::vector<std::string>> Dialect::with_changes(
    const std::vector<std::string>&, const std::vector<std::string>& changes) const {
  return unsupported(str_cat("the dialect ", std::string(name()), " cannot make changes such as ",
                             changes.empty() ? "" : changes[0]));
}

Result<Opened> load_configuration(const Families& families, const std::vector<std::string>& args) {
  Opened out;
  out.dialect = families.dialect_of(args);
  if (out.dialect == nullptr) {
    std::string known;
    for (const Dialect* one : families.dialects)
      known += str_cat(known.empty() ? "" : ", ", std::string(one->name()));
    return invalid_argument(str_cat("this is no configuration that is known here (", known, ")"));
  }
  AERIE_ASSIGN_OR_RETURN(out.config, out.dialect->load(args));
  return out;
}

void announce(const Configuration& config) {
  for (const std::string& warning : config.warnings()) log_warn("config", warning);
  for (const std::string& note : config.notes()) log_info("config", note);
}

Result<Opened> open_configuration(const Families& families, const std::vector<std::string>& args) {
  AERIE_ASSIGN_OR_RETURN(Opened out, load_configuration(families, args));
  announce(*out.config);
  return out;
}

Result<train::RunResult> train(const Opened& opened, const train::RunOptions& options) {
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Job> job,
                         opened.dialect->family().make_job(*opened.config));
  return train::run_training(*job, options);
}

}  // namespace aerie::models
