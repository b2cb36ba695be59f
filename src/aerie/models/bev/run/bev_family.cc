#include "aerie/models/bev/run/bev_family.h"

#include <utility>

#include "aerie/base/strings.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/config/bev_tuning.h"
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
  // Where the file has mm's keys, the batch has one of two other names.
  Result<std::vector<std::string>> with_changes(
      const std::vector<std::string>& args,
      const std::vector<std::string>& changes) const override {
    constexpr std::string_view kKey = "model.train_ds.batch_size=";
    if (changes.size() != 1 || !starts_with(changes[0], kKey))
      return internal_error("only the batch can be changed behind a command line");
    const std::string size = changes[0].substr(kKey.size());
    for (const char* key : {"model.train_ds.batch_size", "data.samples_per_gpu",
                            "data.train_dataloader.samples_per_gpu"}) {
      std::vector<std::string> out = args;
      out.push_back(str_cat("--", key, "=", size));
      const auto parsed = config::mm::parse_mm_args(out);
      if (!parsed.ok()) return parsed.status();
      const auto loaded = load_bev_config(Env::real(), *parsed);
      if (loaded.ok() && !loaded->run.data.train_ds.auto_batch_size &&
          str_cat(loaded->run.data.train_ds.batch_size) == size)
        return out;
    }
    return invalid_argument("the batch size of this configuration cannot be set from outside")
        .with_hint("write model.train_ds.batch_size or data.samples_per_gpu in the file");
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
