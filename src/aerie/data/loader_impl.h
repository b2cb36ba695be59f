// State that a Loader's threads and its consumer share; included by loader.cc (the consumer's side)
// and loader_threads.cc (what workers and planner do). `mutex` guards everything below it.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/thread_group.h"
#include "aerie/data/loader.h"
#include "aerie/data/loader_setup.h"

namespace aerie::data {

inline int64_t now_ns() {
  return Clock::real().monotonic_ns();
}

// Sums of one loader, added to by all threads.
struct LoaderCounters {
  std::atomic<uint64_t> read_items{0}, read_bytes{0}, side_items{0}, finish_items{0};
  std::atomic<double> read_amount{0}, side_amount{0};
  std::atomic<int64_t> read_ns{0}, side_ns{0}, finish_ns{0}, blocked_ns{0}, starved_ns{0},
      probe_wall_ns{0}, probe_wait_ns{0};
};

struct Loader::Impl {
  enum class State : uint8_t { kFree, kPlanning, kReading, kFinishing, kReady, kHeld };
  struct Slot {
    explicit Slot(std::unique_ptr<BatchSlot> made) : maker(std::move(made)) {}
    const std::unique_ptr<BatchSlot> maker;
    State state = State::kFree;
    size_t num_items = 0;  // as planned
    size_t next_item = 0;
    size_t unfinished = 0;
    Status error;
  };
  // The next batch of this rank that nobody has planned yet.
  struct Position {
    uint32_t epoch = 0;
    int64_t index = 0;  // among this rank's batches of the epoch
  };
  struct Task {
    Slot* slot = nullptr;
    size_t item = 0;
  };

  std::shared_ptr<const Dataset> dataset;
  LoaderOptions options;
  Sampler sampler;
  LoaderSetup setup;
  std::unique_ptr<MemoryBudget> budget;
  std::unique_ptr<BatchAssembler> assembler;  // after the budget: its slots give memory back
  HostAllocator* allocator = nullptr;
  LoaderCounters counters;
  double max_bad_fraction = 0.0;
  std::string max_bad_key;
  const int64_t start_ns = now_ns();

  mutable std::mutex mutex;
  std::condition_variable work_ready;   // workers: something to claim, or stop
  std::condition_variable batch_ready;  // consumer: the oldest batch may be done
  std::condition_variable idle;         // reset: nothing is being read
  std::condition_variable plan_wanted;  // planner
  std::deque<std::unique_ptr<Slot>> slots;
  std::deque<Slot*> order;  // planned, oldest first
  Position next;            // producer
  Position taken;           // consumer: after the last batch handed out
  bool stopping = false;
  bool paused = false;
  bool waiting = false;  // read_ahead = false: nobody has asked for anything yet
  bool ended = false;    // single_epoch: everything is planned
  int in_flight = 0;     // items and finishes under way
  int active_limit = 0;
  std::shared_ptr<const EpochPlan> plan, following_plan;
  std::map<uint32_t, int64_t> batch_counts;  // of epochs planned and not yet left
  bool planning = false;
  bool epoch_over = false;  // the consumer has had the last batch of its epoch
  uint64_t samples_done = 0;
  // An epoch that is gone on with in other batches: what was done before, its plan, and how many
  // batches of now the done part stands for.
  std::vector<Cursor::Part> before;
  std::shared_ptr<const EpochPlan> rest_plan;
  int64_t rest_offset = 0;

  // Consumer's figures.
  int64_t consumer_wait_ns = 0, consumer_work_ns = 0, epoch_pause_ns = 0, first_batch_ns = -1;
  int64_t last_return_ns = 0, epochs_entered = 0;
  BatchFill delivered_fill;
  double delivered_amount = 0.0;
  int64_t delivered_samples = 0;
  uint64_t delivered_batches = 0;
  std::vector<BadSample> bad;
  std::vector<BadSample> untold_bad;  // for other ranks
  std::unordered_set<uint32_t> bad_ids;
  // auto workers: the current window.
  int64_t window_start_ns = 0, window_wait_ns = 0;
  int window_batches = 0, window_full = 0, calm_windows = 0;

  std::future<void> epoch_end;                  // of the assembler
  std::unique_ptr<AssemblerThread> own_thread;  // 0 workers
  ThreadGroup threads;                          // last: its threads use everything above

  explicit Impl(Sampler s)
      : sampler(std::move(s)), threads([this](const Status&) { batch_ready.notify_all(); }) {}
  ~Impl();

  int64_t batches_in(const EpochPlan& p) const {
    uint64_t steps = p.num_steps();
    // Earlier versions had as many steps in every epoch as in the first.
    if (sampler.packs_within_budget() && !p.is_rest())
      steps = std::min(steps, setup.first_plan->num_steps());
    const int64_t all = static_cast<int64_t>(steps) * setup.lanes_per_rank;
    return options.max_batches_per_epoch >= 0 ? std::min(all, options.max_batches_per_epoch) : all;
  }
  const EpochPlan& plan_of(uint32_t epoch);
  Cursor::Part part_now() const;
  Result<Sampler> sampler_of(const Cursor::Part& part) const;
  bool no_free_slot() const {
    return std::none_of(slots.begin(), slots.end(),
                        [](const auto& slot) { return slot->state == State::kFree; });
  }
  bool claim(Task& task, std::unique_lock<std::mutex>& lock);
  bool plan_next(std::unique_lock<std::mutex>& lock);
  void wake();
  void do_item(const Task& task, AssemblerThread& thread, std::unique_lock<std::mutex>& lock);
  void finish(Slot& slot, AssemblerThread& thread, std::unique_lock<std::mutex>& lock);
  Status run_worker(int number);
  Status run_planner();
  Result<const Batch*> next_batch();
  Status account(Slot& slot, std::vector<BadSample>& new_bad);
  void tune(int64_t waited_ns, size_t ready);
  void reset(Position to, std::unique_lock<std::mutex>& lock);
  void enter_epoch(Position to);
  void forget_rest();
  // An error when they are.
  Status too_many_bad() const;
};

}  // namespace aerie::data
