#include "aerie/data/loader.h"

#include <utility>

#include "aerie/base/check.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/loader_impl.h"

namespace aerie::data {

namespace {

constexpr size_t kMaxBadKept = 100000;
constexpr size_t kBadShown = 20;
constexpr double kDroppedWarning = 0.2;  // share of the samples

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

Loader::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  work_ready.notify_all();
  plan_wanted.notify_all();
  (void)threads.join();
}

Status Loader::Impl::too_many_bad() const {
  if (static_cast<double>(bad_ids.size()) <=
      max_bad_fraction * static_cast<double>(dataset->size()))
    return ok_status();
  std::string text;
  for (size_t i = 0; i < std::min(bad.size(), kBadShown); ++i)
    text += str_cat("\n  ", bad[i].place, ": ", bad[i].reason);
  if (bad.size() > kBadShown) text += str_cat("\n  ... and ", bad.size() - kBadShown, " more");
  return data_error(str_cat(bad_ids.size(), " of ", dataset->size(),
                            " samples cannot be read, more than ", max_bad_key, "=",
                            max_bad_fraction, ":", text))
      .with_hint(str_cat("`aerie data validate` lists all of them; repair the data or raise ",
                         max_bad_key));
}

// With the lock held, by the consumer and in the order of batches: bad samples are counted here so
// that a run stops at the same place whatever the threads did.
Status Loader::Impl::account(Slot& slot, std::vector<BadSample>& new_bad) {
  const Batch& batch = slot.maker->batch();
  static LogLimiter limiter(10.0, 5);
  const std::span<const BadItem> items = slot.maker->bad_items();
  for (const BadItem& item : items) {
    const uint32_t id = dataset->sample_id(item.sample.sample);
    const bool is_new = bad_ids.insert(item.sample.sample).second;
    BadSample sample{id,
                     dataset->describe(item.sample.sample),
                     item.status.to_string(),
                     batch.epoch(),
                     item.sample.position,
                     item.sample.sample};
    if (is_new) {
      limiter.warn("bad", "data", "cannot read ", sample.place, ": ", sample.reason, "; ",
                   item.outcome);
      new_bad.push_back(sample);
      if (options.world > 1) untold_bad.push_back(sample);
      if (bad.size() < kMaxBadKept) bad.push_back(std::move(sample));
    }
  }
  return items.empty() ? ok_status() : too_many_bad();
}

Result<const Batch*> Loader::Impl::next_batch() {
  std::unique_lock lock(mutex);
  wake();
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
    slots.push_back(std::make_unique<Slot>(assembler->make_slot()));
    log_debug("data", "the consumer keeps ", held, " batches; the ring grows");
    work_ready.notify_all();
  }
  while (order.empty() || order.front()->state != State::kReady) {
    if (setup.num_workers == 0) {
      Task task;
      if (claim(task, lock)) {
        do_item(task, *own_thread, lock);
        continue;
      }
      AERIE_CHECK(!order.empty() && order.front()->state == State::kReady,
                  "nothing to do and nothing ready");
      break;
    }
    if (const Status status = threads.status(); !status.ok()) return status;
    // It may be ready at once: with an error.
    if (order.empty() && held < slots.size() && plan_next(lock)) continue;
    batch_ready.wait(lock);
  }
  Slot& slot = *order.front();
  const int64_t waited = now_ns() - entered;
  consumer_wait_ns += waited;
  if (first_batch_ns < 0) {
    first_batch_ns = now_ns() - start_ns;
    work_ready.notify_all();  // the ring may be filled now
  } else if (slot.maker->batch().index_in_epoch() == 0) {
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
  const Batch& batch = slot.maker->batch();
  taken = {batch.epoch(), batch.index_in_epoch() + 1};
  epoch_over = batch.last_in_epoch();
  samples_done += static_cast<uint64_t>(batch.num_samples());
  ++delivered_batches;
  delivered_samples += batch.num_samples();
  const BatchFill fill = batch.fill();
  delivered_fill.all += fill.all;
  delivered_fill.valid += fill.valid;
  delivered_amount += batch.amount();
  if (batch.last_in_epoch() && assembler->wants_epoch_end()) {
    // What it does to the disk is not waited for.
    lock.unlock();
    if (epoch_end.valid()) epoch_end.wait();
    const auto end = [of = assembler.get()] { of->epoch_end(); };
    try {
      epoch_end = std::async(std::launch::async, end);
    } catch (const std::system_error&) {  // no thread to be had
      end();
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
  if (rest_plan != nullptr && rest_plan->epoch() != to.epoch) forget_rest();
  if (batch_counts.find(to.epoch) == batch_counts.end()) (void)plan_of(to.epoch);
  batch_counts.erase(batch_counts.begin(), batch_counts.find(to.epoch));
}

Loader::Loader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Loader::~Loader() = default;

Result<std::unique_ptr<Loader>> Loader::make(std::shared_ptr<const Dataset> dataset,
                                             std::unique_ptr<BatchAssembler> assembler,
                                             const SamplingConfig& sampling,
                                             const LoaderConfig& config,
                                             const LoaderOptions& options) {
  AERIE_RETURN_IF_ERROR(config.validate());
  if (options.world < 1 || options.rank >= options.world)
    return invalid_argument(str_cat("rank ", options.rank, " of ", options.world));
  AERIE_ASSIGN_OR_RETURN(const Sampler::Options sampler_options,
                         loader_sampler_options(config, options));
  AERIE_ASSIGN_OR_RETURN(Sampler sampler,
                         Sampler::make(dataset->samples(), sampling, sampler_options));
  auto impl = std::make_unique<Impl>(std::move(sampler));
  impl->dataset = dataset;
  impl->options = options;
  impl->assembler = std::move(assembler);
  impl->allocator = options.allocator != nullptr ? options.allocator : &HostAllocator::pageable();
  const double dropped = static_cast<double>(impl->sampler.dropped_too_long());
  if (dropped > kDroppedWarning * static_cast<double>(dataset->size()))
    log_warn("data", impl->sampler.dropped_too_long(), " of ", dataset->size(),
             " samples are longer than the last of bucket_duration_bins and left out");
  AERIE_ASSIGN_OR_RETURN(impl->setup,
                         set_up_loader(*dataset, *impl->assembler, config, options, impl->sampler));
  impl->budget =
      std::make_unique<MemoryBudget>(impl->setup.budget_bytes - impl->setup.worker_bytes);
  const uint64_t usual = impl->setup.sizes.usual_bytes;
  const uint64_t ring = static_cast<uint64_t>(impl->setup.num_slots) * usual;
  impl->assembler->set_memory({impl->allocator, impl->budget.get(), usual,
                               impl->budget->limit() - std::min(ring, impl->budget->limit())});
  impl->max_bad_fraction = config.max_bad_fraction;
  impl->max_bad_key = config.max_bad_key;
  impl->plan = impl->setup.first_plan;
  impl->batch_counts[0] = impl->batches_in(*impl->plan);
  impl->planning = true;
  impl->active_limit = impl->setup.num_workers;
  impl->waiting = !options.read_ahead;
  for (int i = 0; i < impl->setup.num_slots; ++i)
    impl->slots.push_back(std::make_unique<Impl::Slot>(impl->assembler->make_slot()));
  if (options.check_machine && !options.quiet) warn_about_machine(*dataset, impl->setup);

  Impl* raw = impl.get();
  std::unique_ptr<Loader> loader(new Loader(std::move(impl)));
  if (!options.quiet) log_info("data", loader->description());
  if (raw->setup.num_workers == 0) {
    raw->own_thread = raw->assembler->make_thread();
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
  return str_cat(setup.auto_workers ? "auto, at most " : "", setup.num_workers,
                 setup.num_workers == 1 ? " worker" : " workers", ", ring of ", setup.num_slots,
                 " batches of at most ", human_bytes(static_cast<double>(setup.sizes.usual_bytes)),
                 " (", impl_->allocator->kind(), "), memory at most ",
                 human_bytes(static_cast<double>(setup.budget_bytes)),
                 setup.sizes.note.empty() ? "" : "; ", setup.sizes.note);
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
      if (&slot->maker->batch() != batch) continue;
      AERIE_CHECK(slot->state == Impl::State::kHeld, "batch released twice");
      slot->state = Impl::State::kFree;
      batch = nullptr;
      break;
    }
    AERIE_CHECK(batch == nullptr, "not a batch of this loader");
  }
  impl_->work_ready.notify_all();
}

void Loader::read_ahead() {
  const std::lock_guard lock(impl_->mutex);
  impl_->wake();
}

Status Loader::start_epoch(int64_t epoch) {
  if (epoch < 0 || epoch > 0xFFFFFFF0ll)
    return invalid_argument(str_cat("epoch ", epoch, " is out of range"));
  std::unique_lock lock(impl_->mutex);
  const Impl::Position to{static_cast<uint32_t>(epoch), 0};
  // What is prepared may already be that epoch.
  const Batch* first = impl_->order.empty() ? nullptr : &impl_->order.front()->maker->batch();
  const bool in_rest = impl_->rest_plan != nullptr && impl_->rest_plan->epoch() == to.epoch;
  if (!in_rest && (first != nullptr ? first->epoch() == to.epoch && first->index_in_epoch() == 0
                                    : impl_->next.epoch == to.epoch && impl_->next.index == 0)) {
    impl_->enter_epoch(to);
    return ok_status();
  }
  if (first == nullptr && impl_->next.epoch + 1 == to.epoch && !impl_->options.single_epoch &&
      impl_->next.index >= impl_->batches_in(impl_->plan_of(impl_->next.epoch))) {
    impl_->next = to;
    impl_->enter_epoch(to);
    return ok_status();
  }
  // The whole of it, also where its rest was being gone on with.
  impl_->forget_rest();
  impl_->reset(to, lock);
  return ok_status();
}

LoaderStats Loader::stats() const {
  const LoaderCounters& c = impl_->counters;
  LoaderStats out;
  out.words = impl_->assembler->words();
  out.read = {c.read_items, seconds(c.read_ns), static_cast<double>(c.read_bytes), c.read_amount};
  out.side = {c.side_items, seconds(c.side_ns), 0.0, c.side_amount};
  out.finish = {c.finish_items, seconds(c.finish_ns), 0.0, 0.0};
  impl_->assembler->add_stats(out);
  out.blocked_s = seconds(c.blocked_ns);
  out.starved_s = seconds(c.starved_ns);
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
  out.amount = impl_->delivered_amount;
  const BatchFill& fill = impl_->delivered_fill;
  out.padding_share =
      fill.all > 0 ? 1 - static_cast<double>(fill.valid) / static_cast<double>(fill.all) : 0.0;
  out.workers = impl_->active_limit;
  out.max_workers = impl_->setup.num_workers;
  for (const auto& slot : impl_->slots) out.ring_ready += slot->state == Impl::State::kReady;
  out.ring_slots = impl_->slots.size();
  out.memory_bytes = impl_->setup.budget_bytes;
  out.storage = impl_->setup.storage.kind();
  out.left_out = impl_->setup.left_out;
  return out;
}

std::vector<BadSample> Loader::bad_samples() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->bad;
}

size_t Loader::untold_bad_samples() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->untold_bad.size();
}

std::vector<BadSample> Loader::take_bad_samples() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->untold_bad, {});
}

Status Loader::add_bad_samples(const std::vector<BadSample>& of_others) {
  std::unique_lock lock(impl_->mutex);
  std::vector<BadSample> added;
  for (const BadSample& sample : of_others) {
    if (sample.sample >= impl_->dataset->size())
      return internal_error(str_cat("another rank found a bad sample ", sample.sample, " of ",
                                    impl_->dataset->size()));
    if (!impl_->bad_ids.insert(sample.sample).second) continue;
    added.push_back(sample);
    if (impl_->bad.size() < kMaxBadKept) impl_->bad.push_back(sample);
  }
  const Status status = impl_->too_many_bad();
  lock.unlock();
  if (impl_->options.on_bad_sample)
    for (const BadSample& sample : added) impl_->options.on_bad_sample(sample);
  return status;
}

const Sampler& Loader::sampler() const {
  return impl_->sampler;
}

uint64_t Loader::memory_bytes() const {
  return impl_->setup.budget_bytes;
}

const BatchAssembler& Loader::assembler() const {
  return *impl_->assembler;
}

}  // namespace aerie::data
