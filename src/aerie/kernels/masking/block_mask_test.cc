#include "aerie/kernels/masking/block_mask.h"

#include <numeric>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::block_mask_test {
namespace {

using testing::Backend;

struct Outcome {
  std::vector<uint8_t> mask, selected;
  std::vector<int32_t> rows, packed_rows, slots;
  int32_t count = 0;
  std::vector<float> gathered, scattered;
};

Outcome run(Backend& b, BlockMask m, const std::vector<int32_t>& lengths, int capacity) {
  const size_t items = lengths.size(), frames = static_cast<size_t>(m.frames);
  const size_t tokens = items * frames / static_cast<size_t>(m.combine);
  m.batch = static_cast<int>(items);
  m.lengths = b.upload(lengths);
  m.state = b.upload(std::vector<RandomState>{testing::random_state(3, 1000)});
  m.mask = b.scratch<uint8_t>(items * frames);
  m.selected = b.scratch<uint8_t>(tokens);
  EXPECT_EQ(b.kernels().block_mask(m, nullptr), kOk);
  SelectRows s;
  s.batch = m.batch;
  s.frames = m.frames / m.combine;
  s.capacity = capacity;
  s.selected = m.selected;
  s.rows = b.scratch<int32_t>(static_cast<size_t>(capacity));
  s.packed_rows = b.scratch<int32_t>(static_cast<size_t>(capacity));
  s.slots = b.scratch<int32_t>(tokens);
  s.count = b.scratch<int32_t>(1);
  EXPECT_EQ(b.kernels().select_rows(s, nullptr), kOk);
  GatherRows g;
  g.dtype = Dtype::kBF16;
  g.count = capacity;
  g.channels = 24;
  g.rows = s.rows;
  g.x = b.upload_as(g.dtype, testing::random_values(tokens * 24, 1, 1.0f, g.dtype));
  g.out = b.upload_as(g.dtype, std::vector<float>(static_cast<size_t>(capacity) * 24, 5.0f));
  EXPECT_EQ(b.kernels().gather_rows(g, nullptr), kOk);
  GatherRows back = g;
  back.count = static_cast<int>(tokens);
  back.rows = s.slots;
  back.x = g.out;
  back.out = b.upload_as(g.dtype, std::vector<float>(tokens * 24, 5.0f));
  EXPECT_EQ(b.kernels().gather_rows(back, nullptr), kOk);
  return {b.download(m.mask, items * frames),
          b.download(m.selected, tokens),
          b.download(s.rows, static_cast<size_t>(capacity)),
          b.download(s.packed_rows, static_cast<size_t>(capacity)),
          b.download(s.slots, tokens),
          b.download(s.count, 1)[0],
          b.download_as(g.dtype, g.out, static_cast<size_t>(capacity) * 24),
          b.download_as(g.dtype, back.out, tokens * 24)};
}

AERIE_KERNEL_TEST(BlockMask, EveryRuleEqualsTheReference) {
  const auto reference = testing::reference_backend();
  const std::vector<int32_t> lengths = {400, 41, 40, 39, 8, 1, 0, 397, 51, 200};
  for (const bool overlap : {true, false})
    for (const bool old_rules : {true, false})
      for (const double p : {0.0, 0.02, 0.3}) {
        BlockMask m;
        m.frames = 400;
        m.probability = p;
        m.allow_overlap = overlap;
        m.rules_of_2_6 = old_rules;
        const Outcome e = run(*reference, m, lengths, 200);
        const Outcome a = run(backend, m, lengths, 200);
        EXPECT_EQ(a.mask, e.mask);
        EXPECT_EQ(a.selected, e.selected);
        EXPECT_EQ(a.rows, e.rows);
        EXPECT_EQ(a.packed_rows, e.rows);
        EXPECT_EQ(a.slots, e.slots);
        EXPECT_EQ(a.count, e.count);
        EXPECT_EQ(a.gathered, e.gathered);
        EXPECT_EQ(a.scattered, e.scattered);
      }
}

AERIE_KERNEL_TEST(BlockMask, TheListMayBeTooShort) {
  BlockMask m;
  m.frames = 1600;
  m.combine = 1;
  m.block = 4;
  m.probability = 0.2;
  const std::vector<int32_t> lengths = {1600, 1600};
  const Outcome e = run(*testing::reference_backend(), m, lengths, 100);
  const Outcome a = run(backend, m, lengths, 100);
  EXPECT_GT(a.count, 1000);
  EXPECT_EQ(a.count, e.count);
  EXPECT_EQ(a.rows, e.rows);
  EXPECT_EQ(a.slots, e.slots);
}

// Few rows, and more of them than one pass of a block's threads.
AERIE_KERNEL_TEST(SelectRows, AnyNumberOfRows) {
  const auto reference = testing::reference_backend();
  struct Case {
    int batch, frames;
    testing::Packing packing = {};
  };
  for (const Case& c : {Case{1, 1}, Case{31, 1}, Case{1, 1024}, Case{5, 205}, Case{40, 125},
                        Case{3, 40, {{7, 40, 1}}}, Case{2, 700, {{699, 350}}}}) {
    SCOPED_TRACE(c.frames);
    const size_t n = static_cast<size_t>(c.batch * c.frames);
    const size_t laid_out = c.packing.num_rows(c.batch, c.frames);
    std::vector<uint8_t> selected(n);
    const std::vector<float> draws = testing::random_values(n, 3);
    for (size_t i = 0; i < n; ++i) selected[i] = draws[i] > 0.4f;
    const auto run = [&](Backend& b) {
      SelectRows s;
      s.batch = c.batch;
      s.frames = c.frames;
      s.layout = c.packing.upload(b);
      s.capacity = static_cast<int>(n);
      s.selected = b.upload(selected);
      s.rows = b.scratch<int32_t>(n);
      s.packed_rows = b.scratch<int32_t>(n);
      s.slots = b.scratch<int32_t>(laid_out);
      s.count = b.scratch<int32_t>(1);
      EXPECT_EQ(b.kernels().select_rows(s, nullptr), kOk);
      std::vector<int32_t> out = b.download(s.rows, n);
      for (const int32_t place : b.download(s.packed_rows, n)) out.push_back(place);
      for (const int32_t slot : b.download(s.slots, laid_out)) out.push_back(slot);
      out.push_back(b.download(s.count, 1)[0]);
      return out;
    };
    EXPECT_EQ(run(backend), run(*reference));
  }
}

}  // namespace
}  // namespace aerie::kernels::block_mask_test
