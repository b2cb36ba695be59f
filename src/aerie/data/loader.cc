#include "aerie/data/loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <sys/resource.h>
#include <time.h>
#include <unordered_set>

#include "aerie/base/check.h"
#include "aerie/base/clock.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/thread_group.h"
#include "aerie/data/batch_builder.h"
#include "aerie/data/loader_setup.h"

namespace aerie::data {

namespace {

constexpr size_t kMaxBadKept = 100000;
constexpr size_t kBadShown = 20;

int64_t now_ns() {
  return Clock::real().monotonic_ns();
}

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

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Sums of one loader, added to by all threads.
struct Counters {
  std::atomic<uint64_t> read_items{0}, read_bytes{0}, read_samples{0}, noise_items{0},
      noise_samples{0}, mix_items{0}, mix_cells{0};
  std::atomic<int64_t> read_ns{0}, noise_ns{0}, mix_ns{0}, blocked_ns{0}, starved_ns{0},
      probe_wall_ns{0}, probe_wait_ns{0};
};

}  // namespace

struct Loader::Impl {
  enum class State : uint8_t { kFree, kReading, kFinishing, kReady, kHeld };
  struct Slot {
    BatchBuilder builder;
    State state = State::kFree;
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

  std::shared_ptr<const AudioDataset> dataset;
  LoaderOptions options;
  Sampler sampler;
  LoaderSetup setup;
  std::unique_ptr<MemoryBudget> budget;
  BuildRules rules;
  NoiseStats noise_stats;
  Counters counters;
  double max_bad_fraction = 0.0;
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
  bool ended = false;  // single_epoch: everything is planned
  int in_flight = 0;   // items and finishes under way
  int active_limit = 0;
  std::shared_ptr<const EpochPlan> plan, following_plan;
  std::map<uint32_t, int64_t> batch_counts;  // of epochs planned and not yet left
  bool planning = false;
  bool epoch_over = false;  // the consumer has had the last batch of its epoch
  uint64_t samples_done = 0;

  // Consumer's figures.
  int64_t consumer_wait_ns = 0, consumer_work_ns = 0, epoch_pause_ns = 0, first_batch_ns = -1;
  int64_t last_return_ns = 0, epochs_entered = 0;
  int64_t valid_cells = 0, all_cells = 0, delivered_samples = 0;
  uint64_t delivered_batches = 0;
  std::vector<BadSample> bad;
  std::unordered_set<uint32_t> bad_ids;
  // auto workers: the current window.
  int64_t window_start_ns = 0, window_wait_ns = 0;
  int window_batches = 0, window_full = 0, calm_windows = 0;

  std::future<void> publishing;             // of the packed cache
  std::unique_ptr<BuildThread> own_thread;  // 0 workers, and the consumer's finishing
  ThreadGroup threads;                      // last: its threads use everything above

  explicit Impl(Sampler s)
      : sampler(std::move(s)), threads([this](const Status&) { batch_ready.notify_all(); }) {}
  ~Impl();

  int64_t batches_in(const EpochPlan& p) const {
    const int64_t all = static_cast<int64_t>(p.num_steps()) * setup.lanes_per_rank;
    return options.max_batches_per_epoch >= 0 ? std::min(all, options.max_batches_per_epoch) : all;
  }
  const EpochPlan& plan_of(uint32_t epoch);
  bool no_free_slot() const {
    return std::none_of(slots.begin(), slots.end(),
                        [](const auto& slot) { return slot->state == State::kFree; });
  }
  bool claim(Task& task);
  bool plan_next();
  void do_item(const Task& task, BuildThread& thread, std::unique_lock<std::mutex>& lock);
  void finish(Slot& slot, BuildThread& thread, std::unique_lock<std::mutex>& lock);
  Status run_worker(int number);
  Status run_planner();
  Result<const Batch*> next_batch();
  Status account(Slot& slot, std::vector<BadSample>& new_bad);
  void tune(int64_t waited_ns, size_t ready);
  void reset(Position to, std::unique_lock<std::mutex>& lock);
  void enter_epoch(Position to);
  Status too_many_bad() const;
};

Loader::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  work_ready.notify_all();
  plan_wanted.notify_all();
  (void)threads.join();
  for (auto& slot : slots) slot->builder.release_memory(rules);
}

// With the lock held. The plan of the epoch after the current one is made by the planner thread
// while the current one is read, so that an epoch's end costs nothing.
const EpochPlan& Loader::Impl::plan_of(uint32_t epoch) {
  if (plan != nullptr && plan->epoch() == epoch) return *plan;
  if (following_plan != nullptr && following_plan->epoch() == epoch)
    plan = std::move(following_plan);
  else
    plan = sampler.plan(epoch);
  following_plan.reset();
  batch_counts[epoch] = batches_in(*plan);
  planning = true;
  plan_wanted.notify_one();
  return *plan;
}

// With the lock held: puts the next batch into a free slot. False: no slot, or no batch.
bool Loader::Impl::plan_next() {
  if (ended || stopping || paused) return false;
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
  Batch& batch = slot->builder.batch();
  batch.epoch_ = next.epoch;
  batch.index_ = next.index;
  batch.step_ = static_cast<uint64_t>(next.index) / setup.lanes_per_rank;
  batch.lane_ = options.rank * setup.lanes_per_rank +
                static_cast<uint32_t>(static_cast<uint64_t>(next.index) % setup.lanes_per_rank);
  batch.last_ = next.index + 1 == batches_in(*current);
  batch.section_ = current->batch(batch.step_, batch.lane_, batch.samples_);
  ++next.index;
  slot->error = slot->builder.begin(rules);
  slot->next_item = 0;
  slot->unfinished = slot->builder.num_items();
  slot->state = State::kReading;
  order.push_back(slot);
  if (!slot->error.ok()) {
    slot->state = State::kReady;
    batch_ready.notify_one();
  } else {
    work_ready.notify_all();
  }
  return true;
}

// With the lock held: one sample of the oldest batch that has any left, or a batch without samples.
bool Loader::Impl::claim(Task& task) {
  if (paused || stopping) return false;
  while (true) {
    for (Slot* slot : order) {
      if (slot->state != State::kReading) continue;
      if (slot->next_item < slot->builder.num_items() || slot->builder.num_items() == 0) {
        task = {slot, slot->next_item++};
        if (slot->builder.num_items() == 0) slot->state = State::kFinishing;
        return true;
      }
    }
    if (!plan_next()) return false;
  }
}

void Loader::Impl::finish(Slot& slot, BuildThread& thread, std::unique_lock<std::mutex>& lock) {
  slot.state = State::kFinishing;
  lock.unlock();
  const int64_t start = now_ns();
  Status status = run_guarded([&] { return slot.builder.finish(rules, thread); });
  counters.mix_ns += now_ns() - start;
  ++counters.mix_items;
  const Batch& batch = slot.builder.batch();
  counters.mix_cells += static_cast<uint64_t>(batch.num_samples() * batch.capacity());
  lock.lock();
  slot.error = std::move(status);
  slot.state = State::kReady;
  batch_ready.notify_one();
}

// Entered and left with the lock held.
void Loader::Impl::do_item(const Task& task, BuildThread& thread,
                           std::unique_lock<std::mutex>& lock) {
  Slot& slot = *task.slot;
  ++in_flight;
  if (slot.builder.num_items() > 0) {
    lock.unlock();
    const int64_t start = now_ns();
    const bool probe = task.item == 0;
    const int64_t cpu = probe ? thread_cpu_ns() : 0;
    const int64_t switches = probe ? voluntary_switches() : 0;
    const auto read = [&] {
      slot.builder.read_item(rules, task.item, thread);
      return ok_status();
    };
    const Status status = run_guarded(std::cref(read));  // by reference: no allocation
    const int64_t spent = now_ns() - start;
    const BatchBuilder::ItemFigures& figures = slot.builder.figures(task.item);
    if (probe) {
      counters.probe_wall_ns += spent;
      // A thread that was merely preempted did not wait for the disk.
      if (voluntary_switches() > switches)
        counters.probe_wait_ns += std::max<int64_t>(0, spent - (thread_cpu_ns() - cpu));
    }
    ++counters.read_items;
    counters.read_bytes += static_cast<uint64_t>(figures.bytes_read);
    counters.read_samples += static_cast<uint64_t>(figures.samples);
    counters.read_ns += spent - figures.noise_ns;
    if (figures.noise_ns > 0) {
      counters.noise_ns += figures.noise_ns;
      ++counters.noise_items;
      counters.noise_samples += static_cast<uint64_t>(figures.samples);
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
  BuildThread thread(rules);
  std::unique_lock lock(mutex);
  while (!stopping) {
    Task task;
    if (number < active_limit && claim(task)) {
      do_item(task, thread, lock);
      continue;
    }
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

Status Loader::Impl::too_many_bad() const {
  std::string text;
  for (size_t i = 0; i < std::min(bad.size(), kBadShown); ++i)
    text += str_cat("\n  ", bad[i].place, ": ", bad[i].reason);
  if (bad.size() > kBadShown) text += str_cat("\n  ... and ", bad.size() - kBadShown, " more");
  return data_error(str_cat(bad_ids.size(), " of ", dataset->size(),
                            " samples cannot be read, more than aerie.max_bad_fraction=",
                            max_bad_fraction, ":", text))
      .with_hint(
          "`aerie data validate` lists all of them; repair the data or raise "
          "aerie.max_bad_fraction");
}

// With the lock held, by the consumer and in the order of batches: bad samples are counted here so
// that a run stops at the same place whatever the threads did.
Status Loader::Impl::account(Slot& slot, std::vector<BadSample>& new_bad) {
  const Batch& batch = slot.builder.batch();
  static LogLimiter limiter(10.0, 5);
  for (const BatchBuilder::BadItem& item : slot.builder.bad_items()) {
    const uint32_t id = dataset->sample_id(item.sample.sample);
    const bool is_new = bad_ids.insert(item.sample.sample).second;
    BadSample sample{id, dataset->describe(item.sample.sample), item.status.to_string(),
                     batch.epoch(), item.sample.position};
    if (is_new) {
      limiter.warn("bad", "data", "cannot read ", sample.place, ": ", sample.reason,
                   rules.on_bad == config::OnBadAudio::kZero ? "; silence is used" : "; skipped");
      new_bad.push_back(sample);
      if (bad.size() < kMaxBadKept) bad.push_back(std::move(sample));
    }
  }
  if (!slot.builder.bad_items().empty() &&
      static_cast<double>(bad_ids.size()) > max_bad_fraction * static_cast<double>(dataset->size()))
    return too_many_bad();
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

Result<const Batch*> Loader::Impl::next_batch() {
  std::unique_lock lock(mutex);
  const int64_t entered = now_ns();
  if (last_return_ns > 0) consumer_work_ns += entered - last_return_ns;
  if (epoch_over) {
    last_return_ns = now_ns();
    return static_cast<const Batch*>(nullptr);
  }
  size_t held = 0, ready = 0;
  for (auto& slot : slots) {
    held += slot->state == State::kHeld;
    ready += slot->state == State::kReady;
  }
  if (held >= slots.size()) {
    // More batches are kept than announced: one more slot, within the budget.
    slots.push_back(std::make_unique<Slot>());
    log_debug("data", "the consumer keeps ", held, " batches; the ring grows");
    work_ready.notify_all();
  }
  while (order.empty() || order.front()->state != State::kReady) {
    if (setup.num_workers == 0) {
      Task task;
      if (claim(task)) {
        do_item(task, *own_thread, lock);
        continue;
      }
      AERIE_CHECK(!order.empty() && order.front()->state == State::kReady,
                  "nothing to do and nothing ready");
      break;
    }
    if (const Status status = threads.status(); !status.ok()) return status;
    if (order.empty() && held < slots.size()) {
      (void)plan_next();
      work_ready.notify_all();
    }
    batch_ready.wait(lock);
  }
  Slot& slot = *order.front();
  const int64_t waited = now_ns() - entered;
  consumer_wait_ns += waited;
  if (first_batch_ns < 0) {
    first_batch_ns = now_ns() - start_ns;
  } else if (slot.builder.batch().index_ == 0) {
    // What an epoch's first batch costs beyond an average one.
    const int64_t usual =
        delivered_batches > 0 ? consumer_wait_ns / static_cast<int64_t>(delivered_batches) : 0;
    epoch_pause_ns += std::max<int64_t>(0, waited - usual);
    ++epochs_entered;
  }
  if (setup.auto_workers) tune(waited, ready);
  std::vector<BadSample> new_bad;
  if (slot.error.ok()) slot.error = account(slot, new_bad);
  if (!new_bad.empty() && options.on_bad_sample) {
    lock.unlock();
    for (const BadSample& sample : new_bad) options.on_bad_sample(sample);
    lock.lock();
  }
  last_return_ns = now_ns();
  if (!slot.error.ok()) return slot.error;
  order.pop_front();
  slot.state = State::kHeld;
  const Batch& batch = slot.builder.batch();
  taken = {batch.epoch_, batch.index_ + 1};
  epoch_over = batch.last_;
  samples_done += static_cast<uint64_t>(batch.num_samples());
  ++delivered_batches;
  delivered_samples += batch.num_samples();
  all_cells += batch.num_samples() * batch.capacity();
  for (const int64_t length : batch.audio_len_) valid_cells += length;
  if (batch.last_ && dataset->cache() != nullptr && dataset->cache()->building()) {
    // What this epoch added to the packed cache becomes readable; the disk is not waited for.
    lock.unlock();
    if (publishing.valid()) publishing.wait();
    const auto publish = [of = dataset] { of->cache()->publish(); };
    try {
      publishing = std::async(std::launch::async, publish);
    } catch (const std::system_error&) {  // no thread to be had
      publish();
    }
  }
  return &batch;
}

void Loader::Impl::reset(Position to, std::unique_lock<std::mutex>& lock) {
  paused = true;
  idle.wait(lock, [&] { return in_flight == 0; });
  for (Slot* slot : order) slot->state = State::kFree;
  order.clear();
  next = taken = to;
  epoch_over = to.index >= batches_in(plan_of(to.epoch));
  ended = false;
  paused = false;
  last_return_ns = 0;
  work_ready.notify_all();
}

// The producer is already there.
void Loader::Impl::enter_epoch(Position to) {
  taken = to;
  epoch_over = false;
  if (batch_counts.find(to.epoch) == batch_counts.end()) (void)plan_of(to.epoch);
  batch_counts.erase(batch_counts.begin(), batch_counts.find(to.epoch));
}

Loader::Loader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Loader::~Loader() = default;

Result<std::unique_ptr<Loader>> Loader::make(std::shared_ptr<const AudioDataset> dataset,
                                             const config::DatasetConfig& config,
                                             const config::AerieConfig& aerie,
                                             const LoaderOptions& options) {
  AERIE_RETURN_IF_ERROR(check_loader_keys(config));
  if (options.world < 1 || options.rank >= options.world)
    return invalid_argument(str_cat("rank ", options.rank, " of ", options.world));
  Sampler::Options sampler_options;
  sampler_options.seed = options.seed;
  sampler_options.compat_nemo = aerie.compat_nemo_2_6;
  sampler_options.shuffle_level = aerie.data.shuffle_level;
  const int64_t lanes = aerie.data.virtual_ranks.value_or(options.world);
  if (lanes < 1 || lanes > (1 << 20) || lanes % options.world != 0)
    return invalid_argument(str_cat("aerie.data.virtual_ranks=", lanes,
                                    " is no multiple of the number of ranks, ", options.world));
  sampler_options.virtual_ranks = static_cast<uint32_t>(lanes);
  AERIE_ASSIGN_OR_RETURN(Sampler sampler,
                         Sampler::make(dataset->samples(), config, sampler_options));
  auto impl = std::make_unique<Impl>(std::move(sampler));
  impl->dataset = dataset;
  impl->options = options;
  AERIE_ASSIGN_OR_RETURN(
      impl->setup, set_up_loader(dataset, config, aerie, options, impl->sampler, impl->rules));
  impl->budget =
      std::make_unique<MemoryBudget>(impl->setup.budget_bytes - impl->setup.worker_bytes);
  impl->rules.budget = impl->budget.get();
  impl->rules.noise_stats = &impl->noise_stats;
  impl->max_bad_fraction = aerie.max_bad_fraction;
  impl->plan = impl->setup.first_plan;
  impl->batch_counts[0] = impl->batches_in(*impl->plan);
  impl->planning = true;
  impl->active_limit = impl->setup.num_workers;
  for (int i = 0; i < impl->setup.num_slots; ++i)
    impl->slots.push_back(std::make_unique<Impl::Slot>());
  if (options.check_machine && !options.quiet) warn_about_machine(*dataset, impl->setup);

  Impl* raw = impl.get();
  std::unique_ptr<Loader> loader(new Loader(std::move(impl)));
  if (!options.quiet) log_info("data", loader->description());
  if (raw->setup.num_workers == 0) {
    raw->own_thread = std::make_unique<BuildThread>(raw->rules);
  } else {
    for (int w = 0; w < raw->setup.num_workers; ++w)
      raw->threads.start(str_cat("data/", w), [raw, w] { return raw->run_worker(w); });
    if (!options.single_epoch)
      raw->threads.start("data/plan", [raw] { return raw->run_planner(); });
  }
  return loader;
}

std::string Loader::description() const {
  const LoaderSetup& setup = impl_->setup;
  char padding[16];
  std::snprintf(padding, sizeof(padding), "%.1f%%", 100 * setup.expected_padding);
  return str_cat(setup.auto_workers ? "auto, at most " : "", setup.num_workers,
                 setup.num_workers == 1 ? " worker" : " workers", ", ring of ", setup.num_slots,
                 " batches of at most ", human_bytes(static_cast<double>(impl_->rules.usual_bytes)),
                 " (", impl_->rules.allocator->kind(), "), memory at most ",
                 human_bytes(static_cast<double>(setup.budget_bytes)), "; ",
                 impl_->rules.capacities.lengths().size(), " row lengths, about ", padding,
                 " padding");
}

int64_t Loader::batches_per_epoch() const {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->batch_counts.find(impl_->taken.epoch);
  return found != impl_->batch_counts.end() ? found->second : impl_->batches_in(*impl_->plan);
}

Result<const Batch*> Loader::next() {
  return impl_->next_batch();
}

void Loader::release(const Batch* batch) {
  {
    const std::lock_guard lock(impl_->mutex);
    for (auto& slot : impl_->slots) {
      if (&slot->builder.batch() != batch) continue;
      AERIE_CHECK(slot->state == Impl::State::kHeld, "batch released twice");
      slot->state = Impl::State::kFree;
      batch = nullptr;
      break;
    }
    AERIE_CHECK(batch == nullptr, "not a batch of this loader");
  }
  impl_->work_ready.notify_all();
}

Status Loader::start_epoch(int64_t epoch) {
  if (epoch < 0 || epoch > 0xFFFFFFF0ll)
    return invalid_argument(str_cat("epoch ", epoch, " is out of range"));
  std::unique_lock lock(impl_->mutex);
  const Impl::Position to{static_cast<uint32_t>(epoch), 0};
  // What is prepared may already be that epoch.
  const Batch* first = impl_->order.empty() ? nullptr : &impl_->order.front()->builder.batch();
  if (first != nullptr ? first->epoch_ == to.epoch && first->index_ == 0
                       : impl_->next.epoch == to.epoch && impl_->next.index == 0) {
    impl_->enter_epoch(to);
    return ok_status();
  }
  if (first == nullptr && impl_->next.epoch + 1 == to.epoch && !impl_->options.single_epoch &&
      impl_->next.index >= impl_->batches_in(impl_->plan_of(impl_->next.epoch))) {
    impl_->next = to;
    impl_->enter_epoch(to);
    return ok_status();
  }
  impl_->reset(to, lock);
  return ok_status();
}

Cursor Loader::cursor() const {
  const std::lock_guard lock(impl_->mutex);
  Cursor out;
  const uint64_t lanes = impl_->setup.lanes_per_rank;
  out.epoch = impl_->taken.epoch;
  out.step = static_cast<uint64_t>(impl_->taken.index) / lanes;
  out.micro = static_cast<uint32_t>(static_cast<uint64_t>(impl_->taken.index) % lanes);
  out.seed = impl_->options.seed;
  out.virtual_ranks = impl_->sampler.num_lanes();
  out.batch_size = impl_->sampler.max_batch_size();
  out.order_fingerprint = impl_->sampler.fingerprint();
  out.data_fingerprint = impl_->dataset->fingerprint();
  out.samples_done = impl_->samples_done * impl_->options.world;
  out.bad_samples = impl_->bad_ids.size();
  return out;
}

Status Loader::restore(const std::string& cursor_json) {
  AERIE_ASSIGN_OR_RETURN(const Cursor cursor, Cursor::parse(cursor_json));
  const Sampler& sampler = impl_->sampler;
  if (cursor.data_fingerprint != impl_->dataset->fingerprint())
    return invalid_argument(
               "the data has changed since the checkpoint was written: other "
               "manifests, or other min_duration or max_duration")
        .with_hint("restore the data, or start the epoch anew");
  if (cursor.seed != impl_->options.seed)
    return invalid_argument("the checkpoint was written with another aerie.seed")
        .with_hint("use the same seed to continue");
  uint64_t step = cursor.step;
  if (cursor.order_fingerprint != sampler.fingerprint()) {
    // Plain data in another number of lanes or batch size: the samples that are done are the first
    // step * lanes * batch_size of the epoch's order.
    const uint64_t then = uint64_t{cursor.virtual_ranks} * cursor.batch_size;
    const uint64_t now = uint64_t{sampler.num_lanes()} * sampler.max_batch_size();
    if (!sampler.is_plain() || then == now || cursor.micro != 0 ||
        cursor.step > (uint64_t{1} << 62) / then)
      return invalid_argument(
                 "the order of the data has changed since the checkpoint was written "
                 "(batch size, shuffling, buckets, mixture or number of ranks)")
          .with_hint(
              "set aerie.data.virtual_ranks to the number of ranks of the first run, and "
              "the other keys as they were");
    step = cursor.step * then / now;
    if (step * now != cursor.step * then)
      log_warn("data", "the new global batch of ", now, " does not divide the ", cursor.step * then,
               " samples done: ", cursor.step * then - step * now, " of them are seen again");
  }
  std::unique_lock lock(impl_->mutex);
  const EpochPlan& plan = impl_->plan_of(cursor.epoch);
  const uint64_t lanes = impl_->setup.lanes_per_rank;
  if (step > plan.num_steps() || cursor.micro >= lanes ||
      (step == plan.num_steps() && cursor.micro > 0))
    return data_error(str_cat("data cursor: step ", step, " of an epoch of ", plan.num_steps()));
  impl_->reset({cursor.epoch, static_cast<int64_t>(step * lanes + cursor.micro)}, lock);
  impl_->samples_done = cursor.samples_done / impl_->options.world;
  return ok_status();
}

LoaderStats Loader::stats() const {
  const Counters& c = impl_->counters;
  const double rate = impl_->dataset->read_options().sample_rate;
  LoaderStats out;
  out.read = {c.read_items, seconds(c.read_ns), static_cast<double>(c.read_bytes),
              static_cast<double>(c.read_samples) / rate};
  out.noise = {c.noise_items, seconds(c.noise_ns), static_cast<double>(impl_->noise_stats.bytes),
               static_cast<double>(c.noise_samples) / rate};
  out.mix = {c.mix_items, seconds(c.mix_ns), static_cast<double>(c.mix_cells) * 4.0,
             static_cast<double>(c.mix_cells) / rate};
  out.blocked_s = seconds(c.blocked_ns);
  out.starved_s = seconds(c.starved_ns);
  out.noise_failures = impl_->noise_stats.failed;
  out.read_wait_share = c.probe_wall_ns > 0 ? static_cast<double>(c.probe_wait_ns) /
                                                  static_cast<double>(c.probe_wall_ns)
                                            : 0.0;
  out.wall_s = seconds(now_ns() - impl_->start_ns);
  const std::lock_guard lock(impl_->mutex);
  out.consumer_wait_s = seconds(impl_->consumer_wait_ns);
  out.consumer_work_s = seconds(impl_->consumer_work_ns);
  out.epoch_pause_s = impl_->epochs_entered > 0 ? seconds(impl_->epoch_pause_ns) /
                                                      static_cast<double>(impl_->epochs_entered)
                                                : 0.0;
  out.first_batch_s = seconds(std::max<int64_t>(0, impl_->first_batch_ns));
  out.batches = impl_->delivered_batches;
  out.samples = static_cast<uint64_t>(impl_->delivered_samples);
  out.bad_samples = impl_->bad_ids.size();
  out.audio_s = static_cast<double>(impl_->valid_cells) / rate;
  out.padding_share = impl_->all_cells > 0 ? 1 - static_cast<double>(impl_->valid_cells) /
                                                     static_cast<double>(impl_->all_cells)
                                           : 0.0;
  out.workers = impl_->active_limit;
  out.max_workers = impl_->setup.num_workers;
  for (const auto& slot : impl_->slots) out.ring_ready += slot->state == Impl::State::kReady;
  out.ring_slots = impl_->slots.size();
  out.memory_bytes = impl_->setup.budget_bytes;
  return out;
}

std::vector<BadSample> Loader::bad_samples() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bad;
}

const Sampler& Loader::sampler() const {
  return impl_->sampler;
}

uint64_t Loader::memory_bytes() const {
  return impl_->setup.budget_bytes;
}

std::vector<int64_t> Loader::capacities() const {
  const auto lengths = impl_->rules.capacities.lengths();
  return {lengths.begin(), lengths.end()};
}

}  // namespace aerie::data
