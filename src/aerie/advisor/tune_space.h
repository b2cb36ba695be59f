// What may be tuned of a configuration: the size of its batches and settings with a few values
// each. A model family fills it in its own keys; the search (tune_search.h) knows no key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace aerie::advisor {

// The machine that a configuration is tuned for.
struct TuneMachine {
  bool gpu = false;
  bool bf16 = false;  // the GPU multiplies in bfloat16
  int64_t cpus = 1;   // threads worth starting
};

// A setting with the values worth trying.
struct TuneKnob {
  std::string key;                  // "model.train_ds.num_workers"
  std::vector<std::string> values;  // as YAML; of ordered ones the smallest first
  size_t start = 0;                 // the one that the configuration has
  bool ordered = false;             // climbed value by value while it helps
  bool loader = false;              // helps only where steps wait for data
  // The last value saves memory, and with `costs_time` it is slower (activation recomputation): it
  // is looked at, with the batch that it makes room for, where memory keeps the batch small.
  bool saves_memory = false, costs_time = false;
  // A key and its value under which this one means nothing.
  std::string idle_with_key, idle_with_value;
};

// A knob at its present value, which comes first where it is not among the others.
TuneKnob knob_at(std::string key, const std::string& present, std::vector<std::string> values);

// Knobs that every family has.
// Twice as many threads at a time, up to the CPUs.
TuneKnob worker_knob(std::string key, int64_t present, int64_t cpus);
TuneKnob prefetch_knob(std::string key, std::optional<int64_t> present, std::string workers_key);
TuneKnob precision_knob(const std::string& present, bool bf16);
TuneKnob recompute_knob(std::string key, bool present);

struct TuneBatch {
  std::string key;          // "model.train_ds.batch_size"
  std::string unit;         // "clips", "samples", "seconds of padded audio"
  int64_t start = 1;        // of the configuration; where it is automatic, the first that is tried
  int64_t most = 1 << 20;   // larger ones are refused
  bool automatic = false;   // `batch_size: auto`
  std::string explanation;  // where the key is not that of the configuration: why
  // Overrides (key=value) that make batches of a size.
  std::function<std::vector<std::string>(int64_t size)> changes;
  // Where the configuration has a size for every bucket: those that `size` stands for, and
  // overrides for sizes that are chosen one by one. Empty: there is one number for all.
  std::function<std::vector<int64_t>(int64_t size)> bucket_sizes;
  std::function<std::vector<std::string>(const std::vector<int64_t>& sizes)> bucket_changes;
};

// The learning rate of a configuration.
struct TuneRate {
  std::string key;
  double value = 0.0;
  // The configuration scales it with the batch itself; a sentence that says so. Empty: it does not.
  std::string scaled_by_config;
};

struct TuneSpace {
  TuneBatch batch;
  std::vector<TuneKnob> knobs;
  TuneRate rate;
  std::string throughput_unit = "samples/s";
};

// One point of the space.
struct TuneSettings {
  int64_t batch = 1;
  std::vector<size_t> values;  // of every knob
  // Of every bucket, where they were chosen one by one.
  std::vector<int64_t> buckets = {};
  bool operator==(const TuneSettings&) const = default;
};

TuneSettings start_settings(const TuneSpace& space);
// What the settings change of the configuration, as overrides; the size of the batch is among them
// when it differs or the configuration leaves it open.
std::vector<std::string> changes_of(const TuneSpace& space, const TuneSettings& settings);
// The value of a knob by its key; empty: there is none.
std::string value_of(const TuneSpace& space, const TuneSettings& settings, const std::string& key);

}  // namespace aerie::advisor
