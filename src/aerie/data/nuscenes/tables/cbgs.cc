#include "aerie/data/nuscenes/tables/cbgs.h"

#include "aerie/base/philox.h"

namespace aerie::nuscenes {

namespace {

struct CategoryClass {
  std::string_view category;
  int number;  // in kDetectionClasses
};
// As nuScenes' detection benchmark merges categories; what is not here belongs to no class.
constexpr CategoryClass kCategoryClasses[] = {
    {"vehicle.car", 0},
    {"vehicle.truck", 1},
    {"vehicle.construction", 2},
    {"vehicle.bus.bendy", 3},
    {"vehicle.bus.rigid", 3},
    {"vehicle.trailer", 4},
    {"movable_object.barrier", 5},
    {"vehicle.motorcycle", 6},
    {"vehicle.bicycle", 7},
    {"human.pedestrian.adult", 8},
    {"human.pedestrian.child", 8},
    {"human.pedestrian.construction_worker", 8},
    {"human.pedestrian.police_officer", 8},
    {"movable_object.trafficcone", 9},
};

}  // namespace

int detection_class(std::string_view category) {
  for (const CategoryClass& entry : kCategoryClasses) {
    if (entry.category == category) return entry.number;
  }
  return -1;
}

Result<std::vector<uint32_t>> cbgs_entries(const NuscenesIndex& index,
                                           std::span<const uint32_t> samples, uint64_t seed,
                                           uint32_t epoch) {
  std::array<std::vector<uint32_t>, kDetectionClasses.size()> with_class;
  for (const uint32_t sample : samples) {
    std::array<bool, kDetectionClasses.size()> seen{};
    for (const Box& box : index.boxes(sample)) {
      if (box.num_lidar_pts <= 0 && box.num_radar_pts <= 0) continue;
      const int number = detection_class(box.category);
      if (number >= 0) seen[static_cast<size_t>(number)] = true;
    }
    for (size_t c = 0; c < seen.size(); ++c) {
      if (seen[c]) with_class[c].push_back(sample);
    }
  }
  double total = 0.0;
  for (const auto& members : with_class) total += static_cast<double>(members.size());
  if (total == 0.0)
    return data_error("class-balanced sampling: no sample has a box of a detection class")
        .with_hint("use the random sampler for data without annotations");
  std::vector<uint32_t> out;
  for (size_t c = 0; c < with_class.size(); ++c) {
    const std::vector<uint32_t>& members = with_class[c];
    if (members.empty()) continue;
    // In this order: the product is cut to an integer, so its rounding counts.
    const double count = static_cast<double>(members.size());
    const double share = count / total;
    const double ratio = (1.0 / static_cast<double>(with_class.size())) / share;
    const uint64_t draws = static_cast<uint64_t>(count * ratio);
    RandomStream stream(seed, Purpose::kResample, epoch, c);
    for (uint64_t i = 0; i < draws; ++i) out.push_back(members[stream.below(members.size())]);
  }
  return out;
}

}  // namespace aerie::nuscenes
