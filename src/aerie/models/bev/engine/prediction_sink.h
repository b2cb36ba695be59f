// Who looks at what an evaluation predicts: pictures, files. No torch here.
#pragma once

#include <span>

#include "aerie/base/status.h"
#include "aerie/data/batch.h"

namespace aerie::bev {

// Called by the thread that evaluates.
class PredictionSink {
 public:
  virtual ~PredictionSink() = default;
  virtual bool wants(const data::Batch& batch) const = 0;
  // Of a batch that it wants: probabilities [B][K][nx][ny], valid during the call. An error ends
  // the evaluation.
  virtual Status take(const data::Batch& batch, std::span<const float> probability) = 0;
};

}  // namespace aerie::bev
