// `aerie doctor RUN|CONFIG`: what ails a run, and the single change that is worth most.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>

#include "aerie/advisor/diagnosis.h"
#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/process.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/devices.h"
#include "aerie/train/run_lock.h"
#include "command.h"
#include "json_output.h"
#include "trial_runner.h"

namespace aerie::tools {

namespace {

constexpr double kWorthChanging = 1.02;  // a trial that gains less gained nothing
constexpr int64_t kTrialSteps = 60;
// Of a run that was recorded: about as long, whatever its steps take.
constexpr double kRunTrialSeconds = 20.0, kFewestTrialSteps = 10.0;
constexpr const char* kRunConfig = "config.yaml";

struct DoctorArgs {
  std::vector<std::string> rest;  // a run's folder, or the arguments of `aerie train`
  std::optional<int64_t> steps;
  int64_t trials = 3;
  bool json = false, help = false;
};

void print_doctor_help() {
  std::printf(
      "usage: aerie doctor RUN [--steps N] [--trials N] [--json]\n"
      "       aerie doctor CONFIG... [--steps N] [--trials N] [--json]\n\n"
      "Says what ails a run: where its time goes, what is wrong with it, and the single change "
      "worth\nmost, the others in order. A healthy run is called healthy.\n\n"
      "RUN is the folder of a run; its data need not be there. Where it is, and the run has ended, "
      "the\n"
      "change that promises most is tried: a few steps of the run's configuration, then with the "
      "change.\nElse gains are estimated from its records, which is said.\n"
      "CONFIG is what `aerie train` would take (any family): tried in the same way.\nTrials are in "
      "folders of their own. Nothing is changed and nothing is left behind.\n\n"
      "  --steps N    of a trial (default 60; on a GPU as many more as 8 seconds take)\n"
      "  --trials N   changes tried at most (default 3; 0: estimates alone)\n"
      "  --json       machine-readable output\n\n"
      "example: aerie doctor nemo_experiments/SSL-NEST-FastConformer\n"
      "         aerie doctor --config-path=config --config-name=nest_quickstart "
      "model.train_ds.num_workers=0\n");
}

Result<DoctorArgs> read_doctor_args(const std::vector<std::string>& args) {
  DoctorArgs out;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto number = [&](int64_t low, int64_t high) -> Result<int64_t> {
      if (i + 1 >= args.size()) return invalid_argument(str_cat(args[i], " needs a number"));
      auto value = parse_int64(args[i + 1], low, high);
      if (!value.ok()) return invalid_argument(value.status().message()).with_context(args[i]);
      ++i;
      return value;
    };
    if (args[i] == "--help" || args[i] == "-h") {
      out.help = true;
    } else if (args[i] == "--json") {
      out.json = true;
    } else if (args[i] == "--steps") {
      AERIE_ASSIGN_OR_RETURN(out.steps, number(5, 1'000'000));
    } else if (args[i] == "--trials") {
      AERIE_ASSIGN_OR_RETURN(out.trials, number(0, 100));
    } else {
      out.rest.push_back(args[i]);
    }
  }
  if (!out.help && out.rest.empty())
    return invalid_argument("no run and no configuration given")
        .with_hint("`aerie doctor --help` shows both forms");
  return out;
}

Result<advisor::Diagnosis> run_trial(TrialRunner& trials, int64_t steps,
                                     const std::vector<std::string>& changes) {
  AERIE_ASSIGN_OR_RETURN(const std::string run, trials.train(changes, {.steps = steps}));
  return diagnose_folder(run);
}

// The configuration as it is, in as many steps as every later trial will have: `steps`, which grow
// on a GPU.
Result<advisor::Diagnosis> run_first(TrialRunner& trials, const DoctorArgs& args, int64_t& steps) {
  const auto say = [&] {
    if (!args.json)
      std::fprintf(stderr, "training %lld steps as the configuration says ...\n",
                   static_cast<long long>(steps));
  };
  say();
  AERIE_ASSIGN_OR_RETURN(advisor::Diagnosis diagnosis, run_trial(trials, steps, {}));
  const int64_t needed = advisor::steps_of_trial(diagnosis.facts, steps);
  if (needed == steps) return diagnosis;
  steps = needed;
  say();
  return run_trial(trials, steps, {});
}

// Measures what changes are worth beside a trial without them, the most promising first, until none
// promises more than the best that was measured. `tried`: ids that are not to be.
Status try_changes(TrialRunner& trials, const DoctorArgs& args, int64_t steps, double before,
                   std::set<std::string> tried, advisor::Diagnosis& diagnosis) {
  if (!(before > 0.0)) return ok_status();
  const auto most = static_cast<int64_t>(tried.size()) + args.trials;
  double best = 1.0;
  while (static_cast<int64_t>(tried.size()) < most) {
    const auto next = std::find_if(
        diagnosis.speed.begin(), diagnosis.speed.end(), [&](const advisor::Finding& finding) {
          return !finding.change.empty() && !tried.contains(finding.id) &&
                 finding.estimated_speedup() > best;
        });
    if (next == diagnosis.speed.end()) break;
    advisor::Finding& finding = *next;
    tried.insert(finding.id);
    if (!args.json) {
      std::fprintf(stderr, "trying %s ...\n", printable(finding.change).c_str());
    }
    const auto with = run_trial(trials, steps, {finding.change});
    if (with.status().code() == StatusCode::kCancelled) return with.status();
    if (!with.ok()) {
      diagnosis.measurements.push_back(
          str_cat(finding.change, " could not be tried: ", with.status().message()));
      continue;
    }
    finding.measured_speedup = with->facts.throughput / before;
    best = std::max(best, *finding.measured_speedup);
    if (*finding.measured_speedup < kWorthChanging)
      diagnosis.measurements.push_back(str_cat(finding.change, " was tried and gained nothing"));
  }
  return ok_status();
}

Result<advisor::Diagnosis> diagnose_config(const DoctorArgs& args) {
  AERIE_ASSIGN_OR_RETURN(TrialRunner trials, TrialRunner::make(args.rest));
  int64_t steps = args.steps.value_or(kTrialSteps);
  AERIE_ASSIGN_OR_RETURN(advisor::Diagnosis diagnosis, run_first(trials, args, steps));
  const double before = diagnosis.facts.throughput;
  AERIE_RETURN_IF_ERROR(try_changes(trials, args, steps, before, {}, diagnosis));
  advisor::settle_trials(diagnosis, kWorthChanging);
  return diagnosis;
}

// Whether a process is at work in the folder of a run; elsewhere one may be.
bool going_on(const std::string& folder) {
  const auto text = Env::real().read_file(join_path(folder, train::kLockName), 65536);
  if (!text.ok()) return false;
  const auto lock = train::LockRecord::from_json(*text);
  return lock.ok() && process_life(lock->owner) != ProcessLife::kDead;
}

// Why the changes that a run's records suggest cannot be tried here; empty: they can.
std::string why_not_tried(const std::string& folder, const DoctorArgs& args,
                          const advisor::Diagnosis& diagnosis) {
  if (const std::string missing = missing_data(diagnosis.facts); !missing.empty())
    return str_cat("its data (", missing, ") is not here");
  if (std::none_of(diagnosis.speed.begin(), diagnosis.speed.end(),
                   [](const advisor::Finding& finding) { return !finding.change.empty(); }))
    return "there is no single setting to try";
  if (args.trials == 0) return "nothing was tried (--trials 0)";
  if (!Env::real().exists(join_path(folder, kRunConfig))) return "its config.yaml is not here";
  if (going_on(folder)) return "the run is going on";
  if (diagnosis.facts.gpu && config::count_visible_gpus() == 0)
    return "it ran on a GPU, and there is none here";
  return "";
}

// Trials of a run's own configuration: what the changes that its records suggest gain here. What
// does not show in them keeps its estimate.
Status measure_run(const std::string& folder, const DoctorArgs& args,
                   advisor::Diagnosis& diagnosis) {
  if (diagnosis.speed.empty()) return ok_status();
  const auto estimates = [&](const std::string& why) {
    diagnosis.measurements.push_back(str_cat("gains are estimates from the run's records: ", why));
    return ok_status();
  };
  if (const std::string why = why_not_tried(folder, args, diagnosis); !why.empty())
    return estimates(why);
  const advisor::RunFacts& facts = diagnosis.facts;
  auto trials = TrialRunner::make(
      facts.family.empty() || facts.family == "nest"
          ? std::vector<std::string>{"--config-path=" + folder, "--config-name=config"}
          : std::vector<std::string>{join_path(folder, kRunConfig)});
  if (!trials.ok()) return estimates(trials.status().message());
  const double in_time = kRunTrialSeconds * 1e3 / std::max(1e-3, facts.step_ms);
  int64_t steps = args.steps.value_or(static_cast<int64_t>(
      std::clamp(in_time, kFewestTrialSteps, static_cast<double>(kTrialSteps))));
  const auto first = run_first(*trials, args, steps);
  if (first.status().code() == StatusCode::kCancelled) return first.status();
  if (!first.ok()) return estimates(first.status().message());
  if (first->facts.gpu != facts.gpu || first->facts.world != facts.world)
    return estimates(str_cat("here it would be another run (", first->facts.engine, ", ",
                             first->facts.world, " ranks)"));
  std::set<std::string> not_seen;
  for (const advisor::Finding& finding : diagnosis.speed)
    if (std::none_of(first->speed.begin(), first->speed.end(),
                     [&](const advisor::Finding& here) { return here.id == finding.id; }))
      not_seen.insert(finding.id);
  AERIE_RETURN_IF_ERROR(
      try_changes(*trials, args, steps, first->facts.throughput, not_seen, diagnosis));
  for (const advisor::Finding& finding : diagnosis.speed)
    if (not_seen.contains(finding.id))
      diagnosis.measurements.push_back(str_cat(finding.id, " does not show in a trial of ", steps,
                                               " steps here: its gain is an estimate"));
  advisor::settle_trials(diagnosis, kWorthChanging);
  return ok_status();
}

// What cannot be a configuration was meant as a run.
Status check_configuration(const std::vector<std::string>& args) {
  const std::string& first = args[0];
  if (args.size() > 1 || starts_with(first, "-") || first.find('=') != std::string::npos)
    return ok_status();
  const bool file = Env::real().exists(expand_user(first));
  const bool named =
      ends_with(first, ".py") || ends_with(first, ".yaml") || ends_with(first, ".yml");
  if (file && named) return ok_status();
  if (!file)
    return invalid_argument(
        str_cat(first, ": there is no such folder of a run and no such configuration"));
  return invalid_argument(str_cat(first, " is neither the folder of a run nor a configuration"))
      .with_hint(
          "give the folder that `aerie train` printed at its end, or what it was started with");
}

}  // namespace

Status run_doctor(const std::vector<std::string>& arguments) {
  AERIE_ASSIGN_OR_RETURN(const DoctorArgs args, read_doctor_args(arguments));
  if (args.help) {
    print_doctor_help();
    return ok_status();
  }
  const SignalCatcher signals;
  advisor::Diagnosis diagnosis;
  const std::string path = expand_user(args.rest[0]);
  const auto file = Env::real().stat(path);
  if (args.rest.size() == 1 && file.ok() && file->is_dir) {
    AERIE_ASSIGN_OR_RETURN(diagnosis, diagnose_folder(path));
    AERIE_RETURN_IF_ERROR(measure_run(path, args, diagnosis));
  } else {
    AERIE_RETURN_IF_ERROR(check_configuration(args.rest));
    AERIE_ASSIGN_OR_RETURN(diagnosis, diagnose_config(args));
  }
  if (args.json)
    print_document(nlohmann::ordered_json::parse(diagnosis.to_json()));
  else
    for (const std::string& line : split(trim(diagnosis.to_text()), '\n'))
      std::printf("%s\n", printable(line).c_str());
  return ok_status();
}

}  // namespace aerie::tools
