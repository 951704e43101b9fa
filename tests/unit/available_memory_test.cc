// Promise: the broker takes no more memory and processor time than the
// tightest of its cgroups and the machine leave. Method: made-up files of /proc
// and of cgroups of both versions.
#include "broker/memory/available_memory.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/folder_fixture.h"

namespace penstock::available_memory_test {

using testing::HasSubstr;

class AvailableMemoryTest : public FolderTest {
 protected:
  SystemFiles Files() { return {folder_ / "proc", folder_ / "cgroup"}; }
};

TEST_F(AvailableMemoryTest, TheTightestAncestorCgroupCounts) {
  Write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   1048576 kB\n");
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("cgroup/a/b/memory.max", "max\n");
  Write("cgroup/a/b/memory.current", "5\n");
  Write("cgroup/a/memory.max", "1000000\n");
  Write("cgroup/a/memory.current", "700000\n");
  Write("cgroup/a/memory.stat",
        "anon 1\ninactive_file 100000\nactive_file 50000\n");
  const AvailableMemory room = FindAvailableMemory(Files());
  EXPECT_EQ(room.bytes, 1000000u - 550000u);
  EXPECT_THAT(room.limit, HasSubstr("/a"));
}

TEST_F(AvailableMemoryTest, OfVersion1TheControllersHierarchyCounts) {
  Write("proc/meminfo", "MemAvailable:   1048576 kB\n");
  // As in a container: the paths are the runtime's, the mount is its own.
  Write("proc/self/cgroup",
        "9:name=systemd:/pod\n8:cpu,cpuacct:/pod\n4:memory:/pod/x\n0::/\n");
  Write("cgroup/memory/memory.limit_in_bytes", "1000000\n");
  Write("cgroup/memory/memory.usage_in_bytes", "700000\n");
  Write(
      "cgroup/memory/memory.stat",
      "inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 50000\n");
  Write("cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  Write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const AvailableMemory room = FindAvailableMemory(Files());
  EXPECT_EQ(room.bytes, 1000000u - 550000u);
  EXPECT_THAT(room.limit, HasSubstr("memory.limit_in_bytes of cgroup / "));
  EXPECT_DOUBLE_EQ(CgroupCpuQuota(Files()), 1.5);
  Write("cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_GT(CgroupCpuQuota(Files()), 1e9);
}

TEST_F(AvailableMemoryTest, WithoutCgroupsTheMachineCounts) {
  Write("proc/meminfo", "MemAvailable: 10 kB\n");
  EXPECT_EQ(FindAvailableMemory(Files()).bytes, 10240u);
}

TEST_F(AvailableMemoryTest, CpuQuotaOfAnAncestorCounts) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("cgroup/a/b/cpu.max", "max 100000\n");
  Write("cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(CgroupCpuQuota(Files()), 1.5);
}

}  // namespace penstock::available_memory_test
