// Batches of camera pictures for a loader. B samples, N cameras, K masks; pictures are height x
// width of the node's image.size:
//   img           u8   [B*N, height, width, 3]   RGB, as they were: normalising is the model's
//   camera2lidar  f32  [B, N, 4, 4]   from the camera to the reference frame (lidar or ego)
//   intrin        f32  [B, N, 4, 4]   of the original picture
//   img_aug       f32  [B, N, 4, 4]   pixels of the original to pixels of `img`
//   bev_aug       f32  [B, 4, 4]      augmentation of the reference frame, mirrors included
//   gt            u8   [B, K, nx, ny]
//   tokens        u64  [B, 2]         of the samples, upper half first
// The loader's items are samples: with eight threads and more each decodes its own, and the oldest
// batch is finished first.
#pragma once

#include <memory>

#include "aerie/base/retry.h"
#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/data/batch_assembler.h"
#include "aerie/data/loader.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"

namespace aerie::nuscenes {

class NuscenesAssembler final : public data::BatchAssembler {
 public:
  NuscenesAssembler(std::shared_ptr<const NuscenesDataset> dataset, uint64_t seed,
                    const RetryPolicy& retry = {});

  Result<data::BatchSizes> measure(const data::Sampler& sampler,
                                   const data::EpochPlan& first_epoch) override;
  std::unique_ptr<data::BatchSlot> make_slot() override;
  std::unique_ptr<data::AssemblerThread> make_thread() override;
  data::LoaderWords words() const override;
  std::string size_keys() const override { return "batch_size, image.size"; }

 private:
  const std::shared_ptr<const NuscenesDataset> dataset_;
  const uint64_t seed_;
  const RetryPolicy retry_;
};

// The keys of a node and of `aerie:` as the data engine's core takes them.
data::SamplingConfig sampling_config(const DataConfig& config);
data::LoaderConfig loader_config(const DataConfig& config, const config::AerieConfig& aerie);

// A loader by the keys of the data set's node; options.seed is also that of the draws.
Result<std::unique_ptr<data::Loader>> make_nuscenes_loader(
    std::shared_ptr<const NuscenesDataset> dataset, const config::AerieConfig& aerie,
    const data::LoaderOptions& options, const RetryPolicy& retry = {});

}  // namespace aerie::nuscenes
