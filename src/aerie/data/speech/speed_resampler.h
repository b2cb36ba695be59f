// Band-limited interpolation with a Kaiser-windowed sinc (J. O. Smith's method, as the resampy
// package tabulates it): what `resample_type: kaiser_best | kaiser_fast` of the speed perturbation
// means. Results equal librosa.resample(res_type=...) to about 1e-6 of full scale.
//
// Output lengths: librosa's ceil(n * new_rate / old_rate). Not thread-safe; one per thread. Filters
// of rates used before are kept, so that a few discrete rates cost one dot product per sample.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::data {

class SpeedResampler {
 public:
  // "kaiser_best" or "kaiser_fast"; others are refused by name.
  static Result<SpeedResampler> make(std::string_view resample_type);

  static int64_t output_length(int64_t n, int old_rate, int new_rate);
  // `out` is resized (capacity is kept). Too short an input (no output sample) is copied as it is.
  void resample(const std::vector<float>& in, int old_rate, int new_rate, std::vector<float>& out);

 private:
  // Half of the window, `steps` table entries per zero crossing.
  struct Table {
    int steps = 0;
    std::vector<double> window;
  };
  // Taps of every phase of a rational ratio: x[first + k] * taps[phase * width + k].
  struct Phases {
    int width = 0;
    int before = 0;  // taps at or left of the current input sample
    std::vector<float> taps;
  };

  explicit SpeedResampler(std::shared_ptr<const Table> table) : table_(std::move(table)) {}
  static std::shared_ptr<const Table> make_table(int zeros, int bits, double beta, double rolloff);
  void fill_taps(double fraction, double ratio, int before, int width, float* taps) const;
  const Phases& phases_for(int old_rate, int new_rate, int num_phases);

  std::shared_ptr<const Table> table_;
  std::map<std::pair<int, int>, Phases> phases_;
  std::vector<float> scratch_;
};

}  // namespace aerie::data
