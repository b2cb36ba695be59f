// Plans of many shapes on an H200 beside those recorded in tests/data/step_plan/h200_choices.txt,
// when each choice still had a predicate of its own: what is chosen changes on purpose only, with
// the file.
#include "aerie/models/nest/step/step_plan.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/models/nest/step/packed_rows.h"
#include "aerie/models/nest/step/step_plan_text.h"

namespace aerie::kernels::step_plan_test {
namespace {

struct Model {
  const char* name;
  int width, heads, layers;
  int64_t parameters;
};
constexpr Model kModels[] = {
    {"quickstart", 192, 4, 8, 9'000'000},  {"S", 176, 4, 16, 16'000'000},
    {"M", 256, 4, 16, 32'000'000},         {"L", 512, 8, 17, 121'000'000},
    {"L-narrow", 512, 4, 17, 121'000'000}, {"XL", 1024, 8, 24, 622'000'000},
    {"XXL", 1408, 16, 42, 2'000'000'000}};
constexpr int kBatches[] = {1,  2,  3,  4,  5,  6,  7,  8,  10, 12, 14, 16,  18,  20,
                            22, 24, 28, 32, 40, 48, 56, 64, 68, 80, 96, 128, 192, 256};
constexpr int kSeconds[] = {1, 2, 4, 6, 8, 12, 15, 16, 20, 30, 40};

NestStepConfig config_of(const Model& m, Dtype dtype, bool training, int batch, int seconds) {
  NestStepConfig c;
  c.dtype = dtype;
  c.training = training;
  c.batch = batch;
  c.samples = seconds * 16000;
  c.frames = (seconds * 100 + 1 + 15) / 16 * 16;
  c.width = m.width;
  c.heads = m.heads;
  c.feed_forward = 4 * m.width;
  c.layers = m.layers;
  c.rows = shared_rows(batch * (c.frames / 8) * 9 / 10, batch * (c.frames / 8));
  return c;
}

// One line of the file: a letter for each batch.
std::string step_line(const Model& m, Dtype dtype, bool training, int seconds) {
  std::string overlap, recompute, save_p, update, attention;
  const DeviceModel device;
  for (const int batch : kBatches) {
    NestStepConfig c = config_of(m, dtype, training, batch, seconds);
    PlanLimits limits;
    limits.parameters = m.parameters;
    c.plan = make_step_plan(c, device, limits);
    const StepPlan plan = effective_plan(c.plan, training);
    overlap += plan.overlaps_wgrad() ? 'g' : plan.defers_reductions() ? 's' : '-';
    recompute += plan.recompute ? 'r' : '-';
    save_p += plan.save_p ? 'p' : '-';
    // The file has what an update would do, in evaluation as well.
    update += update_overlaps(m.parameters, m.layers, c.rows, device) ? 'u' : '-';
    EXPECT_EQ(plan.overlap_update, training && update.back() == 'u');
    const std::string name = attention_backward_name(c);
    const bool three = name.find("192") != std::string::npos;
    attention += !training || dtype == Dtype::kF32 ? '-'
                 : name == "fused"                 ? 'f'
                 : name.starts_with("saved-P")     ? (three ? 'S' : 's')
                                                   : (three ? 'R' : 'r');
  }
  return str_cat("step ", m.name, " ", dtype == Dtype::kF32 ? "f32" : "bf16", " ",
                 training ? "train" : "eval", " ", seconds, " s: overlap ", overlap, " recompute ",
                 recompute, " save_p ", save_p, " update ", update, " attention ", attention);
}

std::vector<int> row_counts() {
  std::vector<int> out;
  for (int rows = 16; rows < 1000; rows += 48) out.push_back(rows);
  for (int rows = 1008; rows < 6000; rows += 176) out.push_back(rows);
  for (int rows = 6016; rows < 26000; rows += 752) out.push_back(rows);
  return out;
}

// Tiles in the order of the file: small letters are cooperative, large ones ping-pong.
char tile_letter(const std::string& kernel) {
  constexpr int kRows[] = {64, 72, 80, 88, 96, 104, 112, 120, 128, 136, 144, 160, 176, 192};
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (kernel.starts_with(str_cat("sm90 128x", kRows[i], " ")))
      return static_cast<char>((kernel.ends_with("ping-pong") ? 'A' : 'a') + static_cast<int>(i));
  return '-';
}
char dsilu_letter(const std::string& kernel) {
  if (kernel.find("fused dSiLU") == std::string::npos) return '-';
  return kernel.starts_with("sm90 128x96 ") ? 'a' : kernel.starts_with("sm90 128x112 ") ? 'b' : 'c';
}

const GemmChoice& find(const std::vector<GemmChoice>& all, const std::string& name) {
  for (const GemmChoice& one : all)
    if (one.name == name) return one;
  ADD_FAILURE() << "no GEMM is called " << name;
  return all.front();
}

std::string gemm_lines(const Model& m, int sms) {
  DeviceModel device;
  device.sms = sms;
  struct Row {
    const char *file, *name;
  };
  std::string out;
  const auto choices = [&](int rows, bool recompute) {
    NestStepConfig c = config_of(m, Dtype::kBF16, true, 1, 40);
    c.rows = c.chosen = rows;
    c.plan.recompute = recompute;
    return gemm_choices(c, device);
  };
  for (const Row& row : {Row{"ff1", "feed_forward.first"}, Row{"ff2", "feed_forward.second"},
                         Row{"qkv", "attention.qkv"}, Row{"out", "attention.out"},
                         Row{"pointwise1", "conv.pointwise1"}, Row{"decoder", "decoder"}}) {
    std::string fprop, dgrad;
    for (const int rows : row_counts()) {
      const auto all = choices(rows, /*recompute=*/true);
      fprop += tile_letter(find(all, str_cat(row.name, " fprop")).kernel);
      dgrad += tile_letter(find(all, str_cat(row.name, " dgrad")).kernel);
    }
    out += str_cat("gemm ", m.name, " ", row.file, " ", sms, " SMs: fprop ", fprop, " dgrad ",
                   dgrad, "\n");
  }
  std::string dsilu;
  for (const int rows : row_counts())
    dsilu += dsilu_letter(find(choices(rows, false), "feed_forward.second dgrad").kernel);
  out += str_cat("dsilu ", m.name, " ", sms, " SMs: ", dsilu, "\n");
  out += str_cat("wgrad ", m.name, " ", sms, " SMs:");
  for (const Row& row : {Row{"ff1", "feed_forward.first"}, Row{"ff2", "feed_forward.second"},
                         Row{"qkv", "attention.qkv"}, Row{"out", "attention.out"},
                         Row{"pointwise1", "conv.pointwise1"}}) {
    const GemmChoice choice = find(choices(2816, true), str_cat(row.name, " wgrad"));
    out += str_cat(" ", row.file, " ",
                   choice.m % 128 != 0 || choice.n % 128 != 0 ? "unsupported"
                   : choice.kernel == "cuBLASLt"              ? "alone"
                                                              : "grouped");
  }
  return out + "\n";
}

TEST(StepPlanTest, ChoosesOnAnH200WhatWasRecorded) {
  std::string now;
  for (const Model& m : kModels)
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16})
      for (const bool training : {true, false})
        for (const int seconds : kSeconds) now += step_line(m, dtype, training, seconds) + "\n";
  for (const int sms : {132, 108})
    for (const Model& m : kModels) now += gemm_lines(m, sms);
  std::ifstream file(test_data("/step_plan/h200_choices.txt"));
  ASSERT_TRUE(file);
  std::stringstream recorded;
  recorded << file.rdbuf();
  std::istringstream ours(now);
  std::string want, got;
  int lines = 0;
  while (std::getline(recorded, want)) {
    ASSERT_TRUE(std::getline(ours, got)) << "no line for: " << want;
    EXPECT_EQ(got, want);
    ++lines;
  }
  EXPECT_FALSE(std::getline(ours, got)) << got;
  EXPECT_GT(lines, 400);
}

// float16 and bf16 are of one size: they choose alike.
TEST(StepPlanTest, HalfChoosesAsBf16Does) {
  for (const Model& m : kModels)
    for (const int batch : kBatches) {
      const NestStepConfig bf16 = config_of(m, Dtype::kBF16, true, batch, 15);
      NestStepConfig half = bf16;
      half.dtype = Dtype::kF16;
      const StepPlan a = make_step_plan(bf16, {}, {}), b = make_step_plan(half, {}, {});
      EXPECT_EQ(a.overlap, b.overlap);
      EXPECT_EQ(a.save_p, b.save_p);
      EXPECT_EQ(a.recompute, b.recompute);
    }
}

TEST(StepPlanTest, GivesUpMemoryUntilNothingIsLeft) {
  const NestStepConfig c = config_of(kModels[3], Dtype::kBF16, true, 2, 15);
  StepPlan plan = make_step_plan(c, {}, {});
  EXPECT_TRUE(plan.save_p);
  EXPECT_EQ(plan.overlap, Overlap::kWgrad);
  ASSERT_TRUE(give_up_memory(plan));
  EXPECT_FALSE(plan.save_p);
  EXPECT_EQ(plan.overlap, Overlap::kWgrad);
  ASSERT_TRUE(give_up_memory(plan));
  EXPECT_TRUE(plan.recompute);
  EXPECT_EQ(plan.overlap, Overlap::kNone);
  EXPECT_FALSE(give_up_memory(plan));
}

TEST(StepPlanTest, HasNothingToSpareWhereMemoryIsShort) {
  const NestStepConfig c = config_of(kModels[3], Dtype::kBF16, true, 64, 15);
  PlanLimits limits;
  limits.recompute = true;
  StepPlan plan = make_step_plan(c, {}, limits);
  EXPECT_TRUE(plan.recompute);
  EXPECT_FALSE(plan.save_p);
  EXPECT_EQ(plan.overlap, Overlap::kNone);
  limits = {};
  limits.part = true;
  plan = make_step_plan(c, {}, limits);
  EXPECT_FALSE(plan.recompute);  // 64 clips leave the cache, and a part decides as its shape does
  EXPECT_FALSE(plan.save_p);
  EXPECT_EQ(plan.overlap, Overlap::kNone);
}

// As measured: NEST-L gains up to batches that fill the device; twice as wide, the update is longer
// than a pass over two clips.
TEST(StepPlanTest, UpdatesOverlapWhereThatWasMeasuredToGain) {
  const int64_t large = 112'964'608, layers = 17;
  for (const int64_t rows : {330, 680, 1350, 2750})
    EXPECT_TRUE(update_overlaps(large, layers, rows, {}));
  EXPECT_FALSE(update_overlaps(large, layers, 11'000, {}));
  EXPECT_FALSE(update_overlaps(620'000'000, 24, 330, {}));
  EXPECT_TRUE(update_overlaps(620'000'000, 24, 2750, {}));
}

TEST(DeviceModelTest, KnowsGpusByTheirDriversNames) {
  EXPECT_EQ(device_model_of("NVIDIA H200", 9, 132, size_t{60} << 20).name, "h200");
  EXPECT_TRUE(device_model_of("NVIDIA H200", 9, 132, 0).measured);
  EXPECT_EQ(device_model_of("NVIDIA H100 80GB HBM3", 9, 132, 0).name, "h100");
  EXPECT_EQ(device_model_of("NVIDIA H100 PCIe", 9, 114, 0).name, "h100-pcie");
  EXPECT_EQ(device_model_of("NVIDIA A100-SXM4-80GB", 8, 108, 0).name, "a100");
  EXPECT_EQ(device_model_of("NVIDIA L4", 8, 58, 0).name, "l4");
  // A slice of one, and one that nobody has heard of.
  const DeviceModel slice = device_model_of("NVIDIA H200 MIG 1g.18gb", 9, 16, size_t{6} << 20);
  EXPECT_FALSE(slice.measured);
  EXPECT_EQ(slice.sms, 16);
  EXPECT_EQ(slice.overlap_wgrad_rows, 176);
  EXPECT_LT(slice.recompute_bytes, size_t{2} << 20);
  const DeviceModel other = device_model_of("NVIDIA L40", 8, 142, size_t{96} << 20);
  EXPECT_EQ(other.name, "NVIDIA L40");
  EXPECT_GT(other.recompute_bytes, DeviceModel{}.recompute_bytes);
}

// H100 and H200 have the same SMs and L2: what depends on these is the same.
TEST(DeviceModelTest, ScalesByWhatDiffers) {
  const DeviceModel h100 = find_device_model("h100").value();
  EXPECT_EQ(h100.overlap_wgrad_rows, DeviceModel{}.overlap_wgrad_rows);
  EXPECT_EQ(h100.saved_p_bytes, DeviceModel{}.saved_p_bytes);
  EXPECT_LT(h100.small_layer_parameters, DeviceModel{}.small_layer_parameters);
  EXPECT_FALSE(h100.measured);
  const auto unknown = find_device_model("h300");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().to_string().find("h200, h100"), std::string::npos);
}

// What only one kind of GPU has kernels for is not promised for others.
TEST(StepPlanTest, NamesKernelsThatTheDeviceHas) {
  NestStepConfig c = config_of(kModels[3], Dtype::kBF16, true, 16, 15);
  const DeviceModel a100 = find_device_model("a100").value();
  c.plan = make_step_plan(c, a100, {});
  for (const GemmChoice& one : gemm_choices(c, a100)) EXPECT_EQ(one.kernel, "cuBLASLt") << one.name;
  c.plan = make_step_plan(c, {}, {});
  const std::string text = plan_text(c, {});
  EXPECT_NE(text.find("attention backward: fused"), std::string::npos) << text;
  EXPECT_NE(text.find("sm90 grouped wgrad"), std::string::npos) << text;
  c.training = false;
  EXPECT_EQ(plan_text(c, {}).find("wgrad "), std::string::npos);
}

}  // namespace
}  // namespace aerie::kernels::step_plan_test
