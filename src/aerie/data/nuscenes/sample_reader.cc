#include "aerie/data/nuscenes/sample_reader.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/clock.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"

namespace aerie::nuscenes {
namespace {

int64_t now_ns() {
  return Clock::real().monotonic_ns();
}

// Of the pictures the tables speak of; at least those of a small camera.
int64_t table_pixels(const NuscenesDataset& dataset) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  return std::max(kLeast, int64_t{dataset.max_picture_width()} * dataset.max_picture_height());
}

// A file may be twice as wide and high as the table says, and no larger than its pixels.
uint64_t max_file_bytes(const NuscenesDataset& dataset) {
  return static_cast<uint64_t>(3 * table_pixels(dataset)) + (uint64_t{1} << 20);
}

image::JpegLimits limits_of(const NuscenesDataset& dataset) {
  image::JpegLimits out;
  out.max_pixels = std::min(out.max_pixels, 4 * table_pixels(dataset));
  out.max_working_bytes = std::min(out.max_working_bytes, 12 * table_pixels(dataset));
  return out;
}

std::span<float, 16> matrix_at(float* all, int number) {
  return std::span<float, 16>(all + 16 * number, 16);
}

// Picture n becomes what was picture order[n].
void exchange_pictures(uint8_t* pictures, size_t bytes, const std::vector<int>& order) {
  const std::vector<uint8_t> before(pictures, pictures + bytes * order.size());
  for (size_t n = 0; n < order.size(); ++n)
    std::copy_n(before.data() + static_cast<size_t>(order[n]) * bytes, bytes, pictures + n * bytes);
}

}  // namespace

SampleReader::SampleReader(const NuscenesDataset& dataset, const RetryPolicy& retry,
                           GroundTruthMaker gt)
    : dataset_(dataset), retry_(retry), camera_(limits_of(dataset)), gt_(std::move(gt)) {}

Result<std::unique_ptr<SampleReader>> SampleReader::make(const NuscenesDataset& dataset,
                                                         const RetryPolicy& retry) {
  AERIE_ASSIGN_OR_RETURN(GroundTruthMaker gt, GroundTruthMaker::make(dataset.rules().gt));
  return std::unique_ptr<SampleReader>(new SampleReader(dataset, retry, std::move(gt)));
}

double SampleReader::max_bytes(const NuscenesDataset& dataset) {
  const ReadRules& rules = dataset.rules();
  constexpr double kDecoder = 4 << 20;  // rows, tables of weights, libjpeg's own
  return kDecoder + static_cast<double>(limits_of(dataset).max_working_bytes) +
         static_cast<double>(max_file_bytes(dataset)) + 3.0 * rules.height() * rules.width();
}

std::string SampleReader::picture_path(uint32_t sample, int camera) const {
  if (const auto at = dataset_.packed(sample, camera))
    return str_cat(dataset_.pack()->shard(at->shard).path(), " ", dataset_.pack()->name(*at));
  if (!dataset_.index().has_camera(sample, camera)) return std::string(kCameras[camera]);
  return dataset_.index().path(dataset_.index().camera(sample, camera));
}

Status SampleReader::read_file(const std::string& path) {
  // Opened anew each time: a stale handle stays stale.
  return retry_passing(retry_, [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(const auto file, dataset_.env().open_random_access(path));
    const uint64_t size = file->size();
    if (size > max_file_bytes(dataset_))
      return data_error(str_cat("has ", human_bytes(static_cast<double>(size)),
                                ", more than its picture could need"))
          .with_context(path);
    if (size == 0) return data_error("is empty").with_context(path);
    if (bytes_.size() < size) bytes_.resize(size);
    AERIE_RETURN_IF_ERROR(file->read_exact_at(0, bytes_.data(), size));
    file_bytes_ = size;
    return ok_status();
  });
}

Result<std::span<const uint8_t>> SampleReader::jpeg(uint32_t sample, int camera) {
  if (const auto at = dataset_.packed(sample, camera)) return dataset_.pack()->verified(*at);
  if (!dataset_.index().has_camera(sample, camera))
    return data_error(str_cat("the tables have no picture of ", kCameras[camera]));
  path_ = dataset_.index().path(dataset_.index().camera(sample, camera));
  AERIE_RETURN_IF_ERROR(read_file(path_));
  return std::span<const uint8_t>(bytes_.data(), file_bytes_);
}

Status SampleReader::picture(std::span<const uint8_t> jpeg, const CameraFrame& frame,
                             const ImageAugmentation& augmentation,
                             const image::MutableImageView& out) {
  AERIE_ASSIGN_OR_RETURN(const image::JpegInfo info, camera_.probe(jpeg));
  // Smaller or larger copies of the same view keep their geometry, since the whole is resized.
  const double ratio = static_cast<double>(info.width) * frame.height /
                       (static_cast<double>(info.height) * std::max(1, frame.width));
  if (frame.width > 0 && frame.height > 0 && std::fabs(ratio - 1.0) > 0.01)
    return data_error(str_cat("is ", info.width, " x ", info.height, ", the table says ",
                              frame.width, " x ", frame.height))
        .with_hint("another shape than the camera was calibrated for");
  return camera_.read(jpeg, augmentation, dataset_.rules().decode, out);
}

ImageAugmentation SampleReader::image_augmentation(const CameraFrame& frame, uint64_t entry,
                                                   uint32_t epoch, uint64_t seed,
                                                   int camera) const {
  const ReadRules& rules = dataset_.rules();
  if (rules.augment_images)
    return draw_image_augmentation(rules.image, frame.width, frame.height, seed, epoch, entry,
                                   camera);
  return test_image_augmentation(rules.image, frame.width, frame.height);
}

BevAugmentation SampleReader::bev_augmentation(uint64_t entry, uint32_t epoch,
                                               uint64_t seed) const {
  const ReadRules& rules = dataset_.rules();
  return rules.augment_bev ? draw_bev_augmentation(rules.bev, seed, epoch, entry)
                           : BevAugmentation();
}

Status SampleReader::ground_truth(uint32_t sample, const SampleFrames& frames,
                                  const BevAugmentation& augmentation, uint8_t* out) {
  if (dataset_.rules().gt.task == MaskTask::kMap) {
    const MapExpansion* map = dataset_.map_of(sample);
    AERIE_CHECK(map != nullptr, "a sample without its map");
    return gt_.draw(*map, frames.reference_to_global, augmentation, out);
  }
  boxes_.clear();
  for (const Box& box : dataset_.index().boxes(sample))
    boxes_.push_back({box.category, box.centre, box.size, box.rotation});
  return gt_.draw_boxes(boxes_, frames.reference_to_global, augmentation, out);
}

Status SampleReader::read(uint64_t entry, uint32_t epoch, uint64_t seed, const SampleRows& out,
                          SampleFigures& figures) {
  const ReadRules& rules = dataset_.rules();
  const NuscenesIndex& index = dataset_.index();
  const uint32_t sample = dataset_.sample_of(entry);
  const auto frames = sample_frames(index, sample, rules.reference, rules.motion_compensation);
  if (!frames.ok()) return frames.status();
  const int count = rules.cameras_per_sample;
  const bool drawn = count < static_cast<int>(rules.cameras.size());
  std::vector<int> chosen;
  if (drawn)
    chosen = draw_cameras(static_cast<int>(rules.cameras.size()), count, seed, epoch, entry);
  const size_t picture_bytes = size_t{3} * rules.height() * rules.width();
  for (int n = 0; n < count; ++n) {
    const int camera = rules.cameras[static_cast<size_t>(drawn ? chosen[n] : n)];
    const int64_t begin = now_ns();
    const auto bytes = jpeg(sample, camera);
    const int64_t have = now_ns();
    figures.read_ns += have - begin;
    if (!bytes.ok()) return bytes.status();
    figures.bytes_read += static_cast<int64_t>(bytes->size());
    CameraFrame frame = index.camera(sample, camera);
    if (frame.width <= 0 || frame.height <= 0) {
      // The table does not say: the file does.
      const auto info = camera_.probe(*bytes);
      if (!info.ok()) return info.status().with_context(picture_path(sample, camera));
      frame.width = info->width;
      frame.height = info->height;
    }
    const ImageAugmentation augmentation = image_augmentation(frame, entry, epoch, seed, camera);
    const image::MutableImageView view{out.img + n * picture_bytes, rules.width(), rules.height(),
                                       3, ptrdiff_t{3} * rules.width()};
    if (Status status = picture(*bytes, frame, augmentation, view); !status.ok())
      return std::move(status).with_context(picture_path(sample, camera));
    figures.image_ns += now_ns() - have;
    to_floats(frames->camera_to_reference[camera], matrix_at(out.camera2lidar, n));
    to_floats(with_rotation(frames->intrinsic[camera]), matrix_at(out.intrin, n));
    to_floats(augmentation.matrix(), matrix_at(out.img_aug, n));
  }
  if (rules.shuffle_cameras)
    exchange_pictures(out.img, picture_bytes, draw_cameras(count, count, ~seed, epoch, entry));
  const int64_t begin = now_ns();
  const BevAugmentation bev = bev_augmentation(entry, epoch, seed);
  to_floats(bev.matrix(), matrix_at(out.bev_aug, 0));
  AERIE_RETURN_IF_ERROR(ground_truth(sample, *frames, bev, out.gt));
  figures.gt_ns += now_ns() - begin;
  return ok_status();
}

}  // namespace aerie::nuscenes
