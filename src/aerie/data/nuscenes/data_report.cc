// The figures of `aerie data stats --kind nuscenes`.
#include "aerie/data/nuscenes/data_report.h"

#include <algorithm>
#include <set>

#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/nuscenes/reader_pool.h"

namespace aerie::nuscenes {
namespace {

void count_splits(const NuscenesDataset& dataset, DataReport& out) {
  const NuscenesIndex& index = dataset.index();
  for (const std::string& name : official_split_names()) {
    DataReport::Split split;
    split.name = name;
    split.chosen = name == dataset.split().name;
    for (const std::string& scene : official_split(name)) {
      if (const auto found = index.find_scene(scene)) {
        ++split.scenes;
        split.samples += index.scene(*found).num_samples;
      } else {
        ++split.missing_scenes;
      }
    }
    if (split.scenes > 0) out.splits.push_back(std::move(split));
  }
}

void count_tables(const NuscenesDataset& dataset, DataReport& out) {
  const NuscenesIndex& index = dataset.index();
  for (uint32_t s = 0; s < index.num_scenes(); ++s) {
    const SceneInfo scene = index.scene(s);
    DataReport::Location& location = out.locations[std::string(scene.location)];
    ++location.scenes;
    location.samples += scene.num_samples;
  }
  std::set<std::string_view> seen;
  for (const uint32_t sample : dataset.split().samples) {
    seen.clear();
    for (const Box& box : index.boxes(sample)) {
      DataReport::Category& category = out.categories[std::string(box.category)];
      ++category.boxes;
      if (seen.insert(box.category).second) ++category.samples;
    }
    for (int camera = 0; camera < kNumCameras; ++camera) {
      if (!index.has_camera(sample, camera)) continue;
      const CameraFrame frame = index.camera(sample, camera);
      ++out.picture_sizes[str_cat(frame.width, "x", frame.height)];
    }
  }
}

void look_at_maps(const NuscenesDataset& dataset, DataReport& out) {
  for (auto& [name, location] : out.locations) {
    const auto path = map_expansion_path(dataset.env(), dataset.index(), name);
    location.map = path.ok() ? "there" : "missing";
  }
  for (const uint32_t sample : dataset.split().samples)
    if (const MapExpansion* map = dataset.map_of(sample)) {
      const uint32_t scene = dataset.index().sample(sample).scene;
      out.locations[std::string(dataset.index().scene(scene).location)].map = map->version();
    }
}

// Masks without augmentation and sizes of files, of samples evenly spaced over the split.
Status probe(const NuscenesDataset& dataset, const DataReportOptions& options, DataReport& out) {
  const std::vector<uint32_t>& samples = dataset.split().samples;
  const size_t count = std::min<uint64_t>(options.probes, samples.size());
  if (count == 0) return ok_status();
  ThreadPool pool({.name = "stats", .num_threads = std::max(1, options.num_threads)});
  ReaderPool readers(dataset);
  struct Probed {
    std::vector<uint64_t> cells;  // of each mask
    uint64_t bytes = 0, files = 0;
    bool drawn = false;
  };
  std::vector<Probed> found(count);
  AERIE_RETURN_IF_ERROR(pool.parallel_for(count, [&](size_t k) -> Status {
    const uint32_t sample = samples[k * samples.size() / count];
    AERIE_ASSIGN_OR_RETURN(const ReaderPool::Lease reader, readers.take());
    const auto frames = sample_frames(dataset.index(), sample, dataset.rules().reference,
                                      dataset.rules().motion_compensation);
    const GroundTruthMaker& gt = reader->gt();
    std::vector<uint8_t> mask(gt.num_bytes());
    if (frames.ok() && reader->ground_truth(sample, *frames, BevAugmentation(), mask.data()).ok()) {
      const size_t cells = mask.size() / static_cast<size_t>(gt.num_masks());
      for (int c = 0; c < gt.num_masks(); ++c) {
        const auto begin = mask.begin() + static_cast<ptrdiff_t>(cells * static_cast<size_t>(c));
        found[k].cells.push_back(
            static_cast<uint64_t>(std::count(begin, begin + static_cast<ptrdiff_t>(cells), 1)));
      }
      found[k].drawn = true;
    }
    for (const int camera : dataset.rules().cameras) {
      if (const auto at = dataset.packed(sample, camera)) {
        found[k].bytes += dataset.pack()->entry(*at).bytes;
        ++found[k].files;
        continue;
      }
      if (!dataset.index().has_camera(sample, camera)) continue;
      const auto stat =
          dataset.env().stat(dataset.index().path(dataset.index().camera(sample, camera)));
      if (!stat.ok()) continue;
      found[k].bytes += stat->size;
      ++found[k].files;
    }
    return ok_status();
  }));
  const GroundTruthOptions& gt = dataset.rules().gt;
  std::vector<std::string> names = gt.classes;
  if (gt.task != MaskTask::kMap) names = {gt.task == MaskTask::kCar ? "car" : "vehicle"};
  for (const std::string& name : names) out.classes.push_back({name, 0.0, 0.0});
  const double cells = static_cast<double>(gt.x.cells()) * gt.y.cells();
  double bytes = 0.0;
  for (const Probed& one : found) {
    bytes += static_cast<double>(one.bytes);
    out.probed += one.files;
    if (!one.drawn) continue;
    ++out.drawn;
    for (size_t c = 0; c < out.classes.size(); ++c) {
      out.classes[c].cells += static_cast<double>(one.cells[c]) / cells;
      out.classes[c].samples += one.cells[c] > 0 ? 1.0 : 0.0;
    }
  }
  for (DataReport::MapClass& one : out.classes) {
    one.cells /= std::max(1.0, static_cast<double>(out.drawn));
    one.samples /= std::max(1.0, static_cast<double>(out.drawn));
  }
  out.mean_picture_bytes = out.probed > 0 ? bytes / static_cast<double>(out.probed) : 0.0;
  return ok_status();
}

}  // namespace

Result<DataReport> report_data(const NuscenesDataset& dataset, const DataReportOptions& options) {
  const NuscenesIndex& index = dataset.index();
  DataReport out;
  out.root = std::string(index.root());
  out.version = std::string(index.version());
  out.scenes = index.num_scenes();
  out.samples = index.num_samples();
  out.boxes = index.num_boxes();
  out.files = index.files();
  out.split = dataset.split();
  out.split_samples = out.split.samples.size();
  out.split.samples.clear();
  for (const uint32_t sample : dataset.split().samples)
    if (dataset.pack() == nullptr && !index.is_complete(sample)) ++out.split.num_without_files;
  out.entries = dataset.size();
  count_splits(dataset, out);
  count_tables(dataset, out);
  look_at_maps(dataset, out);
  AERIE_RETURN_IF_ERROR(probe(dataset, options, out));
  return out;
}

}  // namespace aerie::nuscenes
