// Colours of the ground: world-anchored noise of two octaves and a pattern for each kind.
// Brightness and hue drift over tens of metres, so that kinds differ by their pattern and not by
// one colour.
#pragma once

#include <cmath>
#include <cstdint>

#include "aerie/data/nuscenes/synth/town.h"

namespace aerie::nuscenes::synth {

struct Colour {
  float r = 0, g = 0, b = 0;
};
inline Colour operator+(const Colour& a, const Colour& b) {
  return {a.r + b.r, a.g + b.g, a.b + b.b};
}
inline Colour operator*(float s, const Colour& a) {
  return {s * a.r, s * a.g, s * a.b};
}

class Texture final {
 public:
  Texture(uint64_t seed, int location);
  // `footprint`: metres of ground that a pixel covers; patterns finer than it fade.
  Colour at(Ground ground, double x, double y, double footprint) const;
  // Sensor noise of a pixel, a few grey levels.
  float grain(uint32_t seed, int u, int v) const {
    return static_cast<float>(hash(u, v, seed) >> 24) * (4.0f / 255.0f) - 2.0f;
  }

 private:
  static uint32_t hash(int x, int y, uint32_t seed) {
    uint32_t h =
        static_cast<uint32_t>(x) * 0x9E3779B1u ^ static_cast<uint32_t>(y) * 0x85EBCA77u ^ seed;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    h ^= h >> 12;
    h *= 0x297A2D39u;
    return h ^ h >> 15;
  }
  // Smooth noise in [-1, 1] on a lattice of the given period.
  static float noise(double x, double y, double period, uint32_t seed);

  uint32_t seed_;
};

}  // namespace aerie::nuscenes::synth
