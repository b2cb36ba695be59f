#include "bench_world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unistd.h>

#include "aerie/advisor/plan_text.h"
#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/config/schema/devices.h"
#include "aerie/dist/join.h"
#include "aerie/dist/launch.h"
#include "aerie/train/ranks/collective_times.h"
#include "json_output.h"

namespace aerie::tools {

namespace {

using nlohmann::ordered_json;

constexpr int kAllReduceCalls = 15;  // of every size of all-reduce
constexpr int kCopies = 5;
constexpr int64_t kLoadBytes = int64_t{256} << 20;  // more than caches hold
constexpr const char* kAlonePart = "alone";
// As kAlonePart, beside reductions that never pause.
constexpr const char* kLoadedPart = "loaded";
constexpr const char* kAsConfigured = "as configured";

// Keys of trainer.strategy, each alone beside the configured ones.
struct KeyCase {
  const char* name;
  void (*change)(config::StrategyConfig&);
};
constexpr KeyCase kKeyCases[] = {
    {kAsConfigured, [](config::StrategyConfig&) {}},
    {"bucket_cap_mb=1", [](config::StrategyConfig& s) { s.bucket_cap_mb = 1.0; }},
    {"bucket_cap_mb=100", [](config::StrategyConfig& s) { s.bucket_cap_mb = 100.0; }},
    {"gradient_as_bucket_view=true",
     [](config::StrategyConfig& s) { s.gradient_as_bucket_view = true; }},
    {"static_graph=true", [](config::StrategyConfig& s) { s.static_graph = true; }},
};

std::vector<int64_t> all_reduce_sizes() {
  std::vector<int64_t> out;
  for (int64_t bytes = 4 << 10; bytes <= 32 << 20; bytes *= 2) out.push_back(bytes);
  return out;
}

std::string world_program() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

// What rank 0 of a new set of ranks has found.
Result<ordered_json> run_world_part(const WorldBench& bench, int world, const std::string& part,
                                    const TempDir& scratch) {
  const std::string file = scratch.file("result.json");
  (void)Env::real().remove_file(file);
  dist::LaunchOptions launch;
  launch.program = world_program();
  launch.args = {"bench", "step"};
  launch.args.insert(launch.args.end(), bench.args.begin(), bench.args.end());
  for (const std::string& one :
       {std::string("--world-part"), part, std::string("--world-file"), file})
    launch.args.push_back(one);
  launch.local_size = world;
  AERIE_ASSIGN_OR_RETURN(const int code, dist::launch_ranks(launch));
  if (code != 0)
    return Status(StatusCode::kInternal, str_cat("the ranks ended with code ", code, "; see above"))
        .with_context(str_cat(world, " ranks, ", part));
  AERIE_ASSIGN_OR_RETURN(const std::string text, Env::real().read_file(file, 64u << 20));
  ordered_json json = ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) return internal_error("rank 0 left no result");
  return json;
}

std::string backend_of(const WorldBench& bench, bool gpu) {
  const std::string& wanted = bench.run.trainer.strategy.process_group_backend;
  return !wanted.empty() ? wanted : gpu ? "nccl" : "gloo";
}

// Whether ranks compute on the processors that reduce, so that each costs the other time.
bool shares_processors(bool gpu, int world) {
  return !gpu && world > 1;
}

int64_t bucket_bytes(const config::StrategyConfig& strategy) {
  return std::max<int64_t>(4, static_cast<int64_t>(strategy.bucket_cap_mb * 1048576.0));
}

advisor::PlanOptions world_plan_options(const WorldBench& bench,
                                        const config::StrategyConfig& strategy,
                                        const std::string& backend) {
  advisor::PlanOptions out;
  out.bucket_cap_mib = strategy.bucket_cap_mb;
  out.first_bucket_mib = std::min(1.0, out.bucket_cap_mib);
  out.gradient_bytes = strategy.comm_hook == config::CommHook::kNone ? 4.0 : 2.0;
  out.accumulate = static_cast<int>(bench.run.trainer.accumulate_grad_batches);
  out.sync_batchnorm = bench.run.trainer.sync_batchnorm;
  out.shard_optimizer = bench.run.aerie.shard_optimizer;
  out.whole_reduces = backend == "gloo";
  out.bucket_copies = !strategy.gradient_as_bucket_view;
  return out;
}

// Of a row: what it should have taken, and how far that is from what it took.
Status add_world_prediction(const WorldBench& bench, const config::StrategyConfig& strategy,
                            const std::string& backend, const ordered_json& alone,
                            const ordered_json& calls, const ordered_json& busy,
                            ordered_json& row) {
  const int ranks = row["ranks"].get<int>();
  const ordered_json document{
      {"steps", ordered_json::array({alone})}, {"all_reduce", calls}, {"busy", busy}};
  AERIE_ASSIGN_OR_RETURN(const advisor::PlanInput input,
                         advisor::read_plan_input(document.dump(), "the measured step"));
  advisor::PlanOptions options = world_plan_options(bench, strategy, backend);
  if (!input.all_reduces.empty()) {
    AERIE_ASSIGN_OR_RETURN(options.network, advisor::fit_network(input.all_reduces));
  }
  const advisor::Plan plan =
      advisor::make_plan(input.steps.front(), {ranks}, options, input.all_reduces, input.busy);
  const advisor::StepPrediction& step = plan.rows.front().step;
  const double measured_ms = row["step"]["step_ms"].get<double>();
  const double alone_ms = alone["step_ms"].get<double>();
  const double reduce_ms = step.reduce_s * 1e3;
  const double exposed_ms = std::max(0.0, measured_ms - alone_ms - step.blocking_s * 1e3);
  row["alone_ms"] = alone_ms;
  row["reduce_ms"] = reduce_ms;
  row["overlap_share"] = reduce_ms > 0.0 ? std::clamp(1.0 - exposed_ms / reduce_ms, 0.0, 1.0) : 0.0;
  row["predicted_ms"] = step.step_s * 1e3;
  row["prediction_error"] = step.step_s * 1e3 / measured_ms - 1.0;
  return ok_status();
}

void print_world_row(const ordered_json& row) {
  const ordered_json& step = row["step"];
  std::printf("%5d  %-30s %10.2f %10.2f %10.2f %9.0f%% %10.2f %+8.0f%% %8lld %9.2f\n",
              row["ranks"].get<int>(), row["keys"].get<std::string>().c_str(),
              step["step_ms"].get<double>(), row["alone_ms"].get<double>(),
              row["reduce_ms"].get<double>(), 100.0 * row["overlap_share"].get<double>(),
              row["predicted_ms"].get<double>(), 100.0 * row["prediction_error"].get<double>(),
              static_cast<long long>(row["buckets"].get<int64_t>()),
              step["peak_memory_gib"].get<double>());
  std::fflush(stdout);
}

void print_world_head(const WorldBench& bench) {
  std::printf(
      "%lld x %g s a rank; alone: as many busy ranks that reduce no gradients; reduce: its "
      "all-reduces\nas measured one by one, and the share of them that the step hides; plan: what "
      "the formula of\n`aerie plan` makes of these and of how steps and reductions slow each other "
      "down, and its error\n",
      static_cast<long long>(bench.measure.batch_size), bench.measure.seconds);
  std::printf("%5s  %-30s %10s %10s %10s %10s %10s %9s %8s %9s\n", "ranks", "trainer.strategy",
              "step ms", "alone ms", "reduce ms", "hidden", "plan ms", "error", "buckets",
              "GiB/rank");
}

// What collectives and copies cost where nobody computes.
Result<ordered_json> measure_calls(const WorldBench& bench, dist::ProcessGroup& group,
                                   int gpu_index, bool shares) {
  ordered_json out{{"all_reduce", ordered_json::array()}};
  if (group.size() == 1) return out;
  AERIE_ASSIGN_OR_RETURN(
      const auto times,
      train::time_all_reduces(group, gpu_index, all_reduce_sizes(), kAllReduceCalls));
  for (const train::CollectiveTime& time : times)
    out["all_reduce"].push_back(
        {{"ranks", group.size()}, {"bytes", time.bytes}, {"seconds", time.seconds}});
  if (!shares) return out;
  AERIE_ASSIGN_OR_RETURN(
      const auto bucket,
      train::time_all_reduces(group, gpu_index, {bucket_bytes(bench.run.trainer.strategy)},
                              kAllReduceCalls));
  out["bucket_ms"] = bucket.front().seconds * 1e3;
  AERIE_ASSIGN_OR_RETURN(const double seconds, train::time_copies(group, kLoadBytes, kCopies));
  out["copy_gb_per_s"] = static_cast<double>(kLoadBytes) * 1e-9 / seconds;
  return out;
}

}  // namespace

Status run_bench_world(const WorldBench& bench) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int largest = *std::max_element(bench.worlds.begin(), bench.worlds.end());
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(bench.run.trainer, config::count_visible_gpus()));
  const bool gpu = devices.gpu;
  const std::string backend = backend_of(bench, gpu);
  if (gpu && largest > config::count_visible_gpus())
    return invalid_argument(str_cat("--world ", largest, " needs as many GPUs, there are ",
                                    config::count_visible_gpus()))
        .with_hint(
            "trainer.accelerator=cpu with a configuration, or CUDA_VISIBLE_DEVICES= , takes "
            "ranks of the CPU");
  if (!gpu) AERIE_RETURN_IF_ERROR(dist::check_ranks_on_cpu(largest).with_context("--world"));
  if (bench.threads > 0)
    ::setenv("OMP_NUM_THREADS", std::to_string(bench.threads).c_str(), /*overwrite=*/1);
  if (!gpu && std::max(1, bench.threads) * largest > cores)
    log_warn("bench", largest, " ranks of ", std::max(1, bench.threads), " threads on ", cores,
             " cores: they wait for each other's cores, and the figures say little");
  const TempDir scratch;
  ordered_json steps = ordered_json::array(), calls = ordered_json::array(),
               busy = ordered_json::array(), rows = ordered_json::array();
  ordered_json first_alone;
  if (!bench.json) print_world_head(bench);
  for (const int world : bench.worlds) {
    AERIE_ASSIGN_OR_RETURN(const ordered_json alone,
                           run_world_part(bench, world, kAlonePart, scratch));
    if (world == 1) steps.push_back(alone["step"]);
    if (first_alone.is_null()) first_alone = alone["step"];
    for (const ordered_json& call : alone["all_reduce"]) calls.push_back(call);
    ordered_json together = ordered_json::array();
    if (shares_processors(gpu, world)) {
      AERIE_ASSIGN_OR_RETURN(const ordered_json loaded,
                             run_world_part(bench, world, kLoadedPart, scratch));
      together.push_back({{"ranks", world},
                          {"step", alone["step"]},
                          {"loaded_step", loaded["step"]},
                          {"reduce_ms", alone["bucket_ms"]},
                          {"loaded_reduce_ms", loaded["bucket_ms"]},
                          {"copy_gb_per_s", alone["copy_gb_per_s"]}});
      busy.push_back(together.back());
    }
    for (const KeyCase& one : kKeyCases) {
      // One rank reduces nothing: that its step is as fast as without a group is what shows.
      if (one.name != kAsConfigured && (!bench.keys || world == 1)) continue;
      AERIE_ASSIGN_OR_RETURN(const ordered_json found,
                             run_world_part(bench, world, one.name, scratch));
      config::StrategyConfig strategy = bench.run.trainer.strategy;
      one.change(strategy);
      ordered_json row{{"ranks", world},
                       {"keys", one.name},
                       {"step", found["step"]},
                       {"buckets", found["buckets"]},
                       {"reduced_bytes", found["reduced_bytes"]}};
      AERIE_RETURN_IF_ERROR(add_world_prediction(bench, strategy, backend, alone["step"],
                                                 alone["all_reduce"], together, row));
      if (!bench.json) print_world_row(row);
      rows.push_back(std::move(row));
    }
  }
  // `aerie plan --measured` starts from a step of one rank; without one, from that of busy ones.
  if (steps.empty()) steps.push_back(first_alone);
  if (bench.json)
    print_document(ordered_json{{"steps", steps},
                                {"all_reduce", calls},
                                {"busy", busy},
                                {"cores", cores},
                                {"threads", bench.threads},
                                {"backend", backend},
                                {"worlds", rows}});
  return ok_status();
}

Status run_bench_rank(const WorldBench& bench, const std::string& part, const std::string& file) {
  AERIE_ASSIGN_OR_RETURN(const auto world, dist::world_from_environment());
  if (!world) return invalid_argument("--world-part is for the ranks that --world starts");
  set_log_rank(world->rank, world->size);
  config::set_launched_ranks(
      {.size = world->size, .local_size = world->local_size, .local_rank = world->local_rank});
  config::RunConfig run = bench.run;
  run.trainer.devices = {};
  run.trainer.num_nodes = 1;
  const bool loaded = part == kLoadedPart, alone = loaded || part == kAlonePart;
  const KeyCase* keys = std::find_if(std::begin(kKeyCases), std::end(kKeyCases),
                                     [&](const KeyCase& one) { return part == one.name; });
  if (!alone && keys == std::end(kKeyCases))
    return invalid_argument(str_cat("--world-part: there is no part '", part, "'"));
  if (!alone) keys->change(run.trainer.strategy);
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(run.trainer, config::count_visible_gpus()));
  dist::GroupOptions options;
  options.backend = backend_of(bench, devices.gpu);
  if (options.backend == "nccl") AERIE_RETURN_IF_ERROR(dist::nccl_available());
  options.gpu_index = devices.gpu ? static_cast<int>(devices.own) : -1;
  AERIE_ASSIGN_OR_RETURN(const std::shared_ptr<dist::ProcessGroup> group,
                         dist::join_ranks(*world, options));
  const bool shares = shares_processors(devices.gpu, world->size);
  train::NestMeasureOptions measure = bench.measure;
  ordered_json out;
  if (part == kAlonePart) {
    AERIE_ASSIGN_OR_RETURN(out, measure_calls(bench, *group, options.gpu_index, shares));
  }
  if (!alone || shares) measure.ranks = group;
  if (alone) {
    // Of one micro-batch, with the whole update.
    run.trainer.accumulate_grad_batches = 1;
    run.aerie.shard_optimizer = false;
    measure.reduces = false;
  }
  std::unique_ptr<train::ReductionLoad> load;
  if (loaded)
    measure.after_warmup = [&]() -> Status {
      AERIE_ASSIGN_OR_RETURN(load,
                             train::ReductionLoad::start(*group, kLoadBytes,
                                                         bucket_bytes(bench.run.trainer.strategy)));
      return ok_status();
    };
  AERIE_RETURN_IF_ERROR(group->barrier());
  auto measured = train::measure(run, measure);
  if (!measured.ok()) {
    group->fail(measured.status());
    return measured.status();
  }
  if (load != nullptr) {
    AERIE_ASSIGN_OR_RETURN(const double seconds, load->stop());
    out["bucket_ms"] = seconds * 1e3;
  }
  AERIE_RETURN_IF_ERROR(group->barrier());
  out["step"] = bench.to_json(*measured);
  out["buckets"] = measured->buckets;
  out["reduced_bytes"] = measured->reduced_bytes;
  if (world->rank == 0) AERIE_RETURN_IF_ERROR(Env::real().atomic_replace(file, out.dump()));
  group->leave();
  return ok_status();
}

}  // namespace aerie::tools
