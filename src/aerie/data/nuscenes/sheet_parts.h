// What sheets for human eyes are put together from (contact_sheet.h, prediction_sheet.h): colours
// of classes, places of cameras, outlines of the map in pictures, the ground from above.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/geometry/matrix.h"
#include "aerie/image/draw.h"
#include "aerie/image/image.h"

namespace aerie::nuscenes {

inline constexpr image::Color kSheetBackground{24, 24, 24}, kSheetText{255, 255, 255},
    kEmptyCell{245, 245, 245};

// As BEVFusion paints them; vehicles are green.
image::Color class_colour(const std::string& name);

// Names of the masks of a data set, in the order of `gt`.
std::vector<std::string> mask_names(const ReadRules& rules);

// Column and row of a camera (a number in kCameras) among three columns and two rows: as the
// cameras stand around the car.
std::pair<int, int> camera_place(int camera);

// The cameras of an entry's pictures, numbers in kCameras, in the order of the batch.
std::vector<int> cameras_of(const ReadRules& rules, uint64_t seed, uint32_t epoch, uint64_t entry);

struct Outline {
  Vec3 a, b;  // in the reference frame
  image::Color colour;
};
// Of what the sample's masks are drawn from: shapes of the map around the car, or boxes.
Result<std::vector<Outline>> outlines_of(const NuscenesDataset& dataset, uint32_t sample);

Mat4 matrix_of(const float* values);  // 16, row-major

// Into the picture of one camera. What was computed for the batch, and nothing else, decides where
// lines go.
Status draw_outlines(const image::MutableImageView& panel, const std::vector<Outline>& outlines,
                     const Mat4& camera_to_reference, const Mat4& intrinsic, const Mat4& img_aug);

image::MutableImageView part_of(const image::MutableImageView& canvas, int x, int y, int width,
                                int height);

// Cells of the grid as a picture, forward up.
class GroundPanel {
 public:
  GroundPanel(const image::MutableImageView& panel, const ReadRules& rules);

  // `colour` is asked for the number of a cell in a mask, x * ny + y.
  void paint(const std::function<image::Color(size_t cell)>& colour) const;
  void draw(const std::vector<Outline>& outlines, const Mat4& bev_aug, image::Color ink) const;
  // Where the reference frame has its origin, and which way is forward.
  void draw_car(const Mat4& bev_aug) const;

 private:
  size_t cell_at(int column, int row) const;
  void line(const Vec3& a, const Vec3& b, const image::Color& colour, double thickness) const;

  const image::MutableImageView panel_;
  const ReadRules& rules_;
  const bool ego_;
  const int nx_, ny_;
};

}  // namespace aerie::nuscenes
