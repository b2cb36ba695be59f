// A small model and batches for tests of the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/data/batch.h"
#include "aerie/models/bev/config/run_config.h"

namespace aerie::bev {

inline BevRunConfig tiny() {
  BevRunConfig run;
  BevConfig& c = run.model;
  c.image_height = 32;
  c.image_width = 48;
  c.cameras = 2;
  c.swin.embed_dims = 8;
  c.swin.depths = {1, 2, 1, 1};
  c.swin.num_heads = {1, 2, 2, 4};
  c.swin.mlp_ratio = 2;
  c.neck_channels = 12;
  c.context_channels = 5;
  c.dbound = {1, 9, 1};
  c.xbound = {-2, 10, 0.5};
  c.ybound = {-4, 4, 0.5};
  c.zbound = {-3, 3, 6};
  c.encode_width = 4;
  c.classes = {"drivable_area", "walkway"};
  run.optim.kind = config::OptimizerKind::kAdamW;
  run.optim.lr = 2e-3;
  run.optim.weight_decay = 0.01;
  run.trainer.gradient_clip_val = 35.0;
  run.aerie.seed = 7;
  return run;
}

// What a loader hands out, with memory of its own. `number` chooses the contents.
class TestBatch {
 public:
  TestBatch(const BevConfig& c, int64_t samples, uint64_t number)
      : TestBatch(c, samples, number, 0, 1) {}
  // Of a batch of `all` samples those that one of several ranks has: every world-th from `rank` on.
  TestBatch(const BevConfig& c, int64_t all, uint64_t number, int rank, int world) {
    const int64_t n = c.cameras;
    const int64_t samples = (all - rank + world - 1) / world;
    RandomStream random(number, Purpose::kTest, 0, 0);
    images_.resize(static_cast<size_t>(all * n * c.image_height * c.image_width * 3));
    for (uint8_t& value : images_) value = static_cast<uint8_t>(random.next_u32() >> 24);
    truth_.resize(static_cast<size_t>(all * c.num_classes() * c.map_height() * c.map_width()));
    // Half of the map, another half a class and sample.
    const auto cells = static_cast<size_t>(c.map_height() * c.map_width());
    for (size_t i = 0; i < truth_.size(); ++i)
      truth_[i] = (i % cells < cells / 2) == ((i / cells + number) % 2 == 0) ? 1 : 0;
    take(images_, all, rank, world);
    take(truth_, all, rank, world);
    const auto identity = [](size_t count) {
      std::vector<float> out(count * 16, 0.0f);
      for (size_t i = 0; i < count; ++i)
        for (size_t d = 0; d < 4; ++d) out[i * 16 + d * 5] = 1.0f;
      return out;
    };
    const auto cameras = static_cast<size_t>(samples * n);
    image_aug_ = identity(cameras);
    bev_aug_ = identity(static_cast<size_t>(samples));
    intrinsics_ = identity(cameras);
    frames_.assign(cameras * 16, 0.0f);
    for (size_t i = 0; i < cameras; ++i) {
      float* k = intrinsics_.data() + i * 16;
      k[0] = k[5] = 50.0f;
      k[2] = 0.5f * static_cast<float>(c.image_width);
      k[6] = 0.5f * static_cast<float>(c.image_height);
      float* f = frames_.data() + i * 16;  // looks along x
      f[2] = 1.0f;
      f[4] = f[9] = i % 2 == 0 ? -1.0f : 1.0f;
      f[15] = 1.0f;
    }
    const auto add = [&](std::string_view name, Dtype dtype, std::vector<int64_t> shape,
                         void* data) {
      data::HostArray array;
      array.name = name;
      array.dtype = dtype;
      array.dims = static_cast<int>(shape.size());
      std::copy(shape.begin(), shape.end(), array.shape.begin());
      array.data = data;
      batch_.mutable_arrays().push_back(array);
    };
    add("img", Dtype::kU8, {samples * n, c.image_height, c.image_width, 3}, images_.data());
    add("camera2lidar", Dtype::kF32, {samples, n, 4, 4}, frames_.data());
    add("intrin", Dtype::kF32, {samples, n, 4, 4}, intrinsics_.data());
    add("img_aug", Dtype::kF32, {samples, n, 4, 4}, image_aug_.data());
    add("bev_aug", Dtype::kF32, {samples, 4, 4}, bev_aug_.data());
    add("gt", Dtype::kU8, {samples, c.num_classes(), c.map_height(), c.map_width()}, truth_.data());
    batch_.mutable_samples().resize(static_cast<size_t>(samples));
    data::BatchPlace place;
    place.draws.first_item = static_cast<uint64_t>(rank);
    place.draws.item_stride = static_cast<uint64_t>(world);
    batch_.set_place(place);
  }
  TestBatch(const TestBatch&) = delete;
  data::ArrayBatch& get() { return batch_; }

 private:
  static void take(std::vector<uint8_t>& values, int64_t all, int rank, int world) {
    const size_t row = values.size() / static_cast<size_t>(all);
    std::vector<uint8_t> out;
    for (auto i = static_cast<size_t>(rank); i < static_cast<size_t>(all);
         i += static_cast<size_t>(world))
      out.insert(out.end(), values.begin() + static_cast<std::ptrdiff_t>(i * row),
                 values.begin() + static_cast<std::ptrdiff_t>((i + 1) * row));
    values = std::move(out);
  }

  std::vector<uint8_t> images_, truth_;
  std::vector<float> frames_, intrinsics_, image_aug_, bev_aug_;
  data::ArrayBatch batch_;
};

}  // namespace aerie::bev
