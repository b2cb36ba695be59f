// `aerie data synth`: a corpus of its own.
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/data/speech/synth/corpus.h"
#include "cli.h"
#include "data_command.h"
#include "data_synth_nuscenes.h"
#include "json_output.h"

namespace aerie::tools {

namespace {

using data::synth::CorpusOptions;
using data::synth::CorpusPart;
using data::synth::CorpusReport;

void print_json(const CorpusOptions& options, const CorpusReport& report) {
  nlohmann::ordered_json out{{"out", options.out},
                             {"reused", report.reused},
                             {"bytes", report.bytes},
                             {"elapsed_s", report.elapsed_s}};
  for (const CorpusPart& part : report.parts)
    out["parts"][part.name] = {{"manifest", join_path(options.out, part.name + ".json")},
                               {"files", part.num_files},
                               {"hours", part.hours},
                               {"speakers", part.num_speakers}};
  print_document(out);
}

void print_table(const CorpusOptions& options, const CorpusReport& report) {
  std::printf("%-12s %9s %9s %9s\n", "manifest", "files", "hours", "speakers");
  for (const CorpusPart& part : report.parts)
    std::printf("%-12s %9llu %9.3f %9s\n", part.name.c_str(),
                static_cast<unsigned long long>(part.num_files), part.hours,
                part.num_speakers > 0 ? std::to_string(part.num_speakers).c_str() : "-");
  if (report.reused) {
    std::printf("%s holds this corpus already\n", printable(options.out).c_str());
  } else {
    std::printf("%s in %s, %s\n", human_bytes(static_cast<double>(report.bytes)).c_str(),
                printable(options.out).c_str(), human_duration(report.elapsed_s).c_str());
  }
}

}  // namespace

Status run_data_synth(const std::vector<std::string>& args) {
  if (kind_of(args) == "nuscenes") return run_data_synth_nuscenes(args);
  CLI::App app(
      "Makes speech-like audio (a formant synthesiser: invented words, many voices, pauses, light\n"
      "reverberation) and noises (babble, hum, traffic, clicks), 16 kHz mono, with manifests that\n"
      "carry text, speaker and phoneme alignments. The same options always give the same files.",
      "aerie data synth");
  app.footer(
      "example: aerie data synth --out corpus --hours 1 --speakers 30 --seed 1\n"
      "then:    aerie train ... model.train_ds.manifest_filepath=corpus/train.json \\\n"
      "             model.train_ds.noise_manifest=corpus/noise.json\n"
      "camera data: aerie data synth --kind nuscenes --help");
  CorpusOptions options;
  std::string format = "wav";
  std::string kind = "nest";
  bool json = false;
  app.add_option("--out", options.out, "folder to write; made when absent")->required();
  app.add_option("--hours", options.hours, "speech in all, test and development parts included")
      ->capture_default_str();
  app.add_option("--speakers", options.num_speakers,
                 "voices; a fifth of them speaks in the test part only")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "everything random hangs off it")->capture_default_str();
  app.add_option("--format", format, "wav or flac")->capture_default_str();
  app.add_option("--min-duration", options.min_duration_s, "shortest utterance, seconds")
      ->capture_default_str();
  app.add_option("--max-duration", options.max_duration_s, "longest utterance, seconds")
      ->capture_default_str();
  app.add_option("--dev-share", options.dev_share, "share of the hours, voices of training")
      ->capture_default_str();
  app.add_option("--test-share", options.test_share, "share of the hours, voices of its own")
      ->capture_default_str();
  app.add_option("--noise-hours", options.noise_hours,
                 "noise, four fifths for training (default: a quarter of --hours, 0.2 to 5)");
  app.add_option("--workers", options.num_workers, "threads (default: one per CPU)");
  app.add_option("--kind", kind, "nest, or nuscenes, which has options of its own")
      ->capture_default_str();
  app.add_flag("--force", options.force, "replace a corpus made with other options");
  app.add_flag("--json", json, "print the summary as JSON");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  if (kind != "nest")
    return unsupported(str_cat("--kind ", kind, " cannot be synthesised"))
        .with_hint("--kind nest or --kind nuscenes");
  AERIE_ASSIGN_OR_RETURN(options.format, data::synth::parse_audio_format(format));
  options.out = expand_user(options.out);

  const SignalCatcher signals;
  AERIE_ASSIGN_OR_RETURN(const CorpusReport report, data::synth::write_corpus(options));
  if (json) {
    print_json(options, report);
  } else {
    print_table(options, report);
  }
  return ok_status();
}

}  // namespace aerie::tools
