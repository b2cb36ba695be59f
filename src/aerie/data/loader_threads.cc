// The side of a Loader's threads: planning batches, reading samples, finishing batches, and how
// many workers may be active.
#include <sys/resource.h>
#include <time.h>

#include "aerie/base/check.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/loader_impl.h"

namespace aerie::data {

namespace {

int64_t thread_cpu_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
}

// Times this thread gave up the CPU by itself: while reading, because a file was not in memory.
int64_t voluntary_switches() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

}  // namespace

// With the lock held. The plan of the epoch after the current one is made by the planner thread
// while the current one is read, so that an epoch's end costs nothing.
const EpochPlan& Loader::Impl::plan_of(uint32_t epoch) {
  if (plan != nullptr && plan->epoch() == epoch) return *plan;
  if (rest_plan != nullptr && rest_plan->epoch() == epoch)
    plan = rest_plan;
  else if (following_plan != nullptr && following_plan->epoch() == epoch)
    plan = std::move(following_plan);
  else
    plan = sampler.plan(epoch);
  following_plan.reset();
  batch_counts[epoch] = batches_in(*plan);
  planning = true;
  plan_wanted.notify_one();
  return *plan;
}

// With the lock held, except while memory is taken: puts the next batch into a free slot. False: no
// slot, no batch, or somebody is at it already.
bool Loader::Impl::plan_next(std::unique_lock<std::mutex>& lock) {
  if (ended || stopping || paused) return false;
  // What the consumer's first step takes comes first, with nothing beside it: at the start of a run
  // processors, memory and driver are wanted by whoever makes the model, too.
  const size_t first = static_cast<size_t>(std::max(1, options.consumer_batches - 1));
  if (first_batch_ns < 0 && order.size() >= first) return false;
  // One at a time: a later batch must not be begun before an earlier one.
  if (!order.empty() && order.back()->state == State::kPlanning) return false;
  Slot* slot = nullptr;
  for (auto& candidate : slots) {
    if (candidate->state != State::kFree) continue;
    slot = candidate.get();
    break;
  }
  if (slot == nullptr) return false;
  const EpochPlan* current = &plan_of(next.epoch);
  while (next.index >= batches_in(*current)) {
    if (options.single_epoch) {
      ended = true;
      return false;
    }
    ++next.epoch;
    next.index = 0;
    current = &plan_of(next.epoch);
    if (batches_in(*current) == 0) {
      slot->error = internal_error("an epoch without batches");
      slot->state = State::kReady;
      order.push_back(slot);
      ended = true;
      batch_ready.notify_one();
      return false;
    }
  }
  Batch& batch = slot->maker->batch();
  BatchPlace place;
  place.epoch = next.epoch;
  place.index = next.index;
  place.step = static_cast<uint64_t>(next.index) / setup.lanes_per_rank;
  place.lane = options.rank * setup.lanes_per_rank +
               static_cast<uint32_t>(static_cast<uint64_t>(next.index) % setup.lanes_per_rank);
  place.last = next.index + 1 == batches_in(*current);
  if (setup.fixed_lanes) {
    const int64_t in_step = place.index % static_cast<int64_t>(setup.lanes_per_rank);
    place.draws.ranks = options.world;
    place.draws.micro_offset =
        static_cast<int64_t>(place.lane) - in_step * static_cast<int64_t>(options.world);
  } else {
    place.draws.first_item = place.lane;
    place.draws.item_stride = options.world;
  }
  place.section = current->batch(place.step, place.lane, batch.mutable_samples());
  batch.set_place(place);
  slot->num_items = batch.samples().size();
  ++next.index;
  slot->state = State::kPlanning;
  order.push_back(slot);
  // Memory can take long; others report the samples they have read meanwhile.
  ++in_flight;
  lock.unlock();
  Status begun = run_guarded([&] { return slot->maker->begin(); });
  lock.lock();
  --in_flight;
  slot->error = std::move(begun);
  slot->next_item = 0;
  slot->unfinished = slot->num_items;
  if (!slot->error.ok()) {
    slot->state = State::kReady;
    batch_ready.notify_one();
  } else {
    slot->state = State::kReading;
  }
  work_ready.notify_all();
  if (paused && in_flight == 0) idle.notify_all();
  return true;
}

// With the lock held: somebody wants batches.
void Loader::Impl::wake() {
  if (!waiting) return;
  waiting = false;
  work_ready.notify_all();
}

// With the lock held: one sample of the oldest batch that has any left, or a batch without samples.
bool Loader::Impl::claim(Task& task, std::unique_lock<std::mutex>& lock) {
  while (!paused && !stopping && !waiting) {
    for (Slot* slot : order) {
      if (slot->state != State::kReading) continue;
      if (slot->next_item < slot->num_items || slot->num_items == 0) {
        task = {slot, slot->next_item++};
        if (slot->num_items == 0) slot->state = State::kFinishing;
        return true;
      }
    }
    if (!plan_next(lock)) return false;
  }
  return false;
}

void Loader::Impl::finish(Slot& slot, AssemblerThread& thread, std::unique_lock<std::mutex>& lock) {
  slot.state = State::kFinishing;
  lock.unlock();
  const int64_t start = now_ns();
  Status status = run_guarded([&] { return slot.maker->finish(thread); });
  counters.finish_ns += now_ns() - start;
  ++counters.finish_items;
  lock.lock();
  slot.error = std::move(status);
  slot.state = State::kReady;
  batch_ready.notify_one();
}

// Entered and left with the lock held.
void Loader::Impl::do_item(const Task& task, AssemblerThread& thread,
                           std::unique_lock<std::mutex>& lock) {
  Slot& slot = *task.slot;
  ++in_flight;
  if (slot.num_items > 0) {
    lock.unlock();
    const int64_t start = now_ns();
    const bool probe = task.item == 0;
    const int64_t cpu = probe ? thread_cpu_ns() : 0;
    const int64_t switches = probe ? voluntary_switches() : 0;
    ItemFigures figures;
    const auto read = [&] {
      figures = slot.maker->read_item(task.item, thread);
      return ok_status();
    };
    const Status status = run_guarded(std::cref(read));  // by reference: no allocation
    const int64_t spent = now_ns() - start;
    if (probe) {
      counters.probe_wall_ns += spent;
      // A thread that was merely preempted did not wait for the disk.
      if (voluntary_switches() > switches)
        counters.probe_wait_ns += std::max<int64_t>(0, spent - (thread_cpu_ns() - cpu));
    }
    ++counters.read_items;
    counters.read_bytes += static_cast<uint64_t>(figures.bytes_read);
    counters.read_amount += figures.amount;
    counters.read_ns += spent - figures.side_ns;
    if (figures.side_ns > 0) {
      counters.side_ns += figures.side_ns;
      ++counters.side_items;
      counters.side_amount += figures.amount;
    }
    lock.lock();
    if (!status.ok() && slot.error.ok()) slot.error = status;
    if (--slot.unfinished == 0) {
      if (slot.error.ok()) {
        finish(slot, thread, lock);
      } else {
        slot.state = State::kReady;
        batch_ready.notify_one();
      }
    }
  } else {
    finish(slot, thread, lock);
  }
  --in_flight;
  if (paused && in_flight == 0) idle.notify_all();
}

Status Loader::Impl::run_worker(int number) {
  const std::unique_ptr<AssemblerThread> thread = assembler->make_thread();
  std::unique_lock lock(mutex);
  while (!stopping) {
    Task task;
    if (number < active_limit && claim(task, lock)) {
      do_item(task, *thread, lock);
      continue;
    }
    if (stopping) break;  // said while a batch was planned, without the lock
    // Waiting: for room when every slot is planned, else for others to finish their samples.
    const bool full = ended || no_free_slot();
    const int64_t start = now_ns();
    work_ready.wait(lock);
    if (number < active_limit)
      (full ? counters.blocked_ns : counters.starved_ns) += now_ns() - start;
  }
  return ok_status();
}

Status Loader::Impl::run_planner() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    if (!planning || plan == nullptr || options.single_epoch) {
      plan_wanted.wait(lock);
      continue;
    }
    planning = false;
    const uint32_t epoch = plan->epoch() + 1;
    lock.unlock();
    std::shared_ptr<const EpochPlan> made = sampler.plan(epoch);
    lock.lock();
    if (plan != nullptr && plan->epoch() + 1 == epoch) following_plan = std::move(made);
  }
  return ok_status();
}

// num_workers: auto. Threads are taken away while the consumer never waits and the ring stays full,
// and given back as soon as it waits.
void Loader::Impl::tune(int64_t waited_ns, size_t ready) {
  constexpr int64_t kWindowNs = 500'000'000;
  const int64_t now = now_ns();
  if (window_start_ns == 0) {
    window_start_ns = now;  // the first batch is waited for in any case
    return;
  }
  window_wait_ns += waited_ns;
  ++window_batches;
  window_full += 2 * ready >= slots.size() - static_cast<size_t>(options.consumer_batches);
  if (now - window_start_ns < kWindowNs || window_batches < 4) return;
  const double share =
      static_cast<double>(window_wait_ns) / static_cast<double>(now - window_start_ns);
  if (share > 0.02) {
    active_limit = std::min(setup.num_workers, active_limit + std::max(1, active_limit / 4));
    calm_windows = 0;
    work_ready.notify_all();
  } else if (window_full == window_batches && ++calm_windows >= 3) {
    active_limit = std::max(1, active_limit - 1);
    calm_windows = 0;
  }
  window_start_ns = now;
  window_wait_ns = 0;
  window_batches = window_full = 0;
}

}  // namespace aerie::data
