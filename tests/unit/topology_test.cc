// Bound: workers, ranks and memory go to the processors and NUMA nodes that
// broker/memory says, and a node's memory is reserved once. Method: machines
// that hwloc is told of, made-up lists, and this machine's own pages.
#include "broker/memory/topology.h"

#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "broker/job/bank_placement.h"
#include "broker/memory/placement.h"
#include "broker/memory/populate.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::topology_test {

using testing::ElementsAre;
using testing::HasSubstr;

// ---- who belongs where

TEST(TopologyTest, NoPluginIsLoaded) {
  ASSERT_TRUE(Topology::Load({}).ok());
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    EXPECT_EQ(line.find("/hwloc_"), std::string::npos) << line;
  }
}

TEST(CpuListTest, ListsAreRead) {
  EXPECT_THAT(*ParseCpuList("0"), ElementsAre(0));
  EXPECT_THAT(*ParseCpuList("0-3,8,10-11"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_EQ(ParseCpuList("0-8191")->size(), 8192u);
}

TEST(CpuListTest, WhatItNamesTwiceOrInAnyOrderIsThereOnceInOrder) {
  EXPECT_THAT(*ParseCpuList("5,3,0-3,2"), ElementsAre(0, 1, 2, 3, 5));
}

TEST(CpuListTest, WhatIsNoListIsRefused) {
  for (const char* wrong : {"", ",", "0,", "-1", "1-", "3-1", "0-8192", "8192",
                            "4294967296", "0 ", "0x1", "a", "0--1"}) {
    EXPECT_EQ(ParseCpuList(wrong).status().code(), StatusCode::kInvalidArgument)
        << wrong;
  }
  EXPECT_FALSE(ParseCpuList(std::string(kCpuListCharsMax + 1, '1')).ok());
}

class NodeOfRankTest : public testing::Test {
 protected:
  RankNode Of(const RankPlacement& rank) {
    return NodeOfRank(rank, node_of_, nodes_);
  }
  const std::map<uint32_t, uint32_t> node_of_ = {{0, 0}, {1, 0}, {2, 4}};
  const std::vector<uint32_t> nodes_ = {0, 4};
};

TEST_F(NodeOfRankTest, ProcessorsOfOneNodeTellIt) {
  EXPECT_EQ(Of({{0, 1}, {}, {}}).node, 0u);
  EXPECT_EQ(Of({{2}, {}, {}}).node, 4u);
  EXPECT_EQ(Of({{2}, {}, {}}).from, "its processors");
}

TEST_F(NodeOfRankTest, TheOptionComesBeforeTheProcessors) {
  EXPECT_EQ(Of({{0, 1}, {}, 4}).node, 4u);
  EXPECT_EQ(Of({{0, 1}, {}, 4}).from, "option");
}

TEST_F(NodeOfRankTest, WithoutOneNodeThatTellsItIsNotKnownAndSaysWhy) {
  EXPECT_EQ(Of({{0, 2}, 2, {}}).node, std::nullopt);
  EXPECT_EQ(Of({{0, 2}, 2, {}}).from,
            "its processors are on several nodes; it attached on processor 2");
  EXPECT_EQ(Of({{0, 9}, {}, {}}).node, std::nullopt);
  EXPECT_THAT(Of({{0, 9}, {}, {}}).from, HasSubstr("processor 9"));
  EXPECT_EQ(Of({}).node, std::nullopt);
  EXPECT_EQ(Of({{0}, {}, 1}).node, std::nullopt);
  EXPECT_THAT(Of({{0}, {}, 1}).from, HasSubstr("node 1"));
}

TEST_F(NodeOfRankTest, ItsGpuTellsWhatItsProcessorsDoNot) {
  const RankPlacement anywhere = {{0, 2}, {}, {}, 4, "0000:3b:00.0"};
  EXPECT_EQ(Of(anywhere).node, 4u);
  EXPECT_EQ(Of(anywhere).from, "its GPU 0000:3b:00.0");
  EXPECT_EQ(Of({{0, 1}, {}, {}, 4, "0000:3b:00.0"}).node, 0u);
  EXPECT_EQ(Of({{0, 2}, {}, 0, 4, "0000:3b:00.0"}).node, 0u);
  EXPECT_EQ(Of({{0, 2}, {}, {}, 1, "0000:3b:00.0"}).node, std::nullopt);
}

TEST(OneNodeTest, EveryRankIsOnIt) {
  const std::vector<uint32_t> nodes = {0};
  EXPECT_EQ(NodeOfRank({{7}, {}, 3}, {{0, 0}}, nodes).node, 0u);
}

TEST(NodesOfLanesTest, UnknownRanksAreDividedInBlocks) {
  const std::vector<uint32_t> nodes = {0, 4};
  EXPECT_THAT(NodesOfLanes(4, nodes, {}), ElementsAre(0, 0, 4, 4));
  EXPECT_THAT(NodesOfLanes(3, nodes, {}), ElementsAre(0, 0, 4));
  EXPECT_THAT(NodesOfLanes(1, nodes, {}), ElementsAre(0));
}

TEST(NodesOfLanesTest, KnownRanksHaveTheirNode) {
  const std::vector<uint32_t> nodes = {0, 4};
  const std::vector<KnownRank> known = {{0, 4}, {7, 0}};  // 7: of another host
  EXPECT_THAT(NodesOfLanes(4, nodes, known), ElementsAre(4, 0, 4, 0));
}

TEST(SpreadOverNodesTest, NodesTakeTurnsAndSecondThreadsComeLast) {
  // Node 0 has two cores of two threads, node 1 one, a processor has no node.
  const std::vector<Processor> processors = {{0, 0, 0}, {1, 0, 1}, {2, 0, 0},
                                             {3, 0, 1}, {4, 1, 0}, {5, 1, 1},
                                             {6, {}, 0}};
  std::vector<uint32_t> order;
  for (const Processor& each : SpreadOverNodes(processors)) {
    order.push_back(each.os_index);
  }
  EXPECT_THAT(order, ElementsAre(0, 4, 6, 2, 1, 5, 3));
}

TEST(NodeRoomTest, FreePagesAndCacheOfANodeAreCounted) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("penstock-topology-test-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "node1");
  std::ofstream(folder / "node1/meminfo") << "Node 1 MemTotal:       1000 kB\n"
                                             "Node 1 MemFree:        100 kB\n"
                                             "Node 1 Active(anon):   500 kB\n"
                                             "Node 1 Active(file):   20 kB\n"
                                             "Node 1 Inactive(file): 3 kB\n";
  SystemFiles files;
  files.nodes = folder;
  EXPECT_EQ(FindAvailableNodeMemory(files, 1), 123u * 1024);
  EXPECT_EQ(FindAvailableNodeMemory(files, 0), std::nullopt);
  std::filesystem::remove_all(folder);
}

TEST(NodeRoomTest, JobsThatOpenAtOnceAreNotPromisedTheSameMemoryOfANode) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("penstock-topology-test-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "node1");
  const auto say_free = [&](int kib) {
    std::ofstream(folder / "node1/meminfo")
        << "Node 1 MemFree:        " << kib << " kB\n";
  };
  SystemFiles files;
  files.nodes = folder;
  BankPlacement placement(nullptr, files);
  say_free(100);
  std::shared_ptr<void> first = placement.TakeOfNode(1, 60 * 1024);
  ASSERT_NE(first, nullptr);
  // Its pages are not populated yet: the node's free memory is unchanged.
  EXPECT_EQ(placement.TakeOfNode(1, 60 * 1024), nullptr);
  EXPECT_NE(placement.TakeOfNode(1, 40 * 1024), nullptr);
  // They are populated, and count as used.
  say_free(40);
  first.reset();
  EXPECT_EQ(placement.TakeOfNode(1, 41 * 1024), nullptr);
  EXPECT_NE(placement.TakeOfNode(1, 40 * 1024), nullptr);
  // The available memory of a node that does not report it is unknown.
  EXPECT_NE(placement.TakeOfNode(0, uint64_t{1} << 60), nullptr);
  std::filesystem::remove_all(folder);
}

// Many threads at once get no more than there is.
TEST(NodeRoomTest, ThreadsAreNotPromisedTheSameMemoryOfANode) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      ("penstock-topology-test-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "node1");
  std::ofstream(folder / "node1/meminfo") << "Node 1 MemFree: 100 kB\n";
  SystemFiles files;
  files.nodes = folder;
  BankPlacement placement(nullptr, files);
  std::vector<std::shared_ptr<void>> promises(8);
  std::vector<std::thread> threads;
  for (std::shared_ptr<void>& promise : promises) {
    threads.emplace_back([&] { promise = placement.TakeOfNode(1, 30 * 1024); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(promises.begin(), promises.end(), nullptr), 5);
  std::filesystem::remove_all(folder);
}

// ---- this machine

TEST(TopologyTest, AllAllowedProcessorsAreFoundAndCanBePinnedTo) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  ASSERT_FALSE((*topology)->cpus().empty());
  EXPECT_GE((*topology)->cpu_quota(), 1u);
  for (const Topology::Cpu& cpu : (*topology)->cpus()) {
    std::thread([&] {
      EXPECT_TRUE((*topology)->PinThread(cpu).ok());
      EXPECT_EQ(sched_getcpu(), static_cast<int>(cpu.os_index));
    }).join();
  }
}

TEST(TopologyTest, ProcessorsThatAreNotThereAreRefused) {
  EXPECT_THAT(
      Topology::Load({"4000-4001"}).status().message(),
      testing::AllOf(testing::StartsWith("cpus: "), HasSubstr("may not use")));
  EXPECT_EQ(Topology::Load({"abc"}).status().code(),
            StatusCode::kInvalidArgument);
}

// A machine of two nodes with four cores of two threads each: node 0 has
// processors 0-7, its cores 0-1, 2-3, 4-5 and 6-7.
class TwoNodesTest : public testing::Test {
 protected:
  TwoNodesTest() { setenv("HWLOC_SYNTHETIC", "numa:2 core:4 pu:2", 1); }
  ~TwoNodesTest() override { unsetenv("HWLOC_SYNTHETIC"); }
  static std::vector<uint32_t> Cpus(const Topology& topology) {
    std::vector<uint32_t> cpus;
    for (const Topology::Cpu& cpu : topology.cpus()) {
      cpus.push_back(cpu.os_index);
    }
    return cpus;
  }
};

TEST_F(TwoNodesTest, CoresAreReservedWholeAndFromEachNodeInTurn) {
  const auto topology = Topology::Load({"", 3});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_THAT(Cpus(**topology), ElementsAre(0, 8, 2, 10, 12, 1, 9, 3, 11, 13));
  EXPECT_EQ((*topology)->description(),
            "processors 0-3,8-13 of 0-15 (reserve_cores: 3 leaves 4-7,14-15 to "
            "others)");
  EXPECT_EQ((*topology)->allowed(), 16u);
}

TEST_F(TwoNodesTest, CoresAreReservedOfTheListedProcessors) {
  const auto topology = Topology::Load({"0-2,15", 1});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_THAT(Cpus(**topology), ElementsAre(0, 1, 15));
  EXPECT_THAT((*topology)->description(),
              HasSubstr("(cpus: 0-2,15; reserve_cores: 1 leaves 2 to others)"));
}

TEST_F(TwoNodesTest, AWorkerMustHaveACoreLeft) {
  EXPECT_TRUE(Topology::Load({"", 7}).ok());
  EXPECT_THAT(Topology::Load({"", 8}).status().message(),
              testing::AllOf(testing::StartsWith("reserve_cores: "),
                             HasSubstr("none of the 8 cores")));
  EXPECT_FALSE(Topology::Load({"0-1", 1}).ok());
}

TEST_F(TwoNodesTest, FewerWorkersThanProcessorsAreOnBothNodes) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  std::map<std::optional<uint32_t>, int> of_node;
  for (size_t i = 0; i < 4; ++i) ++of_node[(*topology)->cpus()[i].node];
  EXPECT_EQ(of_node[0], 2);
  EXPECT_EQ(of_node[1], 2);
  EXPECT_THAT(Cpus(**topology), ElementsAre(0, 8, 2, 10, 4, 12, 6, 14,  //
                                            1, 9, 3, 11, 5, 13, 7, 15));
}

TEST_F(TwoNodesTest, NodesAreFoundWithTheirProcessors) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  ASSERT_EQ((*topology)->nodes().size(), 2u);
  EXPECT_EQ((*topology)->nodes()[0].cpus, "0-7");
  EXPECT_EQ((*topology)->nodes()[1].os_index, 1u);
  EXPECT_EQ((*topology)->nodes()[1].cpus, "8-15");
  EXPECT_GT((*topology)->nodes()[1].memory_bytes, 0u);
  EXPECT_EQ((*topology)->node_of_cpus().at(7), 0u);
  EXPECT_EQ((*topology)->node_of_cpus().at(8), 1u);
  EXPECT_THAT((*topology)->node_numbers(), ElementsAre(0, 1));
}

// Ranks may run on processors without workers.
TEST_F(TwoNodesTest, WorkersOfOneNodeLeaveTheOtherToTheRanks) {
  const auto topology = Topology::Load({"0-3"});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ((*topology)->nodes().size(), 2u);
}

TEST_F(TwoNodesTest, BindingThatDoesNothingIsNotBelieved) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_THAT((*topology)->unbound(), HasSubstr("not this machine's"));
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(page);
  // Reports success; the check of the page disproves it.
  EXPECT_TRUE((*topology)->BindMemory(begin, bytes, 1).ok());
  *begin = std::byte{1};
  EXPECT_EQ((*topology)->NodeOfPage(begin), std::nullopt);
  munmap(page, bytes);
}

// As in the child that populates a segment.
TEST(TopologyTest, APageThatAnotherProcessTouchedIsFound) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  if ((*topology)->node_numbers().size() != 1) GTEST_SKIP() << "several nodes";
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(page);
  ASSERT_TRUE(
      Populate(std::vector<PopulateRange>{{begin, bytes}}, [](size_t) {}).ok());
  EXPECT_EQ((*topology)->NodeOfPage(begin + bytes - 1),
            (*topology)->node_numbers().front());
  munmap(page, bytes);
}

TEST(TopologyTest, APageOfThisMachineIsOnOneOfItsNodes) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  const std::vector<uint32_t> nodes = (*topology)->node_numbers();
  if (nodes.empty()) GTEST_SKIP() << "no node says its memory";
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const begin = static_cast<std::byte*>(page);
  const Status bound = (*topology)->BindMemory(begin, bytes, nodes.front());
  if (!bound.ok()) GTEST_SKIP() << bound.message();
  *begin = std::byte{1};
  EXPECT_EQ((*topology)->NodeOfPage(begin), nodes.front());
  munmap(page, bytes);
}

// hwloc's description of a machine with an empty node (1), one without
// processors (2, memory on an expander) and an ordinary one (3).
class CapturedMachineTest : public testing::Test {
 protected:
  CapturedMachineTest() {
    std::ofstream(path_) << R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f" allowed_cpuset="0x0000000f" nodeset="0x0000000f" complete_nodeset="0x0000000f" allowed_nodeset="0x0000000f" gp_index="1">
    <object type="NUMANode" os_index="2" cpuset="0x0000000f" complete_cpuset="0x0000000f" nodeset="0x00000004" complete_nodeset="0x00000004" gp_index="20" local_memory="4294967296"/>
    <object type="Package" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000005" complete_nodeset="0x00000005" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="3" local_memory="1073741824"/>
      <object type="Core" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000005" complete_nodeset="0x00000005" gp_index="4">
        <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000005" complete_nodeset="0x00000005" gp_index="5"/>
      </object>
      <object type="Core" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000005" complete_nodeset="0x00000005" gp_index="6">
        <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000005" complete_nodeset="0x00000005" gp_index="7"/>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000006" complete_nodeset="0x00000006" gp_index="8">
      <object type="NUMANode" os_index="1" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000002" complete_nodeset="0x00000002" gp_index="9" local_memory="0"/>
      <object type="Core" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000006" complete_nodeset="0x00000006" gp_index="10">
        <object type="PU" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000006" complete_nodeset="0x00000006" gp_index="11"/>
      </object>
    </object>
    <object type="Package" os_index="2" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x0000000c" complete_nodeset="0x0000000c" gp_index="12">
      <object type="NUMANode" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x00000008" complete_nodeset="0x00000008" gp_index="13" local_memory="1073741824"/>
      <object type="Core" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x0000000c" complete_nodeset="0x0000000c" gp_index="14">
        <object type="PU" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x0000000c" complete_nodeset="0x0000000c" gp_index="15"/>
      </object>
    </object>
  </object>
</topology>
)";
    setenv("HWLOC_XMLFILE", path_.c_str(), 1);
  }
  ~CapturedMachineTest() override {
    unsetenv("HWLOC_XMLFILE");
    std::filesystem::remove(path_);
  }
  const std::string path_ =
      std::filesystem::temp_directory_path() /
      ("penstock-topology-test-" + std::to_string(getpid()) + ".xml");
};

TEST_F(CapturedMachineTest, OnlyNodesWithMemoryAndProcessorsOfTheirOwnCount) {
  const auto topology = Topology::Load({});
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_THAT((*topology)->node_numbers(), ElementsAre(0, 3));
  EXPECT_EQ((*topology)->nodes()[0].cpus, "0-1");
  EXPECT_EQ((*topology)->nodes()[1].cpus, "3");
  EXPECT_EQ((*topology)->node_of_cpus().count(2), 0u);
  EXPECT_EQ((*topology)->cpus().size(), 4u);
  EXPECT_NE((*topology)->unbound(), "");
}

}  // namespace penstock::topology_test
