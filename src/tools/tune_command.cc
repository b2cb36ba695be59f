// `aerie tune CONFIG`: finds batch and loader settings by short real runs, and writes a
// configuration that has them.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "aerie/advisor/tune_search.h"
#include "aerie/advisor/tune_text.h"
#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "command.h"
#include "families.h"
#include "json_output.h"
#include "tune_trials.h"
#include "version.h"

namespace aerie::tools {

namespace {

constexpr double kGpuMinutes = 10.0, kCpuMinutes = 2.5;
constexpr const char* kHeaderMark = "# Tuned by `aerie tune";

struct TuneArgs {
  std::vector<std::string> rest;  // the arguments of `aerie train`
  std::string out;
  std::optional<double> minutes;
  std::optional<advisor::BatchRule> batch;
  advisor::RateRule rate = advisor::RateRule::kKeep;
  bool json = false, help = false;
};

void print_tune_help() {
  std::printf(
      "usage: aerie tune CONFIG... [--out FILE] [--minutes M] [--batch fill|knee]\n"
      "                            [--scale-lr linear|sqrt] [--json]\n\n"
      "CONFIG is what `aerie train` would take (any family). Searches the largest batch (per "
      "bucket\nwhere there are buckets) that leaves 10 to 20 %% of the GPU's memory free, loader "
      "threads,\nprefetch, where audio is mixed or how pictures are decoded, precision and "
      "activation\nrecomputation. Every trial is a few real steps in a process and a folder of "
      "its own; one that\nruns out of memory is a row of the table. In the end start and choice "
      "are measured again in\nturn: what is not faster is not chosen. Prints what was tried and "
      "why, and writes a\nconfiguration that trains as it is.\n\n"
      "  --out FILE       the configuration to write (default: CONFIG_tuned.yaml here)\n"
      "  --minutes M      time for the search (default 10 on a GPU, 2.5 on a CPU)\n"
      "  --batch RULE     fill: the largest that leaves 10 to 20 %% of the memory free (default "
      "on a\n                   GPU); knee: the smallest past which throughput no longer grows "
      "(default on\n                   a CPU)\n"
      "  --scale-lr RULE  writes the learning rate of the linear or the square-root rule for the "
      "new\n                   batch; without it both are printed and it stays\n"
      "  --json           machine-readable output\n\n"
      "example: aerie tune --config-path=config --config-name=nest_quickstart \\\n"
      "           model.train_ds.manifest_filepath=train.json "
      "model.validation_ds.manifest_filepath=val.json\n"
      "         aerie train --config-path=. --config-name=nest_quickstart_tuned\n"
      "         aerie tune configs/baseline/lss_swin_quickstart.yaml --scale-lr sqrt\n");
}

Result<TuneArgs> read_tune_args(const std::vector<std::string>& args) {
  TuneArgs out;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = args[i].substr(0, args[i].find('='));
    const auto value = [&]() -> Result<std::string> {
      if (name.size() < args[i].size()) return args[i].substr(name.size() + 1);
      if (i + 1 >= args.size() || starts_with(args[i + 1], "--"))
        return invalid_argument(str_cat(name, " needs a value"));
      return args[++i];
    };
    if (args[i] == "--help" || args[i] == "-h") {
      out.help = true;
    } else if (args[i] == "--json") {
      out.json = true;
    } else if (name == "--out") {
      AERIE_ASSIGN_OR_RETURN(out.out, value());
    } else if (name == "--minutes") {
      AERIE_ASSIGN_OR_RETURN(const std::string text, value());
      const auto minutes = parse_double(text);
      if (!minutes.ok() || !(*minutes >= 0.1) || !(*minutes <= 10000.0))
        return invalid_argument(str_cat("--minutes takes 0.1 to 10000, got '", text, "'"));
      out.minutes = *minutes;
    } else if (name == "--batch") {
      AERIE_ASSIGN_OR_RETURN(const std::string text, value());
      if (text != "fill" && text != "knee")
        return invalid_argument(str_cat("--batch takes fill or knee, got '", text, "'"));
      out.batch =
          text == "fill" ? advisor::BatchRule::kFillMemory : advisor::BatchRule::kThroughput;
    } else if (name == "--scale-lr") {
      AERIE_ASSIGN_OR_RETURN(const std::string text, value());
      AERIE_ASSIGN_OR_RETURN(out.rate, advisor::parse_rate_rule(text));
    } else {
      out.rest.push_back(args[i]);
    }
  }
  if (!out.help && out.rest.empty())
    return invalid_argument("no configuration given")
        .with_hint("`aerie tune --help` shows how; the arguments are those of `aerie train`");
  return out;
}

// The name of the configuration without its folder and ending.
std::string stem_of(const std::vector<std::string>& args) {
  std::string name = "config";
  for (size_t i = 0; i < args.size(); ++i) {
    if (starts_with(args[i], "--config-name=")) name = args[i].substr(14);
    if (args[i] == "--config-name" && i + 1 < args.size()) name = args[i + 1];
    const bool file =
        ends_with(args[i], ".py") || ends_with(args[i], ".yaml") || ends_with(args[i], ".yml");
    if (file && args[i].find('=') == std::string::npos && !starts_with(args[i], "-"))
      name = args[i];
  }
  name = name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1);
  for (const char* end : {".yaml", ".yml", ".py"})
    if (ends_with(name, end)) name.resize(name.size() - std::string(end).size());
  return name.empty() ? "config" : name;
}

// Before minutes are spent: whether the file may be written.
Status check_output(const std::string& path) {
  Env& env = Env::real();
  if (!ends_with(path, ".yaml"))
    return invalid_argument(str_cat("--out ", path, ": a configuration is a .yaml file"));
  const std::string folder =
      path.find('/') == std::string::npos ? "." : path.substr(0, path.rfind('/'));
  if (!folder.empty() && !env.exists(folder))
    return invalid_argument(str_cat("--out ", path, ": there is no folder ", folder));
  if (!env.exists(path)) return ok_status();
  const auto text = env.read_file(path);
  if (text.ok() && starts_with(*text, kHeaderMark)) return ok_status();
  return invalid_argument(str_cat(path, " is there already and was not written by `aerie tune`"))
      .with_hint("name another file with --out");
}

// The command that trains with a written file.
std::string train_command_of(const std::string& path, bool hydra) {
  if (!hydra) return str_cat("aerie train ", path);
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  const std::string file = slash == std::string::npos ? path : path.substr(slash + 1);
  return str_cat("aerie train --config-path=", folder,
                 " --config-name=", file.substr(0, file.size() - 5));
}

// The effective configuration with the changes.
Result<std::string> changed_config(const TrialRunner& runner,
                                   const std::vector<std::string>& changes) {
  const std::vector<std::string> args = runner.train_args(changes);
  const models::Dialect* dialect = families().dialect_of(args);
  if (dialect == nullptr) return internal_error("the configuration is no longer known");
  AERIE_ASSIGN_OR_RETURN(const auto config, dialect->load(args));
  AERIE_ASSIGN_OR_RETURN(const auto job, dialect->family().make_job(*config));
  return job->config_yaml();
}

}  // namespace

Status run_tune(const std::vector<std::string>& arguments) {
  AERIE_ASSIGN_OR_RETURN(const TuneArgs args, read_tune_args(arguments));
  if (args.help) {
    print_tune_help();
    return ok_status();
  }
  const SignalCatcher signals;
  const LogLevel level = log_level();
  if (args.json) set_log_level(LogLevel::kError);
  auto opening = models::open_configuration(families(), args.rest);
  set_log_level(level);
  if (!opening.ok()) return opening.status();
  const models::Opened opened = std::move(opening).value();
  const models::Family& family = opened.dialect->family();
  const bool hydra = opened.dialect->name() == "hydra";
  const std::string out = args.out.empty() ? stem_of(args.rest) + "_tuned.yaml" : args.out;
  AERIE_RETURN_IF_ERROR(check_output(out));

  AERIE_ASSIGN_OR_RETURN(const auto job, family.make_job(*opened.config));
  AERIE_ASSIGN_OR_RETURN(const TuneHost host, tune_host(job->config().trainer));
  AERIE_ASSIGN_OR_RETURN(const advisor::TuneSpace space,
                         family.tune_space(*opened.config, host.machine));
  AERIE_ASSIGN_OR_RETURN(TrialRunner runner, TrialRunner::make(args.rest));

  advisor::TuneRules rules;
  rules.batch = args.batch.value_or(host.machine.gpu ? advisor::BatchRule::kFillMemory
                                                     : advisor::BatchRule::kThroughput);
  rules.budget_s = 60.0 * args.minutes.value_or(host.machine.gpu ? kGpuMinutes : kCpuMinutes);
  // About forty trials fit if starting them took no time.
  const double trial_s = std::clamp(std::round(rules.budget_s / 40.0), 1.0, 12.0);
  if (!args.json)
    std::fprintf(stderr, "tuning on %s, at most %.1f minutes, trials of %.0f s\n",
                 host.description.c_str(), rules.budget_s / 60.0, trial_s);
  ProcessTrials trials(runner, space, host, trial_s, /*say=*/!args.json);
  AERIE_ASSIGN_OR_RETURN(const advisor::TuneResult result, advisor::tune(space, rules, trials));

  advisor::TuneStory story;
  story.command = "aerie tune";
  for (const std::string& arg : arguments) story.command += " " + arg;
  story.date = iso_time(Clock::real().wall_ns());
  story.machine = host.description;
  const std::string version = version_text();
  story.version = version.substr(0, version.find('\n'));
  story.elapsed_s = trials.elapsed_s();
  story.rate = args.rate;
  story.file = out;
  story.train_command = train_command_of(out, hydra);
  AERIE_ASSIGN_OR_RETURN(const std::string yaml,
                         changed_config(runner, final_changes(space, result, args.rate)));
  AERIE_RETURN_IF_ERROR(
      Env::real().atomic_replace(out, tune_header(space, result, story) + yaml).with_context(out));
  if (args.json)
    print_document(nlohmann::ordered_json::parse(tune_json(space, result, story)));
  else
    for (const std::string& line : split(tune_text(space, result, story), '\n'))
      std::printf("%s\n", printable(line).c_str());
  return ok_status();
}

}  // namespace aerie::tools
