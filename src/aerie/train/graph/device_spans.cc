#include "aerie/train/graph/device_spans.h"

#include <exception>

#include <ATen/DeviceAccelerator.h>

#include "aerie/base/clock.h"

namespace aerie::train {

DeviceSpans::Scope::Scope(DeviceSpans& spans, const char* name)
    : spans_(spans), host_(name), index_(spans.begin(name)) {}

DeviceSpans::Scope::~Scope() {
  if (index_ == kNone) return;
  try {
    spans_.end(index_);
  } catch (const std::exception&) {
    // A device in trouble says so where its results are read.
  }
}

c10::Event DeviceSpans::mark() {
  c10::Event event(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(at::accelerator::getCurrentStream(device_.index()));
  return event;
}

size_t DeviceSpans::begin(const char* name) {
  if (!device_.is_cuda() || paused_ > 0 || !spans_on()) return kNone;
  if (!base_) {
    base_ = mark();
    base_->synchronize();
    base_ns_ = Clock::real().monotonic_ns();
  }
  pending_.push_back({name, mark(), c10::Event(device_.type(), c10::EventFlag::BACKEND_DEFAULT)});
  return pending_.size() - 1;
}

void DeviceSpans::end(size_t index) {
  if (index >= pending_.size()) return;  // flushed meanwhile
  pending_[index].end = mark();
  pending_[index].ended = true;
}

void DeviceSpans::flush() {
  if (pending_.empty()) return;
  // Events count milliseconds from one another in single precision: the base moves along.
  std::optional<c10::Event> next_base;
  int64_t next_base_ns = base_ns_;
  std::vector<Pending> under_way;
  for (Pending& span : pending_) {
    if (!span.ended) continue;
    if (!span.end.query()) {
      under_way.push_back(std::move(span));
      continue;
    }
    const int64_t start_ns = base_ns_ + static_cast<int64_t>(base_->elapsedTime(span.start) * 1e6);
    const int64_t duration_ns = static_cast<int64_t>(span.start.elapsedTime(span.end) * 1e6);
    add_device_span(span.name, start_ns, duration_ns);
    next_base_ns = start_ns + duration_ns;
    next_base = std::move(span.end);
  }
  if (next_base) {
    base_ = std::move(next_base);
    base_ns_ = next_base_ns;
  }
  pending_ = std::move(under_way);
}

}  // namespace aerie::train
