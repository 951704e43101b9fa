// Promise: `penstock doctor` finds each of the things it looks for, says what
// to change for what gain, and finds nothing on a good machine. Method: a
// made-up root of /proc and /sys, and made-up answers of a broker; one thing is
// wrong in each case.
#include "client/command/doctor.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::doctor_test {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DoctorTest : public testing::Test {
 protected:
  DoctorTest() {
    std::string name = testing::TempDir() + "/penstock-doctor-XXXXXX";
    root_ = mkdtemp(name.data());
    Write("/proc/sys/kernel/io_uring_disabled", "0\n");
    Write("/proc/sys/kernel/numa_balancing", "0\n");
    Write("/proc/sys/vm/zone_reclaim_mode", "0\n");
    Write("/proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00\n");
    Write("/proc/7/limits",
          "Limit                     Soft Limit           Hard Limit\n"
          "Max open files            65536                65536      files\n"
          "Max locked memory         unlimited            unlimited  bytes\n");
    Write("/proc/7/cgroup", "0::/system.slice/penstockd.service\n");
    Write("/proc/self/mountinfo",
          "1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
          "2 1 8:17 / /data rw,relatime - xfs /dev/sdb1 rw\n"
          "3 1 0:50 / /data/remote rw,relatime,nconnect=8 - nfs4 host:/ rw\n");
    Write("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    Write(kGroup + "cpu.max", "max 100000\n");
    Write(kGroup + "cpu.stat", "usage_usec 5\nnr_periods 0\nnr_throttled 0\n");
    Write(kGroup + "memory.max", "max\n");
    Write(kGroup + "memory.events", "low 0\noom 0\noom_kill 0\n");
    Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
          "always within_size [advise] never deny force\n");
    Write("/sys/devices/system/node/online", "0-1\n");
    Write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
          "performance\n");
    Write("/sys/devices/system/clocksource/clocksource0/current_clocksource",
          "tsc\n");
    Write("/sys/dev/block/8:17/queue/rotational", "0\n");
    machine_.root = root_;
    machine_.release = "6.1.0-18-amd64";
    machine_.version = "1.2.3";
    machine_.user = "alice";
    machine_.status = {{"broker",
                        {{"version", "1.2.3"},
                         {"pid", 7},
                         {"read_backend", "io_uring (defer_taskrun)"},
                         {"sandbox", "landlock 7, seccomp"},
                         {"numa", "2 nodes, bound and verified"},
                         {"memory_bytes", 1000},
                         {"journal", ""},
                         {"condemned_samples", 0}}},
                       {"late_reads", nlohmann::json::array()}};
    machine_.paths = {"/data/train"};
    machine_.unreadable = [](const std::string&) { return ""; };
    machine_.space = [](const std::string&) {
      return Machine::Space{uint64_t{1} << 40, uint64_t{1} << 41};
    };
  }
  ~DoctorTest() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  // The only finding that is not fine.
  Finding Only() {
    std::vector<Finding> bad;
    for (const Finding& each : Examine(machine_)) {
      if (each.severity == Severity::kFine) {
        EXPECT_EQ(each.change + each.gain, "") << each.subject;
        continue;
      }
      EXPECT_NE(each.change, "") << each.subject;
      EXPECT_NE(each.gain, "") << each.subject;
      bad.push_back(each);
    }
    EXPECT_EQ(bad.size(), 1u);
    return bad.empty() ? Finding() : bad[0];
  }
  void Expect(Severity severity, const std::string& subject,
              const std::string& found, const std::string& change) {
    SCOPED_TRACE(subject + " " + found);
    const Finding only = Only();
    EXPECT_EQ(only.severity, severity);
    EXPECT_EQ(only.subject, subject);
    EXPECT_THAT(only.found, HasSubstr(found));
    EXPECT_THAT(only.change, HasSubstr(change));
  }
  nlohmann::json& broker() { return machine_.status["broker"]; }

  const std::string kGroup = "/sys/fs/cgroup/system.slice/penstockd.service/";
  std::string root_;
  Machine machine_;
};

constexpr Severity kAdvice = Severity::kAdvice;
constexpr Severity kProblem = Severity::kProblem;

TEST_F(DoctorTest, AGoodMachineIsFine) {
  const std::vector<Finding> findings = Examine(machine_);
  for (const Finding& each : findings) {
    EXPECT_EQ(each.severity, Severity::kFine) << each.subject << each.found;
  }
  EXPECT_GT(findings.size(), 8u);
}

TEST_F(DoctorTest, AMachineWithoutAnyOfTheFilesIsFine) {
  machine_.root = root_ + "/none";
  machine_.paths.clear();
  for (const Finding& each : Examine(machine_)) {
    EXPECT_EQ(each.severity, Severity::kFine) << each.subject << each.found;
  }
}

TEST_F(DoctorTest, OldKernels) {
  machine_.release = "5.10.0";
  Expect(kProblem, "kernel", "5.10.0", "5.14");
  machine_.release = "5.15.0-100-generic";
  Expect(kAdvice, "kernel", "5.15", "6.1");
}

TEST_F(DoctorTest, IoUringThatIsOffOrRefused) {
  machine_.io_uring_error = EPERM;
  Expect(kAdvice, "io_uring", "Operation not permitted", "seccomp");
  machine_.io_uring_error = ENOSYS;
  Expect(kAdvice, "io_uring", "not implemented", "kernel");
  machine_.io_uring_error = EPERM;
  Write("/proc/sys/kernel/io_uring_disabled", "1\n");
  Expect(kAdvice, "io_uring", "is 1", "io_uring_group");
  machine_.io_uring_error = 0;
  Write("/proc/sys/kernel/io_uring_disabled", "2\n");
  Expect(kAdvice, "io_uring", "is 2", "io_uring_disabled=0");
  Write("/proc/sys/kernel/io_uring_disabled", "0\n");
  broker()["read_backend"] = "pread";
  Expect(kAdvice, "io_uring", "pread", "read_backend");
}

TEST_F(DoctorTest, ASandboxThatIsOffOrLacksHalf) {
  broker()["sandbox"] = "off";
  Expect(kAdvice, "sandbox", "off", "remove `sandbox: off`");
  broker()["sandbox"] = "seccomp";
  Expect(kAdvice, "sandbox", "no Landlock", "lsm=");
  broker()["sandbox"] = "none";
  Expect(kAdvice, "sandbox", "no Landlock", "5.13");
  broker()["sandbox"] = "landlock 1";
  Expect(kAdvice, "sandbox", "no seccomp", "CONFIG_SECCOMP_FILTER");
}

TEST_F(DoctorTest, ABrokerThatCannotBeAsked) {
  machine_.status = nullptr;
  machine_.answered = NotFoundError("no broker listens on '/s'");
  Expect(kAdvice, "broker", "'/s'", "penstockd.socket");
  machine_.answered = PermissionDeniedError("may not open '/s'");
  Expect(kProblem, "broker", "may not open", "usermod -aG penstock alice");
}

TEST_F(DoctorTest, TroubleThatTheBrokerTells) {
  broker()["version"] = "1.2.2";
  Expect(kAdvice, "version", "1.2.2", "restart");
  broker()["version"] = "1.2.3";
  broker()["journal"] = "no space left on device";
  Expect(kProblem, "state directory", "no space left", "space");
  broker()["journal"] = "";
  broker()["condemned_samples"] = 2;
  Expect(kAdvice, "samples", "2 samples crash", "remove");
  broker()["condemned_samples"] = 0;
  machine_.status["late_reads"] = {
      {{"file", "/data/a"}, {"job", "train"}, {"seconds", 12.5}}};
  Expect(kProblem, "storage", "'/data/a' has been read for 12.5 s", "storage");
}

TEST_F(DoctorTest, LimitsOfTheBroker) {
  const std::string head = "Limit     Soft Limit    Hard Limit    Units\n";
  Write("/proc/7/limits", head + "Max open files   1024   524288  files\n");
  Expect(kAdvice, "open files", "1024", "LimitNOFILE=65536");
  Write("/proc/7/limits", head + "Max locked memory  8388608  8388608 bytes\n");
  Expect(kAdvice, "locked memory", "8.0 MiB", "LimitMEMLOCK");
}

TEST_F(DoctorTest, ControlGroupsOfVersionOne) {
  fs::remove(root_ + "/sys/fs/cgroup/cgroup.controllers");
  Expect(kAdvice, "control groups", "version 1", "unified_cgroup_hierarchy");
}

TEST_F(DoctorTest, LimitsOfControlGroups) {
  Write(kGroup + "cpu.max", "150000 100000\n");
  Write(kGroup + "cpu.stat", "nr_periods 1000\nnr_throttled 400\n");
  Expect(kAdvice, "CPU quota", "400 of 1000 periods (cpu.max 150000 100000)",
         "CPUQuota");
  Write(kGroup + "cpu.stat", "nr_periods 1000\nnr_throttled 20\n");
  // The limit of a group above.
  Write("/sys/fs/cgroup/system.slice/memory.max", "1048576\n");
  broker()["memory_bytes"] = 1000000;
  Expect(kAdvice, "memory limit", "1.0 MiB of /system.slice", "MemoryMax");
  broker()["memory_bytes"] = 1000;
  Write(kGroup + "memory.events", "oom 3\noom_kill 2\n");
  Expect(kProblem, "memory limit", "2 processes were killed", "memory_limit");
}

TEST_F(DoctorTest, MemoryPressure) {
  Write("/proc/pressure/memory", "some avg10=40.10 avg60=31.57 avg300=9.00\n");
  Expect(kAdvice, "memory pressure", "31 %", "prefetch");
}

TEST_F(DoctorTest, HugePagesThatAreOff) {
  Write("/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size advise [never] deny force\n");
  Expect(kAdvice, "huge pages", "[never]", "echo advise");
}

TEST_F(DoctorTest, NumaSettings) {
  Write("/proc/sys/kernel/numa_balancing", "1\n");
  Expect(kAdvice, "NUMA balancing", "on", "numa_balancing=0");
  Write("/proc/sys/kernel/numa_balancing", "0\n");
  Write("/proc/sys/vm/zone_reclaim_mode", "1\n");
  Expect(kAdvice, "NUMA reclaim", "on", "zone_reclaim_mode=0");
  Write("/proc/sys/vm/zone_reclaim_mode", "0\n");
  broker()["numa"] = "off: mbind: Operation not permitted";
  Expect(kAdvice, "NUMA", "not permitted", "CAP_SYS_NICE");
  broker()["numa"] = "2 nodes, bound, but 5 pages were found elsewhere";
  Expect(kAdvice, "NUMA", "5 pages", "memory free");
  // On one node none of it matters.
  Write("/sys/devices/system/node/online", "0\n");
  Write("/proc/sys/kernel/numa_balancing", "1\n");
  for (const Finding& each : Examine(machine_)) {
    EXPECT_EQ(each.severity, Severity::kFine) << each.subject;
  }
}

TEST_F(DoctorTest, SlowProcessors) {
  const std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq/";
  Write(folder + "scaling_governor", "powersave\n");
  Expect(kAdvice, "CPU frequency", "powersave", "performance");
  // A driver that chooses itself.
  Write(folder + "energy_performance_preference", "power\n");
  Expect(kAdvice, "CPU frequency", "preference power", "--epp");
  Write(folder + "energy_performance_preference", "balance_performance\n");
  for (const Finding& each : Examine(machine_)) {
    EXPECT_EQ(each.severity, Severity::kFine) << each.subject;
  }
}

TEST_F(DoctorTest, SlowClocks) {
  Write("/sys/devices/system/clocksource/clocksource0/current_clocksource",
        "hpet\n");
  Expect(kAdvice, "clock", "hpet", "tsc=reliable");
}

TEST_F(DoctorTest, FileSystemsOfTheData) {
  machine_.unreadable = [](const std::string&) { return "Permission denied"; };
  Expect(kProblem, "data /data/train", "Permission denied", "setfacl");
  machine_.unreadable = [](const std::string&) { return ""; };
  Write("/sys/dev/block/8:17/queue/rotational", "1\n");
  Expect(kAdvice, "data /data/train", "xfs at /data, a rotating disk", "SSD");
  machine_.paths = {"/data/remote/train"};
  for (const Finding& each : Examine(machine_)) {
    EXPECT_EQ(each.severity, Severity::kFine) << each.subject;
  }
  const auto mounted = [this](const std::string& options,
                              const std::string& type) {
    Write("/proc/self/mountinfo",
          "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
          "3 1 0:50 / /data rw," +
              options + " - " + type + " source rw\n");
  };
  mounted("relatime", "nfs4");
  Expect(kAdvice, "data /data/remote/train", "nfs4 at /data", "nconnect");
  mounted("relatime", "fuse.sshfs");
  Expect(kAdvice, "data /data/remote/train", "fuse.sshfs", "local disk");
  mounted("relatime", "overlay");
  Expect(kAdvice, "data /data/remote/train", "overlay", "volume");
  mounted("strictatime", "ext4");
  Expect(kAdvice, "data /data/remote/train", "strictatime", "noatime");
}

TEST_F(DoctorTest, StoresThatAnswer) {
  nlohmann::json store = {
      {"url", "s3://bucket/train"},
      {"credentials", "AWS_ACCESS_KEY_ID of the environment"},
      {"clock_skew_s", 0.4},
      {"listed", 12},
      {"list_s", 0.05},
      {"etag", true},
      {"first_byte_s", 0.0214},
      {"rates",
       {{{"at_once", 1}, {"bytes_per_s", 1 << 20}},
        {{"at_once", 16}, {"bytes_per_s", 48 << 20}},
        {{"at_once", 64}, {"bytes_per_s", 40 << 20}}}},
      {"requests_per_s", 1234.5},
      {"throttled", 0},
      {"failed", 0},
      {"folder", "/cache/objects"},
      {"room_bytes", uint64_t{20} << 30},
      {"free_bytes", uint64_t{40} << 30}};
  machine_.stores = {store};
  std::string all;
  for (const Finding& each : Examine(machine_)) {
    EXPECT_EQ(each.severity, Severity::kFine) << each.found;
    all += each.found + "\n";
  }
  EXPECT_THAT(all, HasSubstr("21 ms to the first byte, 48.0 MiB/s with 16 "
                             "requests of 1 MiB at once, 1,234 small requests "
                             "a second\n"));
  EXPECT_THAT(all, HasSubstr("AWS_ACCESS_KEY_ID of the environment"));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    machine_.stores = {store};
    machine_.stores[0][key] = value;
  };
  const std::string subject = "store s3://bucket/train";
  with("etag", false);
  Expect(kAdvice, subject, "no ETags", "other names");
  with("throttled", 5);
  Expect(kAdvice, subject, "5 requests were refused as too many", "prefixes");
  with("free_bytes", 1000);
  Expect(kAdvice, subject, "/cache/objects", "PENSTOCK_CACHE_DIR");
  with("clock_skew_s", -60);
  Expect(kAdvice, subject, "60 s behind the store's", "timedatectl");
  with("clock_skew_s", 1000);
  Expect(kProblem, subject, "1000 s ahead of the store's", "timedatectl");
}

TEST_F(DoctorTest, StoresThatDoNot) {
  const auto failing = [this](const char* step, StatusCode code,
                              const char* text) {
    machine_.stores = {
        {{"url", "s3://b/k"},
         {"credentials", "boto3: sso"},
         {"error",
          {{"step", step}, {"code", static_cast<int>(code)}, {"text", text}}}}};
  };
  const std::string subject = "store s3://b/k";
  failing("choose", StatusCode::kInvalidArgument, "pip install obstore into");
  Expect(kProblem, subject, "pip install", "PENSTOCK_PYTHON");
  failing("resolve", StatusCode::kUnavailable, "its name is not resolved");
  Expect(kProblem, subject, "not resolved", "DNS");
  failing("choose", StatusCode::kPermissionDenied, "the store refuses");
  Expect(kProblem, subject, "the store refuses", "those tried: boto3: sso");
  failing("choose", StatusCode::kNotFound, "there is no such bucket");
  Expect(kProblem, subject, "no such bucket", "correct the address");
  failing("read_small", StatusCode::kUnavailable, "it has no ranges");
  Expect(kProblem, subject, "no ranges", "answers ranges");
  failing("read_large", StatusCode::kUnavailable, "connection reset");
  Expect(kProblem, subject, "connection reset", "the network");
}

TEST_F(DoctorTest, FoldersThatAreFull) {
  machine_.space =
      [](const std::string& path) -> std::optional<Machine::Space> {
    if (path != "/var/lib/penstock") return std::nullopt;
    return Machine::Space{1000, uint64_t{1} << 40};
  };
  Expect(kAdvice, "space", "/var/lib/penstock", "penstock.yaml");
}

}  // namespace penstock::doctor_test
