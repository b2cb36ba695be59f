#include "aerie/dist/watch.h"

#include <sys/socket.h>
#include <tuple>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/clock.h"
#include "aerie/dist/wire.h"

namespace aerie::dist::watch_test {
namespace {

struct Group {
  explicit Group(int size, double heartbeat_s = 30, double timeout_s = 0) {
    WatchOptions options;
    options.timeout_s = timeout_s;
    options.size = size;
    options.heartbeat_s = heartbeat_s;
    options.token = "secret";
    for (int rank = 0; rank < size; ++rank) options.hosts.push_back("h" + std::to_string(rank));
    Listener listener = listen_anywhere("127.0.0.1").value();
    port = listener.port;
    watches.push_back(Watch::serve(listener, options));
    for (int rank = 1; rank < size; ++rank) {
      options.rank = rank;
      watches.push_back(Watch::connect("127.0.0.1", port, options).value());
    }
  }
  ~Group() {
    for (auto& watch : watches)
      if (watch != nullptr) watch->leave();
  }
  uint16_t port = 0;
  std::vector<std::unique_ptr<Watch>> watches;
};

bool has(const RankLoss& loss, const char* text) {
  return loss.status.to_string().find(text) != std::string::npos;
}

// Until rank 0 has heard from everybody.
void let_beat() {
  usleep(700'000);
}

TEST(WatchTest, AProcessThatEndsIsNamedWithItsPhaseAndLines) {
  Group group(3);
  group.watches[2]->set_phase(Phase::kData);
  group.watches[2]->add_line("[data] opening shard 17");
  let_beat();
  EXPECT_FALSE(group.watches[0]->loss().has_value());
  group.watches[2].reset();  // without a word
  for (int rank : {0, 1}) {
    const auto loss = group.watches[rank]->wait_for_loss(60);
    ASSERT_TRUE(loss.has_value()) << rank;
    EXPECT_EQ(loss->kind, RankLoss::Kind::kLost);
    EXPECT_EQ(loss->rank, 2);
    EXPECT_TRUE(has(*loss, "rank 2 on h2 is lost: its process ended in phase data")) << rank;
    EXPECT_TRUE(has(*loss, "[data] opening shard 17")) << loss->status.to_string();
  }
}

// A host that launches whole steps knows less than its device, which may be in the middle of a
// graph.
TEST(WatchTest, TheDeviceTellsThePhase) {
  int32_t device = -1;
  for (const auto& [host, at, told] :
       {std::tuple(Phase::kForward, static_cast<int32_t>(Phase::kBackward), "in phase backward"),
        std::tuple(Phase::kForward, static_cast<int32_t>(Phase::kAllReduce), "in phase all-reduce"),
        std::tuple(Phase::kForward, -1, "in phase forward"),
        std::tuple(Phase::kForward, 1000, "in phase forward"),
        std::tuple(Phase::kSave, static_cast<int32_t>(Phase::kBackward), "in phase save")}) {
    Group group(2);
    device = at;
    group.watches[1]->set_phase(host);
    group.watches[1]->follow_device(&device);
    let_beat();
    EXPECT_EQ(group.watches[1]->phase(), host);
    group.watches[1].reset();
    const auto loss = group.watches[0]->wait_for_loss(60);
    ASSERT_TRUE(loss.has_value());
    EXPECT_TRUE(has(*loss, told)) << loss->status.to_string();
  }
}

// Hosts that wait for their devices beat on; where a graph never ends somebody has to say so.
TEST(WatchTest, ADeviceThatStaysInOnePhaseIsGivenUp) {
  for (const int stuck : {0, 1}) {
    Group group(3, /*heartbeat_s=*/30, /*timeout_s=*/1.5);
    int32_t device = static_cast<int32_t>(Phase::kAllReduce);
    int32_t moving = 0, idle = static_cast<int32_t>(Phase::kUpdate);
    const int moves = 1 - stuck;
    for (auto& watch : group.watches) watch->set_phase(Phase::kForward);
    group.watches[static_cast<size_t>(stuck)]->follow_device(&device);
    group.watches[static_cast<size_t>(moves)]->follow_device(&moving);
    // Its host does something else, and does not wait for it.
    group.watches[2]->set_phase(Phase::kData);
    group.watches[2]->follow_device(&idle);
    for (int i = 0; i < 1000 && !group.watches[2]->loss(); ++i) {
      __atomic_store_n(&moving, i % 3 + 1, __ATOMIC_RELAXED);
      usleep(50'000);
    }
    for (const auto& watch : group.watches) {
      const auto loss = watch->wait_for_loss(60);
      ASSERT_TRUE(loss.has_value());
      EXPECT_EQ(loss->kind, RankLoss::Kind::kFailed);
      EXPECT_EQ(loss->rank, stuck) << loss->status.to_string();
      EXPECT_TRUE(has(*loss, "its device has been in phase all-reduce for"))
          << loss->status.to_string();
      // Rank 0 knows where the others are.
      EXPECT_TRUE(watch == group.watches[1] || has(*loss, "rank 2 in data for"))
          << loss->status.to_string();
    }
    for (auto& watch : group.watches) watch->follow_device(nullptr);
  }
}

TEST(WatchTest, WithoutRankZeroTheOthersKnow) {
  Group group(3);
  group.watches[0]->set_phase(Phase::kSave);
  group.watches[0]->add_line("[train] saving");
  let_beat();
  group.watches[0].reset();
  for (int rank : {1, 2}) {
    const auto loss = group.watches[rank]->wait_for_loss(60);
    ASSERT_TRUE(loss.has_value());
    EXPECT_EQ(loss->rank, 0);
    EXPECT_TRUE(has(*loss, "in phase save") && has(*loss, "[train] saving"));
  }
}

TEST(WatchTest, SilenceIsNoticedWithinTheHeartbeat) {
  // Of three ranks the last is a connection that says hello and nothing more.
  WatchOptions options;
  options.size = 3;
  options.heartbeat_s = 3;  // a rank of a busy machine may rest for a second
  options.token = "secret";
  options.hosts = {"h0", "h1", "h2"};
  Listener listener = listen_anywhere("127.0.0.1").value();
  const double start_s = Clock::real().monotonic_s();
  const auto hub = Watch::serve(listener, options);
  options.rank = 1;
  std::atomic<int> ended{0}, noticed{0};
  options.noticed = [&](const RankLoss& loss) { noticed = loss.rank; };
  options.end_process = [&](const RankLoss& loss) { ended = loss.rank; };
  const auto other = Watch::connect("127.0.0.1", listener.port, options).value();
  const int silent = connect_to("127.0.0.1", listener.port, 5).value();
  std::string hello("H");
  put_text(hello, "secret");
  put(hello, int32_t{2});
  std::string framed;
  put_text(framed, hello);
  ASSERT_EQ(send(silent, framed.data(), framed.size(), 0), static_cast<ssize_t>(framed.size()));
  for (const Watch* watch : {hub.get(), other.get()}) {
    const auto loss = watch->wait_for_loss(60);
    ASSERT_TRUE(loss.has_value());
    EXPECT_EQ(loss->kind, RankLoss::Kind::kSilent);
    EXPECT_TRUE(has(*loss, "rank 2 on h2 has said nothing for")) << loss->status.to_string();
  }
  EXPECT_GE(Clock::real().monotonic_s() - start_s, 0.7);
  EXPECT_EQ(noticed, 2);
  // Whoever does not end by itself is ended.
  for (int i = 0; i < 1000 && ended == 0; ++i) usleep(50'000);
  EXPECT_EQ(ended, 2);
  close(silent);
}

TEST(WatchTest, AFailureIsToldWithItsReason) {
  Group group(3);
  group.watches[1]->set_phase(Phase::kValidate);
  group.watches[1]->add_line("[data] val.json");
  group.watches[1]->fail(data_error("line 3 is not JSON"));
  for (int rank : {0, 2}) {
    const auto loss = group.watches[rank]->wait_for_loss(60);
    ASSERT_TRUE(loss.has_value());
    EXPECT_EQ(loss->kind, RankLoss::Kind::kFailed);
    EXPECT_EQ(loss->status.code(), StatusCode::kDataError);
    EXPECT_TRUE(has(*loss, "rank 1 on h1 failed in phase validate: line 3 is not JSON"));
    EXPECT_TRUE(has(*loss, "val.json"));
  }
  EXPECT_FALSE(group.watches[1]->loss().has_value());
  Group second(2);
  second.watches[0]->fail(io_error("disk full"));
  const auto loss = second.watches[1]->wait_for_loss(60);
  ASSERT_TRUE(loss.has_value());
  EXPECT_TRUE(has(*loss, "rank 0 on h0 failed in phase start: disk full"));
}

TEST(WatchTest, LeavingIsNoLoss) {
  Group group(3);
  let_beat();
  group.watches[1]->leave();
  group.watches[1].reset();
  let_beat();
  EXPECT_FALSE(group.watches[0]->loss().has_value());
  EXPECT_FALSE(group.watches[2]->loss().has_value());
  group.watches[0]->leave();
  group.watches[0].reset();
  let_beat();
  EXPECT_FALSE(group.watches[2]->loss().has_value());
}

TEST(WatchTest, StrangersChangeNothing) {
  Group group(2);
  std::string wrong("H");
  put_text(wrong, "guessed");
  put(wrong, int32_t{1});
  std::string huge;
  put(huge, uint32_t{0xffffffff});
  std::string framed;
  put_text(framed, wrong);
  for (const std::string& bytes : {framed, huge, std::string("GET / HTTP/1.0\r\n\r\n")}) {
    const int fd = connect_to("127.0.0.1", group.port, 5).value();
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char answer = 0;
    EXPECT_LE(recv(fd, &answer, 1, 0), 0);  // closed
    close(fd);
  }
  EXPECT_FALSE(group.watches[0]->loss().has_value());
}

}  // namespace
}  // namespace aerie::dist::watch_test
