// Reads that failed for a reason which passes by itself (kUnavailable: too many open files, a stale
// handle of a network file system, a call that was interrupted or timed out) are made again, later
// and later, within a bound. Every other error comes back at once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/status.h"

namespace aerie {

struct RetryPolicy {
  double first_wait_s = 0.005;  // doubled each time
  double longest_wait_s = 1.0;
  double total_s = 15.0;  // waits together; then the error stands
  Clock* clock = nullptr;
};

inline bool is_passing(const Status& status) {
  return status.code() == StatusCode::kUnavailable;
}

// `call` gives a Status or a Result. It must open anew what it reads: a stale handle stays stale.
template <typename Call>
auto retry_passing(const RetryPolicy& policy, Call&& call) {
  using Outcome = decltype(call());
  const auto status_of = [](const Outcome& outcome) -> Status {
    if constexpr (std::is_same_v<Outcome, Status>)
      return outcome;
    else
      return outcome.status();
  };
  double waited_s = 0.0;
  double wait_s = policy.first_wait_s;
  while (true) {
    Outcome outcome = call();
    if (outcome.ok()) return outcome;
    Status status = status_of(outcome);
    if (!is_passing(status)) return outcome;
    if (waited_s >= policy.total_s)
      return Outcome(std::move(status).with_context(str_cat("after ", waited_s, " s of trying")));
    if (waited_s == 0.0)
      AERIE_LOG_EVERY_S(warn, 60.0, "data", status.to_string(), "; trying again for up to ",
                        policy.total_s, " s");
    (policy.clock != nullptr ? *policy.clock : Clock::real())
        .sleep_ns(static_cast<int64_t>(wait_s * 1e9));
    waited_s += wait_s;
    wait_s = std::min(policy.longest_wait_s, wait_s * 2);
  }
}

}  // namespace aerie
