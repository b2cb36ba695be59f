// Where a run stands in its data: small enough for every checkpoint, readable, versioned.
//
// {"kind":"aerie-data-cursor","version":1,"epoch":3,"step":120,"micro":0,"seed":"1234",
//  "virtual_ranks":8,"batch_size":16,"order":"89ab...","data":"0123...",...}
//
// Version 2 is written only where the epoch began with other batches than it goes on with ("before"
// lists what was done with them); fields of version 1 mean the same in both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/batching.h"

namespace aerie::data {

struct Cursor {
  static constexpr int kVersion = 2;
  static constexpr size_t kMaxBadListed = 200'000;

  // What was done of an epoch with one way of making batches.
  struct Part {
    uint64_t step = 0;   // global steps that are done, of the plan that this part began
    uint32_t micro = 0;  // of this rank's batches of the next step, those that are done
    uint32_t virtual_ranks = 1;
    // Of these, each rank's; 0 in cursors of earlier versions, and where a rank has one.
    uint32_t lanes_per_rank = 0;
    uint32_t batch_size = 1;           // per virtual rank, plain data
    uint64_t order_fingerprint = 0;    // Sampler::fingerprint
    std::optional<Batching> batching;  // not in cursors of earlier versions
    bool operator==(const Part&) const = default;
  };

  uint32_t epoch = 0;
  uint64_t seed = 0;
  Part now;
  std::vector<Part> before;       // earlier parts of this epoch, oldest first
  uint64_t data_fingerprint = 0;  // the list of samples
  uint64_t samples_done = 0;      // in the whole run, all ranks, as planned
  uint64_t bad_samples = 0;       // distinct, in the whole run, this rank
  // Which they are (numbers in the list of samples); not in cursors of earlier versions, and not
  // where there are more than kMaxBadListed.
  std::optional<std::vector<uint32_t>> bad_list;
  std::optional<uint64_t> num_samples;  // of the data set; not in cursors of earlier versions
  // The rule of the run; cursors of earlier versions, which had one, do not name it.
  Packing packing = Packing::kLhotse;

  std::string to_json() const;
  // Text from a checkpoint, believed in nothing: a data error says what is wrong.
  static Result<Cursor> parse(std::string_view json);
  bool operator==(const Cursor&) const = default;
};

}  // namespace aerie::data
