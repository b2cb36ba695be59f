#include "aerie/advisor/tune_space.h"

#include <algorithm>
#include <utility>

#include "aerie/base/strings.h"

namespace aerie::advisor {

TuneKnob knob_at(std::string key, const std::string& present, std::vector<std::string> values) {
  TuneKnob out;
  out.key = std::move(key);
  out.values = std::move(values);
  auto found = std::find(out.values.begin(), out.values.end(), present);
  if (found == out.values.end()) found = out.values.insert(out.values.begin(), present);
  out.start = static_cast<size_t>(found - out.values.begin());
  return out;
}

TuneKnob worker_knob(std::string key, int64_t present, int64_t cpus) {
  std::vector<std::string> values{str_cat(present)};
  // One thread beside a loading training thread tells little where there are many CPUs.
  int64_t next = present == 0 && cpus > 2 ? 2 : std::max<int64_t>(1, 2 * present);
  for (; next < cpus; next *= 2) values.push_back(str_cat(next));
  if (present < cpus) values.push_back(str_cat(cpus));
  TuneKnob out = knob_at(std::move(key), str_cat(present), std::move(values));
  out.ordered = out.loader = true;
  return out;
}

TuneKnob prefetch_knob(std::string key, std::optional<int64_t> present, std::string workers_key) {
  std::vector<std::string> values{present ? str_cat(*present) : "null"};
  for (const int64_t more : {4, 8})
    if (more > present.value_or(2)) values.push_back(str_cat(more));
  TuneKnob out = knob_at(std::move(key), values[0], values);
  out.ordered = out.loader = true;
  out.idle_with_key = std::move(workers_key);
  out.idle_with_value = "0";
  return out;
}

TuneKnob precision_knob(const std::string& present, bool bf16) {
  TuneKnob out =
      knob_at("trainer.precision", present,
              present == "32" ? std::vector<std::string>{"32", bf16 ? "bf16-mixed" : "16-mixed"}
              : present == "16-mixed" && bf16 ? std::vector<std::string>{"16-mixed", "bf16-mixed"}
                                              : std::vector<std::string>{present});
  out.saves_memory = present == "32";
  return out;
}

TuneKnob recompute_knob(std::string key, bool present) {
  TuneKnob out = knob_at(std::move(key), present ? "true" : "false", {"false", "true"});
  out.saves_memory = out.costs_time = true;
  return out;
}

TuneSettings start_settings(const TuneSpace& space) {
  TuneSettings out;
  out.batch = space.batch.start;
  for (const TuneKnob& knob : space.knobs) out.values.push_back(knob.start);
  return out;
}

std::vector<std::string> changes_of(const TuneSpace& space, const TuneSettings& settings) {
  std::vector<std::string> out;
  if (!settings.buckets.empty())
    out = space.batch.bucket_changes(settings.buckets);
  else if (settings.batch != space.batch.start || space.batch.automatic)
    out = space.batch.changes(settings.batch);
  for (size_t i = 0; i < space.knobs.size(); ++i) {
    const TuneKnob& knob = space.knobs[i];
    if (settings.values[i] != knob.start)
      out.push_back(str_cat(knob.key, "=", knob.values[settings.values[i]]));
  }
  return out;
}

std::string value_of(const TuneSpace& space, const TuneSettings& settings, const std::string& key) {
  for (size_t i = 0; i < space.knobs.size(); ++i)
    if (space.knobs[i].key == key) return space.knobs[i].values[settings.values[i]];
  return "";
}

}  // namespace aerie::advisor
