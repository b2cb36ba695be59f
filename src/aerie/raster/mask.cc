#include "aerie/raster/mask.h"

#include <cstring>

namespace aerie::raster {

void clear(const MaskView& mask, uint8_t value) {
  std::memset(mask.data, value, static_cast<size_t>(mask.width) * mask.height);
}

}  // namespace aerie::raster
