// `aerie doctor RUN|CONFIG`: what ails a run, and the single change that is worth most.
#include <cstdio>
#include <unistd.h>

#include "aerie/advisor/diagnosis.h"
#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/config/dialects/mm/mm_args.h"
#include "aerie/ui/report.h"
#include "command.h"
#include "json_output.h"
#include "peer_process.h"

namespace aerie::tools {

namespace {

constexpr int kDeepest = 4;              // folders below the one that a trial was given
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
      "  --steps N    of a trial (default 60)\n"
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

// The disk of the first path of the data that is there.
advisor::DiskKind disk_of(const advisor::RunFacts& facts) {
  for (const std::string& path : facts.data_paths) {
    const std::string real = expand_user(path);
    if (Env::real().exists(real)) return advisor::disk_kind(real);
  }
  return advisor::DiskKind::kUnknown;
}

Result<advisor::Diagnosis> diagnose_folder(const std::string& folder) {
  // Of versions that did not record their words; all of those runs were of speech.
  ui::ReportWords words;
  words.throughput = "audio_s_per_s";
  AERIE_ASSIGN_OR_RETURN(const ui::ReportInput input,
                         ui::load_report_input(Env::real(), folder, words));
  advisor::RunFacts facts = advisor::read_facts(input);
  const advisor::DiskKind disk = disk_of(facts);
  return advisor::diagnose(std::move(facts), disk);
}

// The folder at or below `folder` that holds metrics.jsonl; empty: none.
std::string run_below(const std::string& folder, int depth) {
  Env& env = Env::real();
  if (env.exists(join_path(folder, "metrics.jsonl"))) return folder;
  if (depth == 0) return "";
  const auto entries = env.list_dir(folder);
  if (!entries.ok()) return "";
  for (const DirEntry& entry : *entries) {
    if (!entry.is_dir) continue;
    if (std::string found = run_below(join_path(folder, entry.name), depth - 1); !found.empty())
      return found;
  }
  return "";
}

Result<std::string> path_of_this_program() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0 || size == static_cast<ssize_t>(sizeof path))
    return io_error("this program's own file cannot be found");
  return std::string(path, static_cast<size_t>(size));
}

// Short runs of a configuration, each in a process and a folder of its own.
class Trials {
 public:
  static Result<Trials> make(const DoctorArgs& args) {
    AERIE_ASSIGN_OR_RETURN(std::string program, path_of_this_program());
    Trials out(std::move(program), args);
    if (!out.mm_) return out;
    // In our own keys, so that changes have one name in every dialect.
    std::vector<std::string> show{out.program_, "config", "show"};
    show.insert(show.end(), args.rest.begin(), args.rest.end());
    AERIE_ASSIGN_OR_RETURN(const ProcessOutput shown, run_process(show, {}, /*with_errors=*/false));
    if (shown.exit_code != 0) {
      AERIE_ASSIGN_OR_RETURN(const ProcessOutput again, run_process(show, {}));
      return invalid_argument(tail_of(again.text));
    }
    AERIE_RETURN_IF_ERROR(Env::real().write_file(out.scratch_->file("config.yaml"), shown.text));
    return out;
  }

  // Trains with `change` (empty: none) and reads what was recorded.
  Result<advisor::Diagnosis> run(const std::string& change) {
    const std::string folder = scratch_->file(str_cat("trial", ++count_));
    std::vector<std::string> command{program_, "train"};
    std::vector<std::string> overrides{str_cat("trainer.max_steps=", steps_),
                                       "trainer.log_every_n_steps=1",
                                       "exp_manager.resume_if_exists=false"};
    if (!change.empty()) overrides.push_back(change);
    if (mm_) {
      command.insert(command.end(), {scratch_->file("config.yaml"), "--work-dir", folder});
      command.push_back("--cfg-options");
    } else {
      command.insert(command.end(), rest_.begin(), rest_.end());
      overrides.push_back("exp_manager.exp_dir=" + folder);
      overrides.push_back("exp_manager.checkpoint_callback_params.save_nemo_on_train_end=false");
    }
    for (std::string& one : overrides) {
      one.erase(0, one.find_first_not_of('+'));
      command.push_back(mm_ ? one : "++" + one);
    }
    AERIE_ASSIGN_OR_RETURN(const ProcessOutput output, run_process(command, {}));
    if (caught_signal() != 0) return Status(StatusCode::kCancelled, "stopped");
    const std::string run = run_below(folder, kDeepest);
    // 4: finished, but unhealthy, which is for the rules to say.
    if ((output.exit_code != 0 && output.exit_code != 4) || run.empty())
      return Status(output.exit_code == 2   ? StatusCode::kInvalidArgument
                    : output.exit_code == 3 ? StatusCode::kDataError
                                            : StatusCode::kUnavailable,
                    str_cat("a trial of ", steps_, " steps failed: ", tail_of(output.text)));
    return diagnose_folder(run);
  }

 private:
  Trials(std::string program, const DoctorArgs& args)
      : program_(std::move(program)),
        rest_(args.rest),
        steps_(args.steps),
        mm_(config::mm::is_mm_command_line(args.rest)),
        scratch_(std::make_unique<TempDir>()) {}

  std::string program_;
  std::vector<std::string> rest_;
  int64_t steps_;
  bool mm_;
  std::unique_ptr<TempDir> scratch_;
  int count_ = 0;
};

// Measures what the first changes are worth, until one of them is worth something.
Status try_changes(Trials& trials, int64_t most, bool quiet, advisor::Diagnosis& diagnosis) {
  const double before = diagnosis.facts.throughput;
  if (!(before > 0.0)) return ok_status();
  int64_t tried = 0;
  for (advisor::Finding& finding : diagnosis.speed) {
    if (finding.change.empty() || tried >= most) continue;
    ++tried;
    if (!quiet) {
      std::fprintf(stderr, "trying %s ...\n", printable(finding.change).c_str());
    }
    const auto with = trials.run(finding.change);
    if (with.status().code() == StatusCode::kCancelled) return with.status();
    if (!with.ok()) {
      diagnosis.measurements.push_back(
          str_cat(finding.change, " could not be tried: ", with.status().message()));
      continue;
    }
    finding.measured_speedup = with->facts.throughput / before;
    if (*finding.measured_speedup >= kWorthChanging) break;
    diagnosis.measurements.push_back(str_cat(finding.change, " was tried and gained nothing"));
  }
  std::erase_if(diagnosis.speed, [](const advisor::Finding& finding) {
    return finding.measured_speedup && *finding.measured_speedup < kWorthChanging;
  });
  advisor::order_findings(diagnosis);
  return ok_status();
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
  } else {
    AERIE_ASSIGN_OR_RETURN(Trials trials, Trials::make(args));
    if (!args.json) {
      std::fprintf(stderr, "training %lld steps as the configuration says ...\n",
                   static_cast<long long>(args.steps));
    }
    AERIE_ASSIGN_OR_RETURN(diagnosis, trials.run(""));
    AERIE_RETURN_IF_ERROR(try_changes(trials, args.trials, args.json, diagnosis));
  }
  if (args.json)
    print_document(nlohmann::ordered_json::parse(diagnosis.to_json()));
  else
    std::printf("%s", printable_lines(diagnosis.to_text()).c_str());
  return ok_status();
}

}  // namespace aerie::tools
