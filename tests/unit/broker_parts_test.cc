// Promise: parts of the broker keep their bounds: it takes no more memory than
// cgroups and machine have, refuses a wrong configuration by line and column,
// runs tasks in order, and shows no former row of a slot. Method: each part
// alone, on made-up cgroups, files, descriptors and slots.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include "broker/base/event_loop.h"
#include "broker/base/text.h"
#include "broker/config.h"
#include "broker/declare/declaration.h"
#include "broker/delivery/assemble.h"
#include "broker/memory/populate.h"
#include "broker/memory/topology.h"
#include "common/segment.h"
#include "common/text_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using testing::HasSubstr;

class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = std::filesystem::temp_directory_path() / "parts-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::filesystem::path folder_;
};

// ---- errors as they are shown

TEST(ShortErrorTest, KeepsTheFirstLineAndTheEnd) {
  EXPECT_EQ(ShortError("a.jpg: \x1b[2J truncated"), "a.jpg: ?[2J truncated");
  EXPECT_EQ(ShortError(std::string(400, 'x')), std::string(300, 'x') + " ...");
  EXPECT_EQ(ShortError("f: Traceback\n  line\nValueError: no"),
            "f: Traceback\n  line\nValueError: no");
  std::string frames;
  for (int i = 0; i < 40; ++i) frames += Format("  frame {} \xff\n", i);
  const std::string text =
      ShortError("f: Traceback\n" + frames + "ValueError: too old\n");
  EXPECT_LE(text.size(), 310u);
  EXPECT_THAT(text, testing::StartsWith("f: Traceback\n...\n  frame 2"));
  EXPECT_THAT(text, testing::EndsWith("  frame 39 ?\nValueError: too old"));
}

// ---- available memory

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

TEST(PopulateTest, RangesArePopulatedInOrder) {
  const auto plan = PlanSegment({{"x", DType::kUint8, {1 << 20}}}, 4, 3, 1);
  auto segment = Segment::Create(*plan, 1, 1);
  ASSERT_TRUE(segment.ok());
  std::vector<PopulateRange> ranges;
  for (uint32_t slot = 0; slot < 3; ++slot) {
    ranges.push_back({(*segment)->base() + (*segment)->slot_offset(slot),
                      plan->slot_stride});
  }
  std::vector<size_t> reported;
  const Status status =
      Populate(ranges, [&](size_t done) { reported.push_back(done); });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_THAT(reported, testing::ElementsAre(1, 2, 3));
  // mincore sees resident pages, whoever touched them.
  std::vector<unsigned char> resident(plan->slot_stride / kPageBytes);
  ASSERT_EQ(mincore(ranges[2].begin, plan->slot_stride, resident.data()), 0);
  for (const unsigned char page : resident) EXPECT_EQ(page & 1, 1);
}

TEST(PopulateTest, MemoryThatCannotBeHadIsAnErrorNotADeath) {
  // Pages that may not be touched: the child fails, the parent goes on.
  void* forbidden =
      mmap(nullptr, kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  const PopulateRange range{static_cast<std::byte*>(forbidden), kPageBytes};
  EXPECT_FALSE(Populate({&range, 1}, [](size_t) {}).ok());
  munmap(forbidden, kPageBytes);
}

// ---- configuration

class ConfigTest : public FolderTest {};

TEST_F(ConfigTest, EveryKeyIsRead) {
  const auto config =
      LoadConfig(Write("c.yaml",
                       "socket: /x/sock\ncpus: 0-1\nreserve_cores: 1\n"
                       "workers: 3\nread_depth: 8\nread_backend: coop_taskrun\n"
                       "memory_limit: 2G\nstate_dir: /s\ncache_dir: /c\n"
                       "decode_timeout: 5m\nread_timeout: 500ms\n"
                       "python_path: /p:/q/r\npython: /bin/python\n"
                       "python_timeout: 2s\nplugin_dir: /l\n"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->socket, "/x/sock");
  EXPECT_EQ(config->cpus, "0-1");
  EXPECT_EQ(config->reserve_cores, 1u);
  EXPECT_THAT(config->position_of.at("reserve_cores"), HasSubstr("c.yaml:3:1"));
  EXPECT_EQ(config->workers, 3u);
  EXPECT_EQ(config->read_depth, 8u);
  EXPECT_EQ(config->read_backend, ReadBackend::kCoopTaskrun);
  EXPECT_EQ(*config->memory_limit, uint64_t{2} << 30);
  EXPECT_EQ(config->decode_timeout_ns, uint64_t{300} * 1'000'000'000);
  EXPECT_EQ(config->read_timeout_ns, uint64_t{500} * 1'000'000);
  EXPECT_EQ(config->functions.python_path,
            (std::vector<std::string>{"/p", "/q/r"}));
  EXPECT_EQ(config->functions.python, "/bin/python");
  EXPECT_EQ(config->functions.call_timeout_ns, uint64_t{2} * 1'000'000'000);
  EXPECT_EQ(config->functions.plugin_dir, "/l");
}

TEST_F(ConfigTest, KeyGivenTwiceIsRefusedWithBothPlaces) {
  const auto config = LoadConfig(Write("c.yaml", "workers: 3\nworkers: 4\n"));
  EXPECT_THAT(config.status().message(), HasSubstr("c.yaml:2:1"));
  EXPECT_THAT(config.status().message(), HasSubstr("first in line 1"));
}

TEST_F(ConfigTest, TheInstalledFileIsThatOfTheDeclaration) {
  const std::string path = PENSTOCK_SOURCE_DIR "/systemd/penstockd.yaml";
  EXPECT_EQ(*ReadTextFile("file", path, kSpecBytesMax), CommentedConfig())
      << "systemd/penstockd.yaml has to be this:\n"
      << CommentedConfig();
  const auto config = LoadConfig(path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->state_dir, "/var/lib/penstock");
}

TEST_F(ConfigTest, WhatTheInstalledFileCommentsOutIsTheDefaultOrMaySet) {
  std::istringstream lines(CommentedConfig());
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    std::smatch key;
    if (std::regex_match(line, key, std::regex("(?:# )?([a-z_]+: \\S.*)")) &&
        line.find("Value: ") == line.npos) {
      all += key.str(1) + "\n";
    }
  }
  const auto config = LoadConfig(Write("c.yaml", all));
  ASSERT_TRUE(config.ok()) << config.status().message() << "\n" << all;
  const auto keys = std::count_if(
      config->position_of.begin(), config->position_of.end(),
      [](const auto& of) { return of.first.find('[') == of.first.npos; });
  EXPECT_EQ(static_cast<size_t>(keys), Config::Declared().fields().size());
  EXPECT_EQ(ChangedKeys(Config(), *config),
            (std::vector<std::string>{"socket", "cpus", "memory_limit",
                                      "memory_limit_per_user", "data",
                                      "python_path", "plugin_dir", "state_dir",
                                      "cache_dir", "snapshot_path"}));
}

TEST_F(ConfigTest, HelpExplainsEveryKeyAndWhenItIsTaken) {
  const std::string help = DescribeConfig();
  for (const auto& field : Config::Declared().fields()) {
    EXPECT_THAT(help, HasSubstr("\n  " + field.key + ": "));
    EXPECT_EQ(field.text.back(), '.') << field.key;
  }
  EXPECT_TRUE(IsReloadable("memory_limit"));
  EXPECT_FALSE(IsReloadable("state_dir"));
  EXPECT_FALSE(IsReloadable("memory"));
}

TEST_F(ConfigTest, ChangesAreFoundByValue) {
  const auto load = [&](const char* text) {
    return *LoadConfig(Write("c.yaml", text));
  };
  EXPECT_EQ(ChangedKeys(load("memory_limit: 1G\nread_timeout: 60s\n"),
                        load("memory_limit: 1024M\n")),
            std::vector<std::string>());
  EXPECT_EQ(
      ChangedKeys(load("memory_limit: 1G\npython: python3\n"),
                  load("python_path: /a\nworkers: 2\n")),
      (std::vector<std::string>{"workers", "memory_limit", "python_path"}));
}

TEST_F(ConfigTest, ErrorsNameLineAndColumn) {
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: 2\nwrokers: 3\n"))
                  .status()
                  .message(),
              testing::AllOf(HasSubstr("c.yaml:2:1"),
                             HasSubstr("did you mean 'workers'?")));
  EXPECT_THAT(
      LoadConfig(Write("c.yaml", "memory_limit: lots\n")).status().message(),
      HasSubstr("'lots' is not a size"));
  EXPECT_FALSE(LoadConfig(Write("c.yaml", "workers: [1]\n")).ok());
  EXPECT_FALSE(LoadConfig(Write("c.yaml", "a: {\n")).ok());
  EXPECT_FALSE(LoadConfig(folder_ / "none").ok());
}

TEST_F(ConfigTest, WhatIsNoConfigurationIsRefusedAndNotWaitedFor) {
  EXPECT_THAT(LoadConfig(folder_).status().message(), HasSubstr("a folder"));
  const std::string fifo = folder_ / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(LoadConfig(fifo).status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(LoadConfig("/dev/zero").status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(LoadConfig(Write("large.yaml", std::string(1 << 20, '#')))
                  .status()
                  .message(),
              HasSubstr("larger than 64 KiB"));
}

TEST_F(ConfigTest, OneDocumentOfPlainValues) {
  for (const char* empty : {"", "# nothing\n", "---\n"}) {
    EXPECT_TRUE(LoadConfig(Write("c.yaml", empty)).ok()) << empty;
  }
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: 1\n---\nworkers: 2\n"))
                  .status()
                  .message(),
              HasSubstr("c.yaml:2:1: a second document"));
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: &n 1\nread_depth: *n\n"))
                  .status()
                  .message(),
              HasSubstr("c.yaml:1:10: anchors"));
}

TEST_F(ConfigTest, ProcessorsAndWorkersThatCannotBeAreRefusedWithTheirPlace) {
  for (const char* cpus : {"0-", "-1", "a", "0,,1", "3-1", "0-1,", "0 1",
                           "99999", "18446744073709551616"}) {
    EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: auto\ncpus: '" +
                                               std::string(cpus) + "'\n"))
                    .status()
                    .message(),
                testing::AllOf(HasSubstr("c.yaml:2:7: cpus: '"),
                               HasSubstr("such as 0-7,16")))
        << cpus;
  }
  EXPECT_TRUE(LoadConfig(Write("c.yaml", "cpus: 0-7,16,3\n")).ok());
  EXPECT_EQ(LoadConfig(Write("c.yaml", "workers: auto\n"))->workers, 0u);
  EXPECT_EQ(LoadConfig(Write("c.yaml", "reserve_cores: 0\n"))->reserve_cores,
            0u);
  EXPECT_THAT(
      LoadConfig(Write("c.yaml", "\nreserve_cores: -1\n")).status().message(),
      HasSubstr("c.yaml:2:16: reserve_cores: '-1' is not a number from 0"));
  EXPECT_THAT(LoadConfig(Write("c.yaml", "workers: 0\n")).status().message(),
              HasSubstr("c.yaml:1:10: workers: '0' is not a number from 1"));
}

TEST(ParseBytesTest, SizesAreRead) {
  EXPECT_EQ(*ParseBytes("1024"), 1024u);
  EXPECT_EQ(*ParseBytes("2K"), 2048u);
  EXPECT_EQ(*ParseBytes("3GiB"), uint64_t{3} << 30);
  for (const char* wrong : {"", "G", "-1", "1X", "99999999999T", "1.5G", "0"}) {
    EXPECT_FALSE(ParseBytes(wrong).ok()) << wrong;
  }
}

TEST(ParseDurationTest, TimesAreRead) {
  EXPECT_EQ(*ParseDuration("60s"), 60'000'000'000u);
  EXPECT_EQ(*ParseDuration("100ms"), 100'000'000u);
  EXPECT_EQ(*ParseDuration("24h"), uint64_t{86'400} * 1'000'000'000);
  for (const char* wrong : {"", "s", "60", "-1s", "1x", "1.5s", "0", "99ms",
                            "25h", "99999999999999h"}) {
    EXPECT_FALSE(ParseDuration(wrong).ok()) << wrong;
  }
}

// ---- event loop

TEST(EventLoopTest, PostedTasksRunOnTheLoopInOrder) {
  auto loop = EventLoop::Make();
  ASSERT_TRUE(loop.ok());
  std::vector<int> ran;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) {
      (*loop)->Post([&ran, i] { ran.push_back(i); });
    }
    (*loop)->Post([&] { (*loop)->Stop(); });
  });
  (*loop)->Run();
  other.join();
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[i], i);
}

TEST(EventLoopTest, WhatEventsAskForComesAfterAllOfThem) {
  auto loop = EventLoop::Make();
  ASSERT_TRUE(loop.ok());
  std::vector<int> ran;
  (*loop)->Post([&] {
    ran.push_back(1);
    (*loop)->AfterEvents([&] {
      ran.push_back(3);
      (*loop)->Stop();
    });
  });
  (*loop)->Post([&] { ran.push_back(2); });
  (*loop)->Run();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoopTest, CallbackMayUnwatchItself) {
  auto loop = EventLoop::Make();
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd read_end(fds[0]);
  const Fd write_end(fds[1]);
  int calls = 0;
  ASSERT_TRUE((*loop)
                  ->Watch(read_end.get(),
                          [&](uint32_t) {
                            ++calls;
                            (*loop)->Unwatch(read_end.get());
                            (*loop)->Post([&] { (*loop)->Stop(); });
                          })
                  .ok());
  ASSERT_EQ(write(write_end.get(), "x", 1), 1);
  (*loop)->Run();
  EXPECT_EQ(calls, 1);
}

// ---- assemble

// A batch shows only its own rows, whichever are left out, and nothing of
// former batches of its slot.
TEST(AssembleTest, ABatchShowsNothingOfTheSlotsFormerRows) {
  constexpr uint64_t kRows = 5;
  constexpr uint64_t kShape = 7;
  const ElementSpec spec = {{"image", DType::kUint8, {5, 3}},
                            {"label", DType::kInt64, {}}};
  const auto plan = PlanSegment(spec, kShape, 1, 1);
  ASSERT_TRUE(plan.ok());
  const auto segment = Segment::Create(*plan, 1, 1);
  ASSERT_TRUE(segment.ok());
  std::byte* const slot = (*segment)->base() + (*segment)->slot_offset(0);
  // Expects that all bytes of the row, and its id, are value.
  const auto is = [&](uint64_t row, int64_t id, uint8_t value) {
    EXPECT_EQ((*segment)->ids(0)[row], id) << row;
    for (size_t i = 0; i < spec.size(); ++i) {
      const std::byte* const bytes =
          (*segment)->feature(0, i) + row * spec[i].RowBytes();
      for (uint64_t at = 0; at < spec[i].RowBytes(); ++at) {
        EXPECT_EQ(bytes[at], std::byte{value}) << row << ", " << at;
      }
    }
  };
  for (uint64_t bits = 0; bits < 1u << kRows; ++bits) {
    for (const bool keep_shape : {false, true}) {
      std::memset(slot, 0xee, plan->slot_stride);
      OpenBatch batch;
      batch.rows.rows = kRows;
      batch.rows.shape_rows = keep_shape ? kShape : kRows;
      std::vector<uint64_t> there;
      // In any order, as workers make them.
      for (uint64_t row = kRows; row-- > 0;) {
        if ((bits >> row & 1) != 0) {
          batch.left_out.push_back(row);
          continue;
        }
        there.insert(there.begin(), row);
        (*segment)->ids(0)[row] = static_cast<int64_t>(row);
        for (size_t i = 0; i < spec.size(); ++i) {
          std::memset((*segment)->feature(0, i) + row * spec[i].RowBytes(),
                      static_cast<int>(row), spec[i].RowBytes());
        }
      }
      Assemble(**segment, spec, keep_shape, 0, &batch);
      ASSERT_EQ(batch.valid_rows, there.size());
      ASSERT_EQ(batch.shape_rows, keep_shape ? kShape : there.size());
      for (uint64_t row = 0; row < there.size(); ++row) {
        is(row, static_cast<int64_t>(there[row]),
           static_cast<uint8_t>(there[row]));
      }
      for (uint64_t row = there.size(); row < batch.shape_rows; ++row) {
        is(row, -1, 0);
      }
    }
  }
}

}  // namespace
}  // namespace penstock
