// `aerie data pack --kind nuscenes`: the pictures of key frames in a few large files.
#include <algorithm>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/nuscenes/pack/picture_packer.h"
#include "aerie/data/nuscenes/tables/splits.h"
#include "cli.h"
#include "json_output.h"
#include "nuscenes_input.h"

namespace aerie::tools {

namespace {

void print_text(const nuscenes::PicturePackOptions& options,
                const nuscenes::PicturePackReport& report, double elapsed_s) {
  std::printf(
      "packed %s pictures, %s into %s (%.0f MB/s)\n", group_digits(report.num_packed).c_str(),
      human_bytes(static_cast<double>(report.bytes)).c_str(), printable(options.out_dir).c_str(),
      static_cast<double>(report.bytes) / 1e6 / std::max(1e-9, elapsed_s));
  if (report.num_reused > 0)
    std::printf("%s were there already\n", group_digits(report.num_reused).c_str());
  if (report.num_bad == 0) return;
  std::printf("%s pictures could not be read and were left out:\n",
              group_digits(report.num_bad).c_str());
  for (const std::string& line : report.bad) std::printf("  %s\n", printable_lines(line).c_str());
  if (report.num_bad > report.bad.size())
    std::printf("  ... and %s more\n", group_digits(report.num_bad - report.bad.size()).c_str());
}

}  // namespace

Status run_nuscenes_pack(const std::vector<std::string>& args) {
  CLI::App app(
      "Stores the JPEG files of key frames, as they are and in the order of their samples, in a "
      "few\n"
      "large files with checksums. Pictures that the folder holds already are left alone: an\n"
      "interrupted run can be repeated.",
      "aerie data pack --kind nuscenes");
  app.footer(
      "example: aerie data pack --kind nuscenes --root data/nuscenes --out packed\n"
      "then:    model.train_ds.pack=packed");
  NuscenesInput input;
  nuscenes::PicturePackOptions options;
  options.workers = cpu_count();
  std::string shard_size = "1GiB";
  bool json = false;
  app.add_option("--root,--data-root,--data_root", input.root,
                 "folder with samples and v1.0-...; or the folder of one version")
      ->required();
  app.add_option("--out", options.out_dir, "folder to fill; made when absent")->required();
  app.add_option("--version", input.version,
                 "v1.0-mini, v1.0-trainval, v1.0-test (default: the only one)");
  app.add_option("--split", input.split, "train, val, ... (default: all samples)");
  app.add_option("--cache-dir,--cache_dir", input.cache_dir, "where the tables' index is kept");
  app.add_flag("--decode", options.decode, "decode every picture to find damaged ones");
  app.add_option("--max_bad_fraction,--max-bad-fraction", options.max_bad_fraction,
                 "share of unreadable pictures above which the run ends")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--shard_size,--shard-size", shard_size, "size of a file, about")
      ->capture_default_str();
  app.add_option("--workers", options.workers, "threads (default: one per CPU)")
      ->check(CLI::Range(1, 1024));
  app.add_flag("--json", json, "print the summary as JSON");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  AERIE_ASSIGN_OR_RETURN(options.shard_bytes, parse_bytes(shard_size));
  options.out_dir = expand_user(options.out_dir);
  nuscenes::NuscenesIndex::Options open;
  open.root = expand_user(input.root);
  open.version = input.version;
  open.cache_dir = expand_user(input.cache_dir);
  open.quiet = json;
  AERIE_ASSIGN_OR_RETURN(options.index, nuscenes::NuscenesIndex::open(Env::real(), open));
  nuscenes::SplitOptions split;
  split.split = input.split.empty() ? "all" : input.split;
  split.quiet = json;
  AERIE_ASSIGN_OR_RETURN(nuscenes::SplitSamples samples,
                         nuscenes::samples_of_split(Env::real(), *options.index, split));
  options.samples = std::move(samples.samples);

  const SignalCatcher signals;
  std::unique_ptr<Progress> progress;
  nuscenes::PicturePackHooks hooks;
  hooks.on_start = [&](uint64_t total) {
    ProgressOptions bar;
    bar.label = "pack";
    bar.total = total;
    bar.unit = "pictures";
    progress = std::make_unique<Progress>(bar);
  };
  hooks.on_pictures = [&](uint64_t count) { progress->add(count); };
  hooks.stop = [] { return caught_signal() != 0; };
  const Stopwatch watch;
  const Result<nuscenes::PicturePackReport> report = nuscenes::pack_pictures(options, hooks);
  progress.reset();
  AERIE_RETURN_IF_ERROR(report.status());
  if (!json) {
    print_text(options, *report, watch.elapsed_s());
    return ok_status();
  }
  print_document({{"out", options.out_dir},
                  {"packed", report->num_packed},
                  {"reused", report->num_reused},
                  {"bad", report->num_bad},
                  {"bad_list", report->bad},
                  {"left_out", samples.num_incomplete + samples.num_without_files},
                  {"bytes", report->bytes},
                  {"elapsed_s", watch.elapsed_s()}});
  return ok_status();
}

}  // namespace aerie::tools
