#include "aerie/train/evaluate.h"

#include <algorithm>
#include <cmath>

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
    double sum = 0.0;
    for (int64_t i = 0; i < limit; ++i) {
      if (options.stop && options.stop()) return Status(StatusCode::kCancelled, "stopped");
      SpanScope wait("data wait");
      AERIE_ASSIGN_OR_RETURN(const data::Batch* batch, set.source->next());
      wait.end();
      if (batch == nullptr) break;
      result.audio_s += set.source->summary(*batch).audio_s;
      auto outcome = engine.evaluate(*batch, seed + s, static_cast<uint64_t>(i));
      set.source->release(batch);
      if (!outcome.ok()) return outcome.status().with_context("validation");
      ++result.batches;
      if (options.after_batch) options.after_batch();
      if (!outcome->counted) continue;
      sum += outcome->loss;
      result.masked_frames += outcome->masked_frames;
      ++result.counted;
    }
    result.loss = result.counted > 0 ? sum / static_cast<double>(result.counted) : std::nan("");
    out.push_back(result);
  }
  return out;
}

}  // namespace aerie::train
