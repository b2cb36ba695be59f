// `aerie train`: NeMo's or mmsegmentation's command line, config to trained model.
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/mm_args.h"
#include "aerie/dist/board.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/train/run.h"
#include "auto_batch.h"
#include "command.h"
#include "families.h"
#include "train_ranks.h"
#include "version.h"

namespace aerie::tools {

namespace {

void print_train_help() {
  std::printf(
      "usage: aerie train --config-path DIR --config-name NAME [options] [overrides]\n"
      "       aerie train CONFIG.py|CONFIG.yaml [--work-dir DIR] [--gpu-ids 0] [--options K=V "
      "...]\n\n"
      "The first form trains NEST as NeMo's masked_token_pred_pretrain.py does with the same\n"
      "configuration; the second trains LSS + Swin as mmsegmentation's tools/train.py does. Which "
      "one\n"
      "is meant shows by the file and its options.\n\n"
      "both:\n"
      "  --dry-run   do everything once (data, model, largest batch, validation, save, load), "
      "print\n"
      "              memory and expected times, leave nothing behind\n"
      "  --json      with --dry-run: machine-readable output\n"
      "  --max-restarts N   start the processes again when one died, up to N times, from the "
      "newest\n"
      "              checkpoint\n\n"
      "NEST:\n"
      "%s\n"
      "LSS + Swin:\n"
      "%s\n"
      "exit code: 0 done, or saved and stopped by a signal; 1 the run failed; 2 the command line "
      "or\n"
      "the config is wrong; 3 the data is wrong; 4 finished, but the last steps were not finite "
      "or\n"
      "skipped\n\n"
      "examples:\n"
      "  aerie train --config-path=config --config-name=nest_fast-conformer \\\n"
      "    model.train_ds.manifest_filepath=train.json "
      "model.validation_ds.manifest_filepath=val.json \\\n"
      "    model.train_ds.noise_manifest=noise.json trainer.max_steps=1000\n"
      "  aerie train configs/baseline/lss_swin_nuscenes_optimized.py --work-dir runs/optimized \\\n"
      "    --gpu-ids 0 --options runner.max_iters=100 data.train.data_root=/data/nuscenes \\\n"
      "    data.val.data_root=/data/nuscenes\n"
      "  aerie train configs/baseline/lss_swin_quickstart.yaml --dry-run \\\n"
      "    --cfg-options model.train_ds.root=town\n",
      std::string(config::config_options_help()).c_str(),
      std::string(config::mm::mm_options_help()).c_str());
}

// The command's own options, taken out of the arguments: the rest is the dialect's.
struct OwnOptions {
  bool help = false, dry_run = false, json = false;
  RankOptions ranks;
  std::vector<std::string> rest;
};
Result<OwnOptions> take_own_options(const std::vector<std::string>& args) {
  OwnOptions out;
  // The value of an option as "--name=value" or in the next argument.
  const auto value_of = [&](size_t& i, const char* name) -> std::optional<std::string> {
    if (args[i] == name && i + 1 < args.size()) return args[++i];
    const std::string start = str_cat(name, "=");
    if (starts_with(args[i], start)) return args[i].substr(start.size());
    return std::nullopt;
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (starts_with(arg, "--max-restarts")) {
      const auto number = parse_int64(value_of(i, "--max-restarts").value_or(""), 0, 1'000'000);
      if (!number.ok())
        return invalid_argument("--max-restarts takes a number of restarts")
            .with_hint("for example --max-restarts 3");
      out.ranks.max_restarts = static_cast<int>(*number);
      continue;
    }
    size_t here = i;  // stays for the dialect, which knows it too
    if (const auto launcher = value_of(here, "--launcher"); launcher)
      out.ranks.launcher = *launcher;
    for (const char* name : {"--local_rank", "--local-rank"})
      if (const auto local_rank = value_of(here, name); local_rank)
        out.ranks.local_rank = *local_rank;
    if (arg == "--help" || arg == "-h")
      out.help = true;
    else if (arg == "--dry-run")
      out.dry_run = true;
    else if (arg == "--json")
      out.json = true;
    else
      out.rest.push_back(arg);
  }
  return out;
}

}  // namespace

Status run_train(const std::vector<std::string>& args) {
  // `aerie train | tee log` goes on when tee is gone.
  ignore_broken_pipes();
  AERIE_ASSIGN_OR_RETURN(const OwnOptions own, take_own_options(args));
  if (own.help) {
    print_train_help();
    return ok_status();
  }
  if (const models::Dialect* dialect = families().dialect_of(own.rest); dialect != nullptr) {
    AERIE_ASSIGN_OR_RETURN(const std::optional<std::string> text, dialect->show(own.rest));
    if (text) {
      std::printf("%s", text->c_str());
      return ok_status();
    }
  }
  AERIE_ASSIGN_OR_RETURN(const TrainRanks ranks, TrainRanks::find(own.ranks));
  const LogLevel level = log_level();
  if (ranks.quiet()) set_log_level(LogLevel::kError);
  auto opening = models::load_configuration(families(), own.rest);
  if (!opening.ok()) return opening.status();
  models::Opened opened = std::move(opening).value();
  auto automatic = settle_auto_batch(opened, own.rest, ranks.started_by_others());
  if (!automatic.ok()) return automatic.status();
  const std::optional<AutoBatch> batch = std::move(automatic).value();
  if (batch) {
    AERIE_ASSIGN_OR_RETURN(opened, models::load_configuration(families(), batch->args));
  }
  models::announce(*opened.config);
  set_log_level(level);
  if (own.dry_run) {
    if (!ranks.first()) return ok_status();
    if (batch)
      for (const std::string& note : batch->notes) log_info("train", note);
    const SignalCatcher signals;
    AERIE_ASSIGN_OR_RETURN(const std::string text,
                           opened.dialect->family().dry_run(
                               *opened.config, {.env = &Env::real(), .json = own.json, .stop = [] {
                                                  return caught_signal() != 0;
                                                }}));
    std::printf("%s", text.c_str());
    return ok_status();
  }
  if (own.json) return invalid_argument("--json needs --dry-run");

  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Job> job,
                         opened.dialect->family().make_job(*opened.config));
  // Ranks are started with the batch that was found here.
  std::vector<std::string> rank_args = args;
  if (batch) {
    rank_args.insert(rank_args.end(),
                     batch->args.begin() + static_cast<std::ptrdiff_t>(own.rest.size()),
                     batch->args.end());
    if (ranks.starts_others(job->config()))
      for (const std::string& note : batch->notes) log_info("train", note);
  }
  AERIE_ASSIGN_OR_RETURN(const std::optional<int> launched, ranks.launch(job->config(), rank_args));
  if (launched) {
    flush_logs();
    std::exit(*launched);
  }
  train::RunOptions options;
  options.command = "aerie train";
  for (const std::string& arg : args) options.command += str_cat(" ", printable(arg));
  std::string version = version_text();
  options.version_text = version.substr(0, version.find('\n'));
  options.env = &Env::real();
  if (batch) options.notes = batch->notes;
  options.resume_folder = ranks.resume_folder();
  if (dist::Board* board = dist::Board::inherited(); board != nullptr && ranks.first())
    options.on_folder = [board](const std::string& folder) { board->set_run_folder(folder); };
  AERIE_ASSIGN_OR_RETURN(options.ranks, ranks.join(job->config()));
  auto run = train::run_training(*job, options);
  if (!run.ok() && options.ranks != nullptr) ranks.end_badly(*options.ranks, run.status());
  if (!run.ok()) return run.status();
  const train::RunResult result = std::move(run).value();
  ranks.requeue(result);
  if (options.ranks != nullptr) options.ranks->leave();
  // Stopped by a signal it goes on later, from its newest healthy checkpoint.
  if (!result.healthy && !result.on_signal) done_unhealthy();
  if (!ranks.first()) return ok_status();

  // Health first: a run that went wrong must not look like one that did not.
  std::printf("\n%s: %s%s%s\n", result.healthy ? "healthy" : "UNHEALTHY",
              printable_lines(result.stop_sentence).c_str(), result.health.empty() ? "" : "; ",
              printable_lines(result.health).c_str());
  if (!result.healthy && !result.advice.empty())
    std::printf("%c%s.\n", std::toupper(result.advice[0]), result.advice.c_str() + 1);
  std::printf("%s\n\n", printable_lines(result.verdict).c_str());
  const auto row = [](const char* name, const std::string& value) {
    if (!value.empty()) std::printf("  %-12s %s\n", name, printable(value).c_str());
  };
  row("run folder", result.run_dir);
  row("last", result.last_checkpoint);
  row("best", result.best_checkpoint);
  row("NeMo", result.archive);
  row("report", result.report);
  row("trace", result.trace);
  if (!result.run_dir.empty()) row("TensorBoard", "tensorboard --logdir " + result.run_dir);
  return ok_status();
}

}  // namespace aerie::tools
