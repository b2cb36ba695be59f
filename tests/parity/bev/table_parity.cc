// Metrics and matrices: what needs neither geometry nor a model.
#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "aerie/data/nuscenes/camera/image_augmentation.h"
#include "aerie/data/nuscenes/map/bev_augmentation.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/geometry/matrix.h"
#include "aerie/models/bev/metrics/map_iou.h"
#include "aerie/models/bev/weights/swin_names.h"
#include "hash_uniform.h"
#include "parity.h"

namespace aerie::bev::parity {
namespace {

nuscenes::Pose pose_of(const double* row) {
  return {{row[0], row[1], row[2], row[3]}, {row[4], row[5], row[6]}};
}

// Rows of T_ec, T_gc, T_el, T_gl.
void check_poses(const Fixture& fixture, Checks& checks) {
  const std::vector<double> poses = fixture.numbers("poses");
  std::vector<double> got;
  for (size_t at = 0; at + 28 <= poses.size(); at += 28) {
    const auto matrix = nuscenes::camera_to_reference(
        pose_of(&poses[at]), pose_of(&poses[at + 7]), pose_of(&poses[at + 14]),
        pose_of(&poses[at + 21]), nuscenes::ReferenceFrame::kLidar, /*motion_compensation=*/true);
    if (!matrix.ok()) throw std::runtime_error(matrix.status().to_string());
    got.insert(got.end(), matrix->m.begin(), matrix->m.end());
  }
  checks.near("matrices camera2lidar", "camera2lidar", got, fixture.numbers("camera2lidar"), 1e-8);
}

// Rows of scale, angle, shift x, y, z, y mirrored, x mirrored.
void check_bev_augmentation(const Fixture& fixture, Checks& checks) {
  const std::vector<double> rows = fixture.numbers("bev_aug_params");
  std::vector<double> got;
  for (size_t at = 0; at + 7 <= rows.size(); at += 7) {
    nuscenes::BevAugmentation augmentation;
    augmentation.scale = rows[at];
    augmentation.rotation = rows[at + 1];
    augmentation.shift = {rows[at + 2], rows[at + 3], rows[at + 4]};
    augmentation.flip_y = rows[at + 5] != 0.0;
    augmentation.flip_x = rows[at + 6] != 0.0;
    const Mat4 matrix = augmentation.matrix();
    got.insert(got.end(), matrix.m.begin(), matrix.m.end());
  }
  checks.near("matrices bev_aug", "bev_aug", got, fixture.numbers("bev_aug"), 1e-9);
}

// Rows of scale, crop x, crop y, mirrored, degrees, height, width.
void check_image_augmentation(const Fixture& fixture, Checks& checks) {
  const std::vector<double> rows = fixture.numbers("image_aug_params");
  std::vector<double> got;
  for (size_t at = 0; at + 7 <= rows.size(); at += 7) {
    nuscenes::ImageAugmentation augmentation;
    augmentation.resize = rows[at];
    augmentation.crop_x = static_cast<int>(rows[at + 1]);
    augmentation.crop_y = static_cast<int>(rows[at + 2]);
    augmentation.flip = rows[at + 3] != 0.0;
    augmentation.rotate_deg = rows[at + 4];
    augmentation.final_height = static_cast<int>(rows[at + 5]);
    augmentation.final_width = static_cast<int>(rows[at + 6]);
    const Mat4 matrix = augmentation.matrix();
    got.insert(got.end(), matrix.m.begin(), matrix.m.end());
  }
  checks.near("matrices image_aug", "image_aug", got, fixture.numbers("image_aug"), 1e-9);
}

// "names and seeds: a 0; b.weight 1; a 2^40+9", a row each.
std::vector<std::pair<std::string, uint64_t>> names_and_seeds(const std::string& text) {
  std::vector<std::pair<std::string, uint64_t>> out;
  std::istringstream rows(text.substr(text.find(':') + 1));
  for (std::string row; std::getline(rows, row, ';');) {
    std::istringstream words(row);
    std::string name, seed;
    if (!(words >> name >> seed))
      throw std::runtime_error("'" + row + "' is not a name and a seed");
    const size_t power = seed.find("2^"), plus = seed.find('+');
    uint64_t value = 0;
    if (power == 0) value = uint64_t{1} << std::stoul(seed.substr(2));
    if (power != 0) value = std::stoull(seed);
    if (plus != std::string::npos) value += std::stoull(seed.substr(plus + 1));
    out.emplace_back(name, value);
  }
  return out;
}

void check_hash(const Fixture& fixture, Checks& checks) {
  const int64_t columns = fixture.shape("hash_uniform").at(1);
  std::vector<double> got;
  for (const auto& [name, seed] : names_and_seeds(fixture.text("hash_uniform")))
    for (float value : hash_uniform(name, columns, seed)) got.push_back(value);
  checks.near("matrices hash_uniform", "hash_uniform", got, fixture.numbers("hash_uniform"), 0.0);
}

}  // namespace

void check_metrics(const Fixture& fixture, Checks& checks) {
  const std::vector<std::string> classes = string_list(fixture.text("classes"));
  const std::vector<int64_t> shape = fixture.shape("prob");
  if (shape.size() != 4 || shape[1] != static_cast<int64_t>(classes.size()))
    throw std::runtime_error("'prob' is not [B,K,x,y] of the named classes");
  MapIou metric(shape[1]);
  metric.update(fixture.floats("prob"), fixture.bytes("gt"), shape[0]);
  std::vector<int64_t> counts(3 * classes.size() * kMapThresholds.size());
  for (size_t k = 0; k < classes.size(); ++k)
    for (size_t t = 0; t < kMapThresholds.size(); ++t) {
      const MapIou::Count& count = metric.counts()[k][t];
      const int64_t values[3] = {count.true_positive, count.false_positive, count.false_negative};
      for (size_t i = 0; i < 3; ++i)
        counts[(i * classes.size() + k) * kMapThresholds.size() + t] = values[i];
    }
  checks.equal("metrics tp_fp_fn", "tp_fp_fn", counts, fixture.integers("tp_fp_fn"));
  const NamedValues values = metric.values(classes);
  for (const auto& [name, want] : number_table(fixture.text("metrics"))) {
    const auto found =
        std::find_if(values.begin(), values.end(),
                     [&wanted = name](const auto& value) { return value.first == wanted; });
    if (found == values.end()) {
      checks.fail("metrics values", "there is no " + name);
      continue;
    }
    // The mean may be added up in another order.
    checks.near("metrics values", name, {&found->second, 1}, {&want, 1}, 1e-15);
  }
  if (!fixture.has("label")) return;
  const std::vector<int64_t> prediction = fixture.integers("pred");
  SingleLabelIou single(static_cast<int64_t>(fixture.shape("intersect").at(0)));
  single.update(std::vector<int32_t>(prediction.begin(), prediction.end()), fixture.bytes("label"));
  checks.equal("metrics single label", "intersect", single.intersect(),
               fixture.integers("intersect"));
  checks.equal("metrics single label", "union", single.united(), fixture.integers("union"));
  checks.equal("metrics single label", "area_label", single.labelled(),
               fixture.integers("area_label"));
}

void check_matrices(const Fixture& fixture, Checks& checks) {
  if (fixture.has("poses")) check_poses(fixture, checks);
  if (fixture.has("bev_aug_params")) check_bev_augmentation(fixture, checks);
  if (fixture.has("image_aug_params")) check_image_augmentation(fixture, checks);
  if (fixture.has("merge_official")) {
    const std::vector<float> got =
        merged_to_mmdet(fixture.floats("merge_official"), fixture.shape("merge_official").back());
    checks.near("matrices merge", "merge_mmdet", std::vector<double>(got.begin(), got.end()),
                fixture.numbers("merge_mmdet"), 0.0);
  }
  if (fixture.has("hash_uniform")) check_hash(fixture, checks);
}

}  // namespace aerie::bev::parity
