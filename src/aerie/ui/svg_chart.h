// Line charts as inline SVG with labels in HTML: the lines stretch with the page, the text keeps
// its size on any width.
#pragma once

#include <string>
#include <vector>

namespace aerie::ui {

inline constexpr int kNumColours = 8;  // of report_style.h: the CSS variables --c0 ... --c7

struct Series {
  std::string name;
  int colour = 0;
  std::vector<double> x, y;  // values that are not finite break the line
  bool dots = false;         // points as dots too (few points)
  bool dashed = false;
  // Optional second line over the same x, drawn strong; y is then drawn faint.
  std::vector<double> smooth;
  bool raw = true;  // draw y beside `smooth`
};

// A vertical line: the run went on here.
struct Marker {
  double x = 0.0;
  std::string text;
};

struct Chart {
  std::string title;
  std::string unit;
  std::vector<Series> series;
  std::vector<Marker> markers;
  // Points in a row instead of steps: x is a position in this list of names.
  std::vector<std::string> x_names = {};
};

// Empty when no series has a finite value. Long series are thinned to what the width can show
// (least and largest of each column are kept, so spikes stay visible). The drawn points are also
// in the attribute data-series, for the values under the pointer.
std::string line_chart(const Chart& chart);

// &, <, > and quotes as entities.
std::string html_escape(const std::string& text);
// Three significant digits, powers of ten where needed.
std::string short_number(double value);

}  // namespace aerie::ui
