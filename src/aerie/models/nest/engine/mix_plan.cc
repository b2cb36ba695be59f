#include "aerie/models/nest/engine/mix_plan.h"

#include <algorithm>

namespace aerie::train {

void write_mix_plan(const data::SpeechBatch& batch, kernels::MixRowsItem* items,
                    kernels::MixRowsSegment* segments) {
  const size_t rows = static_cast<size_t>(batch.num_samples());
  for (size_t b = 0; b < rows; ++b) items[b] = {};
  if (batch.mixed_on_cpu()) return;
  const data::MixPlan& plan = batch.mix_plan();
  for (size_t b = 0; b < std::min(rows, plan.items.size()); ++b)
    items[b] = {plan.items[b].first_segment, plan.items[b].num_segments, plan.items[b].gain};
  for (size_t s = 0; s < plan.segments.size(); ++s) {
    const data::MixSegment& from = plan.segments[s];
    segments[s] = {from.dest_begin,    from.length, from.source_begin,
                   from.source_period, from.row,    from.source == data::MixSource::kSpeech};
  }
}

void point_at(const data::HostArray* array, const void* rows, const float** f32,
              const int16_t** i16) {
  if (array == nullptr) return;
  if (array->dtype == aerie::Dtype::kF32)
    *f32 = static_cast<const float*>(rows);
  else
    *i16 = static_cast<const int16_t*>(rows);
}

}  // namespace aerie::train
