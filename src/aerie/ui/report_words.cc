#include "aerie/ui/report_words.h"

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::ui {

namespace {

using nlohmann::json;

std::string text(const json& node, const char* name, const std::string& otherwise = {}) {
  const auto found = node.find(name);
  return found != node.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

bool flag(const json& node, const char* name) {
  const auto found = node.find(name);
  return found != node.end() && found->is_boolean() && found->get<bool>();
}

// Calls `read` for every object of a list.
template <typename Read>
void each(const json& node, const char* name, const Read& read) {
  const auto found = node.find(name);
  if (found == node.end() || !found->is_array()) return;
  for (const json& one : *found)
    if (one.is_object()) read(one);
}

}  // namespace

std::string ReportWords::to_json() const {
  json out{{"train_loss", train_loss},
           {"eval_loss", eval_loss},
           {"loss_unit", loss_unit},
           {"monitor", monitor},
           {"monitor_max", monitor_max},
           {"throughput", throughput},
           {"throughput_text", throughput_text},
           {"throughput_head", throughput_head},
           {"faster_data", faster_data},
           {"longer_steps", longer_steps},
           {"one_engine", one_engine}};
  for (const Tile& tile : shares)
    out["shares"].push_back({{"field", tile.field}, {"label", tile.label}});
  for (const Chart& chart : charts) {
    json one{{"title", chart.title},
             {"unit", chart.unit},
             {"evaluation", chart.evaluation},
             {"scale", chart.scale}};
    for (const Chart::Curve& curve : chart.curves)
      one["curves"].push_back({{"field", curve.field}, {"name", curve.name}});
    out["charts"].push_back(std::move(one));
  }
  for (const Setting& setting : data_settings)
    out["data_settings"].push_back(
        {{"key", setting.key}, {"label", setting.label}, {"name", setting.name}});
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

ReportWords words_of(const std::vector<metrics::Record>& records, const ReportWords& otherwise) {
  std::string written;
  for (const metrics::Record& record : records)
    if (written.empty()) written = record.text(kReportWordsField);
  const json node = json::parse(written, nullptr, false);
  if (!node.is_object()) return otherwise;
  ReportWords out;
  out.train_loss = text(node, "train_loss", out.train_loss);
  out.eval_loss = text(node, "eval_loss", out.eval_loss);
  out.loss_unit = text(node, "loss_unit");
  out.monitor = text(node, "monitor", out.eval_loss);
  out.monitor_max = flag(node, "monitor_max");
  out.throughput = text(node, "throughput", out.throughput);
  out.throughput_text = text(node, "throughput_text", out.throughput_text);
  out.throughput_head = text(node, "throughput_head", out.throughput_head);
  out.faster_data = text(node, "faster_data", out.faster_data);
  out.longer_steps = text(node, "longer_steps", out.longer_steps);
  out.one_engine = flag(node, "one_engine");
  each(node, "shares", [&](const json& one) {
    out.shares.push_back({text(one, "field"), text(one, "label")});
  });
  each(node, "charts", [&](const json& one) {
    ReportWords::Chart chart{text(one, "title"), text(one, "unit"), flag(one, "evaluation"), {}};
    if (const auto scale = one.find("scale"); scale != one.end() && scale->is_number())
      chart.scale = scale->get<double>();
    each(one, "curves", [&](const json& curve) {
      chart.curves.push_back({text(curve, "field"), text(curve, "name")});
    });
    out.charts.push_back(std::move(chart));
  });
  each(node, "data_settings", [&](const json& one) {
    const std::string key = text(one, "key");
    // Runs of earlier versions do not say which are names.
    const bool name = one.contains("name") ? flag(one, "name")
                                           : ends_with(key, ".split") || ends_with(key, ".version");
    out.data_settings.push_back({key, text(one, "label"), name});
  });
  return out;
}

}  // namespace aerie::ui
