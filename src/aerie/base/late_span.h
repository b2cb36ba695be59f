// Spans (spans.h) whose beginning is known only when they end: between the last of many calls and
// now.
#pragma once

#include <cstdint>

namespace aerie {

// A moment for add_span_since(); 0 while recording is off.
int64_t span_moment();
// A span of the calling thread from `moment` to now, inside the one that is open. Nothing between
// them may have been a span. 0: none.
void add_span_since(const char* name, int64_t moment);

}  // namespace aerie
