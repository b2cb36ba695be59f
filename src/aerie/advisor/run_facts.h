// What a run's own records say about where its time went and what happened to it: the input of the
// rules in diagnosis.h. Read from the folder alone; the data need not be there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/ui/run_view.h"

namespace aerie::advisor {

// Where the time of the loader's threads went. Recorded since the event `loader` is.
struct LoaderFacts {
  bool known = false;
  int64_t workers = 0;
  std::string limit;   // "disk", "decode", "mixing", ... or "consumer"
  std::string side;    // names of the stages beside reading; empty: there is none
  std::string finish;  // "mix"
  // Of the threads' time: waiting for the disk, decoding, the other stages, waiting in front of
  // full queues, waiting for other threads.
  double disk_share = 0.0, decode_share = 0.0, side_share = 0.0, finish_share = 0.0;
  double blocked_share = 0.0, starved_share = 0.0;
  double read_mb_per_s = 0.0;    // files, as it was
  double needed_mb_per_s = 0.0;  // that training would not have waited
  double batch_mb = 0.0;         // a batch in memory
  double cpu_share = 0.0;        // of the machine's CPUs that the process kept busy
  std::string storage;   // "network file system (nfs)", "rotational disk", ...; empty: unknown
  int64_t left_out = 0;  // entries of the data's lists that cannot be used

  double busy_share() const { return disk_share + decode_share + side_share + finish_share; }
};

struct RunFacts {
  // Keys that every family's configuration has.
  std::optional<int64_t> batch_size, num_workers, prefetch_factor, accumulate, log_every_n_steps;
  bool auto_workers = false;  // num_workers: auto; the number is what it came to
  std::optional<bool> pin_memory, use_bucketing;
  bool validates_by_epoch = false;  // check_val_every_n_epoch is a number
  // Nothing without a configuration; what it does not say has Lightning's default.
  std::optional<bool> sync_batchnorm, find_unused, static_graph, bucket_view;
  std::string engine_asked;  // aerie.engine: "auto", "fast", "reference"; empty: not recorded
  std::string precision;     // "32", "bf16-mixed", ...
  int64_t world = 1;         // ranks
  bool micro_steps = false;  // a step is a micro-batch
  bool reference_engine = false, gpu = false;
  bool one_engine = false;  // ReportWords::one_engine
  int64_t cpus = 0;
  std::string family, host, engine;

  // Of the steady part: without the first tenth of the records.
  int64_t train_records = 0;
  double span_s = 0.0;  // wall time
  int64_t span_steps = 0;
  double step_ms = 0.0;           // mean of the logged steps
  double data_wait_share = 0.0;   // of the steps' time
  double validation_share = 0.0;  // of span_s, as the next two
  double save_share = 0.0;
  double steps_share = 1.0;  // what is left: steps
  int64_t validations = 0, saves = 0;
  // Of the whole run: saves that were asked for, that were written, and that gave way to newer ones
  // since the writer was still busy (not known of earlier versions: 0); what writing one takes.
  int64_t saves_asked = 0, saves_written = 0, saves_superseded = 0;
  double save_mb = 0.0, write_ms = 0.0;
  double write_share = 0.0;      // of span_s that the writer was busy
  double write_cpu_share = 0.0;  // of the machine's CPUs that it took meanwhile
  double fixed_share = 0.0;   // of a step: optimizer, and what no phase covers; 0: not told apart
  double device_share = 0.0;  // of a step: device time without gaps; 0: not told apart
  double gpu_util_percent = -1.0;        // below 0: not counted
  double least_gpu_util_percent = -1.0;  // mean over the ranks' reports of the least busy one
  double padding_share = 0.0;
  double throughput = 0.0;    // input a second of the whole span, all included; 0: not known
  double first_step_s = 0.0;  // from the start of training
  LoaderFacts loader;
  double throughput_in_steps = 0.0;
  double throughput_spread = 0.0;  // standard error over quarters of the span, as a share of it
  // Over the ranks' own reports: how much longer than the median rank's the slowest one's step is,
  // as a share of it; the rank that mostly was the slowest (-1: none in particular), and why.
  double straggler_share = 0.0;
  int64_t slowest_rank = -1;
  std::string straggler_why;  // "data" or "compute"

  double rss_gib = 0.0, gpu_mem_gib = 0.0;  // the most that was logged; 0: nothing was
  int64_t batches_per_epoch = 0;            // 0: not recorded

  // What happened.
  int64_t skipped_steps = 0;     // not finite
  int64_t skipped_at_start = 0;  // of them, those of the first steps
  int64_t oom_splits = 0, spikes = 0, failed_saves = 0;
  int64_t bad_samples = 0;
  int64_t bad_lines = 0;
  std::string fallback;                 // precision that a 16-bit run fell back to
  ui::RunView view;                     // state, verdict
  std::vector<std::string> data_paths;  // of the configuration

  // Most that was seen: of the GPU that was used, else of the process; 0: not known.
  double memory_gib() const { return gpu ? gpu_mem_gib : rss_gib; }
};

// `warm_share` of the records are warm-up.
RunFacts read_facts(const ui::ReportInput& run, double warm_share = 0.1);

}  // namespace aerie::advisor
