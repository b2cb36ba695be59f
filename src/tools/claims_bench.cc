#include "claims_bench.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <sys/resource.h>
#include <unistd.h>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/ui/report.h"
#include "peer_process.h"

namespace aerie::tools {

namespace {

using advisor::ClaimData;
using advisor::ClaimFigures;
using advisor::ClaimProfile;
using advisor::ClaimResult;
using advisor::ClaimRow;

constexpr int kMostRounds = 3;
constexpr double kLongestTrialS = 5.0;
constexpr double kTrainedShare = 0.3;  // of a row's time, in its first round
constexpr double kWarmShare = 0.25;    // of a trial's records
constexpr int64_t kLeastSteps = 9, kLeastStepsFull = 40;
constexpr int kShards = 8;

std::vector<std::string> config_of(const ClaimProfile& profile) {
  if (profile.model == "bev")
    return {join_path(config_folder("baseline"),
                      profile.small ? "lss_swin_quickstart.yaml" : "lss_swin_nuscenes.py")};
  return {"--config-path=" + config_folder("nest"),
          str_cat("--config-name=", profile.small ? "nest_quickstart" : "nest_fast-conformer_l")};
}

Result<advisor::RunFacts> facts_of(const std::string& folder) {
  AERIE_ASSIGN_OR_RETURN(const ui::ReportInput input,
                         ui::load_report_input(Env::real(), folder, {}));
  return advisor::read_facts(input, kWarmShare);
}

// Of all CPUs and of this program's children, in seconds.
struct CpuTimes {
  double busy = 0.0, all = 0.0, children = 0.0;
};
CpuTimes cpu_times() {
  CpuTimes out;
  if (const auto text = Env::real().read_file("/proc/stat", 4096); text.ok()) {
    // "cpu user nice system idle iowait irq softirq steal ..." in ticks
    const double tick = 1.0 / static_cast<double>(std::max(1L, ::sysconf(_SC_CLK_TCK)));
    std::istringstream line(text->substr(0, text->find('\n')));
    std::string name;
    line >> name;
    double value = 0.0;
    for (int i = 0; i < 8 && line >> value; ++i) {
      out.all += value * tick;
      if (i != 3 && i != 4) out.busy += value * tick;
    }
  }
  struct rusage usage {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  for (const timeval& time : {usage.ru_utime, usage.ru_stime})
    out.children += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  return out;
}
double others_share(const CpuTimes& before, const CpuTimes& after) {
  const double all = after.all - before.all;
  const double others = after.busy - before.busy - (after.children - before.children);
  return all > 0.0 ? std::clamp(others / all, 0.0, 1.0) : 0.0;
}

// The part of a failed trial's message that says why, on one line.
std::string reason_of(const Status& status) {
  std::string text = status.message();
  if (const size_t at = text.rfind("error: "); at != std::string::npos) text = text.substr(at + 7);
  text = trim(text.substr(0, text.find('\n')));
  return text.size() > 240 ? text.substr(0, 240) + "..." : text;
}

}  // namespace

ClaimsBench::ClaimsBench(Options options, std::string program, TrialRunner runner)
    : options_(std::move(options)), program_(std::move(program)), runner_(std::move(runner)) {}

Result<ClaimsBench> ClaimsBench::make(Options options) {
  AERIE_ASSIGN_OR_RETURN(std::string program, path_of_this_program());
  std::vector<std::string> config = config_of(options.profile);
  // A file of mm's form is read before the data is made: its root only has to be named.
  if (options.profile.model == "bev")
    config.insert(config.end(),
                  {"--cfg-options",
                   str_cat(options.profile.small ? "model.train_ds.root=" : "data.train.data_root=",
                           join_path(options.data, "town"))});
  AERIE_ASSIGN_OR_RETURN(TrialRunner runner, TrialRunner::make(std::move(config)));
  return ClaimsBench(std::move(options), std::move(program), std::move(runner));
}

Status ClaimsBench::make_data(const std::vector<std::string>& command, const std::string& what) {
  std::vector<std::string> all{program_, "data"};
  all.insert(all.end(), command.begin(), command.end());
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput output, run_process(all, {}));
  if (caught_signal() != 0) return Status(StatusCode::kCancelled, "stopped");
  if (output.exit_code != 0)
    return Status(StatusCode::kDataError,
                  str_cat(what, " could not be made: ", trim(tail_of(output.text))));
  return ok_status();
}

// Calling `synth` again with the same options does nothing.
Result<std::string> ClaimsBench::speech_corpus(bool mixed) {
  const bool small = options_.profile.small;
  const std::string out =
      join_path(options_.data, str_cat(small ? "small_" : "", mixed ? "mixed" : "clips"));
  AERIE_RETURN_IF_ERROR(make_data(
      {"synth", "--out", out, "--format", "flac", "--hours", small ? (mixed ? "0.3" : "0.12") : "4",
       "--speakers", small ? "6" : "30", "--noise-hours", small ? "0.05" : "0.5", "--min-duration",
       small ? "1" : (mixed ? "1" : "14.5"), "--max-duration",
       small ? (mixed ? "6" : "1.4") : (mixed ? "30" : "15")},
      "the corpus"));
  return out;
}

Result<std::vector<std::string>> ClaimsBench::data_overrides(ClaimData data) {
  if (options_.profile.model == "bev") {
    const std::string town =
        join_path(options_.data, options_.profile.small ? "small_town" : "town");
    std::vector<std::string> command{"synth", "--kind", "nuscenes", "--out", town};
    if (options_.profile.small)
      command.insert(command.end(), {"--image-size", "400x225"});
    else
      command.insert(command.end(), {"--size", "small"});
    AERIE_RETURN_IF_ERROR(make_data(command, "the town"));
    return std::vector<std::string>{"model.train_ds.root=" + town,
                                    "model.validation_ds.root=" + town};
  }
  AERIE_ASSIGN_OR_RETURN(const std::string corpus, speech_corpus(data == ClaimData::kMixed));
  const std::string train = join_path(corpus, "train.json");
  std::vector<std::string> out{
      "model.train_ds.manifest_filepath=" + train,
      "model.train_ds.noise_manifest=" + join_path(corpus, "noise.json"),
      "model.validation_ds.manifest_filepath=" + join_path(corpus, "dev.json"),
      "model.validation_ds.noise_manifest=" + join_path(corpus, "noise.json")};
  if (data == ClaimData::kTarred) {
    const std::string tar = corpus + "_tar";
    if (!Env::real().exists(join_path(tar, "tarred_audio_manifest.json")))
      AERIE_RETURN_IF_ERROR(make_data({"shard", "--manifest", train, "--out", tar, "--num-shards",
                                       str_cat(kShards), "--shuffle", "--overwrite"},
                                      "the shards"));
    out[0] = "model.train_ds.manifest_filepath=" + join_path(tar, "tarred_audio_manifest.json");
    out.push_back("model.train_ds.is_tarred=true");
    out.push_back(str_cat("model.train_ds.tarred_audio_filepaths=",
                          join_path(tar, str_cat("audio__OP_0..", kShards - 1, "_CL_.tar"))));
  }
  if (data == ClaimData::kPacked) {
    const std::string pack = corpus + "_pack";
    AERIE_RETURN_IF_ERROR(
        make_data({"pack", "--manifest", train, "--out", pack}, "the packed cache"));
    out.push_back("aerie.data.cache_dir=" + pack);
  }
  return out;
}

// All settings in turn, there and back again, while the row's time lasts.
Status ClaimsBench::run_rounds(const ClaimRow& row, const std::vector<std::string>& also,
                               ClaimResult& result) {
  const size_t count = row.settings.size();
  std::vector<std::vector<std::string>> changes(count);
  for (size_t i = 0; i < count; ++i) {
    AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> data,
                           data_overrides(row.settings[i].data));
    changes[i] = advisor::claim_base(options_.profile);
    for (const auto* more : {&data, &row.overrides, &row.settings[i].overrides, &also})
      changes[i].insert(changes[i].end(), more->begin(), more->end());
    result.settings.push_back({});
    result.settings.back().label = row.settings[i].label;
  }
  TrialLength length;
  length.steps = row.steps > 0 ? row.steps
                               : std::max(row.least_steps,
                                          options_.profile.small ? kLeastSteps : kLeastStepsFull);
  if (row.steps == 0)
    length.seconds = std::min(kLongestTrialS, std::max(1.0, kTrainedShare * options_.seconds /
                                                                static_cast<double>(count)));
  const double begin = Clock::real().monotonic_s();
  const CpuTimes times = cpu_times();
  for (int round = 0; round < kMostRounds; ++round) {
    const double round_begin = Clock::real().monotonic_s();
    for (size_t i = 0; i < count; ++i) {
      const size_t at = round % 2 == 0 ? i : count - 1 - i;
      if (!options_.quiet)
        std::fprintf(stderr, "%s %s: %s ...\n", options_.profile.model.c_str(), row.name.c_str(),
                     printable(row.settings[at].label).c_str());
      const auto folder = runner_.train(changes[at], length);
      if (!folder.ok()) return folder.status();
      AERIE_ASSIGN_OR_RETURN(const advisor::RunFacts facts, facts_of(*folder));
      if (!(facts.throughput > 0.0))
        return data_error(str_cat("a trial logged too few steps: ", facts.train_records));
      result.settings[at].take(facts);
    }
    const double now = Clock::real().monotonic_s();
    result.elapsed_s = now - begin;
    result.others_share = others_share(times, cpu_times());
    if (result.elapsed_s + (now - round_begin) > options_.seconds) break;
  }
  return ok_status();
}

Result<ClaimResult> ClaimsBench::measure(const ClaimRow& row) {
  ClaimResult result;
  result.model = options_.profile.model;
  result.name = row.name;
  std::vector<std::string> also;
  if (row.gpus > options_.gpus)
    result.needs = row.gpus == 1 ? "needs a GPU" : str_cat("needs ", row.gpus, " GPUs");
  if (row.gpus > 1) {
    also.push_back(str_cat("trainer.devices=", row.gpus));
    if (!result.needs.empty()) {
      also.push_back("trainer.accelerator=cpu");
      result.where = str_cat(row.gpus, " CPU ranks over Gloo");
    }
  } else {
    also.push_back("trainer.devices=1");
  }
  if (row.gpus != 1 || result.needs.empty()) {
    const Status status = run_rounds(row, also, result);
    if (status.code() == StatusCode::kCancelled) return status;
    if (!status.ok()) {
      result.failed = reason_of(status);
      result.settings.clear();
    }
  }
  advisor::judge_claim(row, result);
  return result;
}

}  // namespace aerie::tools
