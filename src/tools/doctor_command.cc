// `aerie doctor RUN|CONFIG`: what ails a run, and the single change that is worth most.
#include <algorithm>
#include <cstdio>
#include <set>

#include "aerie/advisor/diagnosis.h"
#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "command.h"
#include "json_output.h"
#include "trial_runner.h"

namespace aerie::tools {

namespace {

constexpr double kWorthChanging = 1.02;  // a trial that gains less gained nothing

struct DoctorArgs {
  std::vector<std::string> rest;  // a run's folder, or the arguments of `aerie train`
  int64_t steps = 60, trials = 3;
  bool json = false, help = false;
};

void print_doctor_help() {
  std::printf(
      "usage: aerie doctor RUN [--json]\n"
      "       aerie doctor CONFIG... [--steps N] [--trials N] [--json]\n\n"
      "Says what ails a run: where its time goes, what is wrong with it, and the single change "
      "worth\nmost, the others in order. A healthy run is called healthy.\n\n"
      "RUN is the folder of a run: gains are estimated from its records, its data need not be "
      "there.\nCONFIG is what `aerie train` would take (any family): a few steps are trained in a "
      "folder of\ntheir own, then again with the change that promises most, so that the gain is "
      "measured.\nNothing is changed and nothing is left behind.\n\n"
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

// The configuration as it is, in as many steps as every later trial will have.
Result<advisor::Diagnosis> run_first(TrialRunner& trials, DoctorArgs& args) {
  const auto say = [&] {
    if (!args.json)
      std::fprintf(stderr, "training %lld steps as the configuration says ...\n",
                   static_cast<long long>(args.steps));
  };
  say();
  AERIE_ASSIGN_OR_RETURN(advisor::Diagnosis diagnosis, run_trial(trials, args.steps, {}));
  const int64_t steps = advisor::steps_of_trial(diagnosis.facts, args.steps);
  if (steps == args.steps) return diagnosis;
  args.steps = steps;
  say();
  return run_trial(trials, args.steps, {});
}

// Measures what changes are worth, the most promising first, until none promises more than the best
// that was measured.
Status try_changes(TrialRunner& trials, const DoctorArgs& args, advisor::Diagnosis& diagnosis) {
  const double before = diagnosis.facts.throughput;
  if (!(before > 0.0)) return ok_status();
  std::set<std::string> tried;  // ids
  double best = 1.0;
  while (static_cast<int64_t>(tried.size()) < args.trials) {
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
    const auto with = run_trial(trials, args.steps, {finding.change});
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
  advisor::settle_trials(diagnosis, kWorthChanging);
  return ok_status();
}

// A run's folder alone shows what happened, not what would have: says so, and whether its data is
// still there to find out.
void tell_estimates(advisor::Diagnosis& diagnosis) {
  if (diagnosis.speed.empty()) return;
  std::string missing;
  for (const std::string& path : diagnosis.facts.data_paths)
    if (missing.empty() && !Env::real().exists(expand_user(path))) missing = path;
  diagnosis.measurements.push_back(
      missing.empty()
          ? "gains are estimates from the run's records; `aerie doctor CONFIG...` measures them"
          : str_cat("gains are estimates from the run's records: its data (", missing,
                    ") is not here"));
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
  AERIE_ASSIGN_OR_RETURN(DoctorArgs args, read_doctor_args(arguments));
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
    tell_estimates(diagnosis);
  } else {
    AERIE_RETURN_IF_ERROR(check_configuration(args.rest));
    AERIE_ASSIGN_OR_RETURN(TrialRunner trials, TrialRunner::make(args.rest));
    AERIE_ASSIGN_OR_RETURN(diagnosis, run_first(trials, args));
    AERIE_RETURN_IF_ERROR(try_changes(trials, args, diagnosis));
  }
  if (args.json)
    print_document(nlohmann::ordered_json::parse(diagnosis.to_json()));
  else
    for (const std::string& line : split(trim(diagnosis.to_text()), '\n'))
      std::printf("%s\n", printable(line).c_str());
  return ok_status();
}

}  // namespace aerie::tools
