#include "aerie/train/loader_source.h"

#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/data/batch.h"
#include "aerie/train/batch_list_source.h"

namespace aerie::train {

Status LoaderSource::start_once(const std::string& what, const std::function<Status()>& start) {
  if (!what.empty() && what == started_) return ok_status();
  started_.clear();
  AERIE_RETURN_IF_ERROR(start());
  started_ = what;
  return ok_status();
}

Result<const data::Batch*> LoaderSource::next() {
  started_.clear();
  return loader_->next();
}

Status LoaderSource::start_epoch(int64_t epoch) {
  return start_once(str_cat("epoch ", epoch), [&] { return loader_->start_epoch(epoch); });
}

BatchSummary summary_of(const data::Batch& batch) {
  BatchSummary out;
  out.amount = batch.amount();
  out.padding_share = batch.padding_share();
  out.samples = batch.num_samples();
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

Status LoaderSource::restore(const std::string& cursor_json) {
  return start_once(cursor_json, [&] { return loader_->restore(cursor_json); });
}

int64_t LoaderSource::untold_bad_samples() const {
  return static_cast<int64_t>(loader_->untold_bad_samples());
}

std::string LoaderSource::take_bad_samples() {
  nlohmann::json list = nlohmann::json::array();
  for (const data::BadSample& bad : loader_->take_bad_samples())
    list.push_back({bad.sample_id, bad.place, bad.reason, bad.epoch, bad.position, bad.sample});
  return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status LoaderSource::add_bad_samples(const std::string& text) {
  const auto list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) return internal_error("another rank's bad samples cannot be read");
  std::vector<data::BadSample> samples;
  for (const auto& bad : list) {
    if (!bad.is_array() || bad.size() != 6)
      return internal_error("another rank's bad samples cannot be read");
    samples.push_back({bad[0].get<uint32_t>(), bad[1].get<std::string>(), bad[2].get<std::string>(),
                       bad[3].get<uint32_t>(), bad[4].get<uint64_t>(), bad[5].get<uint32_t>()});
  }
  return loader_->add_bad_samples(samples);
}

}  // namespace aerie::train
