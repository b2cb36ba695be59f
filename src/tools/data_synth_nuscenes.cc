#include "data_synth_nuscenes.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/data/nuscenes/synth/synth_nuscenes.h"
#include "cli.h"
#include "json_output.h"

namespace aerie::tools {

namespace {

using nuscenes::SynthOptions;
using nuscenes::SynthReport;

void print_json(const SynthOptions& options, const SynthReport& report) {
  nlohmann::ordered_json out{{"out", options.out},
                             {"version", options.version_name()},
                             {"reused", report.reused},
                             {"scenes", report.scenes},
                             {"samples", report.samples}};
  if (!report.reused) {
    out["sample_data"] = report.sample_data;
    out["instances"] = report.instances;
    out["annotations"] = report.annotations;
    out["pictures"] = report.pictures;
    out["bytes"] = report.bytes;
    out["elapsed_s"] = report.elapsed_s;
  }
  print_document(out);
}

void print_summary(const SynthOptions& options, const SynthReport& report) {
  if (report.reused) {
    std::printf("%s holds this data set already: %s scenes, %s samples\n",
                printable(options.out).c_str(), group_digits(report.scenes).c_str(),
                group_digits(report.samples).c_str());
    return;
  }
  const std::pair<const char*, uint64_t> rows[] = {
      {"scenes", report.scenes},           {"samples", report.samples},
      {"sample_data", report.sample_data}, {"instances", report.instances},
      {"annotations", report.annotations}, {"pictures", report.pictures}};
  for (const auto& [name, count] : rows)
    std::printf("%-12s %12s\n", name, group_digits(count).c_str());
  std::printf("%s of %s in %s, %s\n", human_bytes(static_cast<double>(report.bytes)).c_str(),
              options.version_name().c_str(), printable(options.out).c_str(),
              human_duration(report.elapsed_s).c_str());
}

// "1600x900".
Status parse_image_size(const std::string& text, SynthOptions& options) {
  const std::vector<std::string> parts = split(text, 'x');
  if (parts.size() == 2) {
    const auto width = parse_int<int>(parts[0], 1, 100000);
    const auto height = parse_int<int>(parts[1], 1, 100000);
    if (width.ok() && height.ok()) {
      options.image_width = *width;
      options.image_height = *height;
      return ok_status();
    }
  }
  return invalid_argument(str_cat("--image-size ", printable(text), " is not WIDTHxHEIGHT"))
      .with_hint("1600x900, 800x450 or 400x225");
}

}  // namespace

Status run_data_synth_nuscenes(const std::vector<std::string>& args) {
  CLI::App app(
      "Makes a data set in nuScenes' format: an invented town, drawn by six cameras of a vehicle\n"
      "that drives through it, with all 13 tables, the map expansion of four locations, boxes and\n"
      "small point files. It also loads in the nuscenes-devkit. The same options always give the\n"
      "same files.\n"
      "  tiny         10 scenes of 4 samples, about 43 MB\n"
      "  small        10 scenes of 40 samples, a larger town, about 430 MB\n"
      "  tables-only  rows and map records as many as v1.0-trainval has (850 scenes, 2.6 million\n"
      "               rows of sample_data), about 2.7 GB, no pictures or points",
      "aerie data synth --kind nuscenes");
  app.footer(
      "example: aerie data synth --kind nuscenes --out town --seed 1\n"
      "         aerie data synth --kind nuscenes --out quick --scenes 2 --image-size 400x225\n"
      "then:    aerie data stats --kind nuscenes ...");
  SynthOptions options;
  std::string kind, size = "tiny", image_size = "1600x900";
  bool json = false;
  app.add_option("--out", options.out, "folder to write; made when absent")->required();
  app.add_option(
      "--version", options.version,
      "v1.0-mini, v1.0-trainval or v1.0-test: folder of the tables and names of the scenes "
      "(default: v1.0-mini; tables-only: v1.0-trainval)");
  app.add_option("--seed", options.seed, "everything random hangs off it")->capture_default_str();
  app.add_option("--size", size, "tiny, small or tables-only")->capture_default_str();
  app.add_option("--scenes", options.scenes,
                 "the first so many of the version's scenes (default: all)");
  app.add_option("--samples-per-scene", options.samples_per_scene,
                 "key frames, two a second (default: as the size says)");
  app.add_option("--image-size", image_size, "of the pictures, 16:9; the lenses follow")
      ->capture_default_str();
  app.add_option("--workers", options.num_workers, "threads (default: one per CPU)");
  app.add_option("--kind", kind, "nuscenes");
  app.add_flag("--force", options.force, "replace a synthetic data set made with other options");
  app.add_flag("--json", json, "print the summary as JSON");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  for (const char* name : {"--scenes", "--samples-per-scene"})
    if (app.count(name) > 0 &&
        (std::string(name) == "--scenes" ? options.scenes : options.samples_per_scene) < 1)
      return invalid_argument(str_cat(name, " must be at least 1"));
  AERIE_ASSIGN_OR_RETURN(options.size, nuscenes::parse_synth_size(size));
  AERIE_RETURN_IF_ERROR(parse_image_size(image_size, options));
  options.out = expand_user(options.out);

  const SignalCatcher signals;
  AERIE_ASSIGN_OR_RETURN(const SynthReport report, nuscenes::make_nuscenes(options));
  if (json) {
    print_json(options, report);
  } else {
    print_summary(options, report);
  }
  return ok_status();
}

}  // namespace aerie::tools
