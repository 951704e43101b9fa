// Promise: records that are not in the journal yet survive the broker in
// memory. Invariants: they come back in order across the end of the ring and
// across broker instances, their memory is bounded, and damage loses only
// damaged records. Method: the tail's file, reopened, cut and altered at each
// place.
#include "broker/recovery/journal_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <deque>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "broker/recovery/memory_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::journal_tail_test {

using testing::ElementsAre;
using testing::IsEmpty;
using Records = std::vector<std::pair<int, std::string>>;

class JournalTailTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = "/dev/shm/penstock-tail-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    Start();
  }
  void TearDown() override {
    tail_.reset();
    std::filesystem::remove_all(folder_);
  }
  // The next instance opens what the last one left.
  void Start() {
    tail_.reset();
    auto tail = JournalTail::Open(folder_);
    ASSERT_TRUE(tail.ok()) << tail.status().message();
    tail_ = *std::move(tail);
  }
  Records All() const {
    Records records;
    uint64_t at = tail_->begin();
    for (JournalEntry entry; tail_->Next(&at, &entry);) {
      records.emplace_back(entry.type, entry.payload);
    }
    return records;
  }
  std::string File() const { return folder_ + "/journal.tail"; }
  void Damage(uint64_t offset, uint64_t value) {
    const int fd = open(File().c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_EQ(pwrite(fd, &value, sizeof(value), static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof(value)));
    close(fd);
  }

  std::string folder_;
  std::unique_ptr<JournalTail> tail_;
};

TEST_F(JournalTailTest, TheFileHasTheDocumentedShape) {
  struct stat info;
  ASSERT_EQ(stat(File().c_str(), &info), 0);
  EXPECT_EQ(info.st_size, 4096 + (4 << 20));
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_GE(info.st_blocks * 512, info.st_size);  // no hole: no SIGBUS
  EXPECT_EQ(offsetof(TailHeader, token), 24u);
  EXPECT_EQ(offsetof(TailHeader, begin), 32u);
  EXPECT_EQ(offsetof(TailHeader, end), 40u);
  EXPECT_EQ(offsetof(TailHeader, lost_ns), 48u);
}

TEST_F(JournalTailTest, TheNextInstanceFindsWhatWasNotDropped) {
  ASSERT_TRUE(tail_->Put(1, "one"));
  const uint64_t behind_one = tail_->end();
  ASSERT_TRUE(tail_->Put(2, ""));
  ASSERT_TRUE(tail_->Put(255, "three"));
  tail_->NoteLost(7);
  tail_->NoteLost(9);
  const uint64_t token = tail_->token();
  Start();
  EXPECT_EQ(tail_->token(), token);
  EXPECT_EQ(tail_->lost_ns(), 7u);
  EXPECT_THAT(All(), ElementsAre(std::pair(1, std::string("one")),
                                 std::pair(2, std::string()),
                                 std::pair(255, std::string("three"))));
  tail_->Drop(behind_one);
  Start();
  EXPECT_EQ(All().size(), 2u);
  tail_->BeginAnew();
  EXPECT_NE(tail_->token(), token);
  EXPECT_EQ(tail_->lost_ns(), 0u);
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(JournalTailTest, RecordsGoRoundTheRingInOrder) {
  std::mt19937 random(1);
  std::deque<std::pair<int, std::string>> expected;
  uint64_t at = tail_->begin();
  uint64_t full = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text(random() % 40'000, static_cast<char>('a' + i % 26));
    if (tail_->Put(static_cast<uint8_t>(1 + i % 255), text)) {
      expected.emplace_back(1 + i % 255, text);
      continue;
    }
    ++full;
    // More than half of the ring is in use, else a record that fits would be
    // refused.
    ASSERT_GT(tail_->end() - tail_->begin(), kTailBytes - 2 * 40'008);
    for (size_t n = expected.size() / 2; n > 0; --n) {
      JournalEntry entry;
      ASSERT_TRUE(tail_->Next(&at, &entry));
      ASSERT_EQ(entry.type, expected.front().first);
      ASSERT_EQ(entry.payload, expected.front().second);
      expected.pop_front();
    }
    tail_->Drop(at);
  }
  EXPECT_GT(full, 10u);
  Start();
  EXPECT_EQ(All(), Records(expected.begin(), expected.end()));
}

TEST_F(JournalTailTest, TheLargestRecordFitsAndALargerOneIsRefused) {
  EXPECT_TRUE(tail_->Put(1, std::string(kJournalRecordBytesMax, 'x')));
  EXPECT_FALSE(tail_->Put(1, std::string(kJournalRecordBytesMax + 1, 'x')));
  EXPECT_EQ(All().size(), 1u);
}

TEST_F(JournalTailTest, AForeignOrDamagedHeaderBeginsAnew) {
  const std::pair<uint64_t, uint64_t> damages[] = {
      {0, 1},      // magic
      {8, 99},     // version
      {16, 4096},  // the ring's bytes
      {24, 0},     // token
      {32, 4096},  // begin after end
      {40, 13},    // end not aligned
      {40, kTailBytes + 8}};
  for (const auto& [offset, value] : damages) {
    SCOPED_TRACE(offset);
    ASSERT_TRUE(tail_->Put(1, "one"));
    const uint64_t token = tail_->token();
    tail_.reset();
    Damage(offset, value);
    Start();
    EXPECT_NE(tail_->token(), token);
    EXPECT_THAT(All(), IsEmpty());
  }
  tail_.reset();
  ASSERT_EQ(truncate(File().c_str(), 100), 0);
  Start();
  EXPECT_TRUE(tail_->Put(1, "one"));
}

TEST_F(JournalTailTest, ADamagedRecordEndsTheWalk) {
  for (const uint64_t value :
       {uint64_t{0}, uint64_t{kJournalRecordBytesMax + 1} | uint64_t{1} << 32,
        uint64_t{4096} | uint64_t{1} << 32}) {
    tail_->BeginAnew();
    ASSERT_TRUE(tail_->Put(1, "one"));
    ASSERT_TRUE(tail_->Put(1, "two"));
    Damage(kTailRingOffset + 16, value);
    uint64_t at = tail_->begin();
    JournalEntry entry;
    EXPECT_TRUE(tail_->Next(&at, &entry));
    EXPECT_FALSE(tail_->Next(&at, &entry));
    EXPECT_LT(at, tail_->end());
  }
}

// ---- where it lies

TEST(MemoryFolderTest, IsFoundAgainAndIsNobodyElses) {
  std::string state = testing::TempDir() + "penstock-memory-XXXXXX";
  ASSERT_NE(mkdtemp(state.data()), nullptr);
  const auto first = OpenMemoryFolder(state);
  ASSERT_TRUE(first.ok()) << first.status().message();
  struct stat info;
  ASSERT_EQ(lstat(first->c_str(), &info), 0);
  if (*first != state) {
    EXPECT_EQ(info.st_mode & 07777, 0700u);
    EXPECT_EQ(*OpenMemoryFolder(state), *first);
    // A folder that others may enter may be somebody else's.
    ASSERT_EQ(chmod(first->c_str(), 0755), 0);
    const auto second = OpenMemoryFolder(state);
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_NE(*second, *first);
    // So may one that the link leads to elsewhere.
    for (const std::string& target :
         {state, "/dev/shm/penstock-x/../" + second->substr(9)}) {
      std::filesystem::remove(state + "/memory");
      std::filesystem::create_symlink(target, state + "/memory");
      const auto third = OpenMemoryFolder(state);
      ASSERT_TRUE(third.ok()) << third.status().message();
      EXPECT_NE(*third, target);
      std::filesystem::remove_all(*third);
    }
    std::filesystem::remove_all(*first);
    std::filesystem::remove_all(*second);
  }
  std::filesystem::remove_all(state);
}

}  // namespace penstock::journal_tail_test
