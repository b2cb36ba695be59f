#include "aerie/models/nest/run/nest_family.h"

#include <string>
#include <utility>

#include "aerie/base/printable.h"
#include "aerie/models/nest/config/nest_tuning.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/run/dry_run.h"
#include "aerie/models/nest/run/nest_job.h"

namespace aerie::nest {

namespace {

class NestConfiguration final : public models::Configuration {
 public:
  explicit NestConfiguration(config::LoadedConfig loaded) : loaded_(std::move(loaded)) {}
  const config::LoadedConfig& loaded() const { return loaded_; }
  std::vector<std::string> warnings() const override {
    std::vector<std::string> out;
    for (const config::Finding& warning : loaded_.findings.warnings())
      out.push_back(warning.to_string());
    return out;
  }
  std::vector<std::string> notes() const override {
    const std::string idle = config::idle_keys_sentence(loaded_.idle_keys);
    if (idle.empty()) return {};
    return {"no effect on this run: " + idle};
  }

 private:
  config::LoadedConfig loaded_;
};

// The family's configurations come from its own dialect alone.
const config::LoadedConfig& loaded_of(const models::Configuration& config) {
  return static_cast<const NestConfiguration&>(config).loaded();
}

class NestFamily final : public models::Family {
 public:
  std::string_view name() const override { return "nest"; }
  ui::ReportWords report_words() const override { return nest_report_words(); }
  Result<std::unique_ptr<train::Job>> make_job(const models::Configuration& config) const override {
    return train::make_nest_job(loaded_of(config));
  }
  Result<advisor::TuneSpace> tune_space(const models::Configuration& config,
                                        const advisor::TuneMachine& machine) const override {
    return config::nest_tune_space(loaded_of(config).run, machine);
  }
  Result<std::string> dry_run(const models::Configuration& config,
                              const models::DryRunRequest& request) const override {
    train::DryRunOptions options;
    options.config = &loaded_of(config);
    options.env = request.env;
    options.stop = request.stop;
    AERIE_ASSIGN_OR_RETURN(const train::DryRunReport report, train::dry_run_nest(options));
    return request.json ? printable_json(report.to_json()) + "\n" : report.to_text();
  }
};

// The command takes these before the dialect sees them; a misspelt one is told their names.
const std::vector<config::ExtraOption> kCommandOptions = {{"--dry-run", false}, {"--json", false}};

class HydraDialect final : public models::Dialect {
 public:
  std::string_view name() const override { return "hydra"; }
  const models::Family& family() const override { return nest_family(); }
  bool accepts(const std::vector<std::string>&) const override { return true; }
  Result<std::unique_ptr<models::Configuration>> load(
      const std::vector<std::string>& args) const override {
    AERIE_ASSIGN_OR_RETURN(const config::ConfigArgs parsed,
                           config::parse_config_args(args, kCommandOptions));
    config::LoadOptions options;
    options.for_training = true;
    AERIE_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::load_run_config(parsed, options));
    return std::unique_ptr<models::Configuration>(
        std::make_unique<NestConfiguration>(std::move(loaded)));
  }
  Result<std::vector<std::string>> with_changes(
      const std::vector<std::string>& args,
      const std::vector<std::string>& changes) const override {
    std::vector<std::string> out = args;
    for (const std::string& change : changes) out.push_back("++" + change);
    return out;
  }
  Result<std::optional<std::string>> show(const std::vector<std::string>& args) const override {
    AERIE_ASSIGN_OR_RETURN(const config::ConfigArgs parsed,
                           config::parse_config_args(args, kCommandOptions));
    if (parsed.cfg.empty()) return std::optional<std::string>();
    AERIE_ASSIGN_OR_RETURN(std::string text, config::job_config_text(parsed));
    return std::optional<std::string>(std::move(text));
  }
};

}  // namespace

const models::Family& nest_family() {
  static const NestFamily family;
  return family;
}

const models::Dialect& hydra_dialect() {
  static const HydraDialect dialect;
  return dialect;
}

}  // namespace aerie::nest
