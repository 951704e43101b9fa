// Promise: what a dataset keeps in memory is counted as it grows, within the
// limits to the byte, and to the byte once it is open; what is reserved is
// returned once. Method: many small steps, with and without limits; moves.
#include "broker/memory/reserved_memory.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

namespace penstock::reserved_memory_test {

using testing::HasSubstr;

constexpr uint32_t kUid = 1000;
constexpr uint64_t kStep = 100;

TEST(MemoryReservationTest, SmallStepsAreCountedAheadAndThenExactly) {
  const auto all = std::make_shared<ReservedMemory>();
  {
    MemoryReservation memory(all, kUid);
    uint64_t looks = 0;  // steps that counted more
    for (uint64_t i = 1; i <= 100'000; ++i) {
      const uint64_t before = all->bytes();
      ASSERT_TRUE(memory.Grow(kStep).ok());
      looks += all->bytes() != before;
      EXPECT_GE(all->bytes(), i * kStep);
      EXPECT_LE(all->bytes(), 2 * i * kStep);
    }
    EXPECT_LT(looks, 30u);
    ASSERT_TRUE(memory.Settle(12'345).ok());
    EXPECT_EQ(all->bytes(), 12'345u);
    ASSERT_TRUE(memory.Settle(54'321).ok());
    EXPECT_EQ(all->bytes(), 54'321u);
  }
  EXPECT_EQ(all->bytes(), 0u);
}

TEST(MemoryReservationTest, AllThatALimitLeavesIsThere) {
  for (const bool of_uid : {false, true}) {
    const auto all = std::make_shared<ReservedMemory>();
    const uint64_t limit = 10'000 * kStep;
    all->SetLimits(
        of_uid ? ReservedMemory::Limits{.bytes = {}, .bytes_of_uid = limit}
               : ReservedMemory::Limits{.bytes = limit, .bytes_of_uid = {}});
    MemoryReservation memory(all, kUid);
    for (uint64_t i = 0; i < 10'000; ++i) {
      ASSERT_TRUE(memory.Grow(kStep).ok()) << i;
    }
    EXPECT_EQ(all->bytes(), limit);
    const Status status = memory.Grow(1);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(),
                HasSubstr(of_uid ? "memory_limit_per_user" : "memory_limit"));
    // Another user's dataset has its own limit, but not its own memory.
    MemoryReservation other(all, kUid + 1);
    EXPECT_EQ(other.Grow(kStep).ok(), of_uid);
  }
}

TEST(MemoryReservationTest, OneThatIsMovedIsReturnedOnce) {
  const auto all = std::make_shared<ReservedMemory>();
  MemoryReservation kept;
  {
    ReservedMemory::Taken taken = all->Take(kUid, 3 * kStep, 2 * kStep);
    kept = std::move(taken.reservation);
  }
  EXPECT_EQ(all->bytes(), 3 * kStep);
  kept = all->Take(kUid, kStep).reservation;
  EXPECT_EQ(all->bytes(), kStep);
  kept = {};
  EXPECT_EQ(all->bytes(), 0u);
  EXPECT_EQ(all->Take(kUid, 1).before_unpopulated, 0u);
}

TEST(MemoryReservationTest, BytesWithoutPagesAreToldFromTheOthers) {
  const auto all = std::make_shared<ReservedMemory>();
  const auto unpopulated = [&] {
    return all->Take(kUid, 0).before_unpopulated;
  };
  {
    ReservedMemory::Taken job = all->Take(kUid, 5 * kStep, 4 * kStep);
    MemoryReservation cache(all, kUid);
    ASSERT_TRUE(cache.GrowUnpopulated(kStep).ok());
    EXPECT_EQ(unpopulated(), 5 * kStep);
    job.reservation.Populated(3 * kStep);
    cache.Populated(2 * kStep);  // no more than it has
    EXPECT_EQ(unpopulated(), kStep);
  }
  EXPECT_EQ(unpopulated(), 0u);
}

TEST(MemoryReservationTest, WhatWillReturnIsAwaited) {
  const auto all = std::make_shared<ReservedMemory>();
  const auto latest =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const std::atomic<bool> cancel{false};
  uint64_t returns = all->returns();
  MemoryReservation kept = all->Take(kUid, kStep).reservation;
  EXPECT_FALSE(all->AwaitReturn(&returns, latest, cancel)) << "it is kept";
  kept.WillReturn();
  std::thread waits(
      [&] { EXPECT_TRUE(all->AwaitReturn(&returns, latest, cancel)); });
  kept = {};
  waits.join();
  EXPECT_FALSE(all->AwaitReturn(&returns, latest, cancel)) << "none is left";
}

}  // namespace penstock::reserved_memory_test
