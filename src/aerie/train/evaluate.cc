#include "aerie/train/evaluate.h"

#include <algorithm>
#include <utility>

#include "aerie/base/philox.h"
#include "aerie/base/spans.h"

namespace aerie::train {

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
