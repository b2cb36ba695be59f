#include "aerie/models/nest/step/step_plan_text.h"

#include "aerie/base/format_text.h"
#include "aerie/base/strings.h"
#include "aerie/kernels/gemm/dgrad_dsilu.h"
#include "aerie/kernels/gemm/persistent_gemm.h"
#include "aerie/models/nest/step/packed_rows.h"

namespace aerie::kernels {
namespace {

struct Weight {
  const char* name;
  int n, k;  // outputs, inputs
};

bool has_sm90_kernels(const NestStepConfig& c, const DeviceModel& device) {
  return device.compute_major == 9 && c.dtype != Dtype::kF32;
}

std::string tile_text(int rows, bool ping_pong) {
  return str_cat("sm90 ", kGemmTileN, "x", rows, ping_pong ? " ping-pong" : " cooperative");
}

std::string gemm_kernel(const NestStepConfig& c, const DeviceModel& device, int m, int n, int k,
                        bool transpose_b) {
  if (!has_sm90_kernels(c, device)) return "cuBLASLt";
  const GemmTile tile = persistent_gemm_tile(m, n, k, device);
  return persistent_gemm_pays(m, n, k, transpose_b, tile, device)
             ? tile_text(tile.m, tile.ping_pong)
             : "cuBLASLt";
}

std::string wgrad_kernel(const NestStepConfig& c, const DeviceModel& device, const Weight& w) {
  if (!has_sm90_kernels(c, device) || w.n % 128 != 0 || w.k % 128 != 0) return "cuBLASLt";
  const bool fills = (w.n / 128) * (w.k / 128) >= device.sms;
  return fills && !c.plan.overlaps_wgrad() ? "cuBLASLt" : "sm90 grouped wgrad";
}

std::string mib_text(size_t bytes) {
  return str_cat(bytes >> 20, " MiB");
}

}  // namespace

std::string attention_backward_name(const NestStepConfig& c) {
  if (c.dtype == Dtype::kF32) return "plain";
  AttentionBackward b;
  b.forward = attention_of(c);
  b.sms = c.plan.sms;
  if (c.plan.save_p && attention_fused(b)) return "fused";
  return str_cat(c.plan.save_p ? "saved-P" : "recompute",
                 attention_query_tiles(b) > 1 ? ", 192 queries a block" : "");
}

std::vector<GemmChoice> gemm_choices(const NestStepConfig& c, const DeviceModel& device) {
  const int rows = step_rows(c), room = c.chosen > 0 ? c.chosen : rows;
  const Weight layer[] = {{"feed_forward.first", c.feed_forward, c.width},
                          {"feed_forward.second", c.width, c.feed_forward},
                          {"attention.qkv", 3 * c.width, c.width},
                          {"attention.out", c.width, c.width},
                          {"conv.pointwise1", 2 * c.width, c.width},
                          {"conv.pointwise2", c.width, c.width}};
  const Weight decoder = {"decoder", c.classes * c.books, c.width};
  std::vector<GemmChoice> out;
  const auto fprop = [&](const Weight& w, int m) {
    out.push_back({str_cat(w.name, " fprop"), m, w.n, w.k,
                   gemm_kernel(c, device, m, w.n, w.k, /*transpose_b=*/true)});
  };
  const auto dgrad = [&](const Weight& w, int m, bool fuses) {
    std::string kernel = gemm_kernel(c, device, m, w.k, w.n, /*transpose_b=*/false);
    const int fused = fuses && has_sm90_kernels(c, device) && !c.plan.recompute
                          ? dgrad_dsilu_tile(m, w.k, w.n, device)
                          : 0;
    if (fused > 0) kernel = tile_text(fused, true) + ", fused dSiLU epilogue";
    out.push_back({str_cat(w.name, " dgrad"), m, w.k, w.n, kernel});
  };
  const int frames = strided(strided(c.frames)), bins = strided(strided(c.bins));
  const int quarter = c.batch * frames * bins, eighth = c.batch * (c.frames / 8) * strided(bins);
  const Weight conv3 = {"subsampling.conv3", c.sub_channels, c.sub_channels};
  const Weight conv6 = {"subsampling.conv6", c.sub_channels, c.sub_channels};
  const Weight front = {"subsampling.out", c.width, strided(bins) * c.sub_channels};
  const int padded = c.batch * (c.frames / 8);
  fprop(conv3, quarter);
  fprop(conv6, eighth);
  fprop(front, padded);
  for (const Weight& w : layer) fprop(w, rows);
  fprop(decoder, room);
  if (!c.training) return out;
  dgrad(decoder, room, false);
  out.push_back({"decoder wgrad", decoder.n, decoder.k, room, "cuBLASLt"});
  for (const Weight& w : layer) dgrad(w, rows, &w == &layer[1]);
  for (const Weight& w : layer)
    out.push_back({str_cat(w.name, " wgrad"), w.n, w.k, rows, wgrad_kernel(c, device, w)});
  dgrad(front, padded, false);
  dgrad(conv6, eighth, false);
  dgrad(conv3, quarter, false);
  return out;
}

int64_t count_parameters(const NestStepConfig& c, bool use_bias) {
  const int64_t width = c.width, hidden = c.feed_forward, channels = c.sub_channels;
  const int64_t bins = strided(strided(strided(c.bins)));
  const auto linear = [](int64_t in, int64_t out) { return in * out + out; };
  const auto encoder = [&](int64_t in, int64_t out) { return in * out + (use_bias ? out : 0); };
  const int64_t front =
      3 * linear(9, channels) + 2 * linear(channels, channels) + linear(bins * channels, width);
  const int64_t feed_forward = encoder(width, hidden) + encoder(hidden, width);
  const int64_t attention = 4 * encoder(width, width) + width * width + 2 * width;
  const int64_t conv =
      encoder(width, 2 * width) + encoder(c.conv_kernel, width) + 2 * width + encoder(width, width);
  const int64_t norms = 5 * 2 * width;
  return front + c.layers * (2 * feed_forward + attention + conv + norms) +
         linear(width, int64_t{c.classes} * c.books);
}

std::string plan_text(const NestStepConfig& c, const DeviceModel& device) {
  const StepPlan plan = effective_plan(c.plan, c.training);
  std::string out = str_cat(
      "device model ", device.name, ": ", device.sms, " SMs, ", device.bandwidth * 1e-12,
      " TB/s, L2 ", mib_text(device.l2_bytes),
      device.measured ? "" : "; constants scaled from those of an H200, not measured", "\n");
  out += str_cat("shape: ", c.batch, " clips, ", step_rows(c), " rows of ",
                 c.batch * (c.frames / 8), " padded, d ", c.width, ", ", c.layers, " layers, ",
                 c.heads, " heads, ", dtype_name(c.dtype), "\n");
  out += str_cat(
      "overlap: ", overlap_name(plan.overlap),
      plan.overlaps_wgrad() ? str_cat(" (one SM in ", plan.wgrad_sm_share, ")") : std::string(),
      "\n");
  out += str_cat("update: ",
                 plan.overlap_update
                     ? str_cat("overlaps the next forward pass, one SM in ", plan.update_sm_share)
                     : std::string("by itself"),
                 "\n");
  out += str_cat("activation recomputation: ", plan.recompute ? "norms and SiLU" : "none", "\n");
  out += str_cat("attention backward: ", attention_backward_name(c), "\n");
  out += str_cat("L2 prefetch: up to ", mib_text(plan.prefetch_bytes), " a tensor\n");
  for (const GemmChoice& one : gemm_choices(c, device)) {
    out += format_text("  %-26s M %6d  N %5d  K %5d  %s\n", one.name.c_str(), one.m, one.n, one.k,
                       one.kernel.c_str());
  }
  return out;
}

}  // namespace aerie::kernels
