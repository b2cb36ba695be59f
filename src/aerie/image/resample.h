// Resizing as Pillow's Image.resize(size, BICUBIC) does it: antialiased bicubic (a = -0.5), two
// passes with eight bits in between, weights of 22 fractional bits. Equal to Pillow 13 bit by bit
// for any sizes, up and down. Only the wanted window of the result is computed, from the rows and
// columns that it needs.
//
// The horizontal pass comes first, except where the height shrinks by more than twice as many
// pixels as the width: there Pillow 13 begins with the vertical one. Earlier versions never do;
// all agree on pictures that keep their aspect and are at most twice as high as wide.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aerie/image/image.h"

namespace aerie::image {

// A part of a picture; must lie inside it where not said otherwise.
struct Window {
  int x = 0, y = 0, width = 0, height = 0;
};

// Which loops run: the best of this machine, or one of them by name (for tests; what the machine
// does not have falls back to the next smaller). All give the same bits.
enum class ResampleSimd { kBest, kScalar, kAvx2, kAvx512 };

// The weights of one axis for outputs [first, end).
struct ResampleAxis {
  // Output number first + i is the sum over k < length[i] of weight[i * taps + k] times input
  // number start[i] + k. Weights beyond the length are 0.
  std::vector<int32_t> start, length, weight;
  int taps = 0;                        // a multiple of four
  int input_first = 0, input_end = 0;  // inputs that the outputs need
  int outputs() const { return static_cast<int>(start.size()); }

  void plan(int input_size, int output_size, int first, int end);

 private:
  std::vector<double> kernel_;
};

struct ResampleKernels;

// A resize as a stream: rows of the source go in from the top, rows of the window come out as soon
// as they are complete, so everything in between stays in the cache. One thread at a time; keeps
// its memory from picture to picture.
class BicubicResizer final {
 public:
  // Rows are read up to this many bytes beyond their end.
  static constexpr int kRowSlack = 256;
  static constexpr int kRowsAtOnce = 8;

  explicit BicubicResizer(ResampleSimd simd = ResampleSimd::kBest);

  // From a source of in_width x in_height, three channels, to the part `window` of a picture of
  // out_width x out_height. `out` is as large as the window and is written by push().
  void begin(int in_width, int in_height, int out_width, int out_height, const Window& window,
             const MutableImageView& out);

  // Source rows [first_row(), end_row()) are needed, and source columns [first_column(),
  // end_column()); other columns may have any value.
  int first_row() const { return vertical_.input_first; }
  int end_row() const { return vertical_.input_end; }
  int first_column() const { return horizontal_.input_first; }
  int end_column() const { return horizontal_.input_end; }

  // The next source rows, whole rows each followed by kRowSlack readable bytes.
  void push(const uint8_t* const* rows, int count);

 private:
  uint8_t* ring_row(int source_row) {
    return ring_.data() + static_cast<size_t>(source_row % ring_rows_) * ring_stride_;
  }
  void emit_complete_rows();

  ResampleSimd simd_;
  bool vertical_first_ = false;
  ResampleAxis horizontal_, vertical_;
  const ResampleKernels* kernels_ = nullptr;
  std::vector<uint8_t> packed_;              // horizontal weights as the vector loop wants them
  const uint8_t* packed_weights_ = nullptr;  // in packed_
  std::vector<uint8_t> ring_;  // rows after the first pass if it is the horizontal one, or before
  std::vector<uint8_t> line_;  // a row after the vertical pass, if that is first
  std::vector<const uint8_t*> tap_rows_;
  size_t ring_stride_ = 0, row_bytes_ = 0;  // of a row of the ring
  int ring_rows_ = 0;
  int next_row_ = 0;   // of the source
  int next_line_ = 0;  // of the window
  MutableImageView out_;
};

// The window of `in` resized to out_width x out_height; three channels.
void resize_bicubic(const ImageView& in, int out_width, int out_height, const Window& window,
                    const MutableImageView& out, ResampleSimd simd = ResampleSimd::kBest);
// All of it.
Image resized_bicubic(const ImageView& in, int width, int height);

}  // namespace aerie::image
