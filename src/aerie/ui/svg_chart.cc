#include "aerie/ui/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "aerie/base/strings.h"

namespace aerie::ui {

namespace {

constexpr double kWidth = 640.0, kHeight = 240.0, kLeft = 64.0, kRight = 24.0, kTop = 30.0,
                 kBottom = 32.0;
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
    const auto [low, high] = std::minmax_element(y.begin() + static_cast<std::ptrdiff_t>(begin),
                                                 y.begin() + static_cast<std::ptrdiff_t>(end));
    size_t a = static_cast<size_t>(low - y.begin()), b = static_cast<size_t>(high - y.begin());
    if (a > b) std::swap(a, b);
    out.push_back(a);
    if (b != a) out.push_back(b);
  }
  return out;
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

std::string line_chart(const std::string& title, const std::string& unit,
                       const std::vector<Series>& series) {
  Range x_range, y_range;
  for (const Series& line : series) {
    for (size_t i = 0; i < line.x.size(); ++i)
      if (std::isfinite(line.y[i])) x_range.take(line.x[i]);
    for (const double y : line.y) y_range.take(y);
    for (const double y : line.smooth) y_range.take(y);
  }
  std::string out =
      str_cat("<figure><svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-label=\"",
              html_escape(title), "\"><text class=\"title\" x=\"", kLeft, "\" y=\"18\">",
              html_escape(title), "</text>");
  if (x_range.empty() || y_range.empty())
    return out + "<text x=\"320\" y=\"130\" text-anchor=\"middle\">no data</text></svg></figure>\n";
  x_range.widen();
  y_range.widen();
  const auto px = [&](double x) {
    return kLeft + (x - x_range.low) / (x_range.high - x_range.low) * (kWidth - kLeft - kRight);
  };
  const auto py = [&](double y) {
    return kHeight - kBottom -
           (y - y_range.low) / (y_range.high - y_range.low) * (kHeight - kTop - kBottom);
  };
  const double y_step = tick_step(y_range.high - y_range.low, 4),
               x_step = tick_step(x_range.high - x_range.low, 6);
  for (double y = std::ceil(y_range.low / y_step) * y_step; y <= y_range.high + 1e-9 * y_step;
       y += y_step) {
    const double clean = std::abs(y) < 1e-9 * y_step ? 0.0 : y;
    out +=
        str_cat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"",
                coordinate(py(y)), "\" y2=\"", coordinate(py(y)), "\"/><text class=\"tick\" x=\"",
                kLeft - 6, "\" y=\"", coordinate(py(y) + 4), "\" text-anchor=\"end\">",
                tick_text(clean, y_step, std::max(std::abs(y_range.low), std::abs(y_range.high))),
                "</text>");
  }
  for (double x = std::ceil(x_range.low / x_step) * x_step; x <= x_range.high + 1e-9 * x_step;
       x += x_step)
    out += str_cat("<text class=\"tick\" x=\"", coordinate(px(x)), "\" y=\"", kHeight - 14,
                   "\" text-anchor=\"middle\">",
                   tick_text(x, x_step, std::max(std::abs(x_range.high), 1.0)), "</text>");
  out += str_cat("<text class=\"tick\" x=\"", kWidth - kRight, "\" y=\"", kHeight - 2,
                 "\" text-anchor=\"end\">step</text><text class=\"tick\" x=\"", kWidth - kRight,
                 "\" y=\"18\" text-anchor=\"end\">", html_escape(unit), "</text>");
  double legend_x = kLeft + 12.0 * static_cast<double>(title.size()) * 0.62 + 24.0;
  for (const Series& line : series) {
    if (line.x.empty()) continue;
    const auto path = [&](const std::vector<double>& y, const char* style) {
      std::string points;
      bool pen_down = false;
      for (const size_t i : thinned(y)) {
        if (!std::isfinite(y[i])) {
          pen_down = false;
          continue;
        }
        points +=
            str_cat(pen_down ? "L" : "M", coordinate(px(line.x[i])), " ", coordinate(py(y[i])));
        pen_down = true;
      }
      return str_cat("<path d=\"", points, "\" fill=\"none\" stroke=\"", line.colour, "\" ", style,
                     "/>");
    };
    if (line.smooth.empty()) {
      out += path(line.y, "stroke-width=\"1.8\"");
    } else {
      out += path(line.y, "stroke-width=\"1\" opacity=\"0.3\"");
      out += path(line.smooth, "stroke-width=\"2\"");
    }
    if (line.dots)
      for (size_t i = 0; i < line.x.size(); ++i)
        if (std::isfinite(line.y[i]))
          out += str_cat("<circle cx=\"", coordinate(px(line.x[i])), "\" cy=\"",
                         coordinate(py(line.y[i])), "\" r=\"3\" fill=\"", line.colour, "\"/>");
    if (series.size() > 1) {
      out += str_cat("<rect x=\"", coordinate(legend_x),
                     "\" y=\"10\" width=\"10\" height=\"10\" fill=\"", line.colour,
                     "\"/><text class=\"tick\" x=\"", coordinate(legend_x + 14), "\" y=\"19\">",
                     html_escape(line.name), "</text>");
      legend_x += 14.0 + 7.0 * static_cast<double>(line.name.size()) + 16.0;
    }
  }
  return out + "</svg></figure>\n";
}

}  // namespace aerie::ui
