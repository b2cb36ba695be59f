// How the flat gradients of a model are cut into buckets, each of which is added up over the ranks
// by one collective. The same on all ranks, because the model is.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/train/graph/flat_parts.h"

namespace aerie::train {

struct Bucket {
  int part = 0;                   // complete when the backward pass has come to this part
  std::vector<FlatRange> ranges;  // in order of memory; neighbours are one range
  int64_t count = 0;              // elements of all ranges
};

// In the order in which a backward pass completes them. A bucket is closed as soon as it holds
// `bytes` (the first one: `first_bytes`, so that something is under way early); parts that are
// larger are cut. Either is at least one element.
std::vector<Bucket> plan_buckets(const FlatParts& parts, int64_t first_bytes, int64_t bytes);

// What a rank updates where the optimizer is sharded: whole chunks, as many for every rank (but for
// the end of the buffer).
FlatRange shard_of(int64_t count, int rank, int world);

}  // namespace aerie::train
