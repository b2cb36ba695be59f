// Comparing with fixture files of the reference (README.md): every kind of file has one function.
// Tolerances are those of the fixtures' own check.
#pragma once

#include <stdexcept>
#include <utility>

#include "aerie/base/status.h"
#include "checks.h"
#include "fixture.h"

namespace aerie::bev::parity {

template <typename T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return std::move(result).value();
}

void check_geometry(const Fixture& fixture, Checks& checks);
void check_splat(const Fixture& fixture, Checks& checks);
void check_metrics(const Fixture& fixture, Checks& checks);
// Poses, augmentation matrices, hash_uniform.
void check_matrices(const Fixture& fixture, Checks& checks);

// With torch (model_parity.cc), on the CPU or on the first GPU, there without TF32.
// One block, bilinear resizing, the map's resampling.
void check_layers(const Fixture& fixture, bool gpu, Checks& checks);
// The splat and the counts of the metric as tensor operations.
void check_splat_tensors(const Fixture& fixture, bool gpu, Checks& checks);
void check_count_tensors(const Fixture& fixture, bool gpu, Checks& checks);
// A training pass with all its gradients, a step of AdamW and an evaluation pass.
void check_model(const Fixture& fixture, bool gpu, Checks& checks);
// A training pass of full size, weights and inputs made by hash_uniform: a minute or two on a CPU.
void check_full_model(const Fixture& fixture, bool gpu, Checks& checks);

struct RunOptions {
  bool gpu = false;  // what torch computes, on the first GPU
};

// Recognises the kind by what the file holds, checks it and prints the table. False: something
// differs, or the file cannot be used.
bool run_file(const std::string& path, const RunOptions& options);

}  // namespace aerie::bev::parity
