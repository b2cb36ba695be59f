// What a nuScenes data set consists of, and whether all of it can be read: `aerie data stats` and
// `aerie data validate` with --kind nuscenes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"

namespace aerie::nuscenes {

struct DataReport {
  struct Split {
    std::string name;
    uint32_t scenes = 0;          // of the tables
    uint32_t missing_scenes = 0;  // named by the list alone
    uint32_t samples = 0;
    bool chosen = false;  // the one of the data set
  };
  struct Location {
    uint32_t scenes = 0, samples = 0;
    std::string map;  // version of its map expansion, or what is wrong with it
  };
  struct MapClass {
    std::string name;
    double cells = 0.0;    // share of all cells
    double samples = 0.0;  // share of samples with at least one
  };
  struct Category {
    uint64_t boxes = 0;
    uint64_t samples = 0;
  };

  std::string root, version;
  uint32_t scenes = 0, samples = 0;
  uint64_t boxes = 0;
  FileReport files;
  std::vector<Split> splits;
  // Of the data set's split. num_without_files: samples that training leaves out, whether the data
  // set was opened with keep_missing or not.
  SplitSamples split;  // without its list of samples
  uint64_t split_samples = 0;
  uint64_t entries = 0;  // with what the sampler repeats
  std::map<std::string, Location> locations;
  std::map<std::string, Category> categories;
  std::vector<MapClass> classes;
  uint64_t drawn = 0;                             // samples that the shares are taken from
  std::map<std::string, uint64_t> picture_sizes;  // "1600x900", of the tables
  uint64_t probed = 0;                            // files that were looked at
  double mean_picture_bytes = 0.0;

  std::string to_json() const;
  std::string to_text() const;
};

struct DataReportOptions {
  uint64_t probes = 500;  // samples whose masks are drawn and whose files are measured; 0: none
  int num_threads = 1;
};
Result<DataReport> report_data(const NuscenesDataset& dataset, const DataReportOptions& options);

struct BrokenThing {
  std::string kind;   // missing, unreadable, geometry, map, mask
  std::string place;  // "scene-0061 sample 3f... CAM_FRONT: samples/...jpg"
  std::string reason;
};

struct DataCheckOptions {
  int num_threads = 1;
  bool quick = false;  // headers only, nothing is decoded
  std::function<void(uint64_t total)> on_start = {};
  std::function<void()> on_sample = {};  // any thread
  std::function<bool()> stop = {};       // true: end early with kCancelled
};

struct DataCheckReport {
  uint64_t samples = 0;
  uint64_t pictures = 0;  // read
  uint64_t bytes = 0;
  std::vector<BrokenThing> broken;    // in the order of the samples
  std::vector<BrokenThing> warnings;  // pictures of another size, records of maps that are left out
  std::string to_json() const;
};
// Reads every picture of the data set's split, draws every mask and looks at every record of its
// maps. The data set was opened with keep_missing.
Result<DataCheckReport> check_data(const NuscenesDataset& dataset, const DataCheckOptions& options);

}  // namespace aerie::nuscenes
