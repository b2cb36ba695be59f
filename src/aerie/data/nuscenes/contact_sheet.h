// One sample on one canvas, for human eyes: its cameras as they stand around the car, with the
// outlines of the map (or of the boxes) projected into them through the matrices of the batch, and
// the truth from above with the same outlines. Where geometry, augmentation and masks agree, lines
// lie on the kerbs they name.
#pragma once

#include <cstdint>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/image/image.h"

namespace aerie::nuscenes {

// The entry as the data set makes it in that epoch, draws included where it augments. The cameras'
// size is the data set's image.size.
Result<image::Image> contact_sheet(const NuscenesDataset& dataset, uint64_t entry, uint32_t epoch,
                                   uint64_t seed);

}  // namespace aerie::nuscenes
