// What the choices of GEMM kernels depend on beside their shape: a part of the DeviceModel
// (device_model.h) that kernels can include. The constants were fitted on an H200; times are
// microseconds.
#pragma once

namespace aerie::kernels {

// Time of a persistent GEMM by its schedule: start + start_m * M of a tile + wave for each wave,
// and for each k tile k_tile + k_tile_m * M or what reading its operands takes.
struct GemmScheduleCost {
  double start, start_m, wave, k_tile, k_tile_m;
};

struct GemmModel {
  int sms = 132;

  // The persistent GEMM (gemm/persistent_gemm.h): 1000 measurements, 376 to 23040 rows, models of
  // width 512 and 1024. Its least lies 1 % above the least measured.
  GemmScheduleCost cooperative = {1.81, -0.00068, 0.491, 0.0, 0.00315};
  GemmScheduleCost ping_pong = {1.01, 0.00327, 0.266, 0.0887, 0.00255};
  // A GPC (16 or 18 SMs) reads what its blocks read once; all of them together get so many bytes
  // per microsecond.
  double sms_per_gpc = 16.5, operand_bytes_per_us = 5.78e6;
  // Of k tiles: a partial last wave leaves more bandwidth to those in it.
  double filled_share = 0.31, whole_wave_share = 0.69;
  // Cooperative, one wave alone: all epilogues of tiles with more M than this come at the same
  // time, at the end.
  double one_wave_epilogue = 0.005;
  int one_wave_epilogue_m = 96;
  // Ping-pong pays from so many k tiles on: with fewer, warpgroups wait for epilogue stores.
  int min_ping_pong_k_tiles = 4;

  // Where cuBLASLt is expected to be faster: waves filled by fewer tenths than this, by K.
  int min_filled_tenths = 7, min_filled_tenths_long_k = 8, long_k = 512;
  // And with K-major weights: large K, for which its tiles are larger, and N of so many K with
  // small M, where its tiles happen to make one or two waves that are almost full.
  int cublas_k = 4096, cublas_k_per_n = 4, cublas_n_per_k = 4;
  int cublas_tile_m = 256, cublas_tiles_per_3_sms = 4;
  int cublas_waves = 2, cublas_filled_twentieths = 19;

  // dgrad with a fused dSiLU epilogue (gemm/dgrad_dsilu.h): a tile's main loop or another's
  // epilogue, whichever takes longer; at the end the last epilogue.
  double dsilu_start = 2.4, dsilu_start_m = 0.045;
  double dsilu_epilogue = 0.7, dsilu_epilogue_m = 0.029;
  double dsilu_k_tile = 0.12, dsilu_k_tile_m = 0.0026;
  // It pays above so many rows and up to this K, H200, K 512, N 2,048: M 11,264 78.5 to 56.9 us, M
  // 23,040 153 to 113. Smaller M stays in L2 between two calls; 2,816 with N 4,096 gains 3 %.
  int dsilu_min_rows = 4096, dsilu_max_k = 2048;
};

// Of a device with so many SMs.
inline GemmModel gemm_model(int sms) {
  GemmModel out;
  out.sms = sms;
  return out;
}

}  // namespace aerie::kernels
