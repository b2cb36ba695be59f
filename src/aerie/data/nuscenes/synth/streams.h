// Random streams of the generator: the epoch field of the Philox counter says what is drawn, the
// position which location, scene or row. Numbers are part of the reproducibility contract.
#pragma once

#include <cstdint>

namespace aerie::nuscenes::synth {

constexpr uint32_t kRoadStream = 101;     // position: location
constexpr uint32_t kFeatureStream = 102;  // walkways, crossings, parking; position: location
constexpr uint32_t kRouteStream = 103;    // position: scene
constexpr uint32_t kRigStream = 104;      // position: scene
constexpr uint32_t kTimeStream = 105;     // position: scene
constexpr uint32_t kTrafficStream = 106;  // position: scene
constexpr uint32_t kPictureStream = 107;  // exposure; position: row of sample_data
constexpr uint32_t kTextureStream = 108;  // position: location
constexpr uint32_t kTokenStream = 200;    // plus the table's number; position: row

}  // namespace aerie::nuscenes::synth
