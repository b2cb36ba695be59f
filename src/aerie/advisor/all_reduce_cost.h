// What an all-reduce costs: the alpha-beta model of rings and trees, inside a node and between
// nodes, and its parameters fitted to measured calls.
//
//   ring of n:  2 (n-1)/n * bytes / bandwidth  +  call + 2 (n-1) * hop
//   tree of n:  2         * bytes / bandwidth  +  call + 2 ceil(log2 n) * hop
//
// Several nodes: reduce-scatter inside, all-reduce of bytes/g between the nodes by each of the g
// ranks, all-gather inside. The stages run as a pipeline, so the slower one counts; their hops add
// up. The cheaper of ring and tree is taken, as NCCL's tuner does.
#pragma once

#include <functional>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::advisor {

struct Link {
  double gb_per_s = 0.0;  // 1e9 bytes, of one rank in one direction, as reached in practice
  double hop_us = 0.0;    // of one message between neighbours
};

struct Network {
  // Published nccl-tests figures of nodes with 8 H100 or H200: NVLink 4 and one 400 Gbit/s
  // InfiniBand port a GPU. Nothing here was measured by aerie.
  Link inside{350.0, 1.0};
  Link between{45.0, 5.0};
  int ranks_per_node = 8;
  double call_us = 10.0;  // of any call: launch and agreement
  bool trees = true;      // Gloo has rings alone
};

// Seconds, told apart because different things help.
struct Cost {
  double bandwidth_s = 0.0;
  double latency_s = 0.0;
  double total_s() const { return bandwidth_s + latency_s; }
};

// 0 for one rank.
Cost all_reduce_cost(double bytes, int ranks, const Network& network);

// A call that was measured.
struct AllReduceSample {
  int ranks = 2;
  double bytes = 0.0;
  double seconds = 0.0;
};

// The ring that fits the samples best (least squares of relative errors), all ranks on one node:
// bandwidth, time of a call and, where several world sizes were measured, of a hop.
Result<Network> fit_network(const std::vector<AllReduceSample>& samples);

// Time by number of bytes for one world size.
using AllReduceTime = std::function<Cost(double bytes)>;
// Between the samples of `ranks` (linear in bytes; beyond the largest at its bandwidth); the fit
// where there are none.
AllReduceTime measured_time(const std::vector<AllReduceSample>& samples, int ranks,
                            const Network& fitted);

}  // namespace aerie::advisor
