// A BatchSource over batches that are already there, handed out again and again: for measuring and
// for trying shapes out. The batches outlive the source.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aerie/train/batch_source.h"

namespace aerie::train {

class BatchListSource final : public BatchSource {
 public:
  explicit BatchListSource(std::vector<const data::Batch*> batches)
      : batches_(std::move(batches)) {}

  int64_t batches_per_epoch() const override { return static_cast<int64_t>(batches_.size()); }
  Result<const data::Batch*> next() override {
    if (next_ >= batches_.size()) return static_cast<const data::Batch*>(nullptr);
    return batches_[next_++];
  }
  void release(const data::Batch*) override {}
  Status start_epoch(int64_t) override {
    next_ = 0;
    return ok_status();
  }
  BatchSummary summary(const data::Batch& batch) const override;
  std::string cursor_json() const override { return "{}"; }
  Status restore(const std::string&) override { return start_epoch(0); }
  EpochPosition position() const override {
    return {static_cast<int64_t>(next_), batches_per_epoch()};
  }
  Status restore_counts(const std::string&) override { return ok_status(); }

 private:
  std::vector<const data::Batch*> batches_;
  size_t next_ = 0;
};

// What a loader's batch says about itself.
BatchSummary summary_of(const data::Batch& batch);

}  // namespace aerie::train
