// A small room: four comb filters and two all-passes (Schroeder), mixed with the direct sound.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace aerie::data::synth {

class Reverb final {
 public:
  // `time_s`: decay by 60 dB. `level`: amplitude of the reverberation relative to the direct sound.
  Reverb(double time_s, double level);
  double run(double input);

 private:
  struct Delay {
    std::vector<double> line;
    size_t at = 0;
    double feedback = 0.0;
    double damped = 0.0;
  };
  std::array<Delay, 4> combs_;
  std::array<Delay, 2> allpasses_;
  double level_;
};

}  // namespace aerie::data::synth
