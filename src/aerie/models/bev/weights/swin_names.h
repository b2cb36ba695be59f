// Weights of a Swin transformer under the names that others gave them, and how they become ours
// (mmdet's, below the backbone: stages.0.blocks.1.attn.w_msa.qkv.weight).
//
//   mmdet                 stages.S.blocks.B.attn.w_msa.*, ffn.layers.*, stages.S.downsample.*
//   official, old timm    layers.S.blocks.B.attn.*, mlp.fc1/fc2, layers.S.downsample.*
//   timm since 0.9        the same, but layers.{S+1}.downsample.*
//   torchvision           features.{2S+1}.B.*, mlp.0/3, features.{2S+2}.{norm,reduction}.*
//
// The last three join 2x2 neighbours as blocks of C channels, (0,0), (1,0), (0,1), (1,1) by row and
// column; mmdet puts the neighbours of a channel side by side (4*c + 2*row + column). Norms behind
// the stages exist in mmdet alone; the others' last norm and classifier are left out. All of it is
// free of torch. Names may stand below module., backbone. or encoders.camera.backbone.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/tensor_archive.h"
#include "aerie/base/status.h"

namespace aerie::bev {

enum class SwinDialect { kMmdet, kOfficial, kTimm, kTorchvision };
const char* dialect_name(SwinDialect dialect);  // "mmdet", ...

struct SwinTensor {
  std::string name;  // ours
  const archive::TensorInfo* source = nullptr;
  bool merged = false;  // its last axis is 4C wide and in the other order
  bool table = false;   // of relative positions: may be resized
};

struct SwinMapping {
  SwinDialect dialect = SwinDialect::kMmdet;
  std::vector<SwinTensor> tensors;
  std::vector<std::string> unused;  // names as they stand in the file
};

// Which tensor of the archive is which. A data error where nothing looks like a Swin, or two
// tensors are the same one.
Result<SwinMapping> map_swin_names(const archive::TensorArchive& archive);

// Values of one of them in our order, for a parameter of this shape. A table of another window is
// resized bicubically, as mmdet does; every other difference in shape is an error.
Result<std::vector<float>> read_swin_tensor(const archive::TensorArchive& archive,
                                            const SwinTensor& tensor,
                                            const std::vector<int64_t>& shape);

// A tensor of any floating-point type as float32.
Result<std::vector<float>> read_floats(const archive::TensorArchive& archive,
                                       const archive::TensorInfo& info);

// Columns of rows of `width` = 4C values, from blocks to neighbours side by side.
std::vector<float> merged_to_mmdet(const std::vector<float>& values, int64_t width);

// (2a-1)^2 rows of `heads` to (2b-1)^2, as torch's bicubic interpolation (a = -0.75, corners not
// aligned).
std::vector<float> resized_table(const std::vector<float>& table, int64_t side, int64_t heads,
                                 int64_t new_side);

}  // namespace aerie::bev
