#include "aerie/image/resample.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/check.h"
#include "aerie/image/resample_kernels.h"

namespace aerie::image {
namespace {

// The cubic through -2..2 with slope parameter -0.5.
double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

int32_t to_fixed(double weight) {
  return static_cast<int32_t>((weight < 0 ? -0.5 : 0.5) + weight * (1 << kWeightBits));
}

// Sizes change a little from picture to picture: room to spare, so that growing soon ends.
template <typename T>
void resize_roomy(std::vector<T>& v, size_t size) {
  if (size > v.capacity()) v.reserve(size + size / 2);
  v.resize(size);
}

}  // namespace

void ResampleAxis::plan(int input_size, int output_size, int first, int end) {
  const double scale = static_cast<double>(input_size) / output_size;
  const double filter_scale = std::max(scale, 1.0);
  const double support = 2.0 * filter_scale;
  const double step = 1.0 / filter_scale;
  const int count = end - first;
  const int most = static_cast<int>(std::ceil(support)) * 2 + 1;
  taps = (std::min(most, input_size) + 3) / 4 * 4;
  resize_roomy(start, count);
  resize_roomy(length, count);
  resize_roomy(weight, static_cast<size_t>(count) * taps);
  std::fill(weight.begin(), weight.end(), 0);
  resize_roomy(kernel_, most);
  input_first = input_size;
  input_end = 0;
  for (int i = 0; i < count; ++i) {
    const double centre = (first + i + 0.5) * scale;
    // Pillow's rounding, to the bit.
    const double from = centre - support + 0.5, to = centre + support + 0.5;
    const int low = std::max(0, static_cast<int>(from));
    const int high = std::min(input_size, static_cast<int>(to));
    double sum = 0.0;
    for (int k = 0; k < high - low; ++k) {
      kernel_[k] = bicubic((k + low - centre + 0.5) * step);
      sum += kernel_[k];
    }
    int32_t* weights = weight.data() + static_cast<size_t>(i) * taps;
    for (int k = 0; k < high - low; ++k)
      weights[k] = to_fixed(sum != 0.0 ? kernel_[k] / sum : kernel_[k]);
    start[i] = low;
    length[i] = high - low;
    input_first = std::min(input_first, low);
    input_end = std::max(input_end, high);
  }
  if (count == 0) input_first = 0;
}

BicubicResizer::BicubicResizer(ResampleSimd simd) : simd_(simd) {}

void BicubicResizer::begin(int in_width, int in_height, int out_width, int out_height,
                           const Window& window, const MutableImageView& out) {
  AERIE_CHECK(in_width > 0 && in_height > 0 && out_width > 0 && out_height > 0, "a resize from ",
              in_width, " x ", in_height, " to ", out_width, " x ", out_height);
  AERIE_CHECK(window.x >= 0 && window.y >= 0 && window.width >= 0 && window.height >= 0 &&
                  window.x + window.width <= out_width && window.y + window.height <= out_height,
              "a window outside of the picture");
  AERIE_CHECK(out.width == window.width && out.height == window.height && out.channels == 3,
              "an output of ", out.width, " x ", out.height, " x ", out.channels);
  horizontal_.plan(in_width, out_width, window.x, window.x + window.width);
  vertical_.plan(in_height, out_height, window.y, window.y + window.height);
  kernels_ = &resample_kernels(simd_, std::max(horizontal_.taps, vertical_.taps));
  if (kernels_->pack != nullptr) {
    const size_t room = kernels_->packed_bytes(horizontal_) + 64;
    if (packed_.size() < room) resize_roomy(packed_, room);
    uint8_t* aligned = packed_.data() + (64 - reinterpret_cast<uintptr_t>(packed_.data()) % 64);
    kernels_->pack(horizontal_, aligned);
    packed_weights_ = aligned;
  }
  vertical_first_ = in_height > out_height && in_height - out_height > 2 * (in_width - out_width);
  // The taps of one output row and a group of rows that comes in at once.
  ring_rows_ = vertical_.taps + kRowsAtOnce;
  const size_t ring_width = static_cast<size_t>(vertical_first_ ? in_width : window.width);
  ring_stride_ = (ring_width * 3 + kRowSlack + 63) / 64 * 64;
  row_bytes_ = ring_width * 3;
  const size_t line_bytes = ring_stride_ + static_cast<size_t>(window.width) * 3 + kRowSlack;
  if (vertical_first_ && line_.size() < line_bytes) line_.resize(line_bytes);
  const size_t bytes = ring_stride_ * ring_rows_;
  if (ring_.size() < bytes) resize_roomy(ring_, bytes);
  resize_roomy(tap_rows_, vertical_.taps);
  next_row_ = vertical_.input_first;
  next_line_ = 0;
  out_ = out;
}

void BicubicResizer::push(const uint8_t* const* rows, int count) {
  count = std::min(count, vertical_.input_end - next_row_);
  for (int done = 0; done < count;) {
    const int group = std::min(kRowsAtOnce, count - done);
    uint8_t* out[kRowsAtOnce];
    for (int k = 0; k < group; ++k) out[k] = ring_row(next_row_ + k);
    if (vertical_first_)
      for (int k = 0; k < group; ++k) std::copy_n(rows[done + k], row_bytes_, out[k]);
    else
      kernels_->horizontal(horizontal_, packed_weights_, rows + done, group, out);
    next_row_ += group;
    done += group;
    emit_complete_rows();
  }
}

void BicubicResizer::emit_complete_rows() {
  const int taps = vertical_.taps;
  for (; next_line_ < vertical_.outputs(); ++next_line_) {
    const int first = vertical_.start[next_line_], length = vertical_.length[next_line_];
    if (first + length > next_row_) return;
    // Taps beyond the length have weight 0: any row will do.
    const int used = (length + 3) / 4 * 4;
    for (int k = 0; k < used; ++k) tap_rows_[k] = ring_row(first + std::min(k, length - 1));
    uint8_t* out = out_.row(next_line_);
    kernels_->vertical(tap_rows_.data(), &vertical_.weight[static_cast<size_t>(next_line_) * taps],
                       used, row_bytes_, vertical_first_ ? line_.data() : out);
    if (vertical_first_) {
      const uint8_t* row = line_.data();
      uint8_t* wide = line_.data() + ring_stride_;  // the loop writes a little beyond the end
      kernels_->horizontal(horizontal_, packed_weights_, &row, 1, &wide);
      std::copy_n(wide, static_cast<size_t>(out_.width) * 3, out);
    }
  }
}

void resize_bicubic(const ImageView& in, int out_width, int out_height, const Window& window,
                    const MutableImageView& out, ResampleSimd simd) {
  AERIE_CHECK(in.channels == 3, "a picture of ", in.channels, " channels");
  BicubicResizer resizer(simd);
  resizer.begin(in.width, in.height, out_width, out_height, window, out);
  std::vector<uint8_t> padded(static_cast<size_t>(in.width) * 3 + BicubicResizer::kRowSlack);
  const uint8_t* row = padded.data();
  for (int y = resizer.first_row(); y < resizer.end_row(); ++y) {
    std::copy_n(in.row(y), static_cast<size_t>(in.width) * 3, padded.data());
    resizer.push(&row, 1);
  }
}

Image resized_bicubic(const ImageView& in, int width, int height) {
  Image out(width, height);
  resize_bicubic(in, width, height, {0, 0, width, height}, out.mutable_view());
  return out;
}

}  // namespace aerie::image
