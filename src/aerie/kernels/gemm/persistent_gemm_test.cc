#include "aerie/kernels/gemm/persistent_gemm.h"

#include <algorithm>

#include "aerie/kernels/emulation/emulation.h"
#include "aerie/kernels/emulation/sm90.h"
#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::persistent_gemm_test {
namespace {

using testing::Backend;
using testing::random_values;

constexpr GemmModel kDevice;
constexpr int kProcessors = kDevice.sms;

int waves(int m, int n, const GemmTile& tile) {
  const int tiles = (n + 127) / 128 * ((m + tile.m - 1) / tile.m);
  return (tiles + kProcessors - 1) / kProcessors;
}

TEST(PersistentGemmTest, TheTileIsTheCheapest) {
  for (const int m : {1, 64, 376, 2753, 3008, 11008, 23040})
    for (const int n : {8, 512, 1536, 2048, 4096})
      for (const int k : {8, 512, 2048}) {
        const GemmTile best = persistent_gemm_tile(m, n, k, kDevice);
        EXPECT_NE(std::find(std::begin(kGemmTileM), std::end(kGemmTileM), best.m),
                  std::end(kGemmTileM));
        for (const int tile_m : kGemmTileM) {
          EXPECT_LE(persistent_gemm_cost(m, n, k, best, kDevice),
                    persistent_gemm_cost(m, n, k, {tile_m, false}, kDevice));
        }
        EXPECT_TRUE(!best.ping_pong || (best.m <= kMaxPingPongM && waves(m, n, best) > 1));
      }
}

// One wave where that is possible, with the smallest tile for it.
TEST(PersistentGemmTest, FillsTheDevice) {
  for (const int m : {2560, 2752, 2816, 3008}) {
    const GemmTile tile = persistent_gemm_tile(m, 512, 2048, kDevice);
    EXPECT_EQ(waves(m, 512, tile), 1) << m;
    EXPECT_GT(waves(m, 512, {tile.m - 8, false}), 1) << m;
    EXPECT_FALSE(tile.ping_pong) << m;
  }
  EXPECT_EQ(persistent_gemm_tile(3008, 512, 2048, kDevice).m, 96);
  EXPECT_EQ(persistent_gemm_tile(2752, 512, 2048, kDevice).m, 88);
  // Large tiles would all leave at the end.
  EXPECT_EQ(persistent_gemm_tile(2816, 1024, 512, kDevice).m, 88);
  EXPECT_EQ(persistent_gemm_tile(3008, 1024, 4096, kDevice).m, 192);
  // More than one tile each: ping-pong.
  EXPECT_TRUE(persistent_gemm_tile(11008, 1024, 1024, kDevice).ping_pong);
  EXPECT_TRUE(persistent_gemm_tile(11008, 1024, 256, kDevice).ping_pong);
  EXPECT_FALSE(persistent_gemm_tile(11008, 1024, 192, kDevice).ping_pong);
}

TEST(PersistentGemmTest, FewTilesAndLongSumsStayWithCublas) {
  const auto pays = [](int m, int n, int k, bool k_major) {
    return persistent_gemm_pays(m, n, k, k_major, persistent_gemm_tile(m, n, k, kDevice), kDevice);
  };
  for (const bool k_major : {false, true}) {
    for (const int k : {512, 1024, 2048}) {
      EXPECT_TRUE(pays(3008, 512, k, k_major)) << k;
      EXPECT_FALSE(pays(376, 512, k, k_major)) << k;
      EXPECT_FALSE(pays(1, 512, k, k_major)) << k;
    }
    EXPECT_TRUE(pays(3008, 2048, 512, k_major));
    EXPECT_TRUE(pays(2752, 1536, 512, k_major));
    EXPECT_TRUE(pays(11008, 2048, 512, k_major));
    EXPECT_EQ(pays(11008, 512, 2048, k_major), !k_major);
    EXPECT_EQ(pays(2816, 2048, 512, k_major), !k_major);
    EXPECT_EQ(pays(2752, 4096, 1024, k_major), !k_major);
    EXPECT_EQ(pays(2752, 1024, 4096, k_major), !k_major);
  }
}

struct Case {
  Dtype dtype;
  int m, n, k;
  bool transpose_b, bias;
};

struct Outcome {
  int code = kOk;
  std::vector<float> c;
};

// Rows of A, W and C lie further apart than they are long; what lies between must stay.
class Operands {
 public:
  Operands(Backend& backend, const Case& c) : backend_(backend) {
    const auto size = [](int rows, int stride) {
      return static_cast<size_t>(rows) * static_cast<size_t>(stride);
    };
    g_.dtype = g_.out_dtype = c.dtype;
    g_.m = c.m;
    g_.n = c.n;
    g_.k = c.k;
    g_.transpose_b = c.transpose_b;
    g_.lda = c.k + 8;
    g_.ldb = (c.transpose_b ? c.k : c.n) + 16;
    g_.ldc = c.n + 8;
    g_.a = backend.upload_as(c.dtype, random_values(size(c.m, g_.lda), 1));
    g_.b = backend.upload_as(c.dtype, random_values(size(c.transpose_b ? c.n : c.k, g_.ldb), 2));
    bytes_.assign(size(c.m, g_.ldc) * dtype_size(c.dtype), 0x3c);  // 0.01 or 1.06
    g_.c = backend.allocate(bytes_.size());
    if (c.bias) g_.bias = backend.upload_as(c.dtype, random_values(static_cast<size_t>(c.n), 4));
    g_.workspace_bytes = 1 << 20;
    g_.workspace = backend.allocate(g_.workspace_bytes);
  }
  Outcome multiply(GemmTile tile) {
    backend_.write(g_.c, bytes_.data(), bytes_.size());
    g_.tile = tile;
    Outcome out;
    out.code = backend_.kernels().gemm(g_, nullptr);
    out.c = backend_.download_as(g_.dtype, g_.c, bytes_.size() / dtype_size(g_.dtype));
    return out;
  }

 private:
  Backend& backend_;
  Gemm g_;
  std::vector<unsigned char> bytes_;
};

Outcome run(Backend& b, const Case& c, GemmTile tile) {
  return Operands(b, c).multiply(tile);
}

std::vector<GemmTile> all_tiles() {
  std::vector<GemmTile> out;
  for (const int rows : kGemmTileM)
    for (const bool ping_pong : {false, true})
      if (!ping_pong || rows <= kMaxPingPongM) out.push_back({rows, ping_pong});
  return out;
}

std::vector<Case> cases(Dtype dtype) {
  return {Case{dtype, 1, 512, 64, true, true},    Case{dtype, 7, 200, 72, false, false},
          Case{dtype, 65, 136, 200, true, true},  Case{dtype, 65, 136, 200, false, true},
          Case{dtype, 401, 8, 8, true, false},    Case{dtype, 401, 72, 40, false, true},
          Case{dtype, 401, 136, 264, true, true}, Case{dtype, 401, 264, 136, false, false}};
}

// The kernels' source on the CPU: ragged rows and outputs, k of less than a stage and of more than
// all of them, several tiles for each block, both schedules.
TEST(PersistentGemmTest, EmulatedTilesEqualTheReference) {
  testing::for_each_order([](Backend& backend) {
    int number = 0;
    for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16})
      for (const Case& c : cases(dtype)) {
        const std::vector<float> expected = run(*testing::reference_backend(), c, {}).c;
        Operands operands(backend, c);
        // A few tiles for each case; all of them over the cases.
        const std::vector<GemmTile> tiles = all_tiles();
        for (size_t i = static_cast<size_t>(number++ % 4); i < tiles.size(); i += 4) {
          const Outcome a = operands.multiply(tiles[i]);
          ASSERT_EQ(a.code, kOk);
          testing::expect_close(a.c, expected, testing::tolerance(dtype), 0,
                                std::to_string(tiles[i].m) + (tiles[i].ping_pong ? " turns" : "") +
                                    ", k " + std::to_string(c.k));
        }
      }
  });
}

// That test sees what it should: one wait, arrival or fence of the main loop or the epilogue goes
// wrong, and the program stops or the results are wrong.
void multiply_with(emulation::Fault fault, uint64_t number) {
  const Case c = {Dtype::kBF16, 401, 136, 392, true, true};
  const auto backend = testing::emulated_backend();
  const std::vector<float> expected = run(*testing::reference_backend(), c, {}).c;
  emulation::set_order(emulation::Order::kReverse);
  emulation::plant_fault(fault, number);
  const Outcome a = run(*backend, c, {104, true});
  for (size_t i = 0; i < expected.size(); ++i)
    if (!(std::abs(a.c[i] - expected[i]) <= 0.25f)) emulation::stop("wrong results");
}
TEST(PersistentGemmDeathTest, PlantedFaultsAreFound) {
  using emulation::Fault;
  multiply_with(Fault::kNone, 0);
  emulation::set_order(emulation::Order::kForward);
  for (const uint64_t number : {150, 300, 1000, 1600, 2200})
    EXPECT_DEATH(multiply_with(Fault::kOtherParity, number), "kernel emulation") << number;
  for (const uint64_t number : {0, 1, 7, 20, 41})
    EXPECT_DEATH(multiply_with(Fault::kNoArrival, number), "kernel emulation") << number;
  for (const uint64_t number : {0, 100, 200, 500})
    EXPECT_DEATH(multiply_with(Fault::kNoFence, number), "fence_proxy_async") << number;
}

TEST(PersistentGemmGpuTest, EveryTileEqualsTheReference) {
  std::string reason;
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16})
    for (const Case& c : cases(dtype)) {
      const std::vector<float> expected = run(*testing::reference_backend(), c, {}).c;
      const auto backend = testing::cuda_backend(&reason);
      if (backend == nullptr) GTEST_SKIP() << reason;
      Operands operands(*backend, c);
      for (const GemmTile& tile : all_tiles()) {
        const Outcome a = operands.multiply(tile);
        if (a.code == kUnsupported) GTEST_SKIP() << "not compute capability 9.0";
        ASSERT_EQ(a.code, kOk);
        testing::expect_close(a.c, expected, testing::tolerance(dtype), 0, "c");
      }
    }
}

// Sizes of models, where an SM has many tiles: against cuBLASLt, and bit for bit against
// itself.
TEST(PersistentGemmGpuTest, ManyTilesEqualCublas) {
  std::string reason;
  for (const Case& c : {Case{Dtype::kBF16, 2753, 1536, 512, true, true},
                        Case{Dtype::kF16, 2753, 512, 1536, false, false}}) {
    const auto backend = testing::cuda_backend(&reason);
    if (backend == nullptr) GTEST_SKIP() << reason;
    Operands operands(*backend, c);
    const Outcome expected = operands.multiply({-1, false});
    ASSERT_EQ(expected.code, kOk);
    testing::expect_close(operands.multiply({}).c, expected.c, testing::tolerance(c.dtype), 0, "c");
    for (const GemmTile& tile : all_tiles()) {
      const Outcome a = operands.multiply(tile);
      if (a.code == kUnsupported) GTEST_SKIP() << "not compute capability 9.0";
      ASSERT_EQ(a.code, kOk);
      testing::expect_close(a.c, expected.c, testing::tolerance(c.dtype), 0, "c");
      if (tile.m % 64 == 0) {
        EXPECT_EQ(operands.multiply(tile).c, a.c);
      }
    }
  }
}

// And against the reference, as chosen.
TEST(PersistentGemmGpuTest, ModelSizesEqualTheReference) {
  std::string reason;
  for (const Case& c : {Case{Dtype::kBF16, 65, 2048, 512, true, false},
                        Case{Dtype::kF16, 7, 512, 2048, false, false},
                        Case{Dtype::kBF16, 2753, 72, 136, true, true},
                        Case{Dtype::kF16, 1, 1536, 512, true, true}}) {
    const auto backend = testing::cuda_backend(&reason);
    if (backend == nullptr) GTEST_SKIP() << reason;
    const GemmTile tile = persistent_gemm_tile(c.m, c.n, c.k, kDevice);
    const Outcome a = run(*backend, c, tile);
    if (a.code == kUnsupported) GTEST_SKIP() << "not compute capability 9.0";
    ASSERT_EQ(a.code, kOk);
    testing::expect_close(a.c, run(*testing::reference_backend(), c, {}).c,
                          testing::tolerance(c.dtype), 0, "c");
  }
}

// What these kernels do not do is refused when a tile is named, and goes to cuBLASLt otherwise.
TEST(PersistentGemmGpuTest, RefusesWhatItDoesNotCover) {
  std::string reason;
  const auto backend = testing::cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  const Case floats = {Dtype::kF32, 64, 128, 64, true, false};
  EXPECT_EQ(run(*backend, floats, {64, false}).code, kUnsupported);
  EXPECT_EQ(run(*backend, floats, {}).code, kOk);
  EXPECT_EQ(run(*backend, {Dtype::kBF16, 64, 128, 64, true, false}, {63, false}).code,
            kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels::persistent_gemm_test
