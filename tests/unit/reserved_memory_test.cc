// Promise: what a dataset keeps in memory is counted as it grows, within the
// limits to the byte, and to the byte once it is open. Method: many small
// steps, with and without limits.
#include "broker/registry/reserved_memory.h"

#include <gmock/gmock.h>

namespace penstock {
namespace {

using testing::HasSubstr;

constexpr uint32_t kUid = 1000;
constexpr uint64_t kStep = 100;

TEST(DatasetMemoryTest, SmallStepsAreCountedAheadAndThenExactly) {
  const auto all = std::make_shared<ReservedMemory>();
  {
    DatasetMemory memory(all, kUid);
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

TEST(DatasetMemoryTest, AllThatALimitLeavesIsThere) {
  for (const bool of_uid : {false, true}) {
    const auto all = std::make_shared<ReservedMemory>();
    const uint64_t limit = 10'000 * kStep;
    all->SetLimits(
        of_uid ? ReservedMemory::Limits{.bytes = {}, .bytes_of_uid = limit}
               : ReservedMemory::Limits{.bytes = limit, .bytes_of_uid = {}});
    DatasetMemory memory(all, kUid);
    for (uint64_t i = 0; i < 10'000; ++i) {
      ASSERT_TRUE(memory.Grow(kStep).ok()) << i;
    }
    EXPECT_EQ(all->bytes(), limit);
    const Status status = memory.Grow(1);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
    EXPECT_THAT(status.message(),
                HasSubstr(of_uid ? "memory_limit_per_user" : "memory_limit"));
    // Another user's dataset has its own limit, but not its own memory.
    DatasetMemory other(all, kUid + 1);
    EXPECT_EQ(other.Grow(kStep).ok(), of_uid);
  }
}

}  // namespace
}  // namespace penstock
