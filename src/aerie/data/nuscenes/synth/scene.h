// One scene: the drive, the times at which each sensor fired, and who was seen when.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/data/nuscenes/synth/dataset_plan.h"
#include "aerie/data/nuscenes/synth/rig.h"
#include "aerie/data/nuscenes/synth/route.h"
#include "aerie/data/nuscenes/synth/town.h"
#include "aerie/data/nuscenes/synth/traffic.h"

namespace aerie::nuscenes::synth {

// A row of sample_data.
struct DataRow {
  int sensor = 0;
  int sample = 0;
  bool is_key_frame = true;
  int64_t timestamp_us = 0;
};

class Scene final {
 public:
  Scene(const SynthOptions& options, const DatasetPlan& plan, const Town& town, int number);

  int number() const { return number_; }
  const SceneQuota& quota() const { return quota_; }
  const Rig& rig() const { return rig_; }
  const std::vector<DataRow>& rows() const { return rows_; }  // sensor by sensor, in time
  const std::vector<Actor>& actors() const { return actors_; }
  // Samples in which actor `a` is annotated, in time; may be empty.
  const std::vector<int>& sightings(size_t a) const { return sightings_[a]; }

  int64_t sample_time(int sample) const;  // that of its lidar
  double speed(int64_t timestamp_us) const { return motion_.speed(seconds(timestamp_us)); }
  Pose2 ego(int64_t timestamp_us) const { return route_.at(metres(timestamp_us)); }
  Pose2 place(size_t a, int64_t timestamp_us) const {
    return place_of(actors_[a], route_, metres(timestamp_us));
  }
  std::string file_name(const DataRow& row) const;  // relative to the root

 private:
  double seconds(int64_t timestamp_us) const {
    return static_cast<double>(timestamp_us - start_us_) * 1e-6;
  }
  double metres(int64_t timestamp_us) const { return motion_.metres(seconds(timestamp_us)); }
  void make_rows(const SynthOptions& options, const DatasetPlan& plan);
  void find_sightings();
  void deal_sightings(const SynthOptions& options);

  const int number_;
  const SceneQuota& quota_;
  const int64_t start_us_;
  Rig rig_;
  Route route_;
  Motion motion_;
  std::vector<DataRow> rows_;
  std::vector<int64_t> lidar_times_;
  std::vector<Actor> actors_;
  std::vector<std::vector<int>> sightings_;
};

constexpr int64_t kKeyFrameStep_us = 500000;
std::string log_name(int log, int location);

}  // namespace aerie::nuscenes::synth
