// Readers that threads of a pool take and give back: work there does not know its thread.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/sample_reader.h"

namespace aerie::nuscenes {

class ReaderPool {
 public:
  explicit ReaderPool(const NuscenesDataset& dataset) : dataset_(dataset) {}

  class Lease {
   public:
    Lease(ReaderPool& pool, std::unique_ptr<SampleReader> reader)
        : pool_(&pool), reader_(std::move(reader)) {}
    Lease(Lease&& other) noexcept = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (reader_ != nullptr) pool_->give(std::move(reader_));
    }
    SampleReader& operator*() const { return *reader_; }
    SampleReader* operator->() const { return reader_.get(); }

   private:
    ReaderPool* pool_;
    std::unique_ptr<SampleReader> reader_;
  };

  Result<Lease> take() {
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        auto reader = std::move(free_.back());
        free_.pop_back();
        return Lease(*this, std::move(reader));
      }
    }
    AERIE_ASSIGN_OR_RETURN(auto reader, SampleReader::make(dataset_));
    return Lease(*this, std::move(reader));
  }

 private:
  void give(std::unique_ptr<SampleReader> reader) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(reader));
  }

  const NuscenesDataset& dataset_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<SampleReader>> free_;
};

}  // namespace aerie::nuscenes
