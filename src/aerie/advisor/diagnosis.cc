#include "aerie/advisor/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

// A change that saves less than a twentieth of the time is not worth a finding.
constexpr double kWorthShare = 0.05;
// The guides' bands of GPU utilisation, in percent.
constexpr double kIdleBelow = 50.0, kStarvedBelow = 80.0, kBusyAbove = 95.0;
constexpr double kWaitLimit = 0.10;     // of step time, as the report's verdict
constexpr double kEventTarget = 0.05;   // of the time for validation, or for saves, is usual
constexpr int64_t kFewestInVain = 3;    // saves that were not written
constexpr double kPaddingUsual = 0.10;  // what batches of like lengths have
// Measured on one H200 with NEST-L (bench/results/step_h200_202611.md): a step takes as long as 12
// clips of 15 s and then 0.29 ms a clip; float32 takes 62.4 ms where bf16-mixed takes 8.0.
constexpr double kFixedClips = 12.0;
constexpr int64_t kSmallBatch = 8, kUsualBatch = 16;
constexpr double kFloat32Share = 1.0 - 8.0 / 62.4;
// Kernel by kernel little of that is left: a guide has 9 iterations a second with fp16 and 7.45
// without; NEST-L took 104.6 ms and 103.1 (reference_engine_h200_202611.md).
constexpr double kFloat32ShareOfReference = 1.0 - 7.45 / 9.0;
// The fast engine's encoder has no rows for padding; features, subsampling and copies do. On the
// same card 32 clips of 1 to 20 s, 46 % of them padding, take 12.2 ms (run_h200_202611.md); by the
// line above their audio alone, that of 22.4 clips of 15 s, takes 10.0.
constexpr double kPaddedPartOfFastEngine = (1.0 - 0.29 * (kFixedClips + 22.4) / 12.2) / 0.46;
// Copies to an H200, measured: 15.4 MB take 1.32 ms from pageable memory, 0.28 from pinned.
constexpr double kPageableMsPerMb = (1.32 - 0.28) / 15.4;
constexpr double kCpusBusy = 0.9;        // more threads would only take each other's time
constexpr double kThreadsIdle = 0.5;     // of the loader's time in front of full queues
constexpr double kSkippedAlarm = 0.001;  // of the steps
// fp16's loss scale is halved at a step that overflows until it fits, and tried higher now and
// then.
constexpr int64_t kScaleTries = 1;
constexpr double kTrialSeconds = 8.0, kMostTrialSteps = 20'000;  // of a trial on a GPU

__attribute__((format(printf, 1, 2))) std::string text_of(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return text;
}

long long whole(int64_t value) {
  return static_cast<long long>(value);
}

bool skips_are_usual(const RunFacts& facts) {
  const bool scaled = starts_with(facts.precision, "16");
  const int64_t skipped = facts.skipped_steps - (scaled ? facts.skipped_at_start + kScaleTries : 0);
  return static_cast<double>(skipped) <=
         kSkippedAlarm * static_cast<double>(std::max<int64_t>(1, facts.view.steps));
}

void check_correctness(const RunFacts& facts, std::vector<Finding>& out) {
  const auto add = [&](const char* id, std::string what, const char* advice, const char* change) {
    out.push_back({id, std::move(what), advice, change, 0.0, false, std::nullopt});
  };
  if (facts.view.state == ui::RunState::kFailed)
    add("failed", str_cat("the run failed ", facts.view.state_text), "see its log", "");
  if (facts.view.state == ui::RunState::kUnhealthy)
    add("unhealthy", str_cat("the run ended unhealthy: ", facts.view.state_text),
        "lower the learning rate (model.optim.lr), or set trainer.gradient_clip_val", "");
  if (facts.skipped_steps > 0 && !skips_are_usual(facts))
    add("skipped_steps",
        text_of("%lld of %lld steps were not finite and changed nothing",
                whole(facts.skipped_steps), whole(facts.view.steps)),
        "nonfinite/step_N.json names their samples; lower the learning rate, or use bf16-mixed "
        "instead of 16-mixed",
        "");
  if (facts.world > 1 && facts.sync_batchnorm == false)
    add("sync_batchnorm",
        text_of("%lld ranks train with statistics of their own batches (sync_batchnorm is false): "
                "the result depends on the number of ranks",
                whole(facts.world)),
        "set trainer.sync_batchnorm=true", "trainer.sync_batchnorm=true");
  std::string dropped;
  if (facts.bad_samples > 0)
    dropped = text_of("%lld sample%s could not be read and %s left out (bad_samples.jsonl)",
                      whole(facts.bad_samples), facts.bad_samples == 1 ? "" : "s",
                      facts.bad_samples == 1 ? "was" : "were");
  if (facts.loader.left_out > 0)
    dropped +=
        text_of("%s%lld line%s of the manifest %s no sample: damaged, or without a recording",
                dropped.empty() ? "" : "; ", whole(facts.loader.left_out),
                facts.loader.left_out == 1 ? "" : "s", facts.loader.left_out == 1 ? "is" : "are");
  if (!dropped.empty())
    add("dropped_data", std::move(dropped),
        "`aerie data validate` lists them; repair them or take them out of the manifest", "");
  if (!facts.fallback.empty())
    add("fallback", str_cat("16-bit training overflowed; the run went on in ", facts.fallback),
        "start in that precision", "");
  if (facts.failed_saves > 0)
    add("failed_saves",
        text_of("%lld checkpoint%s could not be written", whole(facts.failed_saves),
                facts.failed_saves == 1 ? "" : "s"),
        "look at free space and rights of the run's folder", "");
  if (facts.oom_splits > 0)
    add("out_of_memory",
        text_of("memory ran out %lld time%s; batches were split since", whole(facts.oom_splits),
                facts.oom_splits == 1 ? "" : "s"),
        "a smaller model.train_ds.batch_size with trainer.accumulate_grad_batches gives the same "
        "steps without it",
        "");
  if (facts.bad_lines > 0)
    add("damaged_records",
        text_of("%lld line%s of metrics.jsonl cannot be read", whole(facts.bad_lines),
                facts.bad_lines == 1 ? "" : "s"),
        "what is said here rests on the others", "");
}

class SpeedRules {
 public:
  SpeedRules(const RunFacts& facts, Diagnosis& out) : facts_(facts), out_(out) {}

  void apply() {
    utilisation();
    waiting();
    events();
    padding();
    precision();
    batch();
    ranks();
    small_settings();
  }

 private:
  template <typename... Pieces>
  void note(const Pieces&... pieces) {
    out_.measurements.push_back(str_cat(pieces...));
  }
  void add(const char* id, std::string what, std::string advice, std::string change, double gain,
           bool in_vain = false) {
    if (gain < kWorthShare && !in_vain) return;
    out_.speed.push_back({id, std::move(what), std::move(advice), std::move(change),
                          std::clamp(gain, 0.0, 0.99), in_vain, std::nullopt});
  }

  void utilisation() {
    const double util = facts_.gpu_util_percent;
    if (!facts_.gpu) {
      note("GPU: none was used");
      return;
    }
    if (util < 0.0) note("GPU: used; its driver does not count how busy it is");
    const char* band = util < kIdleBelow      ? "idle more than half of the time"
                       : util < kStarvedBelow ? "waits for something"
                       : util > kBusyAbove    ? "busy"
                                              : "busy most of the time";
    if (util >= 0.0) note(text_of("GPU: %.0f %% busy (median): it is %s", util, band));
    if (facts_.least_gpu_util_percent >= 0.0 && facts_.world > 1)
      note(text_of("GPU: %.0f %% busy is the least of the ranks", facts_.least_gpu_util_percent));
    if (facts_.device_share > 0.0)
      note(
          text_of("GPU: %.0f %% of a step is device time without gaps", 100 * facts_.device_share));
  }

  // Time in steps that is spent waiting for data, of the whole.
  double wait_of_run() const { return facts_.data_wait_share * facts_.steps_share; }

  void waiting() {
    note(text_of("data: %.1f %% of step time is spent waiting for it",
                 100 * facts_.data_wait_share));
    const std::string& storage = facts_.loader.storage;
    if (!storage.empty()) note("data lies on: ", storage);
    loader_stages();
    if (facts_.data_wait_share <= kWaitLimit) return;
    const std::string what = text_of("training waits for data %.0f %% of its time with %s",
                                     100 * facts_.data_wait_share, workers_text().c_str());
    const int64_t workers = facts_.num_workers.value_or(-1);
    const LoaderFacts& loader = facts_.loader;
    if (workers == 0) {
      add("num_workers", what,
          "num_workers 0 loads in the training thread: use loader threads (`auto` finds how many)",
          "model.train_ds.num_workers=auto", wait_of_run());
    } else if (loader.known && loader.blocked_share > kThreadsIdle) {
      // Threads that stood in front of full queues could have worked ahead for the slow batches.
      const int64_t now = facts_.prefetch_factor.value_or(2);
      add("prefetch_factor",
          str_cat(what, text_of("; the loader's threads are idle %.0f %% of the time: slow batches "
                                "come in bursts",
                                100 * loader.blocked_share)),
          "let them work further ahead",
          text_of("model.train_ds.prefetch_factor=%lld", 2 * whole(now)), wait_of_run());
    } else if (starts_with(storage, "network") || starts_with(storage, "rotational") ||
               loader.limit == "disk") {
      std::string where;
      if (!storage.empty()) where = str_cat("; the data lies on: ", storage);
      if (loader.read_mb_per_s > 0.0)
        where += text_of("; %.1f MB/s are read and %.1f are needed", loader.read_mb_per_s,
                         loader.needed_mb_per_s);
      add("slow_storage", what + where,
          "read it in long runs: `aerie data shard` or `aerie data pack`, or copy it to a local "
          "solid-state disk",
          "", wait_of_run());
    } else if (loader.cpu_share > kCpusBusy) {
      add("slow_loading",
          str_cat(what, text_of("; %.0f %% of %lld CPUs are busy, most with %s",
                                100 * loader.cpu_share, whole(facts_.cpus), loader.limit.c_str())),
          "decode less often: `aerie data pack`; `aerie bench data` shows which stage is slow", "",
          wait_of_run());
    } else if (workers > 0 && facts_.cpus > 0 && workers < facts_.cpus && !facts_.auto_workers) {
      add("num_workers", str_cat(what, text_of(" on %lld CPUs", whole(facts_.cpus))),
          "more loader threads (`auto` finds how many)", "model.train_ds.num_workers=auto",
          wait_of_run());
    } else {
      add("slow_loading",
          str_cat(what, facts_.cpus > 0 ? text_of(" on %lld CPUs", whole(facts_.cpus)) : ""),
          "decode less often: `aerie data pack`; `aerie bench data` shows which stage is slow", "",
          wait_of_run());
    }
  }

  // How busy the loader's threads were, stage by stage, and what came from the disk.
  void loader_stages() {
    const LoaderFacts& loader = facts_.loader;
    if (!loader.known) return;
    std::string stages = text_of("%.0f %% waiting for files, %.0f %% decoding",
                                 100 * loader.disk_share, 100 * loader.decode_share);
    if (!loader.side.empty())
      stages += text_of(", %.0f %% %s", 100 * loader.side_share, loader.side.c_str());
    stages += text_of(", %.0f %% %s", 100 * loader.finish_share, loader.finish.c_str());
    if (loader.workers > 0)
      note(text_of("loader: %lld threads: %s, %.0f %% idle in front of full queues",
                   whole(loader.workers), stages.c_str(), 100 * loader.blocked_share));
    else
      note("loader: the training thread itself, of the wait: ", stages);
    if (loader.read_mb_per_s > 0.0)
      note(text_of("I/O: %.1f MB/s are read; training without waiting needs %.1f",
                   loader.read_mb_per_s, loader.needed_mb_per_s));
    if (loader.cpu_share > 0.0)
      note(text_of("CPU: the process keeps %.0f %% of %lld CPUs busy", 100 * loader.cpu_share,
                   whole(facts_.cpus)));
  }

  std::string workers_text() const {
    if (!facts_.num_workers) return "an unknown number of workers";
    std::string out =
        text_of("%lld workers%s", whole(*facts_.num_workers), facts_.auto_workers ? " (auto)" : "");
    if (facts_.prefetch_factor)
      out += text_of(" and prefetch_factor %lld", whole(*facts_.prefetch_factor));
    return out;
  }

  // Validation and checkpoints: both are as long as they are, and may come less often.
  void events() {
    if (facts_.span_s <= 0.0) return;
    note(
        text_of("time: %.1f %% steps, %.1f %% validation (%lld), %.1f %% blocked by checkpoints "
                "(%lld)",
                100 * facts_.steps_share, 100 * facts_.validation_share, whole(facts_.validations),
                100 * facts_.save_share, whole(facts_.saves)));
    const double steps = static_cast<double>(std::max<int64_t>(1, facts_.span_steps));
    const auto rarer = [&](double taken, int64_t count) {
      // Every n steps such that it takes the usual share.
      const double share = std::min(taken, 0.999);
      const double times = share * (1.0 - kEventTarget) / (kEventTarget * (1.0 - share));
      return static_cast<long long>(
          std::ceil(steps / static_cast<double>(std::max<int64_t>(1, count)) * times));
    };
    if (facts_.validation_share > 2 * kEventTarget) {
      const auto [often, change] =
          validation_change(rarer(facts_.validation_share, facts_.validations));
      add("validation",
          text_of("validation takes %.0f %% of the time: %lld times in %.0f steps",
                  100 * facts_.validation_share, whole(facts_.validations), steps),
          str_cat("validate ", often, ", or on fewer batches (trainer.limit_val_batches)"), change,
          facts_.validation_share - kEventTarget);
    }
    checkpoints(steps);
  }

  // A save blocks training while the state is copied; then a thread writes it, which on a CPU takes
  // time from the steps. Saves that come faster than they can be written give way to newer ones.
  void checkpoints(double steps) {
    if (facts_.saves_asked == 0) return;
    if (facts_.saves_written > 0)
      note(
          text_of("checkpoints: %lld of %lld were written, %.1f MB and %.2f s each; the writer is "
                  "busy %.0f %% of the time and takes %.1f %% of the CPUs",
                  whole(facts_.saves_written), whole(facts_.saves_asked), facts_.save_mb,
                  1e-3 * facts_.write_ms, 100 * facts_.write_share, 100 * facts_.write_cpu_share));
    const double writing = facts_.gpu ? 0.0 : facts_.write_cpu_share;
    const double cost = facts_.save_share + writing;
    const bool in_vain = facts_.saves_superseded >= kFewestInVain &&
                         2 * facts_.saves_superseded > facts_.saves_asked;
    if (facts_.saves == 0 || (cost <= 2 * kEventTarget && !in_vain)) return;
    // Such that they take the usual share, and the writer is busy half of the time at most.
    const double now = steps / static_cast<double>(facts_.saves);
    const double share = std::min(cost, 0.999);
    double every = now * share * (1.0 - kEventTarget) / (kEventTarget * (1.0 - share));
    every = std::max(every, 2.0 * 1e-3 * facts_.write_ms * steps / facts_.span_s);
    every = std::ceil(std::clamp(every, 2.0 * now, 1e9));
    std::string what = text_of(
        "checkpoints cost %.0f %% of the time: %lld in %.0f steps; training is blocked "
        "%.1f %%",
        100 * cost, whole(facts_.saves), steps, 100 * facts_.save_share);
    if (writing > 0.0)
      what += text_of(" and writing takes %.1f %% of the CPUs that it computes on", 100 * writing);
    if (in_vain)
      what += text_of(
          "; %lld of %lld were never written: a newer one came while the one before "
          "was being written, which takes %.2f s",
          whole(facts_.saves_superseded), whole(facts_.saves_asked), 1e-3 * facts_.write_ms);
    add("checkpoints", what, text_of("save every %.0f steps or so", every),
        text_of("exp_manager.checkpoint_callback_params.every_n_train_steps=%.0f", every),
        cost * (1.0 - now / every), in_vain);
  }

  // How often, and the override. An interval of batches ends with the epoch, as in Lightning:
  // beyond it epochs are counted.
  std::pair<std::string, std::string> validation_change(long long steps) const {
    const long long width =
        facts_.micro_steps ? 1 : std::max<long long>(1, whole(facts_.accumulate.value_or(1)));
    const long long batches = steps * width, epoch = whole(facts_.batches_per_epoch);
    if (epoch == 0 || !facts_.validates_by_epoch || batches <= epoch)
      return {text_of("every %lld steps or so", steps),
              text_of("trainer.val_check_interval=%lld", batches)};
    const double now = static_cast<double>(width * std::max<int64_t>(1, facts_.span_steps)) /
                       static_cast<double>(std::max<int64_t>(1, facts_.validations));
    // More often than once an epoch: that first.
    if (now < 0.9 * static_cast<double>(epoch))
      return {"once an epoch", "trainer.val_check_interval=1.0"};
    const long long epochs = (batches + epoch - 1) / epoch;
    return {text_of("every %lld epochs or so", epochs),
            text_of("trainer.check_val_every_n_epoch=%lld", epochs)};
  }

  double compute_of_run() const { return facts_.steps_share * (1.0 - facts_.data_wait_share); }

  void padding() {
    note(text_of("padding: %.1f %% of the batches", 100 * facts_.padding_share));
    if (facts_.padding_share <= 2 * kPaddingUsual) return;
    const bool fast = facts_.gpu && !facts_.reference_engine;
    add("padding",
        text_of(fast ? "%.0f %% of the batches is padding, which features, subsampling and copies "
                       "do not leave out"
                     : "%.0f %% of what is computed is padding",
                100 * facts_.padding_share),
        facts_.use_bucketing == true
            ? "more buckets (model.train_ds.num_buckets), or a smaller max_duration"
            : "put clips of like duration together, or lower max_duration",
        facts_.use_bucketing == true ? "" : "++model.train_ds.use_bucketing=true",
        (facts_.padding_share - kPaddingUsual) * compute_of_run() *
            (fast ? kPaddedPartOfFastEngine : 1.0));
  }

  void precision() {
    if (!facts_.gpu || facts_.precision.empty()) return;
    note("precision: ", facts_.precision);
    if (facts_.skipped_steps > 0 && skips_are_usual(facts_))
      note(text_of("loss scale: %lld of %lld steps overflowed and were skipped, as is usual",
                   whole(facts_.skipped_steps), whole(facts_.view.steps)));
    if (facts_.precision != "32" && facts_.precision != "32-true") return;
    const bool fast = !facts_.reference_engine;
    add("precision", "float32 leaves the matrix units of the GPU mostly idle",
        fast ? "train in bf16-mixed (NEST-L on an H200: 62.4 ms a step in float32, 8.0 in "
               "bf16-mixed)"
             : "train in bf16-mixed (the guides promise 1.07 to 1.21 times the speed)",
        "trainer.precision=bf16-mixed",
        (fast ? kFloat32Share : kFloat32ShareOfReference) * compute_of_run());
  }

  void batch() {
    if (facts_.batch_size) note(text_of("batch: %lld samples a rank", whole(*facts_.batch_size)));
    const ui::Bound bound = facts_.view.verdict.bound;
    // Where the driver counts nothing, the steps' own device time says as much.
    const double util =
        facts_.gpu_util_percent >= 0.0 ? facts_.gpu_util_percent / 100.0 : facts_.device_share;
    const bool launches = facts_.gpu && bound == ui::Bound::kLaunch;
    const bool other_engine = facts_.reference_engine && !facts_.one_engine;
    // Asked for and not got, it cannot be had by asking again.
    if (launches && other_engine && facts_.engine_asked == "auto") {
      note(
          "engine: the reference engine, kernel by kernel; the log says what keeps this run from "
          "the fast one");
    } else if (launches && other_engine) {
      add("engine", text_of("the GPU waits for launches: it is %.0f %% busy", 100 * util),
          "the fast engine replays a step as one graph; the log says what keeps a run from it",
          "aerie.engine=auto", (1.0 - util) * compute_of_run());
      return;
    }
    const int64_t batch = facts_.batch_size.value_or(0);
    const std::string larger = text_of("model.train_ds.batch_size=%lld", whole(kUsualBatch));
    const char* advice =
        "a larger batch; the learning rate goes with it (linear or square-root rule), or "
        "accumulation goes down by as much";
    // Waiting for a slow rank is no part of the step.
    const double fixed_share =
        std::max(0.0, facts_.fixed_share - (facts_.world > 1 ? facts_.straggler_share : 0.0));
    if (facts_.gpu && batch > 0 && batch < kSmallBatch && facts_.family != "bev") {
      // What a sample takes, with the fixed part of the step spread over the batch.
      const double now = kFixedClips / static_cast<double>(batch) + 1.0;
      const double then = kFixedClips / static_cast<double>(kUsualBatch) + 1.0;
      add("batch_size", text_of("a batch of %lld does not fill the GPU", whole(batch)), advice,
          larger, (1.0 - then / now) * compute_of_run());
    } else if (launches) {
      add("batch_size", text_of("steps are too short: the GPU is %.0f %% busy", 100 * util), advice,
          batch > 0 ? text_of("model.train_ds.batch_size=%lld", 2 * whole(batch)) : "",
          (1.0 - util) * compute_of_run());
    } else if (!facts_.gpu && batch > 0 && batch < kSmallBatch && fixed_share > kWaitLimit) {
      add("batch_size",
          text_of("%.0f %% of a step does not depend on the batch of %lld (optimizer, host)",
                  100 * fixed_share, whole(batch)),
          advice, text_of("model.train_ds.batch_size=%lld", whole(kSmallBatch)),
          fixed_share * (1.0 - static_cast<double>(batch) / kSmallBatch) * facts_.steps_share);
    }
  }

  void ranks() {
    if (facts_.world <= 1) return;
    note(text_of("ranks: %lld", whole(facts_.world)),
         facts_.straggler_share > 0.0
             ? text_of("; %.1f %% of a step is spent waiting for the slowest",
                       100 * facts_.straggler_share)
             : "");
    if (facts_.straggler_share > kWaitLimit)
      add("straggler",
          text_of("ranks wait for %s %.0f %% of their time",
                  facts_.slowest_rank >= 0
                      ? text_of("rank %lld", whole(facts_.slowest_rank)).c_str()
                      : "the slowest one",
                  100 * facts_.straggler_share),
          facts_.straggler_why == "data"
              ? "its data is slow: look at its disk and loader threads"
              : "its computation is slow: look at its machine (other processes, clock), or make "
                "batches more even",
          "", facts_.straggler_share * facts_.steps_share);
    if (facts_.reference_engine) reducer_settings();
  }

  // What torch's reducer is told; flat buckets need none of it.
  void reducer_settings() {
    if (facts_.bucket_view == true) return;
    if (facts_.find_unused == true && facts_.static_graph != true)
      note(
          "trainer.strategy.find_unused_parameters=true walks the graph in every step: only models "
          "with unused parameters need it, and static_graph=true looks at them once");
    if (facts_.bucket_view == false)
      note("trainer.strategy.gradient_as_bucket_view=false keeps every gradient twice");
  }

  // Worth a word, not a finding.
  void small_settings() {
    if (facts_.gpu && facts_.pin_memory == false) {
      const double copy_ms = kPageableMsPerMb * facts_.loader.batch_mb;
      const double gain = facts_.step_ms > 0.0 ? copy_ms / facts_.step_ms : 0.0;
      note("model.train_ds.pin_memory=false: batches are copied to the GPU while it waits",
           copy_ms > 0.0 ? text_of(", about %.2f ms of %.2f", copy_ms, facts_.step_ms) : "");
      add("pin_memory",
          text_of("batches of %.1f MB are copied from pageable memory while the GPU waits",
                  facts_.loader.batch_mb),
          "copy from pinned memory, beside the step", "model.train_ds.pin_memory=true",
          std::min(gain, 0.5) * compute_of_run());
    }
    if (facts_.cpus > 0 && facts_.num_workers.value_or(0) > facts_.cpus)
      note(text_of("%lld workers on %lld CPUs: more than can run", whole(*facts_.num_workers),
                   whole(facts_.cpus)));
    if (facts_.log_every_n_steps == 1 && facts_.step_ms > 0.0 && facts_.step_ms < 20.0)
      note("trainer.log_every_n_steps=1 with steps this short: 50 costs less");
  }

  const RunFacts& facts_;
  Diagnosis& out_;
};

}  // namespace

Diagnosis diagnose(RunFacts facts, const std::string& storage) {
  Diagnosis out;
  out.facts = std::move(facts);
  if (out.facts.loader.storage.empty()) out.facts.loader.storage = storage;
  check_correctness(out.facts, out.correctness);
  if (out.facts.train_records > 0 && out.facts.view.state == ui::RunState::kOpen)
    out.measurements.push_back(str_cat("run: ", out.facts.view.state_text));
  if (out.facts.train_records > 0) SpeedRules(out.facts, out).apply();
  order_findings(out);
  return out;
}

int64_t steps_of_trial(const RunFacts& facts, int64_t steps) {
  if (!facts.gpu || facts.span_steps <= 0 || !(facts.span_s > 0.0) || facts.span_s >= kTrialSeconds)
    return steps;
  const double needed =
      std::ceil(static_cast<double>(facts.span_steps) * kTrialSeconds / facts.span_s);
  return std::max(steps, static_cast<int64_t>(std::min(needed, kMostTrialSteps)));
}

void settle_trials(Diagnosis& diagnosis, double worth) {
  std::erase_if(diagnosis.speed, [&](const Finding& finding) {
    return finding.measured_speedup && *finding.measured_speedup < worth && !finding.in_vain;
  });
  order_findings(diagnosis);
}

void order_findings(Diagnosis& diagnosis) {
  const auto worth = [](const Finding& finding) {
    return finding.measured_speedup ? *finding.measured_speedup : finding.estimated_speedup();
  };
  std::stable_sort(diagnosis.speed.begin(), diagnosis.speed.end(),
                   [&](const Finding& a, const Finding& b) { return worth(a) > worth(b); });
}

}  // namespace aerie::advisor
