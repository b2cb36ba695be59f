// The samples of a data set: one or several manifests in the order listed, without the lines whose
// duration is out of bounds. Sample i (0 .. size()-1) is a kept line; its number is the sample id
// NeMo shows. Immutable; any thread may read. About 4 bytes per line beyond the mapped indexes.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/manifest_index.h"

namespace aerie::data {

struct ManifestOptions {
  std::optional<double> min_duration_s;  // shorter lines are left out; equal ones stay
  std::optional<double> max_duration_s;  // likewise
  bool skip_bad_lines = false;           // else one bad line refuses the whole manifest
  std::string index_dir;                 // see ManifestIndex::Options
  bool use_index_cache = true;
  bool quiet = false;  // no log lines
  Env* env = nullptr;
};

struct ManifestTotals {
  uint64_t kept = 0;
  uint64_t filtered = 0;
  uint64_t filtered_short = 0;  // of them, those below min_duration
  uint64_t unknown = 0;         // kept lines without a duration
  uint64_t bad_lines = 0;
  double kept_s = 0.0;
  double filtered_s = 0.0;
  double longest_s = 0.0;   // of the kept lines with a duration
  double shortest_s = 0.0;  // 0 when there is none
};

class Manifest {
 public:
  // `paths` are file names (comma lists already split). The same file may be listed twice. Lines
  // whose duration cannot be (check_duration) are bad lines, also those that an index made by an
  // older version still carries as good ones.
  static Result<Manifest> open(const std::vector<std::string>& paths,
                               const ManifestOptions& options);
  static Result<Manifest> from_indexes(std::vector<std::shared_ptr<const ManifestIndex>> indexes,
                                       const ManifestOptions& options);

  uint64_t size() const { return first_.back(); }
  double duration_s(uint64_t i) const;  // NaN: unknown
  double offset_s(uint64_t i) const;
  int32_t channel(uint64_t i) const;  // -1: not given
  bool is_list(uint64_t i) const;
  std::string_view base_name(uint64_t i) const;
  std::string written_path(uint64_t i) const;
  // Where the audio is, after looking at the disk; several for a channel list.
  std::vector<std::string> resolve_paths(uint64_t i) const;
  // The same without an allocation of ours when `out` has the capacity; false for a channel list.
  bool resolve_path(uint64_t i, std::string& out) const;
  // Where it may be, best first, without looking at the disk; not for channel lists.
  std::vector<std::string> path_candidates(uint64_t i) const;
  Result<std::string> raw_line(uint64_t i) const;
  std::string place(uint64_t i) const;  // "train.json:17"

  const ManifestTotals& totals() const { return totals_; }
  size_t num_files() const { return indexes_.size(); }
  const ManifestIndex& file(size_t f) const { return *indexes_[f]; }
  uint64_t first_of_file(size_t f) const { return first_[f]; }  // first sample of manifest f
  // Changes when a manifest's bytes or the filters change the list of samples.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  struct Place {
    size_t file;
    uint64_t row;
  };
  Place locate(uint64_t i) const;

  Env* env_ = nullptr;
  std::vector<std::shared_ptr<const ManifestIndex>> indexes_;
  std::vector<uint64_t> first_{0};           // per manifest, then size()
  std::vector<std::vector<uint32_t>> kept_;  // rows; empty when every row is kept
  ManifestTotals totals_;
  uint64_t fingerprint_ = 0;
};

// Above this share of filtered lines the filter deserves a warning.
constexpr double kFilterWarning = 0.2;
// "24 of 100 lines (24.0%) are left out by max_duration=20", or empty below kFilterWarning.
std::string filter_warning(const ManifestTotals& totals, const ManifestOptions& options);

// "lines 3, 7-9 and 12": all of them, however many.
std::string line_ranges(const std::vector<BadLine>& lines);

}  // namespace aerie::data
