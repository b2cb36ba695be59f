#include "aerie/raster/transposed.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace aerie::raster {

namespace {

constexpr int kBlock = 8;

// Eight rows of eight bytes: blocks of 4, 2 and 1 change places across the diagonal.
void transpose_block(std::array<uint64_t, kBlock>& rows) {
  constexpr uint64_t kMasks[] = {0x00000000FFFFFFFFull, 0x0000FFFF0000FFFFull,
                                 0x00FF00FF00FF00FFull};
  for (int stage = 0, step = 4; step >= 1; ++stage, step /= 2) {
    const int shift = step * 8;
    for (int i = 0; i < kBlock; ++i) {
      if ((i & step) != 0) continue;
      uint64_t& low = rows[static_cast<size_t>(i)];
      uint64_t& high = rows[static_cast<size_t>(i + step)];
      const uint64_t swapped = ((low >> shift) ^ high) & kMasks[stage];
      high ^= swapped;
      low ^= swapped << shift;
    }
  }
}

}  // namespace

void merge_transposed(const MaskView& canvas, uint8_t* out, bool mirror_x, bool mirror_y) {
  const int nx = canvas.width, ny = canvas.height;
  const auto out_row = [&](int x) {
    return out + static_cast<size_t>(mirror_x ? nx - 1 - x : x) * static_cast<size_t>(ny);
  };
  const int blocks_x = nx / kBlock * kBlock, blocks_y = ny / kBlock * kBlock;
  for (int y = 0; y < blocks_y; y += kBlock) {
    for (int x = 0; x < blocks_x; x += kBlock) {
      std::array<uint64_t, kBlock> rows;
      uint64_t any = 0;
      for (int i = 0; i < kBlock; ++i) {
        std::memcpy(&rows[static_cast<size_t>(i)], canvas.row(y + i) + x, kBlock);
        any |= rows[static_cast<size_t>(i)];
      }
      if (any == 0) continue;
      transpose_block(rows);
      for (int i = 0; i < kBlock; ++i) {
        uint8_t* const cells = out_row(x + i) + (mirror_y ? ny - kBlock - y : y);
        uint64_t value = rows[static_cast<size_t>(i)], old;
        if (mirror_y) value = __builtin_bswap64(value);
        std::memcpy(&old, cells, kBlock);
        old |= value;
        std::memcpy(cells, &old, kBlock);
      }
    }
  }
  // What is left over at the right and at the bottom.
  for (int y = 0; y < ny; ++y) {
    const uint8_t* const row = canvas.row(y);
    for (int x = y < blocks_y ? blocks_x : 0; x < nx; ++x)
      out_row(x)[mirror_y ? ny - 1 - y : y] |= row[x];
  }
}

void copy_mirrored(const MaskView& canvas, uint8_t* out, bool mirror_columns, bool mirror_rows) {
  const auto width = static_cast<size_t>(canvas.width);
  for (int y = 0; y < canvas.height; ++y) {
    const uint8_t* const from = canvas.row(y);
    uint8_t* const to = out + static_cast<size_t>(mirror_rows ? canvas.height - 1 - y : y) * width;
    if (mirror_columns)
      std::reverse_copy(from, from + width, to);
    else
      std::memcpy(to, from, width);
  }
}

}  // namespace aerie::raster
