#include "aerie/kernels/emulation/sm90.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/kernels/emulation/emulation.h"

namespace aerie::kernels::emulation {
namespace {

constexpr uint32_t kRowBytes = 128, kGranule = 16;
constexpr uint64_t kBarrierMark = 0x6d62617272696572;  // what an mbarrier's memory holds here

struct Mbarrier {
  int arrivals = 0, pending = 0;
  int64_t tx_bytes = 0;
  uint64_t phase = 0;  // the one that has not ended
};

struct Copy {
  bool load = false;
  TensorMap map;
  int x = 0, y = 0;
  uint32_t shared = 0, barrier = 0;
  unsigned thread = 0;     // whose store
  bool committed = false;  // stores
};

struct Products {
  struct Item {
    Wgmma operation;
    unsigned group;
  };
  std::vector<Item> pending;
  unsigned group = 0;  // the open one
  bool fenced = false;
};

std::unordered_map<uint32_t, Mbarrier> barriers;
std::vector<Copy> copies;
std::vector<Products> products;                     // by thread
std::unordered_map<uint32_t, unsigned> not_fenced;  // granule: thread that wrote it
std::vector<std::vector<uint32_t>> granules;        // by thread
Fault planted = Fault::kNone;
uint64_t until_fault = 0;
RandomStream draws(1, Purpose::kTest, 1, 0);

// As the hardware exchanges 16-byte pieces of eight rows of 128 bytes: by bits of the address.
uint32_t swizzled(uint32_t address) {
  return address ^ ((address >> 3) & 0x70u);
}

// Whether this is the one that goes wrong.
bool goes_wrong(Fault fault) {
  return planted == fault && until_fault-- == 0;
}

void check_fenced(uint32_t address, const char* who) {
  if (not_fenced.count(address / kGranule) != 0)
    stop("shared memory written by a thread is read without fence_proxy_async by ", who);
}

Mbarrier& barrier_at(uint32_t address) {
  const auto found = barriers.find(address);
  if (found == barriers.end()) stop("an mbarrier that was not initialised");
  uint64_t mark = 0;
  std::memcpy(&mark, shared_pointer(address, 8), 8);
  if (mark != (kBarrierMark ^ address)) stop("an mbarrier was written over");
  return found->second;
}

void end_phase_if_complete(Mbarrier& barrier) {
  if (barrier.pending > 0 || barrier.tx_bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.arrivals;
}

void run(const Copy& copy) {
  for (int r = 0; r < copy.map.box_rows; ++r)
    for (uint32_t piece = 0; piece < kRowBytes / kGranule; ++piece) {
      const uint32_t linear = copy.shared + uint32_t(r) * kRowBytes + piece * kGranule;
      unsigned char* const piece_at =
          static_cast<unsigned char*>(shared_pointer(swizzled(linear), kGranule));
      const int row = copy.y + r, column = copy.x + int(piece) * 8;
      const bool row_inside = row >= 0 && row < copy.map.rows;
      const int inside =
          !row_inside || column < 0 ? 0 : std::clamp(copy.map.columns - column, 0, 8);
      unsigned char* const device =
          inside == 0 ? nullptr
                      : copy.map.data + size_t(row) * copy.map.stride_bytes + size_t(column) * 2;
      if (copy.load) {
        std::memset(piece_at, 0, kGranule);
        if (inside > 0) std::memcpy(piece_at, device, size_t(inside) * 2);
      } else {
        check_fenced(swizzled(linear), "a TMA store");
        if (inside > 0) std::memcpy(device, piece_at, size_t(inside) * 2);
      }
    }
  if (!copy.load) return;
  Mbarrier& barrier = barrier_at(copy.barrier);
  barrier.tx_bytes -= int64_t(copy.map.box_rows) * kRowBytes;
  end_phase_if_complete(barrier);
}

void run_copy(size_t number) {
  const Copy copy = copies[number];
  copies.erase(copies.begin() + int64_t(number));
  run(copy);
}

void start(const Copy& copy) {
  if (copy.shared % 1024 != 0)
    stop("a box with the 128-byte swizzle begins at a multiple of 1024 bytes");
  copies.push_back(copy);
  if (order() == Order::kForward && copy.load) run_copy(copies.size() - 1);
}

// An operand of wgmma in shared memory.
class Operand {
 public:
  Operand(uint64_t descriptor, bool transposed, const Wgmma& w)
      : start_(uint32_t(descriptor & 0x3fff) << 4),
        leading_(uint32_t(descriptor >> 16 & 0x3fff) << 4),
        stride_(uint32_t(descriptor >> 32 & 0x3fff) << 4),
        transposed_(transposed),
        widen_(w.widen) {
    if (descriptor >> 62 != 1) stop("a wgmma descriptor without the 128-byte swizzle");
    if ((descriptor >> 49 & 7) != 0) stop("a wgmma descriptor with a base offset");
  }
  // Row or column `at` (of 64 or more), k of 16.
  float value(int at, int k) const {
    const uint32_t i = uint32_t(at), j = uint32_t(k);
    const uint32_t linear =
        transposed_ ? start_ + i % 64 * 2 + i / 64 * leading_ + j % 8 * kRowBytes + j / 8 * stride_
                    : start_ + i / 8 * stride_ + i % 8 * kRowBytes + j * 2;
    const uint32_t address = swizzled(linear);
    if (!not_fenced.empty()) check_fenced(address, "wgmma");
    uint16_t bits = 0;
    std::memcpy(&bits, shared_pointer(address, 2), 2);
    return widen_(bits);
  }

 private:
  uint32_t start_, leading_, stride_;
  bool transposed_;
  float (*widen_)(uint16_t bits);
};

// The calling thread's part.
void run(const Wgmma& w) {
  const Operand a(w.a, w.transpose_a, w), b(w.b, w.transpose_b, w);
  const int thread = int(thread_index()), warp = thread / 32 % 4, lane = thread % 32;
  float left[2][16];
  for (int half = 0; half < 2; ++half)
    for (int k = 0; k < 16; ++k) left[half][k] = a.value(16 * warp + lane / 4 + 8 * half, k);
  for (int j = 0; j < w.columns / 8; ++j)
    for (int n = 0; n < 2; ++n) {
      float right[16];
      for (int k = 0; k < 16; ++k) right[k] = b.value(8 * j + 2 * (lane % 4) + n, k);
      for (int half = 0; half < 2; ++half) {
        float& out = w.d[4 * j + 2 * half + n];
        float sum = w.add ? out : 0.0f;
        for (int k = 0; k < 16; ++k) sum += left[half][k] * right[k];
        out = sum;
      }
    }
}

// The first `count` of the thread's operations, in order.
void flush(Products& mine, size_t count) {
  for (size_t i = 0; i < count; ++i) run(mine.pending[i].operation);
  mine.pending.erase(mine.pending.begin(), mine.pending.begin() + int64_t(count));
}

}  // namespace

void mbarrier_init(uint32_t address, int arrivals) {
  if (address % 8 != 0 || arrivals <= 0) stop("an mbarrier needs 8 aligned bytes and arrivals");
  const uint64_t mark = kBarrierMark ^ address;
  std::memcpy(shared_pointer(address, 8), &mark, 8);
  barriers[address] = {arrivals, arrivals, 0, 0};
}

void plant_fault(Fault fault, uint64_t number) {
  planted = fault;
  until_fault = number;
}

void mbarrier_arrive(uint32_t address, uint32_t expect_tx_bytes) {
  if (goes_wrong(Fault::kNoArrival)) return;
  Mbarrier& barrier = barrier_at(address);
  barrier.tx_bytes += expect_tx_bytes;
  if (--barrier.pending < 0) stop("an mbarrier gets more arrivals than it was initialised for");
  end_phase_if_complete(barrier);
}

void mbarrier_wait(uint32_t address, uint32_t parity) {
  struct Wanted {
    uint32_t address, parity;
  } wanted = {address, goes_wrong(Fault::kOtherParity) ? 1 - parity : parity};
  barrier_at(address);
  wait_until(
      [](const void* context) {
        const Wanted& w = *static_cast<const Wanted*>(context);
        return (barrier_at(w.address).phase & 1) != w.parity;
      },
      &wanted, "an mbarrier's phase");
}

void tma_load(uint32_t to, const TensorMap& map, int x, int y, uint32_t barrier) {
  barrier_at(barrier);
  Copy copy;
  copy.load = true;
  copy.map = map;
  copy.x = x;
  copy.y = y;
  copy.shared = to;
  copy.barrier = barrier;
  start(copy);
}

void tma_store(const TensorMap& map, int x, int y, uint32_t from) {
  Copy copy;
  copy.map = map;
  copy.x = x;
  copy.y = y;
  copy.shared = from;
  copy.thread = thread_index();
  start(copy);
}

void tma_store_commit() {
  for (Copy& copy : copies)
    if (!copy.load && copy.thread == thread_index()) copy.committed = true;
}

void tma_store_wait_read() {
  const unsigned thread = thread_index();
  for (size_t i = 0; order() == Order::kForward && i < copies.size();) {
    if (copies[i].thread == thread && copies[i].committed)
      run_copy(i);
    else
      ++i;
  }
  wait_until(
      [](const void* context) {
        const unsigned mine = *static_cast<const unsigned*>(context);
        return std::none_of(copies.begin(), copies.end(),
                            [&](const Copy& c) { return c.committed && c.thread == mine; });
      },
      &thread, "TMA stores");
}

void note_shared_write(uint32_t address, size_t bytes) {
  for (uint32_t at = address / kGranule; at * kGranule < address + bytes; ++at) {
    not_fenced[at] = thread_index();
    granules[thread_index()].push_back(at);
  }
}

void fence_proxy_async() {
  if (goes_wrong(Fault::kNoFence)) return;
  for (const uint32_t at : granules[thread_index()]) {
    const auto found = not_fenced.find(at);
    if (found != not_fenced.end() && found->second == thread_index()) not_fenced.erase(found);
  }
  granules[thread_index()].clear();
}

void wgmma_issue(const Wgmma& operation) {
  const struct { uint64_t a, b; } descriptors = {operation.a, operation.b};
  const Slot* const slots = exchange("wgmma", &descriptors, sizeof(descriptors));
  for (unsigned lane = 0; lane < 32; ++lane)
    if (std::memcmp(slots[lane].bytes, &descriptors, sizeof(descriptors)) != 0)
      stop("lanes of a warp differ in the descriptors of a wgmma");
  Products& mine = products[thread_index()];
  if (!mine.fenced) stop("wgmma without wgmma_fence since registers were last read");
  mine.pending.push_back({operation, mine.group});
  if (order() == Order::kForward || (order() == Order::kShuffled && draws.below(2) == 0))
    flush(mine, mine.pending.size());
}

void wgmma_fence() {
  products[thread_index()].fenced = true;
}

void wgmma_commit() {
  ++products[thread_index()].group;
}

void wgmma_wait(int pending) {
  Products& mine = products[thread_index()];
  size_t count = 0;
  while (count < mine.pending.size() && mine.pending[count].group + unsigned(pending) < mine.group)
    ++count;
  flush(mine, count);
  mine.fenced = false;
  exchange("wgmma_wait", nullptr, 0);  // of a warp: no lane goes on before the others' parts
}

void begin_async(unsigned threads) {
  barriers.clear();
  not_fenced.clear();
  products.assign(threads, {});
  granules.assign(threads, {});
}

void end_async() {
  if (!copies.empty()) stop("a block ends before its TMA copies");
  for (const Products& mine : products)
    if (!mine.pending.empty()) stop("a block ends before its wgmma");
  for (const auto& [address, barrier] : barriers)
    if (barrier.tx_bytes != 0) stop("a block ends while an mbarrier expects bytes");
}

bool advance_async(bool idle) {
  if (copies.empty()) return false;
  switch (order()) {
    case Order::kForward:
    case Order::kReverse:
      if (!idle) return false;
      run_copy(copies.size() - 1);
      return true;
    case Order::kShuffled:
      if (!idle && draws.below(8) != 0) return false;
      run_copy(size_t(draws.below(copies.size())));
      return true;
  }
  return false;
}

}  // namespace aerie::kernels::emulation
