#include "aerie/train/loader_source.h"

#include "aerie/data/host_batch.h"
#include "aerie/train/batch_list_source.h"

namespace aerie::train {

int64_t LoaderSource::batches_per_epoch() const {
  return loader_->batches_per_epoch();
}

Result<const data::Batch*> LoaderSource::next() {
  return loader_->next();
}

void LoaderSource::release(const data::Batch* batch) {
  loader_->release(batch);
}

Status LoaderSource::start_epoch(int64_t epoch) {
  return loader_->start_epoch(epoch);
}

BatchSummary summary_of(const data::Batch& batch) {
  BatchSummary out;
  out.audio_s = batch.audio_s();
  out.padding_share = batch.padding_share();
  for (const uint32_t id : batch.sample_ids())
    out.sample_ids += str_cat(out.sample_ids.empty() ? "" : " ", id);
  return out;
}

BatchSummary BatchListSource::summary(const data::Batch& batch) const {
  return summary_of(batch);
}

BatchSummary LoaderSource::summary(const data::Batch& batch) const {
  return summary_of(batch);
}

std::string LoaderSource::cursor_json() const {
  return loader_->cursor_json();
}

Status LoaderSource::restore(const std::string& cursor_json) {
  return loader_->restore(cursor_json);
}

}  // namespace aerie::train
