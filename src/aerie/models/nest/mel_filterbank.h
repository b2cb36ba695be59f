// The mel filterbank, free of torch: plain numbers in NeMo's (librosa's) order of rounding, so that
// the stored buffer is equal to the last bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::nest {

struct FilterbankOptions {
  int64_t sample_rate = 16000;
  int64_t n_fft = 512;
  int64_t num_mels = 80;
  double low_hz = 0.0;
  double high_hz = 8000.0;
  // "slaney": every triangle has unit area. "": peaks of 1. "1", "2", "inf": rows divided by that
  // norm.
  std::string norm = "slaney";
};

// Whether the options make a filterbank; the norm is one of the above.
Status check_filterbank(const FilterbankOptions& options);

// Triangular filters on the Slaney mel scale, row-major (num_mels, n_fft/2 + 1): computed in
// float64, triangles rounded to float32, multiplied by the float64 area factor, rounded again.
// The options have passed check_filterbank().
std::vector<float> mel_filterbank(const FilterbankOptions& options);

}  // namespace aerie::nest
