// `aerie bench data`: the loader without a model behind it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/device/gpu.h"
#include "bench_command.h"
#include "data_input.h"
#include "data_kind.h"
#include "json_output.h"
#include "nuscenes_input.h"

namespace aerie::tools {

namespace {

using nlohmann::ordered_json;

struct Measured {
  double wall_s = 0, cpu_s = 0, start_s = 0;
  data::LoaderStats before, after;
  uint64_t peak_rss = 0;

  double audio_s() const { return after.amount - before.amount; }
  double batches() const { return static_cast<double>(after.batches - before.batches); }
  double bytes() const {
    return after.read.bytes - before.read.bytes + after.side.bytes - before.side.bytes;
  }
};

constexpr int kWarmBatches = 32;

struct BenchOptions {
  double seconds = 20, warmup = 2, consumer_ms = 0;
  bool consumer_mixes = false;
};

Result<Measured> measure(data::Loader& loader, const BenchOptions& options) {
  Measured out;
  const Stopwatch total;
  bool warm = false;
  int batches = 0;
  double began = 0, cpu = 0;
  while (caught_signal() == 0) {
    AERIE_ASSIGN_OR_RETURN(const data::Batch* batch, loader.next());
    if (batch == nullptr) {
      AERIE_RETURN_IF_ERROR(loader.start_epoch(int64_t{loader.cursor().epoch} + 1));
      continue;
    }
    if (options.consumer_ms > 0)
      Clock::real().sleep_ns(static_cast<int64_t>(options.consumer_ms * 1e6));
    loader.release(batch);
    const double now = total.elapsed_s();
    // Also every slot of the ring has been touched by then, unless batches take very long.
    const bool touched = ++batches >= kWarmBatches || now >= 10 * options.warmup;
    if (!warm && now >= options.warmup && touched) {
      warm = true;
      out.before = loader.stats();
      began = now;
      cpu = process_cpu_s();
    } else if (warm && now >= began + options.seconds) {
      break;
    }
  }
  out.wall_s = std::max(1e-9, total.elapsed_s() - began);
  out.cpu_s = std::max(1e-9, process_cpu_s() - cpu);
  out.after = loader.stats();
  out.start_s = out.after.first_batch_s;
  out.peak_rss = process_memory().peak_rss_bytes;
  return out;
}

// What to improve first, judged by the measured window.
std::string limit_of(const Measured& m) {
  data::LoaderStats window = m.after;
  const auto minus = [](data::StageStats a, const data::StageStats& b) {
    a.items -= b.items;
    a.busy_s -= b.busy_s;
    return a;
  };
  window.read = minus(m.after.read, m.before.read);
  window.side = minus(m.after.side, m.before.side);
  window.finish = minus(m.after.finish, m.before.finish);
  window.consumer_wait_s -= m.before.consumer_wait_s;
  window.consumer_work_s -= m.before.consumer_work_s;
  return window.bottleneck();
}

const char* advice(const std::string& limit) {
  if (limit == "consumer") return "the loader is faster than its consumer: nothing to gain here";
  if (limit == "disk")
    return "threads wait for the disk: use a local SSD, tar shards or aerie.data.cache_dir";
  if (limit == "mixing")
    return "mixing costs most: leave it to the GPU (aerie.data.mix_on=gpu), or add num_workers";
  return "decoding costs most: add num_workers, or pack the data (aerie data pack, "
         "aerie.data.cache_dir)";
}

ordered_json to_json(const Measured& m, int workers) {
  return {{"workers", workers},
          {"wall_s", m.wall_s},
          {"batches_per_s", m.batches() / m.wall_s},
          {"audio_s_per_s", m.audio_s() / m.wall_s},
          {"audio_s_per_cpu_s", m.audio_s() / m.cpu_s},
          {"read_mb_per_s", m.bytes() / m.wall_s / 1e6},
          {"cpu_percent", 100 * m.cpu_s / m.wall_s},
          {"peak_rss_bytes", m.peak_rss},
          {"memory_limit_bytes", m.after.memory_bytes},
          {"first_batch_s", m.start_s},
          {"padding_share", m.after.padding_share},
          {"bad_samples", m.after.bad_samples},
          {"epoch_pause_s", m.after.epoch_pause_s},
          {"limit", limit_of(m)},
          {"stats", ordered_json::parse(m.after.to_json())}};
}

void print_stage(const char* name, const data::StageStats& a, const data::StageStats& b,
                 double all_busy) {
  const double busy = a.busy_s - b.busy_s;
  if (a.items == b.items) return;
  std::printf("  %-8s %10llu items %8.2f s busy (%4.1f%%) %9.0f MB/s %10.0f audio-s/s per thread\n",
              name, static_cast<unsigned long long>(a.items - b.items), busy,
              100 * busy / std::max(1e-9, all_busy),
              (a.bytes - b.bytes) / std::max(1e-9, busy) / 1e6,
              (a.amount - b.amount) / std::max(1e-9, busy));
}

void print_text(const Measured& m, int workers) {
  std::printf(
      "%d workers: %.0f audio-s/s, %.0f per CPU second, %.1f batches/s, %.0f MB/s read, "
      "CPU %.0f%%, first batch after %.2f s, peak RSS %s (limit of the loader %s)\n",
      workers, m.audio_s() / m.wall_s, m.audio_s() / m.cpu_s, m.batches() / m.wall_s,
      m.bytes() / m.wall_s / 1e6, 100 * m.cpu_s / m.wall_s, m.start_s,
      human_bytes(static_cast<double>(m.peak_rss)).c_str(),
      human_bytes(static_cast<double>(m.after.memory_bytes)).c_str());
  const double busy = m.after.read.busy_s - m.before.read.busy_s + m.after.side.busy_s -
                      m.before.side.busy_s + m.after.finish.busy_s - m.before.finish.busy_s;
  print_stage("read", m.after.read, m.before.read, busy);
  print_stage("noise", m.after.side, m.before.side, busy);
  print_stage("mix", m.after.finish, m.before.finish, busy);
  std::printf(
      "  workers blocked %.2f s (ring full), starved %.2f s; consumer waited %.2f s; padding "
      "%.1f%%; bad samples %llu; pause between epochs %.3f s\n",
      m.after.blocked_s - m.before.blocked_s, m.after.starved_s - m.before.starved_s,
      m.after.consumer_wait_s - m.before.consumer_wait_s, 100 * m.after.padding_share,
      static_cast<unsigned long long>(m.after.bad_samples), m.after.epoch_pause_s);
  const std::string limit = limit_of(m);
  std::printf("  limit: %s (%s)\n", limit.c_str(), advice(limit));
}

// Runs a program and gives what it prints; its errors go to ours.
Result<std::string> output_of(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe", errno);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  pid_t child = 0;
  const int failed = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  std::string out;
  if (failed == 0) {
    char block[4096];
    while (true) {
      const ssize_t got = ::read(ends[0], block, sizeof(block));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      out.append(block, static_cast<size_t>(got));
    }
  }
  ::close(ends[0]);
  if (failed != 0) return errno_error(command[0], failed);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return unavailable(str_cat(command[0], " ", command[1], " failed"));
  return out;
}

// The Python loaders of `folder` on the same recordings, one after another.
Status run_peers(const std::string& folder, const config::DatasetConfig& dataset,
                 const std::vector<int64_t>& worker_counts, ordered_json* all) {
  const char* const python = std::getenv("AERIE_PYTHON");
  AERIE_ASSIGN_OR_RETURN(const auto manifests, data::expand_manifests(dataset));
  AERIE_ASSIGN_OR_RETURN(const auto noise, data::expand_noise_manifests(dataset));
  if (dataset.is_tarred || manifests.size() != 1 || manifests[0].size() != 1 || noise.size() != 1)
    return invalid_argument("the peers read one manifest and one noise manifest of plain files")
        .with_hint("give both, without archives or lists");
  for (const char* name : {"nemo_loader.py", "expert_loader.py"}) {
    const std::string script = join_path(folder, name);
    if (!Env::real().exists(script))
      return invalid_argument(str_cat("--peer: there is no ", script))
          .with_hint("name the folder of the Python loaders (bench/peers)");
    for (const int64_t workers : worker_counts) {
      auto printed = output_of({python != nullptr ? python : "python3", script, "--speech-manifest",
                                manifests[0][0], "--noise-manifest", noise[0], "--batch-size",
                                str_cat(dataset.batch_size.value_or(16)), "--workers",
                                str_cat(std::max<int64_t>(0, workers)), "--batches", "10"});
      if (!printed.ok())
        return printed.status().with_hint(
            "AERIE_PYTHON names an interpreter with torch, soundfile and nemo_toolkit");
      const size_t begin = printed->find('{');
      const ordered_json line = begin == std::string::npos
                                    ? ordered_json(ordered_json::value_t::discarded)
                                    : ordered_json::parse(printed->substr(begin), nullptr, false);
      if (line.is_discarded() || !line.contains("audio_s_per_cpu_s"))
        return unavailable(str_cat(script, " printed no result"));
      if (all != nullptr) {
        all->push_back(line);
        continue;
      }
      std::printf("%s, %d workers: %.0f audio-s/s, %.0f per CPU second\n",
                  printable(line["peer"].get<std::string>()).c_str(), line["workers"].get<int>(),
                  line["audio_s_per_s"].get<double>(), line["audio_s_per_cpu_s"].get<double>());
    }
  }
  return ok_status();
}

}  // namespace

Status run_bench_data(const std::vector<std::string>& given) {
  std::vector<std::string> args = given;
  AERIE_ASSIGN_OR_RETURN(const DataKind kind, take_kind(args));
  if (kind == DataKind::kNuscenes) return run_nuscenes_bench(args);
  std::vector<config::ExtraOption> extra = data_input_options();
  for (const char* name :
       {"--seconds", "--warmup", "--workers", "--consumer-ms", "--mix", "--dtype", "--peer"})
    extra.push_back({name, true});
  extra.push_back({"--json", false});
  AERIE_ASSIGN_OR_RETURN(const config::ConfigArgs parsed, config::parse_config_args(args, extra));
  if (parsed.help || args.empty()) {
    std::printf(
        "usage: aerie bench data [DATA] [OPTIONS] [OVERRIDES]\n\n"
        "Runs the loader of train_ds as fast as it goes and says what limits it.\n\n"
        "%s\n%s"
        "  --seconds S         measure for this long (default 20), after --warmup S (default 2)\n"
        "  --workers N,M,...   these numbers of workers one after another (default: the config's)\n"
        "  --consumer-ms MS    a consumer that takes this long per batch (default 0)\n"
        "  --mix cpu|gpu       gpu: rows and plan are handed over, nothing is mixed here "
        "(default:\n"
        "                      as training would on this machine; cpu with --peer)\n"
        "  --dtype TYPE        float32 or int16 batches\n"
        "  --peer DIR          then the Python loaders of DIR (bench/peers) on the same files;\n"
        "                      AERIE_PYTHON is their interpreter (default python3). They mix with\n"
        "                      the values of the shipped configuration\n"
        "  --json              machine-readable output\n\n"
        "example: aerie bench data --config-path config --config-name nest_fast-conformer \\\n"
        "           model.train_ds.manifest_filepath=train.json --seconds 20\n"
        "camera data: aerie bench data --kind nuscenes --help\n",
        data_input_help().c_str(), std::string(config::config_options_help()).c_str());
    return args.empty() ? invalid_argument("no data given") : ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(DataInput input, read_data_input(parsed, true));
  config::DatasetConfig& dataset_config = input.parts[0].dataset;
  BenchOptions options;
  AERIE_ASSIGN_OR_RETURN(options.seconds, number_option(parsed, "--seconds", 20, 0, 1e9));
  AERIE_ASSIGN_OR_RETURN(options.warmup, number_option(parsed, "--warmup", 2, 0, 1e9));
  AERIE_ASSIGN_OR_RETURN(options.consumer_ms, number_option(parsed, "--consumer-ms", 0, 0, 1e9));
  const auto text = [&](const char* name) {
    const auto found = parsed.extra.find(name);
    return found == parsed.extra.end() ? std::string() : found->second;
  };
  // As in training on this machine. The Python peers mix on the CPU.
  const config::MixOn mix_on = input.aerie.audio.mix_on;
  options.consumer_mixes =
      mix_on == config::MixOn::kGpu ||
      (mix_on == config::MixOn::kAuto && text("--peer").empty() && !device::driver().gpus.empty());
  if (const std::string mix = text("--mix"); !mix.empty()) {
    if (mix != "cpu" && mix != "gpu") return invalid_argument("--mix must be cpu or gpu");
    options.consumer_mixes = mix == "gpu";
  }
  if (const std::string dtype = text("--dtype"); !dtype.empty()) {
    if (dtype != "float32" && dtype != "int16")
      return invalid_argument("--dtype must be float32 or int16");
    input.aerie.audio.batch_dtype =
        dtype == "int16" ? config::BatchDtype::kInt16 : config::BatchDtype::kFloat32;
  }
  std::vector<int64_t> worker_counts{dataset_config.num_workers};
  if (const std::string list = text("--workers"); !list.empty()) {
    worker_counts.clear();
    for (const std::string& one : split(list, ',')) {
      AERIE_ASSIGN_OR_RETURN(const int64_t count, parse_int64(one, 0, 1024));
      worker_counts.push_back(count);
    }
  }
  const bool json = parsed.extra.contains("--json");
  if (!json)
    std::printf("mixing %s\n", options.consumer_mixes ? "is left to the GPU" : "on the CPU");
  const SignalCatcher signals;
  data::AudioDataset::Options open;
  open.quiet = json;
  open.num_threads = cpu_count();
  AERIE_ASSIGN_OR_RETURN(const auto dataset,
                         data::AudioDataset::open(dataset_config, input.aerie, open));
  ordered_json all = ordered_json::array();
  for (const int64_t workers : worker_counts) {
    config::DatasetConfig config = dataset_config;
    config.num_workers = workers;
    if (workers == 0) {
      config.prefetch_factor.reset();
      config.persistent_workers = false;
    }
    data::SpeechLoaderOptions loader_options;
    loader_options.seed = input.aerie.seed;
    loader_options.quiet = json;
    loader_options.mix = options.consumer_mixes ? data::MixPlace::kConsumer : data::MixPlace::kCpu;
    AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<data::Loader> loader,
                           data::make_speech_loader(dataset, config, input.aerie, loader_options));
    AERIE_ASSIGN_OR_RETURN(const Measured measured, measure(*loader, options));
    const int shown = workers < 0 ? measured.after.workers : static_cast<int>(workers);
    if (json)
      all.push_back(to_json(measured, shown));
    else
      print_text(measured, shown);
    if (caught_signal() != 0) break;
  }
  if (const std::string peer = text("--peer"); !peer.empty() && caught_signal() == 0)
    AERIE_RETURN_IF_ERROR(run_peers(peer, dataset_config, worker_counts, json ? &all : nullptr));
  if (json) print_document(all);
  return ok_status();
}

}  // namespace aerie::tools
