#include "aerie/kernels/mix/mix_rows.h"

namespace aerie::kernels {

namespace {

float value(const float* f32, const int16_t* i16, int64_t at) {
  return f32 != nullptr ? f32[at] : static_cast<float>(i16[at]) * (1.0f / 32768.0f);
}

}  // namespace

void mix_rows_ref(float* audio, float* noisy, const MixRowsArgs& args) {
  for (int64_t b = 0; b < args.rows; ++b) {
    const int64_t begin = b * args.stride;
    for (int64_t k = 0; k < args.stride; ++k) {
      noisy[begin + k] = value(args.clean_f32, args.clean_i16, begin + k);
      if (audio != nullptr) audio[begin + k] = noisy[begin + k];
    }
    const RowItem& item = args.items[b];
    for (int32_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
      const RowSegment& segment = args.segments[s];
      for (int64_t k = 0; k < segment.length; ++k) {
        const int64_t at =
            segment.row * args.stride + (segment.source_begin + k) % segment.source_period;
        // A volatile product keeps the compiler from fusing it with the sum.
        const volatile float scaled =
            item.gain * (segment.is_speech != 0 ? value(args.clean_f32, args.clean_i16, at)
                                                : value(args.noise_f32, args.noise_i16, at));
        noisy[begin + segment.dest_begin + k] += scaled;
      }
    }
  }
}

}  // namespace aerie::kernels
