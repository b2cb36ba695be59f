#include "aerie/advisor/all_reduce_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "aerie/base/strings.h"

namespace aerie::advisor {

namespace {

double tree_hops(int ranks) {
  return 2.0 * std::ceil(std::log2(static_cast<double>(ranks)));
}

double ring_hops(int ranks) {
  return 2.0 * static_cast<double>(ranks - 1);
}

double ring_bytes(double bytes, int ranks) {
  return 2.0 * bytes * static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

// The best coefficients of `columns` features, errors relative to the measured seconds.
// Gaussian elimination of the normal equations; a column that nothing depends on gets 0.
std::array<double, 3> least_squares(const std::vector<AllReduceSample>& samples,
                                    const std::array<bool, 3>& use) {
  double matrix[3][4] = {};
  for (const AllReduceSample& one : samples) {
    const double weight = 1.0 / one.seconds;
    const double features[3] = {weight, ring_hops(one.ranks) * weight,
                                ring_bytes(one.bytes, one.ranks) * weight};
    for (int row = 0; row < 3; ++row) {
      if (!use[static_cast<size_t>(row)]) continue;
      for (int column = 0; column < 3; ++column)
        if (use[static_cast<size_t>(column)])
          matrix[row][column] += features[row] * features[column];
      matrix[row][3] += features[row];  // times seconds * weight = 1
    }
  }
  for (int pivot = 0; pivot < 3; ++pivot) {
    if (!use[static_cast<size_t>(pivot)] || matrix[pivot][pivot] == 0.0) continue;
    for (int row = 0; row < 3; ++row) {
      if (row == pivot) continue;
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (int column = 0; column < 4; ++column)
        matrix[row][column] -= factor * matrix[pivot][column];
    }
  }
  std::array<double, 3> out{};
  for (size_t i = 0; i < 3; ++i)
    if (use[i] && matrix[i][i] != 0.0) out[i] = matrix[i][3] / matrix[i][i];
  return out;
}

}  // namespace

Cost all_reduce_cost(double bytes, int ranks, const Network& network) {
  if (ranks <= 1) return {};
  const int inside = std::min(ranks, std::max(1, network.ranks_per_node));
  const int nodes = (ranks + inside - 1) / inside;
  const double inside_s = ring_bytes(bytes, inside) / (network.inside.gb_per_s * 1e9);
  const double inside_hops_s = ring_hops(inside) * network.inside.hop_us * 1e-6;
  const double call_s = network.call_us * 1e-6;
  const auto with = [&](double moved, double hops, const Link& link, double beside_s,
                        double beside_hops_s) {
    return Cost{std::max(beside_s, moved / (link.gb_per_s * 1e9)),
                call_s + beside_hops_s + hops * link.hop_us * 1e-6};
  };
  // The outermost stage: between nodes where there are several, else inside the one.
  const bool several = nodes > 1;
  const Link& link = several ? network.between : network.inside;
  const int members = several ? nodes : inside;
  const double share = several ? bytes / inside : bytes;
  const double beside_s = several ? inside_s : 0.0;
  const double beside_hops_s = several ? inside_hops_s : 0.0;
  const Cost ring =
      with(ring_bytes(share, members), ring_hops(members), link, beside_s, beside_hops_s);
  if (!network.trees) return ring;
  const Cost tree = with(2.0 * share, tree_hops(members), link, beside_s, beside_hops_s);
  return tree.total_s() < ring.total_s() ? tree : ring;
}

Result<Network> fit_network(const std::vector<AllReduceSample>& samples) {
  std::set<int> worlds;
  std::set<double> sizes;
  int most = 1;
  for (const AllReduceSample& one : samples) {
    if (one.ranks < 2 || !(one.bytes > 0.0) || !(one.seconds > 0.0) || !std::isfinite(one.seconds))
      return invalid_argument(str_cat("an all-reduce of ", one.bytes, " bytes over ", one.ranks,
                                      " ranks in ", one.seconds, " s is no measurement"));
    worlds.insert(one.ranks);
    sizes.insert(one.bytes);
    most = std::max(most, one.ranks);
  }
  if (sizes.size() < 2)
    return invalid_argument("bandwidth and latency need all-reduces of at least two sizes");
  std::array<bool, 3> use{true, worlds.size() > 1, true};
  std::array<double, 3> found = least_squares(samples, use);
  // What came out below zero was too small to be seen among the rest.
  for (const size_t i : {size_t{1}, size_t{0}}) {
    if (found[i] >= 0.0) continue;
    use[i] = false;
    found = least_squares(samples, use);
  }
  if (!(found[2] > 0.0))
    return invalid_argument("the measured all-reduces do not take longer with more bytes")
        .with_hint("measure larger ones, or give --bandwidth and --latency");
  Network out;
  out.call_us = found[0] * 1e6;
  out.inside = {1e-9 / found[2], found[1] * 1e6};
  out.between = out.inside;
  out.ranks_per_node = most;
  out.trees = false;
  return out;
}

AllReduceTime measured_time(const std::vector<AllReduceSample>& samples, int ranks,
                            const Network& fitted) {
  std::vector<AllReduceSample> own;
  for (const AllReduceSample& one : samples)
    if (one.ranks == ranks) own.push_back(one);
  std::sort(own.begin(), own.end(),
            [](const AllReduceSample& a, const AllReduceSample& b) { return a.bytes < b.bytes; });
  return [own = std::move(own), ranks, fitted](double bytes) {
    const Cost model = all_reduce_cost(bytes, ranks, fitted);
    if (own.size() < 2) return model;
    size_t high = 1;
    while (high + 1 < own.size() && own[high].bytes < bytes) ++high;
    const AllReduceSample& a = own[high - 1];
    const AllReduceSample& b = own[high];
    double seconds = a.seconds;
    if (bytes > b.bytes)
      seconds = b.seconds * bytes / b.bytes;
    else if (bytes > a.bytes)
      seconds += (b.seconds - a.seconds) * (bytes - a.bytes) / (b.bytes - a.bytes);
    const double latency_s = std::min(seconds, model.latency_s);
    return Cost{seconds - latency_s, latency_s};
  };
}

}  // namespace aerie::advisor
