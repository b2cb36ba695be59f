#include "aerie/train/rank_talk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::train {

namespace {

// A rank that takes so much longer than the median for its own work holds the others up.
constexpr double kStraggler = 1.2;
constexpr double kWindowS = 10.0;

// Empty: ok. The text travels as the first rank would print it.
std::string pack_status(const Status& status) {
  if (status.ok()) return {};
  nlohmann::json json;
  json["code"] = static_cast<int>(status.code());
  json["message"] = status.message();
  json["hint"] = status.hint();
  json["context"] = status.context();
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status unpack_status(const std::string& text) {
  if (text.empty()) return ok_status();
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return internal_error("another rank failed");
  Status out(static_cast<StatusCode>(json.value("code", static_cast<int>(StatusCode::kInternal))),
             json.value("message", std::string("another rank failed")));
  if (const std::string hint = json.value("hint", std::string()); !hint.empty())
    out = std::move(out).with_hint(hint);
  for (const auto& where : json.value("context", std::vector<std::string>()))
    out = std::move(out).with_context(where);
  return out;
}

}  // namespace

Result<std::string> from_first_rank(dist::ProcessGroup* ranks,
                                    const std::function<Result<std::string>()>& make) {
  if (ranks == nullptr) return make();
  std::string error, bytes;
  Result<std::string> made = std::string();
  if (leads(ranks)) {
    made = make();
    error = pack_status(made.status());
    if (made.ok()) bytes = *made;
  }
  AERIE_RETURN_IF_ERROR(ranks->broadcast(error, 0));
  if (!error.empty()) return leads(ranks) ? made.status() : ranks->explain(unpack_status(error));
  AERIE_RETURN_IF_ERROR(ranks->broadcast(bytes, 0));
  return bytes;
}

Status all_succeeded(dist::ProcessGroup* ranks, const Status& own) {
  if (ranks == nullptr) return own;
  auto all = ranks->all_gather(pack_status(own));
  if (!own.ok()) return own;
  AERIE_RETURN_IF_ERROR(all.status());
  for (size_t rank = 0; rank < all->size(); ++rank)
    if (!(*all)[rank].empty())
      return ranks->explain(unpack_status((*all)[rank]).with_context(str_cat("rank ", rank)));
  return ok_status();
}

Status first_of_each_node_first(dist::ProcessGroup* ranks, const std::function<Status()>& work) {
  if (ranks == nullptr) return work();
  const bool first = ranks->world().local_rank == 0;
  AERIE_RETURN_IF_ERROR(all_succeeded(ranks, first ? work() : ok_status()));
  return all_succeeded(ranks, first ? ok_status() : work());
}

Status RankVotes::vote(const Numbers& own) {
  answers_ = own;
  return ranks_ == nullptr ? ok_status() : ranks_->max(answers_);
}

RankReport judge_ranks(const std::vector<RankTimes>& times) {
  RankReport out;
  std::vector<double> busy;
  double util_sum = 0.0;
  int with_util = 0;
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const double step_s = times[rank].busy_s() / std::max(1.0, times[rank].steps);
    busy.push_back(step_s);
    if (rank == 0 || step_s > out.slowest_s) {
      out.slowest = static_cast<int>(rank);
      out.slowest_s = step_s;
    }
    if (times[rank].gpu_util < 0.0) continue;
    util_sum += times[rank].gpu_util;
    out.gpu_util_min =
        with_util == 0 ? times[rank].gpu_util : std::min(out.gpu_util_min, times[rank].gpu_util);
    ++with_util;
  }
  if (with_util > 0) out.gpu_util_mean = util_sum / with_util;
  if (busy.empty()) return out;
  std::sort(busy.begin(), busy.end());
  // Of two ranks the quicker one: half way between both would hide the slower.
  out.median_s = busy[(busy.size() - 1) / 2];
  out.straggles = times.size() > 1 && out.slowest_s > kStraggler * out.median_s;
  // What it spends beyond the median: is it waiting for its batches?
  const RankTimes& slowest = times[static_cast<size_t>(out.slowest)];
  const double steps = std::max(1.0, slowest.steps);
  out.why = slowest.data_wait_s / steps > 0.5 * (out.slowest_s - out.median_s) ? "data" : "compute";
  return out;
}

std::optional<RankReport> RankWindow::add(const std::vector<RankTimes>& times) {
  if (!std::exchange(begun_, true)) return std::nullopt;
  sums_.resize(times.size(), {0.0, 0.0, 0.0, 0.0, 0.0});
  for (size_t rank = 0; rank < times.size(); ++rank) {
    const RankTimes& more = times[rank];
    RankTimes& sum = sums_[rank];
    sum.elapsed_s += more.elapsed_s;
    sum.data_wait_s += more.data_wait_s;
    sum.ranks_wait_s += more.ranks_wait_s;
    sum.steps += more.steps;
    // One report without it, and it is not known.
    sum.gpu_util = more.gpu_util < 0.0 || sum.gpu_util < 0.0
                       ? -1.0
                       : sum.gpu_util + more.gpu_util * more.elapsed_s;
  }
  // Every rank looks at the same numbers.
  if (sums_.empty() || sums_.front().elapsed_s < kWindowS) return std::nullopt;
  for (RankTimes& sum : sums_)
    if (sum.gpu_util >= 0.0) sum.gpu_util /= std::max(1e-9, sum.elapsed_s);
  return judge_ranks(std::exchange(sums_, {}));
}

Result<std::vector<RankTimes>> gather_times(dist::ProcessGroup& ranks, const RankTimes& own) {
  std::string bytes(sizeof own, '\0');
  std::memcpy(bytes.data(), &own, sizeof own);
  AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.all_gather(bytes));
  std::vector<RankTimes> times(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof own) return internal_error("ranks of different versions");
    std::memcpy(&times[rank], all[rank].data(), sizeof own);
  }
  return times;
}

}  // namespace aerie::train
