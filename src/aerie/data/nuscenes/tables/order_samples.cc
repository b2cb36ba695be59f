// Scenes and the chains of their samples: what must hold of prev, next and the scenes' ends.
#include <algorithm>
#include <numeric>

#include "aerie/data/nuscenes/tables/small_tables.h"
#include "aerie/data/nuscenes/tables/string_pool.h"

namespace aerie::nuscenes {

namespace {

class ChainChecker {
 public:
  explicit ChainChecker(const SmallTables& tables)
      : tables_(tables), path_(table_path(tables.dir, "sample")) {}

  Status check() {
    const size_t count = tables_.samples.size();
    scene_of_.resize(count);
    next_.assign(count, TokenTable::kNone);
    for (uint32_t row = 0; row < count; ++row) {
      const SampleRow& sample = tables_.samples[row];
      scene_of_[row] = tables_.scene_tokens.find(sample.scene);
      if (scene_of_[row] == TokenTable::kNone)
        return join_error(path_, row, "scene_token", unresolved(sample.scene, "scene"));
    }
    prev_.assign(count, TokenTable::kNone);
    for (uint32_t row = 0; row < count; ++row) AERIE_RETURN_IF_ERROR(resolve_links(row));
    for (uint32_t row = 0; row < count; ++row) AERIE_RETURN_IF_ERROR(check_links(row));
    return check_scenes();
  }
  const std::vector<uint32_t>& scene_of() const { return scene_of_; }

 private:
  Status resolve_links(uint32_t row) {
    const SampleRow& sample = tables_.samples[row];
    if (sample.has_prev) {
      prev_[row] = tables_.sample_tokens.find(sample.prev);
      if (prev_[row] == TokenTable::kNone)
        return join_error(path_, row, "prev", unresolved(sample.prev, "sample"));
    }
    if (sample.has_next) {
      next_[row] = tables_.sample_tokens.find(sample.next);
      if (next_[row] == TokenTable::kNone)
        return join_error(path_, row, "next", unresolved(sample.next, "sample"));
    }
    return ok_status();
  }

  // Both neighbours belong to the same scene and name this sample in turn.
  Status check_links(uint32_t row) {
    for (const bool forward : {true, false}) {
      const uint32_t other = forward ? next_[row] : prev_[row];
      if (other == TokenTable::kNone) continue;
      const char* key = forward ? "next" : "prev";
      if (scene_of_[other] != scene_of_[row])
        return join_error(path_, row, key,
                          str_cat("it leads to row ", other, ", which belongs to another scene"));
      if ((forward ? prev_[other] : next_[other]) != row)
        return join_error(path_, row, key,
                          str_cat("it leads to row ", other, ", whose ", forward ? "prev" : "next",
                                  " does not lead back"));
    }
    return ok_status();
  }

  // Links are pairs by now, so a scene is made of chains and circles: it must be one chain.
  Status check_scenes() {
    const std::string scene_path = table_path(tables_.dir, "scene");
    std::vector<bool> visited(tables_.samples.size(), false);
    for (uint32_t scene = 0; scene < tables_.scenes.size(); ++scene) {
      const SceneRow& info = tables_.scenes[scene];
      const uint32_t first = tables_.sample_tokens.find(info.first_sample);
      const uint32_t last = tables_.sample_tokens.find(info.last_sample);
      if (first == TokenTable::kNone)
        return join_error(scene_path, scene, "first_sample_token",
                          unresolved(info.first_sample, "sample"));
      if (last == TokenTable::kNone)
        return join_error(scene_path, scene, "last_sample_token",
                          unresolved(info.last_sample, "sample"));
      if (scene_of_[first] != scene)
        return join_error(scene_path, scene, "first_sample_token",
                          "it is a sample of another scene");
      if (tables_.samples[first].has_prev)
        return join_error(scene_path, scene, "first_sample_token",
                          str_cat("it is row ", first,
                                  " of sample.json, which has a prev: the "
                                  "chain is a circle or begins elsewhere"));
      uint32_t at = first;
      while (true) {
        visited[at] = true;
        if (next_[at] == TokenTable::kNone) break;
        at = next_[at];
      }
      if (at != last)
        return join_error(scene_path, scene, "last_sample_token",
                          str_cat("the chain of samples ends with row ", at,
                                  " of sample.json, not with this one"));
    }
    for (uint32_t row = 0; row < visited.size(); ++row) {
      if (!visited[row])
        return join_error(
            path_, row, "prev",
            "the sample is not in the chain of its scene: prev and next form a circle "
            "or a second chain");
    }
    return ok_status();
  }

  const SmallTables& tables_;
  const std::string path_;
  std::vector<uint32_t> scene_of_, prev_, next_;
};

}  // namespace

Status order_samples(const SmallTables& tables, IndexContent& content,
                     std::vector<uint32_t>& number_of_row) {
  ChainChecker chains(tables);
  AERIE_RETURN_IF_ERROR(chains.check());
  const std::vector<uint32_t>& scene_of = chains.scene_of();

  std::vector<uint32_t> rows(tables.samples.size());
  std::iota(rows.begin(), rows.end(), 0u);
  std::sort(rows.begin(), rows.end(), [&](uint32_t a, uint32_t b) {
    if (scene_of[a] != scene_of[b]) return scene_of[a] < scene_of[b];
    const int64_t time_a = tables.samples[a].timestamp_us, time_b = tables.samples[b].timestamp_us;
    return time_a != time_b ? time_a < time_b : a < b;
  });

  content.scenes.assign(tables.scenes.size(), {});
  StringPool pool(content.strings);
  uint32_t wrong_counts = 0;
  for (uint32_t scene = 0; scene < tables.scenes.size(); ++scene) {
    const SceneRow& row = tables.scenes[scene];
    index_format::SceneRecord& record = content.scenes[scene];
    record.token_hi = row.token.hi;
    record.token_lo = row.token.lo;
    const uint32_t log = tables.log_tokens.find(row.log);
    if (log == TokenTable::kNone)
      return join_error(table_path(tables.dir, "scene"), scene, "log_token",
                        unresolved(row.log, "log"));
    AERIE_ASSIGN_OR_RETURN(record.name, pool.add(row.name));
    AERIE_ASSIGN_OR_RETURN(record.location, pool.add(tables.locations[log]));
  }
  content.samples.reserve(rows.size());
  number_of_row.resize(rows.size());
  for (const uint32_t row : rows) {
    const SampleRow& sample = tables.samples[row];
    const auto number = static_cast<uint32_t>(content.samples.size());
    index_format::SceneRecord& scene = content.scenes[scene_of[row]];
    if (scene.num_samples++ == 0) scene.first_sample = number;
    number_of_row[row] = number;
    index_format::SampleRecord record{};
    record.token_hi = sample.token.hi;
    record.token_lo = sample.token.lo;
    record.timestamp_us = sample.timestamp_us;
    record.scene = scene_of[row];
    record.table_row = row;
    content.samples.push_back(record);
  }
  std::string example;
  for (uint32_t scene = 0; scene < tables.scenes.size(); ++scene) {
    if (tables.scenes[scene].num_samples == content.scenes[scene].num_samples) continue;
    if (wrong_counts++ == 0)
      example = str_cat(tables.scenes[scene].name, " says ", tables.scenes[scene].num_samples,
                        " and has ", content.scenes[scene].num_samples);
  }
  if (wrong_counts > 0)
    content.warnings.push_back(str_cat("scene.json: nbr_samples is wrong in ", wrong_counts,
                                       " scenes (", example, "); the samples themselves count"));
  return ok_status();
}

}  // namespace aerie::nuscenes
