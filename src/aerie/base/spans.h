// Named spans of time: what each thread, and a device, was doing when.
//
//   SpanScope span("forward");   // costs one relaxed load unless recording is on
//
// Spans nest; the time of a span without that of the spans inside it is its self time, so that the
// self times of a thread add up to what it did. Names are string literals.
//
// Two uses share one recording: totals per name (the phases of a training step) and, when asked
// for, the single events (a Chrome trace). Totals are kept per thread; events up to a bound that is
// set at the start, later ones are only counted.
//
// Work that a device does later is timed by the device: an engine has a DeviceTimer whose marks
// travel with the work, and hands the spans over with add_device_span() when they are known.
//
// Threads: everything may be called from any thread. A span ends in the thread that began it. A
// span that was open when recording started or stopped is left out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie {

struct SpanOptions {
  size_t max_events = 0;   // 0: totals only
  Clock* clock = nullptr;  // null: the real one
};

// One recording at a time; starting anew throws the earlier one away.
void start_spans(const SpanOptions& options = {});
void stop_spans();  // what was recorded stays until the next start
bool spans_on();
// The number that events carry from now on: the step they belong to.
void set_span_step(int64_t step);
// How the calling thread is called in a trace.
void set_span_thread_name(const std::string& name);

struct SpanTotal {
  std::string name;
  int64_t count = 0;
  int64_t self_ns = 0;
  int64_t total_ns = 0;  // with the spans inside
};
// Totals of the calling thread since its last call, in the order in which the names first appeared.
std::vector<SpanTotal> take_thread_spans();
// The same for the device: spans handed over by any thread.
std::vector<SpanTotal> take_device_spans();

// A span timed by a device, in nanoseconds of the recording's clock. `name` is a literal.
void add_device_span(const char* name, int64_t start_ns, int64_t duration_ns);

// The events as a Chrome trace (chrome://tracing, ui.perfetto.dev), threads and the device as rows.
std::string chrome_trace_json();
Status write_chrome_trace(Env& env, const std::string& path);
// Events that did not fit.
int64_t dropped_span_events();

class SpanScope final {
 public:
  explicit SpanScope(const char* name) {
    if (spans_on()) begin(name);
  }
  ~SpanScope() { end(); }
  SpanScope(const SpanScope&) = delete;
  SpanScope& operator=(const SpanScope&) = delete;
  // Ends it before the end of its block.
  void end() {
    if (name_ != nullptr) finish();
  }

 private:
  void begin(const char* name);
  void finish();

  const char* name_ = nullptr;
  int64_t start_ns_ = 0;
  uint64_t recording_ = 0;
};

}  // namespace aerie
