// What `aerie data validate --kind nuscenes` does.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <set>

#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/nuscenes/data_report.h"
#include "aerie/data/nuscenes/reader_pool.h"

namespace aerie::nuscenes {
namespace {

struct Found {
  std::vector<BrokenThing> broken, warnings;
  uint64_t pictures = 0, bytes = 0;
};

class Checker {
 public:
  Checker(const NuscenesDataset& dataset, const DataCheckOptions& options)
      : dataset_(dataset), index_(dataset.index()), options_(options), readers_(dataset) {}

  Result<DataCheckReport> run() {
    const std::vector<uint32_t>& samples = dataset_.split().samples;
    if (options_.on_start) options_.on_start(samples.size());
    ThreadPool pool({.name = "validate", .num_threads = std::max(1, options_.num_threads)});
    std::vector<Found> found(samples.size());
    const Status done = pool.parallel_for(samples.size(), [&](size_t i) -> Status {
      if (options_.stop && options_.stop()) return cancelled("stopped");
      AERIE_ASSIGN_OR_RETURN(const ReaderPool::Lease reader, readers_.take());
      AERIE_RETURN_IF_ERROR(check_sample(samples[i], *reader, found[i]));
      if (options_.on_sample) options_.on_sample();
      return ok_status();
    });
    AERIE_RETURN_IF_ERROR(done);
    DataCheckReport out;
    out.samples = samples.size();
    check_maps(out);
    for (Found& one : found) {
      out.pictures += one.pictures;
      out.bytes += one.bytes;
      std::move(one.broken.begin(), one.broken.end(), std::back_inserter(out.broken));
      std::move(one.warnings.begin(), one.warnings.end(), std::back_inserter(out.warnings));
    }
    return out;
  }

 private:
  // An error is the machine's; what is wrong with the data goes into `out`.
  Status check_sample(uint32_t sample, SampleReader& reader, Found& out) {
    const std::string name = dataset_.name_of(sample);
    const auto frames = sample_frames(index_, sample, dataset_.rules().reference,
                                      dataset_.rules().motion_compensation);
    if (!frames.ok()) out.broken.push_back({"geometry", name, frames.status().to_string()});
    for (const int camera : dataset_.rules().cameras)
      AERIE_RETURN_IF_ERROR(check_picture(sample, camera, name, reader, out));
    if (!frames.ok()) return ok_status();
    for (const int camera : dataset_.rules().cameras)
      if (!inverse(frames->intrinsic[camera]).ok())
        out.broken.push_back({"geometry", str_cat(name, " ", kCameras[camera]),
                              "its camera_intrinsic cannot be inverted"});
    thread_local std::vector<uint8_t> mask;
    mask.resize(reader.gt().num_bytes());
    if (const Status status = reader.ground_truth(sample, *frames, BevAugmentation(), mask.data());
        !status.ok())
      out.broken.push_back({"mask", name, status.to_string()});
    return ok_status();
  }

  Status check_picture(uint32_t sample, int camera, const std::string& name, SampleReader& reader,
                       Found& out) {
    const std::string place =
        str_cat(name, " ", kCameras[camera], ": ", reader.picture_path(sample, camera));
    const auto bytes = reader.jpeg(sample, camera);
    if (!bytes.ok()) {
      if (is_passing(bytes.status())) return bytes.status();
      const bool gone =
          bytes.status().code() == StatusCode::kNotFound || !index_.has_camera(sample, camera);
      // Errors of files name them.
      const std::string said = bytes.status().to_string();
      const bool named = said.find(reader.picture_path(sample, camera)) != std::string::npos;
      out.broken.push_back({gone ? "missing" : "unreadable",
                            named ? str_cat(name, " ", kCameras[camera]) : place, said});
      return ok_status();
    }
    ++out.pictures;
    out.bytes += bytes->size();
    const auto info = reader.camera_reader().probe(*bytes);
    if (!info.ok()) {
      out.broken.push_back({"unreadable", place, info.status().to_string()});
      return ok_status();
    }
    CameraFrame frame = index_.camera(sample, camera);
    if (frame.width != info->width || frame.height != info->height)
      out.warnings.push_back({"size", place,
                              str_cat("is ", info->width, " x ", info->height, ", the table says ",
                                      frame.width, " x ", frame.height)});
    if (frame.width <= 0 || frame.height <= 0) {
      frame.width = info->width;
      frame.height = info->height;
    }
    if (options_.quick) return ok_status();
    // All of it, so that damage anywhere is found: at a size of its own, uncropped.
    ImageAugmentation whole;
    whole.resize = 64.0 / info->width;
    whole.new_width = whole.final_width = 64;
    whole.new_height = whole.final_height =
        std::max(1, static_cast<int>(64.0 * info->height / info->width));
    thread_local image::Image small;
    small.resize(whole.final_width, whole.final_height);
    if (const Status status = reader.picture(*bytes, frame, whole, small.mutable_view());
        !status.ok())
      out.broken.push_back({"unreadable", place, status.to_string()});
    return ok_status();
  }

  void check_maps(DataCheckReport& out) {
    std::set<const MapExpansion*> seen;
    for (const uint32_t sample : dataset_.split().samples) {
      const MapExpansion* map = dataset_.map_of(sample);
      if (map == nullptr || !seen.insert(map).second) continue;
      for (int layer = 0; layer < kNumMapLayers; ++layer) {
        const uint32_t left_out = map->summary().num_left_out[static_cast<size_t>(layer)];
        if (left_out == 0) continue;
        out.warnings.push_back({"map", map->path(),
                                str_cat(left_out, " records of ",
                                        aerie::nuscenes::name_of(static_cast<MapLayer>(layer)),
                                        " are no valid shapes and are never drawn")});
      }
    }
  }

  const NuscenesDataset& dataset_;
  const NuscenesIndex& index_;
  const DataCheckOptions& options_;
  ReaderPool readers_;
};

}  // namespace

Result<DataCheckReport> check_data(const NuscenesDataset& dataset,
                                   const DataCheckOptions& options) {
  return Checker(dataset, options).run();
}

}  // namespace aerie::nuscenes
