// Pictures in memory: eight bits a channel, channels side by side, rows from the top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace aerie::image {

// Somebody else's pixels. `stride` is in bytes and may be larger than a row.
struct ImageView {
  const uint8_t* data = nullptr;
  int width = 0, height = 0, channels = 3;
  ptrdiff_t stride = 0;
  const uint8_t* row(int y) const { return data + y * stride; }
};

struct MutableImageView {
  uint8_t* data = nullptr;
  int width = 0, height = 0, channels = 3;
  ptrdiff_t stride = 0;
  uint8_t* row(int y) const { return data + y * stride; }
  operator ImageView() const { return {data, width, height, channels, stride}; }  // NOLINT
};

// Rows without gaps. Keeps its memory when it becomes smaller.
class Image {
 public:
  Image() = default;
  Image(int width, int height, int channels = 3) { resize(width, height, channels); }

  // Contents are unspecified afterwards.
  void resize(int width, int height, int channels = 3);
  void fill(uint8_t value);
  int width() const { return width_; }
  int height() const { return height_; }
  int channels() const { return channels_; }
  size_t bytes() const { return static_cast<size_t>(width_) * height_ * channels_; }
  uint8_t* row(int y) { return pixels_.data() + static_cast<size_t>(y) * width_ * channels_; }
  const uint8_t* row(int y) const {
    return pixels_.data() + static_cast<size_t>(y) * width_ * channels_;
  }
  ImageView view() const {
    return {pixels_.data(), width_, height_, channels_, static_cast<ptrdiff_t>(width_) * channels_};
  }
  MutableImageView mutable_view() {
    return {pixels_.data(), width_, height_, channels_, static_cast<ptrdiff_t>(width_) * channels_};
  }

 private:
  int width_ = 0, height_ = 0, channels_ = 3;
  std::vector<uint8_t> pixels_;
};

}  // namespace aerie::image
