#include "aerie/ui/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>

#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::ui {

namespace {

// Units of the drawing, which CSS stretches to the size of the plot.
constexpr double kWidth = 1000.0, kHeight = 300.0;
constexpr size_t kColumns = 560;

std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

// A step of 1, 2 or 5 times a power of ten that gives about `count` ticks.
double tick_step(double span, int count) {
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double ratio = raw / power;
  return (ratio < 1.5 ? 1.0 : ratio < 3.5 ? 2.0 : ratio < 7.5 ? 5.0 : 10.0) * power;
}

// A tick's label: as many digits as the distance to the next tick asks for, one form for the axis.
std::string tick_text(double value, double step, double largest) {
  char text[32];
  if (value == 0.0) return "0";
  if (largest >= 1e6 || largest < 1e-2) {
    std::snprintf(
        text, sizeof text, "%.*e",
        std::fmod(step / std::pow(10.0, std::floor(std::log10(largest))), 1.0) > 0.01 ? 1 : 0,
        value);
  } else {
    std::snprintf(text, sizeof text, "%.*f",
                  std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9))), value);
  }
  return text;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void take(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
  void widen() {
    if (high - low > 1e-12 * std::max(std::abs(low), std::abs(high))) return;
    const double pad = std::abs(low) > 0.0 ? 0.05 * std::abs(low) : 0.5;
    low -= pad;
    high += pad;
  }
};

// Indices to draw: all, or the extremes of each column.
std::vector<size_t> thinned(const std::vector<double>& y) {
  std::vector<size_t> out;
  if (y.size() <= 2 * kColumns) {
    for (size_t i = 0; i < y.size(); ++i) out.push_back(i);
    return out;
  }
  for (size_t column = 0; column < kColumns; ++column) {
    const size_t begin = column * y.size() / kColumns, end = (column + 1) * y.size() / kColumns;
    size_t low = begin, high = begin;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(y[i])) continue;
      if (!std::isfinite(y[low]) || y[i] < y[low]) low = i;
      if (!std::isfinite(y[high]) || y[i] > y[high]) high = i;
    }
    out.push_back(std::min(low, high));
    if (low != high) out.push_back(std::max(low, high));
  }
  return out;
}

// Where values lie on the drawing.
struct Frame {
  Range x, y;
  double px(double value) const { return (value - x.low) / (x.high - x.low) * kWidth; }
  double py(double value) const { return kHeight - (value - y.low) / (y.high - y.low) * kHeight; }
};

std::string percent_of(double part, double whole) {
  return str_cat(coordinate(100.0 * part / whole), "%");
}

std::string path(const Frame& frame, const std::vector<double>& x, const std::vector<double>& y,
                 const char* css, int colour) {
  std::string points;
  bool pen_down = false;
  for (const size_t i : thinned(y)) {
    if (!std::isfinite(y[i]) || !std::isfinite(x[i])) {
      pen_down = false;
      continue;
    }
    points +=
        str_cat(pen_down ? "L" : "M", coordinate(frame.px(x[i])), " ", coordinate(frame.py(y[i])));
    pen_down = true;
  }
  return str_cat("<path class=\"", css, "\" style=\"stroke:var(--c", colour % kNumColours,
                 ")\" d=\"", points, "\"/>");
}

// A dot is a line without length: its round end keeps its shape while the drawing is stretched.
std::string dots(const Frame& frame, const Series& line) {
  std::string points;
  for (size_t i = 0; i < line.x.size(); ++i)
    if (std::isfinite(line.y[i]))
      points +=
          str_cat("M", coordinate(frame.px(line.x[i])), " ", coordinate(frame.py(line.y[i])), "h0");
  return str_cat("<path class=\"dots\" style=\"stroke:var(--c", line.colour % kNumColours,
                 ")\" d=\"", points, "\"/>");
}

std::string labels(const Frame& frame, const std::vector<std::string>& x_names) {
  std::string out;
  const double y_step = tick_step(frame.y.high - frame.y.low, 4);
  const double y_largest = std::max(std::abs(frame.y.low), std::abs(frame.y.high));
  for (double y = std::ceil(frame.y.low / y_step) * y_step; y <= frame.y.high + 1e-9 * y_step;
       y += y_step)
    out += str_cat("<span class=\"y\" style=\"top:", percent_of(frame.py(y), kHeight), "\">",
                   tick_text(std::abs(y) < 1e-9 * y_step ? 0.0 : y, y_step, y_largest), "</span>");
  for (size_t i = 0; i < x_names.size(); ++i)
    out += str_cat(
        "<span class=\"x\" style=\"left:", percent_of(frame.px(static_cast<double>(i)), kWidth),
        "\">", html_escape(x_names[i]), "</span>");
  if (!x_names.empty()) return out;
  const double x_step = tick_step(frame.x.high - frame.x.low, 4);
  for (double x = std::ceil(frame.x.low / x_step) * x_step; x <= frame.x.high + 1e-9 * x_step;
       x += x_step)
    out += str_cat("<span class=\"x\" style=\"left:", percent_of(frame.px(x), kWidth), "\">",
                   tick_text(std::abs(x) < 1e-9 * x_step ? 0.0 : x, x_step,
                             std::max(std::abs(frame.x.high), 1.0)),
                   "</span>");
  return out;
}

std::string grid(const Frame& frame) {
  std::string out;
  const double step = tick_step(frame.y.high - frame.y.low, 4);
  for (double y = std::ceil(frame.y.low / step) * step; y <= frame.y.high + 1e-9 * step; y += step)
    out += str_cat("M0 ", coordinate(frame.py(y)), "H", kWidth);
  return str_cat("<path class=\"grid\" d=\"", out, "\"/>");
}

std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

// [{"n": name, "c": colour, "x": [...], "y": [...], "s": [...]}] of the points that are drawn.
std::string hover_data(const std::vector<Series>& series) {
  std::string out = "[";
  for (const Series& line : series) {
    std::string x, y, s;
    for (const size_t i : thinned(line.y)) {
      const char* comma = x.empty() ? "" : ",";
      x += str_cat(comma, static_cast<int64_t>(line.x[i]));
      y += str_cat(comma, json_number(line.y[i]));
      if (!line.smooth.empty()) s += str_cat(comma, json_number(line.smooth[i]));
    }
    out += str_cat(
        out.size() > 1 ? "," : "", "{\"n\":",
        nlohmann::json(line.name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
        ",\"c\":", line.colour % kNumColours, ",\"x\":[", x, "],\"y\":[", y, "]",
        s.empty() ? "" : str_cat(",\"s\":[", s, "]"), "}");
  }
  return out + "]";
}

std::string x_names_attribute(const std::vector<std::string>& names) {
  if (names.empty()) return "";
  const nlohmann::json list = names;
  return str_cat(" data-names=\"",
                 html_escape(list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)),
                 "\"");
}

}  // namespace

std::string html_escape(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string short_number(double value) {
  char text[32];
  const double size = std::abs(value);
  if (value == 0.0) return "0";
  if (size >= 1e5 || size < 1e-3) {
    std::snprintf(text, sizeof text, "%.2e", value);
  } else {
    std::snprintf(text, sizeof text, "%.*f",
                  size >= 100  ? 0
                  : size >= 10 ? 1
                  : size >= 1  ? 2
                               : 4,
                  value);
    std::string out(text);
    if (out.find('.') != std::string::npos) {
      while (out.back() == '0') out.pop_back();
      if (out.back() == '.') out.pop_back();
    }
    return out;
  }
  return text;
}

std::string line_chart(const Chart& chart) {
  Frame frame;
  std::vector<Series> series;
  for (const Series& line : chart.series) {
    bool any = false;
    for (size_t i = 0; i < line.x.size(); ++i) {
      if (!std::isfinite(line.y[i])) continue;
      any = true;
      frame.x.take(line.x[i]);
      frame.y.take(line.y[i]);
    }
    if (any) series.push_back(line);
  }
  if (series.empty()) return "";
  frame.x.widen();
  frame.y.widen();
  std::string out =
      str_cat("<figure class=\"chart\" data-x0=\"", json_number(frame.x.low), "\" data-x1=\"",
              json_number(frame.x.high), "\" data-series=\"", html_escape(hover_data(series)), "\"",
              x_names_attribute(chart.x_names), ">\n<figcaption><b>", html_escape(chart.title),
              "</b> <span class=\"unit\">", html_escape(chart.unit), "</span>");
  if (series.size() > 1)
    for (const Series& line : series)
      out += str_cat(" <span class=\"key\"><i style=\"background:var(--c",
                     line.colour % kNumColours, ")\"></i>", html_escape(line.name), "</span>");
  out += str_cat("</figcaption>\n<div class=\"plot\"><svg viewBox=\"0 0 ", kWidth, " ", kHeight,
                 "\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
                 html_escape(chart.title), chart.x_names.empty() ? " over optimizer steps" : "",
                 "\">", grid(frame));
  for (const Marker& marker : chart.markers) {
    if (marker.x < frame.x.low || marker.x > frame.x.high) continue;
    out += str_cat("<path class=\"marker\" d=\"M", coordinate(frame.px(marker.x)), " 0V", kHeight,
                   "\"><title>", html_escape(marker.text), "</title></path>");
  }
  for (const Series& line : series) {
    if (line.smooth.empty()) {
      out += path(frame, line.x, line.y, line.dashed ? "line dashed" : "line", line.colour);
    } else {
      if (line.raw) out += path(frame, line.x, line.y, "raw", line.colour);
      out += path(frame, line.x, line.smooth, line.dashed ? "line dashed" : "line", line.colour);
    }
    if (line.dots) out += dots(frame, line);
  }
  return str_cat(
      out, "</svg>", labels(frame, chart.x_names),
      "<i class=\"cursor\" hidden></i><div class=\"tip\" hidden></div></div></figure>\n");
}

}  // namespace aerie::ui
