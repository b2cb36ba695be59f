#include "aerie/data/loader_stats.h"

#include <nlohmann/json.hpp>

namespace aerie::data {

std::string LoaderStats::bottleneck() const {
  // A consumer that hardly waits is the limit itself.
  const double total = consumer_wait_s + consumer_work_s;
  if (total > 0 && consumer_wait_s < 0.05 * total) return "consumer";
  if (side.busy_s + finish.busy_s > read.busy_s) return words.finishing;
  return read_wait_share > 0.5 ? "disk" : "decode";
}

std::string LoaderStats::to_json() const {
  const std::string rate = words.amount + "_per_s";
  const auto stage = [&](const StageStats& s) {
    return nlohmann::ordered_json{{"items", s.items},
                                  {"busy_s", s.busy_s},
                                  {"mb_per_s", s.busy_s > 0 ? s.bytes / s.busy_s / 1e6 : 0.0},
                                  {rate, s.busy_s > 0 ? s.amount / s.busy_s : 0.0}};
  };
  nlohmann::ordered_json out;
  out["read"] = stage(read);
  if (!words.side.empty()) out[words.side] = stage(side);
  out[words.finish] = stage(finish);
  out["blocked_s"] = blocked_s;
  out["starved_s"] = starved_s;
  out["consumer_wait_s"] = consumer_wait_s;
  out["consumer_work_s"] = consumer_work_s;
  out["epoch_pause_s"] = epoch_pause_s;
  out["first_batch_s"] = first_batch_s;
  out["read_wait_share"] = read_wait_share;
  out["batches"] = batches;
  out["samples"] = samples;
  out["bad_samples"] = bad_samples;
  if (!words.side.empty()) out[words.side_failures] = side_failures;
  out[words.amount] = amount;
  out["padding_share"] = padding_share;
  out["workers"] = workers;
  out["max_workers"] = max_workers;
  out["ring_ready"] = ring_ready;
  out["ring_slots"] = ring_slots;
  out["memory_bytes"] = memory_bytes;
  out["wall_s"] = wall_s;
  out["limit"] = bottleneck();
  if (!storage.empty()) out["storage"] = storage;
  if (left_out > 0) out["left_out"] = left_out;
  return out.dump();
}

}  // namespace aerie::data
