// A bar a row from one to a ratio, beside the range that was expected: inline SVG, labels in HTML.
#pragma once

#include <string>
#include <vector>

namespace aerie::ui {

struct RatioBar {
  std::string name;
  double ratio = 0.0;            // 0: nothing is drawn
  double low = 0.0, high = 0.0;  // expected; 0: nothing was said
  double noise = 0.0;            // share of the ratio that it may be off by
  std::string text;              // behind the bar
  int colour = 0;                // as Series::colour
};

// Bars start at 1, to the right faster and to the left slower, on a logarithmic axis. Empty without
// a ratio.
std::string ratio_chart(const std::string& title, const std::string& unit,
                        const std::vector<RatioBar>& bars);

}  // namespace aerie::ui
