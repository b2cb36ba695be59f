// The kinds of features that probes compare, and the tables they are fitted on.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/models/nest/probe/probe_data.h"

namespace aerie::probe {

// One utterance, per layer (one entry for features without layers).
struct UtteranceFeatures {
  std::vector<at::Tensor> frames;  // (num_centred_frames, d)
  std::vector<at::Tensor> pooled;  // (d)
};

struct FeatureSource {
  std::string name;
  bool has_layers = false;
  std::function<Result<std::vector<UtteranceFeatures>>(std::span<const Utterance* const>)> compute;
};

// Samples per encoder frame.
int64_t frame_samples_of(const nest::NestModel& model);

// The model outlives the source.
FeatureSource encoder_source(std::string name, const nest::NestModel& model);
// The preprocessor's features, all frames of one encoder frame side by side; pooled: the mean
// before normalisation.
FeatureSource log_mel_source(const nest::NestModel& model);
// Log power of each frame, less the utterance's mean; pooled: that mean.
FeatureSource energy_source(const nest::NestModel& model);

// Features of a part as matrices.
struct FeatureTable {
  std::vector<at::Tensor>
      frames;  // per layer (rows, d): frames with a label, utterance by utterance
  std::vector<at::Tensor> pooled;  // per layer (utterances, d)
};
struct TableRequest {
  bool frames = false;
  bool pooled = false;
  // Per utterance, as frame_labels() gives them; frames with -1 are left out. With `frames`.
  const std::vector<std::vector<int64_t>>* labels = nullptr;
};
// Batches of similar length; results in the order of the utterances. `done` is told of every
// finished utterance.
Result<FeatureTable> make_table(const FeatureSource& source, const std::vector<Utterance>& part,
                                const TableRequest& request,
                                const std::function<void(size_t)>& done = {});

}  // namespace aerie::probe
