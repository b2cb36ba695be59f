// `aerie data validate`: opens everything and lists what is broken.
#include <cstdio>
#include <memory>

#include "aerie/base/clock.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/dataset_report.h"
#include "data_command.h"
#include "data_input.h"
#include "data_kind.h"
#include "nuscenes_input.h"
#include "validation_output.h"

namespace aerie::tools {

Status run_data_validate(const std::vector<std::string>& given) {
  std::vector<std::string> args = given;
  AERIE_ASSIGN_OR_RETURN(const DataKind kind, take_kind(args));
  if (kind == DataKind::kNuscenes) return run_nuscenes_validate(args);
  std::vector<config::ExtraOption> options = data_input_options();
  options.push_back({"--json", false});
  options.push_back({"--quick", false});
  options.push_back({"--tolerance", true});
  options.push_back({"--workers", true});
  AERIE_ASSIGN_OR_RETURN(const config::ConfigArgs parsed, config::parse_config_args(args, options));
  if (parsed.help || args.empty()) {
    std::printf(
        "usage: aerie data validate [DATA] [OPTIONS] [OVERRIDES]\n\n"
        "Reads every recording of a data set and of its noise, as training would, and lists those\n"
        "that cannot be read, are empty, or are shorter than the manifest says.\n\n"
        "%s\n%s"
        "  --quick             headers only, nothing is decoded\n"
        "  --tolerance S       missing audio that is forgiven (default 0.05)\n"
        "  --workers N         threads (default: one per CPU)\n"
        "  --json              machine-readable output\n\n"
        "example: aerie data validate --manifest train.json --noise-manifest noise.json\n"
        "camera data: aerie data validate --kind nuscenes --help\n\n"
        "exit code: 0 all is well, 2 wrong command line, 3 something is broken\n",
        data_input_help().c_str(), std::string(config::config_options_help()).c_str());
    return args.empty() ? invalid_argument("no data given") : ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(const DataInput input, read_data_input(parsed, false));
  AERIE_ASSIGN_OR_RETURN(const int workers, workers_option(parsed));
  AERIE_ASSIGN_OR_RETURN(const double tolerance,
                         number_option(parsed, "--tolerance", 0.05, 0, 1e9));
  const bool json = parsed.extra.contains("--json");
  const SignalCatcher signals;
  std::string all;
  uint64_t broken = 0, checked = 0;
  for (const DataInput::Part& part : input.parts) {
    data::AudioDataset::Options open;
    open.quiet = json;
    open.num_threads = workers;
    AERIE_ASSIGN_OR_RETURN(const auto dataset,
                           data::AudioDataset::open(part.dataset, input.aerie, open));
    std::unique_ptr<Progress> progress;
    data::ValidateOptions validate;
    validate.num_threads = workers;
    validate.quick = parsed.extra.contains("--quick");
    validate.tolerance_s = tolerance;
    watch_check(validate, part.name, "files", progress);
    const Stopwatch watch;
    const Result<data::ValidateReport> report = data::validate_dataset(*dataset, validate);
    progress.reset();
    AERIE_RETURN_IF_ERROR(report.status());
    broken += report->broken.size();
    checked += report->checked;
    if (json) {
      all += str_cat(all.empty() ? "[" : ",", printable_json(report->to_json()));
      continue;
    }
    std::printf("%s: %s samples, %.2f hours, %.0f s of audio per second\n",
                printable(part.name).c_str(), group_digits(report->checked).c_str(),
                report->audio_s / 3600, report->audio_s / std::max(1e-9, watch.elapsed_s()));
    print_broken("broken", report->broken);
    print_broken("warnings", report->warnings);
  }
  if (json) std::printf("%s]\n", all.c_str());
  if (broken > 0)
    return data_error(str_cat(broken, " of ", checked, " recordings are broken"))
        .with_hint("take them out of the manifest or repair them");
  if (!json) std::printf("all is well\n");
  return ok_status();
}

}  // namespace aerie::tools
