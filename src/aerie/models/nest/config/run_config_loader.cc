#include "aerie/models/nest/config/run_config_loader.h"

#include <utility>

#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::config {
namespace {

HydraFamily nest() {
  return {nest_schema(), "nest_fast-conformer", "configs/nest"};
}

}  // namespace

Result<LoadedConfig> load_run_config(const ConfigArgs& args, const LoadOptions& options) {
  AERIE_ASSIGN_OR_RETURN(CheckedConfig checked, load_checked_config(nest(), args, options));
  LoadedConfig loaded{std::move(checked), {}};
  if (!loaded.findings.errors().empty()) return loaded;
  AERIE_ASSIGN_OR_RETURN(loaded.run, build_run_config(loaded.resolved));
  return loaded;
}

Result<std::string> job_config_text(const ConfigArgs& args) {
  return job_config_text(nest(), args);
}

}  // namespace aerie::config
