#include "aerie/data/speech/manifest.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <xxhash.h>

#include "aerie/base/check.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/retry.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/manifest_line.h"
#include "aerie/data/speech/manifest_path.h"

namespace aerie::data {

namespace {

constexpr size_t kReasonsShown = 20;

// Lines of one manifest that are of no use: not readable, or with a duration that cannot be.
std::vector<BadLine> bad_lines_of(const ManifestIndex& index) {
  std::vector<BadLine> out = index.bad_lines();
  const size_t unreadable = out.size();
  for (uint64_t row = 0; row < index.size(); ++row)
    if (const Status status = check_duration(index.duration_s(row)); !status.ok())
      out.push_back({index.line_number(row), status.message()});
  if (out.size() > unreadable && unreadable > 0)
    std::sort(out.begin(), out.end(),
              [](const BadLine& a, const BadLine& b) { return a.line < b.line; });
  return out;
}

// A JSON array, one object over many lines, UTF-16 and gzip look like manifests with nothing but
// bad lines.
Status refuse_other_forms(Env& env, const ManifestIndex& index) {
  if (index.size() > 0 || index.bad_lines().empty()) return ok_status();
  constexpr size_t kLook = 4096;
  AERIE_ASSIGN_OR_RETURN(const auto file, env.open_random_access(index.path()));
  std::string head(kLook, '\0');
  AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(0, head.data(), head.size()));
  head.resize(got);
  if (starts_with(head, "\xFF\xFE") || starts_with(head, "\xFE\xFF"))
    return data_error("UTF-16 text; a manifest is UTF-8")
        .with_context(index.path())
        .with_hint(
            str_cat("`iconv -f UTF-16 -t UTF-8 ", index.path(), " > manifest.json` converts it"));
  if (starts_with(head, "\x1F\x8B"))
    return data_error("gzip; a manifest is plain text")
        .with_context(index.path())
        .with_hint(str_cat("`gunzip -c ", index.path(), " > manifest.json` unpacks it"));
  if (starts_with(head, "\xEF\xBB\xBF")) head.erase(0, 3);
  const std::string_view text = trim(head);
  if (starts_with(text, "{") && trim(text.substr(1, text.find('\n') - 1)).empty())
    return data_error("an object over several lines; a manifest is one JSON object per line")
        .with_context(index.path())
        .with_hint(str_cat("`jq -c . ", index.path(), " > manifest.json` converts it"));
  if (!starts_with(text, "[")) return ok_status();
  return data_error("one JSON array; a manifest is one JSON object per line")
      .with_context(index.path())
      .with_hint(str_cat("`jq -c '.[]' ", index.path(), " > manifest.json` converts it"));
}

struct ManifestBadLines {
  std::string path;
  std::vector<BadLine> lines;
};

Status refuse_bad_lines(const std::vector<ManifestBadLines>& manifests) {
  std::string text;
  uint64_t total = 0;
  for (const auto& [path, bad] : manifests) {
    if (bad.empty()) continue;
    total += bad.size();
    text += str_cat("\n  ", path, ": ", line_ranges(bad));
    for (size_t i = 0; i < std::min(bad.size(), kReasonsShown); ++i)
      text += str_cat("\n    ", path, ":", bad[i].line, ": ", bad[i].reason);
    if (bad.size() > kReasonsShown)
      text += str_cat("\n    ... and ", bad.size() - kReasonsShown, " more");
  }
  return data_error(
             str_cat(total, " manifest line", total == 1 ? " is" : "s are", " not usable:", text))
      .with_hint("repair them, or set aerie.data.skip_bad_lines=true to go on without them");
}

std::string hours(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f", seconds / 3600);
  return text;
}

void log_totals(const ManifestTotals& totals) {
  log_info("data", "Dataset loaded with ", totals.kept, " files totalling ", hours(totals.kept_s),
           " hours");
  log_info("data", totals.filtered, " files were filtered totalling ", hours(totals.filtered_s),
           " hours");
  if (totals.unknown > 0)
    log_info("data", totals.unknown, " files have no duration: the number of hours is inaccurate");
  if (totals.bad_lines > 0)
    log_warn("data", totals.bad_lines, " bad manifest lines were left out (skip_bad_lines)");
}

}  // namespace

std::string filter_warning(const ManifestTotals& totals, const ManifestOptions& options) {
  const uint64_t lines = totals.kept + totals.filtered;
  const double share =
      lines > 0 ? static_cast<double>(totals.filtered) / static_cast<double>(lines) : 0.0;
  if (share <= kFilterWarning) return {};
  const uint64_t too_long = totals.filtered - totals.filtered_short;
  std::vector<std::string> keys;
  if (totals.filtered_short > 0)
    keys.push_back(str_cat("min_duration=", options.min_duration_s.value_or(0.0), " (",
                           totals.filtered_short, " are shorter)"));
  if (too_long > 0)
    keys.push_back(str_cat("max_duration=", options.max_duration_s.value_or(0.0), " (", too_long,
                           " are longer)"));
  char percent[16];
  std::snprintf(percent, sizeof(percent), "%.1f%%", 100 * share);
  return str_cat(totals.filtered, " of ", lines, " manifest lines (", percent, ", ",
                 hours(totals.filtered_s), " of ", hours(totals.kept_s + totals.filtered_s),
                 " hours) are left out by ", join(keys, " and "));
}

std::string line_ranges(const std::vector<BadLine>& lines) {
  std::string out;
  size_t ranges = 0;
  for (size_t i = 0; i < lines.size();) {
    size_t last = i;
    while (last + 1 < lines.size() && lines[last + 1].line == lines[last].line + 1) ++last;
    const bool final = last + 1 == lines.size();
    if (ranges++ > 0) out += final ? " and " : ", ";
    out += last == i ? str_cat(lines[i].line) : str_cat(lines[i].line, "-", lines[last].line);
    i = last + 1;
  }
  return str_cat(lines.size() == 1 ? "line " : "lines ", out);
}

Result<Manifest> Manifest::open(const std::vector<std::string>& paths,
                                const ManifestOptions& options) {
  std::vector<std::shared_ptr<const ManifestIndex>> indexes;
  for (const std::string& path : paths) {
    ManifestIndex::Options index_options;
    index_options.index_dir = options.index_dir;
    index_options.use_cache = options.use_index_cache;
    index_options.env = options.env;
    auto index =
        retry_passing(RetryPolicy{}, [&] { return ManifestIndex::open(path, index_options); });
    Env& env = options.env != nullptr ? *options.env : Env::real();
    if (names_no_file(env, index.status(), expand_user(path)))
      return data_error(index.status().message())
          .with_context(str_cat("manifest: ", path))
          .with_hint("check manifest_filepath, noise_manifest");
    if (!index.ok()) return index.status().with_context("manifest");
    indexes.push_back(std::move(index).value());
  }
  return from_indexes(std::move(indexes), options);
}

Result<Manifest> Manifest::from_indexes(std::vector<std::shared_ptr<const ManifestIndex>> indexes,
                                        const ManifestOptions& options) {
  Manifest out;
  out.env_ = options.env != nullptr ? options.env : &Env::real();
  out.indexes_ = std::move(indexes);
  ManifestTotals& totals = out.totals_;
  std::vector<ManifestBadLines> bad;
  for (const auto& index : out.indexes_) {
    AERIE_RETURN_IF_ERROR(refuse_other_forms(*out.env_, *index));
    bad.push_back({index->path(), bad_lines_of(*index)});
    totals.bad_lines += bad.back().lines.size();
  }
  if (totals.bad_lines > 0 && !options.skip_bad_lines) return refuse_bad_lines(bad);

  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double low = options.min_duration_s.value_or(-kInfinity);
  const double high = options.max_duration_s.value_or(kInfinity);
  double shortest = kInfinity;
  uint64_t hash = 0;
  for (const auto& index : out.indexes_) {
    std::vector<uint32_t> kept;
    uint64_t count = 0;
    bool dropped = false;
    for (uint64_t row = 0; row < index->size(); ++row) {
      const double duration = index->duration_s(row);
      const bool known = !std::isnan(duration);
      const bool wrong = known && !check_duration(duration).ok();
      if (wrong || (known && (duration < low || duration > high))) {
        if (!dropped) {
          // Until now every row was kept; from here on the list is needed.
          dropped = true;
          kept.reserve(index->size());
          for (uint64_t k = 0; k < row; ++k) kept.push_back(static_cast<uint32_t>(k));
        }
        if (wrong) continue;
        ++totals.filtered;
        totals.filtered_short += duration < low;
        totals.filtered_s += duration;
        continue;
      }
      if (dropped) kept.push_back(static_cast<uint32_t>(row));
      ++count;
      if (known) {
        totals.kept_s += duration;
        totals.longest_s = std::max(totals.longest_s, duration);
        shortest = std::min(shortest, duration);
      } else {
        ++totals.unknown;
      }
    }
    kept.shrink_to_fit();
    totals.kept += count;
    out.first_.push_back(out.first_.back() + count);
    out.kept_.push_back(std::move(kept));
    const uint64_t key[3] = {hash, index->source_hash(), count};
    hash = XXH3_64bits(key, sizeof(key));
  }
  // An all-filtered manifest keeps an empty list, which must not read as "all rows kept".
  totals.shortest_s = std::isfinite(shortest) ? shortest : 0.0;
  if (out.size() >= std::numeric_limits<uint32_t>::max())
    return unsupported("more than 2^32 - 2 samples in one data set");
  const double bounds[2] = {low, high};
  out.fingerprint_ = XXH3_64bits_withSeed(bounds, sizeof(bounds), hash);
  if (!options.quiet) log_totals(totals);
  return out;
}

Manifest::Place Manifest::locate(uint64_t i) const {
  AERIE_DCHECK(i < size(), "sample ", i, " of ", size());
  size_t file = 0;
  if (first_.size() > 2)
    file =
        static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), i) - first_.begin()) - 1;
  const uint64_t k = i - first_[file];
  return {file, kept_[file].empty() ? k : kept_[file][k]};
}

double Manifest::duration_s(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->duration_s(place.row);
}

double Manifest::offset_s(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->offset_s(place.row);
}

int32_t Manifest::channel(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->channel(place.row);
}

bool Manifest::is_list(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->is_list(place.row);
}

std::string_view Manifest::base_name(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->base_name(place.row);
}

std::string Manifest::written_path(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->written_path(place.row);
}

std::vector<std::string> Manifest::resolve_paths(uint64_t i) const {
  const Place place = locate(i);
  const ManifestIndex& index = *indexes_[place.file];
  std::vector<std::string> out = index.written_paths(place.row);
  for (std::string& path : out) path = resolve_audio_path(*env_, path, index.path());
  return out;
}

bool Manifest::resolve_path(uint64_t i, std::string& out) const {
  const Place place = locate(i);
  const ManifestIndex& index = *indexes_[place.file];
  if (index.is_list(place.row)) return false;
  // The rules of resolve_audio_path, in place.
  index.assign_path(place.row, out);
  if (out.empty() || out[0] == '/') return true;
  if (index.names_tar_members() && out.find('/') == std::string::npos) return true;
  if (!is_long_path(out)) {
    const std::string& folder = index.folder();
    out.insert(0, folder);
    if (may_be_file(env_->stat(out))) return true;
    out.erase(0, folder.size());
  }
  if (out[0] == '~') out = expand_user(out);
  return true;
}

std::vector<std::string> Manifest::path_candidates(uint64_t i) const {
  const Place place = locate(i);
  const ManifestIndex& index = *indexes_[place.file];
  return audio_path_candidates(index.written_path(place.row), index.path());
}

Result<std::string> Manifest::raw_line(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->raw_line(place.row);
}

std::string Manifest::place(uint64_t i) const {
  const Place place = locate(i);
  return indexes_[place.file]->place(place.row);
}

}  // namespace aerie::data
