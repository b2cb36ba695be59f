// `aerie features`: NeMo's extract_features, with its arguments.
#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/models/nest/features/extract.h"
#include "cli.h"
#include "command.h"
#include "json_output.h"

namespace aerie::tools {
namespace {

using features::BadRecording;
using features::ExtractOptions;
using features::ExtractReport;

void print_json(const ExtractReport& report, double elapsed_s) {
  nlohmann::ordered_json out{
      {"recordings", report.num_recordings}, {"files", report.num_files},
      {"layers", report.num_layers},         {"width", report.width},
      {"audio_s", report.audio_s},           {"elapsed_s", elapsed_s},
      {"manifest", report.manifest},         {"bad", nlohmann::ordered_json::array()}};
  for (const BadRecording& bad : report.bad)
    out["bad"].push_back({{"place", bad.place}, {"reason", bad.status.to_string()}});
  print_document(out);
}

}  // namespace

Status run_features(const std::vector<std::string>& given) {
  CLI::App app(
      "Writes the features that an encoder's layers make of recordings: one .npy per recording,\n"
      "float32 [layers, width, frames], and features.json, the input manifest with feature_path.\n"
      "The arguments are those of NeMo's extract_features.py. The model is in eval mode; "
      "recordings\n"
      "are read whole. Those that cannot be read are listed and left out, and the exit code is 3.",
      "aerie features");
  app.footer(
      "example: aerie features --model nest.nemo --input dev.json --output features\n"
      "         aerie features --model runs/SSL-NEST --input clips --type flac --layers last "
      "\\\n"
      "             --output features");
  ExtractOptions options;
  bool json = false;
  int64_t max_cache = -1;
  app.add_option("--model,--model_path,--model-path", options.model_path,
                 ".nemo, native checkpoint, folder of a run, .ckpt or .safetensors (NeMo's name: "
                 "--model_path)")
      ->required();
  app.add_option("--config", options.config, "YAML of the model, for weights that come without");
  app.add_flag("--ema", options.averaged, "the averaged weights of a checkpoint (exp_manager.ema)");
  app.add_option("-i,--input", options.input, "manifest (.json, .jsonl), folder or audio file")
      ->required();
  app.add_option("-o,--output", options.output, "folder to write; made when absent")->required();
  app.add_option("-l,--layers", options.layers, "all, last, or numbers from 0, such as 0,5,-1")
      ->capture_default_str();
  app.add_flag("--include_final_output,--include-final-output", options.include_final_output,
               "the encoder's output after the layers, as NeMo does from 3.1 on");
  app.add_option("-b,--batch_size,--batch-size", options.batch_size, "recordings at a time")
      ->capture_default_str();
  app.add_option("-w,--workers", options.workers, "threads that read audio and write files")
      ->capture_default_str();
  app.add_option("-d,--device", options.device, "cpu, cuda, cuda:N or auto")->capture_default_str();
  app.add_option("-t,--type", options.type, "extension to look for in a folder; several: wav,flac")
      ->capture_default_str();
  app.add_flag("--use_amp,--use-amp", options.use_amp, "mixed precision");
  app.add_option("--amp_dtype,--amp-dtype", options.amp_dtype, "float16 or bfloat16")
      ->capture_default_str();
  app.add_option("--channel_selector,--channel-selector", options.channel_selector,
                 "of recordings with several channels: average, or a number from 0");
  app.add_option("--max_cache,--max-cache", max_cache,
                 "accepted for NeMo's sake (also -mc): features are written as they are made");
  app.add_flag("--json", json, "print the summary as JSON");
  // A single dash with two letters, which argparse takes and CLI11 does not.
  std::vector<std::string> args = given;
  std::replace(args.begin(), args.end(), std::string("-mc"), std::string("--max_cache"));
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();

  const SignalCatcher signals;
  const Stopwatch watch;
  AERIE_ASSIGN_OR_RETURN(const ExtractReport report, features::extract_features(options));
  if (json) {
    print_json(report, watch.elapsed_s());
  } else {
    std::printf("%s files for %s recordings, %s of audio, in %s: [%lld, %lld, frames] each\n%s\n",
                group_digits(report.num_files).c_str(), group_digits(report.num_recordings).c_str(),
                human_duration(report.audio_s).c_str(), human_duration(watch.elapsed_s()).c_str(),
                static_cast<long long>(report.num_layers), static_cast<long long>(report.width),
                printable(report.manifest).c_str());
  }
  if (report.bad.empty()) return ok_status();
  std::string text = str_cat(report.bad.size(), " of ", report.num_files + report.bad.size(),
                             " recordings have no features:");
  for (const BadRecording& bad : report.bad)
    text += str_cat("\n  ", printable(bad.place), ": ", bad.status.to_string());
  return data_error(std::move(text));
}

}  // namespace aerie::tools
