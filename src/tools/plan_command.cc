// `aerie plan`: what a step on many GPUs will cost, from a step measured on one.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <type_traits>

#include "aerie/advisor/plan_input.h"
#include "aerie/advisor/plan_text.h"
#include "aerie/base/env.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/ui/report.h"
#include "cli.h"
#include "command.h"
#include "json_output.h"

namespace aerie::tools {

namespace {

constexpr size_t kMostInput = 64u << 20;

struct PlanArgs {
  std::string gpus = "1,8,64,512", model = "L", measured, which, html, hook = "none";
  int64_t batch = 0;
  double bandwidth = 0.0, latency = -1.0, node_bandwidth = 0.0, node_latency = -1.0, call = -1.0;
  double jitter_percent = -1.0, overlap_slowdown_percent = -1.0;
  int gpus_per_node = 0;
  bool no_sync_batchnorm = false, json = false;
  advisor::PlanOptions options;
};

Result<std::vector<int>> world_sizes(const std::string& text) {
  std::vector<int> out;
  for (const std::string& one : split(text, ',')) {
    auto value = parse_int64(trim(one), 1, 1'000'000);
    if (!value.ok()) return invalid_argument(value.status().message()).with_context("--gpus");
    out.push_back(static_cast<int>(*value));
  }
  if (out.size() > 100) return invalid_argument("--gpus takes at most 100 numbers");
  return out;
}

Result<std::string> read_measured_text(const std::string& path) {
  if (path != "-") {
    auto text = Env::real().read_file(expand_user(path), kMostInput);
    if (text.status().code() == StatusCode::kNotFound)
      return invalid_argument(str_cat("--measured: there is no file '", path, "'"))
          .with_hint("`aerie bench step --json > step.json` makes one");
    if (!text.ok()) return Status(text.status()).with_context("--measured");
    return text;
  }
  std::string text;
  char buffer[65536];
  for (size_t count = 0; (count = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, count);
    if (text.size() > kMostInput) return invalid_argument("--measured -: the input has no end");
  }
  return text;
}

// The measured step that the options mean; the first one where several fit.
Result<advisor::MeasuredStep> choose_step(const PlanArgs& args,
                                          const std::vector<advisor::MeasuredStep>& steps) {
  std::vector<std::string> names;
  for (const advisor::MeasuredStep& step : steps) {
    names.push_back(step.name);
    if (args.measured.empty()) {
      const std::string wanted =
          str_cat("NEST-", args.model, " ", args.batch > 0 ? args.batch : 16, " x ");
      if (!starts_with(step.name, wanted)) continue;
    }
    if (step.name.find(args.which) == std::string::npos) continue;
    return step;
  }
  return invalid_argument(args.measured.empty()
                              ? str_cat("no step of NEST-", args.model, " with a batch of ",
                                        args.batch > 0 ? args.batch : 16, " is recorded")
                              : str_cat("no measured step is called '", args.which, "'"))
      .with_hint(str_cat("there are: ", join(names, "; "),
                         "; others: `aerie bench step --json > step.json` and --measured "
                         "step.json"));
}

Status apply_network(PlanArgs& args, const std::vector<advisor::AllReduceSample>& samples) {
  advisor::Network& network = args.options.network;
  if (!samples.empty()) {
    AERIE_ASSIGN_OR_RETURN(network, advisor::fit_network(samples));
  }
  const auto positive = [](double value, double& out) {
    if (value > 0.0) out = value;
  };
  const auto given = [](double value, double& out) {
    if (value >= 0.0) out = value;
  };
  positive(args.bandwidth, network.inside.gb_per_s);
  given(args.latency, network.inside.hop_us);
  positive(args.node_bandwidth, network.between.gb_per_s);
  given(args.node_latency, network.between.hop_us);
  given(args.call, network.call_us);
  if (args.gpus_per_node > 0) network.ranks_per_node = args.gpus_per_node;
  return ok_status();
}

// A number from 0 on (`positive`: above it) that can be computed with; what is wrong, or nothing.
std::string plan_number_error(const std::string& text, bool positive) {
  constexpr double kMost = 1e9;
  const auto value = parse_double(text);
  if (value.ok() && *value <= kMost && (positive ? *value > 0.0 : *value >= 0.0)) return "";
  return str_cat("'", text, "' is not a number ", positive ? "above 0" : "from 0 on",
                 " (up to 1e9)");
}

void add_plan_options(CLI::App& app, PlanArgs& args) {
  const auto checked = [&](const char* name, auto& value, const char* text, bool positive) {
    constexpr bool kWhole = std::is_integral_v<std::remove_reference_t<decltype(value)>>;
    app.add_option(name, value, text)->check([positive](const std::string& given) -> std::string {
      if (kWhole && !parse_int64(given).ok()) return str_cat("'", given, "' is not a whole number");
      return plan_number_error(given, positive);
    });
  };
  const auto number = [&](const char* name, double& value, const char* text) {
    checked(name, value, text, /*positive=*/false);
  };
  const auto above_0 = [&](const char* name, auto& value, const char* text) {
    checked(name, value, text, /*positive=*/true);
  };
  app.add_option("--gpus", args.gpus, "numbers of GPUs, or of ranks (default 1,8,64,512)");
  app.add_option("--model", args.model, "recorded steps of this model: S, L or XL (default L)");
  above_0("--batch", args.batch, "their clips a GPU (default 16)");
  app.add_option("--measured", args.measured,
                 "file with the output of `aerie bench step --json`, which may hold all-reduces "
                 "(--world); - reads it from the standard input");
  app.add_option("--case", args.which, "the measured step whose name contains this");
  above_0("--bandwidth", args.bandwidth,
          "GB/s between GPUs of a node, one direction (default 350)");
  number("--latency", args.latency, "microseconds of a hop inside a node (default 1)");
  above_0("--node-bandwidth", args.node_bandwidth,
          "GB/s of one GPU to other nodes (default 45: 400 Gbit/s InfiniBand a GPU)");
  number("--node-latency", args.node_latency, "microseconds of a hop between nodes (default 5)");
  number("--call", args.call, "microseconds of any collective call (default 10)");
  above_0("--gpus-per-node", args.gpus_per_node, "(default 8)");
  above_0("--bucket-cap-mb", args.options.bucket_cap_mib, "of gradient buckets (default 25)");
  app.add_option("--hook", args.hook, "ddp_comm_hook")
      ->check(CLI::IsMember({"none", "fp16", "bf16"}));
  app.add_option("--accumulate", args.options.accumulate, "micro-batches a step (default 1)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_flag("--no-sync-batchnorm", args.no_sync_batchnorm, "sync_batchnorm=false");
  app.add_flag("--shard-optimizer", args.options.shard_optimizer, "aerie.shard_optimizer=true");
  app.add_flag("--bucket-copies", args.options.bucket_copies,
               "gradients beside their buckets (gradient_as_bucket_view=false, reference engine)");
  number("--overlap-slowdown", args.overlap_slowdown_percent,
         "percent by which reductions slow the backward pass down (default: as measured, else 0)");
  number("--jitter", args.jitter_percent,
         "standard deviation of a rank's step in percent (default: as measured, else 0)");
  app.add_option("--html", args.html, "writes a page with the curve");
  app.add_flag("--json", args.json, "machine-readable output");
}

}  // namespace

Status run_plan(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Predicts step time, efficiency and memory of data-parallel training from a step measured "
      "on one\nGPU, the network's bandwidth and latency and the schedule of gradient buckets, and "
      "says what\nlimits. docs/plan.md has the formula.",
      "aerie plan");
  app.footer(
      "example: aerie plan --gpus 8,64,512 --model L --html plan.html\n"
      "         aerie bench step --batch 32 --json | aerie plan --measured - --gpus 8,64");
  PlanArgs args;
  add_plan_options(app, args);
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, arguments, &help));
  if (help) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const std::vector<int> worlds, world_sizes(args.gpus));
  advisor::PlanInput input;
  input.steps = advisor::recorded_steps();
  if (!args.measured.empty()) {
    AERIE_ASSIGN_OR_RETURN(const std::string text, read_measured_text(args.measured));
    AERIE_ASSIGN_OR_RETURN(input, advisor::read_plan_input(text, args.measured));
  }
  AERIE_ASSIGN_OR_RETURN(const advisor::MeasuredStep step, choose_step(args, input.steps));
  AERIE_RETURN_IF_ERROR(apply_network(args, input.all_reduces));
  args.options.sync_batchnorm = !args.no_sync_batchnorm;
  args.options.gradient_bytes = args.hook == "none" ? 4.0 : 2.0;
  if (args.overlap_slowdown_percent >= 0.0)
    args.options.overlap_slowdown = args.overlap_slowdown_percent / 100.0;
  if (args.jitter_percent >= 0.0) args.options.jitter_share = args.jitter_percent / 100.0;
  advisor::Plan plan =
      advisor::make_plan(step, worlds, args.options, input.all_reduces, input.busy);
  if (!args.html.empty())
    AERIE_RETURN_IF_ERROR(Env::real().atomic_replace(expand_user(args.html), plan.to_html()));
  if (args.json)
    print_document(nlohmann::ordered_json::parse(plan.to_json()));
  else
    std::printf("%s", printable_lines(plan.to_text()).c_str());
  return ok_status();
}

}  // namespace aerie::tools
