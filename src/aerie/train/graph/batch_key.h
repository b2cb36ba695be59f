// What keys the random draws of a batch: one place for all engines.
#pragma once

#include <cstdint>

#include "aerie/data/batch.h"
#include "aerie/nn/random_fill.h"

namespace aerie::train {

// `micro_step`: micro-batches of this rank before it.
inline nn::RandomKey random_key(uint64_t seed, uint64_t micro_step, const data::Batch& batch) {
  const data::DrawPlace& draws = batch.place().draws;
  return {seed, draws.micro_step(micro_step), draws.first_item, draws.item_stride};
}

}  // namespace aerie::train
