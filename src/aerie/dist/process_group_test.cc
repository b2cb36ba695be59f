#include "aerie/dist/process_group.h"

#include <csignal>
#include <unistd.h>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "aerie/base/clock.h"
#include "aerie/dist/address.h"
#include "aerie/dist/join.h"
#include "aerie/dist/testing/fork_ranks.h"
#include "aerie/dist/torch_group.h"

namespace aerie::dist {
namespace {

using Codes = std::vector<int>;

TEST(ProcessGroupTest, ValuesOfTheHost) {
  const auto codes = fork_groups(3, [](ProcessGroup& group) {
    const int rank = group.rank();
    EXPECT_EQ(group.size(), 3);
    EXPECT_FALSE(group.host_of(2).empty());

    std::vector<double> sums{0.5 * rank, 1e300, -1.0};
    EXPECT_TRUE(group.sum(std::span<double>(sums)).ok());
    EXPECT_EQ(sums, (std::vector<double>{1.5, 3e300, -3.0}));

    std::vector<int64_t> counts{rank, int64_t{1} << 60};
    EXPECT_TRUE(group.sum(std::span<int64_t>(counts)).ok());
    EXPECT_EQ(counts, (std::vector<int64_t>{3, 3 * (int64_t{1} << 60)}));

    std::vector<int64_t> largest{rank, -rank, 7};
    EXPECT_TRUE(group.max(largest).ok());
    EXPECT_EQ(largest, (std::vector<int64_t>{2, 0, 7}));

    std::string text = rank == 1 ? std::string("from\0one", 8) : std::string(rank * 20, 'x');
    EXPECT_TRUE(group.broadcast(text, 1).ok());
    EXPECT_EQ(text, std::string("from\0one", 8));
    std::string nothing = rank == 2 ? "" : "something";
    EXPECT_TRUE(group.broadcast(nothing, 2).ok());
    EXPECT_EQ(nothing, "");

    auto all = group.all_gather(std::string(rank * 1000, static_cast<char>('a' + rank)));
    EXPECT_TRUE(all.ok());
    EXPECT_EQ(*all, (std::vector<std::string>{"", std::string(1000, 'b'), std::string(2000, 'c')}));
    EXPECT_EQ(*group.all_gather(""), (std::vector<std::string>(3)));

    EXPECT_TRUE(group.sum(std::span<double>()).ok());
    EXPECT_TRUE(group.barrier().ok());
    EXPECT_TRUE(group.check().ok());
    return 0;
  });
  EXPECT_EQ(codes, Codes(3, 0));
}

TEST(ProcessGroupTest, TensorsBesideValues) {
  const auto codes = fork_groups(4, [](ProcessGroup& group) {
    const auto torch = torch_group(group);
    EXPECT_EQ(torch->getRank(), group.rank());
    EXPECT_EQ(torch->getSize(), 4);
    std::vector<at::Tensor> tensors{at::full({5}, group.rank() + 1.0, at::kFloat)};
    // A collective of tensors under way does not get in the way of values.
    const auto work = torch->allreduce(tensors);
    int64_t one = 1;
    EXPECT_TRUE(group.sum(std::span<int64_t>(&one, 1)).ok());
    EXPECT_EQ(one, 4);
    work->wait();
    EXPECT_TRUE(tensors[0].eq(10).all().item<bool>());
    return 0;
  });
  EXPECT_EQ(codes, Codes(4, 0));
}

TEST(ProcessGroupTest, MissingRanksAreNamed) {
  const auto codes = fork_ranks(3, [](const World& world) {
    if (world.rank != 0) return 0;
    const auto group = join_ranks(world, {.join_timeout_s = 0.5});
    EXPECT_FALSE(group.ok());
    const std::string message = group.status().to_string();
    EXPECT_NE(message.find("2 of 3 ranks did not come within 0.5 s: 1, 2"), std::string::npos)
        << message;
    return 0;
  });
  EXPECT_EQ(codes, Codes(3, 0));
}

// Nobody at rank 0's place, a name that is not known, somebody else at the port: said in time, in
// our words, with what to try, and nothing of torch beside it.
TEST(ProcessGroupTest, WhereNobodyIsMet) {
  const Listener taken = listen_anywhere("127.0.0.1").value();
  const Listener closed = listen_anywhere("127.0.0.1").value();
  close(closed.fd);
  struct Case {
    int rank;
    const char* address;
    uint16_t port;
    const char* said;
    const char* hint;
  };
  for (const Case& c :
       {Case{1, "127.0.0.1", closed.port,
             "rank 1 of 2 did not reach rank 0 at 127.0.0.1:", "start rank 0 too"},
        Case{1, "no.such.host.invalid", 29500, "host 'no.such.host.invalid' is not known here",
             "MASTER_ADDR"},
        Case{0, "no.such.host.invalid", 29500, "host 'no.such.host.invalid' is not known here",
             "MASTER_ADDR"},
        Case{1, "192.0.2.1", 29500, "did not reach rank 0 at 192.0.2.1:29500", "open from here"},
        Case{0, "192.0.2.1", closed.port, "rank 0 on ", "MASTER_ADDR must be"},
        Case{0, "127.0.0.1", taken.port, "is in use by another program", "MASTER_PORT"}}) {
    SCOPED_TRACE(c.said);
    World world;
    world.rank = world.local_rank = c.rank;
    world.size = world.local_size = 2;
    world.master_addr = c.address;
    world.master_port = c.port;
    testing::internal::CaptureStderr();
    const double start_s = Clock::real().monotonic_s();
    const auto group = join_ranks(world, {.join_timeout_s = 0.5});
    const double took_s = Clock::real().monotonic_s() - start_s;
    const std::string beside = testing::internal::GetCapturedStderr();
    ASSERT_FALSE(group.ok());
    EXPECT_NE(group.status().to_string().find(c.said), std::string::npos)
        << group.status().to_string();
    EXPECT_NE(group.status().hint().find(c.hint), std::string::npos) << group.status().hint();
    EXPECT_EQ(beside, "");
    EXPECT_LT(took_s, 60.0);
  }
  close(taken.fd);
}

TEST(ProcessGroupTest, RanksOfTwoWorldsAreTold) {
  const auto codes = fork_ranks(2, [](World world) {
    world.size = world.local_size = 2 + world.rank;
    const auto group = join_ranks(world, {.timeout_s = 60, .join_timeout_s = 60, .heartbeat_s = 3});
    EXPECT_FALSE(group.ok());
    const std::string message = group.status().to_string();
    EXPECT_NE(message.find("rank 1 was started as one of 3 ranks, rank 0 as one of 2"),
              std::string::npos)
        << message;
    EXPECT_EQ(group.status().code(), StatusCode::kInvalidArgument);
    return 0;
  });
  EXPECT_EQ(codes, Codes(2, 0));
}

// A rank that dies is named to those that wait for it.
TEST(ProcessGroupTest, ADeadRankEndsAWaitingCollective) {
  const auto codes = fork_groups(3, [](ProcessGroup& group) {
    EXPECT_TRUE(group.barrier().ok());
    if (group.rank() == 1) {
      group.set_phase(Phase::kBackward);
      usleep(1'700'000);  // a beat tells the phase
      kill(getpid(), SIGKILL);
    }
    const Status status = group.barrier();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.to_string().find("rank 1 on "), std::string::npos) << status.to_string();
    EXPECT_NE(status.to_string().find("ended in phase backward"), std::string::npos);
    EXPECT_FALSE(group.check().ok());
    return 0;
  });
  EXPECT_EQ(codes, (Codes{0, 128 + SIGKILL, 0}));
}

// One that is stopped: those that wait give up, also inside a collective of torch.
TEST(ProcessGroupTest, ASilentRankIsGivenUp) {
  const auto codes = fork_groups(
      3,
      [](ProcessGroup& group) {
        EXPECT_TRUE(group.barrier().ok());
        if (group.rank() == 2) {
          if (fork() == 0) {  // wakes it when all is over
            sleep(8);
            kill(getppid(), SIGKILL);
            _exit(0);
          }
          raise(SIGSTOP);
        }
        if (group.rank() == 0) {
          const Status status = group.barrier();
          EXPECT_NE(status.to_string().find("rank 2 on "), std::string::npos) << status.to_string();
          EXPECT_NE(status.to_string().find("has said nothing for"), std::string::npos);
          return 7;
        }
        std::vector<at::Tensor> tensors{at::ones({3})};
        torch_group(group)->allreduce(tensors)->wait();  // the watch ends the process
        return 8;
      },
      {.timeout_s = 60, .join_timeout_s = 60, .heartbeat_s = 3});
  EXPECT_EQ(codes, (Codes{7, 1, 128 + SIGKILL}));
}

// A group of a name that was used before meets anew, also when one rank comes late.
TEST(ProcessGroupTest, GroupsOfTheSameName) {
  const auto codes = fork_groups(2, [](ProcessGroup& group) {
    for (int i = 0; i < 3; ++i) {
      if (group.rank() == 1) usleep(200'000);
      const auto another = another_torch_group(group, "sums");
      EXPECT_TRUE(another.ok()) << another.status().to_string();
      std::vector<at::Tensor> tensors{at::ones({3}) * (group.rank() + i)};
      (*another)->allreduce(tensors)->wait();
      EXPECT_EQ(tensors[0][2].item<float>(), static_cast<float>(2 * i + 1));
    }
    return 0;
  });
  EXPECT_EQ(codes, (Codes{0, 0}));
}

TEST(ProcessGroupTest, WrongOptions) {
  EXPECT_EQ(join_ranks({}, {.backend = "smoke"}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(join_ranks({}, {.backend = "nccl"}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aerie::dist
