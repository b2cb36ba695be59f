// The loop among other ranks: votes, and what they tell each other after a step.
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/train/measure.h"
#include "aerie/train/trainer.h"

namespace aerie::train {

namespace {
constexpr double kLowGpuUtil = 80.0;  // percent: somebody should look
}  // namespace

void Trainer::enter(dist::Phase phase) {
  if (parts_.ranks != nullptr) parts_.ranks->set_phase(phase);
}

int64_t Trainer::opinion(RankVotes::Question question) const {
  const config::ExpManagerConfig& exp = parts_.config->exp_manager;
  const double now = parts_.clock->monotonic_s();
  switch (question) {
    case RankVotes::kSignal:
      return parts_.stop_signal ? parts_.stop_signal() : 0;
    case RankVotes::kRunTimeOver:
      return exp.max_time_per_run_s && now - start_s_ >= *exp.max_time_per_run_s ? 1 : 0;
    case RankVotes::kTotalTimeOver: {
      const auto& most = parts_.config->trainer.max_time_s;
      return !exp.max_time_per_run_s && most && wall_s() >= *most ? 1 : 0;
    }
    case RankVotes::kRetrySave:
      return retry_save_at_s_ && now >= *retry_save_at_s_ ? 1 : 0;
    case RankVotes::kSaveByTime: {
      const auto& every = exp.checkpoint_callback_params.train_time_interval_s;
      return every && now - last_interval_save_s_ >= *every ? 1 : 0;
    }
    case RankVotes::kFallBack:
      return fall_back_wanted_ ? 1 : 0;
    case RankVotes::kLastSaved:
      return leads(parts_.ranks) ? state_.last_saved_step : std::numeric_limits<int64_t>::min();
    case RankVotes::kBadSamples:
      return parts_.train->untold_bad_samples();
    case RankVotes::kOutOfMemory:
    case RankVotes::kSamples:
    case RankVotes::kNumQuestions:
      break;
  }
  return 0;
}

int64_t Trainer::decided(RankVotes::Question question) const {
  return votes_.alone() ? opinion(question) : votes_.answer(question);
}

Status Trainer::vote(bool out_of_memory, int64_t samples) {
  if (votes_.alone()) return ok_status();
  RankVotes::Numbers own{};
  for (size_t q = 0; q < RankVotes::kNumQuestions; ++q)
    own[q] = opinion(static_cast<RankVotes::Question>(q));
  own[RankVotes::kOutOfMemory] = out_of_memory ? 1 : 0;
  own[RankVotes::kSamples] = samples;
  const double before = parts_.clock->monotonic_s();
  const dist::PhaseScope phase(parts_.ranks, dist::Phase::kAllReduce);
  AERIE_RETURN_IF_ERROR(votes_.vote(own));
  vote_wait_s_ += parts_.clock->monotonic_s() - before;
  // Whether a checkpoint was written only the rank that writes knows.
  state_.last_saved_step = votes_.answer(RankVotes::kLastSaved);
  return ok_status();
}

Result<double> Trainer::loss_of_ranks() {
  if (parts_.ranks == nullptr) return summary_.last_loss;
  double sum = summary_.last_loss;
  AERIE_RETURN_IF_ERROR(parts_.ranks->sum(std::span(&sum, 1)));
  return sum / parts_.ranks->size();
}

// What a step took in, over all ranks.
Status Trainer::share_amounts(StepInfo& info) {
  if (parts_.ranks == nullptr) return ok_status();
  std::vector<double> sums{info.amount, info.padding_share};
  AERIE_RETURN_IF_ERROR(parts_.ranks->sum(std::span(sums)));
  info.amount = sums[0];
  info.padding_share = sums[1] / parts_.ranks->size();
  return ok_status();
}

Status Trainer::share_bad_samples(BatchSource& source) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         parts_.ranks->all_gather(source.take_bad_samples()));
  for (const std::string& text : all)
    if (!text.empty()) AERIE_RETURN_IF_ERROR(source.add_bad_samples(text));
  return ok_status();
}

Status Trainer::after_votes() {
  if (parts_.ranks == nullptr) return ok_status();
  if (votes_.answer(RankVotes::kBadSamples) > 0) {
    votes_.settle(RankVotes::kBadSamples);
    AERIE_RETURN_IF_ERROR(share_bad_samples(*parts_.train));
  }
  if (votes_.answer(RankVotes::kFallBack) != 0) {
    votes_.settle(RankVotes::kFallBack);
    AERIE_RETURN_IF_ERROR(collect(/*wait=*/true));
    AERIE_RETURN_IF_ERROR(fall_back());
  }
  return cadence_.log_after_step(position_.step, last_width_) ? report_stragglers() : ok_status();
}

// At every log interval: who holds the others up, and how busy the GPUs are.
Status Trainer::report_stragglers() {
  RankTimes total;
  total.elapsed_s =
      parts_.clock->monotonic_s() - start_s_ - summary_.validation_s - summary_.save_block_s;
  total.data_wait_s = summary_.data_wait_s;
  total.ranks_wait_s = vote_wait_s_;
  if (const auto waits = summary_.phase_s.find(kPhaseRanks); waits != summary_.phase_s.end())
    total.ranks_wait_s += waits->second;
  total.steps = static_cast<double>(position_.step);
  RankTimes since = total;
  since.elapsed_s -= reported_.elapsed_s;
  since.data_wait_s -= reported_.data_wait_s;
  since.ranks_wait_s -= reported_.ranks_wait_s;
  since.steps -= reported_.steps;
  reported_ = total;
  if (parts_.nvml != nullptr)
    if (const auto sample = parts_.nvml->read()) since.gpu_util = sample->utilisation_percent;
  AERIE_ASSIGN_OR_RETURN(const std::vector<RankTimes> times, gather_times(*parts_.ranks, since));
  const RankReport report = judge_ranks(times);
  event("ranks", [&](metrics::Record& record) {
    record.add("slowest_rank", int64_t{report.slowest})
        .add("slowest_ms", report.slowest_s * 1e3)
        .add("median_ms", report.median_s * 1e3)
        .add("why", report.why);
    if (report.gpu_util_mean >= 0.0)
      record.add("gpu_util_min", report.gpu_util_min).add("gpu_util_mean", report.gpu_util_mean);
  });
  const std::optional<RankReport> all = rank_window_.add(times);
  if (!all || !leads(parts_.ranks)) return ok_status();
  static LogLimiter limiter(300.0, 1);
  if (all->straggles)
    limiter.warn(
        str_cat("straggler ", all->slowest), "train", "rank ", all->slowest, " on ",
        parts_.ranks->host_of(all->slowest),
        " holds the others up: ", std::round(all->slowest_s * 1e4) / 10.0,
        " ms a step of its own, the median is ", std::round(all->median_s * 1e4) / 10.0, " ms; ",
        std::string_view(all->why) == "data" ? "it waits for its data" : "its computation is slow");
  if (all->gpu_util_mean >= 0.0 && all->gpu_util_min < kLowGpuUtil)
    limiter.warn("gpu", "train", "the GPUs are not busy: ", std::round(all->gpu_util_min),
                 " % the least, ", std::round(all->gpu_util_mean),
                 " % on average over ranks; `aerie plan` says what limits");
  return ok_status();
}

}  // namespace aerie::train
