#include "data_input.h"

#include <cstdio>

#include "aerie/base/parse.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"

namespace aerie::tools {

using config::ConfigArgs;

std::vector<config::ExtraOption> data_input_options() {
  return {{"--manifest", true},     {"--tars", true},           {"--noise-manifest", true},
          {"--min-duration", true}, {"--max-duration", true},   {"--batch-size", true},
          {"--sample-rate", true},  {"--skip-bad-lines", false}};
}

std::string data_input_help() {
  return "data, from a configuration (its train_ds and validation_ds) or named directly:\n"
         "  --manifest FILES       manifests, a list with commas\n"
         "  --tars PATTERN         archives of a tarred set, as audio_{0..63}.tar\n"
         "  --noise-manifest FILES\n"
         "  --min-duration S, --max-duration S, --batch-size N, --sample-rate HZ, "
         "--skip-bad-lines\n";
}

Result<double> number_option(const ConfigArgs& args, const std::string& name, double fallback,
                             double min, double max) {
  const auto found = args.extra.find(name);
  if (found == args.extra.end()) return fallback;
  auto value = parse_double(found->second, min, max);
  if (!value.ok()) return value.status().with_context(name);
  return *value;
}

Result<int> workers_option(const ConfigArgs& args) {
  constexpr double kMaxWorkers = 1024;
  AERIE_ASSIGN_OR_RETURN(const double workers,
                         number_option(args, "--workers", cpu_count(), 1, kMaxWorkers));
  return static_cast<int>(workers);
}

Result<DataInput> read_data_input(const ConfigArgs& args, bool train_only) {
  DataInput out;
  if (!args.words.empty())
    return invalid_argument(str_cat("unexpected argument '", args.words[0], "'"))
        .with_hint(str_cat("a manifest is given as --manifest ", args.words[0]));
  const bool has_config = !args.config_name.empty() || !args.files.empty();
  const auto text = [&](const std::string& name) {
    const auto found = args.extra.find(name);
    return found == args.extra.end() ? std::string() : found->second;
  };
  const std::string manifest = text("--manifest");
  if (has_config && !manifest.empty())
    return invalid_argument("give a configuration or --manifest, not both")
        .with_hint("model.train_ds.manifest_filepath=... changes the manifest of a configuration");
  if (has_config) {
    AERIE_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::load_run_config(args));
    for (const config::Finding& finding : loaded.findings.warnings())
      std::fprintf(stderr, "warning: %s\n", printable_lines(finding.to_string()).c_str());
    out.aerie = loaded.run.aerie;
    out.parts.push_back({"train_ds", loaded.run.model.train_ds});
    if (!train_only)
      for (size_t i = 0; i < loaded.run.model.validation_ds.size(); ++i)
        out.parts.push_back(
            {str_cat("validation_ds",
                     loaded.run.model.validation_ds.size() > 1 ? str_cat(".", i) : std::string()),
             loaded.run.model.validation_ds[i]});
    return out;
  }
  if (manifest.empty())
    return invalid_argument("no data given").with_hint("--manifest FILE, or a configuration");
  const auto paths = [](const std::string& value) {
    config::PathList list;
    list.groups = {{value}};
    list.origin = "command line";
    return list;
  };
  config::DatasetConfig dataset;
  dataset.manifest_filepath = paths(manifest);
  if (!text("--noise-manifest").empty()) dataset.noise_manifest = paths(text("--noise-manifest"));
  if (!text("--tars").empty()) {
    dataset.is_tarred = true;
    dataset.tarred_audio_filepaths = paths(text("--tars"));
  }
  dataset.shuffle = true;
  AERIE_ASSIGN_OR_RETURN(const double batch_size,
                         number_option(args, "--batch-size", 16, 1, 65536));
  AERIE_ASSIGN_OR_RETURN(const double sample_rate,
                         number_option(args, "--sample-rate", 16000, 1000, 1e6));
  dataset.batch_size = static_cast<int64_t>(batch_size);
  dataset.sample_rate = static_cast<int64_t>(sample_rate);
  if (!text("--min-duration").empty()) {
    AERIE_ASSIGN_OR_RETURN(dataset.min_duration, number_option(args, "--min-duration", 0, 0, 1e9));
  }
  if (!text("--max-duration").empty()) {
    AERIE_ASSIGN_OR_RETURN(dataset.max_duration, number_option(args, "--max-duration", 0, 0, 1e9));
  }
  out.aerie.audio.skip_bad_lines = args.extra.contains("--skip-bad-lines");
  out.parts.push_back({manifest, dataset});
  return out;
}

}  // namespace aerie::tools
