// What tuning guides promise, measured on this machine: one row a promise. A row is two or more
// settings that are trained for a short while in turn; what is said about it comes out of the
// records of these runs. The rows themselves are in claims_table.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/advisor/run_facts.h"
#include "aerie/base/status.h"

namespace aerie::advisor {

// A data set that `aerie bench claims` makes for a row.
enum class ClaimData {
  kClips,   // FLAC files of like length; pictures of a synthetic town
  kTarred,  // the same clips in tar shards
  kPacked,  // the same clips decoded once
  kMixed,   // clips of all lengths
};

struct ClaimSetting {
  std::string label;                   // "8 workers"
  std::vector<std::string> overrides;  // key=value, on top of the row's and the family's
  ClaimData data = ClaimData::kClips;
};

// What the guides promise of the last setting beside the first.
enum class Promise {
  kFaster,    // more input a second
  kSteps,     // steps a second, low to high times as many
  kInput,     // input a second, low to high times as much
  kNoMemory,  // a larger effective batch, and no more memory
};

struct ClaimRow {
  std::string name = {};   // for --only: "workers"
  std::string what = {};   // "num_workers 0 → 4 → 8 → 16"
  std::string claim = {};  // in words
  Promise promise = Promise::kFaster;
  double low = 0.0, high = 0.0;  // of kSteps and kInput
  std::vector<ClaimSetting> settings = {};
  std::vector<std::string> overrides = {};  // of all of them
  int gpus = 0;                             // that it needs; 1: means nothing without a GPU
  int64_t steps = 0;                        // a trial has exactly so many; 0: as long as others
  int64_t least_steps = 0;                  // beside the time that others take
  std::string note = {};                    // what no measurement shows
};

// The sizes that rows are measured with.
struct ClaimProfile {
  std::string model = "nest";  // or bev
  bool small = false;          // for CPUs
};
std::vector<ClaimRow> claim_rows(const ClaimProfile& profile);
// What every trial of the family has in common.
std::vector<std::string> claim_base(const ClaimProfile& profile);

// One setting, trained once or several times.
struct ClaimFigures {
  std::string label;
  std::vector<double> input_per_s;  // a trial each
  double spread = 0.0;  // largest of the trials': how uneven one was, as a share of its throughput
  double steps_per_s = 0.0;  // means over the trials from here on
  double step_ms = 0.0;
  double data_wait_share = 0.0, validation_share = 0.0, save_share = 0.0;  // of the time
  double device_share = 0.0;  // of a step; 0: not told apart
  double gpu_util = -1.0;     // percent; -1: no GPU
  double memory_gib = 0.0, padding_share = 0.0;
  std::string engine;

  void take(const RunFacts& facts);
  double mean_input() const;
};

// kUnclear: the trials differ too much to tell.
enum class ClaimVerdict { kHolds, kPartly, kFails, kUnclear, kNotMeasured };
// "holds", "in part", "does not hold", "unclear", "-"
const char* claim_verdict_name(ClaimVerdict verdict);

struct ClaimResult {
  std::string model, name, what, claim;
  double claim_low = 0.0, claim_high = 0.0;  // 0: the claim has no figure
  std::vector<ClaimFigures> settings;
  std::string where;     // "2 CPU ranks over Gloo"; empty: the machine's device
  std::string needs;     // "needs 2 GPUs"; empty: nothing lacks
  std::string failed;    // why there are no figures
  double seconds = 0.0;  // that it was allowed to take
  double elapsed_s = 0.0;
  double others_share = 0.0;  // of the CPUs, that other programs used meanwhile
  // Filled in by judge_claim().
  ClaimVerdict verdict = ClaimVerdict::kNotMeasured;
  std::vector<double> speedups;  // of every setting beside the first, input a second
  double step_ratio = 0.0;       // steps a second, last beside first
  double noise = 0.0;            // differences below this mean nothing
  std::string measured, why;
  std::string key;  // machine, commit and settings that it holds for

  bool has_figures() const { return !speedups.empty(); }
  double last_speedup() const { return speedups.empty() ? 0.0 : speedups.back(); }
};

// `result.settings` are measured: works out the rest.
void judge_claim(const ClaimRow& row, ClaimResult& result);

// Rows that were finished, in a file.
struct ClaimTable {
  std::string cpu, gpu, commit, command;  // of the rows
  int cpus = 0;
  std::vector<ClaimResult> rows;

  const ClaimResult* find(const std::string& model, const std::string& name,
                          const std::string& key) const;
  void put(ClaimResult result);  // replaces an older one of the same row

  std::string to_json() const;
  static Result<ClaimTable> from_json(const std::string& text);
  std::string to_text(int width) const;  // columns fill `width` characters
  std::string to_markdown() const;
  std::string to_html() const;
};

// One text for machine, commit and everything that a row's figures depend on.
std::string claim_key(const std::string& machine, const ClaimProfile& profile, const ClaimRow& row,
                      double seconds);

}  // namespace aerie::advisor
