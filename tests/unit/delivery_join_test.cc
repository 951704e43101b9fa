// A rank that joins in the middle of a job is told to begin where the oldest
// batch that it may get is, and no claim of it leads past the last position.
// Method: the broker and its ranks in one thread, over rings and pages of this
// process.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/delivery/delivery.h"
#include "common/ring.h"
#include "gtest/gtest.h"

namespace penstock::delivery_join_test {

constexpr uint64_t kSteps = 4;  // of an epoch, of one row each

class DeliveryJoinTest : public testing::Test {
 protected:
  void Begin(DeliveryMode mode, std::optional<uint64_t> epochs = 3,
             uint32_t replicas = 1) {
    Delivery::Shape shape;
    shape.options.mode = mode;
    shape.replicas = shape.local_replicas = replicas;
    shape.options.window = 1;
    shape.consumers_max = 2;
    shape.leases = 2;
    shape.slots_per_lane = 4;
    shape.rows_max = 1;
    shape.slot_stride = 64;
    PlanSpec spec;
    spec.batch.size = 1;
    spec.epochs = epochs;
    std::vector<Ring*> rings;
    for (Ring& ring : rings_) rings.push_back(&ring);
    delivery_ = std::make_unique<Delivery>(shape, *Plan::Make(spec, kSteps, 1),
                                           std::move(rings));
    delivery_->SetUsableSlots(shape.slots_per_lane);
  }

  // At the position that it claims, if it reconnects.
  Delivery::Joined Attach(uint32_t rank,
                          std::optional<uint64_t> position = std::nullopt) {
    Delivery::Joining joining;
    joining.rank = rank;
    joining.position = position;
    pages_.push_back(std::make_unique<CursorPage>());
    joining.cursor = {std::shared_ptr<void>(), pages_.back().get()};
    const auto joined = delivery_->Attach(joining);
    EXPECT_TRUE(joined.ok()) << joined.status().message();
    seats_[rank] = joined->seat;
    page_of_[rank] = pages_.back().get();
    Make();
    return *joined;
  }

  // As in Job, with a worker that is never late.
  void Make() {
    for (;;) {
      do {
        delivery_->Advance();
        while (delivery_->Open() != nullptr) {
        }
      } while (delivery_->MustAdvance());
      OpenBatch* const batch = delivery_->Claimable();
      if (batch == nullptr) break;
      batch->claimed = batch->finished = batch->rows.rows;
      batch->valid_rows = batch->shape_rows = batch->rows.rows;
      delivery_->Filled(batch);
    }
    EXPECT_EQ(delivery_->IndexError(), "");
  }

  std::optional<Cell> Take(uint32_t rank) {
    Cell cell;
    const bool taken = TryTake(rings_[seats_[rank]], *page_of_[rank], &cell) ==
                       TakeResult::kTaken;
    delivery_->Heard(seats_[rank]);
    Make();
    return taken ? std::optional(cell) : std::nullopt;
  }

  void ReleaseOf(uint32_t rank, const Cell& cell) {
    (void)Release(rings_[seats_[rank]], *page_of_[rank], cell.lease,
                  cell.generation);
    delivery_->Heard(seats_[rank]);
    Make();
  }

  std::array<Ring, 4> rings_{};
  std::vector<std::unique_ptr<CursorPage>> pages_;
  std::array<uint32_t, 2> seats_{};
  std::array<CursorPage*, 2> page_of_{};
  std::unique_ptr<Delivery> delivery_;
};

TEST_F(DeliveryJoinTest, DynamicBeginsAtTheOldestBatchThatItMayGet) {
  Begin(DeliveryMode::kDynamic);
  Attach(0);
  Attach(1);
  // The second rank holds step 0 or 1 and has another untaken while the first
  // goes on to the last steps of the epoch, and the next one has begun.
  const std::optional<Cell> held = Take(1);
  ASSERT_TRUE(held);
  for (int i = 0; i < 2; ++i) {
    const std::optional<Cell> cell = Take(0);
    ASSERT_TRUE(cell);
    ReleaseOf(0, *cell);
  }
  ASSERT_TRUE(delivery_->Died(seats_[1]).ok());
  Make();
  const Delivery::Joined joined = Attach(1);
  EXPECT_EQ(joined.position / kSteps, 0u);
  const std::optional<Cell> first = Take(1);
  ASSERT_TRUE(first);
  EXPECT_GE(first->position, joined.position);
}

// What its predecessor held is owed, wherever it comes in between.
TEST_F(DeliveryJoinTest, SplitIsToldWhatItGetsBesidesTheStepsInOrder) {
  Begin(DeliveryMode::kSplit);
  Attach(0);
  const std::optional<Cell> held = Take(0);
  const std::optional<Cell> released = Take(0);
  ASSERT_TRUE(held && released);
  ReleaseOf(0, *released);
  ASSERT_TRUE(delivery_->Died(seats_[0]).ok());
  Make();
  const Delivery::Joined joined = Attach(0);
  EXPECT_EQ(joined.position, 2u);
  ASSERT_EQ(joined.owed.size(), 1u);
  EXPECT_EQ(joined.owed[0].id, StepId(0, 0));
  EXPECT_EQ(joined.owed[0].rows, (RowRange{0, 1, true}));
  const std::optional<Cell> first = Take(0);
  const std::optional<Cell> second = Take(0);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->position, held->position);
  EXPECT_EQ(second->position, joined.position);
}

// The position that a page claims, where epochs are endless.
TEST_F(DeliveryJoinTest, AClaimThatIsImpossibleIsBounded) {
  Begin(DeliveryMode::kSplit, std::nullopt);
  const Delivery::Joined joined = Attach(0, uint64_t{1} << 60);
  EXPECT_LE(joined.position, Plan::kTotalRowsMax);
  EXPECT_LE(delivery_->FirstNotOpened(), Plan::kTotalRowsMax + kSteps);
  EXPECT_LE(delivery_->State().position, Plan::kTotalRowsMax + kSteps);
}

// Slots are free when the last one has released.
TEST_F(DeliveryJoinTest, ReplicasGetEachBatchAndOneSlotForBoth) {
  Begin(DeliveryMode::kSplit, 3, 2);
  Attach(0);
  EXPECT_FALSE(Take(0)) << "the other one would miss it";
  EXPECT_EQ(delivery_->Missing(), std::vector<uint32_t>{1});
  Attach(1);
  for (uint64_t step = 0; step < 3; ++step) {
    const std::optional<Cell> first = Take(0);
    const std::optional<Cell> second = Take(1);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(first->position, step);
    EXPECT_EQ(second->slot_offset, first->slot_offset);
    ReleaseOf(0, *first);
    EXPECT_EQ(delivery_->State().position, step);
    ReleaseOf(1, *second);
    EXPECT_EQ(delivery_->State().position, step + 1);
  }
}

TEST_F(DeliveryJoinTest, AReplicaThatIsReplacedGetsWhatItLackedAlone) {
  Begin(DeliveryMode::kSplit, 3, 2);
  Attach(0);
  Attach(1);
  const std::optional<Cell> held = Take(0);
  const std::optional<Cell> released = Take(1);
  ASSERT_TRUE(held && released);
  ReleaseOf(1, *released);
  ASSERT_TRUE(delivery_->Died(seats_[0]).ok());
  Make();
  const Delivery::Joined joined = Attach(0);
  EXPECT_TRUE(joined.replaces);
  ASSERT_EQ(joined.owed.size(), 1u);
  EXPECT_EQ(joined.owed[0].rows, (RowRange{0, 1, true}));
  const std::optional<Cell> again = Take(0);
  const std::optional<Cell> next = Take(1);
  ASSERT_TRUE(again && next);
  EXPECT_EQ(again->position, 0u);
  EXPECT_TRUE(again->flags & kRedelivered);
  EXPECT_EQ(next->position, 1u);
  EXPECT_FALSE(next->flags & kRedelivered);
}

// The page of a dead process is kept for as long as this holds: if the broker
// dies first, nothing else tells that the batch is owed.
TEST_F(DeliveryJoinTest, ReplicaIsOwedWhatItsPredecessorHeldUntilItReleasesIt) {
  for (const uint64_t position_of_other : {0, 1, 2}) {
    SCOPED_TRACE(position_of_other);
    Begin(DeliveryMode::kSplit, 3, 2);
    delivery_->BeginRecovery();
    Delivery::FormerConsumer former;
    former.rank = 0;
    former.position = 1;
    former.redo = {StepId(0, 0)};
    delivery_->RestoreRank(former);
    EXPECT_TRUE(delivery_->OwesPredecessor(0));
    Attach(0);
    // The lane waits for the other.
    EXPECT_FALSE(Take(0));
    EXPECT_TRUE(delivery_->OwesPredecessor(0));
    Attach(1, position_of_other);
    EXPECT_TRUE(delivery_->OwesPredecessor(0));
    const std::optional<Cell> first = Take(0);
    ASSERT_TRUE(first);
    EXPECT_EQ(first->position, 0u);
    EXPECT_NE(first->flags & kRedelivered, 0u);
    EXPECT_NE(first->flags & kExtra, 0u);
    EXPECT_TRUE(delivery_->OwesPredecessor(0));
    ReleaseOf(0, *first);
    if (position_of_other == 0) {
      const std::optional<Cell> of_other = Take(1);
      ASSERT_TRUE(of_other);
      ReleaseOf(1, *of_other);
    }
    EXPECT_FALSE(delivery_->OwesPredecessor(0));
  }
}

}  // namespace penstock::delivery_join_test
