#include "aerie/data/nuscenes/synth/texture.h"

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

struct Look {
  Colour colour;
  double coarse, fine;             // periods in metres
  float coarse_swing, fine_swing;  // share of the colour
};
// In the order of Ground.
constexpr Look kLooks[kNumGrounds] = {
    {{101, 104, 91}, 1.70, 0.42, 0.26f, 0.20f},   // terrain: blotches
    {{96, 97, 100}, 0.60, 0.09, 0.04f, 0.12f},    // drivable: fine grain
    {{113, 108, 103}, 2.40, 0.15, 0.05f, 0.05f},  // walkway: slabs
    {{104, 101, 103}, 0.90, 0.20, 0.06f, 0.06f},  // car park: cobbles
    {{98, 97, 98}, 0.60, 0.09, 0.04f, 0.12f},     // crossing, between its stripes
    {{206, 204, 196}, 0.50, 0.12, 0.07f, 0.07f},  // its stripes
    {{190, 176, 160}, 0.35, 0.10, 0.22f, 0.10f},  // stop line: worn paint
    {{208, 200, 168}, 0.80, 0.10, 0.06f, 0.06f},  // divider
};

// The largest integer not above a value of a few thousands; std::floor is a call on old CPUs.
int below(double value) {
  return static_cast<int>(value + 65536.0) - 65536;
}

// 1 while a pattern is larger than the footprint, falling to 0 where it is much finer.
float visible(double period, double footprint) {
  const double ratio = footprint / period;
  return static_cast<float>(1.0 / (1.0 + ratio * ratio * ratio));
}

}  // namespace

Texture::Texture(uint64_t seed, int location)
    : seed_(philox_u32(philox_key(seed, Purpose::kSynth), kTextureStream,
                       static_cast<uint64_t>(location), 0)) {}

float Texture::noise(double x, double y, double period, uint32_t seed) {
  const double column = x / period, row = y / period;
  const int i = below(column), j = below(row);
  float s = static_cast<float>(column - i), t = static_cast<float>(row - j);
  s = s * s * (3.0f - 2.0f * s);
  t = t * t * (3.0f - 2.0f * t);
  const auto corner = [&](int dx, int dy) {
    return static_cast<float>(hash(i + dx, j + dy, seed) >> 8) * (2.0f / 16777215.0f) - 1.0f;
  };
  const float low = corner(0, 0) * (1.0f - s) + corner(1, 0) * s;
  const float high = corner(0, 1) * (1.0f - s) + corner(1, 1) * s;
  return low * (1.0f - t) + high * t;
}

Colour Texture::at(Ground ground, double x, double y, double footprint) const {
  const int kind = static_cast<int>(ground);
  const Look& look = kLooks[kind];
  const uint32_t seed = seed_ + 0x1000193u * static_cast<uint32_t>(kind + 1);
  float level = 1.0f;
  // Weather and wear: light and dark stretches that all kinds share.
  level += 0.20f * noise(x, y, 23.0, seed_);
  if (const float seen = visible(look.coarse, footprint); seen > 0.03f)
    level += seen * look.coarse_swing * noise(x, y, look.coarse, seed);
  if (const float seen = visible(look.fine, footprint); seen > 0.03f)
    level += seen * look.fine_swing * noise(x, y, look.fine, seed ^ 0x55555555u);
  if (ground == Ground::kWalkway) {
    // Slabs of 0.9 m with dark joints, each of a shade of its own.
    const int column = below(x / 0.9);
    const double across = y / 0.9 + 0.5 * (column & 1);
    const int row = below(across);
    const float seen = visible(0.9, footprint);
    const uint32_t shade = hash(column, row, seed);
    level += seen * (static_cast<float>(shade >> 24) * (0.16f / 255.0f) - 0.08f);
    if (x / 0.9 - column < 0.06 || across - row < 0.06) level -= 0.28f * visible(0.5, footprint);
  } else if (ground == Ground::kCarpark) {
    // Light and dark cobbles.
    const int check = (below(x / 0.45) + below(y / 0.45)) & 1;
    level += visible(0.6, footprint) * (check ? 0.12f : -0.12f);
  }
  // Hue drifts too.
  const float warm = 0.10f * noise(x, y, 31.0, seed_ ^ 0xABCDEFu);
  return {look.colour.r * level * (1.0f + warm), look.colour.g * level,
          look.colour.b * level * (1.0f - warm)};
}

}  // namespace aerie::nuscenes::synth
