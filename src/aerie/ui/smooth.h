// The thick lines of charts.
#pragma once

#include <cstddef>
#include <vector>

namespace aerie::ui {

inline constexpr size_t kSmoothReach = 10;  // points before and after that a value is made of

// A centred mean with weights that fall linearly with the distance: unlike an exponential mean it
// does not lag behind the points, and every value lies between the least and the largest of the
// points at most kSmoothReach before and after it. Values that are not finite stay so and do not
// count.
std::vector<double> smoothed(const std::vector<double>& y);

}  // namespace aerie::ui
