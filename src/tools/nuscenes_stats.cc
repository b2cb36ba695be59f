// `aerie data stats --kind nuscenes`: what a data set consists of.
#include <cstdio>
#include <memory>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/nuscenes/data_report.h"
#include "cli.h"
#include "nuscenes_input.h"

namespace aerie::tools {

Status run_nuscenes_stats(const std::vector<std::string>& args) {
  CLI::App app(
      "Scenes, samples of each split, annotations, locations and their maps, the share of each "
      "map\n"
      "class, and pictures that are missing.",
      "aerie data stats --kind nuscenes");
  app.footer(
      "examples: aerie data stats --kind nuscenes --root data/nuscenes --split val\n"
      "          aerie data stats --kind nuscenes --config bev.yaml --json");
  NuscenesInput input;
  input.add_options(app);
  nuscenes::DataReportOptions options;
  options.num_threads = cpu_count();
  bool json = false;
  app.add_option("--probe", options.probes,
                 "samples whose masks are drawn for class shares, and whose files are measured")
      ->capture_default_str();
  app.add_option("--workers", options.num_threads, "threads (default: one per CPU)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--json", json, "machine-readable output");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const NuscenesParts parts, read_nuscenes_input(input, "all"));
  std::string all;
  for (const NuscenesParts::Part& part : parts.parts) {
    nuscenes::NuscenesDataset::Options open;
    open.quiet = json;
    open.threads = static_cast<unsigned>(options.num_threads);
    open.seed = parts.aerie.seed;
    open.keep_missing = true;  // they are counted
    AERIE_ASSIGN_OR_RETURN(const auto dataset, nuscenes::NuscenesDataset::open(part.config, open));
    AERIE_ASSIGN_OR_RETURN(const nuscenes::DataReport report,
                           nuscenes::report_data(*dataset, options));
    if (json)
      all += str_cat(all.empty() ? "[" : ",", printable_json(report.to_json()));
    else
      all += str_cat(all.empty() ? "" : "\n", part.name, ": ", report.to_text());
  }
  std::printf("%s%s", all.c_str(), json ? "]\n" : "");
  return ok_status();
}

}  // namespace aerie::tools
