#include "aerie/data/nuscenes/synth/scene.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

constexpr int64_t kFirstScene_us = 1532402927000000;
constexpr double kSpeedMargin = 1.5;     // seconds of driving before and after the scene
constexpr double kRunUp = 75.0;          // metres of route behind the first position
constexpr double kSightRange = 75.0;     // metres
constexpr uint64_t kOffsets = 1u << 31;  // positions of the time stream beside those of Motion
constexpr uint64_t kRuns = 1u << 31;     // positions of the traffic stream beside the crowd's

double duration_s(int samples) {
  return static_cast<double>(samples * kKeyFrameStep_us) * 1e-6;
}

}  // namespace

std::string log_name(int log, int location) {
  char text[64];
  std::snprintf(text, sizeof text, "n%03d-2018-%02d-%02d-09-%02d-00%s", location == 3 ? 908 : 915,
                1 + log / 28 % 12, 1 + log % 28, log % 60, location == 3 ? "-0400" : "+0800");
  return text;
}

Scene::Scene(const SynthOptions& options, const DatasetPlan& plan, const Town& town, int number)
    : number_(number),
      quota_(plan.scenes[number]),
      start_us_(kFirstScene_us +
                number * static_cast<int64_t>((duration_s(quota_.samples) + 60.0) * 1e6)),
      rig_(make_rig(options.seed, static_cast<uint64_t>(number), options.image_width)),
      route_(town.net, options.seed, static_cast<uint64_t>(number),
             2 * kRunUp + 10.0 + kTopSpeed * (duration_s(quota_.samples) + 2 * kSpeedMargin)),
      motion_(route_, options.seed, static_cast<uint64_t>(number), -kSpeedMargin,
              duration_s(quota_.samples) + kSpeedMargin, kRunUp) {
  make_rows(options, plan);
  actors_ =
      make_traffic(town, route_, metres(sample_time(0)), metres(sample_time(quota_.samples - 1)),
                   options.seed, static_cast<uint64_t>(number), quota_.actors);
  sightings_.resize(actors_.size());
  if (quota_.annotations == 0) {
    find_sightings();
  } else {
    deal_sightings(options);
  }
}

int64_t Scene::sample_time(int sample) const {
  return lidar_times_[static_cast<size_t>(sample)];
}

void Scene::make_rows(const SynthOptions& options, const DatasetPlan& plan) {
  RandomStream random(options.seed, Purpose::kSynth, kTimeStream,
                      kOffsets + static_cast<uint64_t>(number_));
  const int samples = quota_.samples;
  // Times of the key frames by sensor. The cameras fire within 10 ms of each other, the lidar 25 to
  // 50 ms before or after them, radars anywhere near.
  std::vector<std::array<int64_t, kNumSensors>> keys(static_cast<size_t>(samples));
  for (int k = 0; k < samples; ++k) {
    const int64_t base = start_us_ + k * kKeyFrameStep_us;
    for (int sensor = 0; sensor < kNumSensors; ++sensor) {
      int64_t offset = random.randint(-5000, 5000);
      if (sensor == kLidarSensor)
        offset = random.randint(30000, 45000) * (random.below(2) == 0 ? 1 : -1);
      if (sensor > kLidarSensor) offset = random.randint(-35000, 35000);
      keys[k][sensor] = base + offset;
    }
    lidar_times_.push_back(keys[k][kLidarSensor]);
  }
  for (int sensor = 0; sensor < kNumSensors; ++sensor)
    for (int k = 0; k < samples; ++k) {
      const int64_t here = keys[k][sensor];
      const int64_t before = k > 0 ? keys[k - 1][sensor] : here - kKeyFrameStep_us;
      const bool extra = sensor == kLidarSensor && quota_.first_sample + k < plan.extra_sweeps;
      const int sweeps = plan.sweeps[sensor] + (extra ? 1 : 0);
      // Sweeps belong to the sample that follows them.
      for (int i = 0; i < sweeps; ++i)
        rows_.push_back({sensor, k, false, before + (here - before) * (i + 1) / (sweeps + 1)});
      rows_.push_back({sensor, k, true, here});
    }
}

void Scene::find_sightings() {
  for (size_t a = 0; a < actors_.size(); ++a)
    for (int k = 0; k < quota_.samples; ++k) {
      const int64_t time = sample_time(k);
      if (length(place(a, time).position - ego(time).position) < kSightRange)
        sightings_[a].push_back(k);
    }
}

// Runs of neighbouring samples, as many in all as the quota says.
void Scene::deal_sightings(const SynthOptions& options) {
  RandomStream random(options.seed, Purpose::kSynth, kTrafficStream,
                      kRuns + static_cast<uint64_t>(number_));
  const int count = static_cast<int>(actors_.size()), samples = quota_.samples;
  std::vector<int> runs(actors_.size());
  for (int a = 0; a < count; ++a)
    runs[a] = quota_.annotations / count + (a < quota_.annotations % count ? 1 : 0);
  for (int a = 0; a + 1 < count; a += 2) {
    const int room = std::min(runs[a] - 1, samples - runs[a + 1]);
    const int moved = static_cast<int>(random.randint(0, std::max(0, room)));
    runs[a] -= moved;
    runs[a + 1] += moved;
  }
  for (int a = 0; a < count; ++a) {
    const int first = static_cast<int>(random.randint(0, samples - runs[a]));
    for (int k = first; k < first + runs[a]; ++k) sightings_[a].push_back(k);
  }
}

std::string Scene::file_name(const DataRow& row) const {
  const std::string_view channel = kSensorNames[row.sensor];
  const char* extension = is_camera(row.sensor)        ? ".jpg"
                          : row.sensor == kLidarSensor ? ".pcd.bin"
                                                       : ".pcd";
  return str_cat(row.is_key_frame ? "samples/" : "sweeps/", channel, "/",
                 log_name(quota_.log, quota_.location), "__", channel, "__", row.timestamp_us,
                 extension);
}

}  // namespace aerie::nuscenes::synth
