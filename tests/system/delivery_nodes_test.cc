// Bound: on a machine of several NUMA nodes a rank gets a lane, and a worker a
// rank batch, on its own node where there is one, and no sample is lost for it.
// Method: Delivery with made-up nodes; then a broker that takes this machine
// for such a one.
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>

#include "broker/delivery/delivery.h"
#include "broker/job/dataset.h"
#include "broker/job/job.h"
#include "common/layout.h"
#include "common/message.h"
#include "common/ring.h"
#include "common/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::delivery_nodes_test {

using testing::HasSubstr;

// A split with lanes on these nodes, two slots each.
class LanesOf {
 public:
  explicit LanesOf(std::vector<uint32_t> bank_nodes,
                   std::vector<uint32_t> worker_nodes = {0, 1},
                   uint32_t lanes = 4)
      : rings_(2 * lanes), pages_(lanes) {
    Delivery::Shape shape;
    shape.world_size = shape.consumers_max = shape.lanes = lanes;
    shape.slots_per_lane = 2;
    shape.leases = 2;
    shape.rows_max = 8;
    shape.slot_stride = 4096;
    if (!bank_nodes.empty()) shape.bank_slots = 2;
    shape.bank_nodes = std::move(bank_nodes);
    shape.worker_nodes = std::move(worker_nodes);
    const DatasetSpec spec = *ParseDatasetSpec(
        "dataset: numbers\nsource: {range: 4096}\nbatch: {per_rank: 8}\n",
        "test", "/");
    std::vector<Ring*> rings;
    for (Ring& ring : rings_) rings.push_back(&ring);
    delivery_ = std::make_unique<Delivery>(
        shape, *Plan::Make(spec, 4096, lanes), rings);
    delivery_->SetUsableSlots(2);
  }

  // Returns the node of the memory it gets.
  std::optional<uint32_t> Attach(uint32_t rank,
                                 std::optional<uint32_t> node = {}) {
    Delivery::Joining joining;
    joining.rank = rank;
    joining.node = node;
    joining.cursor = {std::shared_ptr<void>(), &pages_[rank]};
    const auto joined = delivery_->Attach(joining);
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    if (joined.ok() && joined->moved_bank) {
      moved_.push_back(*joined->moved_bank);
    }
    for (const Delivery::RankStatus& status : delivery_->Ranks()) {
      if (status.rank == rank) return status.memory_node;
    }
    return std::nullopt;
  }
  void AttachAll() {
    for (uint32_t rank = 0; rank < pages_.size(); ++rank) Attach(rank);
    while (delivery_->Open() != nullptr) {
    }
  }
  // A worker of this node claims a rank batch and makes it; returns its slot.
  std::optional<uint32_t> Make(std::optional<uint32_t> node) {
    OpenBatch* const share = delivery_->Claimable(node);
    if (share == nullptr) return std::nullopt;
    share->claimed = share->finished = share->rows.rows;
    share->valid_rows = share->shape_rows = share->rows.rows;
    delivery_->Filled(share);
    return share->slot;
  }
  Delivery& operator*() { return *delivery_; }
  const std::vector<uint32_t>& moved() const { return moved_; }
  Ring& ring(uint32_t seat) { return rings_[seat]; }
  CursorPage& page(uint32_t rank) { return pages_[rank]; }

 private:
  std::vector<Ring> rings_;
  std::vector<CursorPage> pages_;
  std::vector<uint32_t> moved_;
  std::unique_ptr<Delivery> delivery_;
};

TEST(LaneTest, ARankGetsALaneOnItsNodeWhateverItsNumber) {
  LanesOf lanes({0, 0, 1, 1});
  EXPECT_EQ(lanes.Attach(0, 1), 1u);
  EXPECT_EQ(lanes.Attach(1, 1), 1u);
  EXPECT_EQ(lanes.Attach(2, 0), 0u);
  EXPECT_EQ(lanes.Attach(3, 0), 0u);
}

TEST(LaneTest, ARankWhoseNodeIsNotKnownGetsTheLaneMadeForIt) {
  LanesOf lanes({0, 0, 1, 1});
  EXPECT_EQ(lanes.Attach(3), 1u);
  EXPECT_EQ(lanes.Attach(0), 0u);
  EXPECT_EQ(lanes.Attach(2), 1u);
  EXPECT_EQ(lanes.Attach(1), 0u);
}

TEST(LaneTest, ALaneMovesToItsRankWhenTheRanksNodeHasNoneLeft) {
  LanesOf lanes({0, 0, 1, 1});
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(lanes.Attach(rank, 1), 1u) << rank;
  }
  EXPECT_THAT(lanes.moved(), testing::UnorderedElementsAre(0, 1));
  EXPECT_THAT((*lanes).bank_nodes(), testing::ElementsAre(1, 1, 1, 1));
}

TEST(LaneTest, ALaneThatWasHadStaysWhereItIs) {
  LanesOf lanes({0, 1}, {0, 1}, 2);
  lanes.Attach(0, 0);
  lanes.Attach(1, 1);
  ASSERT_TRUE((*lanes).Died(0).ok());
  EXPECT_EQ(lanes.Attach(0, 1), 0u);
  EXPECT_TRUE(lanes.moved().empty());
}

TEST(ClaimTest, AWorkerTakesTheOldestShareOfItsOwnNodeFirst) {
  LanesOf lanes({0, 0, 1, 1});
  lanes.AttachAll();
  // Slots 0-3 are on node 0, 4-7 on node 1; the even slot of a lane is older.
  EXPECT_EQ(lanes.Make(1), 4u);
  EXPECT_EQ(lanes.Make(1), 6u);
  EXPECT_EQ(lanes.Make(0), 0u);
  EXPECT_EQ(lanes.Make(1), 5u);
  EXPECT_EQ(lanes.Make(1), 7u);
}

TEST(ClaimTest, AWorkerThatHasNothingOnItsNodeTakesWhatThereIs) {
  LanesOf lanes({0, 0, 1, 1});
  lanes.AttachAll();
  std::vector<uint32_t> made;
  while (const auto slot = lanes.Make(1)) made.push_back(*slot);
  EXPECT_THAT(made, testing::ElementsAre(4, 6, 5, 7, 0, 2, 1, 3));
}

TEST(ClaimTest, AWorkerOfNoNodeTakesTheOldest) {
  LanesOf lanes({1, 0, 1, 0});
  lanes.AttachAll();
  EXPECT_EQ(lanes.Make({}), 0u);
  EXPECT_EQ(lanes.Make({}), 2u);
}

TEST(ClaimTest, SharesOfANodeWithoutWorkersAreNotLast) {
  LanesOf lanes({0, 0, 1, 1}, /*worker_nodes=*/{0});
  lanes.AttachAll();
  std::vector<uint32_t> made;
  while (const auto slot = lanes.Make(0)) made.push_back(*slot);
  EXPECT_THAT(made, testing::ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

TEST(ClaimTest, LocalIsWhatIsMadeOnTheSlotsOwnNode) {
  LanesOf lanes({0, 0, 1, 1});
  lanes.AttachAll();
  const OpenBatch& share = *(*lanes).Claimable(1);
  EXPECT_TRUE((*lanes).IsLocal(share, 1));
  EXPECT_FALSE((*lanes).IsLocal(share, 0));
  EXPECT_FALSE((*lanes).IsLocal(share, {}));
}

TEST(ClaimTest, WithOneNodeTheOldestComesFirstAndAllIsLocal) {
  LanesOf lanes({});
  lanes.AttachAll();
  EXPECT_TRUE((*lanes).IsLocal(*(*lanes).Claimable(1), {}));
  std::vector<uint32_t> made;
  while (const auto slot = lanes.Make(1)) made.push_back(*slot);
  EXPECT_THAT(made, testing::ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

TEST(ClaimTest, RowsThatAreGivenBackAreClaimedFirst) {
  LanesOf lanes({});
  lanes.AttachAll();
  OpenBatch* const share = (*lanes).Claimable();
  const uint64_t rows = share->rows.rows;
  ASSERT_GE(rows, 3u);
  share->Claim(rows);
  EXPECT_NE((*lanes).Claimable(), share);
  (*lanes).GiveBack(share, {0, 2});
  ASSERT_EQ((*lanes).Claimable(), share);
  EXPECT_EQ(share->Unclaimed().begin, 0u);
  EXPECT_EQ(share->Unclaimed().end, 2u);
  share->Claim(1);
  ASSERT_EQ((*lanes).Claimable(), share);
  EXPECT_EQ(share->Unclaimed().begin, 1u);
  share->Claim(2);
  EXPECT_NE((*lanes).Claimable(), share);
  EXPECT_EQ(share->claimed, rows);
}

TEST(BankTest, ACellNamesTheSlotInItsBank) {
  LanesOf lanes({0, 1}, {0, 1}, 2);
  lanes.AttachAll();
  while (lanes.Make({})) {
  }
  (*lanes).Advance();
  Cell cell;
  ASSERT_EQ(TryTake(lanes.ring(1), lanes.page(1), &cell), TakeResult::kTaken);
  EXPECT_EQ(cell.slot_offset, kHugePageBytes);
  ASSERT_EQ(TryTake(lanes.ring(1), lanes.page(1), &cell), TakeResult::kTaken);
  EXPECT_EQ(cell.slot_offset, kHugePageBytes + 4096);
}

// ---- copies of a broadcast

// A broadcast of 12 rows, four at a time, with a copy on each of two nodes.
class CopiesTest : public testing::Test {
 protected:
  CopiesTest() {
    JobOptions options;
    options.spec = *ParseDatasetSpec(
        "dataset: numbers\nsource: {range: 12}\nbatch: {size: 4}\n"
        "on_error: skip\n",
        "test", "/");
    options.delivery.mode = DeliveryMode::kBroadcast;
    options.delivery.window = 2;
    options.consumers_max = 2;
    options.world_size = options.local_world_size = 2;
    OpenProgress progress;
    const auto dataset = *OpenDataset(options.spec, {}, &progress);
    auto layout = *Job::PlanLayout(options, *dataset, 2, true);
    layout.bank_nodes = {0, 4};
    layout.worker_nodes = {0, 4};
    copies_ = layout.copies;
    slots_ = layout.slots_per_lane;
    segment_slots_ = layout.segment.slot_count;
    auto segment = *Segment::Create(layout.segment, 1, 1);
    job_ = std::make_shared<Job>(JobKey{}, options, dataset, std::move(layout),
                                 std::move(segment), MemoryReservation(), 1,
                                 nullptr);
    job_->SetUsableSlots(slots_);
  }
  void Attach(uint32_t rank, std::optional<uint32_t> node) {
    pages_.push_back(std::make_shared<CursorPage>());
    Delivery::Joining joining;
    joining.rank = rank;
    joining.node = node;
    joining.cursor = pages_.back();
    const auto joined = job_->Attach(std::move(joining),
                                     [](const auto&) { return OkStatus(); });
    ASSERT_TRUE(joined.ok()) << joined.status().message();
    seats_.push_back(joined->seat);
    job_->Advance({joined->seat});
  }
  // A worker of this node makes all rows but `bad`.
  void MakeOne(std::optional<uint32_t> node, int64_t bad = -1) {
    int64_t made = 0;
    while (made < 4) {
      const Claim claim = job_->ClaimRows(node);
      ASSERT_NE(claim.batch, nullptr);
      filled_ = claim.slot;
      local_ = claim.local;
      for (uint64_t row = claim.begin; row < claim.end; ++row, ++made) {
        if (static_cast<int64_t>(row) == bad) {
          job_->LeaveOut(claim.batch, row, row, DataLossError("bad"));
          continue;
        }
        Row(claim.slot, row) = 100 + static_cast<int64_t>(row);
        job_->segment().ids(claim.slot)[row] = static_cast<int64_t>(row);
      }
      job_->FinishRows(claim);
    }
  }
  int64_t& Row(uint32_t slot, uint64_t row) {
    return reinterpret_cast<int64_t*>(job_->segment().feature(slot, 0))[row];
  }
  // The segment's slot that this consumer takes.
  uint32_t Take(size_t consumer) {
    Cell cell{};
    EXPECT_EQ(TryTake(job_->segment().ring(seats_[consumer]), *pages_[consumer],
                      &cell),
              TakeResult::kTaken);
    valid_rows_ = cell.valid_rows;
    for (uint32_t slot = 0; slot < segment_slots_; ++slot) {
      if (job_->segment().slot_offset(slot) == cell.slot_offset) return slot;
    }
    ADD_FAILURE() << "no slot begins at " << cell.slot_offset;
    return 0;
  }

  std::shared_ptr<Job> job_;
  uint32_t copies_ = 0;
  uint32_t slots_ = 0;  // slots of each copy
  uint32_t segment_slots_ = 0;
  std::vector<std::shared_ptr<CursorPage>> pages_;
  std::vector<uint32_t> seats_;
  uint32_t filled_ = 0;  // slot
  bool local_ = false;
  uint32_t valid_rows_ = 0;
};

TEST_F(CopiesTest, EveryConsumerGetsTheCopyOnItsNode) {
  ASSERT_EQ(copies_, 2u);
  ASSERT_EQ(segment_slots_, 2 * slots_);
  Attach(0, 4);
  Attach(1, 0);
  MakeOne(4);
  EXPECT_GE(filled_, slots_) << "a worker fills the copy on its own node";
  EXPECT_TRUE(local_);
  const uint32_t far = Take(0);
  const uint32_t near = Take(1);
  EXPECT_EQ(far, filled_);
  EXPECT_EQ(near + slots_, far);
  for (const uint32_t slot : {near, far}) {
    for (uint64_t row = 0; row < 4; ++row) {
      EXPECT_EQ(Row(slot, row), 100 + static_cast<int64_t>(row));
      EXPECT_EQ(job_->segment().ids(slot)[row], static_cast<int64_t>(row));
    }
  }
}

TEST_F(CopiesTest, AWorkerOfAnotherNodeFillsTheFirstCopy) {
  Attach(0, 0);
  Attach(1, 4);
  MakeOne(9);
  EXPECT_LT(filled_, slots_);
  EXPECT_FALSE(local_);
  EXPECT_EQ(Take(0) + slots_, Take(1));
}

TEST_F(CopiesTest, RowsThatAreLeftOutAreClosedUpInEveryCopy) {
  Attach(0, 0);
  Attach(1, 4);
  MakeOne(0, /*bad=*/1);
  for (const size_t consumer : {0u, 1u}) {
    const uint32_t slot = Take(consumer);
    EXPECT_EQ(valid_rows_, 3u);
    EXPECT_EQ(Row(slot, 0), 100);
    EXPECT_EQ(Row(slot, 1), 102);
    EXPECT_EQ(Row(slot, 2), 103);
  }
}

TEST_F(CopiesTest, RowsThatAreGivenBackAreMadeOnAnotherNode) {
  Attach(0, 0);
  Attach(1, 4);
  Claim claim = job_->ClaimRows(4);
  ASSERT_GE(claim.end, 2u);
  Row(claim.slot, 0) = 100;
  job_->segment().ids(claim.slot)[0] = 0;
  Row(claim.slot, 1) = -1;  // begun, and not finished
  Claim rest = claim;
  claim.end = rest.begin = 1;
  job_->GiveBack(rest);
  job_->FinishRows(claim);
  for (uint64_t next = 1; next < 4;) {
    claim = job_->ClaimRows(0);
    ASSERT_EQ(claim.begin, next);
    for (; next < claim.end; ++next) {
      Row(claim.slot, next) = 100 + static_cast<int64_t>(next);
      job_->segment().ids(claim.slot)[next] = static_cast<int64_t>(next);
    }
    job_->FinishRows(claim);
  }
  for (const size_t consumer : {0u, 1u}) {
    const uint32_t slot = Take(consumer);
    EXPECT_EQ(valid_rows_, 4u);
    for (uint64_t row = 0; row < 4; ++row) {
      EXPECT_EQ(Row(slot, row), 100 + static_cast<int64_t>(row));
    }
  }
}

TEST_F(CopiesTest, AConsumerWhoseNodeIsNotKnownHasOneCopyAllTheTime) {
  Attach(0, {});
  Attach(1, {});
  MakeOne(0);
  MakeOne(4);
  const uint32_t first = Take(0);
  const uint32_t second = Take(0);
  EXPECT_EQ(first / slots_, second / slots_);
  EXPECT_NE(Take(1) / slots_, first / slots_) << "they are spread";
}

TEST_F(CopiesTest, OnlyABroadcastHasCopies) {
  JobOptions options = job_->options();
  options.delivery.mode = DeliveryMode::kDynamic;
  EXPECT_EQ(Job::PlanLayout(options, job_->dataset(), 2, true)->copies, 1u);
  options.delivery.mode = DeliveryMode::kBroadcast;
  EXPECT_EQ(Job::PlanLayout(options, job_->dataset(), 1, true)->copies, 1u);
  EXPECT_EQ(Job::PlanLayout(options, job_->dataset(), 2, false)->copies, 1u);
}

// ---- a broker

// hwloc is told of two nodes with two processors each; nothing is bound.
class TwoNodesTest : public DeliveryTest {
 protected:
  struct Synthetic {
    Synthetic() { setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1", 1); }
    ~Synthetic() { unsetenv("HWLOC_SYNTHETIC"); }
  };
  TwoNodesTest() {
    const Synthetic machine;
    two_nodes_ = std::make_unique<BrokerProcess>(
        std::vector<std::string>{"--workers", "2"});
  }
  Options On(const Options& options, int node) {
    Options on = options;
    on.socket = two_nodes_->socket();
    on.node = node;
    return on;
  }
  nlohmann::json Status() {
    const StatusOr<Fd> socket = ConnectControl(two_nodes_->socket());
    EXPECT_TRUE(socket.ok());
    auto answer = Request(socket->get(), {{"op", "status"}});
    EXPECT_TRUE(answer.ok());
    return answer->json;
  }
  std::unique_ptr<BrokerProcess> two_nodes_;
};

TEST_F(TwoNodesTest, TheBrokerSaysItsNodesAndWhyNothingIsBound) {
  const nlohmann::json broker = Status().at("broker");
  EXPECT_THAT(broker.at("numa").get<std::string>(),
              HasSubstr("off: the topology is not this machine's"));
  ASSERT_EQ(broker.at("nodes").size(), 2u);
  EXPECT_EQ(broker.at("nodes")[1].at("node"), 1);
  EXPECT_EQ(broker.at("nodes")[1].at("cpus"), "2-3");
  EXPECT_EQ(broker.at("nodes")[1].at("workers"), 1);
}

TEST_F(TwoNodesTest, RanksGetEverySampleAndMemoryOfTheNodeTheyName) {
  const std::string spec =
      RangeSpec("64", "batch: {per_rank: 4}\nepochs: forever\n");
  Reader first(On(OptionsFor(spec, 0, 2), 1));
  Reader second(On(OptionsFor(spec, 1, 2), 0));
  Rows rows;
  for (int step = 0; step < 8; ++step) {
    for (Reader* reader : {&first, &second}) {
      Batch batch;
      ASSERT_EQ(reader->next(&batch), Reader::Result::kBatch);
      Append({TakenOf(*reader, batch)}, &rows);
    }
  }
  EXPECT_EQ(Sorted(rows), Numbers(64));
  const nlohmann::json job = Status().at("jobs").at(0);
  EXPECT_EQ(RankOf(job, 0).at("node"), 1);
  EXPECT_EQ(RankOf(job, 0).at("node_from"), "option");
  EXPECT_EQ(RankOf(job, 0).at("memory_node"), 1);
  EXPECT_EQ(RankOf(job, 1).at("node"), 0);
  EXPECT_EQ(job.at("rows_local").get<uint64_t>() +
                job.at("rows_remote").get<uint64_t>(),
            job.at("rows").get<uint64_t>());
  EXPECT_EQ(job.at("pages_seen"), 0);
}

TEST_F(TwoNodesTest, BothRanksOnOneNodeGetTheirMemoryThere) {
  const std::string spec =
      RangeSpec("64", "batch: {per_rank: 4}\nepochs: forever\n");
  Reader first(On(OptionsFor(spec, 0, 2), 1));
  Reader second(On(OptionsFor(spec, 1, 2), 1));
  Batch batch;
  EXPECT_EQ(first.next(&batch), Reader::Result::kBatch);
  const nlohmann::json job = Status().at("jobs").at(0);
  EXPECT_EQ(RankOf(job, 0).at("memory_node"), 1);
  EXPECT_EQ(RankOf(job, 1).at("memory_node"), 1);
}

TEST_F(TwoNodesTest, EveryModeDeliversAllFromBanksOfBothNodes) {
  for (const char* mode : {"dynamic", "broadcast", "independent"}) {
    const std::string spec = RangeSpec("100", "batch: {size: 4}\n");
    Options options = On(OptionsFor(spec, 0, 1), -1);
    options.delivery = mode;
    options.job = mode;
    Reader reader(options);
    const Course course = RunToTheEnd(reader, 2);
    EXPECT_EQ(course.error, "") << mode;
    Rows rows;
    Append(course.taken, &rows);
    EXPECT_EQ(Sorted(rows), Numbers(100)) << mode;
  }
}

TEST_F(TwoNodesTest, ARankThatMayRunOnOneNodeOnlyIsKnownByThat) {
  const int cpu = sched_getcpu();
  if (cpu < 0 || cpu > 3) GTEST_SKIP() << "runs on processor " << cpu;
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  Reader reader(On(OptionsFor(RangeSpec("8", "batch: {size: 4}\n"), 0, 1), -1));
  sched_setaffinity(0, sizeof(before), &before);
  const nlohmann::json rank = RankOf(Status().at("jobs").at(0), 0);
  EXPECT_EQ(rank.at("node"), cpu / 2);
  EXPECT_EQ(rank.at("node_from"), "its processors");
}

TEST_F(TwoNodesTest, TheEnvironmentNamesTheNodeWhereTheOptionDoesNot) {
  const std::string spec = RangeSpec("8", "batch: {size: 4}\n");
  setenv("PENSTOCK_NODE", "1", 1);
  Reader from_environment(On(OptionsFor(spec, 0, 2), -1));
  Reader from_option(On(OptionsFor(spec, 1, 2), 0));
  const nlohmann::json job = Status().at("jobs").at(0);
  EXPECT_EQ(RankOf(job, 0).at("node"), 1);
  EXPECT_EQ(RankOf(job, 1).at("node"), 0);
  setenv("PENSTOCK_NODE", "1x", 1);
  EXPECT_THAT(AttachError(On(OptionsFor(spec, 0, 1), -1)),
              HasSubstr("PENSTOCK_NODE='1x'"));
  unsetenv("PENSTOCK_NODE");
}

TEST_F(TwoNodesTest, ANodeThatIsNotThereIsNoReasonToRefuse) {
  Reader reader(On(OptionsFor(RangeSpec("8", "batch: {size: 4}\n"), 0, 1), 7));
  Batch batch;
  EXPECT_EQ(reader.next(&batch), Reader::Result::kBatch);
  const nlohmann::json rank = RankOf(Status().at("jobs").at(0), 0);
  EXPECT_TRUE(rank.at("node").is_null());
  EXPECT_THAT(rank.at("node_from").get<std::string>(), HasSubstr("node 7"));
}

TEST_F(TwoNodesTest, WhatARankSaysOfItsPlaceIsChecked) {
  for (const nlohmann::json& placement :
       std::vector<nlohmann::json>{{{"cpus", "0-99999999"}},
                                   {{"cpus", 3}},
                                   {{"cpus", std::string(5000, '1')}},
                                   {{"cpu", -1}},
                                   {{"node", 1 << 20}}}) {
    const auto cursor = CreateCursor();
    ASSERT_TRUE(cursor.ok());
    nlohmann::json request = {{"op", "attach"},
                              {"job", "x"},
                              {"rank", 0},
                              {"world_size", 1},
                              {"local_world_size", 1},
                              {"spec", RangeSpec("8", "batch: {size: 4}\n")},
                              {"file", "x"},
                              {"base", "/"}};
    request.update(placement);
    const StatusOr<Fd> socket = ConnectControl(two_nodes_->socket());
    ASSERT_TRUE(socket.ok());
    const auto answer = Request(socket->get(), request, {cursor->fd.get()});
    EXPECT_EQ(answer.status().code(), StatusCode::kInvalidArgument)
        << placement.dump() << answer.status().message();
  }
}

}  // namespace penstock::delivery_nodes_test
