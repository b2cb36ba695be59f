// `aerie data stats`: what a data set consists of.
#include <cstdio>
#include <unistd.h>

#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/dataset_report.h"
#include "data_command.h"
#include "data_input.h"
#include "data_kind.h"
#include "nuscenes_input.h"

namespace aerie::tools {

Status run_data_stats(const std::vector<std::string>& given) {
  std::vector<std::string> args = given;
  AERIE_ASSIGN_OR_RETURN(const DataKind kind, take_kind(args));
  if (kind == DataKind::kNuscenes) return run_nuscenes_stats(args);
  std::vector<config::ExtraOption> options = data_input_options();
  options.push_back({"--json", false});
  options.push_back({"--probe", true});
  options.push_back({"--workers", true});
  AERIE_ASSIGN_OR_RETURN(const config::ConfigArgs parsed, config::parse_config_args(args, options));
  if (parsed.help || args.empty()) {
    std::printf(
        "usage: aerie data stats [DATA] [OPTIONS] [OVERRIDES]\n\n"
        "Hours, durations, codecs, sample rates, and how much padding different ways of making\n"
        "batches cost. Reads manifests and the headers of some recordings.\n\n"
        "%s\n%s"
        "  --probe N           recordings to look at (default 500; 0: none)\n"
        "  --workers N         threads (default: one per CPU)\n"
        "  --json              machine-readable output\n\n"
        "examples:\n"
        "  aerie data stats --manifest train.json\n"
        "  aerie data stats --kind nuscenes --root data/nuscenes   (see --kind nuscenes --help)\n"
        "  aerie data stats --config-path config --config-name nest_fast-conformer \\\n"
        "    model.train_ds.manifest_filepath=train.json\n",
        data_input_help().c_str(), std::string(config::config_options_help()).c_str());
    return args.empty() ? invalid_argument("no data given") : ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(const DataInput input, read_data_input(parsed, false));
  AERIE_ASSIGN_OR_RETURN(const double probes, number_option(parsed, "--probe", 500, 0, 1e12));
  AERIE_ASSIGN_OR_RETURN(const int workers, workers_option(parsed));
  const bool json = parsed.extra.contains("--json");
  std::string all;
  for (const DataInput::Part& part : input.parts) {
    data::AudioDataset::Options open;
    open.quiet = true;
    open.num_threads = workers;
    AERIE_ASSIGN_OR_RETURN(const auto dataset,
                           data::AudioDataset::open(part.dataset, input.aerie, open));
    data::ReportOptions report_options;
    report_options.probes = static_cast<uint64_t>(probes);
    report_options.num_threads = workers;
    report_options.aerie = input.aerie;
    AERIE_ASSIGN_OR_RETURN(const data::DatasetReport report,
                           data::report_dataset(*dataset, part.dataset, report_options));
    if (json)
      all += str_cat(all.empty() ? "[" : ",", printable_json(report.to_json()));
    else
      all += str_cat(all.empty() ? "" : "\n", printable(part.name), "\n", report.to_text());
  }
  std::printf("%s%s", all.c_str(), json ? "]\n" : "");
  return ok_status();
}

}  // namespace aerie::tools
