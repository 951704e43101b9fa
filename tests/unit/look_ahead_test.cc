// Promise: look-ahead asks for the rows of this host's ranks, in the order of
// the plan, and for no others; it follows ranks that come and go. Method: each
// record is a block of a remote file, and the test, which is its fetcher, sees
// which are asked for.
#include "broker/job/look_ahead.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::look_ahead_test {

using testing::ElementsAre;
using testing::ElementsAreArray;
using Ask = RemoteFile::Ask;

constexpr uint64_t kBlock = RemoteFile::kBlockBytes;
constexpr uint64_t kRows = 64;
constexpr uint64_t kBatch = 8;

class Blocks final : public Source {
 public:
  explicit Blocks(RemoteFile* file) : file_(file) {}
  uint64_t record_count() const override { return kRows; }
  const RawSpec& raw_spec() const override { return raw_; }
  void Locate(uint64_t record, ReadRequest* request) const override {
    request->kind = ReadPart::Kind::kRange;
    request->remote = file_;
    request->offset = record * kBlock;
    request->bytes = kBlock;
  }
  Status Unpack(uint64_t, const ReadBytes&, std::vector<std::byte>*,
                RawRecord*) const override {
    return OkStatus();
  }
  std::string Describe(uint64_t) const override { return ""; }

 private:
  RemoteFile* const file_;
  const RawSpec raw_;
};

class LookAheadTest : public testing::Test {
 protected:
  // ahead: blocks.
  void Begin(uint32_t ranks, uint64_t ahead, uint64_t behind = 1000) {
    Fd data(memfd_create("object", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(data.get(), kRows * kBlock), 0);
    RemoteFile::Opened opened;
    opened.bytes = kRows * kBlock;
    opened.unit_bytes = std::make_shared<std::atomic<uint64_t>>(kBlock);
    opened.ahead_bytes = ahead * kBlock;
    file_ = std::make_unique<RemoteFile>(
        std::move(opened), std::move(data),
        [this](Ask ask, uint64_t, const RemoteFile::Range& range) {
          const std::lock_guard lock(mutex_);
          for (uint64_t at = 0; at < range.bytes; at += kBlock) {
            asked_[static_cast<size_t>(ask)].push_back((range.offset + at) /
                                                       kBlock);
          }
          changed_.notify_all();
        });
    PlanSpec spec;
    spec.batch.size = kBatch;
    spec.epochs = 1;
    plan_ = std::make_shared<const Plan>(*Plan::Make(spec, kRows, ranks));
    auto dataset = std::make_shared<Dataset>();
    dataset->source = std::make_unique<Blocks>(file_.get());
    look_ahead_ = std::make_unique<LookAhead>(std::move(dataset), 0, behind,
                                              [this] { return plan_; });
  }
  // The rows that were asked for, or given up, once there are so many.
  std::vector<uint64_t> Await(size_t count, Ask ask = Ask::kFetch) {
    std::unique_lock lock(mutex_);
    auto& asked = asked_[static_cast<size_t>(ask)];
    changed_.wait_for(lock, std::chrono::seconds(20),
                      [&] { return asked.size() >= count; });
    return asked;
  }
  // Rows of these ranks of two, from a step to another.
  static std::vector<uint64_t> RowsOf(const std::vector<uint64_t>& ranks,
                                      uint64_t step, uint64_t end) {
    std::vector<uint64_t> rows;
    for (; step < end; ++step) {
      for (const uint64_t rank : ranks) {
        for (uint64_t i = 0; i < kBatch / 2; ++i) {
          rows.push_back(step * kBatch + rank * kBatch / 2 + i);
        }
      }
    }
    return rows;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> asked_[8];  // by Ask
  std::unique_ptr<RemoteFile> file_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<LookAhead> look_ahead_;
};

TEST_F(LookAheadTest, OnlyRowsOfItsRanksAreAskedFor) {
  Begin(2, kRows);
  look_ahead_->SetRanks({1});
  EXPECT_EQ(Await(kRows / 2), RowsOf({1}, 0, 8));
  look_ahead_.reset();
  EXPECT_EQ(Await(kRows / 2), RowsOf({1}, 0, 8));
}

TEST_F(LookAheadTest, AllRanksAreOneStretchOfRows) {
  Begin(4, kRows);
  look_ahead_->SetRanks({0, 1, 2, 3});
  EXPECT_EQ(Await(kRows), RowsOf({0, 1}, 0, 8));
}

TEST_F(LookAheadTest, ItIsAheadOfWhatIsClaimedByTheRoomForItsOwnRows) {
  Begin(2, 8);
  look_ahead_->SetRanks({0});
  EXPECT_EQ(Await(8), RowsOf({0}, 0, 2));
  look_ahead_->Claimed(2 * kBatch);
  EXPECT_EQ(Await(16), RowsOf({0}, 0, 4));
}

TEST_F(LookAheadTest, ARankThatComesBeginsWithTheFirstUnclaimedRow) {
  Begin(2, 8);
  look_ahead_->SetRanks({0});
  Await(8);
  look_ahead_->Claimed(kBatch);
  EXPECT_EQ(Await(12), RowsOf({0}, 0, 3));
  // Its rows of the steps 1 and 2 are behind those that the other has had; rows
  // that are held already are not asked for again.
  look_ahead_->SetRanks({0, 1});
  look_ahead_->Claimed(2 * kBatch);
  std::vector<uint64_t> rows = RowsOf({0}, 0, 3);
  const std::vector<uint64_t> late = RowsOf({1}, 2, 3);
  rows.insert(rows.end(), late.begin(), late.end());
  EXPECT_EQ(Await(16), rows);
  look_ahead_->Claimed(6 * kBatch);
  const std::vector<uint64_t> both = RowsOf({0, 1}, 6, 7);
  rows.insert(rows.end(), both.begin(), both.end());
  EXPECT_EQ(Await(24), rows);
}

TEST_F(LookAheadTest, NothingMoreIsAskedForARankThatIsGone) {
  Begin(2, 8);
  look_ahead_->SetRanks({0, 1});
  Await(8);
  look_ahead_->SetRanks({1});
  look_ahead_->Claimed(kBatch);
  std::vector<uint64_t> rows = RowsOf({0, 1}, 0, 1);
  const std::vector<uint64_t> its = RowsOf({1}, 1, 3);
  rows.insert(rows.end(), its.begin(), its.end());
  EXPECT_EQ(Await(16), rows);
}

TEST_F(LookAheadTest, RowsAreLetGoWhenTheyAreMade) {
  Begin(2, 8);
  look_ahead_->SetRanks({1});
  Await(8);
  file_->Arrived({4 * kBlock, 4 * kBlock}, /*kept=*/false);
  look_ahead_->Claimed(kBatch);
  look_ahead_->Made(4, 6);
  EXPECT_THAT(Await(2, Ask::kGiveUp), ElementsAre(4, 5));
  EXPECT_EQ(Await(12), RowsOf({1}, 0, 3));
}

TEST_F(LookAheadTest, RowsThatAreNeverMadeAreLetGoWhenOthersHavePassed) {
  Begin(2, 8, /*behind=*/kBatch);
  look_ahead_->SetRanks({1});
  Await(8);
  file_->Arrived({4 * kBlock, 4 * kBlock}, /*kept=*/false);
  look_ahead_->Claimed(2 * kBatch);
  EXPECT_EQ(Await(16), RowsOf({1}, 0, 4));
  EXPECT_THAT(Await(4, Ask::kGiveUp), ElementsAreArray(RowsOf({1}, 0, 1)));
}

}  // namespace penstock::look_ahead_test
