#include "aerie/data/nuscenes/prediction_sheet.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/sheet_parts.h"
#include "aerie/image/jpeg.h"
#include "aerie/image/png.h"
#include "aerie/image/resample.h"

namespace aerie::nuscenes {
namespace {

// The same canvas whatever the sizes of pictures and grid are.
constexpr int kPanel = 384, kMargin = 8, kTextScale = 2;
constexpr int kTextRow = image::kLineHeight * kTextScale + 2;
constexpr int kHeading = kTextRow + 4;
constexpr int kMaxCameraHeight = kPanel;
constexpr image::Color kRight{190, 205, 190}, kMissed{33, 102, 172}, kTooMuch{230, 97, 1},
    kBoth{123, 50, 148}, kSoftText{190, 190, 190};

struct ClassScore {
  int64_t both = 0, either = 0;
};

std::string score_text(const ClassScore& score, float threshold) {
  char text[64];
  if (score.either == 0)
    std::snprintf(text, sizeof text, "not here");
  else
    std::snprintf(text, sizeof text, "IoU %5.1f %%  p >= %.2f",
                  100.0 * static_cast<double>(score.both) / static_cast<double>(score.either),
                  static_cast<double>(threshold));
  return text;
}

void legend_row(const image::MutableImageView& canvas, int x, int y, image::Color colour,
                const std::string& text) {
  constexpr int kSwatch = image::kTextHeight * kTextScale;
  image::fill_rectangle(canvas, x, y, kSwatch, kSwatch, colour);
  image::draw_text(canvas, x + kSwatch + 6, y, text, kSheetText, kTextScale);
}

template <typename T>
Status copy_row(const data::Batch& batch, const char* name, int64_t row, std::vector<T>& out) {
  const data::HostArray* array = batch.find(name);
  if (array == nullptr || batch.num_samples() == 0)
    return internal_error(str_cat("the batch has no ", name));
  const auto size = static_cast<size_t>(array->size() / batch.num_samples());
  const T* first = array->as<T>() + static_cast<size_t>(row) * size;
  out.assign(first, first + size);
  return ok_status();
}

}  // namespace

Result<PredictedSample> predicted_sample(const data::Batch& batch, int64_t row,
                                         std::span<const float> probability) {
  PredictedSample out;
  AERIE_CHECK(row >= 0 && row < batch.num_samples(), "sample ", row, " of ", batch.num_samples());
  out.entry = batch.samples()[static_cast<size_t>(row)].sample;
  out.epoch = batch.epoch();
  AERIE_RETURN_IF_ERROR(copy_row(batch, "img", row, out.img));
  AERIE_RETURN_IF_ERROR(copy_row(batch, "bev_aug", row, out.bev_aug));
  AERIE_RETURN_IF_ERROR(copy_row(batch, "gt", row, out.gt));
  if (probability.size() != out.gt.size() * static_cast<size_t>(batch.num_samples()))
    return internal_error(str_cat(probability.size(), " probabilities for ", batch.num_samples(),
                                  " samples of ", out.gt.size(), " cells"));
  const auto mine = probability.subspan(static_cast<size_t>(row) * out.gt.size(), out.gt.size());
  out.probability.assign(mine.begin(), mine.end());
  return out;
}

Result<image::Image> prediction_sheet(const NuscenesDataset& dataset, const PredictedSample& sample,
                                      const PredictionSheetOptions& options) {
  const ReadRules& rules = dataset.rules();
  const std::vector<std::string> names = mask_names(rules);
  const size_t classes = names.size();
  const size_t cells =
      static_cast<size_t>(rules.gt.x.cells()) * static_cast<size_t>(rules.gt.y.cells());
  if (sample.gt.size() != classes * cells || sample.probability.size() != classes * cells)
    return internal_error(str_cat("masks of ", sample.gt.size(), " and ", sample.probability.size(),
                                  " cells for ", classes, " classes of ", cells));
  std::vector<float> thresholds = options.thresholds;
  thresholds.resize(classes, 0.5f);
  const auto wanted = [&](size_t c, size_t cell) { return sample.gt[c * cells + cell] != 0; };
  const auto predicted = [&](size_t c, size_t cell) {
    return sample.probability[c * cells + cell] >= thresholds[c];
  };
  std::vector<ClassScore> scores(classes);
  for (size_t c = 0; c < classes; ++c)
    for (size_t cell = 0; cell < cells; ++cell) {
      scores[c].both += wanted(c, cell) && predicted(c, cell);
      scores[c].either += wanted(c, cell) || predicted(c, cell);
    }

  const int width = rules.width(), height = rules.height();
  const int camera_height =
      std::clamp(static_cast<int>(int64_t{kPanel} * height / width), 1, kMaxCameraHeight);
  const int legend_rows = std::max<int>(static_cast<int>(classes), 4);
  const int ground_top = kMargin + kHeading + 2 * (camera_height + kMargin);
  image::Image canvas(3 * kPanel + 4 * kMargin,
                      ground_top + kHeading + kPanel + 2 * kMargin + legend_rows * kTextRow);
  const image::MutableImageView all = canvas.mutable_view();
  image::fill(all, kSheetBackground);
  const auto column_x = [](int column) { return kMargin + column * (kPanel + kMargin); };

  const std::string name = dataset.name_of(dataset.sample_of(sample.entry));
  image::draw_text(all, kMargin, kMargin, name, kSheetText, kTextScale);
  image::draw_text(all, column_x(2) + kPanel - image::text_width(options.title, kTextScale),
                   kMargin, options.title, kSheetText, kTextScale);
  const std::vector<int> cameras = cameras_of(rules, options.seed, sample.epoch, sample.entry);
  for (size_t n = 0; n < cameras.size(); ++n) {
    const auto [column, row] = camera_place(cameras[n]);
    const size_t bytes = size_t{3} * static_cast<size_t>(height) * static_cast<size_t>(width);
    if ((n + 1) * bytes > sample.img.size()) return internal_error("pictures of a sample are cut");
    const image::Image picture = image::resized_bicubic(
        {sample.img.data() + n * bytes, width, height, 3, ptrdiff_t{3} * width}, kPanel,
        camera_height);
    const int x = column_x(column), y = kMargin + kHeading + row * (camera_height + kMargin);
    image::paste(all, picture.view(), x, y);
    const std::string_view label = kCameras[static_cast<size_t>(cameras[n])];
    image::fill_rectangle(all, x, y, image::text_width(label) + 8, image::kTextHeight + 8,
                          kSheetBackground, 0.6);
    image::draw_text(all, x + 4, y + 4, label, kSheetText);
  }

  const Mat4 bev_aug = matrix_of(sample.bev_aug.data());
  const auto panel = [&](int column, const char* heading,
                         const std::function<image::Color(size_t)>& colour) {
    image::draw_text(all, column_x(column), ground_top, heading, kSheetText, kTextScale);
    const GroundPanel ground(part_of(all, column_x(column), ground_top + kHeading, kPanel, kPanel),
                             rules);
    ground.paint(colour);
    ground.draw_car(bev_aug);
  };
  const auto topmost = [&](const auto& has) {
    return [&, has](size_t cell) {
      image::Color colour = kEmptyCell;
      for (size_t c = 0; c < classes; ++c)
        if (has(c, cell)) colour = class_colour(names[c]);
      return colour;
    };
  };
  panel(0, "truth", topmost(wanted));
  panel(1, "prediction", topmost(predicted));
  panel(2, "error", [&](size_t cell) {
    bool missed = false, too_much = false, right = false;
    for (size_t c = 0; c < classes; ++c) {
      const bool w = wanted(c, cell), p = predicted(c, cell);
      missed = missed || (w && !p);
      too_much = too_much || (p && !w);
      right = right || (w && p);
    }
    if (missed || too_much) return missed && too_much ? kBoth : missed ? kMissed : kTooMuch;
    return right ? kRight : kEmptyCell;
  });

  const int legend_y = ground_top + kHeading + kPanel + kMargin;
  for (size_t c = 0; c < classes; ++c) {
    const int y = legend_y + static_cast<int>(c) * kTextRow;
    legend_row(all, column_x(0), y, class_colour(names[c]), names[c]);
    image::draw_text(all, column_x(1), y, score_text(scores[c], thresholds[c]),
                     scores[c].either == 0 ? kSoftText : kSheetText, kTextScale);
  }
  const std::pair<image::Color, const char*> kinds[] = {{kRight, "right"},
                                                        {kMissed, "missed"},
                                                        {kTooMuch, "predicted, not there"},
                                                        {kBoth, "one class for another"}};
  for (int i = 0; i < 4; ++i)
    legend_row(all, column_x(2), legend_y + i * kTextRow, kinds[i].first, kinds[i].second);
  return canvas;
}

std::string prediction_file_name(const NuscenesDataset& dataset, const PredictedSample& sample) {
  const SampleInfo info = dataset.index().sample(dataset.sample_of(sample.entry));
  std::string scene(dataset.index().scene(info.scene).name);
  // Tables come from anywhere; a file's name does not.
  for (char& letter : scene)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '-') letter = '_';
  return str_cat(scene.substr(0, 80), "_", to_string(info.token));
}

Status write_picture(Env& env, const std::string& path, const image::Image& picture) {
  const std::string ending = to_lower(file_extension(path));
  if (ending != ".png" && ending != ".jpg" && ending != ".jpeg")
    return invalid_argument(str_cat(path, " is neither .png nor .jpg"));
  image::JpegWriteOptions jpeg;
  jpeg.subsampling = image::ChromaSubsampling::k444;  // thin lines of colour
  AERIE_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes,
                         ending == ".png" ? image::write_png(picture.view())
                                          : image::write_jpeg(picture.view(), jpeg));
  return env.atomic_replace(
      path, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

}  // namespace aerie::nuscenes
