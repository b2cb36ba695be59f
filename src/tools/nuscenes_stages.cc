#include "nuscenes_stages.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>

#include "aerie/base/clock.h"
#include "aerie/base/philox.h"
#include "aerie/base/signals.h"
#include "aerie/data/nuscenes/sample_reader.h"
#include "aerie/image/jpeg.h"
#include "aerie/image/resample.h"
#include "aerie/image/rotate.h"

namespace aerie::tools {

namespace {

using nuscenes::DecodeMode;
using nuscenes::SampleReader;

// CPU time of this thread: what others do on the machine hardly counts.
double thread_cpu_s() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Median CPU milliseconds of `work` divided by `count`, over rounds.
Result<double> median_ms(const std::function<Status()>& work, size_t count, double seconds,
                         uint64_t& rounds) {
  AERIE_RETURN_IF_ERROR(work());
  std::vector<double> times;
  const Stopwatch watch;
  while (times.size() < 3 || watch.elapsed_s() < seconds) {
    if (caught_signal() != 0) return cancelled("stopped");
    const double begin = thread_cpu_s();
    AERIE_RETURN_IF_ERROR(work());
    times.push_back(1e3 * (thread_cpu_s() - begin) / static_cast<double>(count));
  }
  rounds = std::max<uint64_t>(rounds, times.size());
  const auto middle = times.begin() + static_cast<ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

struct Picture {
  std::vector<uint8_t> bytes;
  nuscenes::CameraFrame frame;
  nuscenes::ImageAugmentation draw;
};

class StageBench {
 public:
  StageBench(const nuscenes::NuscenesDataset& dataset, const StageOptions& options)
      : dataset_(dataset), options_(options), rules_(dataset.rules()) {}

  Result<StageTimes> run(std::vector<PeerCase>& cases, std::vector<MaskPose>& poses) {
    AERIE_ASSIGN_OR_RETURN(reader_, SampleReader::make(dataset_));
    AERIE_RETURN_IF_ERROR(load(cases));
    AERIE_RETURN_IF_ERROR(list_poses(poses));
    out_.height = rules_.height();
    out_.width = rules_.width();
    picture_ = image::Image(rules_.width(), rules_.height());
    crop_ = image::Image(rules_.width(), rules_.height() + 1);
    AERIE_ASSIGN_OR_RETURN(out_.images, rounds([this] { return images(DecodeMode::kExact); }));
    AERIE_ASSIGN_OR_RETURN(out_.scaled, rounds([this] { return images(DecodeMode::kScaled); }));
    AERIE_ASSIGN_OR_RETURN(out_.decode, rounds([this] { return decode(); }));
    AERIE_ASSIGN_OR_RETURN(out_.rotate, rounds([this] { return rotate(); }));
    // What is left of the whole: the stages run row by row, each in the cache of the other.
    out_.resize = std::max(0.0, out_.images - out_.decode - out_.rotate);
    AERIE_ASSIGN_OR_RETURN(out_.read, rounds([this] { return read(); }));
    AERIE_ASSIGN_OR_RETURN(out_.masks, rounds([this] { return masks(); }));
    AERIE_ASSIGN_OR_RETURN(out_.sample, rounds([this] { return whole(); }));
    out_.assemble = std::max(0.0, out_.sample - out_.read - out_.images - out_.masks);
    return out_;
  }

 private:
  Status load(std::vector<PeerCase>& cases) {
    const uint64_t count = std::min<uint64_t>(options_.samples, dataset_.size());
    for (uint64_t k = 0; k < count; ++k) {
      const uint64_t entry = k * dataset_.size() / count;
      entries_.push_back(entry);
      const uint32_t sample = dataset_.sample_of(entry);
      for (const int camera : rules_.cameras) {
        AERIE_ASSIGN_OR_RETURN(const auto bytes, reader_->jpeg(sample, camera));
        Picture picture;
        picture.bytes.assign(bytes.begin(), bytes.end());
        picture.frame = dataset_.index().camera(sample, camera);
        picture.draw = reader_->image_augmentation(picture.frame, entry, options_.epoch,
                                                   options_.seed, camera);
        out_.picture_bytes += static_cast<double>(bytes.size());
        cases.push_back({dataset_.index().path(picture.frame), picture.draw});
        pictures_.push_back(std::move(picture));
      }
    }
    out_.samples = count;
    out_.pictures = pictures_.size();
    out_.picture_bytes /= std::max<double>(1.0, static_cast<double>(pictures_.size()));
    if (count == 0) return data_error("the split has no samples");
    return ok_status();
  }

  // Where the devkit has to look for the same masks: the patch of BEVFusion's loader.
  Status list_poses(std::vector<MaskPose>& poses) {
    for (const uint64_t entry : entries_) {
      const uint32_t sample = dataset_.sample_of(entry);
      AERIE_ASSIGN_OR_RETURN(const nuscenes::SampleFrames frames,
                             nuscenes::sample_frames(dataset_.index(), sample, rules_.reference,
                                                     rules_.motion_compensation));
      AERIE_ASSIGN_OR_RETURN(const Mat4 back,
                             inverse(reader_->bev_augmentation(entry, options_.epoch, options_.seed)
                                         .matrix_before_flips()));
      const Mat4 patch = frames.reference_to_global * back;
      const uint32_t scene = dataset_.index().sample(sample).scene;
      poses.push_back({std::string(dataset_.index().scene(scene).location), patch(0, 3),
                       patch(1, 3), std::atan2(patch(1, 0), patch(0, 0))});
    }
    return ok_status();
  }

  Result<double> rounds(const std::function<Status()>& work) {
    return median_ms(work, entries_.size(), options_.seconds, out_.rounds);
  }

  Status images(DecodeMode mode) {
    for (const Picture& one : pictures_)
      AERIE_RETURN_IF_ERROR(
          reader_->camera_reader().read(one.bytes, one.draw, mode, picture_.mutable_view()));
    return ok_status();
  }

  Status decode() {
    for (const Picture& one : pictures_) {
      AERIE_ASSIGN_OR_RETURN(const image::JpegInfo info, jpeg_.open(one.bytes));
      const nuscenes::ImageAugmentation& draw = one.draw;
      const int top = std::clamp(draw.crop_y, 0, draw.new_height);
      const int bottom = std::clamp(draw.crop_y + draw.final_height, top, draw.new_height);
      if (top == bottom) continue;
      image::ResampleAxis rows;
      rows.plan(info.height, draw.new_height, top, bottom);
      AERIE_RETURN_IF_ERROR(
          jpeg_.for_rows(rows.input_first, rows.input_end, 1, [](const uint8_t* const*, int) {}));
    }
    return ok_status();
  }

  Status rotate() {
    image::MutableImageView crop = crop_.mutable_view();
    crop.height = rules_.height();
    for (const Picture& one : pictures_)
      image::rotate_nearest(crop, one.draw.flip, one.draw.rotate_deg, picture_.mutable_view());
    return ok_status();
  }

  Status read() {
    for (const uint64_t entry : entries_)
      for (const int camera : rules_.cameras)
        AERIE_RETURN_IF_ERROR(reader_->jpeg(dataset_.sample_of(entry), camera).status());
    return ok_status();
  }

  Status masks() {
    gt_.resize(reader_->gt().num_bytes());
    for (const uint64_t entry : entries_) {
      const uint32_t sample = dataset_.sample_of(entry);
      AERIE_ASSIGN_OR_RETURN(const nuscenes::SampleFrames frames,
                             nuscenes::sample_frames(dataset_.index(), sample, rules_.reference,
                                                     rules_.motion_compensation));
      AERIE_RETURN_IF_ERROR(reader_->ground_truth(
          sample, frames, reader_->bev_augmentation(entry, options_.epoch, options_.seed),
          gt_.data()));
    }
    return ok_status();
  }

  Status whole() {
    const auto cameras = static_cast<size_t>(rules_.cameras_per_sample);
    img_.resize(cameras * picture_.bytes());
    gt_.resize(reader_->gt().num_bytes());
    matrices_.resize((3 * cameras + 1) * 16);
    const nuscenes::SampleRows rows{img_.data(),
                                    matrices_.data(),
                                    matrices_.data() + 16 * cameras,
                                    matrices_.data() + 32 * cameras,
                                    matrices_.data() + 48 * cameras,
                                    gt_.data()};
    for (const uint64_t entry : entries_) {
      nuscenes::SampleFigures figures;
      AERIE_RETURN_IF_ERROR(reader_->read(entry, options_.epoch, options_.seed, rows, figures));
    }
    return ok_status();
  }

  const nuscenes::NuscenesDataset& dataset_;
  const StageOptions options_;
  const nuscenes::ReadRules& rules_;
  std::unique_ptr<SampleReader> reader_;
  image::JpegReader jpeg_;
  std::vector<uint64_t> entries_;
  std::vector<Picture> pictures_;
  image::Image picture_, crop_;
  std::vector<uint8_t> gt_, img_;
  std::vector<float> matrices_;
  StageTimes out_;
};

}  // namespace

Result<StageTimes> measure_stages(const nuscenes::NuscenesDataset& dataset,
                                  const StageOptions& options, std::vector<PeerCase>& cases,
                                  std::vector<MaskPose>& poses) {
  return StageBench(dataset, options).run(cases, poses);
}

Result<double> measure_map(const nuscenes::MapExpansion& map, const std::string& location,
                           const nuscenes::GroundTruthOptions& gt, const StageOptions& options,
                           std::vector<MaskPose>& poses) {
  constexpr int kPlaces = 100;
  constexpr double kPi = 3.14159265358979323846;
  AERIE_ASSIGN_OR_RETURN(auto maker, nuscenes::GroundTruthMaker::make(gt));
  RandomStream random(options.seed, Purpose::kTest, options.epoch, 0);
  // Corners of shapes: where there is something to draw.
  std::vector<raster::Point> corners;
  for (int layer = 0; layer < nuscenes::kNumMapLayers; ++layer)
    for (uint32_t i = 0; i < map.num_shapes(static_cast<nuscenes::MapLayer>(layer)); ++i) {
      const auto& shape = map.shape(static_cast<nuscenes::MapLayer>(layer), i);
      if (shape.num_rings > 0 && !map.ring(shape, 0).empty())
        corners.push_back(map.ring(shape, 0)[0]);
    }
  if (corners.empty()) return data_error("has no shapes").with_context(map.path());
  for (int i = 0; i < kPlaces; ++i) {
    const raster::Point& at = corners[random.below(corners.size())];
    poses.push_back({location, at.x, at.y, random.uniform(-kPi, kPi)});
  }
  std::vector<uint8_t> mask(maker.num_bytes());
  uint64_t rounds = 0;
  return median_ms(
      [&]() -> Status {
        for (const MaskPose& pose : poses)
          AERIE_RETURN_IF_ERROR(maker.draw(map, rigid(rotation_z(pose.yaw), {pose.x, pose.y, 0.0}),
                                           nuscenes::BevAugmentation(), mask.data()));
        return ok_status();
      },
      poses.size(), options.seconds, rounds);
}

}  // namespace aerie::tools
