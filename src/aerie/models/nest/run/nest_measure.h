// measure() for NEST: from a configuration to the time of a training step and its phases, on
// made-up batches, in this process. What `aerie bench step` prints and a search for settings calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/train/measure.h"

namespace aerie::train {

struct NestMeasureOptions {
  int64_t steps = 12;
  int64_t warmup = 4;
  int64_t batch_size = 16;
  double seconds = 15.0;  // of the longest clip
  double shortest = 0.8;  // the shortest, as a share of it; lengths are spread evenly
  int64_t batches = 2;    // different batches, used in turn
  bool wait_for_results = true;
  std::function<bool()> stop;            // may be empty
  std::function<Status()> after_warmup;  // as MeasureOptions has it
  // Who trains this model together, each with batches of its own; null: this process alone.
  std::shared_ptr<dist::ProcessGroup> ranks;
  bool reduces = true;  // as EngineOptions has it
};

struct NestMeasurement {
  Measurement steps;
  std::string engine;  // description
  int64_t parameters = 0;
  int64_t batch_size = 0;
  double seconds = 0.0;
  double padded_audio_s = 0.0;  // batch size x seconds: how Python's benchmarks count
  double build_s = 0.0;         // making the model and the engine
  double step_tflop = 0.0;      // of the matrix products of a step, forward and backward
  double device_gib = 0.0;      // most memory in use on the GPU, by NVML; 0: not known
  int64_t buckets = 0;          // of gradients in a step; 0: no other ranks
  int64_t reduced_bytes = 0;    // by a rank in a step
};

// Trains a model with fresh weights for options.warmup + options.steps steps.
Result<NestMeasurement> measure(const config::RunConfig& config, const NestMeasureOptions& options);

// The stock NEST-L configuration (nest_fast-conformer.yaml), without data.
config::RunConfig nest_l_config();

// Multiply-adds times two of the matrix products of one step, in 1e12: encoder and decoder, forward
// and twice that for backward.
double nest_step_tflop(const config::ModelConfig& model, int64_t batch_size, double seconds);

}  // namespace aerie::train
