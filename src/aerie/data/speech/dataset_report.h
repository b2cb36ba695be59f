// What a data set consists of, and whether all of it can be read: `aerie data stats` and `aerie
// data validate`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/config/dataset_config.h"

namespace aerie::data {

struct HistogramBin {
  double low_s = 0.0;
  double high_s = 0.0;
  uint64_t count = 0;
  double total_s = 0.0;
};

// Padding of an epoch under one way of making batches.
struct PaddingEstimate {
  std::string strategy;
  double padding_share = 0.0;  // with row lengths rounded up to max_shapes values
  uint64_t shapes = 0;
  uint64_t steps = 0;
};

struct DatasetReport {
  ManifestTotals totals;
  uint64_t samples = 0;  // after joining with archives
  double mean_s = 0.0, median_s = 0.0, p05_s = 0.0, p95_s = 0.0;
  std::vector<HistogramBin> histogram;
  // Of the recordings looked at.
  uint64_t probed = 0;
  uint64_t probe_failures = 0;
  std::map<std::string, uint64_t> codecs;
  std::map<int, uint64_t> sample_rates;
  std::map<int, uint64_t> channels;
  double bytes_per_s = 0.0;
  std::vector<PaddingEstimate> padding;  // the first one as configured
  std::vector<double> duration_bins;     // edges for bucket_duration_bins, eight buckets

  std::string to_json() const;
  std::string to_text(int width = 80) const;
};

struct ReportOptions {
  uint64_t probes = 500;  // recordings whose headers are read, evenly spaced; 0: none
  int num_bins = 16;
  int num_threads = 1;
  config::SpeechAerieConfig aerie;  // of the run: what the loader goes by
};
Result<DatasetReport> report_dataset(const AudioDataset& dataset,
                                     const config::DatasetConfig& config,
                                     const ReportOptions& options);

struct BrokenSample {
  std::string place;  // "train.json:17 (clips/a.wav)"
  std::string kind;   // unreadable, empty, cut, short, silent
  std::string reason;
};

struct ValidateOptions {
  int num_threads = 1;
  bool quick = false;         // headers only
  double tolerance_s = 0.05;  // missing audio that is forgiven
  std::function<void(uint64_t total)> on_start;
  std::function<void()> on_sample;  // any thread
  std::function<bool()> stop;       // true: end early with kCancelled
};

struct ValidateReport {
  uint64_t checked = 0;
  double audio_s = 0.0;
  std::vector<BrokenSample> broken;    // in the order of the samples
  std::vector<BrokenSample> warnings;  // silent recordings
  std::string to_json() const;
};
// Reads every sample and every entry of the noise manifests.
Result<ValidateReport> validate_dataset(const AudioDataset& dataset,
                                        const ValidateOptions& options);

}  // namespace aerie::data
