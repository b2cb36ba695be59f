#include "aerie/train/evaluate.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "aerie/base/philox.h"
#include "aerie/base/spans.h"

namespace aerie::train {

// Ranks whose batches had no loss may have no sums yet: lengths differ.
Status merge_over_ranks(dist::ProcessGroup& ranks, std::vector<SetResult>& results) {
  for (SetResult& result : results) {
    std::vector<double> packed = result.all.pack();
    packed.push_back(result.amount);
    AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           ranks.all_gather({reinterpret_cast<const char*>(packed.data()),
                                             packed.size() * sizeof(double)}));
    result = {};
    for (const std::string& bytes : all) {
      std::vector<double> numbers(bytes.size() / sizeof(double));
      std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
      if (numbers.empty()) return internal_error("a rank sent no results of its evaluation");
      result.amount += numbers.back();
      numbers.pop_back();
      result.all.merge(numbers);
    }
  }
  return ok_status();
}

Result<std::vector<SetResult>> evaluate_sets(Engine& engine, const std::vector<ValidationSet>& sets,
                                             const EvaluateOptions& options) {
  const uint64_t seed =
      mix64(options.seed ^ static_cast<uint64_t>(Purpose::kValidation)) + options.round;
  std::vector<SetResult> out;
  for (size_t s = 0; s < sets.size(); ++s) {
    const ValidationSet& set = sets[s];
    AERIE_RETURN_IF_ERROR(set.source->start_epoch(static_cast<int64_t>(options.round)));
    const int64_t limit =
        options.max_batches >= 0 ? std::min(set.batches, options.max_batches) : set.batches;
    SetResult result;
    for (int64_t i = 0; i < limit; ++i) {
      if (options.stop && options.stop()) return Status(StatusCode::kCancelled, "stopped");
      SpanScope wait("data wait");
      AERIE_ASSIGN_OR_RETURN(const data::Batch* batch, set.source->next());
      wait.end();
      if (batch == nullptr) break;
      result.amount += set.source->summary(*batch).amount;
      auto outcome = engine.evaluate(*batch, seed + s, static_cast<uint64_t>(i));
      set.source->release(batch);
      if (!outcome.ok()) return outcome.status().with_context("validation");
      result.all.add(*outcome);
      if (options.after_batch) options.after_batch();
    }
    out.push_back(std::move(result));
  }
  return out;
}

}  // namespace aerie::train
