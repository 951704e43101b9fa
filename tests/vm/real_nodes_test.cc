// Bound: on a machine with several NUMA nodes, pages and threads are on the
// nodes that delivery planned. Method: a real broker; the kernel is asked where
// they are. Skipped elsewhere; numa_vm runs it in a virtual machine of two
// nodes.
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "broker/memory/topology.h"
#include "common/message.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock {
namespace {

using testing::HasSubstr;

// The node of the page that contains `at`, which this process has touched.
int NodeOf(const void* at) {
  const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* page =
      reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(at) / bytes * bytes);
  int node = -1;
  EXPECT_EQ(syscall(SYS_move_pages, 0, 1ul, &page, nullptr, &node, 0), 0);
  return node;
}

class RealNodesTest : public DeliveryTest {
 protected:
  // Sixteen pages of values per rank.
  static constexpr int64_t kRows = 8192;

  void SetUp() override {
    topology_ = *Topology::Load({});
    nodes_ = topology_->node_numbers();
    if (nodes_.size() < 2) GTEST_SKIP() << "one NUMA node";
    ASSERT_EQ(topology_->unbound(), "");
    ASSERT_EQ(sched_getaffinity(0, sizeof(before_), &before_), 0);
  }
  void TearDown() override {
    if (nodes_.size() > 1) sched_setaffinity(0, sizeof(before_), &before_);
  }
  // Binds this thread, and so ranks that attach on it, to that node.
  void RunOn(uint32_t node) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const auto& [cpu, of] : topology_->node_of_cpus()) {
      if (of == node) CPU_SET(cpu, &set);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
  }
  std::unique_ptr<Reader> AttachOn(uint32_t node, Options options) {
    RunOn(node);
    auto reader = std::make_unique<Reader>(options);
    sched_setaffinity(0, sizeof(before_), &before_);
    return reader;
  }
  std::string Spec(const std::string& rest) {
    return RangeSpec(std::to_string(8 * kRows), rest + "epochs: forever\n");
  }
  // Returns the nodes of the next batch's pages.
  static std::set<int> NextOn(Reader* reader, Rows* rows = nullptr) {
    Batch batch;
    Reader::Result result = Reader::Result::kEndOfEpoch;
    while (result == Reader::Result::kEndOfEpoch) result = reader->next(&batch);
    EXPECT_EQ(result, Reader::Result::kBatch);
    const auto values = batch.get<int64_t>("value");
    EXPECT_EQ(values.size(), static_cast<size_t>(kRows));
    if (rows != nullptr) rows->assign(values.begin(), values.end());
    std::set<int> nodes;
    volatile int64_t touched = 0;
    for (size_t i = 0; i < values.size(); i += 512) {
      touched = values[i];
      nodes.insert(NodeOf(&values[i]));
    }
    (void)touched;
    return nodes;
  }
  static std::set<int> Only(uint32_t node) { return {static_cast<int>(node)}; }
  nlohmann::json Status() {
    const StatusOr<Fd> socket = ConnectControl(broker_.socket());
    EXPECT_TRUE(socket.ok());
    auto answer = Request(socket->get(), {{"op", "status"}});
    EXPECT_TRUE(answer.ok());
    return answer->json;
  }

  std::unique_ptr<Topology> topology_;
  std::vector<uint32_t> nodes_;
  cpu_set_t before_;
};

TEST_F(RealNodesTest, WorkersArePinnedToProcessorsOfAllNodesAlike) {
  const uint64_t workers = Status().at("broker").at("workers");
  std::map<uint32_t, int> of_node;
  for (int tries = 0; tries < 600; ++tries) {
    of_node.clear();
    uint64_t pinned = 0;
    for (const auto& [name, list] : broker_.OfWorkers("Cpus_allowed_list")) {
      const auto cpus = ParseCpuList(list);
      ASSERT_TRUE(cpus.ok()) << name << ": " << list;
      if (cpus->size() != 1) continue;
      ++pinned;
      ++of_node[topology_->node_of_cpus().at(cpus->front())];
    }
    if (pinned == workers) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ASSERT_EQ(of_node.size(), nodes_.size());
  for (const auto& [node, count] : of_node) {
    EXPECT_EQ(count, of_node.begin()->second) << "node " << node;
  }
}

TEST_F(RealNodesTest, ABatchLiesOnTheNodeOfItsRank) {
  const std::string spec =
      Spec("batch: {per_rank: " + std::to_string(kRows) + "}\n");
  const auto here = AttachOn(nodes_[0], OptionsFor(spec, 0, 2));
  const auto there = AttachOn(nodes_[1], OptionsFor(spec, 1, 2));
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(NextOn(here.get()), Only(nodes_[0])) << step;
    EXPECT_EQ(NextOn(there.get()), Only(nodes_[1])) << step;
  }
  nlohmann::json status;
  for (int tries = 0; tries < 600; ++tries) {  // until it has checked
    status = Status();
    if (status.at("jobs").at(0).at("pages_seen") > 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_THAT(status.at("broker").at("numa").get<std::string>(),
              HasSubstr("bound and verified"));
  const nlohmann::json& job = status.at("jobs").at(0);
  EXPECT_EQ(RankOf(job, 1).at("node_from"), "its processors");
  EXPECT_EQ(RankOf(job, 1).at("node"), nodes_[1]);
  EXPECT_GT(job.at("pages_seen").get<uint64_t>(), 0u);
  EXPECT_EQ(job.at("pages_elsewhere"), 0);
  EXPECT_GT(job.at("rows_local").get<uint64_t>(), 0u);
}

// The kernel's other interface: the number of the segment's pages on each node.
TEST_F(RealNodesTest, TheSegmentIsDividedOverTheNodes) {
  const std::string spec =
      Spec("batch: {per_rank: " + std::to_string(kRows) + "}\n");
  const auto here = AttachOn(nodes_[0], OptionsFor(spec, 0, 2));
  const auto there = AttachOn(nodes_[1], OptionsFor(spec, 1, 2));
  std::vector<uint64_t> pages(2);
  for (int step = 0; step < 10; ++step) {
    NextOn(here.get());
    NextOn(there.get());
  }
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("segment") == std::string::npos) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      for (size_t i = 0; i < pages.size(); ++i) {
        const std::string key = "N" + std::to_string(nodes_[i]) + "=";
        if (word.rfind(key, 0) == 0) {
          pages[i] += std::stoull(word.substr(key.size()));
        }
      }
    }
  }
  EXPECT_GT(pages[0], 0u);
  EXPECT_GT(pages[1], 0u);
}

TEST_F(RealNodesTest, RanksOfOneNodeHaveAllTheirMemoryMovedThere) {
  const std::string spec =
      Spec("batch: {per_rank: " + std::to_string(kRows) + "}\n");
  // The second lane was made on the other node.
  const auto first = AttachOn(nodes_[0], OptionsFor(spec, 0, 2));
  const auto second = AttachOn(nodes_[0], OptionsFor(spec, 1, 2));
  bool moved = false;
  for (int tries = 0; tries < 600 && !moved; ++tries) {
    const nlohmann::json job = Status().at("jobs").at(0);
    moved = job.at("pages_seen") > 0 && job.at("pages_elsewhere") == 0 &&
            NextOn(second.get()) == Only(nodes_[0]);
    EXPECT_EQ(NextOn(first.get()), Only(nodes_[0]));
    if (!moved) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_TRUE(moved);
  for (int step = 0; step < 20; ++step) {
    EXPECT_EQ(NextOn(second.get()), Only(nodes_[0])) << step;
    EXPECT_EQ(NextOn(first.get()), Only(nodes_[0])) << step;
  }
  EXPECT_EQ(RankOf(Status().at("jobs").at(0), 1).at("memory_node"), nodes_[0]);
}

TEST_F(RealNodesTest, EveryConsumerOfABroadcastReadsTheCopyOnItsNode) {
  Options options =
      OptionsFor(Spec("batch: {size: " + std::to_string(kRows) + "}\n"), -1, 2);
  options.delivery = "broadcast";
  options.consumers = 2;
  options.rank = 0;
  const auto here = AttachOn(nodes_[0], options);
  options.rank = 1;
  const auto there = AttachOn(nodes_[1], options);
  for (int step = 0; step < 20; ++step) {
    Rows rows_here;
    Rows rows_there;
    EXPECT_EQ(NextOn(here.get(), &rows_here), Only(nodes_[0])) << step;
    EXPECT_EQ(NextOn(there.get(), &rows_there), Only(nodes_[1])) << step;
    EXPECT_EQ(rows_here, rows_there) << step;
  }
  const nlohmann::json job = Status().at("jobs").at(0);
  EXPECT_EQ(job.at("copies"), nodes_.size());
  EXPECT_EQ(RankOf(job, 1).at("memory_node"), nodes_[1]);
  EXPECT_EQ(job.at("rows_remote"), 0);
}

TEST_F(RealNodesTest, ADynamicJobHasSlotsOnAllNodes) {
  Options options =
      OptionsFor(Spec("batch: {size: " + std::to_string(kRows) + "}\n"), 0, 1);
  options.delivery = "dynamic";
  Reader reader(options);
  std::set<int> nodes;
  for (int step = 0; step < 40; ++step) nodes.merge(NextOn(&reader));
  EXPECT_EQ(nodes.size(), nodes_.size());
}

}  // namespace
}  // namespace penstock
