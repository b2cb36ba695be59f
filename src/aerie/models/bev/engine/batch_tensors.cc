#include "aerie/models/bev/engine/batch_tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "aerie/base/strings.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::bev {
namespace {

Result<at::Tensor> array_of(const data::Batch& batch, std::string_view name, Dtype dtype,
                            int dims) {
  const data::HostArray* array = batch.find(name);
  if (array == nullptr) return internal_error(str_cat("the batch has no array ", name));
  if (array->dtype != dtype || array->dims != dims)
    return internal_error(
        str_cat("array ", name, " has ", array->dims, " axes of ", dtype_name(array->dtype)));
  const at::IntArrayRef sizes(array->shape.data(), static_cast<size_t>(dims));
  return at::from_blob(array->data, sizes, dtype == Dtype::kU8 ? at::kByte : at::kFloat);
}

}  // namespace

Result<BevBatch> to_bev_batch(const data::Batch& batch, const nn::RandomKey& random,
                              at::Device device) {
  try {
    BevBatch out;
    out.random = random;
    AERIE_ASSIGN_OR_RETURN(const at::Tensor pictures, array_of(batch, "img", Dtype::kU8, 4));
    AERIE_ASSIGN_OR_RETURN(out.matrices.camera_to_lidar,
                           array_of(batch, "camera2lidar", Dtype::kF32, 4));
    AERIE_ASSIGN_OR_RETURN(out.matrices.intrinsics, array_of(batch, "intrin", Dtype::kF32, 4));
    AERIE_ASSIGN_OR_RETURN(out.matrices.image_augmentation,
                           array_of(batch, "img_aug", Dtype::kF32, 4));
    AERIE_ASSIGN_OR_RETURN(out.matrices.bev_augmentation,
                           array_of(batch, "bev_aug", Dtype::kF32, 3));
    AERIE_ASSIGN_OR_RETURN(const at::Tensor truth, array_of(batch, "gt", Dtype::kU8, 4));
    const int64_t samples = out.matrices.camera_to_lidar.size(0);
    const int64_t cameras = out.matrices.camera_to_lidar.size(1);
    if (pictures.size(0) != samples * cameras || truth.size(0) != samples ||
        samples != batch.num_samples())
      return internal_error(str_cat("a batch of ", batch.num_samples(), " samples has ",
                                    pictures.size(0), " pictures and matrices for ", samples, " x ",
                                    cameras));
    out.images = pictures.to(device)
                     .view({samples, cameras, pictures.size(1), pictures.size(2), 3})
                     .permute({0, 1, 4, 2, 3});
    out.truth = truth.to(device);
    return out;
  } catch (const std::exception& error) {
    return train::torch_status(error).with_context("bringing a batch to the device");
  }
}

BevBatch batch_samples(const BevBatch& batch, int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  const auto rows = [&](const at::Tensor& t) { return t.narrow(0, begin, count); };
  BevBatch out = batch;
  out.images = rows(batch.images);
  out.matrices.camera_to_lidar = rows(batch.matrices.camera_to_lidar);
  out.matrices.intrinsics = rows(batch.matrices.intrinsics);
  out.matrices.image_augmentation = rows(batch.matrices.image_augmentation);
  out.matrices.bev_augmentation = rows(batch.matrices.bev_augmentation);
  out.truth = rows(batch.truth);
  out.random = batch.random.from(begin);
  out.rays = out.path_factors = at::Tensor();
  return out;
}

}  // namespace aerie::bev
