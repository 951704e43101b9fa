// Promise: `penstock bench --verify` calls a run verified only if each sample
// came as often as planned, at its position, with its bytes. Method: made-up
// lists of rows with one kind of fault each.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "client/command/row_check.h"

namespace penstock::command_row_check_test {

RowRecord Row(uint64_t epoch, uint64_t step, uint32_t rank, uint32_t row,
              int64_t id) {
  return {epoch, step, rank, row, id, static_cast<uint32_t>(id * 7 + 1), 0};
}

// Two epochs of two steps of two ranks with two rows each.
std::vector<RowRecord> Plan() {
  std::vector<RowRecord> rows;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    for (int64_t i = 0; i < 8; ++i) {
      rows.push_back(Row(epoch, i / 4, i / 2 % 2, i % 2, (i + epoch) % 8));
    }
  }
  return rows;
}

RowCheck Check(std::vector<RowRecord> delivered) {
  std::vector<RowRecord> expected = Plan();
  return CheckRows(expected, delivered);
}

void ExpectCounts(const RowCheck& check, uint64_t verified, uint64_t corrupt,
                  uint64_t misplaced, uint64_t missing, uint64_t duplicated) {
  EXPECT_EQ(check.verified, verified);
  EXPECT_EQ(check.corrupt, corrupt);
  EXPECT_EQ(check.misplaced, misplaced);
  EXPECT_EQ(check.missing, missing);
  EXPECT_EQ(check.duplicated, duplicated);
  EXPECT_EQ(check.ok(), corrupt + misplaced + missing + duplicated == 0);
}

TEST(RowCheckTest, EverySampleOnceInItsPlaceIsVerifiedInAnyOrderOfArrival) {
  std::vector<RowRecord> delivered = Plan();
  std::reverse(delivered.begin(), delivered.end());
  ExpectCounts(Check(delivered), 16, 0, 0, 0, 0);
}

TEST(RowCheckTest, NothingDeliveredIsAllMissing) {
  ExpectCounts(Check({}), 0, 0, 0, 16, 0);
}

TEST(RowCheckTest, OtherBytesInTheRightPlaceAreCorrupt) {
  std::vector<RowRecord> delivered = Plan();
  delivered[3].crc32 ^= 1;
  ExpectCounts(Check(delivered), 15, 1, 0, 0, 0);
}

TEST(RowCheckTest, TwoSamplesThatChangedPlacesAreMisplaced) {
  std::vector<RowRecord> delivered = Plan();
  std::swap(delivered[1].sample_id, delivered[6].sample_id);
  std::swap(delivered[1].crc32, delivered[6].crc32);
  ExpectCounts(Check(delivered), 14, 0, 2, 0, 0);
}

TEST(RowCheckTest, ASampleInPlaceOfAnotherIsDuplicatedAndTheOtherMissing) {
  std::vector<RowRecord> delivered = Plan();
  delivered[2].sample_id = delivered[0].sample_id;
  ExpectCounts(Check(delivered), 15, 0, 0, 1, 1);
}

TEST(RowCheckTest, TheSameBatchTwiceIsDuplicated) {
  std::vector<RowRecord> delivered = Plan();
  delivered.push_back(delivered[0]);
  delivered.push_back(delivered[1]);
  ExpectCounts(Check(delivered), 16, 0, 0, 0, 2);
}

TEST(RowCheckTest, OfTwoCopiesTheOneWithTheRightBytesCounts) {
  std::vector<RowRecord> delivered = Plan();
  delivered.push_back(delivered[0]);
  delivered.back().crc32 = 0;
  ExpectCounts(Check(delivered), 16, 0, 0, 0, 1);
}

TEST(RowCheckTest, ASampleOfAnotherEpochDoesNotMakeUpForAMissingOne) {
  std::vector<RowRecord> delivered = Plan();
  delivered[0].epoch = 1;
  const RowCheck check = Check(delivered);
  EXPECT_EQ(check.missing, 1u);
  EXPECT_EQ(check.duplicated, 1u);
}

TEST(RowCheckTest, AnUnknownSampleIsDuplicated) {
  std::vector<RowRecord> delivered = Plan();
  delivered.push_back(Row(0, 1, 1, 2, 99));
  ExpectCounts(Check(delivered), 16, 0, 0, 0, 1);
}

TEST(RowCheckTest, PaddingIsNotCounted) {
  std::vector<RowRecord> expected = Plan();
  expected.push_back(Row(0, 2, 0, 0, -1));
  std::vector<RowRecord> delivered = Plan();
  ExpectCounts(CheckRows(expected, delivered), 16, 0, 0, 0, 0);
}

TEST(RowCheckTest, SamplesThatAnEpochHasAgainAreCounted) {
  std::vector<RowRecord> expected = Plan();
  std::vector<RowRecord> delivered = Plan();
  EXPECT_EQ(CheckRows(expected, delivered).repeated, 0u);
  for (const uint64_t step : {7u, 8u}) {
    expected.push_back(Row(1, step, 0, 0, 3));
    expected.push_back(Row(1, step, 0, 1, -1));  // padding is no sample
  }
  delivered = expected;
  const RowCheck check = CheckRows(expected, delivered);
  EXPECT_TRUE(check.ok());
  EXPECT_EQ(check.verified, 18u);
  EXPECT_EQ(check.repeated, 2u);
}

// The order of a global batch 0..n, divided over this many ranks.
std::vector<RowRecord> Divided(uint32_t ranks, int64_t first) {
  std::vector<RowRecord> rows;
  for (uint64_t step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < 8; ++i) {
      const uint32_t share = 8 / ranks;
      rows.push_back(Row(0, step, i / share, i % share, first + step * 8 + i));
    }
  }
  return rows;
}

TEST(OrderDigestTest, IsTheSameForAnyNumberOfRanksAndNotForAnotherOrder) {
  std::vector<RowRecord> one = Divided(1, 0), two = Divided(2, 0),
                         four = Divided(4, 0), other = Divided(4, 1);
  std::swap(four.front(), four.back());  // arrival does not matter
  const auto digest = OrderDigests(one);
  ASSERT_EQ(digest.size(), 1u);
  EXPECT_EQ(digest[0].size(), 16u);
  EXPECT_EQ(OrderDigests(two), digest);
  EXPECT_EQ(OrderDigests(four), digest);
  EXPECT_NE(OrderDigests(other), digest);
}

TEST(OrderDigestTest, HasOneNumberPerEpoch) {
  std::vector<RowRecord> rows = Plan();
  const auto digests = OrderDigests(rows);
  ASSERT_EQ(digests.size(), 2u);
  EXPECT_NE(digests[0], digests[1]);
}

}  // namespace penstock::command_row_check_test
