// aerie config show | validate | diff | keys | convert
#include <cstdio>
#include <string>
#include <vector>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "command.h"
#include "config_bev.h"
#include "config_output.h"

namespace aerie::tools {
namespace {

using config::ConfigArgs;
using config::LoadedConfig;

void print_config_help() {
  std::printf(
      "usage: aerie config show     [OPTIONS] [OVERRIDES]   effective values and where each came "
      "from\n"
      "       aerie config validate [OPTIONS] [OVERRIDES]   check without running\n"
      "       aerie config diff A B [OPTIONS] [OVERRIDES]   what differs between two configs\n"
      "       aerie config keys     [PREFIX] [--markdown]   every key that exists, with help\n"
      "                             [--family bev]          ... of bird's-eye-view models\n"
      "       aerie config convert  FILE.py [-o FILE.yaml]  an mm-style configuration in our own "
      "keys\n\n"
      "%s"
      "  --json              machine-readable output\n\n"
      "examples:\n"
      "  aerie config show --config-path config --config-name nest_fast-conformer_fast \\\n"
      "    model.train_ds.manifest_filepath=train.json trainer.max_steps=1000\n"
      "  aerie config validate my_nest.yaml\n"
      "  aerie config diff --config-path config nest_fast-conformer nest_fast-conformer_fast\n"
      "  aerie config keys trainer\n"
      "  aerie config show configs/baseline/lss_swin_nuscenes.py --cfg-options "
      "runner.max_iters=100\n"
      "  aerie config convert configs/baseline/lss_swin_nuscenes.py -o baseline.yaml\n\n"
      "exit code: 0 fine, 2 the command line or the config is wrong\n",
      std::string(config::config_options_help()).c_str());
}

Status show(const ConfigArgs& args) {
  if (!args.cfg.empty()) {
    AERIE_ASSIGN_OR_RETURN(const std::string text, config::job_config_text(args));
    std::fputs(text.c_str(), stdout);
    return ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig loaded, config::load_run_config(args));
  print_warnings(loaded.findings);
  std::string text;
  if (args.extra.contains("--json")) {
    text = printable_json(config::config_json(loaded.resolved, loaded.idle_keys));
  } else {
    AERIE_ASSIGN_OR_RETURN(text, config::annotated_yaml(loaded.resolved, loaded.idle_keys));
  }
  std::fputs(text.c_str(), stdout);
  return ok_status();
}

Status validate(const ConfigArgs& args) {
  config::LoadOptions options;
  options.keep_errors = true;
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig loaded, config::load_run_config(args, options));
  return print_findings(loaded.composed.primary_file, loaded.findings,
                        args.extra.contains("--json"));
}

// A config of `diff`: a file, or a name in --config-path.
ConfigArgs one_side(const ConfigArgs& args, const std::string& name, bool is_file) {
  ConfigArgs side = args;
  side.words.clear();
  side.files.clear();
  side.config_name.clear();
  if (is_file)
    side.files.push_back(name);
  else
    side.config_name = name;
  return side;
}

Status diff(const ConfigArgs& args) {
  std::vector<ConfigArgs> sides;
  for (const std::string& file : args.files) sides.push_back(one_side(args, file, true));
  for (size_t i = 1; i < args.words.size(); ++i)
    sides.push_back(one_side(args, args.words[i], false));
  if (sides.size() != 2)
    return invalid_argument(str_cat("diff compares two configs, got ", sides.size()))
        .with_hint(
            "for example: aerie config diff --config-path config nest_fast-conformer my_nest");
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig before, config::load_run_config(sides[0]));
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig after, config::load_run_config(sides[1]));
  print_differences({before.composed.primary_file, before.resolved},
                    {after.composed.primary_file, after.resolved}, args.extra.contains("--json"));
  return ok_status();
}

Status keys(const ConfigArgs& args) {
  if (args.extra.contains("--markdown")) {
    std::fputs(config::nest_schema().markdown().c_str(), stdout);
    return ok_status();
  }
  return print_keys(config::nest_schema(), args.words.size() > 1 ? args.words[1] : "",
                    args.extra.contains("--json"));
}

}  // namespace

Status run_config(const std::vector<std::string>& args) {
  if (is_bev_config_command(args)) return run_bev_config(args);
  AERIE_ASSIGN_OR_RETURN(const ConfigArgs parsed,
                         config::parse_config_args(args, {{"--json"}, {"--markdown"}}));
  if (parsed.help) {
    print_config_help();
    return ok_status();
  }
  const std::vector<std::string> kVerbs = {"show", "validate", "diff", "keys", "convert"};
  const std::string verb = parsed.words.empty() ? "" : parsed.words[0];
  if (verb != "diff" && verb != "keys" && parsed.words.size() > 1) {
    const std::string& extra = parsed.words[1];
    return invalid_argument(str_cat("'", extra, "' is neither an option nor an override"))
        .with_hint(str_cat("an override has the form ", extra, "=value"));
  }
  if (verb == "show") return show(parsed);
  if (verb == "validate") return validate(parsed);
  if (verb == "diff") return diff(parsed);
  if (verb == "keys") return keys(parsed);
  const std::string near = nearest_name(verb, kVerbs);
  return invalid_argument(verb.empty() ? "config needs show, validate, diff, keys or convert"
                                       : str_cat("unknown: aerie config ", verb))
      .with_hint(near.empty() ? "`aerie help config` explains them"
                              : str_cat("did you mean '", near, "'?"));
}

}  // namespace aerie::tools
