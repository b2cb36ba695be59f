// Writes a data set in nuScenes' own format: tables, map expansion, semantic masks, camera pictures
// and small point files of an invented town. It loads in the reader here and, unmodified, in the
// nuscenes-devkit.
//
//   OUT/v1.0-mini/*.json                   the 13 tables
//   OUT/maps/HASH.png                      drivable surface and walkways, 10 pixels a metre
//   OUT/maps/expansion/LOCATION.json       map expansion 1.3 of all four locations
//   OUT/samples/CAM_*/*.jpg                key frames; also LIDAR_TOP/*.pcd.bin and RADAR_*/*.pcd
//   OUT/sweeps/LIDAR_TOP/*.pcd.bin         one point file between two key frames
//   OUT/synth.json                         the options, so that a second call knows its own work
//
// The town: flat ground at z = 0; a road graph without mirror or quarter-turn symmetry; 2 to 4
// lanes of 3.5 m, walkways, crossings, stop lines, parking, dividers, traffic islands (holes). The
// ego drives along it at 0 to 12 m/s. LIDAR_TOP is stamped 25 to 50 ms off the cameras and has an
// ego pose of its own. Every file is a pure function of the options: the number of threads does not
// matter.
#pragma once

#include <cstdint>
#include <string>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::nuscenes {

enum class SynthSize {
  kTiny,        // 10 scenes of 4 samples, a town of 0.4 km
  kSmall,       // 10 scenes of 40 samples, a town of 0.7 km
  kTablesOnly,  // rows and map records as many as v1.0-trainval has, no sensor files
};

struct SynthOptions {
  std::string out;
  std::string version = "";  // empty: v1.0-mini, for tables-only v1.0-trainval
  uint64_t seed = 1;
  SynthSize size = SynthSize::kTiny;
  int scenes = 0;                              // 0: all scenes of the version
  int samples_per_scene = 0;                   // 0: as the size says
  int image_width = 1600, image_height = 900;  // intrinsics follow; the shape must stay 16:9
  bool pictures = true;                        // false: tables name pictures that are not there
  int num_workers = 0;                         // 0: one per CPU
  bool force = false;                          // replace a synthetic data set in `out`
  bool quiet = false;                          // no progress line

  Status validate() const;
  std::string version_name() const;
};

Result<SynthSize> parse_synth_size(const std::string& name);
const char* synth_size_name(SynthSize size);

struct SynthReport {
  uint64_t scenes = 0, samples = 0, sample_data = 0, annotations = 0, instances = 0;
  uint64_t pictures = 0;
  uint64_t bytes = 0;
  double elapsed_s = 0.0;
  bool reused = false;  // the same data set was there already
};

// Refuses a folder that holds anything but such a data set, and one made with other options unless
// `force`. Shows progress on a terminal. Not to be called twice for one folder at a time.
Result<SynthReport> make_nuscenes(const SynthOptions& options, Env& env = Env::real());

}  // namespace aerie::nuscenes
