// Promise: a batch shows only its own rows, whichever are left out, and nothing
// of former batches of its slot. Method: a slot of known bytes, and every set
// of rows that are left out.
#include "broker/delivery/assemble.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/segment.h"
#include "gtest/gtest.h"

namespace penstock::assemble_test {

TEST(AssembleTest, ABatchShowsNothingOfTheSlotsFormerRows) {
  constexpr uint64_t kRows = 5;
  constexpr uint64_t kShape = 7;
  const ElementSpec spec = {{"image", DType::kUint8, {5, 3}},
                            {"label", DType::kInt64, {}}};
  const auto plan = PlanSegment(spec, kShape, 1, 1);
  ASSERT_TRUE(plan.ok());
  const auto segment = Segment::Create(*plan, 1, 1);
  ASSERT_TRUE(segment.ok());
  std::byte* const slot = (*segment)->base() + (*segment)->slot_offset(0);
  const SlotRows rows = (*segment)->rows(0, spec);
  // Expects that all bytes of the row, and its id, are value.
  const auto is = [&](uint64_t row, int64_t id, uint8_t value) {
    EXPECT_EQ(rows.Id(row), id) << row;
    for (size_t i = 0; i < spec.size(); ++i) {
      const std::byte* const bytes = rows.Place(row, i);
      for (uint64_t at = 0; at < spec[i].RowBytes(); ++at) {
        EXPECT_EQ(bytes[at], std::byte{value}) << row << ", " << at;
      }
    }
  };
  for (uint64_t bits = 0; bits < 1u << kRows; ++bits) {
    for (const bool keep_shape : {false, true}) {
      std::memset(slot, 0xee, plan->slot_stride);
      OpenBatch batch;
      batch.rows.rows = kRows;
      batch.rows.shape_rows = keep_shape ? kShape : kRows;
      std::vector<uint64_t> there;
      // In any order, as workers make them.
      for (uint64_t row = kRows; row-- > 0;) {
        if ((bits >> row & 1) != 0) {
          batch.left_out.push_back(row);
          continue;
        }
        there.insert(there.begin(), row);
        rows.Id(row) = static_cast<int64_t>(row);
        for (size_t i = 0; i < spec.size(); ++i) {
          std::memset(rows.Place(row, i), static_cast<int>(row),
                      spec[i].RowBytes());
        }
      }
      Assemble(rows, keep_shape, &batch);
      ASSERT_EQ(batch.valid_rows, there.size());
      ASSERT_EQ(batch.shape_rows, keep_shape ? kShape : there.size());
      for (uint64_t row = 0; row < there.size(); ++row) {
        is(row, static_cast<int64_t>(there[row]),
           static_cast<uint8_t>(there[row]));
      }
      for (uint64_t row = there.size(); row < batch.shape_rows; ++row) {
        is(row, -1, 0);
      }
    }
  }
}

}  // namespace penstock::assemble_test
