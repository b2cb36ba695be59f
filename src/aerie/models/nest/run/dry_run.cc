#include "aerie/models/nest/run/dry_run.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <nlohmann/json.hpp>

#include "aerie/base/format_text.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/synthetic_batch.h"
#include "aerie/models/nest/run/nest_data.h"
#include "aerie/models/nest/run/nest_job.h"
#include "aerie/train/batch_list_source.h"

namespace aerie::train {

namespace {

DryRunSet describe_set(const std::string& name, const data::Loader& loader,
                       const config::DatasetConfig& dataset, int64_t batches) {
  DryRunSet out;
  out.name = name;
  out.samples = loader.sampler().set().size();
  for (const double duration : loader.sampler().set().lengths)
    if (std::isfinite(duration)) out.audio_s += duration;
  out.batches = batches;
  const BatchShape worst = worst_batch(loader, dataset);
  out.worst_rows = worst.rows;
  out.worst_seconds = static_cast<double>(worst.samples) / static_cast<double>(dataset.sample_rate);
  return out;
}

Result<data::SyntheticBatch> largest_batch(int64_t rows, double seconds, int64_t sample_rate) {
  data::SyntheticBatchOptions shape;
  shape.rows = rows;
  shape.samples = std::llround(seconds * static_cast<double>(sample_rate));
  shape.shortest = 1.0;
  shape.sample_rate = static_cast<int>(sample_rate);
  return data::SyntheticBatch::make(shape);
}

class NestDryRunner final : public JobDryRunner {
 public:
  NestDryRunner(Job& job, const JobDryRunOptions& options, const config::ModelConfig& model)
      : JobDryRunner(job, options), model_(model) {}

  Result<DryRunReport> report() {
    AERIE_ASSIGN_OR_RETURN(static_cast<JobDryRun&>(report_), go());
    return std::move(report_);
  }

 private:
  // The largest batch of every bucket: which of them takes the most memory hangs on the engine.
  Status before_steps() override {
    report_.sets.push_back(describe_set("train", loader_of(data_.train), model_.train_ds,
                                        cadence_.batches_per_epoch()));
    for (size_t i = 0; i < data_.sets.size(); ++i) {
      const std::string& name = data_.sets[i].name;
      report_.sets.push_back(describe_set(name.empty() ? "validation" : name,
                                          loader_of(data_.evaluation[i]), model_.validation_ds[i],
                                          data_.sets[i].batches));
    }
    report_.memory_before_gib = memory_now();
    const std::vector<BatchShape> shapes = worst_batches(loader_of(data_.train), model_.train_ds);
    for (const BatchShape& shape : shapes) {
      const bool last = &shape == &shapes.back();
      DryRunBucket bucket{
          shape.bucket, shape.rows,
          static_cast<double>(shape.samples) / static_cast<double>(model_.train_ds.sample_rate)};
      AERIE_ASSIGN_OR_RETURN(const data::SyntheticBatch batch,
                             largest_batch(bucket.rows, bucket.seconds, model_.sample_rate));
      BatchListSource source({&batch.batch()});
      while (true) {
        auto result = measure_steps(*engine_.engine, source, measure_options(last ? 1 : 0, 1));
        if (result.ok()) {
          bucket.step_ms = result->step_ms;
          report_.worst = std::move(result).value();
          break;
        }
        if (!splits(result.status()) || out_.split >= bucket.rows)
          return result.status()
              .with_context(str_cat("the largest batch", shapes.size() > 1 ? " of a bucket" : "",
                                    ", ", bucket.rows, " x ", bucket.seconds, " s"))
              .with_hint("lower model.train_ds.batch_size or max_duration");
        out_.split *= 2;
      }
      bucket.memory_gib = memory_now();
      report_.buckets.push_back(bucket);
      AERIE_RETURN_IF_ERROR(check_stop());
    }
    if (report_.worst.skipped > 0)
      out_.notes.push_back("a step on the largest batch was not finite and was skipped");
    return ok_status();
  }

  // The largest batch of every set.
  Status before_validation() override {
    const auto bad = loader_of(data_.train).bad_samples();
    if (!bad.empty())
      out_.notes.push_back(str_cat(bad.size(), " of the recordings that were read are bad: ",
                                   bad.front().place, ": ", bad.front().reason));
    for (size_t i = 1; i < report_.sets.size(); ++i) {
      const DryRunSet& set = report_.sets[i];
      AERIE_ASSIGN_OR_RETURN(const data::SyntheticBatch worst,
                             largest_batch(set.worst_rows, set.worst_seconds, model_.sample_rate));
      auto largest = engine_.engine->evaluate(worst.batch(), 0, 0);
      if (!largest.ok())
        return largest.status()
            .with_context(str_cat("model.validation_ds: the largest batch, ", set.worst_rows, " x ",
                                  set.worst_seconds, " s"))
            .with_hint("lower model.validation_ds.batch_size or max_duration");
      AERIE_RETURN_IF_ERROR(check_stop());
    }
    return ok_status();
  }

  const config::ModelConfig& model_;
  DryRunReport report_;
};

}  // namespace

BatchShape worst_batch(const data::Loader& loader, const config::DatasetConfig& dataset) {
  const std::vector<BatchShape> all = worst_batches(loader, dataset);
  return all.empty() ? BatchShape{} : all.back();
}

std::vector<BatchShape> worst_batches(const data::Loader& loader,
                                      const config::DatasetConfig& dataset) {
  const data::SampleSet& set = loader.sampler().set();
  const std::vector<int64_t> capacities = data::row_lengths(loader);
  const double rate = static_cast<double>(dataset.sample_rate);
  double longest = 0.0;
  for (const double duration : set.lengths)
    if (std::isfinite(duration)) longest = std::max(longest, duration);
  const int64_t limit = capacities.empty() ? 0 : capacities.back();
  // Rows can be longer than the recordings (speed perturbation, short clips filled up), never
  // longer than the largest row of the loader.
  const double stretch =
      longest > 0.0 ? std::max(1.0, static_cast<double>(limit - 64) / (longest * rate)) : 1.0;
  const auto samples_of = [&](double duration) -> int64_t {
    if (!std::isfinite(duration) || longest <= 0.0) return limit;
    const auto samples = static_cast<int64_t>(duration * rate * stretch);
    return std::clamp<int64_t>(samples, 1, std::max<int64_t>(1, limit));
  };

  // Where batches of a bucket have one size, its longest clips may meet in one batch. Where the
  // size follows the durations, what the plan holds is all there is.
  const bool fixed_sizes = !dataset.batch_duration.has_value();
  struct Section {
    int64_t rows = 0, samples = 0;
    BatchShape worst;
    void consider(int64_t more_rows, int64_t more_samples) {
      const BatchShape other{more_rows, more_samples, worst.bucket};
      if (other.size() > worst.size() ||
          (other.size() == worst.size() && other.samples > worst.samples))
        worst = other;
    }
  };
  std::map<uint32_t, Section> sections;
  const auto plan = loader.sampler().plan(0);
  std::vector<data::PlannedSample> batch;
  for (uint64_t k = 0; k < plan->num_steps() * plan->num_lanes(); ++k) {
    const uint32_t section =
        plan->batch(k / plan->num_lanes(), static_cast<uint32_t>(k % plan->num_lanes()), batch);
    int64_t samples = 0;
    for (const data::PlannedSample& sample : batch)
      samples = std::max(samples, samples_of(set.lengths[sample.sample]));
    const int64_t rows = static_cast<int64_t>(batch.size());
    Section& all = sections[section];
    all.worst.bucket = section;
    all.consider(rows, samples);
    all.rows = std::max(all.rows, rows);
    all.samples = std::max(all.samples, samples);
  }
  if (fixed_sizes)
    for (auto& [id, section] : sections) section.consider(section.rows, section.samples);
  // A clip that drop_last leaves out of this epoch may be the longest of the next.
  if (fixed_sizes && sections.size() == 1)
    sections.begin()->second.consider(sections.begin()->second.rows, samples_of(longest));
  std::vector<BatchShape> out;
  for (const auto& [id, section] : sections) out.push_back(section.worst);
  std::sort(out.begin(), out.end(), [](const BatchShape& a, const BatchShape& b) {
    return a.size() != b.size() ? a.size() < b.size() : a.samples < b.samples;
  });
  return out;
}

std::string DryRunReport::to_text() const {
  std::string out;
  const auto row = [&](const char* name, const std::string& text) {
    out += dry_run_row(name, text);
  };
  for (size_t i = 0; i < sets.size(); ++i) {
    const DryRunSet& set = sets[i];
    row(i == 0 ? "data" : "",
        str_cat(set.name, ": ", set.samples, " clips, ", format_text("%.2f", set.audio_s / 3600.0),
                " h, ", set.batches, " batches, the largest ", set.worst_rows, " x ",
                format_text("%.2f", set.worst_seconds), " s"));
  }
  row("largest", str_cat(format_text("%.1f", worst.step_ms), " ms a step",
                         split > 1 ? str_cat(" in ", split, " parts") : std::string(), ":"));
  out += worst.to_text();
  for (size_t i = 0; i < buckets.size() && buckets.size() > 1; ++i)
    row(i == 0 ? "buckets" : "",
        str_cat(buckets[i].rows, " x ", format_text("%.2f", buckets[i].seconds),
                " s: ", format_text("%.1f", buckets[i].step_ms), " ms, memory so far ",
                format_text("%.2f", buckets[i].memory_gib), " GiB"));
  return out + JobDryRun::to_text();
}

std::string DryRunReport::to_json() const {
  using nlohmann::ordered_json;
  ordered_json json = ordered_json::parse(JobDryRun::to_json());
  ordered_json list = ordered_json::array();
  for (const DryRunSet& set : sets)
    list.push_back({{"name", set.name},
                    {"samples", set.samples},
                    {"audio_s", set.audio_s},
                    {"batches", set.batches},
                    {"worst_rows", set.worst_rows},
                    {"worst_seconds", set.worst_seconds}});
  json["data"] = std::move(list);
  json["worst_batch"] = ordered_json::parse(worst.to_json());
  json["worst_batch"]["split"] = split;
  json["memory_before_gib"] = memory_before_gib;
  json["buckets"] = ordered_json::array();
  for (const DryRunBucket& one : buckets)
    json["buckets"].push_back({{"bucket", one.bucket},
                               {"rows", one.rows},
                               {"seconds", one.seconds},
                               {"step_ms", one.step_ms},
                               {"memory_gib", one.memory_gib}});
  json["nemo_bytes"] = archive_bytes;
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

Result<DryRunReport> dry_run_nest(const DryRunOptions& options) {
  const config::RunConfig& run = options.config->run;
  const std::unique_ptr<Job> job = make_nest_job(*options.config);
  JobDryRunOptions all;
  all.env = options.env;
  all.stop = options.stop;
  if (run.init_from.kind != config::InitFromConfig::Kind::kNone)
    all.initialised_from = run.init_from.sources.front().path;
  return NestDryRunner(*job, all, run.model).report();
}

}  // namespace aerie::train
