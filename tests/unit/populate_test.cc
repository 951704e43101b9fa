// Promise: memory is populated in order, and memory that cannot be had is an
// error, not a death. Method: a segment whose pages mincore(2) finds; pages
// that may not be touched.
#include "broker/memory/populate.h"

#include <sys/mman.h>

#include <cstddef>
#include <vector>

#include "common/segment.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::populate_test {

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

}  // namespace penstock::populate_test
