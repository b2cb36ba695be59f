#include "aerie/data/speech/synth/reverb.h"

#include <algorithm>
#include <cmath>

#include "aerie/data/speech/synth/utterance.h"

namespace aerie::data::synth {

Reverb::Reverb(double time_s, double level) : level_(level) {
  // Delays without common factors, so that echoes do not pile up.
  constexpr std::array<double, 4> kCombMs{29.7, 37.1, 41.1, 43.7};
  constexpr std::array<double, 2> kAllpassMs{5.0, 1.7};
  for (size_t i = 0; i < combs_.size(); ++i) {
    const double delay_s = kCombMs[i] * 1e-3;
    combs_[i].line.assign(static_cast<size_t>(delay_s * kSampleRate), 0.0);
    combs_[i].feedback = std::pow(10.0, -3.0 * delay_s / std::max(time_s, 0.01));
  }
  for (size_t i = 0; i < allpasses_.size(); ++i) {
    allpasses_[i].line.assign(static_cast<size_t>(kAllpassMs[i] * 1e-3 * kSampleRate), 0.0);
    allpasses_[i].feedback = 0.7;
  }
}

double Reverb::run(double input) {
  double wet = 0.0;
  for (Delay& comb : combs_) {
    double& cell = comb.line[comb.at];
    const double out = cell;
    // Walls swallow treble first.
    comb.damped += 0.6 * (out - comb.damped);
    cell = input + comb.feedback * comb.damped;
    if (++comb.at == comb.line.size()) comb.at = 0;
    wet += out;
  }
  for (Delay& allpass : allpasses_) {
    double& cell = allpass.line[allpass.at];
    const double out = cell - allpass.feedback * wet;
    cell = wet + allpass.feedback * out;
    if (++allpass.at == allpass.line.size()) allpass.at = 0;
    wet = out;
  }
  return input + level_ * wet;
}

}  // namespace aerie::data::synth
