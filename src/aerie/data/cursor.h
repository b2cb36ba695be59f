// Where a run stands in its data: small enough for every checkpoint, readable, versioned.
//
// {"kind":"aerie-data-cursor","version":1,"epoch":3,"step":120,"micro":0,"seed":"1234",
//  "virtual_ranks":8,"batch_size":16,"order":"89ab...","data":"0123...",...}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/status.h"

namespace aerie::data {

struct Cursor {
  static constexpr int kVersion = 1;

  uint32_t epoch = 0;
  uint64_t step = 0;   // global steps of the epoch that are done
  uint32_t micro = 0;  // of this rank's batches of the next step, those that are done
  uint64_t seed = 0;
  uint32_t virtual_ranks = 1;
  uint32_t batch_size = 1;         // per virtual rank, plain data
  uint64_t order_fingerprint = 0;  // Sampler::fingerprint
  uint64_t data_fingerprint = 0;   // the list of samples
  uint64_t samples_done = 0;       // in the whole run, all ranks, as planned
  uint64_t bad_samples = 0;        // distinct, in the whole run, this rank

  std::string to_json() const;
  // Text from a checkpoint, believed in nothing: a data error says what is wrong.
  static Result<Cursor> parse(std::string_view json);
  bool operator==(const Cursor&) const = default;
};

}  // namespace aerie::data
