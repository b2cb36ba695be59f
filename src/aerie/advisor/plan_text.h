// A plan for several world sizes and its three forms: a table for a terminal, JSON, a page.
#pragma once

#include <string>
#include <vector>

#include "aerie/advisor/plan_input.h"

namespace aerie::advisor {

struct PlanRow {
  int ranks = 1;
  StepPrediction step;
  double memory_gib = 0.0;  // of a rank; 0: not known
  double per_s = 0.0;       // input of all ranks; 0: not known
  Limit limit = Limit::kCompute;
};

struct Plan {
  MeasuredStep measured;
  PlanOptions options;
  bool measured_network = false;  // fitted to all-reduces; else given or the defaults
  bool measured_busy = false;     // what ranks of one machine cost each other was measured
  std::vector<PlanRow> rows;

  std::string to_text() const;
  std::string to_json() const;  // one object
  std::string to_html() const;
};

// `all_reduces`: measured calls, which replace the model for their world sizes. `busy`: ranks of
// one machine; a world takes those of its size, else the next larger, else the largest.
Plan make_plan(const MeasuredStep& step, const std::vector<int>& ranks, const PlanOptions& options,
               const std::vector<AllReduceSample>& all_reduces,
               const std::vector<BusyRanks>& busy = {});

}  // namespace aerie::advisor
