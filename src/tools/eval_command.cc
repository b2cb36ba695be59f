// `aerie eval`: validation loss of a checkpoint, with the configuration of its run.
#include <cstdio>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/run/nest_eval.h"
#include "command.h"

namespace aerie::tools {

namespace {

void print_eval_help() {
  std::printf(
      "usage: aerie eval --config-path DIR --config-name NAME [options] [overrides]\n"
      "       aerie eval CONFIG.yaml [options] [overrides]\n\n"
      "Prints the validation loss of a checkpoint: one value per validation set, and their mean.\n"
      "With aerie.validation_seed=fixed (the default) it is the number that training logs.\n\n"
      "The checkpoint is the first of: --model, exp_manager.resume_from_checkpoint,\n"
      "init_from_nemo_model or init_from_ptl_ckpt, the newest one in the folder of the run\n"
      "(exp_manager.resume_if_exists).\n\n"
      "  --model PATH        a .nemo, .ckpt or .safetensors file, a native checkpoint, a folder "
      "of\n"
      "                      them or of a run (also --checkpoint)\n"
      "  --test              model.test_ds instead of model.validation_ds\n"
      "  --json              machine-readable output\n"
      "%s\n"
      "example:\n"
      "  aerie eval --config-path=config --config-name=nest_fast-conformer \\\n"
      "    model.validation_ds.manifest_filepath=dev.json --model nest.nemo\n",
      std::string(config::config_options_help()).c_str());
}

}  // namespace

Status run_eval(const std::vector<std::string>& args) {
  AERIE_ASSIGN_OR_RETURN(
      const config::ConfigArgs parsed,
      config::parse_config_args(
          args, {{"--model", true}, {"--checkpoint", true}, {"--test", false}, {"--json", false}}));
  if (parsed.help) {
    print_eval_help();
    return ok_status();
  }
  if (!parsed.cfg.empty()) {
    AERIE_ASSIGN_OR_RETURN(const std::string text, config::job_config_text(parsed));
    std::printf("%s", text.c_str());
    return ok_status();
  }
  const bool json = parsed.extra.contains("--json");
  // Not for training: a training set that is still `???` does not matter here.
  AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::load_run_config(parsed));
  if (!json)
    for (const config::Finding& warning : loaded.findings.warnings())
      log_warn("config", warning.to_string());

  const SignalCatcher signals;
  train::NestEvalOptions options;
  options.config = &loaded.run;
  options.env = &Env::real();
  for (const char* name : {"--model", "--checkpoint"}) {
    const auto found = parsed.extra.find(name);
    if (found == parsed.extra.end()) continue;
    if (!options.checkpoint.empty())
      return invalid_argument("--model and --checkpoint are one option; both are given");
    options.checkpoint = found->second;
  }
  options.test = parsed.extra.contains("--test");
  options.stop = [] { return caught_signal() != 0; };
  AERIE_ASSIGN_OR_RETURN(const train::NestEvalReport report, train::evaluate_nest(options));
  std::printf("%s%s", json ? printable_json(report.to_json()).c_str() : report.to_text().c_str(),
              json ? "\n" : "");
  return ok_status();
}

}  // namespace aerie::tools
