#include "aerie/advisor/run_facts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "aerie/config/value.h"
#include "aerie/config/yaml.h"

namespace aerie::advisor {

namespace {

using config::Value;
using metrics::Record;
using metrics::RecordKind;

// A loss scale that begins too high has found its place by then.
constexpr int64_t kScaleSearchSteps = 24;

std::optional<int64_t> whole_number(const Value& config, const char* key) {
  const Value* value = config.find(key);
  if (value == nullptr || !value->is_int()) return std::nullopt;
  return value->as_int();
}

std::optional<bool> truth(const Value& config, const char* key) {
  const Value* value = config.find(key);
  if (value == nullptr || !value->is_bool()) return std::nullopt;
  return value->as_bool();
}

std::string scalar_text(const Value& config, const std::string& key) {
  const Value* value = config.find(key);
  if (value == nullptr || value->is_null() || value->is_map() || value->is_list()) return "";
  return config::python_str(*value);
}

void take_paths(const Value& value, std::vector<std::string>& out) {
  constexpr size_t kMost = 64;
  if (value.is_list()) {
    for (const Value& item : value.as_list())
      if (out.size() < kMost) take_paths(item, out);
  } else if (value.is_string() && !value.as_string().empty()) {
    out.push_back(value.as_string());
  }
}

void read_settings(const ui::ReportInput& run, RunFacts& out) {
  if (run.config_yaml.empty()) return;
  const auto parsed = config::parse_yaml(run.config_yaml, "config.yaml");
  if (!parsed.ok() || !parsed->is_map()) return;
  const Value& config = *parsed;
  out.batch_size = whole_number(config, "model.train_ds.batch_size");
  out.num_workers = whole_number(config, "model.train_ds.num_workers");
  out.prefetch_factor = whole_number(config, "model.train_ds.prefetch_factor");
  out.pin_memory = truth(config, "model.train_ds.pin_memory");
  out.use_bucketing = truth(config, "model.train_ds.use_bucketing");
  out.accumulate = whole_number(config, "trainer.accumulate_grad_batches");
  out.log_every_n_steps = whole_number(config, "trainer.log_every_n_steps");
  out.sync_batchnorm = truth(config, "trainer.sync_batchnorm").value_or(false);
  // As a mapping or in the name: "ddp_find_unused_parameters_true".
  out.find_unused = truth(config, "trainer.strategy.find_unused_parameters")
                        .value_or(ends_with(scalar_text(config, "trainer.strategy"),
                                            "find_unused_parameters_true"));
  out.static_graph = truth(config, "trainer.strategy.static_graph").value_or(false);
  out.bucket_view = truth(config, "trainer.strategy.gradient_as_bucket_view").value_or(false);
  out.precision = scalar_text(config, "trainer.precision");
  out.engine_asked = scalar_text(config, "aerie.engine");
  out.auto_workers = scalar_text(config, "model.train_ds.num_workers") == "auto";
  out.validates_by_epoch = whole_number(config, "trainer.check_val_every_n_epoch").has_value();
  out.micro_steps = scalar_text(config, "aerie.step_unit") == "micro";
  const int64_t devices = whole_number(config, "trainer.devices").value_or(1);
  const int64_t nodes = whole_number(config, "trainer.num_nodes").value_or(1);
  if (devices > 0 && nodes > 0) out.world = devices * nodes;
  for (const ui::ReportWords::Setting& setting : run.words.data_settings)
    if (const Value* value = config.find(setting.key); value != nullptr && !setting.name)
      take_paths(*value, out.data_paths);
}

void read_start(const Record& record, RunFacts& out) {
  double value = 0.0;
  if (record.number("cpus", &value)) out.cpus = static_cast<int64_t>(value);
  if (record.number("batches_per_epoch", &value))
    out.batches_per_epoch = static_cast<int64_t>(value);
  for (const char* name : {"world", "world_size", "ranks"})
    if (record.number(name, &value) && value >= 1.0) out.world = static_cast<int64_t>(value);
  out.host = record.text("host");
  out.family = record.text("family");
  const std::string engine = out.engine = record.text("engine");
  out.reference_engine = starts_with(engine, "reference");
  out.gpu = engine.find("cuda") != std::string::npos;
  // "reference engine, cpu, precision 32": where the configuration leaves it to the default.
  constexpr std::string_view kPrecision = "precision ";
  if (const size_t at = engine.rfind(kPrecision); at != std::string::npos && out.precision.empty())
    out.precision = engine.substr(at + kPrecision.size());
  // "4 workers, ring of ... (pinned), ...", "auto, at most 4 workers, ...".
  constexpr std::string_view kAuto = "auto, at most ";
  std::string loader = record.text("loader");
  out.auto_workers = out.auto_workers || starts_with(loader, kAuto);
  if (starts_with(loader, kAuto)) loader.erase(0, kAuto.size());
  if (const auto count = parse_int64(loader.substr(0, loader.find(' ')), 0, 1 << 20); count.ok())
    out.num_workers = *count;
  if (!out.pin_memory && loader.find("(pageable)") != std::string::npos) out.pin_memory = false;
}

struct Sum {
  double sum = 0.0;
  int64_t count = 0;
  void take(const Record& record, const char* name) {
    double value = 0.0;
    if (!record.number(name, &value) || !std::isfinite(value)) return;
    sum += value;
    ++count;
  }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0.0; }
};

// Where the steady part begins: train records in front of this index are warm-up.
size_t warm_records(size_t count, double share) {
  return count > 3
             ? std::max<size_t>(1, static_cast<size_t>(share * static_cast<double>(count) + 1e-9))
             : 0;
}

// Standard error of the speed over quarters of the records, as a share: what differs inside a run
// differs between two as well.
double spread_of_quarters(const std::vector<const Record*>& train, size_t skip) {
  constexpr size_t kQuarters = 4;
  const size_t records = train.size() - skip;
  if (records <= 2 * kQuarters) return 0.0;
  double sum = 0.0, squares = 0.0;
  for (size_t i = 0; i < kQuarters; ++i) {
    const Record& from = *train[skip + i * (records - 1) / kQuarters];
    const Record& to = *train[skip + (i + 1) * (records - 1) / kQuarters];
    const double seconds = to.wall_s() - from.wall_s();
    if (!(seconds > 0.0)) return 0.0;
    const double speed = static_cast<double>(to.step() - from.step()) / seconds;
    sum += speed;
    squares += speed * speed;
  }
  const double mean = sum / kQuarters;
  if (!(mean > 0.0)) return 0.0;
  const double variance = std::max(0.0, squares / kQuarters - mean * mean);
  return std::sqrt(variance / (kQuarters - 1)) / mean;
}

// What the thread that writes checkpoints did between two points of time.
void read_writer(const ui::ReportInput& run, double from_s, double to_s, RunFacts& out) {
  Sum ms, bytes;
  double busy_s = 0.0, cpu_s = 0.0;
  for (const Record& record : run.records) {
    const std::string event = record.text("event");
    if (event == "save") ++out.saves_asked;
    if (event != "saved") continue;
    double write_ms = 0.0, value = 0.0;
    ms.take(record, "write_ms");
    bytes.take(record, "bytes");
    if (record.number("superseded", &value) && value > 0.0 && value < 1e12)
      out.saves_superseded += static_cast<int64_t>(value);
    if (!record.number("write_ms", &write_ms) || !(write_ms > 0.0)) continue;
    // The event comes when the loop learns of it, soon after the end.
    const double begin = record.wall_s() - write_ms * 1e-3;
    const double inside = std::min(record.wall_s(), to_s) - std::max(begin, from_s);
    if (!(inside > 0.0)) continue;
    busy_s += inside;
    if (record.number("write_cpu_ms", &value) && value > 0.0) cpu_s += value * inside / write_ms;
  }
  out.saves_written = ms.count;
  out.write_ms = ms.mean();
  out.save_mb = bytes.mean() * 1e-6;
  const double span_s = to_s - from_s;
  if (!(span_s > 0.0)) return;
  out.write_share = std::clamp(busy_s / span_s, 0.0, 1.0);
  if (out.cpus > 0)
    out.write_cpu_share = std::clamp(cpu_s / (span_s * static_cast<double>(out.cpus)), 0.0, 1.0);
}

void read_times(const ui::ReportInput& run, double warm_share, RunFacts& out) {
  std::vector<const Record*> train;
  for (const Record& record : run.records)
    if (record.kind() == RecordKind::kTrain) train.push_back(&record);
  out.train_records = static_cast<int64_t>(train.size());
  if (train.empty()) return;
  const size_t skip = warm_records(train.size(), warm_share);
  const Record& first = *train[skip];
  const Record& last = *train.back();
  Sum step, optimizer, passes, fused, padding, amount;
  double step_of_phases = 0.0;
  for (size_t i = skip; i < train.size(); ++i) {
    const Record& record = *train[i];
    const int64_t before = step.count;
    double ms = 0.0, per_s = 0.0;
    step.take(record, "step_ms");
    if (step.count == before) continue;
    (void)record.number("step_ms", &ms);
    padding.take(record, "padding_share");
    if (double gib = 0.0; record.number("rss_gib", &gib)) out.rss_gib = std::max(out.rss_gib, gib);
    if (double gib = 0.0; record.number("gpu_mem_gib", &gib))
      out.gpu_mem_gib = std::max(out.gpu_mem_gib, gib);
    if (record.number(run.words.throughput, &per_s)) {
      amount.sum += per_s * ms * 1e-3;
      ++amount.count;
    }
    const int64_t told = passes.count + fused.count;
    passes.take(record, "forward_ms");
    if (double backward = 0.0; record.number("backward_ms", &backward)) passes.sum += backward;
    fused.take(record, "forward_backward_ms");
    optimizer.take(record, "optimizer_ms");
    if (passes.count + fused.count > told) step_of_phases += ms;
  }
  out.step_ms = step.mean();
  out.padding_share = padding.mean();
  if (fused.count > 0 && step_of_phases > 0.0)
    out.device_share = std::min(1.0, (fused.sum + optimizer.sum) / step_of_phases);
  if (passes.count > 0 && step_of_phases > 0.0)
    out.fixed_share =
        std::clamp(1.0 - (passes.sum / step_of_phases) - out.data_wait_share, 0.0, 1.0);
  if (amount.count > 0 && step.sum > 0.0) out.throughput_in_steps = amount.sum / (step.sum * 1e-3);

  // Wall time between the first and the last of them, and what lies in it beside steps.
  out.span_s = last.wall_s() - first.wall_s();
  out.span_steps = last.step() - first.step();
  double validation_s = 0.0, blocked_s = 0.0;
  for (const Record& record : run.records) {
    if (record.wall_s() <= first.wall_s() || record.wall_s() > last.wall_s()) continue;
    double value = 0.0;
    if (record.kind() == RecordKind::kVal && record.number("validation_s", &value)) {
      validation_s += value;
      ++out.validations;
    }
    if (record.text("event") == "save" && record.number("blocked_ms", &value)) {
      blocked_s += value * 1e-3;
      ++out.saves;
    }
  }
  if (out.span_s > 0.0) {
    out.validation_share = std::clamp(validation_s / out.span_s, 0.0, 1.0);
    out.save_share = std::clamp(blocked_s / out.span_s, 0.0, 1.0);
    out.steps_share = std::max(0.0, 1.0 - out.validation_share - out.save_share);
  }
  out.throughput = out.throughput_in_steps * out.steps_share;
  // By the clock, where the records reach: what lies between steps and has no name counts too.
  const int64_t width = out.micro_steps ? std::max<int64_t>(1, out.accumulate.value_or(1)) : 1;
  if (out.span_s > 0.0 && out.span_steps > 0 && amount.count > 0)
    out.throughput = amount.mean() * static_cast<double>(out.span_steps) /
                     static_cast<double>(width) / out.span_s;
  out.throughput_spread = spread_of_quarters(train, skip);
  read_writer(run, first.wall_s(), last.wall_s(), out);
}

void read_loader(const Record& record, RunFacts& out) {
  const auto number = [&](const char* name) {
    double value = 0.0;
    return record.number(name, &value) && std::isfinite(value) && value > 0.0 ? value : 0.0;
  };
  LoaderFacts& loader = out.loader;
  loader = {};
  loader.known = true;
  loader.workers = static_cast<int64_t>(number("workers"));
  if (out.auto_workers) out.num_workers = loader.workers;
  loader.limit = record.text("limit");
  loader.side = record.text("side");
  loader.finish = record.text("finish");
  loader.storage = record.text("storage");
  loader.left_out = static_cast<int64_t>(std::min(number("left_out"), 1e12));
  const double seconds = number("loader_s");
  // Without workers the consumer does the work while it waits.
  const double threads = loader.workers > 0 ? static_cast<double>(loader.workers) * seconds
                                            : number("consumer_wait_s");
  const auto share = [&](double busy_s) {
    return threads > 0.0 ? std::clamp(busy_s / threads, 0.0, 1.0) : 0.0;
  };
  const double read = number("read_busy_s");
  const double waits = std::min(1.0, number("read_wait_share"));
  loader.disk_share = share(read * waits);
  loader.decode_share = share(read * (1.0 - waits));
  loader.side_share = share(number("side_busy_s"));
  loader.finish_share = share(number("finish_busy_s"));
  loader.blocked_share = share(number("blocked_s"));
  loader.starved_share = share(number("starved_s"));
  const double wait = number("consumer_wait_s"), work = number("consumer_work_s");
  const double read_mb = number("read_bytes") * 1e-6;
  if (wait + work > 0.0) loader.read_mb_per_s = read_mb / (wait + work);
  if (work > 0.0) loader.needed_mb_per_s = read_mb / work;
  if (const double batches = number("batches"); batches > 0.0)
    loader.batch_mb = number("batch_bytes") * 1e-6 / batches;
  if (out.cpus > 0 && seconds > 0.0)
    loader.cpu_share =
        std::clamp(number("process_cpu_s") / (seconds * static_cast<double>(out.cpus)), 0.0, 1.0);
}

void read_events(const ui::ReportInput& run, RunFacts& out) {
  for (const Record& record : run.records) {
    const std::string event = record.text("event");
    if (event == "start" || event == "resume") read_start(record, out);
    if (event == "loader") read_loader(record, out);
    if (event == "first_step") out.first_step_s = record.wall_s();
    if (event == "nan") {
      ++out.skipped_steps;
      double bad_step = static_cast<double>(record.step());
      (void)record.number("bad_step", &bad_step);
      if (bad_step <= static_cast<double>(kScaleSearchSteps)) ++out.skipped_at_start;
    }
    if (event == "oom") ++out.oom_splits;
    if (event == "spike") ++out.spikes;
    if (event == "fallback") out.fallback = record.text("precision");
    if (event == "saved")
      for (const auto& [name, value] : record.fields())
        if (const bool* ok = std::get_if<bool>(&value); name == "ok" && ok != nullptr && !*ok)
          ++out.failed_saves;
  }
}

void read_ranks(const ui::ReportInput& run, RunFacts& out) {
  std::map<int64_t, int64_t> times_slowest;
  std::map<int64_t, std::map<std::string, int64_t>> whys;  // of each
  Sum least_util;
  double share = 0.0;
  int64_t reports = 0;
  for (const Record& record : run.records) {
    double rank = 0.0, slowest = 0.0, median = 0.0;
    if (record.text("event") != "ranks" || !record.number("slowest_rank", &rank) ||
        !record.number("slowest_ms", &slowest) || !record.number("median_ms", &median) ||
        !(slowest > 0.0))
      continue;
    ++reports;
    least_util.take(record, "gpu_util_min");
    ++times_slowest[static_cast<int64_t>(rank)];
    share += std::clamp((slowest - median) / slowest, 0.0, 1.0);
    ++whys[static_cast<int64_t>(rank)][record.text("why")];
  }
  if (reports == 0) return;
  if (least_util.count > 0) out.least_gpu_util_percent = least_util.mean();
  out.straggler_share = share / static_cast<double>(reports);
  int64_t most = 0;
  for (const auto& [rank, times] : times_slowest) {
    if (2 * times > reports) out.slowest_rank = rank;
    if (times <= most) continue;
    // Of the one that was it most often, what was seen most often.
    most = times;
    out.straggler_why =
        std::max_element(whys[rank].begin(), whys[rank].end(), [](auto& a, auto& b) {
          return a.second < b.second;
        })->first;
  }
}

}  // namespace

RunFacts read_facts(const ui::ReportInput& run, double warm_share) {
  RunFacts out;
  read_settings(run, out);
  read_events(run, out);
  read_ranks(run, out);
  out.view = ui::view_run(run);
  out.one_engine = run.words.one_engine;
  // The report's verdict and these rules speak of the same numbers.
  out.data_wait_share = std::clamp(out.view.verdict.data_wait_share, 0.0, 1.0);
  read_times(run, warm_share, out);
  out.gpu_util_percent = out.view.verdict.gpu_util_percent;
  out.gpu = out.gpu || out.gpu_util_percent >= 0.0;
  out.bad_samples = static_cast<int64_t>(run.bad_samples.size());
  out.bad_lines = run.bad_lines;
  return out;
}

}  // namespace aerie::advisor
