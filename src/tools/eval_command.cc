// `aerie eval`: the numbers of a checkpoint, with the configuration of its run.
#include <algorithm>
#include <cstdio>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/mm_args.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/run/bev_eval.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/run/nest_eval.h"
#include "command.h"

namespace aerie::tools {

namespace {

void print_eval_help() {
  std::printf(
      "usage: aerie eval --config-path DIR --config-name NAME [options] [overrides]\n"
      "       aerie eval CONFIG.yaml [options] [overrides]\n"
      "       aerie eval CONFIG.py CHECKPOINT [--eval mIoU] [--show-dir DIR] [options]\n\n"
      "NEST: prints the validation loss of a checkpoint, one value per validation set, and their\n"
      "mean. With aerie.validation_seed=fixed (the default) it is the number that training "
      "logs.\n\n"
      "The checkpoint is the first of: --model, exp_manager.resume_from_checkpoint,\n"
      "init_from_nemo_model or init_from_ptl_ckpt, the newest one in the folder of the run\n"
      "(exp_manager.resume_if_exists).\n\n"
      "  --model PATH        a .nemo, .ckpt or .safetensors file, a native checkpoint, a folder "
      "of\n"
      "                      them or of a run (also --checkpoint)\n"
      "  --test              model.test_ds instead of model.validation_ds\n"
      "  --json              machine-readable output\n"
      "%s\n"
      "LSS + Swin (mm-style .py, BEVFusion's YAML or our own, as `aerie train` takes them): "
      "prints\n"
      "the intersection over union of every class at every threshold, their means (mIoU), and for\n"
      "vehicles that of logits above 0. CHECKPOINT is a native checkpoint, a folder of them or of\n"
      "a run, an iter_N.pth or a .safetensors file; --model and --checkpoint name it too.\n\n"
      "  --eval METRIC       mIoU, or map (BEVFusion's name of it); also --metric\n"
      "  --show-dir DIR      a picture of every sample: cameras, truth, prediction, error\n"
      "  --show-limit N      of the first N samples only\n"
      "  --show-threshold P  predicted from this probability on (0.5)\n"
      "  --baselines         also an untrained model, and the mean of the training masks as a\n"
      "                      prediction for every sample\n"
      "  --out FILE.json     write the numbers there too\n"
      "  --test, --json      as above\n"
      "%s\n"
      "examples:\n"
      "  aerie eval --config-path=config --config-name=nest_fast-conformer \\\n"
      "    model.validation_ds.manifest_filepath=dev.json --model nest.nemo\n"
      "  aerie eval configs/baseline/lss_swin_nuscenes.py runs/baseline/iter_40000.pth \\\n"
      "    --eval mIoU --show-dir pictures --options data.val.data_root=/data/nuscenes\n",
      std::string(config::config_options_help()).c_str(),
      std::string(config::mm::mm_options_help()).c_str());
}

// The options of this command that mm-style programs have, taken out of the arguments.
struct BevArguments {
  std::vector<std::string> rest, metrics;
  std::string checkpoint, show_dir, out;
  int64_t show_limit = -1;
  double show_threshold = 0.5;
  bool baselines = false, test = false, json = false;

  // Options that evaluations of NEST do not have.
  bool only_bev() const {
    return !metrics.empty() || !show_dir.empty() || !out.empty() || show_limit >= 0 || baselines;
  }
};

bool is_metric(const std::string& word) {
  static const std::vector<std::string> kNames = {"mIoU",    "map",  "mDice",
                                                  "mFscore", "bbox", "segm"};
  return std::find(kNames.begin(), kNames.end(), word) != kNames.end();
}

Result<BevArguments> take_bev_arguments(const std::vector<std::string>& args) {
  BevArguments out;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const auto value = [&]() -> Result<std::string> {
      if (equals != std::string::npos) return args[i].substr(equals + 1);
      if (i + 1 < args.size()) return args[++i];
      return invalid_argument(str_cat(name, " needs a value"));
    };
    if (name == "--eval" || name == "--metric") {
      AERIE_ASSIGN_OR_RETURN(const std::string metric, value());
      out.metrics.push_back(metric);
      while (i + 1 < args.size() && is_metric(args[i + 1])) out.metrics.push_back(args[++i]);
    } else if (name == "--show-dir") {
      AERIE_ASSIGN_OR_RETURN(out.show_dir, value());
    } else if (name == "--out") {
      AERIE_ASSIGN_OR_RETURN(out.out, value());
    } else if (name == "--show-limit") {
      AERIE_ASSIGN_OR_RETURN(const std::string text, value());
      const auto number = parse_int64(text, 0);
      if (!number.ok())
        return invalid_argument(str_cat("--show-limit takes a whole number, not '", text, "'"));
      out.show_limit = *number;
    } else if (name == "--show-threshold") {
      AERIE_ASSIGN_OR_RETURN(const std::string text, value());
      const auto number = parse_double(text);
      if (!number.ok() || !(*number >= 0.0 && *number <= 1.0))
        return invalid_argument(
            str_cat("--show-threshold takes a number from 0 to 1, not '", text, "'"));
      out.show_threshold = *number;
    } else if (name == "--model" || name == "--checkpoint") {
      if (!out.checkpoint.empty())
        return invalid_argument("--model and --checkpoint are one option; both are given");
      AERIE_ASSIGN_OR_RETURN(out.checkpoint, value());
    } else if (name == "--baselines") {
      out.baselines = true;
    } else if (name == "--test") {
      out.test = true;
    } else if (name == "--json") {
      out.json = true;
    } else {
      out.rest.push_back(args[i]);
    }
  }
  return out;
}

Status run_bev_eval(const BevArguments& own) {
  for (const std::string& metric : own.metrics)
    if (metric != "mIoU" && metric != "map")
      return invalid_argument(str_cat("--eval ", metric, ": there are mIoU and map"))
          .with_hint("the classes of a map overlap: scores of one class a cell do not apply");
  if (!own.out.empty() && to_lower(file_extension(own.out)) != ".json")
    return invalid_argument(str_cat("--out ", own.out, " does not end with .json"))
        .with_hint(
            "numbers are written as JSON; pickles of predictions are not written, "
            "--show-dir draws them");
  AERIE_ASSIGN_OR_RETURN(const config::mm::MmArgs parsed, config::mm::parse_mm_args(own.rest));
  bev::BevEvalOptions options;
  options.checkpoint = own.checkpoint;
  std::vector<std::string> words = parsed.words;
  if (options.checkpoint.empty() && !words.empty()) {
    options.checkpoint = words.front();
    words.erase(words.begin());
  }
  if (!words.empty())
    return invalid_argument(str_cat("'", words[0], "' is neither an option nor a file"))
        .with_hint("keys are changed by --cfg-options KEY=VALUE");
  AERIE_ASSIGN_OR_RETURN(const bev::LoadedBevConfig loaded,
                         bev::load_bev_config(Env::real(), parsed));
  if (!own.json)
    for (const config::Finding& warning : loaded.findings.warnings())
      log_warn("config", warning.to_string());
  const SignalCatcher signals;
  options.config = &loaded.run;
  options.env = &Env::real();
  options.test = own.test;
  options.baselines = own.baselines;
  options.show_dir = expand_user(own.show_dir);
  options.show_limit = own.show_limit;
  options.show_threshold = static_cast<float>(own.show_threshold);
  options.stop = [] { return caught_signal() != 0; };
  AERIE_ASSIGN_OR_RETURN(const bev::BevEvalReport report, bev::evaluate_bev(options));
  if (!own.out.empty())
    AERIE_RETURN_IF_ERROR(
        Env::real().atomic_replace(expand_user(own.out), report.to_json() + "\n"));
  std::printf("%s%s",
              own.json ? printable_json(report.to_json()).c_str() : report.to_text().c_str(),
              own.json ? "\n" : "");
  return ok_status();
}

Status run_nest_eval(const config::ConfigArgs& parsed) {
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
  options.model_node = loaded.resolved.child("model");
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

}  // namespace

Status run_eval(const std::vector<std::string>& args) {
  if (std::find(args.begin(), args.end(), "--help") != args.end() ||
      std::find(args.begin(), args.end(), "-h") != args.end()) {
    print_eval_help();
    return ok_status();
  }
  // Whose command line it is shows once this command's own options are gone.
  AERIE_ASSIGN_OR_RETURN(const BevArguments own, take_bev_arguments(args));
  if (own.only_bev() || bev::is_bev_command_line(Env::real(), own.rest)) return run_bev_eval(own);
  AERIE_ASSIGN_OR_RETURN(
      const config::ConfigArgs parsed,
      config::parse_config_args(
          args, {{"--model", true}, {"--checkpoint", true}, {"--test", false}, {"--json", false}}));
  if (!parsed.cfg.empty()) {
    AERIE_ASSIGN_OR_RETURN(const std::string text, config::job_config_text(parsed));
    std::printf("%s", text.c_str());
    return ok_status();
  }
  return run_nest_eval(parsed);
}

}  // namespace aerie::tools
