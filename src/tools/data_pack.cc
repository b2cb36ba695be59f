// `aerie data pack`: decoded audio, ready to be mapped.
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/data/speech/pack/pack_builder.h"
#include "aerie/tar/brace_expand.h"
#include "cli.h"
#include "data_command.h"
#include "data_kind.h"
#include "json_output.h"
#include "nuscenes_input.h"

namespace aerie::tools {

namespace {

using data::PackBuildOptions;
using data::PackBuildReport;

void print_json(const PackBuildOptions& options, const PackBuildReport& report, double elapsed_s) {
  const nlohmann::ordered_json out{{"out", options.out_dir},
                                   {"packed", report.num_packed},
                                   {"reused", report.num_reused},
                                   {"rounded", report.num_rounded},
                                   {"bad", report.num_bad},
                                   {"bad_list", report.bad},
                                   {"unmatched", report.num_unmatched},
                                   {"hours", report.packed_s / 3600.0},
                                   {"bytes", report.bytes},
                                   {"elapsed_s", elapsed_s}};
  print_document(out);
}

void print_text(const PackBuildOptions& options, const PackBuildReport& report, double elapsed_s) {
  std::printf("packed %s samples, %.3f hours, %s into %s (%.0f s of audio per second)\n",
              group_digits(report.num_packed).c_str(), report.packed_s / 3600.0,
              human_bytes(static_cast<double>(report.bytes)).c_str(),
              printable(options.out_dir).c_str(),
              elapsed_s > 0 ? report.packed_s / elapsed_s : 0.0);
  if (report.num_reused > 0)
    std::printf("%s were there already\n", group_digits(report.num_reused).c_str());
  if (report.num_rounded > 0)
    std::printf(
        "%s of them were rounded to 16 bits (resampled, or finer); --encoding float32 keeps them\n",
        group_digits(report.num_rounded).c_str());
  if (report.num_unmatched > 0)
    std::printf("%s manifest lines have no member in the archives\n",
                group_digits(report.num_unmatched).c_str());
  if (report.num_bad > 0) {
    std::printf("%s recordings could not be read and were left out:\n",
                group_digits(report.num_bad).c_str());
    for (const std::string& line : report.bad) std::printf("  %s\n", printable_lines(line).c_str());
    if (report.num_bad > report.bad.size())
      std::printf("  ... and %s more\n", group_digits(report.num_bad - report.bad.size()).c_str());
  }
}

}  // namespace

Status run_data_pack(const std::vector<std::string>& given) {
  std::vector<std::string> args = given;
  AERIE_ASSIGN_OR_RETURN(const DataKind kind, take_kind(args));
  if (kind == DataKind::kNuscenes) return run_nuscenes_pack(args);
  CLI::App app(
      "Decodes, resamples and cuts every segment of a manifest once and stores it as 16-bit\n"
      "samples (or FLAC, or floats) in files that training maps into memory. Samples that it "
      "holds\n"
      "already are left alone: an interrupted run can be repeated.",
      "aerie data pack");
  app.footer(
      "example: aerie data pack --manifest train.json --out cache\n"
      "then:    aerie train ... aerie.data.cache_dir=cache\n"
      "camera data: aerie data pack --kind nuscenes --help");
  PackBuildOptions options;
  options.workers = cpu_count();
  std::string encoding = "pcm16";
  std::string channels;
  std::string shard_size = "1GiB";
  std::vector<std::string> tars;
  bool json = false;
  app.add_option("--manifest,--manifest_filepath", options.manifests,
                 "manifests; several, or a list with commas")
      ->delimiter(',')
      ->required();
  app.add_option("--out", options.out_dir, "folder to fill; made when absent")->required();
  app.add_option("--tarred_audio_filepaths,--tars", tars,
                 "archives of a tarred set, as audio_{0..63}.tar or audio__OP_0..63_CL_.tar");
  app.add_option("--sample_rate,--sample-rate", options.read.sample_rate, "Hz")
      ->capture_default_str();
  app.add_option("--encoding", encoding,
                 "pcm16, flac (a third of the size, 30x the work) or float32 (keeps what pcm16 and "
                 "flac round: resampled audio, 24 bits; twice the size for those)")
      ->capture_default_str();
  app.add_option("--channel_selector,--channel-selector", channels,
                 "a channel, [0,1], or average; recordings must come down to one channel");
  app.add_flag("--trim_silence,--trim-silence", options.read.trim_silence,
               "cut silence at both ends");
  app.add_flag("--int_values,--int-values", options.read.int_values, "decode through integers");
  app.add_option("--min_duration,--min-duration", options.min_duration_s,
                 "leave out shorter lines, seconds");
  app.add_option("--max_duration,--max-duration", options.max_duration_s,
                 "leave out longer lines, seconds");
  app.add_option("--max_bad_fraction,--max-bad-fraction", options.max_bad_fraction,
                 "share of unreadable recordings above which the run ends")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--skip_bad_lines,--skip-bad-lines", options.skip_bad_lines,
               "leave out manifest lines that are no usable JSON");
  app.add_option("--shard_size,--shard-size", shard_size, "size of a file, about")
      ->capture_default_str();
  app.add_option("--index_dir,--index-dir", options.index_dir,
                 "where indexes of manifests and archives are kept (default: beside them)");
  app.add_option("--workers", options.workers, "threads (default: one per CPU)");
  app.add_flag("--json", json, "print the summary as JSON");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  AERIE_ASSIGN_OR_RETURN(options.encoding, data::parse_pack_encoding(encoding));
  AERIE_ASSIGN_OR_RETURN(options.shard_bytes, parse_bytes(shard_size));
  AERIE_ASSIGN_OR_RETURN(options.read.channels, audio::ChannelSelector::parse(channels));
  if (options.read.sample_rate <= 0) return invalid_argument("--sample_rate must be above 0");
  options.out_dir = expand_user(options.out_dir);
  for (const std::string& pattern : tars) {
    AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           tar::expand_shard_pattern(expand_user(pattern)));
    options.tar_paths.insert(options.tar_paths.end(), paths.begin(), paths.end());
  }

  const SignalCatcher signals;
  std::unique_ptr<Progress> progress;
  data::PackBuildHooks hooks;
  hooks.on_start = [&](uint64_t total) {
    ProgressOptions bar;
    bar.label = "pack";
    bar.total = total;
    bar.unit = "samples";
    progress = std::make_unique<Progress>(bar);
  };
  hooks.on_sample = [&] { progress->add(); };
  hooks.stop = [] { return caught_signal() != 0; };
  const int64_t begin_ns = Clock::real().monotonic_ns();
  const Result<PackBuildReport> report = data::build_pack(options, hooks);
  progress.reset();
  AERIE_RETURN_IF_ERROR(report.status());
  const double elapsed_s = static_cast<double>(Clock::real().monotonic_ns() - begin_ns) * 1e-9;
  if (json)
    print_json(options, *report, elapsed_s);
  else
    print_text(options, *report, elapsed_s);
  return ok_status();
}

}  // namespace aerie::tools
