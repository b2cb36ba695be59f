#include "aerie/data/nuscenes/contact_sheet.h"

#include <string>
#include <utility>
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

// The sample's name and the classes with their colours, in as many rows as the sheet's width asks.
class Legend final {
 public:
  Legend(std::string title, const std::vector<std::string>& names, int width)
      : title_scale_(image::text_width(title, 2) + kEdge > width ? 1 : 2) {
    add(std::move(title), kEdge, title_scale_, width);
    for (const std::string& name : names) add(name, kEdge + kPatch, 2, width);
  }
  int height() const { return (rows_ + 1) * kRow; }
  void draw(const image::MutableImageView& canvas, int top) const {
    for (size_t i = 0; i < entries_.size(); ++i) {
      const Entry& entry = entries_[i];
      const int y = top + entry.row * kRow + kEdge;
      if (i > 0)
        image::fill_rectangle(canvas, entry.x - kPatch, y, 14, 14, class_colour(entry.text));
      image::draw_text(canvas, entry.x, y, entry.text, kSheetText, i > 0 ? 2 : title_scale_);
    }
  }

 private:
  static constexpr int kRow = 24, kEdge = 6, kPatch = 20, kSpace = 16;
  struct Entry {
    std::string text;
    int x, row;
  };
  // `first` is where a row begins.
  void add(std::string text, int first, int scale, int width) {
    const int wide = image::text_width(text, scale);
    int x = next_ == 0 ? first : next_ + first - kEdge;
    if (next_ != 0 && x + wide > width) {
      ++rows_;
      x = first;
    }
    next_ = x + wide + kSpace;
    entries_.push_back({std::move(text), x, rows_});
  }
  int title_scale_;
  std::vector<Entry> entries_;
  int next_ = 0, rows_ = 0;
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
  const int side = 2 * height + kGap, sheet_width = 3 * (width + kGap) + side;
  const std::vector<std::string> names = mask_names(rules);
  const Legend legend(dataset.name_of(sample), names, sheet_width);
  image::Image canvas(sheet_width, side + legend.height());
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
  legend.draw(all, side);
  return canvas;
}

}  // namespace aerie::nuscenes
