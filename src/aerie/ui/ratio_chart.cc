#include "aerie/ui/ratio_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "aerie/base/strings.h"
#include "aerie/ui/svg_chart.h"

namespace aerie::ui {

namespace {

constexpr double kBarHeight = 26.0;  // CSS pixels of a row
constexpr double kTicks[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,  2.0,
                             5.0,  10.0, 20.0, 50., 100, 200, 500., 1000.};

std::string ratio_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

// Logarithmic axis in percent of the width.
struct Axis {
  double low = 0.5, high = 2.0;
  void take(double ratio) {
    if (!(ratio > 0.0) || !std::isfinite(ratio)) return;
    low = std::min(low, ratio);
    high = std::max(high, ratio);
  }
  double at(double ratio) const {
    const double clamped = std::clamp(ratio, low, high);
    return 100.0 * std::log(clamped / low) / std::log(high / low);
  }
};

std::string rectangle(const Axis& axis, double from, double to, double top, double height,
                      const std::string& style) {
  const double left = axis.at(std::min(from, to)), right = axis.at(std::max(from, to));
  return str_cat("<rect x=\"", ratio_number(left), "%\" width=\"",
                 ratio_number(std::max(0.15, right - left)), "%\" y=\"", ratio_number(top),
                 "\" height=\"", ratio_number(height), "\" style=\"", style, "\"/>");
}

}  // namespace

std::string ratio_chart(const std::string& title, const std::string& unit,
                        const std::vector<RatioBar>& bars) {
  Axis axis;
  bool any = false;
  for (const RatioBar& bar : bars) {
    any = any || bar.ratio > 0.0;
    axis.take(bar.ratio);
    axis.take(bar.low);
    axis.take(bar.high);
  }
  if (!any) return "";
  axis.low /= 1.1;
  axis.high *= 1.1;
  const double height = kBarHeight * static_cast<double>(bars.size());
  std::string svg, names, texts, ticks;
  for (const double tick : kTicks) {
    if (tick < axis.low || tick > axis.high) continue;
    const std::string at = ratio_number(axis.at(tick));
    svg += str_cat("<line x1=\"", at, "%\" x2=\"", at, "%\" y1=\"0\" y2=\"", ratio_number(height),
                   "\" style=\"stroke:var(", tick == 1.0 ? "--soft" : "--line", ")\"/>");
    ticks += str_cat("<span class=\"x\" style=\"left:", at, "%\">", short_number(tick), "x</span>");
  }
  for (size_t i = 0; i < bars.size(); ++i) {
    const RatioBar& bar = bars[i];
    const double top = kBarHeight * static_cast<double>(i);
    if (bar.low > 0.0 && bar.high > 0.0)
      svg += rectangle(axis, bar.low, bar.high, top + 2.0, kBarHeight - 4.0,
                       "fill:var(--soft);opacity:.25");
    if (bar.ratio > 0.0) {
      svg += rectangle(axis, 1.0, bar.ratio, top + 7.0, kBarHeight - 14.0,
                       str_cat("fill:var(--c", bar.colour % kNumColours, ")"));
      svg += rectangle(axis, bar.ratio * (1.0 - bar.noise), bar.ratio * (1.0 + bar.noise),
                       top + kBarHeight / 2.0 - 1.0, 2.0, "fill:var(--ink)");
    }
    const std::string middle = ratio_number(top + kBarHeight / 2.0);
    names += str_cat("<span class=\"y\" style=\"top:", middle, "px\">", html_escape(bar.name),
                     "</span>");
    texts +=
        str_cat("<span class=\"y\" style=\"top:", middle,
                "px;right:auto;left:100%;margin:0 0 0 8px\">", html_escape(bar.text), "</span>");
  }
  // Not of the class `chart`, whose script shows values over steps.
  return str_cat("<figure class=\"picture\"><figcaption><b>", html_escape(title),
                 "</b> <span class=\"unit\">", html_escape(unit),
                 "</span></figcaption>\n<div class=\"wide\"><div style=\"min-width:760px\"><div "
                 "class=\"plot\" style=\"height:",
                 ratio_number(height),
                 "px;margin:0 190px 26px 190px\"><svg role=\"img\" aria-label=\"",
                 html_escape(title), "\">", svg, "</svg>", names, texts, ticks,
                 "</div></div></div></figure>\n");
}

}  // namespace aerie::ui
