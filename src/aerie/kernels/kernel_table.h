// All kernels of one back end as function pointers: how code outside the CUDA module calls them
// (device::GpuModule::kernels()), and how a test runs the same check on every back end.
#pragma once

#include "aerie/kernels/activation/activation.h"
#include "aerie/kernels/adamw/adamw.h"
#include "aerie/kernels/adamw/saved_state.h"
#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/conv/batch_norm_sums.h"
#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/draws/draws.h"
#include "aerie/kernels/features/log_mel.h"
#include "aerie/kernels/gemm/dgrad_dsilu.h"
#include "aerie/kernels/gemm/gemm.h"
#include "aerie/kernels/gemm/grouped_wgrad.h"
#include "aerie/kernels/layout/layout.h"
#include "aerie/kernels/loss/cross_entropy.h"
#include "aerie/kernels/masking/block_mask.h"
#include "aerie/kernels/mix/mix_rows.h"
#include "aerie/kernels/norm/layer_norm.h"
#include "aerie/kernels/quantizer/quantize.h"
#include "aerie/kernels/results/record_loss.h"
#include "aerie/kernels/subsampling/subsampling.h"
#include "aerie/kernels/sums/partial_sums.h"

// X(name, arguments)
#define AERIE_KERNELS(X)                                      \
  X(adamw_decide, AdamwStep)                                  \
  X(adamw_update, AdamwUpdate)                                \
  X(layer_norm_forward, LayerNormForward)                     \
  X(layer_norm_backward, LayerNormBackward)                   \
  X(silu_forward, SiluForward)                                \
  X(silu_backward, SiluBackward)                              \
  X(gated_conv, GatedConv)                                    \
  X(gated_conv_backward, GatedConvBackward)                   \
  X(batch_norm_forward, BatchNormForward)                     \
  X(batch_norm_reduce, BatchNormReduce)                       \
  X(batch_norm_sums, BatchNormSums)                           \
  X(batch_norm_from_sums, BatchNormFromSums)                  \
  X(batch_norm_gradient_sums, BatchNormGradientSums)          \
  X(batch_norm_gradient_from_sums, BatchNormGradientFromSums) \
  X(block_mask, BlockMask)                                    \
  X(select_rows, SelectRows)                                  \
  X(gather_rows, GatherRows)                                  \
  X(cross_entropy, CrossEntropy)                              \
  X(quantize, Quantize)                                       \
  X(log_mel, LogMel)                                          \
  X(normalize_features, NormalizeFeatures)                    \
  X(subsample_first, SubsampleFirst)                          \
  X(subsample_first_backward, SubsampleFirstBackward)         \
  X(subsample_next, SubsampleNext)                            \
  X(subsample_next_backward, SubsampleNextBackward)           \
  X(relu, Relu)                                               \
  X(attention, Attention)                                     \
  X(attention_backward, AttentionBackward)                    \
  X(attention_positions, AttentionBackward)                   \
  X(mix_rows, MixRows)                                        \
  X(record_loss, RecordLoss)                                  \
  X(gemm, Gemm)                                               \
  X(weight_gradients, GroupedWgrad)                           \
  X(silu_product_backward, DgradDsilu)                        \
  X(add_partials, PartialSums)                                \
  X(bias_gradient, BiasGradient)                              \
  X(swap_inner, SwapInner)                                    \
  X(repack_rows, RepackRows)                                  \
  X(dropout_draws, DropoutDraws)                              \
  X(normal_draws, NormalDraws)                                \
  X(uniform_draws, UniformDraws)                              \
  X(save_state, SavedState)                                   \
  X(restore_if_skipped, SavedState)

namespace aerie::kernels {

struct KernelTable {
#define AERIE_KERNEL_FIELD(name, Args) int (*name)(const Args& args, void* stream);
  AERIE_KERNELS(AERIE_KERNEL_FIELD)
#undef AERIE_KERNEL_FIELD
};

#define AERIE_KERNEL_REFERENCE(name, Args) &reference::name,
inline constexpr KernelTable kReferenceKernels = {AERIE_KERNELS(AERIE_KERNEL_REFERENCE)};
#undef AERIE_KERNEL_REFERENCE

}  // namespace aerie::kernels
