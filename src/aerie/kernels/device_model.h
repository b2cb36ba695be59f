// What choices between kernels depend on beside shapes: facts of a GPU, and constants that were
// fitted on it. Choices take a model instead of asking the device, so that they can be printed and
// tested anywhere.
//
// Constants were measured on an H200. Other GPUs have them scaled: numbers of rows by SMs, bytes
// that should stay in L2 by its size, parameters by bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/kernels/gemm_model.h"

namespace aerie::kernels {

// Which kernel and tile GEMMs get is the business of GemmModel, whose constants are not scaled.
struct DeviceModel : GemmModel {
  std::string name = "h200";
  int compute_major = 9;      // 9: our wgmma and TMA kernels run
  double bandwidth = 4.8e12;  // of device memory, bytes per second
  size_t l2_bytes = size_t{50} << 20;
  bool measured = true;  // the constants below were; otherwise they are scaled

  // Up to so many rows, wgrad runs beside the pass (Overlap::kWgrad). NEST-L: 2 x 15 s (352 rows)
  // 4.64 to 4.37 ms, 8 x 15 s (1,408) 5.54 to 5.28 without the update. More rows gain as well, but
  // memory of their own becomes too much.
  int overlap_wgrad_rows = 1536;
  // The update overlaps the next step's forward pass up to so many rows: larger batches keep the
  // device busy alone, an update beside them takes what it saves.
  int overlap_update_rows = 4096;
  // A pass that is over before the update waits for it. Layers of this size are not, however few
  // the rows: their kernels take as long to start. Larger ones need so many rows.
  int64_t small_layer_parameters = 7'000'000;
  int overlap_update_min_rows = 2560;
  // One SM in so many makes wgrad beside the pass, and the update: fewer are not done before they
  // are waited for; with more, the pass slows down by what is gained.
  int wgrad_sm_share = 2, update_sm_share = 4;
  // Activation recomputation costs little while a feed-forward module's hidden tensor stays in L2.
  size_t recompute_bytes = size_t{16} << 20;
  // Attention's saved P of a layer, where backward is not fused. Forward and backward together: 128
  // values per head, 16 x 188 frames 84 to 75 us (64 x 188: 295 to 260), 2 x 188 with 64 values
  // 26.4 to 24.0. What leaves L2 gains little for its memory (68 x 375 frames, 160 MB: 521 to 512).
  // Fused: 16 x 188 frames, 8 heads of 64, 52.6 to 38.1 us (64 x 188: 169 to 140).
  size_t saved_p_bytes = size_t{48} << 20;
  // L2 prefetch of what the next kernels read: of more at a time, 9 MB of attention's saved P cost
  // the GEMM what they gained.
  size_t prefetch_bytes = size_t{8} << 20;
};

// The GPUs that have a name here; the first is the one that constants were measured on.
std::span<const DeviceModel> device_models();
// By that name; the error lists them.
Result<DeviceModel> find_device_model(std::string_view name);
// Of a GPU as its driver describes it; one that is not in the table is scaled by its SMs and L2.
DeviceModel device_model_of(std::string_view gpu_name, int compute_major, int sms, size_t l2_bytes);

}  // namespace aerie::kernels
