// A tiny run for tests: a corpus of short noisy clips, the quick-start configuration with a very
// small model, and the records it leaves.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/speech/test_corpus.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/run/nest_job.h"
#include "aerie/train/run.h"

namespace aerie::train {

class TinyRun {
 public:
  explicit TinyRun(int clips = 24) : corpus_(clips) {
    corpus_.add_noise(3);
    // Two short validation sets: the first clips, and the others of the first dozen.
    std::string first, second;
    for (int i = 0; i < 12; ++i)
      (i < 6 ? first : second) += data::TestCorpus::line(
          str_cat("utt", i, ".wav"),
          static_cast<double>(corpus_.samples[static_cast<size_t>(i)].size()) / 16000);
    data::write_file(corpus_.dir.file("dev_clean.json"), first);
    data::write_file(corpus_.dir.file("dev_other.json"), second);
  }

  std::string file(const std::string& name) const { return corpus_.dir.file(name); }
  std::string run_dir() const { return file("runs/tiny"); }
  std::string checkpoints() const { return run_dir() + "/checkpoints"; }

  Result<config::LoadedConfig> config(const std::vector<std::string>& overrides,
                                      bool for_training = true) const {
    config::ConfigArgs args;
    args.config_path = config_dir("/nest");
    args.config_name = "nest_quickstart";
    args.overrides = {"name=tiny",
                      "model.train_ds.manifest_filepath=" + corpus_.manifest,
                      "model.train_ds.noise_manifest=" + corpus_.noise,
                      "model.train_ds.min_duration=0",
                      "model.train_ds.batch_size=4",
                      "model.train_ds.num_workers=1",
                      "model.validation_ds.manifest_filepath=" + file("dev_clean.json"),
                      "model.validation_ds.min_duration=0",
                      "model.validation_ds.batch_size=2",
                      "model.validation_ds.num_workers=1",
                      "aerie.data.min_audio_len_secs=0.06",
                      "aerie.max_bad_fraction=1.0",
                      "model.masking.mask_prob=0.1",
                      "model.masking.block_size=16",
                      "model.num_classes=16",
                      "model.encoder.d_model=16",
                      "model.encoder.n_layers=1",
                      "model.encoder.n_heads=2",
                      "model.encoder.subsampling_conv_channels=8",
                      "trainer.accelerator=cpu",
                      "trainer.devices=1",
                      "trainer.max_steps=6",
                      "trainer.val_check_interval=3",
                      "trainer.log_every_n_steps=1",
                      "exp_manager.exp_dir=" + file("runs")};
    args.overrides.insert(args.overrides.end(), overrides.begin(), overrides.end());
    config::LoadOptions options;
    options.for_training = for_training;
    options.num_gpus = 0;
    return config::load_run_config(args, options);
  }

  Result<RunResult> train(const std::vector<std::string>& overrides) const {
    AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config(overrides));
    RunOptions options;
    options.command = "test";
    options.env = &Env::real();
    options.quiet = true;
    return run_training(*make_nest_job(loaded), options);
  }

  std::vector<metrics::Record> records(metrics::RecordKind kind) const {
    std::vector<metrics::Record> out;
    const auto file = metrics::read_metrics(Env::real(), run_dir() + "/metrics.jsonl");
    if (!file.ok()) return out;
    for (const metrics::Record& record : file->records)
      if (record.kind() == kind) out.push_back(record);
    return out;
  }
  std::vector<int64_t> steps(metrics::RecordKind kind) const {
    std::vector<int64_t> out;
    for (const metrics::Record& record : records(kind)) out.push_back(record.step());
    return out;
  }
  // Values of a field over the records of a kind.
  std::vector<double> values(metrics::RecordKind kind, const std::string& name) const {
    std::vector<double> out;
    double value = 0.0;
    for (const metrics::Record& record : records(kind))
      if (record.number(name, &value)) out.push_back(value);
    return out;
  }
  std::set<std::string> checkpoint_names() const { return names(checkpoints()); }
  static std::set<std::string> names(const std::string& folder) {
    std::set<std::string> out;
    const auto entries = Env::real().list_dir(folder);
    if (entries.ok())
      for (const DirEntry& entry : *entries) out.insert(entry.name);
    return out;
  }

 private:
  data::TestCorpus corpus_;
};

}  // namespace aerie::train
