// GradientReducer on the flat gradients themselves: they are the buckets, added up in place while
// the backward pass goes on, without copies (but for compression). Also what goes with it: the
// exchange of BatchNorm's sums.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "aerie/base/status.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/kernels/conv/batch_norm_sums.h"
#include "aerie/train/graph/gradient_reducer.h"
#include "aerie/train/ranks/rank_group.h"

namespace aerie::train {

// Gradients on their way between ranks, as torch's hooks of these names make them.
using Compression = config::CommHook;

struct BucketOptions {
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;
  Compression compression = Compression::kNone;
  // What is behind an error of a collective (dist::ProcessGroup::explain); may be empty.
  std::function<Status(Status)> explain;
};
struct FlatReducerOptions : BucketOptions {
  bool shard = false;   // every rank has a range of its own (GradientReducer::shards())
  bool reduces = true;  // false: gradients stay what they are; all else is as with others
};

// Gradients become their mean over the ranks. The group is the gradients' own.
std::unique_ptr<GradientReducer> make_flat_reducer(std::shared_ptr<RankGroup> group,
                                                   at::Device device, FlatReducerOptions options);

// BatchNorm's sums over all ranks, one collective a call. The group is the exchange's own: its
// calls come in an order that has nothing to do with that of the gradients.
// `explain`: as above.
kernels::ExchangeSums make_exchange(std::shared_ptr<RankGroup> group, at::Device device,
                                    std::function<Status(Status)> explain = {});

}  // namespace aerie::train
