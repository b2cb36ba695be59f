#include "aerie/kernels/mix/mix_rows.h"

namespace aerie::kernels::reference {

namespace {

float value(const float* f32, const int16_t* i16, int64_t at) {
  return f32 != nullptr ? f32[at] : static_cast<float>(i16[at]) * (1.0f / 32768.0f);
}

}  // namespace

int mix_rows(const MixRows& a, void*) {
  if (a.rows <= 0 || a.stride <= 0) return kUnsupported;
  for (int64_t b = 0; b < a.rows; ++b) {
    const int64_t begin = b * a.stride;
    for (int64_t k = 0; k < a.stride; ++k) {
      a.noisy[begin + k] = value(a.clean_f32, a.clean_i16, begin + k);
      if (a.audio != nullptr) a.audio[begin + k] = a.noisy[begin + k];
    }
    const MixRowsItem& item = a.items[b];
    for (int32_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
      const MixRowsSegment& segment = a.segments[s];
      for (int64_t k = 0; k < segment.length; ++k) {
        const int64_t at =
            segment.row * a.stride + (segment.source_begin + k) % segment.source_period;
        // A volatile product keeps the compiler from fusing it with the sum.
        const volatile float scaled =
            item.gain * (segment.is_speech != 0 ? value(a.clean_f32, a.clean_i16, at)
                                                : value(a.noise_f32, a.noise_i16, at));
        a.noisy[begin + segment.dest_begin + k] += scaled;
      }
    }
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
