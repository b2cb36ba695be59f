// Whole recordings on their way through the encoder.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "aerie/audio/channel_selector.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/models/nest/nest_model.h"

namespace aerie::features {

// "cpu", "cuda", "cuda:1", or "auto": the first GPU where there is one. Loads torch's CUDA library
// when it is needed. Also lets torch use the CPU cores this process may use, unless OMP_NUM_THREADS
// says otherwise.
Result<at::Device> open_device(const std::string& name);

// One channel at `sample_rate`, from the first sample to the last. `paths` with is_list: files
// stacked as channels. An error when nothing is left or several channels are.
Result<std::vector<float>> read_clip(Env& env, const std::vector<std::string>& paths, bool is_list,
                                     int64_t sample_rate, const audio::ChannelSelector& channels);

struct ClipBatch {
  at::Tensor audio;    // (B,N), padded with zeros to the longest
  at::Tensor lengths;  // (B) int64 samples
};
Result<ClipBatch> make_clip_batch(std::span<const std::vector<float>* const> clips,
                                  at::Device device);

}  // namespace aerie::features
