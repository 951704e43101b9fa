// Bound: the cost of a batch does not grow with the number of ranks (D5 and D6
// of broker/delivery/delivery.h). Method: 8 and 1,024 ranks take and release in
// turn over rings and pages of this process; the test counts the feeds, lanes
// and rank batches that are checked for each, not time.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include "broker/delivery/delivery.h"
#include "common/ring.h"
#include "gtest/gtest.h"

namespace penstock::delivery_scale_test {

constexpr uint32_t kHold = 1;
constexpr uint32_t kPrefetch = 2;

// A broker and its ranks in one thread.
class Ranks {
 public:
  Ranks(DeliveryMode mode, uint32_t ranks, Lag lag = Lag::kBlock)
      : ranks_(ranks), rings_(2 * ranks), pages_(ranks) {
    const bool split = mode == DeliveryMode::kSplit;
    Delivery::Shape shape;
    shape.options.mode = mode;
    shape.options.window = kPrefetch;
    shape.options.lag = lag;
    shape.world_size = split ? ranks : 1;
    shape.consumers_max = shape.start_with = ranks;
    shape.lanes = split ? ranks : 1;
    shape.leases = kPrefetch + kHold;
    shape.slots_per_lane = split ? shape.leases : kPrefetch + ranks * kHold;
    shape.rows_max = 1;
    shape.slot_stride = 64;
    PlanSpec spec;
    spec.batch.size = shape.world_size;
    spec.epochs = 1;
    std::vector<Ring*> rings;
    for (Ring& ring : rings_) rings.push_back(&ring);
    delivery_ = std::make_unique<Delivery>(
        shape, *Plan::Make(spec, 1'000'000, shape.world_size),
        std::move(rings));
    delivery_->SetUsableSlots(shape.slots_per_lane);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Delivery::Joining joining;
      joining.rank = rank;
      joining.cursor = {std::shared_ptr<void>(), &pages_[rank]};
      const auto joined = delivery_->Attach(joining);
      EXPECT_TRUE(joined.ok()) << joined.status().message();
      seats_.push_back(joined->seat);
    }
    Make();
  }

  // Every rank takes a batch, if there is one, and releases it. Returns the
  // number of batches.
  uint64_t Turn() {
    uint64_t taken = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      Ring& ring = rings_[seats_[rank]];
      CursorPage& page = pages_[rank];
      Cell cell;
      if (TryTake(ring, page, &cell) != TakeResult::kTaken) continue;
      ++taken;
      bool wake = BrokerWaitsForTakes(ring);
      wake |= Release(ring, page, cell.lease, cell.generation);
      EXPECT_TRUE(wake) << "a release comes with a wake";
      delivery_->Heard(seats_[rank]);
      Make();
    }
    EXPECT_EQ(delivery_->IndexError(), "");
    return taken;
  }
  uint64_t checks() const { return delivery_->checks(); }
  Delivery& delivery() { return *delivery_; }
  Ring& ring(uint32_t rank) { return rings_[seats_[rank]]; }
  CursorPage& page(uint32_t rank) { return pages_[rank]; }
  uint32_t seat(uint32_t rank) const { return seats_[rank]; }

 private:
  // As in Job, with a worker that is never late.
  void Make() {
    for (;;) {
      do {
        delivery_->Advance();
        while (delivery_->Open() != nullptr) {
        }
      } while (delivery_->MustAdvance());
      OpenBatch* const share = delivery_->Claimable();
      if (share == nullptr) break;
      share->claimed = share->finished = share->rows.rows;
      share->valid_rows = share->shape_rows = share->rows.rows;
      delivery_->Filled(share);
    }
  }

  const uint32_t ranks_;
  std::vector<Ring> rings_;
  std::vector<CursorPage> pages_;
  std::vector<uint32_t> seats_;
  std::unique_ptr<Delivery> delivery_;
};

double ChecksPerBatch(DeliveryMode mode, uint32_t ranks,
                      Lag lag = Lag::kBlock) {
  Ranks job(mode, ranks, lag);
  job.Turn();  // takes the batches made at the start
  const uint64_t before = job.checks();
  uint64_t batches = 0;
  for (int turn = 0; turn < 3; ++turn) batches += job.Turn();
  EXPECT_EQ(batches, 3 * ranks);
  return static_cast<double>(job.checks() - before) /
         static_cast<double>(batches);
}

void ExpectTheSame(DeliveryMode mode, Lag lag = Lag::kBlock) {
  const double few = ChecksPerBatch(mode, 8, lag);
  const double many = ChecksPerBatch(mode, 1024, lag);
  EXPECT_GT(few, 0);
  EXPECT_LE(many, 1.25 * few);
  std::printf("checks per batch: %.2f with 8 ranks, %.2f with 1,024\n", few,
              many);
}

TEST(DeliveryScaleTest, ABatchOfASplitCostsTheSameWith1024Ranks) {
  ExpectTheSame(DeliveryMode::kSplit);
}

// As the tuner of prefetch does (Job::TunePrefetch).
TEST(DeliveryScaleTest, UsableSlotsBecomeMoreAndFewerWhileRanksTake) {
  constexpr uint32_t kRanks = 4;
  Ranks job(DeliveryMode::kSplit, kRanks);
  for (const uint32_t usable : {1u, 3u, 2u, 1u, 2u, 3u, 1u, 3u}) {
    job.delivery().SetUsableSlots(usable);
    // The first turn takes what was made under the number before.
    for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(job.Turn(), kRanks);
    const Delivery::SlotCounts slots = job.delivery().CountSlots();
    EXPECT_EQ(slots.ready + slots.out, usable * kRanks);
    EXPECT_EQ(slots.filling, 0U);
  }
}

TEST(DeliveryScaleTest, ABatchOfADynamicJobCostsTheSameWith1024Ranks) {
  ExpectTheSame(DeliveryMode::kDynamic);
}

TEST(DeliveryScaleTest, ABatchOfABroadcastCostsTheSamePerRankWith1024Ranks) {
  ExpectTheSame(DeliveryMode::kBroadcast);
}

TEST(DeliveryScaleTest, ABroadcastThatSkipsCostsTheSamePerRankWith1024Ranks) {
  ExpectTheSame(DeliveryMode::kBroadcast, Lag::kSkip);
}

TEST(DeliveryScaleTest, OfOneThatCannotWakeUsReleasesAreSeenAllTheSame) {
  Ranks job(DeliveryMode::kSplit, 2);
  Cell cell{};
  ASSERT_EQ(TryTake(job.ring(0), job.page(0), &cell), TakeResult::kTaken);
  ASSERT_TRUE(job.delivery().Evict(0, "test").ok());
  job.delivery().Mute(job.seat(0));
  job.delivery().Advance();
  EXPECT_EQ(job.delivery().CountSlots().quarantined, 1u);
  (void)Release(job.ring(0), job.page(0), cell.lease, cell.generation);
  job.delivery().Heard(job.seat(1));
  job.delivery().Advance();
  EXPECT_EQ(job.delivery().CountSlots().quarantined, 0u);
}

TEST(DeliveryScaleTest, AWakeIsAskedForBeforeTheRankHasItsRing) {
  Ranks job(DeliveryMode::kDynamic, 2);
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_NE(job.ring(rank).broker_waiting.load(),
              static_cast<uint32_t>(BrokerWaits::kNo));
  }
}

}  // namespace penstock::delivery_scale_test
