#include "aerie/advisor/plan_text.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <map>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"
#include "aerie/ui/report.h"
#include "aerie/ui/svg_chart.h"

namespace aerie::advisor {

namespace {

__attribute__((format(printf, 1, 2))) std::string formatted(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  return text;
}

std::string memory_text(double gib) {
  return gib > 0.0 ? formatted("%.2f", gib) : "-";
}

std::string inputs_text(const Plan& plan) {
  const Network& network = plan.options.network;
  const MeasuredStep& step = plan.measured;
  std::string out = formatted("step of one rank: %s, %.3f ms, %.1f M parameters (%s)\n",
                              step.name.empty() ? "unnamed" : step.name.c_str(), step.step_ms,
                              step.parameters * 1e-6, step.source.c_str());
  out += formatted(
      "network (%s): %.3g GB/s and %.3g us a hop inside a node",
      plan.measured_network ? "fitted to measured all-reduces" : "given or assumed, not measured",
      network.inside.gb_per_s, network.inside.hop_us);
  if (!plan.measured_network || network.between.gb_per_s != network.inside.gb_per_s)
    out += formatted(", %.3g GB/s a rank and %.3g us between nodes of %d", network.between.gb_per_s,
                     network.between.hop_us, network.ranks_per_node);
  out += formatted(", %.3g us a call\n", network.call_us);
  const StepModel model = step_model(step, plan.options);
  out += formatted(
      "%zu gradient buckets of up to %.3g MiB, %.0f bytes a parameter%s%s%s\n",
      model.buckets.size(), plan.options.bucket_cap_mib, plan.options.gradient_bytes,
      model.blocking_calls > 0
          ? formatted(", %d calls of SyncBatchNorm a micro-batch", model.blocking_calls).c_str()
          : "",
      model.accumulate > 1 ? formatted(", %d micro-batches a step", model.accumulate).c_str() : "",
      model.shard_optimizer ? ", optimizer sharded" : "");
  if (plan.measured_busy)
    out +=
        "what ranks of one machine cost each other (processors, memory, SyncBatchNorm): measured\n";
  return out;
}

// One sentence for each cause, with the world sizes it holds for.
std::vector<std::string> findings(const Plan& plan) {
  std::vector<std::pair<Limit, std::string>> seen;
  for (const PlanRow& row : plan.rows) {
    if (row.ranks <= 1) continue;
    auto found = std::find_if(seen.begin(), seen.end(),
                              [&](const auto& one) { return one.first == row.limit; });
    if (found == seen.end())
      seen.emplace_back(row.limit, str_cat(row.ranks));
    else
      found->second += str_cat(", ", row.ranks);
  }
  std::vector<std::string> out;
  for (const auto& [limit, ranks] : seen)
    out.push_back(
        str_cat("limited by ", limit_name(limit), " at ", ranks, ": ", limit_advice(limit)));
  return out;
}

const BusyRanks* busy_of(const std::vector<BusyRanks>& all, int world) {
  const BusyRanks* out = nullptr;
  for (const BusyRanks& one : all) {
    if (world <= 1) continue;
    const bool fits = one.ranks >= world, best_fits = out != nullptr && out->ranks >= world;
    if (out == nullptr || (fits && !best_fits) ||
        (fits == best_fits && (fits ? one.ranks < out->ranks : one.ranks > out->ranks)))
      out = &one;
  }
  return out;
}

}  // namespace

Plan make_plan(const MeasuredStep& step, const std::vector<int>& ranks, const PlanOptions& options,
               const std::vector<AllReduceSample>& all_reduces,
               const std::vector<BusyRanks>& busy) {
  Plan out;
  out.measured = step;
  out.options = options;
  out.measured_network = !all_reduces.empty();
  out.measured_busy = !busy.empty();
  const MemoryModel memory = memory_model(step, options);
  const auto compute_s = [&](const StepModel& model) {
    return predict_step(model, 1, {}).compute_s;
  };
  for (const int world : ranks) {
    PlanRow row;
    row.ranks = world;
    const BusyRanks* together = busy_of(busy, world);
    const StepModel model =
        step_model(together != nullptr ? together->step : step, options, together);
    row.step = predict_step(model, world, measured_time(all_reduces, world, options.network));
    if (together != nullptr) {
      const double alone_s = std::min(compute_s(step_model(step, options)), row.step.compute_s);
      row.step.shared_s = row.step.compute_s - alone_s;
      row.step.compute_s = alone_s;
    }
    row.memory_gib = step.memory_gib > 0.0 ? predict_memory_gib(memory, world) : 0.0;
    row.per_s = step.amount * options.accumulate * world / row.step.step_s;
    row.limit = limit_of(row.step);
    out.rows.push_back(row);
  }
  return out;
}

std::string Plan::to_text() const {
  std::string out = inputs_text(*this);
  out += formatted("%7s %10s %10s %12s %10s %10s %9s %14s  %s\n", "GPUs", "step ms", "efficiency",
                   "reduce ms", "exposed ms", "other ms", "GiB/rank",
                   str_cat(measured.amount_name, "/s").c_str(), "limited by");
  for (const PlanRow& row : rows)
    out += formatted(
        "%7d %10.3f %9.1f%% %12.3f %10.3f %10.3f %9s %14s  %s\n", row.ranks, row.step.step_s * 1e3,
        100.0 * row.step.efficiency(), row.step.reduce_s * 1e3, row.step.exposed_s * 1e3,
        (row.step.shared_s + row.step.blocking_s + row.step.straggler_s + row.step.gather_s) * 1e3,
        memory_text(row.memory_gib).c_str(),
        row.per_s > 0.0 ? formatted("%.0f", row.per_s).c_str() : "-", limit_name(row.limit));
  for (const std::string& finding : findings(*this)) out += finding + "\n";
  return out + "The same batch on every rank; waiting for data is not in it.\n";
}

std::string Plan::to_json() const {
  using nlohmann::ordered_json;
  const Network& network = options.network;
  const StepModel model = step_model(measured, options);
  ordered_json out{{"measured",
                    {{"name", measured.name},
                     {"source", measured.source},
                     {"step_ms", measured.step_ms},
                     {"forward_ms", model.forward_s * 1e3},
                     {"backward_ms", model.backward_s * 1e3},
                     {"optimizer_ms", model.optimizer_s * 1e3},
                     {"jitter_ms", model.jitter_s * 1e3},
                     {"parameters", measured.parameters}}},
                   {"network",
                    {{"measured", measured_network},
                     {"bandwidth_gb_per_s", network.inside.gb_per_s},
                     {"latency_us", network.inside.hop_us},
                     {"node_bandwidth_gb_per_s", network.between.gb_per_s},
                     {"node_latency_us", network.between.hop_us},
                     {"gpus_per_node", network.ranks_per_node},
                     {"call_us", network.call_us}}}};
  ordered_json buckets = ordered_json::array();
  for (const Bucket& bucket : model.buckets)
    buckets.push_back({{"bytes", bucket.bytes}, {"ready_share", bucket.ready}});
  out["buckets"] = std::move(buckets);
  ordered_json list = ordered_json::array();
  for (const PlanRow& row : rows) {
    ordered_json one{{"gpus", row.ranks},
                     {"step_ms", row.step.step_s * 1e3},
                     {"efficiency", row.step.efficiency()},
                     {"reduce_ms", row.step.reduce_s * 1e3},
                     {"exposed_ms", row.step.exposed_s * 1e3},
                     {"overlap_share", row.step.overlap_share},
                     {"shared_ms", row.step.shared_s * 1e3},
                     {"sync_batchnorm_ms", row.step.blocking_s * 1e3},
                     {"straggler_ms", row.step.straggler_s * 1e3},
                     {"gather_ms", row.step.gather_s * 1e3}};
    if (row.memory_gib > 0.0) one["memory_gib"] = row.memory_gib;
    if (row.per_s > 0.0) one[measured.amount_name + "_per_s"] = row.per_s;
    one["limited_by"] = limit_name(row.limit);
    list.push_back(std::move(one));
  }
  out["rows"] = std::move(list);
  out["findings"] = findings(*this);
  return out.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string Plan::to_html() const {
  ui::Chart efficiency{"Efficiency", "% of linear, by GPUs", {}, {}, {}};
  ui::Chart time{"Step", "ms, by GPUs", {}, {}, {}};
  ui::Series curve{"efficiency", 0, {}, {}, true, false, {}, true};
  ui::Series step{"step", 0, {}, {}, true, false, {}, true};
  ui::Series compute{"compute", 2, {}, {}, false, true, {}, true};
  ui::Series reduce{"all reductions", 1, {}, {}, true, false, {}, true};
  std::string table = "<div class=\"wide\"><table><tr>";
  for (const char* head :
       {"GPUs", "step, ms", "efficiency", "reductions, ms", "exposed, ms", "shared, ms",
        "SyncBatchNorm, ms", "stragglers, ms", "GiB a rank", "limited by"})
    table += str_cat("<th>", head, "</th>");
  table += "</tr>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const PlanRow& row = rows[i];
    const double x = static_cast<double>(i);
    for (ui::Series* one : {&curve, &step, &compute, &reduce}) one->x.push_back(x);
    curve.y.push_back(100.0 * row.step.efficiency());
    step.y.push_back(row.step.step_s * 1e3);
    compute.y.push_back(row.step.compute_s * 1e3);
    reduce.y.push_back(row.step.reduce_s * 1e3);
    efficiency.x_names.push_back(str_cat(row.ranks));
    table += formatted(
        "<tr><td>%d</td><td>%.3f</td><td>%.1f %%</td><td>%.3f</td><td>%.3f</td><td>%.3f</td>"
        "<td>%.3f</td><td>%.3f</td><td>%s</td><td class=\"word\">%s</td></tr>\n",
        row.ranks, row.step.step_s * 1e3, 100.0 * row.step.efficiency(), row.step.reduce_s * 1e3,
        row.step.exposed_s * 1e3, row.step.shared_s * 1e3, row.step.blocking_s * 1e3,
        row.step.straggler_s * 1e3, memory_text(row.memory_gib).c_str(), limit_name(row.limit));
  }
  time.x_names = efficiency.x_names;
  efficiency.series = {curve};
  time.series = {step, compute, reduce};
  std::string body = "<h1>Plan</h1>\n";
  for (const std::string& line : split(inputs_text(*this), '\n'))
    if (!line.empty()) body += str_cat("<p class=\"sub\">", ui::html_escape(line), "</p>\n");
  for (const std::string& finding : findings(*this))
    body += str_cat("<p class=\"verdict\">", ui::html_escape(finding), "</p>\n");
  body += str_cat("<div class=\"charts\">", ui::line_chart(efficiency), ui::line_chart(time),
                  "</div>\n", table, "</table></div>\n");
  return ui::report_page("Plan", body);
}

}  // namespace aerie::advisor
