#include "aerie/data/nuscenes/contact_sheet.h"

#include <vector>

#include "aerie/data/nuscenes/sample_reader.h"
#include "aerie/data/nuscenes/sheet_parts.h"

namespace aerie::nuscenes {
namespace {

constexpr int kGap = 4;
constexpr image::Color kInk{40, 40, 40};

struct Buffers {
  std::vector<uint8_t> img, gt;
  std::vector<float> camera2lidar, intrin, img_aug, bev_aug;
};

}  // namespace

Result<image::Image> contact_sheet(const NuscenesDataset& dataset, uint64_t entry, uint32_t epoch,
                                   uint64_t seed) {
  const ReadRules& rules = dataset.rules();
  const uint32_t sample = dataset.sample_of(entry);
  AERIE_ASSIGN_OR_RETURN(const auto reader, SampleReader::make(dataset));
  const auto count = static_cast<size_t>(rules.cameras_per_sample);
  Buffers buffers;
  buffers.img.resize(count * 3 * static_cast<size_t>(rules.height()) *
                     static_cast<size_t>(rules.width()));
  buffers.gt.resize(reader->gt().num_bytes());
  for (auto* matrices : {&buffers.camera2lidar, &buffers.intrin, &buffers.img_aug})
    matrices->resize(count * 16);
  buffers.bev_aug.resize(16);
  SampleFigures figures;
  const SampleRows rows{buffers.img.data(),     buffers.camera2lidar.data(), buffers.intrin.data(),
                        buffers.img_aug.data(), buffers.bev_aug.data(),      buffers.gt.data()};
  if (const Status status = reader->read(entry, epoch, seed, rows, figures); !status.ok())
    return status.with_context(dataset.name_of(sample));
  AERIE_ASSIGN_OR_RETURN(const std::vector<Outline> outlines, outlines_of(dataset, sample));

  const int width = rules.width(), height = rules.height();
  const int side = 2 * height + kGap;
  constexpr int kLegend = 24;
  image::Image canvas(3 * (width + kGap) + side, side + kLegend);
  const image::MutableImageView all = canvas.mutable_view();
  image::fill(all, kSheetBackground);
  const std::vector<int> cameras = cameras_of(rules, seed, epoch, entry);
  for (size_t n = 0; n < count; ++n) {
    const auto [column, row] = camera_place(cameras[n]);
    const int x = column * (width + kGap), y = row * (height + kGap);
    const image::ImageView picture{
        buffers.img.data() + n * 3 * static_cast<size_t>(height) * static_cast<size_t>(width),
        width, height, 3, ptrdiff_t{3} * width};
    image::paste(all, picture, x, y);
    const image::MutableImageView panel = part_of(all, x, y, width, height);
    AERIE_RETURN_IF_ERROR(draw_outlines(
        panel, outlines, matrix_of(buffers.camera2lidar.data() + 16 * n),
        matrix_of(buffers.intrin.data() + 16 * n), matrix_of(buffers.img_aug.data() + 16 * n)));
    image::draw_text(panel, 6, 6, kCameras[static_cast<size_t>(cameras[n])], kSheetText, 2);
  }
  const std::vector<std::string> names = mask_names(rules);
  const size_t cells = buffers.gt.size() / names.size();
  const GroundPanel ground(part_of(all, 3 * (width + kGap), 0, side, side), rules);
  ground.paint([&](size_t cell) {
    image::Color colour = kEmptyCell;
    for (size_t c = 0; c < names.size(); ++c)
      if (buffers.gt[c * cells + cell] != 0) colour = class_colour(names[c]);
    return colour;
  });
  const Mat4 bev_aug = matrix_of(buffers.bev_aug.data());
  ground.draw(outlines, bev_aug, kInk);
  ground.draw_car(bev_aug);
  int x = 6;
  const int y = side + 6;
  const auto say = [&](const std::string& text) {
    image::draw_text(all, x, y, text, kSheetText, 2);
    x += image::text_width(text, 2) + 16;
  };
  say(dataset.name_of(sample));
  for (const std::string& name : names) {
    image::fill_rectangle(all, x, y, 14, 14, class_colour(name));
    x += 20;
    say(name);
  }
  return canvas;
}

}  // namespace aerie::nuscenes
