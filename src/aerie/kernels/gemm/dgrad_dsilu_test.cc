#include "aerie/kernels/gemm/dgrad_dsilu.h"

#include <algorithm>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::dgrad_dsilu_test {
namespace {

using testing::Backend;
using testing::random_values;

constexpr GemmModel kDevice;
constexpr int kProcessors = kDevice.sms;

struct Case {
  Dtype dtype;
  int batch, frames, channels, width;
  double p = 0.1;
  bool bias = true;
  testing::Packing packing = {};
};
const Case kCases[] = {
    {Dtype::kBF16, 1, 1, 8, 8, 0.0, false},
    {Dtype::kBF16, 2, 13, 200, 72, 0.1},
    {Dtype::kF16, 3, 29, 264, 136, 0.5},
    {Dtype::kF16, 5, 31, 384, 64, 0.0},
    {Dtype::kBF16, 3, 150, 128, 200, 0.1, true, {{150, 1, 77}}},
    {Dtype::kF16, 3, 70, 96, 64, 0.3, false, {{5, 70, 1}}},
};

struct Outcome {
  int code = kOk;
  std::vector<float> grad, grad_bias;
};

enum class Way { kTogether, kApart };

// Operands of both ways, in memory of a back end.
class Module {
 public:
  Module(Backend& backend, const Case& c) : b_(backend), c_(c) {
    const size_t width = static_cast<size_t>(c.width), channels = static_cast<size_t>(c.channels);
    const size_t rows = c.packing.num_rows(c.batch, c.frames);
    count_ = rows * channels;
    Gemm& g = both.gemm;
    g.dtype = g.out_dtype = c.dtype;
    g.m = static_cast<int>(rows);
    g.n = c.channels;
    g.k = c.width;
    g.lda = c.width;
    g.ldb = g.ldc = c.channels;
    g.a = b_.upload_as(c.dtype, random_values(rows * width, 4));
    g.b = b_.upload_as(c.dtype, random_values(channels * width, 5, 0.5f));
    g.c = b_.upload_as(c.dtype, std::vector<float>(count_, 77.0f));
    g.workspace_bytes = 1 << 20;
    g.workspace = b_.allocate(g.workspace_bytes);
    SiluBackward& s = both.silu;
    s.dtype = c.dtype;
    s.batch = c.batch;
    s.frames = c.frames;
    s.channels = c.channels;
    s.layout = c.packing.upload(b_);
    s.x = b_.upload_as(c.dtype, random_values(count_, 1, 4.0f));
    if (c.bias) s.bias = b_.upload(random_values(channels, 3));
    s.grad_out = s.grad_x = g.c;
    s.dropout =
        dropout_at(b_.upload(std::vector<RandomState>{testing::random_state(6, 78)}), 16, c.p);
    s.keep = decisions();
    s.accumulate = c.p > 0.2;
    s.partial = b_.scratch<float>(dgrad_dsilu_scratch(g.m, c.channels));
  }
  Outcome run(Way way, int tile_rows) {
    const size_t channels = static_cast<size_t>(c_.channels);
    both.gemm.tile = {tile_rows, false};
    both.silu.grad_bias = c_.bias ? b_.upload(random_values(channels, 6)) : nullptr;
    const KernelTable& k = b_.kernels();
    Outcome o;
    o.code = way == Way::kTogether
                 ? k.silu_product_backward(both, nullptr)
                 : k.gemm(both.gemm, nullptr) | k.silu_backward(both.silu, nullptr);
    if (o.code != kOk) return o;
    o.grad = b_.download_as(c_.dtype, both.gemm.c, count_);
    if (c_.bias) o.grad_bias = b_.download(both.silu.grad_bias, channels);
    return o;
  }

  DgradDsilu both;

 private:
  // Those of forward.
  const uint8_t* decisions() {
    SiluForward f;
    f.dtype = c_.dtype;
    f.batch = c_.batch;
    f.frames = c_.frames;
    f.channels = c_.channels;
    f.layout = both.silu.layout;
    f.x = both.silu.x;
    f.dropout = both.silu.dropout;
    f.keep = b_.upload(std::vector<uint8_t>(count_ / 8));
    f.out = b_.upload_as(c_.dtype, std::vector<float>(count_));
    EXPECT_EQ(b_.kernels().silu_forward(f, nullptr), kOk);
    return f.keep;
  }

  Backend& b_;
  const Case& c_;
  size_t count_ = 0;
};

TEST(DgradDsiluTest, TileIsTheCheapest) {
  for (const int rows : {1, 352, 2816, 4097, 11264, 23040})
    for (const int k : {64, 512, 1024, 2048}) {
      const int best = dgrad_dsilu_tile(rows, 4 * k, k, kDevice);
      const auto tiles = [&](int n) { return (4 * k + 127) / 128 * ((rows + n - 1) / n); };
      EXPECT_EQ(best > 0, rows > 4096 && tiles(96) > 2 * kProcessors);
      if (best == 0) continue;
      EXPECT_GE(best, kMinDsiluTileM);
      for (const int n : kDsiluTileM) {
        if (tiles(n) > 2 * kProcessors) {
          EXPECT_LE(dgrad_dsilu_cost(rows, 4 * k, k, best, kDevice),
                    dgrad_dsilu_cost(rows, 4 * k, k, n, kDevice));
        }
      }
    }
  EXPECT_EQ(dgrad_dsilu_tile(11264, 2048, 512, kDevice), 128);
  EXPECT_EQ(dgrad_dsilu_tile(23040, 2048, 512, kDevice), 128);
  EXPECT_EQ(dgrad_dsilu_tile(23040, 16384, 4096, kDevice), 0);
}

TEST(DgradDsiluTest, ReferenceIsOneAfterTheOther) {
  const auto backend = testing::reference_backend();
  for (const Case& c : kCases) {
    const Outcome a = Module(*backend, c).run(Way::kTogether, 0);
    const Outcome e = Module(*backend, c).run(Way::kApart, 0);
    EXPECT_EQ(a.grad, e.grad);
    EXPECT_EQ(a.grad_bias, e.grad_bias);
  }
}

// The kernels' source on the CPU: to the bit what the product by a kernel of our own and
// silu_backward give.
TEST(DgradDsiluTest, EmulatedTilesEqualOneAfterTheOther) {
  testing::for_each_order([](Backend& backend) {
    for (const Case& c : kCases) {
      SCOPED_TRACE(c.channels);
      const Outcome e = Module(backend, c).run(Way::kApart, 64);
      ASSERT_EQ(e.code, kOk);
      for (const int rows : kDsiluTileM) {
        SCOPED_TRACE(rows);
        const Outcome a = Module(backend, c).run(Way::kTogether, rows);
        ASSERT_EQ(a.code, kOk);
        EXPECT_EQ(a.grad, e.grad);
        testing::expect_close(a.grad_bias, e.grad_bias, 1e-5, 0, "grad_bias");
      }
    }
  });
}

// Every tile: to the bit what the product by a kernel of our own and silu_backward give, and close
// to the reference.
TEST(DgradDsiluGpuTest, EveryTileEqualsOneAfterTheOther) {
  std::string reason;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.channels);
    const auto backend = testing::cuda_backend(&reason);
    if (backend == nullptr) GTEST_SKIP() << reason;
    const Outcome reference = Module(*testing::reference_backend(), c).run(Way::kApart, 0);
    const Outcome e = Module(*backend, c).run(Way::kApart, 64);
    if (e.code == kUnsupported) GTEST_SKIP() << "not compute capability 9.0";
    for (const int rows : kDsiluTileM) {
      SCOPED_TRACE(rows);
      const Outcome a = Module(*backend, c).run(Way::kTogether, rows);
      ASSERT_EQ(a.code, kOk);
      EXPECT_EQ(a.grad, e.grad);
      testing::expect_close(a.grad_bias, e.grad_bias, 1e-5, 0, "grad_bias");
      const double close = testing::tolerance(c.dtype);
      testing::expect_close(a.grad, reference.grad, 2 * close, 0, "grad");
      testing::expect_close(a.grad_bias, reference.grad_bias, close, 0, "grad_bias");
    }
  }
}

// Many tiles for a multiprocessor, and the same again.
TEST(DgradDsiluGpuTest, ManyTilesEqualOneAfterTheOther) {
  std::string reason;
  for (const Case& c : {Case{Dtype::kBF16, 24, 188, 2048, 512}, {Dtype::kF16, 9, 500, 1032, 64}}) {
    const auto backend = testing::cuda_backend(&reason);
    if (backend == nullptr) GTEST_SKIP() << reason;
    Module module(*backend, c);
    const Outcome e = module.run(Way::kApart, 64);
    if (e.code == kUnsupported) GTEST_SKIP() << "not compute capability 9.0";
    for (const int rows : {0, 96, 112, 128}) {
      SCOPED_TRACE(rows);
      const Outcome a = module.run(Way::kTogether, rows);
      ASSERT_EQ(a.code, kOk);
      EXPECT_EQ(a.grad, e.grad);
      testing::expect_close(a.grad_bias, e.grad_bias, 1e-4, 0, "grad_bias");
      const Outcome same = module.run(Way::kTogether, rows);
      EXPECT_EQ(same.grad, a.grad);
      EXPECT_EQ(same.grad_bias, a.grad_bias);
    }
  }
}

TEST(DgradDsiluGpuTest, RefusesWhatItDoesNotCover) {
  std::string reason;
  const auto backend = testing::cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  const Case c{Dtype::kBF16, 2, 40, 128, 64};
  Module module(*backend, c);
  if (module.run(Way::kTogether, 128).code == kUnsupported)
    GTEST_SKIP() << "not compute capability 9.0";
  EXPECT_EQ(module.run(Way::kTogether, 0).code, kUnsupported);  // too few rows
  EXPECT_EQ(module.run(Way::kTogether, 63).code, kUnsupported);
  SiluBackward& silu = module.both.silu;
  silu.keep = nullptr;  // decisions are not drawn again
  EXPECT_EQ(module.run(Way::kTogether, 128).code, kUnsupported);
  silu.dropout = {};
  EXPECT_EQ(module.run(Way::kTogether, 128).code, kOk);
  silu.out = silu.grad_x;
  EXPECT_EQ(module.run(Way::kTogether, 128).code, kUnsupported);
  const Case floats{Dtype::kF32, 2, 40, 128, 64};
  EXPECT_EQ(Module(*backend, floats).run(Way::kTogether, 128).code, kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels::dgrad_dsilu_test
