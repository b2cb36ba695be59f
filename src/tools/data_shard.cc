// `aerie data shard`: tarred data sets that NeMo reads.
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/data/speech/shard/shard_writer.h"
#include "cli.h"
#include "data_command.h"
#include "json_output.h"

namespace aerie::tools {

namespace {

using data::ShardBucketReport;
using data::ShardOptions;
using data::ShardReport;

void print_json(const ShardOptions& options, const ShardReport& report, double elapsed_s) {
  nlohmann::ordered_json out{{"target_dir", options.target_dir}, {"num_shards", options.num_shards},
                             {"dry_run", options.dry_run},       {"bad", report.num_bad},
                             {"bad_list", report.bad},           {"elapsed_s", elapsed_s}};
  for (const ShardBucketReport& bucket : report.buckets)
    out["buckets"].push_back({{"target_dir", bucket.target_dir},
                              {"entries", bucket.num_entries},
                              {"filtered", bucket.num_filtered},
                              {"written", bucket.num_written},
                              {"members", bucket.num_members},
                              {"hours", bucket.kept_s / 3600.0},
                              {"filtered_hours", bucket.filtered_s / 3600.0},
                              {"bytes", bucket.bytes}});
  print_document(out);
}

void print_table(const ShardOptions& options, const ShardReport& report) {
  const uint64_t shards = static_cast<uint64_t>(options.num_shards);
  std::printf("%-32s %9s %9s %9s %7s %9s %9s\n", "folder", "entries", "hours", "filtered", "shards",
              "per shard", "left out");
  for (const ShardBucketReport& bucket : report.buckets)
    std::printf("%-32s %9llu %9.3f %9llu %7d %9llu %9llu\n", printable(bucket.target_dir).c_str(),
                static_cast<unsigned long long>(bucket.num_entries), bucket.kept_s / 3600.0,
                static_cast<unsigned long long>(bucket.num_filtered), options.num_shards,
                static_cast<unsigned long long>(bucket.num_entries / shards),
                static_cast<unsigned long long>(bucket.num_entries % shards));
  uint64_t bytes = 0;
  for (const ShardBucketReport& bucket : report.buckets) bytes += bucket.bytes;
  if (!options.dry_run && !options.only_manifests)
    std::printf("%s in %s\n", human_bytes(static_cast<double>(bytes)).c_str(),
                printable(options.target_dir).c_str());
  if (report.num_bad == 0) return;
  std::printf("%s recordings could not be read and were left out:\n",
              group_digits(report.num_bad).c_str());
  for (const std::string& line : report.bad) std::printf("  %s\n", printable_lines(line).c_str());
}

}  // namespace

Status run_data_shard(const std::vector<std::string>& args) {
  CLI::App app(
      "Writes a tarred data set as NeMo's convert_to_tarred_audio_dataset.py does: audio_<i>.tar,\n"
      "tarred_audio_manifest.json, sharded_manifests/, metadata.yaml. Options have its names; the\n"
      "same seed gives the same shards. Every shard gets the same number of entries, what is left\n"
      "over is left out. Recordings are decoded before they are packed; those that cannot be read\n"
      "are named and left out. The folder appears under its name when it is complete.",
      "aerie data shard");
  app.footer(
      "example: aerie data shard --manifest_path train.json --target_dir tarred --num_shards 64 "
      "\\\n"
      "             --max_duration 60 --shuffle --shuffle_seed 1\n"
      "then:    aerie train ... model.train_ds.is_tarred=true \\\n"
      "             model.train_ds.manifest_filepath=tarred/tarred_audio_manifest.json \\\n"
      "             'model.train_ds.tarred_audio_filepaths=tarred/audio__OP_0..63_CL_.tar'");
  ShardOptions options;
  options.workers = cpu_count();
  bool no_shard_manifests = false;
  bool no_check = false;
  bool json = false;
  app.add_option("--manifest_path,--manifest-path,--manifest", options.manifest_path,
                 "manifest to read")
      ->required();
  app.add_option("--target_dir,--target-dir,--out", options.target_dir, "folder to write")
      ->capture_default_str();
  app.add_option("--num_shards,--num-shards", options.num_shards, "archives, per bucket")
      ->required();
  app.add_option("--max_duration,--max-duration", options.max_duration_s,
                 "only clips shorter than this, seconds");
  app.add_option("--min_duration,--min-duration", options.min_duration_s,
                 "only clips of at least this, seconds");
  app.add_flag("--shuffle", options.shuffle, "shuffle the entries before they are split");
  app.add_option("--shuffle_seed,--shuffle-seed", options.shuffle_seed, "default 0");
  app.add_flag("--keep_files_together,--keep-files-together", options.keep_files_together,
               "shuffle files, not entries: segments of one file stay together");
  app.add_flag("--sort_in_shards,--sort-in-shards", options.sort_in_shards,
               "sort each shard by duration");
  app.add_flag("--slice_with_offset,--slice-with-offset", options.slice_with_offset,
               "store each segment as a clip of its own");
  app.add_option("--buckets_num,--buckets-num", options.buckets_num,
                 "folders bucket1.. of increasing duration")
      ->capture_default_str();
  app.add_option("--dynamic_buckets_num,--dynamic-buckets-num", options.dynamic_buckets_num,
                 "duration bins estimated for metadata.yaml")
      ->capture_default_str();
  app.add_flag("--no_shard_manifests,--no-shard-manifests", no_shard_manifests,
               "write no sharded_manifests/");
  app.add_option("--force_codec,--force-codec", options.force_codec,
                 "transcode to wav, flac, ogg, opus or mp3");
  app.add_flag("--only_manifests,--only-manifests", options.only_manifests, "write no archives");
  app.add_flag("--dry_run,--dry-run", options.dry_run, "say what would be written");
  app.add_flag("--overwrite", options.overwrite, "replace a folder that is not empty");
  app.add_option("--max_bad_fraction,--max-bad-fraction", options.max_bad_fraction,
                 "share of unreadable recordings that may be left out")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--no_check,--no-check", no_check,
               "do not decode the recordings before they are packed");
  app.add_option("--workers", options.workers, "threads (default: one per CPU)");
  app.add_flag("--json", json, "print the summary as JSON");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  options.shard_manifests = !no_shard_manifests;
  options.check = !no_check;
  options.manifest_path = expand_user(options.manifest_path);
  options.target_dir = expand_user(options.target_dir);

  const SignalCatcher signals;
  std::unique_ptr<Progress> progress;
  data::ShardHooks hooks;
  hooks.on_check = [&](uint64_t total) {
    ProgressOptions bar;
    bar.label = "check";
    bar.total = total;
    bar.unit = "entries";
    progress = std::make_unique<Progress>(bar);
  };
  hooks.on_checked = [&] { progress->add(); };
  hooks.on_start = [&](uint64_t total) {
    progress.reset();  // of the check
    ProgressOptions bar;
    bar.label = "shard";
    bar.total = total;
    bar.unit = "entries";
    progress = std::make_unique<Progress>(bar);
  };
  hooks.on_entry = [&] { progress->add(); };
  hooks.stop = [] { return caught_signal() != 0; };
  const int64_t begin_ns = Clock::real().monotonic_ns();
  const Result<ShardReport> report = data::write_tarred_dataset(options, hooks);
  progress.reset();
  AERIE_RETURN_IF_ERROR(report.status());
  if (json)
    print_json(options, *report,
               static_cast<double>(Clock::real().monotonic_ns() - begin_ns) * 1e-9);
  else
    print_table(options, *report);
  return ok_status();
}

}  // namespace aerie::tools
