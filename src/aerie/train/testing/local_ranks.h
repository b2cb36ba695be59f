// Ranks for tests: threads of one process. No torch, so that sanitizers can watch.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/dist/process_group.h"

namespace aerie::train {

// Where they meet.
struct MeetingPlace {
  explicit MeetingPlace(int ranks) : size(ranks), brought(static_cast<size_t>(ranks)) {}

  Result<std::vector<std::string>> meet(int rank, const std::string& mine) {
    std::unique_lock lock(mutex);
    if (!failure.ok()) return failure;
    const uint64_t round = rounds;
    brought[static_cast<size_t>(rank)] = mine;
    if (++arrived == size) {
      taken = brought;
      arrived = 0;
      ++rounds;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return rounds != round || !failure.ok(); });
    if (rounds == round) return failure;
    return taken;
  }
  void fail(const Status& why) {
    const std::lock_guard lock(mutex);
    if (failure.ok()) failure = why;
    changed.notify_all();
  }

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> brought, taken;
  int arrived = 0;
  uint64_t rounds = 0;
  Status failure;
};

class LocalRank : public dist::ProcessGroup {
 public:
  LocalRank(MeetingPlace& place, int rank) : place_(place) {
    world_.rank = world_.local_rank = rank;
    world_.size = world_.local_size = place.size;
  }
  const dist::World& world() const override { return world_; }
  const std::string& host_of(int) const override { return host_; }
  Status sum(std::span<double> values) override {
    return reduce(values, [](double a, double b) { return a + b; });
  }
  Status sum(std::span<int64_t> values) override {
    return reduce(values, [](int64_t a, int64_t b) { return a + b; });
  }
  Status max(std::span<int64_t> values) override {
    ++votes;
    return reduce(values, [](int64_t a, int64_t b) { return std::max(a, b); });
  }
  Status broadcast(std::string& bytes, int root) override {
    AERIE_ASSIGN_OR_RETURN(const auto all, place_.meet(rank(), rank() == root ? bytes : ""));
    bytes = all[static_cast<size_t>(root)];
    return ok_status();
  }
  Result<std::vector<std::string>> all_gather(const std::string& mine) override {
    return place_.meet(rank(), mine);
  }
  Status barrier() override { return place_.meet(rank(), "").status(); }
  void set_phase(dist::Phase phase) override { phase_ = phase; }
  dist::Phase phase() const override { return phase_; }
  Status check() const override { return ok_status(); }
  Status explain(Status error) const override { return error; }
  void fail(const Status& why) override {
    place_.fail(unavailable(str_cat("rank ", rank(), ": ", why.message())));
  }
  void leave() override {}

  int64_t votes = 0;

 private:
  template <typename T, typename Combine>
  Status reduce(std::span<T> values, Combine combine) {
    AERIE_ASSIGN_OR_RETURN(
        const auto all,
        place_.meet(rank(), {reinterpret_cast<const char*>(values.data()), values.size_bytes()}));
    for (size_t r = 0; r < all.size(); ++r)
      for (size_t i = 0; i < values.size(); ++i) {
        T value;
        std::memcpy(&value, all[r].data() + i * sizeof(T), sizeof(T));
        values[i] = r == 0 ? value : combine(values[i], value);
      }
    return ok_status();
  }

  MeetingPlace& place_;
  dist::World world_;
  std::string host_ = "here";
  dist::Phase phase_ = dist::Phase::kStart;
};

// `body` in a thread for every rank; one that returns an error ends the others.
inline std::vector<Status> run_local_ranks(int size,
                                           const std::function<Status(LocalRank&)>& body) {
  MeetingPlace place(size);
  std::vector<Status> out(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      LocalRank group(place, rank);
      Status status = body(group);
      if (!status.ok()) group.fail(status);
      out[static_cast<size_t>(rank)] = std::move(status);
    });
  for (std::thread& thread : threads) thread.join();
  return out;
}

}  // namespace aerie::train
