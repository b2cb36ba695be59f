#include "aerie/advisor/tune_search.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

constexpr double kIdleWait = 0.02;  // of a step: loaders that keep it waiting less are fast enough
constexpr double kNarrow = 1.10;    // gains below are measured again
constexpr double kWorthSmaller = 1.10;  // a smaller batch has to gain as much
constexpr int64_t kFastestGrowth = 8;   // between two trials of memory
constexpr int kMemoryTrials = 10;
constexpr int64_t kMostPairs = 5;
constexpr double kFaster = 1.01;       // in the final comparison
constexpr double kStillRising = 1.05;  // over half the batch
constexpr double kWorthGrowing = 1.1;  // of a bucket's size

std::string number(const char* pattern, double value) {
  char text[48];
  std::snprintf(text, sizeof text, pattern, value);
  return text;
}
std::string times(double gain) {
  return number(gain < 10.0 ? "%.2f x" : "%.1f x", gain);
}
std::string percent(double share) {
  return number(share < 0.1 ? "%.1f %%" : "%.0f %%", 100.0 * share);
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Sizes that people write.
int64_t tidy(int64_t size) {
  if (size >= 64) return size / 8 * 8;
  if (size >= 16) return size / 4 * 4;
  return size;
}

class Search {
 public:
  Search(const TuneSpace& space, const TuneRules& rules, TuneTrials& trials)
      : space_(space), rules_(rules), trials_(trials) {
    out_.start = out_.chosen = start_settings(space);
  }

  Result<TuneResult> everything() {
    AERIE_RETURN_IF_ERROR(measure_start());
    AERIE_RETURN_IF_ERROR(all_knobs(/*again=*/false));
    AERIE_RETURN_IF_ERROR(batch());
    const std::vector<size_t> values = chosen().values;
    AERIE_RETURN_IF_ERROR(all_knobs(/*again=*/true));
    // Another precision leaves room for another batch.
    bool other_memory = false;
    for (size_t i = 0; i < values.size(); ++i)
      other_memory =
          other_memory || (space_.knobs[i].saves_memory && values[i] != chosen().values[i]);
    if (rules_.batch == BatchRule::kFillMemory && other_memory) AERIE_RETURN_IF_ERROR(batch());
    AERIE_RETURN_IF_ERROR(trade_memory());
    AERIE_RETURN_IF_ERROR(compare());
    explain();
    return std::move(out_);
  }

  Result<TuneResult> batch_alone() {
    batch_only_ = true;
    if (rules_.batch == BatchRule::kThroughput) AERIE_RETURN_IF_ERROR(measure_start());
    AERIE_RETURN_IF_ERROR(batch());
    explain_batch();
    return std::move(out_);
  }

 private:
  TuneSettings& chosen() { return out_.chosen; }

  // Runs a trial and notes it; the verdict is for the caller to add.
  Result<TrialOutcome> try_settings(const TuneSettings& settings, bool memory) {
    TrialOutcome outcome = memory ? trials_.memory(settings) : trials_.speed(settings);
    if (outcome.end == TrialOutcome::End::kCancelled)
      return Status(StatusCode::kCancelled, "stopped");
    (memory ? memory_wall_s_ : speed_wall_s_) = outcome.wall_s;
    longest_wall_s_ = std::max(longest_wall_s_, memory ? 0.0 : outcome.wall_s);
    TriedRow row{memory, settings, outcome, ""};
    if (outcome.end == TrialOutcome::End::kOutOfMemory) row.verdict = "out of memory";
    if (outcome.end == TrialOutcome::End::kFailed) row.verdict = "failed";
    out_.tried.push_back(std::move(row));
    return outcome;
  }
  void verdict(std::string text) {
    if (out_.tried.back().verdict.empty()) out_.tried.back().verdict = std::move(text);
  }

  // Whether a trial that takes `factor` as long as the last one, and the final comparison, fit.
  bool time_left(bool memory, double factor = 1.0) {
    const double reserve = batch_only_ ? 0.0 : 2.0 * longest_wall_s_;
    const double next = factor * (memory ? std::max(memory_wall_s_, speed_wall_s_) : speed_wall_s_);
    const bool left = trials_.elapsed_s() + next + reserve <= rules_.budget_s;
    out_.out_of_time = out_.out_of_time || !left;
    return left;
  }

  Status measure_start() {
    TuneSettings settings = chosen();
    while (true) {
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome outcome, try_settings(settings, false));
      if (outcome.done()) {
        verdict(settings == out_.start ? "the start"
                                       : "the largest power below the start that fits");
        take(settings, outcome);
        return ok_status();
      }
      if (outcome.end == TrialOutcome::End::kFailed)
        return Status(outcome.code, outcome.message).with_context("the configuration as it is");
      if (settings.batch <= 1)
        return out_of_memory(str_cat("not even ", space_.batch.key, "=1 fits into memory"))
            .with_hint(
                "use a smaller model or shorter samples, or free memory that other programs hold");
      start_fits_ = false;
      settings.batch = std::max<int64_t>(1, settings.batch / 2);
    }
  }

  void take(const TuneSettings& settings, const TrialOutcome& outcome) {
    chosen() = settings;
    current_ = outcome;
  }

  // How much faster `outcome` is than what is chosen; a narrow gain is checked once more.
  Result<double> gain_of(const TrialOutcome& outcome) {
    if (!(current_.throughput > 0.0)) return outcome.throughput > 0.0 ? 1e3 : 0.0;
    const double gain = outcome.throughput / current_.throughput;
    if (gain < kWorth || gain >= kNarrow || !time_left(false)) return gain;
    const size_t row = out_.tried.size() - 1;
    AERIE_ASSIGN_OR_RETURN(const TrialOutcome again, try_settings(chosen(), false));
    verdict("measured again, to compare");
    std::swap(out_.tried[row], out_.tried.back());  // the verdict to come belongs to the last row
    if (!again.done()) return gain;
    current_.throughput = std::max(current_.throughput, again.throughput);
    return outcome.throughput / current_.throughput;
  }

  // Tries other values of a knob. `why` gets the reason for what it is left at.
  Status try_knob(size_t i, std::string& why) {
    const TuneKnob& knob = space_.knobs[i];
    const size_t from = chosen().values[i];
    if (!knob.idle_with_key.empty() &&
        value_of(space_, chosen(), knob.idle_with_key) == knob.idle_with_value) {
      why = str_cat("means nothing with ", knob.idle_with_key, "=", knob.idle_with_value);
      return ok_status();
    }
    if (knob.loader && current_.data_wait_share < kIdleWait) {
      why = str_cat("steps wait for data in ", percent(current_.data_wait_share),
                    " of their time, so there is nothing to gain");
      return ok_status();
    }
    std::vector<size_t> order;
    if (knob.ordered)
      for (size_t v = from + 1; v < knob.values.size(); ++v) order.push_back(v);
    else
      for (size_t v = 0; v < knob.values.size(); ++v)
        if (v != from && !(knob.costs_time && v + 1 == knob.values.size())) order.push_back(v);
    double best = 0.0;
    std::string tried;
    for (const size_t v : order) {
      if (!time_left(false)) {
        why = tried.empty() ? "not tried: the time was up" : tried + "; then the time was up";
        return ok_status();
      }
      TuneSettings settings = chosen();
      settings.values[i] = v;
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome outcome, try_settings(settings, false));
      double gain = 0.0;
      if (outcome.done()) {
        AERIE_ASSIGN_OR_RETURN(gain, gain_of(outcome));
      }
      const bool better = gain >= kWorth;
      const std::string here = outcome.done()
                                   ? str_cat(knob.values[v], " is ", times(gain), " as fast as ",
                                             knob.values[chosen().values[i]])
                               : outcome.end == TrialOutcome::End::kOutOfMemory
                                   ? str_cat(knob.values[v], " runs out of memory")
                                   : str_cat(knob.values[v], " failed: ", outcome.message);
      tried += str_cat(tried.empty() ? "" : "; ", here);
      if (outcome.done()) verdict(better ? "taken: " + times(gain) : "not taken: " + times(gain));
      if (better) {
        take(settings, outcome);
        best = std::max(best, gain);
      } else if (knob.ordered) {
        break;
      }
    }
    why = tried.empty() ? "there is no other value to try" : tried;
    return ok_status();
  }

  // A second round looks again at what the first one left, at the new batch.
  Status all_knobs(bool again) {
    knob_reasons_.resize(space_.knobs.size());
    for (size_t i = 0; i < space_.knobs.size(); ++i) {
      if (again && chosen().batch == first_round_batch_) break;
      const bool moved = chosen().values[i] != space_.knobs[i].start;
      if (again && moved && !space_.knobs[i].ordered) continue;
      std::string why;
      AERIE_RETURN_IF_ERROR(try_knob(i, why));
      if (!knob_reasons_[i].empty() && again && starts_with(why, "not tried")) continue;
      knob_reasons_[i] = std::move(why);
    }
    if (!again) first_round_batch_ = chosen().batch;
    return ok_status();
  }

  Status batch() { return rules_.batch == BatchRule::kFillMemory ? fill_memory() : climb_batch(); }

  // An epoch needs its batches: the largest size of which it has enough, where it has `batches` of
  // `size`.
  int64_t most_for(int64_t size, int64_t batches) const {
    const auto most =
        static_cast<int64_t>(static_cast<double>(batches) * static_cast<double>(size) /
                             static_cast<double>(rules_.fewest_batches));
    return std::clamp(most, std::min(size, space_.batch.most), space_.batch.most);
  }
  int64_t most_of_data() const {
    if (current_.batches_per_epoch <= 0) return space_.batch.most;
    return most_for(out_.chosen.batch, current_.batches_per_epoch);
  }

  struct MemoryPoint {
    int64_t batch = 0;
    double used = 0.0;
  };

  // The next size to look at between one that fits and one that does not (0: none is known).
  int64_t next_size(const std::vector<MemoryPoint>& points, int64_t fits, int64_t too_large,
                    double total) const {
    int64_t next = fits > 0 ? 2 * fits : too_large / 2;
    if (fits > 0 && too_large > 0) next = fits + (too_large - fits) / 2;
    if (points.size() >= 2) {
      // Memory is a fixed part and one that grows with the batch.
      const MemoryPoint& a = points[points.size() - 2];
      const MemoryPoint& b = points.back();
      const double slope = (b.used - a.used) / static_cast<double>(b.batch - a.batch);
      const double wanted = total * (1.0 - 0.5 * (rules_.least_free + rules_.most_free));
      if (slope > 0.0) {
        const double at = static_cast<double>(b.batch) + (wanted - b.used) / slope;
        const double cap = static_cast<double>(kFastestGrowth * std::max<int64_t>(1, fits));
        next = static_cast<int64_t>(std::clamp(at, 1.0, cap));
      } else if (too_large == 0) {
        next = kFastestGrowth * fits;  // so small that it does not show
      }
    }
    if (too_large > 0) next = std::min(next, too_large - 1);
    next = std::max(next, fits + 1);
    const int64_t round = tidy(next);
    return round > fits ? round : next;
  }

  Status fill_memory() {
    limited_by_memory_ = false;
    std::vector<MemoryPoint> points;  // in the order of their sizes
    std::optional<TrialOutcome> last;
    int64_t fits = 0, too_large = 0;
    bool limited_by_memory_at_start = false;
    int64_t next = chosen().batch;
    int64_t most = most_of_data();
    std::string why_stopped;
    for (int trial = 0; trial < kMemoryTrials; ++trial) {
      TuneSettings settings = chosen();
      settings.batch = next;
      settings.buckets.clear();
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome outcome, try_settings(settings, true));
      if (outcome.end == TrialOutcome::End::kFailed) {
        if (points.empty())
          return Status(outcome.code, outcome.message)
              .with_context(str_cat(space_.batch.key, "=", next));
        why_stopped = str_cat(next, " failed");
        break;
      }
      if (outcome.batches_per_epoch > 0) most = most_for(next, outcome.batches_per_epoch);
      const double total = outcome.memory_total_gib;
      const double free = total > 0.0 ? 1.0 - outcome.memory_used_gib / total : 1.0;
      if (outcome.done() && free >= rules_.least_free) {
        fits = next;
        last = outcome;
        verdict(str_cat("fits: ", percent(free), " of the memory free"));
        points.push_back({next, outcome.memory_used_gib});
        if (free <= rules_.most_free) {
          limited_by_memory_ = true;
          break;
        }
        if (next >= most) {
          why_stopped = str_cat("more would leave fewer than ", rules_.fewest_batches,
                                " batches of an epoch");
          break;
        }
      } else {
        limited_by_memory_ = true;
        verdict(str_cat("too large: ", percent(std::max(0.0, free)), " of the memory free"));
        too_large = next;
        limited_by_memory_at_start = limited_by_memory_at_start || next == chosen().batch;
        if (too_large <= 1)
          return out_of_memory(str_cat("not even ", space_.batch.key, "=1 leaves ",
                                       percent(rules_.least_free), " of the memory free"))
              .with_hint("use a smaller model or shorter samples");
      }
      if (fits > 0 && too_large > 0 && too_large - fits <= std::max<int64_t>(1, fits / 32)) break;
      std::sort(points.begin(), points.end(),
                [](const MemoryPoint& a, const MemoryPoint& b) { return a.batch < b.batch; });
      const int64_t before = next;
      next = std::min(next_size(points, fits, too_large, total), most);
      if (next == before || next == fits || (too_large > 0 && next >= too_large)) break;
      if (fits > 0 && !time_left(true)) {
        why_stopped = "the time was up";
        break;
      }
    }
    if (fits == 0 || !last)
      return out_of_memory(str_cat("no size of ", space_.batch.key, " was found that fits"));
    TuneSettings settings = chosen();
    settings.batch = fits;
    settings.buckets.clear();
    AERIE_RETURN_IF_ERROR(grow_buckets(settings, *last));
    out_.memory_used_gib = last->memory_used_gib;
    out_.memory_total_gib = last->memory_total_gib;
    const double free =
        last->memory_total_gib > 0.0 ? 1.0 - last->memory_used_gib / last->memory_total_gib : 1.0;
    batch_reason_ =
        str_cat("the largest that was found to leave at least ", percent(rules_.least_free),
                " of the memory free (", number("%.1f", last->memory_used_gib), " of ",
                number("%.1f", last->memory_total_gib), " GiB used, ", percent(free), " free)",
                why_stopped.empty() ? "" : "; " + why_stopped);
    if (last->buckets.size() > 1)
      batch_reason_ +=
          str_cat("; ", last->buckets.size(), " buckets were tried, the largest batch of each");
    if (!settings.buckets.empty())
      batch_reason_ += "; those that left more room than the fullest were given more";
    if (settings == chosen()) return ok_status();
    if (batch_only_) {
      chosen() = settings;
      return ok_status();
    }
    AERIE_ASSIGN_OR_RETURN(const TrialOutcome outcome, try_settings(settings, false));
    const bool known = current_.throughput > 0.0;  // of the batch that it replaces
    const double gain = outcome.done() && known ? outcome.throughput / current_.throughput : 0.0;
    // One that does not fit where it was is replaced whatever it costs.
    if (outcome.done() && (!known || gain >= 1.0 || limited_by_memory_at_start)) {
      verdict(known ? "taken: " + times(gain) : "measured");
      take(settings, outcome);
    } else {
      verdict("not taken: " + times(gain));
      batch_reason_ = str_cat(settings.batch, " fits and is not faster (", times(gain), ")");
    }
    return ok_status();
  }

  // Buckets that leave more of the memory free than the one that limits are given more, each by
  // what its own batch took.
  Status grow_buckets(TuneSettings& settings, TrialOutcome& last) {
    if (batch_only_ || !space_.batch.bucket_changes || last.buckets.size() < 2) return ok_status();
    const std::vector<int64_t> sizes = space_.batch.bucket_sizes(settings.batch);
    const double total = last.memory_total_gib;
    const double wanted = total * (1.0 - 0.5 * (rules_.least_free + rules_.most_free));
    std::vector<int64_t> grown = sizes;
    bool worth = false;
    for (const BucketOutcome& one : last.buckets) {
      // One that has fewer samples than its size has no use for more.
      if (one.bucket >= sizes.size() || one.size < sizes[one.bucket]) continue;
      const double each =
          (one.memory_used_gib - last.memory_before_gib) / static_cast<double>(one.size);
      if (!(each > 0.0) || !(one.memory_used_gib < wanted)) continue;
      const auto room =
          static_cast<int64_t>(std::min((wanted - one.memory_used_gib) / each,
                                        static_cast<double>((kFastestGrowth - 1) * one.size)));
      grown[one.bucket] = std::max(sizes[one.bucket], tidy(one.size + room));
      worth = worth || static_cast<double>(grown[one.bucket]) >=
                           kWorthGrowing * static_cast<double>(sizes[one.bucket]);
    }
    // All of it, else half of it.
    for (int attempt = 0; attempt < 2 && worth && time_left(true); ++attempt) {
      TuneSettings more = settings;
      more.buckets = grown;
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome outcome, try_settings(more, true));
      const double free = total > 0.0 ? 1.0 - outcome.memory_used_gib / total : 0.0;
      const bool enough =
          outcome.batches_per_epoch <= 0 || outcome.batches_per_epoch >= rules_.fewest_batches;
      if (outcome.done() && free >= rules_.least_free && enough) {
        verdict(str_cat("fits: ", percent(free), " of the memory free, buckets one by one"));
        settings = std::move(more);
        last = outcome;
        return ok_status();
      }
      verdict(enough ? str_cat("too large: ", percent(std::max(0.0, free)), " of the memory free")
                     : "leaves too few batches of an epoch");
      for (size_t i = 0; i < grown.size(); ++i) grown[i] = sizes[i] + (grown[i] - sizes[i]) / 2;
    }
    return ok_status();
  }

  // Doubles the batch while that gains something and memory allows.
  Status climb_batch() {
    const int64_t most = most_of_data();
    std::vector<MemoryPoint> points;
    if (current_.memory_used_gib > 0.0)
      points.push_back({chosen().batch, current_.memory_used_gib});
    bool first = true, gained = false;
    batch_reason_.clear();
    while (true) {
      const int64_t next = 2 * chosen().batch;
      if (next > most) {
        batch_reason_ = str_cat(next, " would leave fewer than ", rules_.fewest_batches,
                                " batches of an epoch");
        break;
      }
      const double total = current_.memory_total_gib;
      if (!points.empty() && total > 0.0) {
        const MemoryPoint& b = points.back();
        double slope = b.used / static_cast<double>(b.batch);
        if (points.size() >= 2) {
          const MemoryPoint& a = points[points.size() - 2];
          slope = (b.used - a.used) / static_cast<double>(b.batch - a.batch);
        }
        const double expected = b.used + std::max(0.0, slope) * static_cast<double>(next - b.batch);
        if (expected > (1.0 - rules_.least_free) * total) {
          batch_reason_ = str_cat(next, " would need about ", number("%.1f", expected), " of the ",
                                  number("%.1f", total), " GiB of memory there are");
          break;
        }
      }
      if (!time_left(false, 2.0)) {
        batch_reason_ = "larger ones were not tried: the time was up";
        break;
      }
      TuneSettings settings = chosen();
      settings.batch = next;
      AERIE_ASSIGN_OR_RETURN(TrialOutcome outcome, try_settings(settings, false));
      double gain = 0.0;
      if (outcome.done()) {
        AERIE_ASSIGN_OR_RETURN(gain, gain_of(outcome));
        if (gain < kWorth && batch_only_) {
          AERIE_ASSIGN_OR_RETURN(gain, second_look(settings, outcome, gain));
        }
        verdict(gain >= kWorth ? "taken: " + times(gain) : "not taken: " + times(gain));
      }
      if (gain < kWorth) {
        batch_reason_ = outcome.done()
                            ? str_cat(next, " is ", times(gain), " as fast as ", chosen().batch)
                            : str_cat(next, " ", out_.tried.back().verdict);
        if (first && outcome.done() && gain < 1.0) AERIE_RETURN_IF_ERROR(try_smaller());
        break;
      }
      take(settings, outcome);
      gained = true;
      first = false;
      if (outcome.memory_used_gib > 0.0) points.push_back({next, outcome.memory_used_gib});
    }
    if (gained) batch_reason_ = str_cat("doubling it gained something up to here; ", batch_reason_);
    out_.memory_used_gib = current_.memory_used_gib;
    out_.memory_total_gib = current_.memory_total_gib;
    return ok_status();
  }

  // What is found for `auto` is kept and nothing compares it in the end: one trial that something
  // else disturbed is not to end the climb. The better one of two, on both sides.
  Result<double> second_look(const TuneSettings& settings, TrialOutcome& outcome, double gain) {
    if (!time_left(false, 3.0)) return gain;
    verdict("tried once more: " + times(gain));
    AERIE_ASSIGN_OR_RETURN(const TrialOutcome before, try_settings(chosen(), false));
    verdict("measured again, to compare");
    AERIE_ASSIGN_OR_RETURN(const TrialOutcome after, try_settings(settings, false));
    if (!before.done() || !after.done()) return gain;
    current_.throughput = std::max(current_.throughput, before.throughput);
    outcome.throughput = std::max(outcome.throughput, after.throughput);
    return outcome.throughput / current_.throughput;
  }

  Status try_smaller() {
    TuneSettings settings = chosen();
    settings.batch /= 2;
    if (settings.batch < 1 || !time_left(false)) return ok_status();
    AERIE_ASSIGN_OR_RETURN(const TrialOutcome outcome, try_settings(settings, false));
    if (!outcome.done()) return ok_status();
    const double gain = outcome.throughput / std::max(1e-12, current_.throughput);
    verdict(gain >= kWorthSmaller ? "taken: " + times(gain) : "not taken: " + times(gain));
    if (gain < kWorthSmaller) return ok_status();
    batch_reason_ = str_cat(settings.batch, " is ", times(gain), " as fast as ", chosen().batch);
    take(settings, outcome);
    return ok_status();
  }

  // Where a larger batch would still be faster and memory is what forbids it.
  Status trade_memory() {
    if (rules_.batch != BatchRule::kFillMemory || !limited_by_memory_ || chosen().batch < 2)
      return ok_status();
    for (size_t i = 0; i < space_.knobs.size(); ++i) {
      const TuneKnob& knob = space_.knobs[i];
      if (!knob.saves_memory || chosen().values[i] + 1 == knob.values.size()) continue;
      if (!time_left(false, 3.0)) {
        knob_reasons_[i] = "not tried: the time was up";
        continue;
      }
      TuneSettings half = chosen();
      half.batch /= 2;
      half.buckets.clear();
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome less, try_settings(half, false));
      const double rise = less.throughput > 0.0 ? current_.throughput / less.throughput : 0.0;
      verdict("to see what a larger batch is worth: " + times(rise));
      if (rise < kStillRising) {
        knob_reasons_[i] = str_cat("the batch is ", times(rise),
                                   " as fast as half of it: a still larger one would gain little");
        continue;
      }
      const TuneSettings kept = chosen();
      const TrialOutcome kept_outcome = current_;
      const std::string kept_reason = batch_reason_;
      const double used = out_.memory_used_gib, total = out_.memory_total_gib;
      chosen().values[i] = knob.values.size() - 1;
      current_.throughput = 0.0;  // what this batch gives with the new value is not known
      AERIE_RETURN_IF_ERROR(fill_memory());
      const double gain = current_.throughput / std::max(1e-12, kept_outcome.throughput);
      knob_reasons_[i] = str_cat(knob.values.back(), " with ", space_.batch.key, "=",
                                 chosen().batch, " is ", times(gain), " as fast");
      if (gain >= kWorth) continue;
      chosen() = kept;
      current_ = kept_outcome;
      batch_reason_ = kept_reason;
      out_.memory_used_gib = used;
      out_.memory_total_gib = total;
    }
    return ok_status();
  }

  // Start and choice in turn: twice where there is time, more often where the pairs disagree.
  Status compare() {
    if (chosen() == out_.start) return ok_status();
    if (!start_fits_) {
      out_.after.push_back(current_.throughput);
      return ok_status();
    }
    int64_t pairs = 0, faster = 0;
    bool broken = false;
    while (pairs < kMostPairs && !broken) {
      const bool agree = faster == 0 || faster == pairs;
      if (pairs >= 2 && agree) break;
      if (pairs > 0 && trials_.elapsed_s() + 2.0 * longest_wall_s_ > rules_.budget_s) break;
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome before, try_settings(out_.start, false));
      verdict("comparison: before");
      AERIE_ASSIGN_OR_RETURN(const TrialOutcome after, try_settings(chosen(), false));
      verdict("comparison: after");
      broken = !before.done() || !after.done();
      if (broken) break;
      ++pairs;
      out_.before.push_back(before.throughput);
      out_.after.push_back(after.throughput);
      if (after.throughput >= kFaster * before.throughput) ++faster;
    }
    if (!broken && 2 * faster > pairs && out_.measured_speedup() >= kFaster) return ok_status();
    if (broken) out_.after.clear();
    out_.kept_start = true;
    chosen() = out_.start;
    return ok_status();
  }

  void explain_batch() {
    if (!space_.batch.explanation.empty()) out_.reasons.push_back(space_.batch.explanation);
    const bool changed = chosen().batch != out_.start.batch;
    std::string text = str_cat(space_.batch.key, ": ");
    text += space_.batch.automatic ? str_cat("auto -> ", chosen().batch, " ", space_.batch.unit)
            : changed ? str_cat(out_.start.batch, " -> ", chosen().batch, " ", space_.batch.unit)
                      : str_cat("stays ", chosen().batch);
    if (!chosen().buckets.empty()) {
      text += ", by bucket";
      for (size_t i = 0; i < chosen().buckets.size(); ++i)
        text += str_cat(i == 0 ? " " : ", ", chosen().buckets[i]);
    }
    if (!batch_reason_.empty()) text += ": " + batch_reason_;
    out_.reasons.push_back(std::move(text));
  }

  void explain() {
    if (out_.kept_start) {
      out_.reasons.push_back(
          out_.after.empty()
              ? "everything stays as it was: the choice failed when it was measured again"
              : str_cat("everything stays as it was: measured again in turn, the choice was ",
                        times(out_.measured_speedup()), " as fast as the start"));
      return;
    }
    explain_batch();
    for (size_t i = 0; i < space_.knobs.size(); ++i) {
      const TuneKnob& knob = space_.knobs[i];
      const std::string& from = knob.values[out_.start.values[i]];
      const std::string& to = knob.values[chosen().values[i]];
      std::string text =
          str_cat(knob.key, ": ", from == to ? str_cat("stays ", to) : str_cat(from, " -> ", to));
      if (!knob_reasons_[i].empty()) text += ": " + knob_reasons_[i];
      out_.reasons.push_back(std::move(text));
    }
  }

  const TuneSpace& space_;
  const TuneRules& rules_;
  TuneTrials& trials_;
  TuneResult out_;
  TrialOutcome current_;  // of what is chosen
  bool start_fits_ = true;
  bool batch_only_ = false;
  bool limited_by_memory_ = false;
  int64_t first_round_batch_ = 0;
  double speed_wall_s_ = 0.0, memory_wall_s_ = 0.0, longest_wall_s_ = 0.0;
  std::string batch_reason_;
  std::vector<std::string> knob_reasons_;
};

}  // namespace

double TuneResult::before_mean() const {
  return mean(before);
}
double TuneResult::after_mean() const {
  return mean(after);
}
double TuneResult::measured_speedup() const {
  return before.empty() || after.empty() || !(before_mean() > 0.0) ? 0.0
                                                                   : after_mean() / before_mean();
}
double TuneResult::speedup() const {
  return chosen == start ? 1.0 : measured_speedup();
}

Result<TuneResult> tune(const TuneSpace& space, const TuneRules& rules, TuneTrials& trials) {
  return Search(space, rules, trials).everything();
}

Result<TuneResult> find_batch(const TuneSpace& space, const TuneRules& rules, TuneTrials& trials) {
  return Search(space, rules, trials).batch_alone();
}

}  // namespace aerie::advisor
