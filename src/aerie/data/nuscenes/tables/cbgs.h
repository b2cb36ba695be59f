// Class-balanced sampling (CBGS): samples with rare classes come more often.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"

namespace aerie::nuscenes {

// The classes of nuScenes' detection task, in the order in which draws are made.
inline constexpr std::array<std::string_view, 10> kDetectionClasses = {
    "car",        "truck",   "construction_vehicle", "bus",         "trailer", "barrier",
    "motorcycle", "bicycle", "pedestrian",           "traffic_cone"};
// Number of the class that a category of the tables belongs to; -1: none.
int detection_class(std::string_view category);

// For each class the n_c samples of `samples` with a box of it that has a lidar or radar point;
// of them int(n_c * (1/10) / f_c) are drawn with replacement, f_c = n_c / sum of n. The result is
// the draws class after class, sample numbers of the index, about 4.4 times as many as samples.
// A pure function of its arguments: draws are counter-based. No box of any class is an error.
Result<std::vector<uint32_t>> cbgs_entries(const NuscenesIndex& index,
                                           std::span<const uint32_t> samples, uint64_t seed,
                                           uint32_t epoch = 0);

}  // namespace aerie::nuscenes
