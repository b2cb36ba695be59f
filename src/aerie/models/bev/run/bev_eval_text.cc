// The report of an evaluation as a table and as JSON.
#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "aerie/base/format_text.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/models/bev/run/bev_eval.h"

namespace aerie::bev {
namespace {

std::string percent_cell(double value) {
  return format_text("%8.2f", 100.0 * value);
}

std::string padded_cell(const std::string& text, size_t width) {
  return text.size() < width ? text + std::string(width - text.size(), ' ') : text;
}

double best_iou(const MapIou::Row& row) {
  double best = 0.0;
  for (const MapIou::Count& count : row) best = std::max(best, count.iou());
  return best;
}

}  // namespace

std::string BevEvalReport::to_text() const {
  const BevScores& mine = scores.front();
  std::string out =
      str_cat("checkpoint  ", printable(checkpoint), averaged ? " (averaged weights)\n" : "\n",
              "engine      ", engine, "\ndata        ", printable(data), "\n\n");
  size_t width = 14;
  for (const std::string& name : classes) width = std::max(width, printable(name).size() + 1);
  for (const BevScores& one : scores) width = std::max(width, one.predictor.size() + 1);
  out += padded_cell("IoU, %", width) + "     max";
  for (const float threshold : kMapThresholds)
    out += format_text("    %.2f", static_cast<double>(threshold));
  out += "\n";
  std::vector<double> means(kMapThresholds.size() + 1);
  const auto share = 1.0 / static_cast<double>(std::max<size_t>(1, classes.size()));
  for (size_t k = 0; k < classes.size(); ++k) {
    const MapIou::Row& row = mine.iou.counts()[k];
    out += padded_cell(printable(classes[k]), width) + percent_cell(best_iou(row));
    means[0] += best_iou(row) * share;
    for (size_t t = 0; t < row.size(); ++t) {
      out += percent_cell(row[t].iou());
      means[t + 1] += row[t].iou() * share;
    }
    out += "\n";
  }
  out += padded_cell("mean", width);
  for (const double mean : means) out += percent_cell(mean);
  out += "\n\n";
  for (const auto& [name, value] : mine.values) {
    if (starts_with(name, "map/")) continue;  // in the table
    out += padded_cell(name, width) + format_text("%.4f\n", value);
  }
  out += padded_cell("val_loss", width) + format_text("%.4f\n", mine.loss);
  if (scores.size() > 1) {
    out += "\n" + padded_cell("best IoU, %", width) + "    mean";
    size_t column = 9;
    for (const std::string& name : classes) column = std::max(column, printable(name).size() + 2);
    for (const std::string& name : classes)
      out += std::string(column - printable(name).size(), ' ') + printable(name);
    out += "\n";
    for (const BevScores& one : scores) {
      out += padded_cell(one.predictor, width) + percent_cell(one.values.front().second);
      for (const MapIou::Row& row : one.iou.counts())
        out += std::string(column - 8, ' ') + percent_cell(best_iou(row));
      out += "\n";
    }
  }
  if (pictures > 0) out += str_cat("\n", pictures, " pictures in ", printable(show_dir), "\n");
  return out;
}

std::string BevEvalReport::to_json() const {
  using nlohmann::ordered_json;
  ordered_json json;
  json["checkpoint"] = checkpoint;
  json["averaged_weights"] = averaged;
  json["engine"] = engine;
  json["data"] = data;
  json["classes"] = classes;
  const auto numbers = [](const BevScores& one) {
    ordered_json values;
    for (const auto& [name, value] : one.values) values[name] = value;
    values["val_loss"] = std::isfinite(one.loss) ? ordered_json(one.loss) : ordered_json();
    return values;
  };
  json["metrics"] = numbers(scores.front());
  for (size_t i = 1; i < scores.size(); ++i)
    json["baselines"][scores[i].predictor] = numbers(scores[i]);
  if (pictures > 0) json["pictures"] = {{"folder", show_dir}, {"count", pictures}};
  json["wall_s"] = wall_s;
  return json.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace aerie::bev
