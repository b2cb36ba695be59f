// Where the loop gets its batches: the data engine's loader, or a fake in tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aerie/base/status.h"
#include "aerie/data/loader_stats.h"

namespace aerie::data {
class Batch;
}

namespace aerie::train {

struct BatchSummary {
  double amount = 0.0;         // valid input of the batch, as TaskInfo::amount counts it
  double padding_share = 0.0;  // share of the batch that is padding
  std::string sample_ids;      // for reports on batches that went wrong
  int64_t samples = 0;
};

// Where the loop stands in an epoch, in batches of now.
struct EpochPosition {
  int64_t batch = 0;    // handed out
  int64_t batches = 0;  // of the whole epoch
};

class BatchSource {
 public:
  virtual ~BatchSource() = default;
  virtual int64_t batches_per_epoch() const = 0;
  // The next batch of the current epoch, null at its end. The batch stays valid until release().
  virtual Result<const data::Batch*> next() = 0;
  virtual void release(const data::Batch* batch) = 0;
  // Goes to the first batch of `epoch`.
  virtual Status start_epoch(int64_t epoch) = 0;
  virtual BatchSummary summary(const data::Batch& batch) const = 0;
  // Position after the last batch that next() handed out, and back to it.
  virtual std::string cursor_json() const = 0;
  virtual Status restore(const std::string& cursor_json) = 0;
  // The position as the source counts it: after restore() with other batches than before it is
  // not the number of batches that were used.
  virtual EpochPosition position() const = 0;
  // Goes on counting from a cursor, whatever epoch comes next.
  virtual Status restore_counts(const std::string& cursor_json) = 0;
  // Several ranks: how many bad samples were met that the others do not know of, these as a text,
  // and the texts of all ranks. An error: they are too many.
  virtual int64_t untold_bad_samples() const { return 0; }
  virtual std::string take_bad_samples() { return {}; }
  virtual Status add_bad_samples(const std::string& /*text*/) { return ok_status(); }
  // Others that were wanted first have what they need: batches may be made ahead of next().
  virtual void read_ahead() {}
  // Where the loader's time went since its start; nothing where there is no loader.
  virtual std::optional<data::LoaderStats> stats() const { return std::nullopt; }
};

}  // namespace aerie::train
