// The data engine's loader as the loop's BatchSource.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "aerie/data/loader.h"
#include "aerie/train/batch_source.h"

namespace aerie::train {

class LoaderSource final : public BatchSource {
 public:
  explicit LoaderSource(std::unique_ptr<data::Loader> loader) : loader_(std::move(loader)) {}

  int64_t batches_per_epoch() const override { return loader_->batches_per_epoch(); }
  Result<const data::Batch*> next() override;
  void release(const data::Batch* batch) override { loader_->release(batch); }
  Status start_epoch(int64_t epoch) override;
  BatchSummary summary(const data::Batch& batch) const override;
  std::string cursor_json() const override { return loader_->cursor_json(); }
  Status restore(const std::string& cursor_json) override;
  EpochPosition position() const override {
    return {loader_->position().batch, loader_->position().batches};
  }
  Status restore_counts(const std::string& cursor_json) override {
    return loader_->restore_counts(cursor_json);
  }
  int64_t untold_bad_samples() const override;
  std::string take_bad_samples() override;
  Status add_bad_samples(const std::string& text) override;
  void read_ahead() override { loader_->read_ahead(); }
  std::optional<data::LoaderStats> stats() const override { return loader_->stats(); }

  data::Loader& loader() { return *loader_; }

 private:
  // A start that is asked for twice, first to begin loading early and then by the loop, is one.
  Status start_once(const std::string& what, const std::function<Status()>& start);

  std::string started_;  // the last start, while no batch has been taken since
  std::unique_ptr<data::Loader> loader_;
};

}  // namespace aerie::train
