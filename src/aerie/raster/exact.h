// Geometry of doubles without rounding on the way (113 bits): the sign of an area, the point where
// two lines cross.
#pragma once

#include "aerie/raster/mask.h"

namespace aerie::raster {

// Which side of a-b holds c: 1 left, -1 right, 0 none. Exact for coordinates of ordinary size.
int side_of(const Point& a, const Point& b, const Point& c);

// Where the line through a and b crosses the line through c and d, to the nearest double. `a` when
// they do not cross.
Point crossing_of(const Point& a, const Point& b, const Point& c, const Point& d);

}  // namespace aerie::raster
