#include "aerie/data/nuscenes/camera/image_augmentation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "aerie/base/philox.h"
#include "aerie/image/rotate.h"

namespace aerie::nuscenes {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int kMaxNewSize = 65536;
constexpr int kChoiceOfCameras = 255;

uint64_t position_of(uint64_t entry, int camera) {
  return entry * 256 + static_cast<uint64_t>(camera);
}

void place(const ImageAugmentationOptions& options, double resize, int width, int height,
           double bottom_share, ImageAugmentation& out) {
  out.resize = resize;
  out.new_width = static_cast<int>(width * resize);
  out.new_height = static_cast<int>(height * resize);
  out.final_width = options.final_width;
  out.final_height = options.final_height;
  out.crop_y = static_cast<int>((1.0 - bottom_share) * out.new_height) - options.final_height;
}

Status check_range(std::string_view name, const std::array<double, 2>& range, double low,
                   double high) {
  if (range[0] >= low && range[1] <= high && range[0] <= range[1]) return ok_status();
  return invalid_argument(str_cat(name, " is [", range[0], ", ", range[1], "]"))
      .with_hint(str_cat("two numbers, the smaller first, from ", low, " to ", high));
}

}  // namespace

ImageAugmentationOptions ImageAugmentationOptions::lift_splat_shoot() {
  ImageAugmentationOptions options;
  options.final_height = 128;
  options.final_width = 352;
  options.resize_lim = {0.193, 0.225};
  options.bot_pct_lim = {0.0, 0.22};
  options.test_resize = TestResize::kCover;
  return options;
}

Status validate(const ImageAugmentationOptions& options, int width, int height) {
  for (const int size : {options.final_height, options.final_width})
    if (size < 1 || size > image::kMaxRotateSize)
      return invalid_argument(
                 str_cat("final size is ", options.final_height, " x ", options.final_width))
          .with_hint(str_cat("1 to ", image::kMaxRotateSize, " pixels a side"));
  AERIE_RETURN_IF_ERROR(check_range("resize_lim", options.resize_lim, 1e-6, 100.0));
  AERIE_RETURN_IF_ERROR(check_range("bot_pct_lim", options.bot_pct_lim, 0.0, 1.0));
  AERIE_RETURN_IF_ERROR(check_range("rot_lim", options.rot_lim, -360.0, 360.0));
  if (width < 1 || height < 1)
    return invalid_argument(str_cat("pictures of ", width, " x ", height, " pixels"));
  if (width * options.resize_lim[0] < 1 || height * options.resize_lim[0] < 1)
    return invalid_argument(str_cat("resize_lim: ", options.resize_lim[0], " makes nothing of ",
                                    width, " x ", height, " pixels"))
        .with_hint("raise it");
  if (width * options.resize_lim[1] > kMaxNewSize || height * options.resize_lim[1] > kMaxNewSize)
    return invalid_argument(str_cat("resize_lim: ", options.resize_lim[1], " makes more than ",
                                    kMaxNewSize, " pixels a side of ", width, " x ", height))
        .with_hint("lower it");
  return ok_status();
}

ImageAugmentation draw_image_augmentation(const ImageAugmentationOptions& options, int width,
                                          int height, uint64_t seed, uint32_t epoch, uint64_t entry,
                                          int camera) {
  AERIE_CHECK(camera >= 0 && camera < kChoiceOfCameras, "camera ", camera);
  RandomStream stream(seed, Purpose::kImageAugment, epoch, position_of(entry, camera));
  const double resize = stream.uniform(options.resize_lim[0], options.resize_lim[1]);
  const double bottom = stream.uniform(options.bot_pct_lim[0], options.bot_pct_lim[1]);
  const double across = stream.uniform();
  const double mirrored = stream.uniform();
  const double angle = stream.uniform(options.rot_lim[0], options.rot_lim[1]);
  ImageAugmentation out;
  place(options, resize, width, height, bottom, out);
  out.crop_x = static_cast<int>(across * std::max(0, out.new_width - out.final_width));
  out.flip = options.rand_flip && mirrored < 0.5;
  out.rotate_deg = angle;
  return out;
}

ImageAugmentation test_image_augmentation(const ImageAugmentationOptions& options, int width,
                                          int height) {
  const auto mean = [](const std::array<double, 2>& range) { return (range[0] + range[1]) / 2; };
  const double resize = options.test_resize == TestResize::kMean
                            ? mean(options.resize_lim)
                            : std::max(static_cast<double>(options.final_height) / height,
                                       static_cast<double>(options.final_width) / width);
  ImageAugmentation out;
  place(options, resize, width, height, mean(options.bot_pct_lim), out);
  out.crop_x = std::max(0, out.new_width - out.final_width) / 2;
  return out;
}

Mat4 ImageAugmentation::matrix() const {
  // x' = M x + t, built up step by step: resize and crop, mirror, turn about the centre.
  double m00 = resize, m11 = resize, tx = -crop_x, ty = -crop_y;
  if (flip) {
    m00 = -m00;
    tx = -tx + final_width;
  }
  const double angle = rotate_deg / 180.0 * kPi;
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const double cx = final_width / 2.0, cy = final_height / 2.0;
  Mat4 out;
  out(0, 0) = cosine * m00;
  out(0, 1) = sine * m11;
  out(1, 0) = -sine * m00;
  out(1, 1) = cosine * m11;
  out(0, 3) = cosine * tx + sine * ty + (cx - cosine * cx - sine * cy);
  out(1, 3) = -sine * tx + cosine * ty + (cy + sine * cx - cosine * cy);
  return out;
}

std::vector<int> draw_cameras(int num_cameras, int count, uint64_t seed, uint32_t epoch,
                              uint64_t entry) {
  AERIE_CHECK(count >= 0 && count <= num_cameras && num_cameras < kChoiceOfCameras, count,
              " cameras of ", num_cameras);
  RandomStream stream(seed, Purpose::kImageAugment, epoch, position_of(entry, kChoiceOfCameras));
  std::vector<int> order(num_cameras);
  std::iota(order.begin(), order.end(), 0);
  for (int i = 0; i < count; ++i)
    std::swap(order[i], order[i + static_cast<int>(stream.below(num_cameras - i))]);
  order.resize(count);
  return order;
}

}  // namespace aerie::nuscenes
