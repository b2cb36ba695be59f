// The command lines of crash tests: a tiny corpus and a tiny model on the CPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"

namespace aerie::crash {

inline std::vector<std::string> synth_command(const std::string& corpus) {
  return {aerie_binary(), "data", "synth",          "--out", corpus,           "--hours", "0.03",
          "--speakers",   "5",    "--min-duration", "1",     "--max-duration", "1.6"};
}

inline std::vector<std::string> train_command(const std::string& corpus, const std::string& runs,
                                              const std::string& name, int64_t steps) {
  return {aerie_binary(),
          "train",
          str_cat("--config-path=", config_dir("/nest")),
          "--config-name=nest_quickstart",
          str_cat("model.train_ds.manifest_filepath=", corpus, "/train.json"),
          str_cat("model.train_ds.noise_manifest=", corpus, "/noise.json"),
          str_cat("model.validation_ds.manifest_filepath=", corpus, "/dev.json"),
          str_cat("model.validation_ds.noise_manifest=", corpus, "/noise.json"),
          "model.train_ds.batch_size=2",
          "model.num_classes=16",
          "model.code_dim=4",
          "model.encoder.n_layers=1",
          "model.encoder.d_model=16",
          "model.encoder.n_heads=2",
          "model.encoder.subsampling_conv_channels=8",
          "model.encoder.ff_expansion_factor=2",
          "trainer.accelerator=cpu",
          "+trainer.deterministic=true",
          str_cat("trainer.max_steps=", steps),
          "trainer.val_check_interval=10",
          "+trainer.limit_val_batches=2",
          "trainer.log_every_n_steps=1",
          "trainer.enable_progress_bar=false",
          str_cat("exp_manager.exp_dir=", runs),
          str_cat("exp_manager.name=", name),
          "+exp_manager.checkpoint_callback_params.every_n_train_steps=3"};
}

}  // namespace aerie::crash
