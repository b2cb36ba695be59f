// Small filters and sources of the synthesiser. State in double; each object belongs to one signal.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

#include "aerie/base/philox.h"

namespace aerie::data::synth {

// White noise, uniform in [-1, 1): sample n of a Philox stream.
class WhiteNoise final {
 public:
  WhiteNoise(uint64_t seed, uint32_t stream, uint64_t position)
      : key_(philox_key(seed, Purpose::kSynth)), stream_(stream), position_(position) {}
  double next() {
    if (left_ == 0) {
      block_ = philox_block(key_, stream_, position_, count_++);
      left_ = 4;
    }
    return static_cast<double>(static_cast<int32_t>(block_.v[--left_])) * 0x1p-31;
  }

 private:
  PhiloxKey key_;
  uint32_t stream_;
  uint64_t position_;
  uint32_t count_ = 0;
  int left_ = 0;
  PhiloxBlock block_{};
};

// Two-pole resonance with a gain of 1 at 0 Hz: y = a x + b y1 + c y2.
class Resonator final {
 public:
  void set(double hz, double bandwidth_hz, double sample_rate) {
    const double radius = std::exp(-std::numbers::pi * bandwidth_hz / sample_rate);
    c_ = -radius * radius;
    b_ = 2.0 * radius * std::cos(2.0 * std::numbers::pi * hz / sample_rate);
    a_ = 1.0 - b_ - c_;
  }
  // As a band-pass: gain of about 1 at the centre, none at 0 Hz and at half the rate.
  void set_bandpass(double hz, double bandwidth_hz, double sample_rate) {
    set(hz, bandwidth_hz, sample_rate);
    a_ = 0.5 * (1.0 + c_);
  }
  double run(double x) {
    const double y = a_ * x + b_ * y1_ + c_ * y2_;
    y2_ = y1_;
    y1_ = y;
    return y;
  }
  double run_bandpass(double x) {
    const double y = run(x - x2_);
    x2_ = x1_;
    x1_ = x;
    return y;
  }

 private:
  double a_ = 1.0, b_ = 0.0, c_ = 0.0;
  double y1_ = 0.0, y2_ = 0.0, x1_ = 0.0, x2_ = 0.0;
};

// The inverse of a Resonator: a notch with a gain of 1 at 0 Hz.
class AntiResonator final {
 public:
  void set(double hz, double bandwidth_hz, double sample_rate) {
    const double radius = std::exp(-std::numbers::pi * bandwidth_hz / sample_rate);
    const double c = -radius * radius;
    const double b = 2.0 * radius * std::cos(2.0 * std::numbers::pi * hz / sample_rate);
    const double a = 1.0 - b - c;
    a_ = 1.0 / a;
    b_ = -b / a;
    c_ = -c / a;
  }
  double run(double x) {
    const double y = a_ * x + b_ * x1_ + c_ * x2_;
    x2_ = x1_;
    x1_ = x;
    return y;
  }

 private:
  double a_ = 1.0, b_ = 0.0, c_ = 0.0;
  double x1_ = 0.0, x2_ = 0.0;
};

// One-pole low-pass with a gain of 1 at 0 Hz.
class LowPass final {
 public:
  void set(double hz, double sample_rate) {
    k_ = 1.0 - std::exp(-2.0 * std::numbers::pi * hz / sample_rate);
  }
  double run(double x) { return y_ += k_ * (x - y_); }

 private:
  double k_ = 1.0;
  double y_ = 0.0;
};

}  // namespace aerie::data::synth
