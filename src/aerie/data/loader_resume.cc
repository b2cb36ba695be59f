// How a loader goes on where another process stopped: position, counts, and epochs that are gone on
// with in other batches.
#include <algorithm>
#include <unordered_map>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/data/loader_impl.h"

namespace aerie::data {

namespace {

// "x/train.json:17 (clips/a.wav)" without its folders: data may have moved between two starts.
std::string without_folders(const std::string& place) {
  std::string out;
  size_t word = 0;
  for (const char c : place) {
    if (c == '/') {
      out.resize(word);
      continue;
    }
    out += c;
    if (c == ' ' || c == '(') word = out.size();
  }
  return out;
}

}  // namespace

Cursor::Part Loader::Impl::part_now() const {
  Cursor::Part out;
  const uint64_t lanes = setup.lanes_per_rank;
  out.step = static_cast<uint64_t>(taken.index) / lanes;
  out.micro = static_cast<uint32_t>(static_cast<uint64_t>(taken.index) % lanes);
  out.virtual_ranks = sampler.num_lanes();
  if (lanes > 1) out.lanes_per_rank = static_cast<uint32_t>(lanes);
  out.batch_size = sampler.max_batch_size();
  out.order_fingerprint = sampler.fingerprint();
  out.batching = sampler.batching();
  return out;
}

Cursor Loader::cursor() const {
  const std::lock_guard lock(impl_->mutex);
  Cursor out;
  out.epoch = impl_->taken.epoch;
  out.seed = impl_->options.seed;
  out.now = impl_->part_now();
  if (impl_->rest_plan != nullptr && impl_->rest_plan->epoch() == out.epoch)
    out.before = impl_->before;
  out.data_fingerprint = impl_->dataset->fingerprint();
  out.samples_done = impl_->samples_done * impl_->options.world;
  out.bad_samples = impl_->bad_ids.size();
  if (impl_->bad_ids.size() <= Cursor::kMaxBadListed) {
    out.bad_list.emplace(impl_->bad_ids.begin(), impl_->bad_ids.end());
    std::sort(out.bad_list->begin(), out.bad_list->end());
  }
  out.num_samples = impl_->dataset->size();
  out.packing = impl_->sampler.packing();
  return out;
}

EpochPosition Loader::position() const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->batch_counts.find(impl_->taken.epoch);
  const int64_t batches =
      found != impl_->batch_counts.end() ? found->second : impl_->batches_in(*impl_->plan);
  const bool rest = impl_->rest_plan != nullptr && impl_->rest_plan->epoch() == impl_->taken.epoch;
  const int64_t offset = rest ? impl_->rest_offset : 0;
  return {offset + impl_->taken.index, offset + batches};
}

void Loader::Impl::forget_rest() {
  // The plan in use may be the rest: the epoch is planned anew when it is asked for.
  if (rest_plan != nullptr && plan == rest_plan) plan.reset();
  rest_plan.reset();
  before.clear();
  rest_offset = 0;
}

// The sampler a part of the epoch was made with; an error when more has changed than the batches.
Result<Sampler> Loader::Impl::sampler_of(const Cursor::Part& part) const {
  std::vector<Batching> candidates;
  if (part.batching) {
    candidates.push_back(*part.batching);
  } else {
    // Cursors of earlier versions have one number, and that not for every way: what is meant is
    // known by its fingerprint.
    candidates.push_back(sampler.batching());
    if (candidates[0].batch_size) candidates[0].batch_size = part.batch_size;
    for (const Batching& earlier : options.earlier_batching)
      if (std::find(candidates.begin(), candidates.end(), earlier) == candidates.end())
        candidates.push_back(earlier);
  }
  for (const Batching& batching : candidates) {
    for (const Packing packing : {Packing::kLhotse, Packing::kWithinBudget}) {
      auto out = sampler.with(batching, part.virtual_ranks, packing);
      if (out.ok() && out->fingerprint() == part.order_fingerprint) return out;
    }
  }
  return invalid_argument(
             "the order of the data has changed since the checkpoint was written (shuffling, "
             "buckets, mixture or shards)")
      .with_hint(str_cat("set the keys of ", dataset->config_node(),
                         " as they were; batch_size and the number of ranks may differ"));
}

Status Loader::restore(const std::string& cursor_json) {
  AERIE_ASSIGN_OR_RETURN(const Cursor cursor, Cursor::parse(cursor_json));
  const Sampler& sampler = impl_->sampler;
  if (cursor.data_fingerprint != impl_->dataset->fingerprint())
    return invalid_argument(str_cat("the data has changed since the checkpoint was written: ",
                                    impl_->dataset->what_may_differ()))
        .with_hint("restore the data, or start the epoch anew");
  if (cursor.seed != impl_->options.seed)
    return invalid_argument("the checkpoint was written with another aerie.seed")
        .with_hint("use the same seed to continue");
  const uint64_t lanes = impl_->setup.lanes_per_rank;
  const auto check = [](const Cursor::Part& part, const EpochPlan& plan, uint64_t lanes_per_rank) {
    if (part.step > plan.num_steps() || part.micro >= lanes_per_rank ||
        (part.step == plan.num_steps() && part.micro > 0))
      return data_error(
          str_cat("data cursor: step ", part.step, " of an epoch of ", plan.num_steps()));
    return ok_status();
  };
  std::vector<Cursor::Part> before = cursor.before;
  Cursor::Part now = cursor.now;
  // Of each rank's, as the run was then; earlier versions do not say, and did not allow another
  // number of ranks inside a step.
  const auto lanes_of = [&](const Cursor::Part& part) {
    return part.lanes_per_rank > 0
               ? part.lanes_per_rank
               : std::max<uint32_t>(
                     1, part.virtual_ranks / static_cast<uint32_t>(impl_->options.world));
  };
  const bool other_batches =
      now.order_fingerprint != sampler.fingerprint() || (now.micro > 0 && lanes_of(now) != lanes);
  if (other_batches) {
    before.push_back(now);
    now = {};
  }
  std::shared_ptr<const EpochPlan> rest_plan;
  int64_t offset = 0;
  if (!before.empty()) {
    std::shared_ptr<const EpochPlan> plan;
    std::vector<PlannedSample> rest;
    for (Cursor::Part& part : before) {
      AERIE_ASSIGN_OR_RETURN(const Sampler then, impl_->sampler_of(part));
      // The next cursor says what one of an earlier version did not.
      part.batching = then.batching();
      plan = plan == nullptr ? then.plan(cursor.epoch) : then.plan_rest(cursor.epoch, rest);
      AERIE_RETURN_IF_ERROR(check(part, *plan, lanes_of(part)));
      rest = plan->rest_after(part.step, part.micro, lanes_of(part));
    }
    rest_plan = sampler.plan_rest(cursor.epoch, rest);
    const int64_t batches = impl_->batches_in(*rest_plan);
    offset = std::max<int64_t>(0, impl_->batches_in(*sampler.plan(cursor.epoch)) - batches);
    if (other_batches && !impl_->options.quiet)
      log_info("data", "epoch ", cursor.epoch, " goes on with other batches: ", batches,
               " of them hold the ", rest.size(), " samples that are left");
    if (const uint64_t lost = rest.size() - rest_plan->num_samples(); other_batches && lost > 0)
      log_warn("data", lost, " samples of epoch ", cursor.epoch,
               " fill no batch and are left out of it (drop_last)");
  }
  std::unique_lock lock(impl_->mutex);
  impl_->forget_rest();
  impl_->rest_plan = rest_plan;
  impl_->before = std::move(before);
  impl_->rest_offset = offset;
  if (rest_plan != nullptr && impl_->plan != nullptr && impl_->plan->epoch() == cursor.epoch)
    impl_->plan.reset();
  AERIE_RETURN_IF_ERROR(check(now, impl_->plan_of(cursor.epoch), lanes));
  impl_->reset({cursor.epoch, static_cast<int64_t>(now.step * lanes + now.micro)}, lock);
  return ok_status();
}

Status Loader::restore_counts(const std::string& cursor_json) {
  AERIE_ASSIGN_OR_RETURN(const Cursor cursor, Cursor::parse(cursor_json));
  const Dataset& dataset = *impl_->dataset;
  const std::lock_guard lock(impl_->mutex);
  impl_->samples_done = cursor.samples_done / impl_->options.world;
  if (cursor.bad_samples == 0 || cursor.data_fingerprint != dataset.fingerprint())
    return ok_status();
  std::unordered_map<std::string, const BadSample*> reported;
  std::unordered_map<uint32_t, const BadSample*> by_id;
  for (const BadSample& bad : impl_->options.earlier_bad) {
    reported.emplace(without_folders(bad.place), &bad);
    by_id.emplace(bad.sample_id, &bad);
  }
  std::vector<uint32_t> list;
  if (cursor.bad_list) {
    list = *cursor.bad_list;
  } else if (!by_id.empty()) {
    // The first ones reported, as many as there were; those of other data sets are among them.
    std::unordered_map<const BadSample*, uint32_t> samples;
    for (uint64_t i = 0; i < dataset.size(); ++i)
      if (by_id.contains(dataset.sample_id(i)))
        if (const auto found = reported.find(without_folders(dataset.describe(i)));
            found != reported.end())
          samples.emplace(found->second, static_cast<uint32_t>(i));
    for (const BadSample& bad : impl_->options.earlier_bad)
      if (const auto found = samples.find(&bad);
          found != samples.end() && list.size() < cursor.bad_samples)
        list.push_back(found->second);
  }
  for (const uint32_t sample : list) {
    if (sample >= dataset.size())
      return data_error(str_cat("data cursor: bad sample ", sample, " of ", dataset.size()));
    if (!impl_->bad_ids.insert(sample).second) continue;
    BadSample bad{dataset.sample_id(sample),
                  dataset.describe(sample),
                  "found before the restart",
                  0,
                  0,
                  sample};
    if (const auto found = reported.find(without_folders(bad.place)); found != reported.end())
      bad.reason = found->second->reason;
    impl_->bad.push_back(std::move(bad));
  }
  return ok_status();
}

}  // namespace aerie::data
