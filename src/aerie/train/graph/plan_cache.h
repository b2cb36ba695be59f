// What an engine runs for a shape of batch (a plan), made when the shape comes for the first time
// and captured as a graph when it comes again.
//
// The number of plans and of graphs is bounded: the plan that was not used for longest goes; a
// graph goes only if it has not been of use for long, because capturing again and again costs more
// than running a shape kernel by kernel.
//
// One thread, the one that launches the computation. Owns plans and graphs; the stream outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "aerie/base/log.h"
#include "aerie/base/status.h"
#include "aerie/device/stream.h"

namespace aerie::train {

// The graphs of a plan, one for each way to run it. Member `graphs` of every plan.
struct PlanGraphs {
  explicit PlanGraphs(size_t ways = 1) : graphs(ways), runs(ways) {}
  // Graphs refer to the plan's memory and commands: they are destroyed before them.
  std::vector<std::unique_ptr<device::Graph>> graphs;
  std::vector<int64_t> runs;  // before there was a graph
  int64_t last_used = 0;

  int64_t num_graphs() const {
    int64_t count = 0;
    for (const auto& graph : graphs) count += graph != nullptr ? 1 : 0;
    return count;
  }
  void drop() {
    for (auto& graph : graphs) graph.reset();
  }
};

struct PlanLimits {
  size_t plans = 512;
  int64_t graphs = 64;
  // A graph that was of no use for so many calls of find() makes room for another.
  int64_t graph_rests = 256;
};

template <typename Shape, typename Plan>
class PlanCache {
 public:
  explicit PlanCache(device::Stream& stream, const PlanLimits& limits = {})
      : stream_(stream), limits_(limits) {}

  // The plan of a shape, made by make() -> Result<std::unique_ptr<Plan>> where there is none. It
  // stays until the next find() or clear().
  template <typename Make>
  Result<Plan*> find(const Shape& shape, const Make& make) {
    auto at = plans_.find(shape);
    if (at == plans_.end()) {
      if (plans_.size() >= limits_.plans) forget_oldest();
      AERIE_ASSIGN_OR_RETURN(std::unique_ptr<Plan> made, make());
      at = plans_.emplace(shape, std::move(made)).first;
    }
    at->second->graphs.last_used = ++clock_;
    return at->second.get();
  }

  // Whether a run of this plan takes longer than later ones: it loads kernels or is recorded.
  static bool is_early(const Plan& plan, size_t way) { return plan.graphs.runs[way] < 2; }

  // Runs a plan in one of its ways, which launches the same work every time: as a graph where there
  // is one. A shape that comes once is not worth a capture; the first run also loads the kernels.
  // `record` false: never as a graph.
  Status run(Plan& plan, size_t way, const std::function<int(void* stream)>& work,
             bool record = true) {
    PlanGraphs& known = plan.graphs;
    std::unique_ptr<device::Graph>& graph = known.graphs[way];
    if (graph == nullptr && known.runs[way]++ > 0 && record && room_for_graph()) {
      auto made = stream_.capture(work);
      if (made.ok()) {
        graph = std::move(made).value();
      } else if (made.status().code() == StatusCode::kOutOfMemory) {
        // Kernel by kernel does the same, somewhat slower.
        no_more_graphs_ = true;
        log_warn("train", "no device memory for another CUDA graph: shapes without one run slower");
      } else {
        return made.status();
      }
    }
    return graph != nullptr ? graph->launch() : stream_.status_of(work(stream_.handle()), "step");
  }

  size_t size() const { return plans_.size(); }
  int64_t num_graphs() const {
    int64_t count = 0;
    for (const auto& [shape, plan] : plans_) count += plan->graphs.num_graphs();
    return count;
  }
  // What graphs hold has changed; plans stay.
  void drop_graphs() {
    if (num_graphs() > 0) (void)stream_.synchronize();
    for (auto& [shape, plan] : plans_) plan->graphs.drop();
  }
  // The caller has waited for what was launched, where that matters.
  void clear() { plans_.clear(); }

 private:
  // Makes room if there is none and one of the graphs has not been used for long.
  bool room_for_graph() {
    if (no_more_graphs_) return false;
    if (num_graphs() < limits_.graphs) return true;
    Plan* oldest = nullptr;
    for (auto& [shape, plan] : plans_)
      if (plan->graphs.num_graphs() > 0 &&
          (oldest == nullptr || plan->graphs.last_used < oldest->graphs.last_used))
        oldest = plan.get();
    if (clock_ - oldest->graphs.last_used < limits_.graph_rests) return false;
    (void)stream_.synchronize();
    oldest->graphs.drop();
    return true;
  }

  void forget_oldest() {
    auto oldest = plans_.end();
    for (auto at = plans_.begin(); at != plans_.end(); ++at)
      if (oldest == plans_.end() || at->second->graphs.last_used < oldest->second->graphs.last_used)
        oldest = at;
    if (oldest == plans_.end()) return;
    (void)stream_.synchronize();
    plans_.erase(oldest);
  }

  device::Stream& stream_;
  PlanLimits limits_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  int64_t clock_ = 0;
  bool no_more_graphs_ = false;  // the device has no memory for another one
};

}  // namespace aerie::train
