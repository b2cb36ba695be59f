// Line charts as inline SVG.
#pragma once

#include <string>
#include <vector>

namespace aerie::ui {

struct Series {
  std::string name;
  std::string colour;        // CSS
  std::vector<double> x, y;  // values that are not finite break the line
  bool dots = false;         // points as dots too (few points)
  std::vector<double>
      smooth;  // optional second line over the same x, drawn strong; y is then drawn faint
};

// `unit` labels the vertical axis. Long series are thinned to what the width can show (minimum and
// maximum of each column are kept, so spikes stay visible).
std::string line_chart(const std::string& title, const std::string& unit,
                       const std::vector<Series>& series);

// &, <, > and quotes as entities.
std::string html_escape(const std::string& text);
// Three significant digits, powers of ten where needed.
std::string short_number(double value);

}  // namespace aerie::ui
