#include "aerie/dist/watch.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "aerie/base/clock.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_group.h"
#include "aerie/dist/watch_parts.h"
#include "aerie/dist/wire.h"

namespace aerie::dist {

namespace {

constexpr size_t kKeptLines = 8;
constexpr size_t kMaxLine = 400;
constexpr size_t kMaxStrangers = 64;

double seconds_now() {
  return Clock::real().monotonic_s();
}

void make_quick(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Watch::Watch(WatchOptions options, Listener listener, int hub_fd)
    : options_(std::move(options)),
      // Noticing, telling and ending together stay below the heartbeat, also where ranks have to
      // wait for a core: a third of it is left for that.
      silence_s_(0.5 * options_.heartbeat_s),
      beat_s_(std::clamp(options_.heartbeat_s / 20, 0.05, 0.5)),
      grace_s_(std::clamp(0.1 * options_.heartbeat_s, 0.3, 5.0)),
      listener_(listener),
      ranks_(static_cast<size_t>(options_.size)) {
  AERIE_CHECK(pipe2(wake_fds_, O_CLOEXEC | O_NONBLOCK) == 0, "no pipe");
  const double now = seconds_now();
  phase_since_ = now;
  for (Rank& rank : ranks_) rank.heard = rank.phase_since = now;
  if (listener_.fd >= 0) fcntl(listener_.fd, F_SETFL, O_NONBLOCK);
  if (hub_fd >= 0) {
    make_quick(hub_fd);
    auto hub = std::make_unique<Peer>();
    hub->fd = hub_fd;
    hub->rank = 0;
    std::string hello(1, kHello);
    put_text(hello, options_.token);
    put(hello, static_cast<int32_t>(options_.rank));
    hub->send(hello);
    peers_.push_back(std::move(hub));
  }
  thread_ = std::thread([this] {
    set_thread_name("watch");
    run();
  });
}

std::unique_ptr<Watch> Watch::serve(Listener listener, WatchOptions options) {
  return std::unique_ptr<Watch>(new Watch(std::move(options), listener, -1));
}

Result<std::unique_ptr<Watch>> Watch::connect(const std::string& address, uint16_t port,
                                              WatchOptions options) {
  auto fd = connect_to(address, port, 30.0);
  if (!fd.ok()) return fd.status().with_context("watching rank 0");
  return std::unique_ptr<Watch>(new Watch(std::move(options), {}, *fd));
}

Watch::~Watch() {
  stop();
  if (listener_.fd >= 0) close(listener_.fd);
  for (const int fd : wake_fds_)
    if (fd >= 0) close(fd);
}

void Watch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
}

void Watch::wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(wake_fds_[1], &byte, 1);
}

void Watch::set_phase(Phase phase) {
  if (phase_.exchange(phase, std::memory_order_relaxed) != phase)
    phase_since_.store(seconds_now(), std::memory_order_relaxed);
}

void Watch::follow_device(const int32_t* phase) {
  const std::lock_guard lock(mutex_);
  device_phase_ = phase;
}

int32_t Watch::device_phase() const {
  if (phase() != Phase::kForward || device_phase_ == nullptr) return -1;
  const int32_t device = __atomic_load_n(device_phase_, __ATOMIC_RELAXED);
  return device < kNumPhases ? device : -1;
}

Phase Watch::told_phase() const {
  const Phase host = phase();
  const int32_t device = device_phase();
  return device >= 0 ? static_cast<Phase>(device) : host;
}

void Watch::add_line(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (lines_.size() == kKeptLines) lines_.erase(lines_.begin());
  lines_.emplace_back(line.substr(0, kMaxLine));
  lines_new_ = true;
}

std::optional<RankLoss> Watch::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

std::optional<RankLoss> Watch::wait_for_loss(double seconds) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return loss_ || stop_; });
  return loss_;
}

void Watch::fail(const Status& why) {
  const double now = seconds_now();
  {
    const std::lock_guard lock(mutex_);
    if (loss_ || leaving_) return;
    leaving_ = true;
    tell_failure(why, now);
  }
  wake();
  wait_until_sent(1.0);
}

void Watch::tell_failure(const Status& why, double now) {
  if (options_.rank == 0) {
    RankLoss own{RankLoss::Kind::kFailed, 0, why};
    own.status =
        Status(why.code(), str_cat(describe(0), " failed in phase ", phase_name(told_phase()), ": ",
                                   why.to_string(), last_words(0)));
    return tell(own);
  }
  std::string message(1, kFail);
  put(message, static_cast<int32_t>(why.code()));
  put(message, static_cast<int32_t>(told_phase()));
  put(message, now - phase_since_.load(std::memory_order_relaxed));
  put_text(message, why.to_string().substr(0, kMaxMessage / 2));
  for (const auto& peer : peers_) {
    if (lines_new_)
      peer->send([&] {
        std::string beat(1, kBeat);
        put(beat, static_cast<int32_t>(told_phase()));
        put(beat, 0.0);
        put_text(beat, join(lines_, "\n"));
        return beat;
      }());
    peer->send(message);
  }
}

void Watch::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (!leaving_ && !loss_)
      for (const auto& peer : peers_) peer->send(std::string(1, kLeave));
    leaving_ = true;
  }
  wake();
  wait_until_sent(0.5);
  stop();
}

void Watch::wait_until_sent(double seconds) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] {
    return stop_ || std::all_of(peers_.begin(), peers_.end(),
                                [](const auto& peer) { return peer->out.empty(); });
  });
}

void Watch::run() {
  double last_round = seconds_now();
  double next_beat = last_round;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    std::vector<pollfd> polled{{wake_fds_[0], POLLIN, 0}, {listener_.fd, POLLIN, 0}};
    std::vector<Peer*> order;
    for (const auto& peer : peers_) {
      const int events = POLLIN | (peer->out.empty() ? 0 : POLLOUT);
      polled.push_back({peer->fd, static_cast<short>(events), 0});
      order.push_back(peer.get());
    }
    lock.unlock();
    const double wait_s = std::max(0.0, next_beat - seconds_now());
    poll(polled.data(), polled.size(), static_cast<int>(wait_s * 1000) + 1);
    lock.lock();
    if (stop_) break;
    const double now = seconds_now();
    // This process itself was stopped or starved: what the others said meanwhile waits in the
    // sockets, and nobody is judged by the time that is missing here.
    if (now - last_round > silence_s_ / 2)
      for (Rank& rank : ranks_) rank.heard = std::max(rank.heard, now - silence_s_ / 2);
    last_round = now;
    char drain[64];
    while (read(wake_fds_[0], drain, sizeof(drain)) > 0) {
    }
    if ((polled[1].revents & POLLIN) != 0) accept_new(now);
    for (size_t i = 0; i < order.size(); ++i) {
      if ((polled[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(*order[i], now);
      if (order[i]->fd >= 0) write_to(*order[i]);
    }
    if (now >= next_beat) {
      beat(now);
      next_beat = now + beat_s_;
    }
    judge(now);
    judge_device(now);
    for (const auto& peer : peers_)
      if (peer->fd >= 0) write_to(*peer);
    std::erase_if(peers_, [](const auto& peer) { return peer->fd < 0; });
    changed_.notify_all();
    if (loss_ && !leaving_ && options_.end_process && now - loss_time_ > grace_s_) {
      const RankLoss loss = *loss_;
      lock.unlock();
      options_.end_process(loss);
      lock.lock();
      break;
    }
  }
}

void Watch::accept_new(double) {
  const int fd = accept4(listener_.fd, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return;
  const auto strangers =
      std::count_if(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->rank < 0; });
  if (static_cast<size_t>(strangers) >= kMaxStrangers + static_cast<size_t>(options_.size)) {
    close(fd);
    return;
  }
  make_quick(fd);
  auto peer = std::make_unique<Peer>();
  peer->fd = fd;
  peers_.push_back(std::move(peer));
}

void Watch::read_from(Peer& peer, double now) {
  char buffer[16 << 10];
  while (peer.fd >= 0) {
    const ssize_t count = recv(peer.fd, buffer, sizeof(buffer), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count <= 0) return closed(peer);
    peer.in.append(buffer, static_cast<size_t>(count));
    while (peer.fd >= 0 && peer.in.size() >= sizeof(uint32_t)) {
      uint32_t size = 0;
      std::memcpy(&size, peer.in.data(), sizeof(size));
      if (size > kMaxMessage) return closed(peer);
      if (peer.in.size() < sizeof(size) + size) break;
      take_message(peer, std::string_view(peer.in).substr(sizeof(size), size), now);
      peer.in.erase(0, sizeof(size) + size);
    }
  }
}

void Watch::write_to(Peer& peer) {
  while (!peer.out.empty()) {
    const ssize_t count = send(peer.fd, peer.out.data(), peer.out.size(), MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    // A connection that breaks is noticed where it is read.
    if (count <= 0) return peer.out.clear();
    peer.out.erase(0, static_cast<size_t>(count));
  }
}

void Watch::closed(Peer& peer) {
  close(peer.fd);
  peer.fd = -1;
  if (peer.rank < 0) return;
  Rank& rank = ranks_[static_cast<size_t>(peer.rank)];
  if (rank.left || leaving_) return;
  rank.left = true;
  lose({RankLoss::Kind::kLost, peer.rank,
        unavailable(str_cat(describe(peer.rank), " is lost: its process ended in phase ",
                            phase_name(rank.phase), last_words(peer.rank)))});
}

void Watch::judge(double now) {
  if (loss_ || leaving_) return;
  for (int i = 0; i < options_.size; ++i) {
    const Rank& rank = ranks_[static_cast<size_t>(i)];
    if (i == options_.rank || rank.left || (options_.rank != 0 && i != 0)) continue;
    if (now - rank.heard <= silence_s_) continue;
    return lose(
        {RankLoss::Kind::kSilent, i,
         unavailable(str_cat(describe(i), " has said nothing for ", rounded(now - rank.heard),
                             " s, last in phase ", phase_name(rank.phase),
                             ": it hangs, or the network to it is cut", last_words(i)))
             .with_hint("aerie.dist.heartbeat_s sets how long that may last")});
  }
}

void Watch::judge_device(double now) {
  const int32_t at = device_phase();
  if (at != device_at_) {
    device_at_ = at;
    device_since_ = now;
  }
  const double host_since = phase_since_.load(std::memory_order_relaxed);
  const double waited_s = now - std::max(device_since_, host_since);
  if (loss_ || leaving_ || options_.timeout_s <= 0 || at < 0 || waited_s <= options_.timeout_s)
    return;
  const Status why =
      unavailable(str_cat("its device has been in phase ", phase_name(told_phase()), " for ",
                          rounded(waited_s), " s", options_.rank == 0 ? who_else(now) : ""))
          .with_hint(
              "trainer.strategy.timeout sets how long that may last; NCCL_DEBUG=INFO shows what "
              "NCCL does");
  tell_failure(why, now);
  loss_ = RankLoss{RankLoss::Kind::kFailed, options_.rank,
                   Status(why.code(), str_cat(describe(options_.rank), ": ", why.message()))
                       .with_hint(why.hint())};
  if (options_.noticed) options_.noticed(*loss_);
  loss_time_ = now;
}

void Watch::lose(RankLoss loss) {
  if (loss_ || leaving_) return;
  if (options_.rank == 0) tell(loss);
  if (options_.noticed) options_.noticed(loss);
  loss_ = std::move(loss);
  loss_time_ = seconds_now();
}

}  // namespace aerie::dist
