// Invariants: edges E1 to E7 and invariant I4 of common/ring.h, and the frozen
// layout; a rank that writes impossible values is reported. Method: single
// calls; then both ends as threads over one mapping, for TSan; literals for the
// layout.
#include "common/ring.h"

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::ring_test {

class RingTest : public testing::Test {
 protected:
  Cell CellOf(uint64_t number) {
    Cell cell{};
    cell.epoch = number;
    cell.lease = static_cast<uint32_t>(number % kLeasesMax);
    cell.generation = number + 1;
    return cell;
  }
  void PublishNumber(uint64_t number) {
    ASSERT_TRUE(HasRoom(number));
    (void)Publish(*ring_, *cursor_, number, CellOf(number));
  }
  bool HasRoom(uint64_t published) {
    uint64_t taken = 0;
    return ReadTaken(*cursor_, published, &taken) &&
           published - taken < kRingCells;
  }
  // The broker has this many slots, with a lease each, and the rank that many
  // batches before they are reused.
  void GoRoundBetweenTwoThreads(uint32_t slot_count);
  // -1: empty, -2: closed, else the number taken.
  int64_t Take() {
    Cell cell;
    switch (TryTake(*ring_, *cursor_, &cell)) {
      case TakeResult::kEmpty:
        return -1;
      case TakeResult::kClosed:
        return -2;
      case TakeResult::kCorrupt:
        return -3;
      case TakeResult::kTaken:
        break;
    }
    return static_cast<int64_t>(cell.epoch);
  }

  std::unique_ptr<Ring> ring_ = std::make_unique<Ring>();
  std::unique_ptr<CursorPage> cursor_ = std::make_unique<CursorPage>();
};

TEST_F(RingTest, EmptyRingGivesNothing) { EXPECT_EQ(Take(), -1); }

TEST_F(RingTest, TakesInTheOrderOfPublishing) {
  for (uint64_t i = 0; i < 3 * kRingCells; ++i) {
    PublishNumber(i);
    EXPECT_EQ(Take(), static_cast<int64_t>(i));
  }
}

// A rank is another process, and can write any count into its page.
TEST_F(RingTest, RankCountAheadOfTheBrokerIsReportedNotTrusted) {
  uint64_t taken = 0;
  cursor_->taken.store(1);
  EXPECT_FALSE(ReadTaken(*cursor_, 0, &taken));
  cursor_->taken.store(~uint64_t{0});
  EXPECT_TRUE(ReadTaken(*cursor_, 5, &taken));  // 6 untaken: possible
  cursor_->taken.store(~uint64_t{0} / 2);
  EXPECT_FALSE(ReadTaken(*cursor_, 5, &taken));
}

TEST_F(RingTest, LeaseIsHeldUntilItsOwnGenerationComesBack) {
  EXPECT_EQ(LeaseStateOf(*cursor_, 7, 0, 0), LeaseState::kFree);
  EXPECT_EQ(LeaseStateOf(*cursor_, 7, 1, 0), LeaseState::kHeld);
  (void)Release(*ring_, *cursor_, 7, 1);
  EXPECT_EQ(LeaseStateOf(*cursor_, 7, 1, 0), LeaseState::kFree);
  EXPECT_EQ(LeaseStateOf(*cursor_, 7, 2, 1), LeaseState::kHeld);
}

TEST_F(RingTest, ReleaseOfALeaseNeverGivenIsReported) {
  (void)Release(*ring_, *cursor_, 7, 5);
  EXPECT_EQ(LeaseStateOf(*cursor_, 7, 1, 0), LeaseState::kPeerCorrupt);
}

TEST_F(RingTest, FinishedRingGivesWhatWasPublishedFirst) {
  PublishNumber(0);
  PublishNumber(1);
  CloseRing(*ring_, Closed::kFinished);
  EXPECT_EQ(Take(), 0);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(Take(), -2);
}

TEST_F(RingTest, PeekSeesWhatIsPublishedAndTakesNothing) {
  PublishNumber(0);
  PublishNumber(1);
  Cell cell;
  EXPECT_TRUE(Peek(*ring_, *cursor_, 1, &cell));
  EXPECT_EQ(cell.epoch, 1u);
  EXPECT_FALSE(Peek(*ring_, *cursor_, 2, &cell));
  EXPECT_EQ(Take(), 0);
  EXPECT_FALSE(Peek(*ring_, *cursor_, 1, &cell));
  // The cell of the batch that was taken is not the one a round later.
  EXPECT_FALSE(Peek(*ring_, *cursor_, kRingCells - 1, &cell));
  EXPECT_EQ(Take(), 1);
}

TEST_F(RingTest, RecalledRingGivesNothingMore) {
  PublishNumber(0);
  CloseRing(*ring_, Closed::kRecalled);
  EXPECT_EQ(Take(), -2);
}

// Invariant I4: a dead rank's page alone says which batches it had.
TEST_F(RingTest, CursorPageTellsWhatIsHeldAndWhereTheRankGoesOn) {
  for (uint64_t i = 0; i < 3; ++i) {
    Cell cell = CellOf(i);
    cell.position = 10 * i;
    cell.global_rows = 10;
    if (i == 1) cell.flags = kExtra;
    (void)Publish(*ring_, *cursor_, i, cell);
  }
  EXPECT_EQ(Take(), 0);
  EXPECT_EQ(cursor_->position.load(), 10u);
  EXPECT_EQ(Take(), 1);
  EXPECT_EQ(cursor_->position.load(), 10u);  // an extra batch does not move it
  EXPECT_EQ(Take(), 2);
  EXPECT_EQ(cursor_->position.load(), 30u);
  (void)Release(*ring_, *cursor_, 1, 2);
  std::vector<uint64_t> held;
  for (uint32_t i = 0; i < kLeasesMax; ++i) {
    const LeaseRecord& lease = cursor_->leases[i];
    if (lease.generation.load() != cursor_->released[i].load()) {
      held.push_back(PositionOfStep(lease.step.load()));
    }
  }
  EXPECT_EQ(held, (std::vector<uint64_t>{0, 20}));
}

TEST_F(RingTest, CellOfAnImpossibleLeaseIsNotTaken) {
  Cell cell{};
  cell.lease = kLeasesMax;
  (void)Publish(*ring_, *cursor_, 0, cell);
  EXPECT_EQ(TryTake(*ring_, *cursor_, &cell), TakeResult::kCorrupt);
  EXPECT_EQ(cursor_->taken.load(), 0u);
}

TEST_F(RingTest, RankThatSleepsIsToldToBeWoken) {
  EXPECT_TRUE(ArmWait(*ring_, *cursor_));
  EXPECT_TRUE(Publish(*ring_, *cursor_, 0, CellOf(0)));
  DisarmWait(*cursor_);
  EXPECT_FALSE(Publish(*ring_, *cursor_, 1, CellOf(1)));
}

TEST_F(RingTest, RankDoesNotSleepBesideAFullRing) {
  PublishNumber(0);
  EXPECT_FALSE(ArmWait(*ring_, *cursor_));
  EXPECT_EQ(Take(), 0);
  EXPECT_TRUE(ArmWait(*ring_, *cursor_));
  CloseRing(*ring_, Closed::kFinished);
  EXPECT_FALSE(ArmWait(*ring_, *cursor_));
}

TEST_F(RingTest, BrokerThatWaitsIsWokenByARelease) {
  EXPECT_FALSE(Release(*ring_, *cursor_, 0, 1));
  SetBrokerWaiting(*ring_, BrokerWaits::kForReleases);
  EXPECT_TRUE(Release(*ring_, *cursor_, 0, 2));
}

// Edges E1, E2, E3: both ends are threads over one mapping, so TSan sees both;
// slots and cells are plain memory, so a weakened edge is a reported race. With
// as many slots as leases the ring is full, and only a returned lease allows a
// cell to be rewritten.
TEST_F(RingTest, SlotsGoRoundBetweenTwoThreadsUntorn) {
  GoRoundBetweenTwoThreads(4);
}
TEST_F(RingTest, CellsAreWrittenAgainOnlyWhenALeaseCameBack) {
  GoRoundBetweenTwoThreads(kLeasesMax);
}

void RingTest::GoRoundBetweenTwoThreads(uint32_t slot_count) {
  constexpr uint64_t kBatches = 50'000;
  constexpr size_t kWords = 16;
  std::vector<std::array<uint64_t, kWords>> slots(slot_count);
  std::thread broker([&] {
    std::vector<uint64_t> generation(slot_count);
    std::vector<uint64_t> previous(slot_count);
    for (uint64_t i = 0; i < kBatches; ++i) {
      uint32_t slot = 0;
      while (LeaseStateOf(*cursor_, slot, generation[slot], previous[slot]) !=
             LeaseState::kFree) {
        slot = (slot + 1) % slot_count;
        if (slot == 0) std::this_thread::yield();
      }
      slots[slot].fill(i);
      Cell cell{};
      cell.slot_offset = slot;
      cell.lease = slot;
      cell.generation = i + 1;
      previous[slot] = std::exchange(generation[slot], cell.generation);
      cell.epoch = i;
      (void)Publish(*ring_, *cursor_, i, cell);
    }
    CloseRing(*ring_, Closed::kFinished);
  });
  uint64_t want = 0;
  for (;;) {
    Cell cell;
    // E1: what is read ahead is as it will be when it is taken.
    if (want % 2 == 0 && Peek(*ring_, *cursor_, 1, &cell)) {
      EXPECT_EQ(cell.epoch, want + 1);
      EXPECT_EQ(cell.generation, want + 2);
      for (const uint64_t word : slots[cell.slot_offset]) {
        EXPECT_EQ(word, want + 1);
      }
    }
    const TakeResult result = TryTake(*ring_, *cursor_, &cell);
    if (result == TakeResult::kClosed) break;
    if (result == TakeResult::kEmpty) {
      std::this_thread::yield();
      continue;
    }
    EXPECT_EQ(cell.epoch, want);
    for (const uint64_t word : slots[cell.slot_offset]) EXPECT_EQ(word, want);
    ++want;
    (void)Release(*ring_, *cursor_, cell.lease, cell.generation);
  }
  EXPECT_EQ(want, kBatches);
  broker.join();
}

// Edge E4: the sleeper really sleeps, on a futex of the test; a lost wake-up is
// a hang, which the test's time limit reports.
TEST_F(RingTest, NoWakeUpIsLost) {
  constexpr uint64_t kBatches = 300'000;
  std::atomic<uint32_t> bell{0};
  std::thread broker([&] {
    for (uint64_t i = 0; i < kBatches; ++i) {
      while (!HasRoom(i)) std::this_thread::yield();
      if (Publish(*ring_, *cursor_, i, CellOf(i))) {
        bell.fetch_add(1);
        bell.notify_one();
      }
    }
  });
  for (uint64_t taken = 0; taken < kBatches;) {
    Cell cell;
    if (TryTake(*ring_, *cursor_, &cell) == TakeResult::kTaken) {
      ++taken;
      continue;
    }
    const uint32_t heard = bell.load();
    if (ArmWait(*ring_, *cursor_)) bell.wait(heard);
    DisarmWait(*cursor_);
  }
  broker.join();
}

// Literals on purpose: if this fails, bump kLayoutVersion, then edit here.
TEST(LayoutTest, VersionTenIsFrozen) {
  EXPECT_EQ(kLayoutVersion, 10u);
  EXPECT_EQ(kPartShift, 6u);
  EXPECT_EQ(kPartMask, 0x3ffu);
  EXPECT_EQ(kPhaseShift, 16u);
  EXPECT_EQ(sizeof(RingCell), 64u);
  EXPECT_EQ(offsetof(RingCell, batch), 8u);
  EXPECT_EQ(offsetof(BatchCell, left_out), 10u);
  EXPECT_EQ(offsetof(BatchCell, position), 48u);
  EXPECT_EQ(sizeof(Ring), 9344u);
  EXPECT_EQ(offsetof(Ring, skipped), 12u);
  EXPECT_EQ(offsetof(Ring, cells), 1152u);
  EXPECT_EQ(sizeof(LeaseRecord), 16u);
  EXPECT_EQ(sizeof(CursorPage), 3584u);
  EXPECT_EQ(offsetof(CursorPage, waiting), 256u);
  EXPECT_EQ(offsetof(CursorPage, released), 512u);
  EXPECT_EQ(offsetof(CursorPage, leases), 1536u);
  EXPECT_EQ(offsetof(SegmentHeader, bank_slots), 108u);
  EXPECT_EQ(offsetof(SegmentHeader, feature_offset), 112u);
  EXPECT_EQ(offsetof(SegmentHeader, ready), 624u);
  EXPECT_EQ(kRingCells, 128u);
  EXPECT_EQ(kLeasesMax, 128u);
}

}  // namespace penstock::ring_test
