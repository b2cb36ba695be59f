// Draws what a camera sees of a town.
#pragma once

#include <cstdint>

#include "aerie/data/nuscenes/synth/ground_map.h"
#include "aerie/data/nuscenes/synth/scene.h"
#include "aerie/image/image.h"

namespace aerie::nuscenes::synth {

// Pixel (i, j) covers [i, i + 1) x [j, j + 1) of the intrinsic's plane; its colour is the mean of
// four rays. Each ray meets the nearest box or the ground at z = 0.
void render_picture(const SynthOptions& options, const Scene& scene, const DataRow& row,
                    const GroundMap& ground, image::Image& out);

}  // namespace aerie::nuscenes::synth
