// Reports as text and JSON.
#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/printable.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/nuscenes/data_report.h"

namespace aerie::nuscenes {
namespace {

using nlohmann::ordered_json;

// Names come from files: bytes that are not UTF-8 must not end the program.
std::string dump(const ordered_json& json) {
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f%%", 100 * share);
  return text;
}

ordered_json list_json(const std::vector<BrokenThing>& list) {
  ordered_json out = ordered_json::array();
  for (const BrokenThing& one : list)
    out.push_back({{"kind", one.kind}, {"place", one.place}, {"reason", one.reason}});
  return out;
}

}  // namespace

std::string DataReport::to_json() const {
  ordered_json out{{"root", root},
                   {"version", version},
                   {"scenes", scenes},
                   {"samples", samples},
                   {"boxes", boxes},
                   {"files",
                    {{"named", files.num_files},
                     {"missing", files.num_missing},
                     {"elsewhere", files.num_elsewhere},
                     {"missing_examples", files.examples}}}};
  out["splits"] = ordered_json::array();
  for (const Split& one : splits)
    out["splits"].push_back({{"name", one.name},
                             {"scenes", one.scenes},
                             {"missing_scenes", one.missing_scenes},
                             {"samples", one.samples}});
  out["split"] = {{"name", split.name},
                  {"scenes", split.num_scenes},
                  {"samples", split_samples},
                  {"entries", entries},
                  {"missing_scenes", split.num_missing_scenes},
                  {"incomplete", split.num_incomplete},
                  {"without_files", split.num_without_files},
                  {"examples", split.examples}};
  out["locations"] = ordered_json::object();
  for (const auto& [name, one] : locations)
    out["locations"][name] = {{"scenes", one.scenes}, {"samples", one.samples}, {"map", one.map}};
  out["classes"] = ordered_json::array();
  for (const MapClass& one : classes)
    out["classes"].push_back({{"name", one.name}, {"cells", one.cells}, {"samples", one.samples}});
  out["drawn"] = drawn;
  out["categories"] = ordered_json::object();
  for (const auto& [name, one] : categories)
    out["categories"][name] = {{"boxes", one.boxes}, {"samples", one.samples}};
  out["pictures"] = {
      {"sizes", picture_sizes}, {"probed", probed}, {"mean_bytes", mean_picture_bytes}};
  return dump(out);
}

std::string DataReport::to_text() const {
  std::string out = str_cat(printable(root), ", ", printable(version), "\n");
  out += str_cat("  scenes ", group_digits(scenes), ", samples ", group_digits(samples), ", boxes ",
                 group_digits(boxes), "\n");
  out += str_cat("  camera files ", group_digits(files.num_files), ", missing ",
                 group_digits(files.num_missing), ", found in other folders ",
                 group_digits(files.num_elsewhere), "\n");
  for (const std::string& example : files.examples)
    out += str_cat("    missing: ", printable(example), "\n");
  out += "\nsplits of these tables\n";
  for (const Split& one : splits)
    out += str_cat(one.chosen ? "  * " : "    ", padded(one.name, 14), " ",
                   group_digits(one.scenes), " scenes, ", group_digits(one.samples), " samples",
                   one.missing_scenes > 0
                       ? str_cat(" (", group_digits(one.missing_scenes), " scenes are not here)")
                       : std::string(),
                   "\n");
  out += str_cat("\nchosen: ", printable(split.name), ", ", group_digits(split_samples),
                 " samples of ", group_digits(split.num_scenes), " scenes");
  if (entries != split_samples)
    out += str_cat("; ", group_digits(entries), " entries an epoch after class-balanced sampling");
  out += "\n";
  if (split.num_incomplete > 0)
    out += str_cat("  left out: ", group_digits(split.num_incomplete),
                   " samples without a camera or the lidar\n");
  if (split.num_without_files > 0)
    out += str_cat("  training leaves out ", group_digits(split.num_without_files),
                   " samples whose pictures are missing\n");
  out += "\nlocations\n";
  for (const auto& [name, one] : locations)
    out += str_cat("  ", padded(printable(name), 28), group_digits(one.scenes), " scenes, ",
                   group_digits(one.samples), " samples, map ", printable(one.map), "\n");
  if (!classes.empty() && drawn > 0) {
    out += str_cat("\nclasses, in ", group_digits(drawn), " samples\n");
    for (const MapClass& one : classes)
      out += str_cat("  ", padded(one.name, 20), percent(one.cells), " of the cells, in ",
                     percent(one.samples), " of the samples\n");
  }
  if (!categories.empty()) {
    out += "\nannotations\n";
    for (const auto& [name, one] : categories)
      out += str_cat("  ", padded(printable(name), 38), group_digits(one.boxes), " boxes in ",
                     group_digits(one.samples), " samples\n");
  }
  out += "\npictures\n";
  for (const auto& [size, count] : picture_sizes)
    out += str_cat("  ", size, ": ", group_digits(count), "\n");
  if (probed > 0)
    out += str_cat("  about ", human_bytes(mean_picture_bytes), " each (", group_digits(probed),
                   " files looked at)\n");
  return out;
}

std::string DataCheckReport::to_json() const {
  return dump({{"samples", samples},
               {"pictures", pictures},
               {"bytes", bytes},
               {"broken", list_json(broken)},
               {"warnings", list_json(warnings)}});
}

}  // namespace aerie::nuscenes
