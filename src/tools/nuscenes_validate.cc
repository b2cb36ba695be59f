// `aerie data validate --kind nuscenes`: reads everything and lists what is broken; draws a sample
// for human eyes.
#include <cstdio>
#include <memory>

#include "aerie/base/clock.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/nuscenes/contact_sheet.h"
#include "aerie/data/nuscenes/data_report.h"
#include "aerie/data/nuscenes/prediction_sheet.h"
#include "cli.h"
#include "nuscenes_input.h"
#include "validation_output.h"

namespace aerie::tools {

namespace {

using nuscenes::DataConfig;
using nuscenes::NuscenesDataset;

struct SheetOptions {
  std::string file;
  std::string sample;  // number in the split, or token
  bool augment = false;
};

Result<uint64_t> find_entry(const NuscenesDataset& dataset, const std::string& sample) {
  if (sample.empty()) return uint64_t{0};
  if (sample.size() == 32) {
    AERIE_ASSIGN_OR_RETURN(const nuscenes::Token token, nuscenes::parse_token(sample));
    for (uint64_t entry = 0; entry < dataset.size(); ++entry)
      if (dataset.index().sample(dataset.sample_of(entry)).token == token) return entry;
    return invalid_argument(str_cat("the split has no sample ", sample));
  }
  const auto number = parse_uint64(sample, 0, dataset.size() - 1);
  if (!number.ok())
    return number.status()
        .with_context("--sample")
        .with_hint("a number in the split, from 0, or a token of 32 digits");
  return *number;
}

Status write_sheet(const NuscenesParts& parts, const SheetOptions& options,
                   std::shared_ptr<const nuscenes::NuscenesIndex> index) {
  DataConfig config = parts.parts[0].config;
  if (!options.augment) {
    // Whole pictures, at a size that fits on a screen.
    config.image.size = {360, 640};
    config.image.bot_pct_lim = {0.0, 0.0};
    config.image.test_rule = nuscenes::TestRuleChoice::kLss;
    config.num_cameras = 0;
  }
  config.image.augment = options.augment;
  config.bev.augment = options.augment;
  config.sampler.type = nuscenes::SamplerType::kRandom;
  NuscenesDataset::Options open;
  open.quiet = true;
  open.index = std::move(index);
  AERIE_ASSIGN_OR_RETURN(const auto dataset, NuscenesDataset::open(config, open));
  AERIE_ASSIGN_OR_RETURN(const uint64_t entry, find_entry(*dataset, options.sample));
  AERIE_ASSIGN_OR_RETURN(const image::Image sheet,
                         nuscenes::contact_sheet(*dataset, entry, 0, parts.aerie.seed));
  return nuscenes::write_picture(Env::real(), expand_user(options.file), sheet);
}

Status check_sheet_name(const std::string& file) {
  const std::string ending = to_lower(file_extension(file));
  if (file.empty() || ending == ".png" || ending == ".jpg" || ending == ".jpeg") return ok_status();
  return invalid_argument(str_cat("--contact-sheet ", file, " is neither .png nor .jpg"));
}

}  // namespace

Status run_nuscenes_validate(const std::vector<std::string>& args) {
  CLI::App app(
      "Reads the tables anew, every map, and every picture of the split (default: all samples) as\n"
      "training would, and lists what is missing or broken. --contact-sheet draws one sample: its\n"
      "cameras with the map projected into them, and the truth from above.",
      "aerie data validate --kind nuscenes");
  app.footer(
      "examples: aerie data validate --kind nuscenes --root data/nuscenes\n"
      "          aerie data validate --kind nuscenes --root data/nuscenes --split val \\\n"
      "            --contact-sheet sample.png --sample 7 --sheet-only\n\n"
      "exit code: 0 all is well, 2 wrong command line, 3 something is broken");
  NuscenesInput input;
  input.add_options(app);
  nuscenes::DataCheckOptions check;
  check.num_threads = cpu_count();
  SheetOptions sheet;
  bool json = false, sheet_only = false;
  app.add_flag("--quick", check.quick, "headers of pictures only, nothing is decoded");
  app.add_option("--contact-sheet,--contact_sheet", sheet.file, "picture to write, .png or .jpg");
  app.add_option("--sample", sheet.sample, "of the sheet: number in the split (from 0) or token");
  app.add_flag("--augment", sheet.augment,
               "the sheet as training sees the sample in its first epoch");
  app.add_flag("--sheet-only,--sheet_only", sheet_only, "write the sheet and read nothing else");
  app.add_option("--workers", check.num_threads, "threads (default: one per CPU)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--json", json, "machine-readable output");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  AERIE_RETURN_IF_ERROR(check_sheet_name(sheet.file));
  if (sheet_only && sheet.file.empty())
    return invalid_argument("--sheet-only without --contact-sheet FILE");
  AERIE_ASSIGN_OR_RETURN(const NuscenesParts parts, read_nuscenes_input(input, "all"));
  const SignalCatcher signals;
  if (!sheet.file.empty()) {
    AERIE_RETURN_IF_ERROR(write_sheet(parts, sheet, nullptr));
    if (!json) std::printf("wrote %s\n", printable(sheet.file).c_str());
    if (sheet_only) return ok_status();
  }
  std::string all;
  uint64_t broken = 0, samples = 0;
  for (const NuscenesParts::Part& part : parts.parts) {
    nuscenes::NuscenesIndex::Options tables;
    tables.root = expand_user(part.config.root);
    tables.version = part.config.version;
    tables.use_cache = false;  // all rows are looked at
    tables.quiet = json;
    tables.find_files = part.config.pack_dir.empty();
    tables.threads = static_cast<unsigned>(check.num_threads);
    NuscenesDataset::Options open;
    AERIE_ASSIGN_OR_RETURN(open.index, nuscenes::NuscenesIndex::open(Env::real(), tables));
    open.quiet = true;
    open.keep_missing = true;
    DataConfig config = part.config;
    config.sampler.type = nuscenes::SamplerType::kRandom;
    AERIE_ASSIGN_OR_RETURN(const auto dataset, NuscenesDataset::open(config, open));
    std::unique_ptr<Progress> progress;
    watch_check(check, part.name, "samples", progress);
    const Stopwatch watch;
    const Result<nuscenes::DataCheckReport> report = nuscenes::check_data(*dataset, check);
    progress.reset();
    AERIE_RETURN_IF_ERROR(report.status());
    broken += report->broken.size();
    samples += report->samples;
    if (json) {
      all += str_cat(all.empty() ? "[" : ",", printable_json(report->to_json()));
      continue;
    }
    std::printf("%s: %s samples, %s pictures, %s, %.0f samples/s\n", part.name.c_str(),
                group_digits(report->samples).c_str(), group_digits(report->pictures).c_str(),
                human_bytes(static_cast<double>(report->bytes)).c_str(),
                static_cast<double>(report->samples) / std::max(1e-9, watch.elapsed_s()));
    print_broken("broken", report->broken);
    print_broken("warnings", report->warnings);
  }
  if (json) std::printf("%s]\n", all.c_str());
  if (broken > 0)
    return data_error(str_cat(broken, broken == 1 ? " thing is" : " things are", " broken in ",
                              samples, samples == 1 ? " sample" : " samples"))
        .with_hint("load the named files again, or leave their scenes out (splits)");
  if (!json) std::printf("all is well\n");
  return ok_status();
}

}  // namespace aerie::tools
