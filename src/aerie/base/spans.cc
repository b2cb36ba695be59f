#include "aerie/base/spans.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "aerie/base/late_span.h"
#include "aerie/base/strings.h"

namespace aerie {

namespace {

constexpr uint32_t kDeviceRow = 0;  // threads count from 1

struct Event {
  const char* name;
  int64_t start_ns;
  int64_t duration_ns;
  int64_t step;
  uint32_t row;
};

struct Total {
  const char* name;
  int64_t count = 0, self_ns = 0, total_ns = 0;
};

// Few names: a scan beats a map. The same literal may have several addresses.
Total& total_of(std::vector<Total>& totals, const char* name) {
  for (Total& total : totals)
    if (total.name == name || std::string_view(total.name) == name) return total;
  totals.push_back({name});
  return totals.back();
}

std::vector<SpanTotal> as_result(std::vector<Total>& totals) {
  std::vector<SpanTotal> out;
  for (Total& total : totals) {
    if (total.count == 0) continue;
    out.push_back({total.name, total.count, total.self_ns, total.total_ns});
    total = {total.name};
  }
  return out;
}

// What one thread recorded. The thread adds to it, others read it: a mutex of its own, which is
// free of contention except while a trace is written.
struct ThreadSpans {
  std::mutex mutex;
  uint32_t row = 0;
  std::string thread_name;
  uint64_t recording = 0;  // the one its contents belong to
  std::vector<Total> totals;
  std::vector<Event> events;
  std::vector<int64_t> inner_ns;  // of the open spans: time of the spans inside; this thread's own
};

struct Recorder {
  std::atomic<uint64_t> recording{0};  // counts starts
  std::atomic<bool> on{false};
  std::atomic<int64_t> step{0};
  std::atomic<int64_t> num_events{0}, dropped{0}, max_events{0};
  std::atomic<Clock*> clock{nullptr};
  std::mutex mutex;  // the list below and the device's row
  std::vector<std::shared_ptr<ThreadSpans>> threads;
  uint32_t last_row = kDeviceRow;
  std::vector<Total> device_totals;
  std::vector<Event> device_events;
  int64_t start_ns = 0;
};

// Lives for ever: threads may end after main.
Recorder& recorder() {
  static Recorder* const instance = new Recorder();
  return *instance;
}

ThreadSpans& this_thread() {
  thread_local std::shared_ptr<ThreadSpans> mine;
  if (mine == nullptr) {
    mine = std::make_shared<ThreadSpans>();
    Recorder& all = recorder();
    std::lock_guard lock(all.mutex);
    mine->row = ++all.last_row;
    all.threads.push_back(mine);
  }
  return *mine;
}

bool room_for_event(Recorder& all) {
  const int64_t max = all.max_events.load(std::memory_order_relaxed);
  if (max == 0) return false;
  if (all.num_events.fetch_add(1, std::memory_order_relaxed) < max) return true;
  all.dropped.fetch_add(1, std::memory_order_relaxed);
  return false;
}

int64_t now_ns(Recorder& all) {
  return all.clock.load(std::memory_order_relaxed)->monotonic_ns();
}

// Contents of an earlier recording go when the thread first touches the new one.
void enter(ThreadSpans& mine, uint64_t recording) {
  if (mine.recording == recording) return;
  mine.recording = recording;
  mine.totals.clear();
  mine.events.clear();
  mine.inner_ns.clear();
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) continue;
    out += c;
  }
  return out + "\"";
}

void add_row_name(std::string& out, uint32_t row, const std::string& name) {
  out += str_cat("{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":", row,
                 ",\"args\":{\"name\":", json_text(name), "}},\n");
}

void add_event(std::string& out, const Event& event, int64_t start_ns) {
  char text[160];
  std::snprintf(text, sizeof text,
                ",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
                "\"args\":{\"step\":%lld}},\n",
                event.row == kDeviceRow ? "device" : "host", event.row,
                static_cast<double>(event.start_ns - start_ns) * 1e-3,
                static_cast<double>(event.duration_ns) * 1e-3, static_cast<long long>(event.step));
  out += str_cat("{\"name\":", json_text(event.name), text);
}

}  // namespace

void start_spans(const SpanOptions& options) {
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  all.on.store(false);
  all.clock.store(options.clock != nullptr ? options.clock : &Clock::real());
  all.start_ns = now_ns(all);
  all.num_events.store(0);
  all.dropped.store(0);
  all.max_events.store(static_cast<int64_t>(options.max_events));
  all.step.store(0);
  all.device_totals.clear();
  all.device_events.clear();
  all.recording.fetch_add(1);
  // Threads that have ended hold nothing but their old spans.
  std::erase_if(all.threads, [](const auto& thread) { return thread.use_count() == 1; });
  all.on.store(true);
}

void stop_spans() {
  recorder().on.store(false);
}

bool spans_on() {
  return recorder().on.load(std::memory_order_relaxed);
}

void set_span_step(int64_t step) {
  recorder().step.store(step, std::memory_order_relaxed);
}

void set_span_thread_name(const std::string& name) {
  ThreadSpans& mine = this_thread();
  std::lock_guard lock(mine.mutex);
  mine.thread_name = name;
}

std::vector<SpanTotal> take_thread_spans() {
  ThreadSpans& mine = this_thread();
  std::lock_guard lock(mine.mutex);
  if (mine.recording != recorder().recording.load()) return {};
  return as_result(mine.totals);
}

std::vector<SpanTotal> take_device_spans() {
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  return as_result(all.device_totals);
}

void add_device_span(const char* name, int64_t start_ns, int64_t duration_ns) {
  Recorder& all = recorder();
  if (!spans_on()) return;
  std::lock_guard lock(all.mutex);
  Total& total = total_of(all.device_totals, name);
  ++total.count;
  total.self_ns += duration_ns;
  total.total_ns += duration_ns;
  if (room_for_event(all))
    all.device_events.push_back({name, start_ns, duration_ns, all.step.load(), kDeviceRow});
}

int64_t dropped_span_events() {
  return recorder().dropped.load();
}

std::string chrome_trace_json() {
  Recorder& all = recorder();
  std::lock_guard lock(all.mutex);
  const uint64_t recording = all.recording.load();
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  out += "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"aerie\"}},\n";
  if (!all.device_events.empty()) add_row_name(out, kDeviceRow, "device");
  for (const Event& event : all.device_events) add_event(out, event, all.start_ns);
  for (const auto& thread : all.threads) {
    std::lock_guard thread_lock(thread->mutex);
    if (thread->recording != recording || thread->events.empty()) continue;
    add_row_name(
        out, thread->row,
        thread->thread_name.empty() ? str_cat("thread ", thread->row) : thread->thread_name);
    for (const Event& event : thread->events) add_event(out, event, all.start_ns);
  }
  // Every line above ends in a comma; this one does not.
  out += str_cat("{\"name\":\"events left out\",\"ph\":\"M\",\"pid\":1,\"args\":{\"count\":",
                 all.dropped.load(), "}}\n]}\n");
  return out;
}

Status write_chrome_trace(Env& env, const std::string& path) {
  return env.atomic_replace(path, chrome_trace_json());
}

int64_t span_moment() {
  return spans_on() ? now_ns(recorder()) : 0;
}

void add_span_since(const char* name, int64_t moment) {
  if (!spans_on() || moment == 0) return;
  Recorder& all = recorder();
  ThreadSpans& mine = this_thread();
  const uint64_t recording = all.recording.load();
  const int64_t duration = std::max<int64_t>(0, now_ns(all) - moment);
  std::lock_guard lock(mine.mutex);
  enter(mine, recording);
  if (!mine.inner_ns.empty()) mine.inner_ns.back() += duration;
  Total& total = total_of(mine.totals, name);
  ++total.count;
  total.self_ns += duration;
  total.total_ns += duration;
  if (room_for_event(all))
    mine.events.push_back({name, moment, duration, all.step.load(), mine.row});
}

void SpanScope::begin(const char* name) {
  Recorder& all = recorder();
  ThreadSpans& mine = this_thread();
  const uint64_t recording = all.recording.load();
  {
    std::lock_guard lock(mine.mutex);
    enter(mine, recording);
    mine.inner_ns.push_back(0);
  }
  name_ = name;
  recording_ = recording;
  start_ns_ = now_ns(all);
}

void SpanScope::finish() {
  Recorder& all = recorder();
  ThreadSpans& mine = this_thread();
  const int64_t duration = now_ns(all) - start_ns_;
  std::lock_guard lock(mine.mutex);
  const char* name = std::exchange(name_, nullptr);
  if (mine.recording != recording_ || mine.inner_ns.empty()) return;
  const int64_t inner = mine.inner_ns.back();
  mine.inner_ns.pop_back();
  if (!mine.inner_ns.empty()) mine.inner_ns.back() += duration;
  if (recording_ != all.recording.load() || !spans_on()) return;
  Total& total = total_of(mine.totals, name);
  ++total.count;
  total.self_ns += duration - inner;
  total.total_ns += duration;
  if (room_for_event(all))
    mine.events.push_back({name, start_ns_, duration, all.step.load(), mine.row});
}

}  // namespace aerie
