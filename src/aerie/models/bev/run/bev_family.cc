#include "aerie/models/bev/run/bev_family.h"

#include <utility>

#include "aerie/base/strings.h"
#include "aerie/config/schema/devices.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/config/bev_tuning.h"
#include "aerie/models/bev/engine/precision_table.h"
#include "aerie/models/bev/run/bev_job.h"
#include "aerie/models/bev/run/bev_task.h"

namespace aerie::bev {
namespace {

class BevConfiguration final : public models::Configuration {
 public:
  explicit BevConfiguration(LoadedBevConfig loaded) : loaded_(std::move(loaded)) {}
  const LoadedBevConfig& loaded() const { return loaded_; }
  std::vector<std::string> warnings() const override {
    std::vector<std::string> out;
    for (const config::Finding& warning : loaded_.findings.warnings())
      out.push_back(warning.to_string());
    return out;
  }
  std::vector<std::string> notes() const override {
    std::vector<std::string> out = loaded_.notes;
    const std::string idle = config::idle_keys_sentence(loaded_.idle_keys);
    if (!idle.empty()) out.push_back("no effect on this run: " + idle);
    return out;
  }

 private:
  LoadedBevConfig loaded_;
};

class BevFamily final : public models::Family {
 public:
  std::string_view name() const override { return "bev"; }
  ui::ReportWords report_words() const override { return bev_report_words({BevConfig().classes}); }
  Result<std::unique_ptr<train::Job>> make_job(const models::Configuration& config) const override {
    // The family's configurations come from its own dialect alone.
    return make_bev_job(static_cast<const BevConfiguration&>(config).loaded());
  }
  Result<advisor::TuneSpace> tune_space(const models::Configuration& config,
                                        const advisor::TuneMachine& machine) const override {
    return bev_tune_space(static_cast<const BevConfiguration&>(config).loaded(), machine);
  }
};

class MmDialect final : public models::Dialect {
 public:
  std::string_view name() const override { return "mm"; }
  const models::Family& family() const override { return bev_family(); }
  bool accepts(const std::vector<std::string>& args) const override {
    return is_bev_command_line(Env::real(), args);
  }
  Result<std::optional<std::string>> show(const std::vector<std::string>& args) const override {
    AERIE_ASSIGN_OR_RETURN(const config::mm::MmArgs parsed, config::mm::parse_mm_args(args));
    if (!parsed.dump_precision) return std::optional<std::string>();
    // Without data, and in the precision that is written whatever the machine.
    AERIE_ASSIGN_OR_RETURN(const LoadedBevConfig loaded, load_bev_config(Env::real(), parsed));
    const int gpus = config::count_visible_gpus();
    const config::DevicesConfig& devices = loaded.run.trainer.devices;
    const bool gpu = gpus > 0 && loaded.run.trainer.accelerator != config::Accelerator::kCpu;
    AERIE_ASSIGN_OR_RETURN(
        std::string text,
        precision_table(loaded.run, gpu, devices.ids.empty() ? 0 : devices.ids.front()));
    return std::optional(std::move(text));
  }
  Result<std::unique_ptr<models::Configuration>> load(
      const std::vector<std::string>& args) const override {
    AERIE_ASSIGN_OR_RETURN(const config::mm::MmArgs parsed, config::mm::parse_mm_args(args));
    if (!parsed.words.empty())
      return invalid_argument(str_cat("'", parsed.words[0], "' is neither an option nor a file"))
          .with_hint(str_cat("keys are changed by --cfg-options ", parsed.words[0]));
    BevLoadOptions options;
    options.for_training = true;
    AERIE_ASSIGN_OR_RETURN(LoadedBevConfig loaded, load_bev_config(Env::real(), parsed, options));
    return std::unique_ptr<models::Configuration>(
        std::make_unique<BevConfiguration>(std::move(loaded)));
  }
  Result<std::vector<std::string>> with_changes(
      const std::vector<std::string>& args,
      const std::vector<std::string>& changes) const override {
    return with_batch(Env::real(), args, changes);
  }
};

}  // namespace

const models::Family& bev_family() {
  static const BevFamily family;
  return family;
}

const models::Dialect& mm_dialect() {
  static const MmDialect dialect;
  return dialect;
}

}  // namespace aerie::bev
