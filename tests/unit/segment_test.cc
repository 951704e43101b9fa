// Invariants: a rank reads what the broker wrote, cannot write, shrink or punch
// the segment, and refuses segments, cells and pages that contradict
// themselves. Method: two mappings of one segment; each header field and cell
// altered.
#include "common/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::segment_test {

using testing::HasSubstr;

const ElementSpec kElement = {{"image", DType::kUint8, {5, 7}},
                              {"label", DType::kInt64, {}}};

std::unique_ptr<Segment> MakeSegment(uint64_t rows = 10, uint32_t slots = 3,
                                     uint32_t seats = 2) {
  const auto plan = PlanSegment(kElement, rows, slots, seats);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  auto segment = Segment::Create(*plan, 77, 1);
  EXPECT_TRUE(segment.ok()) << segment.status().message();
  return *std::move(segment);
}

Cell CellAt(const Segment& segment, uint32_t slot) {
  Cell cell{};
  cell.slot_offset = segment.slot_offset(slot);
  cell.rows = cell.valid_rows = 10;
  return cell;
}

TEST(SegmentTest, RankReadsWhatTheBrokerWroteAtAnotherAddress) {
  const auto segment = MakeSegment();
  segment->ids(1)[9] = 42;
  segment->feature(1, 0)[10 * 35 - 1] = std::byte{7};
  std::memcpy(segment->feature(1, 1) + 9 * 8, "abcdefgh", 8);
  const auto view = SegmentView::Open(segment->fd(), 2);
  ASSERT_TRUE(view.ok()) << view.status().message();
  const Cell cell = CellAt(*segment, 1);
  EXPECT_TRUE((*view)->Valid(cell));
  EXPECT_EQ((*view)->ids(cell)[9], 42);
  EXPECT_EQ((*view)->feature(cell, 0)[10 * 35 - 1], std::byte{7});
  EXPECT_EQ(std::memcmp((*view)->feature(cell, 1) + 9 * 8, "abcdefgh", 8), 0);
  EXPECT_EQ((*view)->broker_instance_id(), 77u);
}

TEST(SegmentTest, FeaturesOfOneSlotDoNotOverlapAndAreAligned) {
  const auto plan = PlanSegment(kElement, 11, 4, 3);
  ASSERT_TRUE(plan.ok());
  EXPECT_GE(plan->feature_offset[0], 11 * sizeof(int64_t));
  EXPECT_GE(plan->feature_offset[1], plan->feature_offset[0] + 11 * 35);
  EXPECT_GE(plan->slot_stride, plan->feature_offset[1] + 11 * 8);
  for (const uint64_t offset : plan->feature_offset) EXPECT_EQ(offset % 64, 0u);
  EXPECT_EQ(plan->slots_offset % kPageBytes, 0u);
  EXPECT_GE(plan->slots_offset, kPageBytes + 3 * sizeof(Ring));
}

// The layout of a job without banks, byte for byte.
TEST(SegmentTest, WithoutBanksSlotsLieOneAfterTheOther) {
  const auto plan = PlanSegment(kElement, 11, 4, 3);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->bank_slots, 0u);
  EXPECT_EQ(plan->slot_stride, 4096u);
  EXPECT_EQ(plan->slots_offset, 32768u);
  EXPECT_EQ(plan->segment_bytes, 32768u + 4 * 4096u);
  const auto segment = Segment::Create(*plan, 77, 1);
  ASSERT_TRUE(segment.ok());
  for (uint32_t slot = 0; slot < 4; ++slot) {
    EXPECT_EQ((*segment)->slot_offset(slot), 32768u + slot * 4096u);
  }
}

TEST(SegmentTest, EachBankBeginsOnAHugePage) {
  // Five slots in banks of two: the last bank has one.
  const auto plan = PlanSegment(kElement, 11, 5, 3, 2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->slot_stride, 4096u);
  const auto segment = Segment::Create(*plan, 77, 1);
  ASSERT_TRUE(segment.ok());
  std::vector<uint64_t> offsets;
  for (uint32_t slot = 0; slot < 5; ++slot) {
    offsets.push_back((*segment)->slot_offset(slot));
  }
  EXPECT_THAT(offsets,
              testing::ElementsAre(
                  kHugePageBytes, kHugePageBytes + 4096, 2 * kHugePageBytes,
                  2 * kHugePageBytes + 4096, 3 * kHugePageBytes));
  EXPECT_EQ(plan->segment_bytes, 4 * kHugePageBytes);

  const auto view = SegmentView::Open((*segment)->fd(), 2);
  ASSERT_TRUE(view.ok()) << view.status().message();
  for (uint32_t slot = 0; slot < 5; ++slot) {
    EXPECT_TRUE((*view)->Valid(CellAt(**segment, slot))) << slot;
  }
  // Between banks, behind the last slot, behind the last bank.
  Cell cell = CellAt(**segment, 0);
  for (const uint64_t offset :
       {kHugePageBytes + 2 * 4096, 2 * kHugePageBytes - 4096,
        3 * kHugePageBytes + 4096, 4 * kHugePageBytes, kHugePageBytes + 8}) {
    cell.slot_offset = offset;
    EXPECT_FALSE((*view)->Valid(cell)) << offset;
  }
}

TEST(SegmentTest, LargeSlotsInBanksStayOnHugePages) {
  const ElementSpec large = {{"x", DType::kUint8, {3 << 20}}};
  const auto plan = PlanSegment(large, 1, 4, 3, 2);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->slot_stride, 2 * kHugePageBytes);
  EXPECT_EQ(plan->slots_offset, kHugePageBytes);
  EXPECT_EQ(plan->segment_bytes, 9 * kHugePageBytes);
}

TEST(SegmentTest, SizesThatOverflowAreRefused) {
  EXPECT_EQ(PlanSegment(kElement, 10, 1 << 28, 1, 1).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(PlanSegment(kElement, 1 << 20, 2, 1, 0xffffffff).status().code(),
            StatusCode::kResourceExhausted);
  const ElementSpec huge = {{"x", DType::kFloat64, {1 << 20, 1 << 19}}};
  EXPECT_EQ(PlanSegment(huge, uint64_t{1} << 40, 2, 1).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(PlanSegment(kElement, uint64_t{1} << 62, 2, 1).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(PlanSegment(kElement, 1 << 20, 0xffffffff, 1).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(SegmentTest, NobodyElseCanWriteShrinkOrPunchIt) {
  const auto segment = MakeSegment();
  EXPECT_EQ(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0),
      MAP_FAILED);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(segment->fd(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fallocate(segment->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                      0, 4096),
            -1);
  EXPECT_EQ(errno, EPERM);
  const char byte = 1;
  EXPECT_EQ(pwrite(segment->fd(), &byte, 1, 0), -1);
  // The broker's own mapping can still write.
  segment->ids(0)[0] = 5;
  EXPECT_EQ(segment->ids(0)[0], 5);
}

TEST(SegmentTest, CellsThatPointElsewhereAreNotValid) {
  const auto segment = MakeSegment();
  const auto view = SegmentView::Open(segment->fd(), 2);
  ASSERT_TRUE(view.ok());
  Cell cell = CellAt(*segment, 2);
  EXPECT_TRUE((*view)->Valid(cell));
  cell.slot_offset = segment->slot_offset(3);
  EXPECT_FALSE((*view)->Valid(cell));
  cell.slot_offset = segment->slot_offset(0) + 8;
  EXPECT_FALSE((*view)->Valid(cell));
  cell.slot_offset = 0;
  EXPECT_FALSE((*view)->Valid(cell));
  cell = CellAt(*segment, 0);
  cell.rows = 11;
  EXPECT_FALSE((*view)->Valid(cell));
  cell = CellAt(*segment, 0);
  cell.lease = kLeasesMax;
  EXPECT_FALSE((*view)->Valid(cell));
}

// Each wrong field of the header is refused with its own message.
class SegmentHeaderTest : public testing::Test {
 protected:
  template <typename Change>
  Status OpenChanged(Change change) {
    const auto segment = MakeSegment();
    change(*reinterpret_cast<SegmentHeader*>(segment->base()));
    return SegmentView::Open(segment->fd(), 2).status();
  }
};

TEST_F(SegmentHeaderTest, OtherLayoutVersionSaysBothVersions) {
  const Status status = OpenChanged([](SegmentHeader& header) {
    header.layout_version = kLayoutVersion + 1;
  });
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr(Format("version {}", kLayoutVersion + 1)));
  EXPECT_THAT(status.message(),
              HasSubstr("version " + std::to_string(kLayoutVersion)));
}

TEST_F(SegmentHeaderTest, SameVersionOfAnotherBuildIsRefused) {
  EXPECT_EQ(OpenChanged([](SegmentHeader& header) {
              header.layout_hash ^= 1;
            }).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(SegmentHeaderTest, HeaderThatIsNotReadyIsRefused) {
  EXPECT_THAT(OpenChanged([](SegmentHeader& header) {
                header.ready.store(0);
              }).message(),
              HasSubstr("not ready"));
}

TEST_F(SegmentHeaderTest, ContradictionsAreRefused) {
  const std::vector<std::function<void(SegmentHeader&)>> changes = {
      [](SegmentHeader& h) { h.magic = 0; },
      [](SegmentHeader& h) { h.segment_bytes += 4096; },
      [](SegmentHeader& h) { h.slot_count = 0xffffffff; },
      [](SegmentHeader& h) { h.slot_stride = 0; },
      [](SegmentHeader& h) { h.slots_offset = ~uint64_t{0}; },
      [](SegmentHeader& h) { h.seats = 1000000; },
      [](SegmentHeader& h) { h.feature_count = 3; },
      [](SegmentHeader& h) { h.bank_slots = 0xffffffff; },
      [](SegmentHeader& h) { h.bank_slots = 1; },
      [](SegmentHeader& h) { h.feature_offset[1] = ~uint64_t{0}; },
  };
  for (const auto& change : changes) {
    EXPECT_EQ(OpenChanged(change).code(), StatusCode::kInternal);
  }
}

TEST(SegmentViewTest, UnsealedOrShortMemoryIsRefused) {
  const Fd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(fd.get(), 1 << 20), 0);
  EXPECT_FALSE(SegmentView::Open(fd.get(), 2).ok());
  const Fd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(SegmentView::Open(file.get(), 2).ok());
}

TEST(CursorTest, BrokerReadsWhatTheRankWrites) {
  const auto cursor = CreateCursor();
  ASSERT_TRUE(cursor.ok());
  const auto seen = OpenCursor(cursor->fd.get());
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  cursor->page().taken.store(11);
  EXPECT_EQ(reinterpret_cast<const CursorPage*>(seen->data())->taken.load(),
            11u);
}

TEST(CursorTest, PageThatIsNotOneIsRefused) {
  const Fd unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kCursorBytes), 0);
  EXPECT_EQ(OpenCursor(unsealed.get()).status().code(),
            StatusCode::kInvalidArgument);
  auto other = CreateCursor();
  other->page().layout_version = kLayoutVersion + 1;
  EXPECT_EQ(OpenCursor(other->fd.get()).status().code(),
            StatusCode::kFailedPrecondition);
  other->page().magic = 1;
  EXPECT_EQ(OpenCursor(other->fd.get()).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace penstock::segment_test
