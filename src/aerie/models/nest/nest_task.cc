#include "aerie/models/nest/nest_task.h"

namespace aerie::nest {

namespace {
constexpr const char* kMaskedShare = "masked_share";
}  // namespace

train::TaskInfo nest_task() {
  train::TaskInfo task;
  task.name = "NEST";
  task.family = "nest";
  task.amount = "audio_s";
  task.throughput = "audio_s_per_s";
  task.throughput_unit = "audio-s/s";
  task.sample = "clip";
  task.smaller_batch = "lower model.train_ds.batch_size or max_duration";
  task.smaller_sample = "lower model.train_ds.max_duration";
  task.lower_rate = "lower model.optim.lr";
  return task;
}

ui::ReportWords nest_report_words() {
  const train::TaskInfo task = nest_task();
  ui::ReportWords out;
  out.loss_unit = "nats";
  out.throughput = task.throughput;
  out.throughput_text = "audio seconds per second";
  out.throughput_head = "audio s/s";
  out.faster_data = "Raise model.train_ds.num_workers, or pack the data (aerie data pack)";
  out.longer_steps = "Raise model.train_ds.batch_size";
  out.shares = {{"masked_share", "masked share of frames"}};
  out.data_settings = {{"model.train_ds.manifest_filepath", "training set"},
                       {"model.train_ds.tarred_audio_filepaths", "its tar files"},
                       {"model.train_ds.noise_manifest", "noise"},
                       {"model.validation_ds.manifest_filepath", "validation set"}};
  return out;
}

void add_frames(train::StepOutcome& outcome, int64_t masked, int64_t frames) {
  outcome.metrics.add(kMaskedShare, static_cast<double>(masked), static_cast<double>(frames));
}

int64_t masked_frames(const train::StepOutcome& outcome) {
  const train::MetricValue* share = outcome.metrics.find(kMaskedShare);
  return share == nullptr ? 0 : static_cast<int64_t>(share->sum);
}

int64_t all_frames(const train::StepOutcome& outcome) {
  const train::MetricValue* share = outcome.metrics.find(kMaskedShare);
  return share == nullptr ? 0 : static_cast<int64_t>(share->weight);
}

}  // namespace aerie::nest
