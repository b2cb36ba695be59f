#include "aerie/base/system.h"

#include <gtest/gtest.h>

#include "aerie/base/path.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie {
namespace {

class SystemTest : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    ASSERT_TRUE(env_->create_dirs(parent_path(path)).ok());
    ASSERT_TRUE(env_->write_file(path, text).ok());
  }
  std::unique_ptr<Env> env_ = new_mem_env();
};

TEST_F(SystemTest, TheRealMachineAnswers) {
  EXPECT_GE(cpu_count(), 1);
  EXPECT_GE(physical_core_count(), 1);
  EXPECT_LE(physical_core_count(), cpu_count());
  const MemoryInfo memory = memory_info();
  EXPECT_GT(memory.available_bytes, 0u);
  EXPECT_LE(memory.available_bytes, memory.total_bytes);
  const ProcessMemory own = process_memory();
  EXPECT_GT(own.anonymous_bytes, 0u);
  EXPECT_LE(own.anonymous_bytes, own.rss_bytes);
  EXPECT_LE(own.rss_bytes, own.peak_rss_bytes);
  EXPECT_GE(process_cpu_s(), 0.0);
  EXPECT_GE(thread_cpu_s(), 0.0);
  EXPECT_LE(thread_cpu_s(), process_cpu_s() + 0.1);
}

TEST_F(SystemTest, NamesTheProcessor) {
  ASSERT_TRUE(env_->create_dirs("/r/proc").ok());
  ASSERT_TRUE(env_->write_file("/r/proc/cpuinfo",
                               "processor\t: 0\nmodel name\t: A Chip: 3 GHz\nprocessor\t: 1\n")
                  .ok());
  EXPECT_EQ(cpu_name(*env_, "/r"), "A Chip: 3 GHz");
  EXPECT_EQ(cpu_name(*env_, "/nowhere"), "");
  EXPECT_FALSE(host_name().empty());
}

TEST_F(SystemTest, FallsBackWhenNothingCanBeRead) {
  EXPECT_EQ(cpu_count(*env_, "/x"), static_cast<int>(allowed_cpus().size()));
  EXPECT_EQ(physical_core_count(*env_, "/x"), static_cast<int>(allowed_cpus().size()));
  EXPECT_EQ(memory_info(*env_, "/x").total_bytes, 0u);
}

TEST_F(SystemTest, HonoursTheCpuQuotaOfVersionTwo) {
  put("/r/proc/self/cgroup", "0::/a/b\n");
  put("/r/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_count(*env_, "/r"), static_cast<int>(allowed_cpus().size()));
  put("/r/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_count(*env_, "/r"), 1) << "half a CPU is still one thread";
}

TEST_F(SystemTest, HonoursTheCpuQuotaOfVersionOne) {
  put("/r/proc/self/cgroup", "3:cpu,cpuacct:/job\n1:memory:/\n0::/\n");
  put("/r/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  put("/r/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(cpu_count(*env_, "/r"), static_cast<int>(allowed_cpus().size()));
  put("/r/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
  EXPECT_EQ(cpu_count(*env_, "/r"), 1);
}

TEST_F(SystemTest, CountsHardwareThreadsOfOneCoreOnce) {
  const std::vector<int> cpus = allowed_cpus();
  for (const int cpu : cpus) {
    put(str_cat("/r/sys/devices/system/cpu/cpu", cpu, "/topology/core_id"), "0\n");
    put(str_cat("/r/sys/devices/system/cpu/cpu", cpu, "/topology/physical_package_id"), "0\n");
  }
  EXPECT_EQ(physical_core_count(*env_, "/r"), 1);
}

TEST_F(SystemTest, HonoursMemoryLimits) {
  put("/r/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    800 kB\n");
  EXPECT_EQ(memory_info(*env_, "/r").total_bytes, 1000u * 1024);
  EXPECT_EQ(memory_info(*env_, "/r").available_bytes, 800u * 1024);
  put("/r/proc/self/cgroup", "0::/job\n");
  put("/r/sys/fs/cgroup/job/memory.max", "409600\n");
  put("/r/sys/fs/cgroup/job/memory.current", "300000\n");
  put("/r/sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000\n");
  EXPECT_EQ(memory_info(*env_, "/r").total_bytes, 409600u);
  EXPECT_EQ(memory_info(*env_, "/r").available_bytes, 209600u);
  put("/r/proc/self/cgroup", "4:memory:/old\n0::/\n");
  put("/r/sys/fs/cgroup/memory/old/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(memory_info(*env_, "/r").total_bytes, 1000u * 1024);
  put("/r/sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
  put("/r/sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n");
  EXPECT_EQ(memory_info(*env_, "/r").total_bytes, 500000u);
  EXPECT_EQ(memory_info(*env_, "/r").available_bytes, 0u);
}

TEST_F(SystemTest, ReadsProcessMemory) {
  put("/r/proc/self/status", "Name:\tx\nVmHWM:\t 30 kB\nVmRSS:\t 20 kB\nRssAnon:\t 5 kB\n");
  const ProcessMemory memory = process_memory(*env_, "/r");
  EXPECT_EQ(memory.rss_bytes, 20u * 1024);
  EXPECT_EQ(memory.anonymous_bytes, 5u * 1024);
  EXPECT_EQ(memory.peak_rss_bytes, 30u * 1024);
}

TEST(HumanBytesTest, PicksTheUnit) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes(1024.0 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(12.0 * 1024 * 1024 * 1024), "12.0 GiB");
}

}  // namespace
}  // namespace aerie
