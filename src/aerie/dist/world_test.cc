#include "aerie/dist/world.h"

#include <map>

#include <gtest/gtest.h>

namespace aerie::dist {
namespace {

using Variables = std::map<std::string, std::string>;

Result<std::optional<World>> world_of(const Variables& variables,
                                      Launcher launcher = Launcher::kNone) {
  return world_from_environment(launcher, [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(WorldTest, NothingSetIsNotLaunched) {
  const auto world = world_of({});
  ASSERT_TRUE(world.ok());
  EXPECT_FALSE(world->has_value());
}

TEST(WorldTest, Torchrun) {
  const auto world = world_of({{"RANK", "5"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"GROUP_RANK", "1"},
                               {"GROUP_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "n1"},
                               {"MASTER_PORT", "4711"},
                               {"TORCHELASTIC_RUN_ID", "x"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"},
                               {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  ASSERT_TRUE(world.ok()) << world.status().to_string();
  const World& w = **world;
  EXPECT_EQ(w.rank, 5);
  EXPECT_EQ(w.size, 8);
  EXPECT_EQ(w.local_rank, 1);
  EXPECT_EQ(w.local_size, 4);
  EXPECT_EQ(w.node, 1);
  EXPECT_EQ(w.num_nodes, 2);
  EXPECT_EQ(w.master_addr, "n1");
  EXPECT_EQ(w.master_port, 4711);
  EXPECT_EQ(w.restart_count, 2);
  EXPECT_TRUE(w.agent_store);
  EXPECT_EQ(w.launcher, Launcher::kTorchrun);
}

TEST(WorldTest, PlainVariables) {
  const auto world = world_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  ASSERT_TRUE(world.ok()) << world.status().to_string();
  EXPECT_EQ((*world)->launcher, Launcher::kPlain);
  EXPECT_EQ((*world)->local_rank, 1);
  EXPECT_EQ((*world)->local_size, 2);
  EXPECT_EQ((*world)->num_nodes, 1);
  EXPECT_EQ((*world)->master_addr, "127.0.0.1");
  EXPECT_EQ((*world)->master_port, 29500);
  // A local rank and nodes: hosts alike.
  const auto spread = world_of({{"RANK", "3"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_RANK", "1"},
                                {"NNODES", "2"},
                                {"NODE_RANK", "1"},
                                {"MASTER_ADDR", "h"}});
  ASSERT_TRUE(spread.ok()) << spread.status().to_string();
  EXPECT_EQ((*spread)->local_size, 2);
  EXPECT_EQ((*spread)->node, 1);
}

TEST(WorldTest, WrongVariablesAreNamed) {
  const auto message = [](const Variables& variables) {
    const auto world = world_of(variables);
    return world.ok() ? std::string("ok") : world.status().to_string();
  };
  EXPECT_NE(message({{"RANK", "0"}}).find("WORLD_SIZE is not set"), std::string::npos);
  EXPECT_NE(message({{"WORLD_SIZE", "2"}}).find("RANK is not set"), std::string::npos);
  EXPECT_NE(message({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("RANK='2'"), std::string::npos);
  EXPECT_NE(message({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}).find("RANK='-1'"), std::string::npos);
  EXPECT_NE(message({{"RANK", "0"}, {"WORLD_SIZE", "two"}}).find("WORLD_SIZE='two'"),
            std::string::npos);
  EXPECT_NE(message({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}})
                .find("MASTER_PORT='70000'"),
            std::string::npos);
  EXPECT_NE(message({{"RANK", "0"},
                     {"WORLD_SIZE", "4"},
                     {"LOCAL_RANK", "3"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "h"}})
                .find("local rank 3"),
            std::string::npos);
}

TEST(WorldTest, Slurm) {
  const Variables variables = {{"SLURM_PROCID", "6"},
                               {"SLURM_LOCALID", "2"},
                               {"SLURM_NTASKS", "7"},
                               {"SLURM_NODEID", "1"},
                               {"SLURM_NNODES", "2"},
                               {"SLURM_TASKS_PER_NODE", "4,3"},
                               {"SLURM_NODELIST", "gpu[007-008]"},
                               {"SLURM_JOB_ID", "1234567"}};
  const auto world = world_of(variables);
  ASSERT_TRUE(world.ok()) << world.status().to_string();
  const World& w = **world;
  EXPECT_EQ(w.launcher, Launcher::kSlurm);
  EXPECT_EQ(w.rank, 6);
  EXPECT_EQ(w.size, 7);
  EXPECT_EQ(w.local_rank, 2);
  EXPECT_EQ(w.local_size, 3);
  EXPECT_EQ(w.node, 1);
  EXPECT_EQ(w.num_nodes, 2);
  EXPECT_EQ(w.master_addr, "gpu007");
  EXPECT_EQ(w.master_port, 15000 + 4567);

  Variables shell = variables;
  shell["SLURM_JOB_NAME"] = "interactive";
  EXPECT_FALSE((*world_of(shell)).has_value());
  EXPECT_TRUE((*world_of(shell, Launcher::kSlurm)).has_value());
  EXPECT_NE(world_of({}, Launcher::kSlurm).status().to_string().find("start with srun"),
            std::string::npos);
  Variables broken = variables;
  broken["SLURM_NODELIST"] = "gpu[007-";
  EXPECT_NE(world_of(broken).status().to_string().find("SLURM_NODELIST"), std::string::npos);
}

TEST(WorldTest, Mpi) {
  const auto world = world_of({{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  ASSERT_TRUE(world.ok()) << world.status().to_string();
  EXPECT_EQ((*world)->launcher, Launcher::kMpi);
  EXPECT_EQ((*world)->local_rank, 1);
  EXPECT_FALSE(world_of({}, Launcher::kMpi).ok());
  const auto far = world_of(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_NE(far.status().to_string().find("MASTER_ADDR"), std::string::npos);
}

TEST(WorldTest, HostLists) {
  const auto expand = [](const char* list) {
    const auto hosts = expand_host_list(list);
    return hosts.ok() ? join(*hosts, " ") : std::string("refused");
  };
  EXPECT_EQ(expand("node[01-03,07]"), "node01 node02 node03 node07");
  EXPECT_EQ(expand("a,b-2"), "a b-2");
  EXPECT_EQ(expand("n[9-11]"), "n9 n10 n11");
  EXPECT_EQ(expand("r[1-2]c[0-1],x"), "r1c0 r1c1 r2c0 r2c1 x");
  EXPECT_EQ(expand("n[001].cluster"), "n001.cluster");
  for (const char* wrong : {"", "a,", "n[1", "n1]", "n[[1]]", "n[2-1]", "n[a-b]", "n[]", "n[-3]",
                            "n[1-99999999999]", "n[0-99999][0-99999]"})
    EXPECT_EQ(expand(wrong), "refused") << wrong;
}

}  // namespace
}  // namespace aerie::dist
