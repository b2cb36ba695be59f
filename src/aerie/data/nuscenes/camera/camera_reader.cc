#include "aerie/data/nuscenes/camera/camera_reader.h"

#include <algorithm>
#include <cstring>

#include "aerie/image/rotate.h"

namespace aerie::nuscenes {

using image::MutableImageView;
using image::Window;

Result<DecodeMode> parse_decode_mode(std::string_view text) {
  for (const DecodeMode mode : {DecodeMode::kAuto, DecodeMode::kExact, DecodeMode::kScaled})
    if (text == decode_mode_name(mode)) return mode;
  if (text == "gpu")
    return unsupported("decode: gpu is a name kept for decoding on the GPU, which is not there yet")
        .with_hint("auto, exact or scaled");
  return invalid_argument(str_cat("decode: \"", text, "\" is not known"))
      .with_hint("auto, exact or scaled");
}

std::string_view decode_mode_name(DecodeMode mode) {
  switch (mode) {
    case DecodeMode::kAuto:
      return "auto";
    case DecodeMode::kExact:
      return "exact";
    case DecodeMode::kScaled:
      return "scaled";
  }
  return "";
}

DecodeMode decode_mode_for(DecodeMode configured, bool training) {
  return training && configured == DecodeMode::kScaled ? DecodeMode::kScaled : DecodeMode::kExact;
}

int decode_denominator(const ImageAugmentation& augmentation, int width, int height) {
  for (const int denominator : {8, 4, 2})
    if (augmentation.resize * denominator <= 1.0 &&
        int64_t{augmentation.new_width} * denominator <= width &&
        int64_t{augmentation.new_height} * denominator <= height)
      return denominator;
  return 1;
}

static_assert(image::JpegReader::kRowSlack >= image::BicubicResizer::kRowSlack);

CameraReader::CameraReader(const image::JpegLimits& limits, image::ResampleSimd simd)
    : jpeg_(limits), resizer_(simd) {}

Status CameraReader::read(std::span<const uint8_t> jpeg, const ImageAugmentation& augmentation,
                          DecodeMode mode, const MutableImageView& out) {
  const ImageAugmentation& a = augmentation;
  AERIE_CHECK(out.width == a.final_width && out.height == a.final_height && out.channels == 3,
              "an output of ", out.width, " x ", out.height, " x ", out.channels);
  AERIE_CHECK(a.new_width > 0 && a.new_height > 0, "an augmentation without a size");
  AERIE_ASSIGN_OR_RETURN(const image::JpegInfo info, jpeg_.open(jpeg));
  const int denominator =
      mode == DecodeMode::kScaled ? decode_denominator(a, info.width, info.height) : 1;

  // The part of the crop that lies on the picture; the rest is black.
  const int left = std::clamp(a.crop_x, 0, a.new_width);
  const int right = std::clamp(a.crop_x + a.final_width, left, a.new_width);
  const int top = std::clamp(a.crop_y, 0, a.new_height);
  const int bottom = std::clamp(a.crop_y + a.final_height, top, a.new_height);
  const Window window{left, top, right - left, bottom - top};
  cropped_.resize(a.final_width, a.final_height + 1, 3);
  MutableImageView crop = cropped_.mutable_view();
  crop.height = a.final_height;
  if (window.width < crop.width || window.height < crop.height) cropped_.fill(0);
  if (window.width > 0 && window.height > 0) {
    MutableImageView part = crop;
    part.data = crop.row(top - a.crop_y) + ptrdiff_t{3} * (left - a.crop_x);
    part.width = window.width;
    part.height = window.height;
    resizer_.begin(jpeg_.scaled_width(denominator), jpeg_.scaled_height(denominator), a.new_width,
                   a.new_height, window, part);
    AERIE_RETURN_IF_ERROR(jpeg_.for_rows(
        resizer_.first_row(), resizer_.end_row(), denominator,
        [this](const uint8_t* const* rows, int count) { resizer_.push(rows, count); }));
  }
  image::rotate_nearest(crop, a.flip, a.rotate_deg, out);
  return ok_status();
}

}  // namespace aerie::nuscenes
