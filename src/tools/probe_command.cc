// `aerie probe`: linear probes of phonemes and of labels of utterances on frozen features.
#include <cstdio>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/models/nest/probe/run_probe.h"
#include "cli.h"
#include "command.h"

namespace aerie::tools {

Status run_probe(const std::vector<std::string>& args) {
  CLI::App app(
      "Fits linear classifiers of phoneme, speaker or any other label on the frozen features of "
      "every\n"
      "layer and prints how good they are beside random weights, plain log-mel frames and frame "
      "energy.\n"
      "Phonemes and labels are tested on noisy utterances of unseen voices, speakers on utterances "
      "of\n"
      "known voices that no probe was fitted on; the layer is chosen on the development part. "
      "Manifests\n"
      "carry `phonemes`: [[label, begin, end], ...] in seconds, `speaker` as `aerie data synth` "
      "writes\n"
      "them, and whatever --label names.",
      "aerie probe");
  app.footer(
      "example: aerie probe --model runs/SSL-NEST --corpus corpus\n"
      "         aerie probe --model nest.nemo --train train.json --dev dev.json --test test.json "
      "\\\n"
      "             --noise noise.json\n"
      "         aerie probe --model nest.nemo --train train.json --dev dev.json --test test.json "
      "\\\n"
      "             --label gender,language");
  probe::ProbeOptions options;
  std::string corpus;
  bool json = false;
  bool no_random = false, no_log_mel = false;
  app.add_option("--model,--model_path,--model-path", options.model,
                 ".nemo, native checkpoint, folder of a run, .ckpt or .safetensors")
      ->required();
  app.add_option("--config", options.config, "YAML of the model, for weights that come without");
  app.add_option("--corpus", corpus,
                 "folder of `aerie data synth`: stands for the five manifests in it");
  app.add_option("--train", options.train, "manifest that probes are fitted on");
  app.add_option("--dev", options.dev, "manifest that the layer is chosen on");
  app.add_option("--test", options.test, "manifest of unseen voices");
  app.add_option("--noise", options.noise, "noise manifest, mixed into every utterance");
  app.add_option("--noise-test", options.noise_test, "noise for the test part (default: --noise)");
  app.add_option("--label", options.labels,
                 "fields of the manifests that name a class of the utterance, one task each: "
                 "speaker, gender, language, ...")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--train-utterances", options.train_utterances, "at most so many, drawn at random")
      ->capture_default_str();
  app.add_option("--dev-utterances", options.dev_utterances, "likewise")->capture_default_str();
  app.add_option("--test-utterances", options.test_utterances, "likewise")->capture_default_str();
  app.add_option("--speaker-utterances", options.speaker_utterances,
                 "further ones of --train, for the speaker test")
      ->capture_default_str();
  app.add_option("--snr-min", options.min_snr_db, "dB")->capture_default_str();
  app.add_option("--snr-max", options.max_snr_db, "dB")->capture_default_str();
  app.add_option("--seed", options.seed, "everything random hangs off it")->capture_default_str();
  app.add_option("--l2", options.l2, "weights of the L2 penalty; the best on --dev is used")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--max-iterations", options.max_iterations, "of the optimizer, for each probe")
      ->capture_default_str();
  app.add_flag("--no-random", no_random, "without random weights");
  app.add_flag("--no-log-mel", no_log_mel, "without log-mel frames");
  app.add_option("--device", options.device, "cpu, cuda, cuda:N or auto")->capture_default_str();
  app.add_flag("--json", json, "print the results as JSON");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  options.random_weights = !no_random;
  options.log_mel = !no_log_mel;
  if (!corpus.empty()) {
    corpus = expand_user(corpus);
    const auto fill = [&](std::string& manifest, const char* name, bool optional) {
      const std::string path = join_path(corpus, name);
      if (manifest.empty() && (!optional || Env::real().exists(path))) manifest = path;
    };
    fill(options.train, "train.json", false);
    fill(options.dev, "dev.json", false);
    fill(options.test, "test.json", false);
    const bool own_noise = !options.noise.empty();
    fill(options.noise, "noise.json", true);
    if (!own_noise && !options.noise.empty()) fill(options.noise_test, "noise_test.json", true);
  }
  if (options.train.empty() || options.dev.empty() || options.test.empty())
    return invalid_argument("--train, --dev and --test are needed")
        .with_hint("or --corpus with a folder of `aerie data synth`");

  const SignalCatcher signals;
  AERIE_ASSIGN_OR_RETURN(const probe::ProbeReport report, probe::run_probe(options));
  std::printf(
      "%s",
      (json ? printable_json(probe::report_json(report)) : probe::report_text(report)).c_str());
  return ok_status();
}

}  // namespace aerie::tools
