// Ranks that watch each other: every rank keeps a connection to rank 0 and says a few times a
// second what it is doing. A closed connection means that its process ended, silence that it hangs
// or that the network between is cut. Rank 0 then tells all others which rank it was, where and in
// which phase, with its last log lines; a rank that loses rank 0 itself finds out the same way. A
// thread of its own does all this, so that it goes on while the rank waits in a collective.
//
// What is read from a connection is checked and bounded; strangers who do not know the token of the
// run are closed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/address.h"
#include "aerie/dist/phase.h"
#include "aerie/dist/process_group.h"

namespace aerie::dist {

struct WatchOptions {
  int rank = 0, size = 1;
  double heartbeat_s = 60;
  // A device that its host waits for and that stays in one phase for so long is given up: nobody
  // else ends a collective inside a graph whose other side never comes. 0: it may.
  double timeout_s = 0;
  std::vector<std::string> hosts;  // by rank
  std::string token;               // of the run
  // Called by the watching thread with what the device says its phase is. May be empty.
  std::function<void(Phase)> device_phase;
  // Called by the watching thread as soon as a rank is lost; returns at once. May be empty.
  std::function<void(const RankLoss&)> noticed;
  // Called by the watching thread when this process has not ended by itself a while after another
  // rank was lost; must end it. Empty: nothing happens (tests).
  std::function<void(const RankLoss&)> end_process;
};

// Threads: all from any.
class Watch final {
 public:
  static std::unique_ptr<Watch> serve(Listener listener, WatchOptions options);  // rank 0
  static Result<std::unique_ptr<Watch>> connect(const std::string& address, uint16_t port,
                                                WatchOptions options);
  ~Watch();

  void set_phase(Phase phase);
  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  // As ProcessGroup::follow_device().
  void follow_device(const int32_t* phase);
  // A line of this rank's log.
  void add_line(std::string_view line);
  std::optional<RankLoss> loss() const;
  // The same, waiting for it.
  std::optional<RankLoss> wait_for_loss(double seconds) const;
  void fail(const Status& why);
  void leave();

 private:
  struct Peer;
  struct Rank;
  Watch(WatchOptions options, Listener listener, int hub_fd);

  void run();
  void accept_new(double now);
  void read_from(Peer& peer, double now);
  void take_message(Peer& peer, std::string_view message, double now);
  void write_to(Peer& peer);
  void closed(Peer& peer);
  void beat(double now);
  void judge(double now);
  void judge_device(double now);
  void lose(RankLoss loss);
  void tell(const RankLoss& loss);
  void tell_failure(const Status& why, double now);
  void wait_until_sent(double seconds);
  int32_t device_phase() const;  // below 0: the host's counts
  Phase told_phase() const;      // the device's where it counts
  std::string describe(int rank) const;
  std::string last_words(int rank) const;
  std::string who_else(double now) const;
  void wake();
  void stop();

  const WatchOptions options_;
  const double silence_s_, beat_s_, grace_s_;
  Listener listener_;
  int wake_fds_[2] = {-1, -1};
  std::atomic<Phase> phase_{Phase::kStart};
  std::atomic<double> phase_since_{0};

  mutable std::mutex mutex_;  // everything below
  mutable std::condition_variable changed_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Rank> ranks_;
  std::vector<std::string> lines_;  // of this rank, the last few
  bool lines_new_ = false;
  const int32_t* device_phase_ = nullptr;
  int32_t device_at_ = -1;  // where it was last seen, and since when
  double device_since_ = 0;
  bool leaving_ = false;
  bool stop_ = false;
  std::optional<RankLoss> loss_;
  std::string told_;  // what rank 0 told the others, also for those that connect later
  double loss_time_ = 0;
  std::thread thread_;
};

}  // namespace aerie::dist
