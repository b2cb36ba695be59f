#include "aerie/train/ranks/flat_reducer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/ranks/bucket_plan.h"

namespace aerie::train {
namespace {

class FlatReducer final : public GradientReducer {
 public:
  FlatReducer(std::shared_ptr<RankGroup> group, at::Device device, FlatReducerOptions options)
      : group_(std::move(group)), device_(device), options_(std::move(options)) {}

  Status attach(float* grads, const FlatParts& parts) override {
    try {
      grads_ = at::from_blob(grads, {parts.count}, at::TensorOptions(device_).dtype(at::kFloat));
      buckets_.clear();
      counters_.buckets = counters_.bytes = 0;
      next_ = 0;
      if (!options_.reduces) return ok_status();
      for (Bucket& planned :
           plan_buckets(parts, options_.first_bucket_bytes, options_.bucket_bytes)) {
        Live bucket;
        bucket.plan = std::move(planned);
        if (options_.compression != Compression::kNone)
          bucket.narrow = at::empty(
              {bucket.plan.count},
              grads_.options().dtype(options_.compression == Compression::kFp16 ? at::kHalf
                                                                                : at::kBFloat16));
        counters_.bytes += bucket.plan.count * (bucket.narrow.defined() ? int64_t{2} : int64_t{4});
        ++counters_.buckets;
        buckets_.push_back(std::move(bucket));
      }
      return ok_status();
    } catch (const std::exception& error) {
      return torch_status(error).with_context("buckets of gradients");
    }
  }

  int begin(int part, void* stream) override {
    return guarded([&] {
      const OnStream on(device_, stream);
      if (next_ == 0) first_begin_s_ = Clock::real().monotonic_s();
      for (; next_ < buckets_.size() && buckets_[next_].plan.part >= part; ++next_)
        start(buckets_[next_]);
    });
  }

  int finish(void* stream) override {
    return guarded([&] {
      const OnStream on(device_, stream);
      const double begin_s = Clock::real().monotonic_s();
      const size_t started = std::exchange(next_, 0);
      for (size_t i = 0; i < started; ++i) {
        Live& bucket = buckets_[i];
        const RankGroup::Wait wait = std::exchange(bucket.wait, nullptr);
        wait();
        if (bucket.narrow.defined()) widen(bucket);
      }
      const double end_s = Clock::real().monotonic_s();
      counters_.waited_s += end_s - begin_s;
      if (started > 0) counters_.under_way_s += end_s - first_begin_s_;
      ++counters_.steps;
    });
  }

  int add_up(float* values, int64_t count, void* stream) override {
    return sum(values, count, at::kFloat, stream);
  }
  int add_up_wide(double* values, int64_t count, void* stream) override {
    return sum(values, count, at::kDouble, stream);
  }

  Status unite(std::span<uint8_t> flags) override {
    return on_host(flags, at::kByte, RankGroup::Op::kMax);
  }
  Status add_up_on_host(std::span<double> values) override {
    return on_host(values, at::kDouble, RankGroup::Op::kSum);
  }

  int world() const override { return group_->size(); }
  bool recordable() const override { return group_->recordable(device_); }
  Status error(int code) const override {
    return failure_.ok() ? GradientReducer::error(code) : failure_;
  }
  ReducerCounters counters() const override { return counters_; }

  bool shards() const override { return options_.shard; }
  bool keeps_gradients() const override {
    return !options_.reduces ||
           (group_->size() == 1 && !options_.shard && options_.compression == Compression::kNone);
  }
  bool sums_everywhere() const override {
    return !options_.shard || !group_->reduces_to_one(device_);
  }
  FlatRange owned() const override {
    return options_.shard ? shard_of(grads_.numel(), group_->rank(), group_->size())
                          : FlatRange{0, grads_.numel()};
  }
  int gather(const at::Tensor& flat, void* stream) override {
    return guarded([&] {
      const OnStream on(device_, stream);
      std::vector<RankGroup::Piece> pieces;
      for (int rank = 0; rank < group_->size(); ++rank) {
        const FlatRange range = shard_of(flat.numel(), rank, group_->size());
        if (range.count > 0)
          pieces.push_back({flat.detach().narrow(0, range.begin, range.count), rank});
      }
      group_->broadcast(std::move(pieces))();
    });
  }

 private:
  struct Live {
    Bucket plan;
    at::Tensor narrow;  // compressed; undefined: none
    RankGroup::Wait wait;
  };

  Status explained(Status status) const {
    return options_.explain ? options_.explain(std::move(status)) : status;
  }

  template <typename T>
  Status on_host(std::span<T> values, at::ScalarType type, RankGroup::Op op) {
    try {
      const at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, type);
      std::copy(values.begin(), values.end(), all.mutable_data_ptr<T>());
      group_->all_reduce({all}, op)();
      const T* united = all.const_data_ptr<T>();
      std::copy(united, united + values.size(), values.begin());
      return ok_status();
    } catch (const std::exception& error) {
      return explained(torch_status(error)).with_context("agreeing with the other ranks");
    }
  }

  template <typename Work>
  int guarded(const Work& work) {
    try {
      const at::NoGradGuard no_grad;
      work();
      return 0;
    } catch (const std::exception& error) {
      if (failure_.ok())
        failure_ = explained(torch_status(error)).with_context("adding up gradients over ranks");
      for (Live& bucket : buckets_) bucket.wait = nullptr;
      next_ = 0;
      return 1;
    }
  }

  int sum(void* values, int64_t count, at::ScalarType type, void* stream) {
    return guarded([&] {
      const OnStream on(device_, stream);
      group_->all_reduce({at::from_blob(values, {count}, at::TensorOptions(device_).dtype(type))},
                         RankGroup::Op::kSum)();
    });
  }

  void start(Live& bucket) {
    std::vector<at::Tensor> tensors;
    int64_t at = 0;
    for (const FlatRange& range : bucket.plan.ranges) {
      const at::Tensor grads = grads_.narrow(0, range.begin, range.count);
      if (bucket.narrow.defined()) {
        bucket.narrow.narrow(0, at, range.count).copy_(grads);
        at += range.count;
      } else {
        tensors.push_back(grads);
      }
    }
    // Divided first, as torch's hooks do: a sum of 16-bit values may be too large.
    if (bucket.narrow.defined()) tensors = {bucket.narrow.div_(group_->size())};
    const auto op = bucket.narrow.defined() ? RankGroup::Op::kSum : RankGroup::Op::kMean;
    bucket.wait = sums_everywhere() ? group_->all_reduce(std::move(tensors), op)
                                    : group_->reduce(cut(bucket, tensors), op);
  }

  // By the ranks that own what the tensors of a bucket stand for.
  std::vector<RankGroup::Piece> cut(const Live& bucket, const std::vector<at::Tensor>& tensors) {
    std::vector<RankGroup::Piece> pieces;
    int64_t at = 0;  // in the compressed tensor
    for (size_t i = 0; i < bucket.plan.ranges.size(); ++i) {
      const FlatRange& range = bucket.plan.ranges[i];
      for (int rank = 0; rank < group_->size(); ++rank) {
        const FlatRange shard = shard_of(grads_.numel(), rank, group_->size());
        const int64_t begin = std::max(range.begin, shard.begin);
        const int64_t end = std::min(range.begin + range.count, shard.begin + shard.count);
        if (begin >= end) continue;
        const at::Tensor piece = bucket.narrow.defined()
                                     ? tensors[0].narrow(0, at + begin - range.begin, end - begin)
                                     : tensors[i].narrow(0, begin - range.begin, end - begin);
        pieces.push_back({piece, rank});
      }
      at += range.count;
    }
    return pieces;
  }

  // Back into the gradients; of other ranks' shards nobody looks at what comes.
  void widen(const Live& bucket) {
    int64_t at = 0;
    for (const FlatRange& range : bucket.plan.ranges) {
      grads_.narrow(0, range.begin, range.count).copy_(bucket.narrow.narrow(0, at, range.count));
      at += range.count;
    }
  }

  std::shared_ptr<RankGroup> group_;
  at::Device device_;
  FlatReducerOptions options_;
  at::Tensor grads_;
  std::vector<Live> buckets_;
  size_t next_ = 0;  // the first bucket of this step that is not under way
  double first_begin_s_ = 0.0;
  ReducerCounters counters_;
  Status failure_;
};

}  // namespace

std::unique_ptr<GradientReducer> make_flat_reducer(std::shared_ptr<RankGroup> group,
                                                   at::Device device, FlatReducerOptions options) {
  return std::make_unique<FlatReducer>(std::move(group), device, std::move(options));
}

kernels::ExchangeSums make_exchange(std::shared_ptr<RankGroup> group, at::Device device,
                                    std::function<Status(Status)> explain) {
  return [group = std::move(group), device, explain = std::move(explain)](
             const kernels::ExchangedSums& sums, void* stream) {
    try {
      const at::NoGradGuard no_grad;
      const OnStream on(device, stream);
      group->all_reduce(
          {at::from_blob(sums.values, {sums.count}, at::TensorOptions(device).dtype(at::kDouble))},
          RankGroup::Op::kSum)();
      return 0;
    } catch (const std::exception& error) {
      // Behind a rank that was lost nobody needs to know what else broke.
      const Status found = torch_status(error);
      const Status why = explain ? explain(found) : found;
      if (why.message() == found.message())
        log_error("train", "exchanging BatchNorm's sums: ", found.message());
      return 1;
    }
  };
}

}  // namespace aerie::train
