#include "aerie/nn/conformer_config.h"

namespace aerie::config {

int64_t EncoderConfig::conv_channels() const {
  return subsampling_conv_channels == -1 ? d_model : subsampling_conv_channels;
}

std::array<int64_t, 2> EncoderConfig::conv_context() const {
  const int64_t half = (conv_kernel_size - 1) / 2;
  return conv_context_size.value_or(std::array<int64_t, 2>{half, half});
}

}  // namespace aerie::config
