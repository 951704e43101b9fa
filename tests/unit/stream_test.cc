// Promise: a stream is the same in the next broker instance: rows keep their
// numbers, producers find their rows or are given up. Method: a ledger that is
// told the same again, a stream's records read back from the journal, and
// streams restored with and without the descriptor store's memory.
#include "broker/stream/stream.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "broker/recovery/recovery_journal.h"

namespace penstock::stream_test {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kRing = 16;
constexpr uint64_t kToken = 7;

Fd Duplicate(int fd) { return Fd(dup(fd)); }

// A process that has ended, or lives until this object is destroyed.
class Child {
 public:
  Child() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
    pidfd_ = Fd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid_ < 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  int pidfd() const { return pidfd_.get(); }

 private:
  pid_t pid_;
  Fd pidfd_;
};

// ---- the ledger

TEST(StreamLedgerTest, RowsAreNumberedInTheOrderOfThePuts) {
  StreamLedger ledger(100, 1);
  ledger.Join(0, kToken, kRing, 8);
  ledger.Join(1, 0, kRing, 8);
  ledger.Put(0, 0, 8, 100);
  ledger.Put(1, 0, 5, 108);
  ledger.Put(0, 8, 8, 113);
  EXPECT_EQ(ledger.end(), 121u);
  EXPECT_EQ(ledger.chunks().size(), 3u);
  EXPECT_TRUE(ledger.Release(110).empty());
  EXPECT_EQ(ledger.released(), 110u);
  EXPECT_EQ(ledger.producers().at(0).freed, 8u);
  EXPECT_EQ(ledger.producers().at(1).freed, 2u);
  // Gone, with rows left.
  EXPECT_TRUE(ledger.Leave(1, false).empty());
  EXPECT_THAT(ledger.Release(121), ElementsAre(1));
  EXPECT_FALSE(ledger.over());
  EXPECT_THAT(ledger.Leave(0, true), ElementsAre(0));
  EXPECT_TRUE(ledger.HasFinished(kToken));
  // Two were at work at once: another may still replace the one that is gone.
  EXPECT_FALSE(ledger.over());
}

TEST(StreamLedgerTest, WhatItKnowsChangesNothing) {
  StreamLedger ledger(0, 1);
  const auto tell = [&ledger] {
    ledger.Join(0, kToken, kRing, 8);
    ledger.Put(0, 0, 8, 0);
    ledger.Join(1, 0, kRing, 8);
    ledger.Put(1, 0, 3, 8);
    ledger.Release(4);
    ledger.Leave(1, true);
  };
  tell();
  const nlohmann::json once = ledger.ToJson();
  tell();
  EXPECT_EQ(ledger.ToJson(), once);
  EXPECT_EQ(ledger.end(), 11u);
  EXPECT_EQ(ledger.chunks().size(), 2u);
}

TEST(StreamLedgerTest, ItIsTheSameFromItsJsonAndItsChunks) {
  StreamLedger ledger(0, 2);
  ledger.Join(0, kToken, kRing, 8);
  ledger.Join(1, 9, kRing, 8);
  ledger.Put(0, 0, 8, 0);
  ledger.Put(1, 0, 8, 8);
  ledger.Put(0, 8, 6, 16);
  ledger.Release(10);
  ledger.Put(0, 16, 5, 22);  // two rows of the ring were skipped
  // Rows 12 and 13 are retained, the others before 16 are done with.
  ledger.OpenRetained(8);
  ledger.Move(16, {{12, 2, StreamLedger::kRetained, 4}});
  ledger.Leave(1, true);
  StreamLedger copy = StreamLedger::FromJson(ledger.ToJson());
  for (const StreamLedger::Chunk& chunk : ledger.chunks()) {
    EXPECT_TRUE(copy.Keep(chunk));
  }
  EXPECT_EQ(copy.ToJson(), ledger.ToJson());
  EXPECT_EQ(copy.end(), ledger.end());
  // It continues in the same way.
  for (StreamLedger* each : {&ledger, &copy}) {
    EXPECT_TRUE(each->CheckPut(0, 21, 3).ok());
    each->Put(0, 21, 3, 27);
    EXPECT_THAT(each->Release(30), ElementsAre(StreamLedger::kRetained));
    each->Leave(0, true);
    EXPECT_TRUE(each->over());
  }
  EXPECT_EQ(copy.ToJson(), ledger.ToJson());
}

TEST(StreamLedgerTest, PutsThatCannotBe) {
  StreamLedger ledger(0, 1);
  ledger.Join(0, kToken, kRing, 8);
  for (const auto& [ring_position, rows] :
       std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 0}, {0, 9}, {1, 1}, {kRing, 1}, {UINT64_MAX / 2, 1}}) {
    EXPECT_FALSE(ledger.CheckPut(0, ring_position, rows).ok())
        << ring_position << " " << rows;
  }
  EXPECT_FALSE(ledger.CheckPut(1, 0, 1).ok());
  // As a journal may hold them.
  EXPECT_FALSE(ledger.Keep({0, 1, 1, 0}));
  EXPECT_FALSE(ledger.Keep({0, kRing + 1, 0, 0}));
  EXPECT_FALSE(ledger.Keep({0, 0, 0, 0}));
  ledger.Leave(0, false);
  EXPECT_FALSE(ledger.CheckPut(0, 0, 1).ok());
}

// ---- a stream and its next broker instance

// Records what a journal would, and refuses when told to.
class Remembered : public StreamRecord {
 public:
  Status ProducerJoined(const StreamLedger& before,
                        const StreamLedger::Producer& producer, int memory,
                        int pidfd) override {
    if (full) return ResourceExhaustedError("no space");
    if (!ledger) ledger = before;
    const uint32_t number = before.next_producer();
    kept[number] = {Duplicate(memory), Duplicate(pidfd)};
    ledger->Join(number, producer.token, producer.ring_rows, producer.put_rows);
    return OkStatus();
  }
  void RowsPut(uint32_t producer, uint64_t ring_position, uint64_t rows,
               uint64_t first) override {
    ledger->Put(producer, ring_position, rows, first);
  }
  void ProducerLeft(uint32_t producer, bool finished) override {
    ledger->Leave(producer, finished);
  }
  void RowsReleased(uint64_t row) override { Forget(ledger->Release(row)); }
  Status RetainedOpened(uint64_t rows, int memory) override {
    if (full) return ResourceExhaustedError("no space");
    EXPECT_EQ(kept.count(StreamLedger::kRetained), 0u) << "two of one name";
    kept[StreamLedger::kRetained].memory = Duplicate(memory);
    ledger->OpenRetained(rows);
    return OkStatus();
  }
  void RowsMoved(uint64_t row,
                 const std::vector<StreamLedger::Chunk>& needed) override {
    Forget(ledger->Move(row, needed));
  }

  FormerStream Former() { return {*ledger, std::move(kept)}; }

  bool full = false;
  std::optional<StreamLedger> ledger;
  std::map<uint32_t, FormerStream::Kept> kept;

 private:
  void Forget(const std::vector<uint32_t>& gone) {
    for (const uint32_t producer : gone) kept.erase(producer);
  }
};

class StreamTest : public testing::Test {
 protected:
  StatusOr<Stream::Joined> Join(Stream* stream, uint64_t token,
                                bool back = false, int memory = -1) {
    Stream::Joining joining;
    joining.token = token;
    joining.put_rows = 4;
    joining.back = back;
    joining.memory = memory;
    joining.pidfd = child_.pidfd();
    return stream->Join(std::move(joining));
  }
  static int64_t Row(const Stream& stream, uint64_t row) {
    const auto pieces = stream.Find(row, 1);
    if (!pieces.ok()) return -1;
    int64_t value = -2;
    EXPECT_TRUE(
        (*pieces)[0].Read(0, 0, 1, reinterpret_cast<std::byte*>(&value)).ok());
    return value;
  }
  // Writes rows 100, 101, ... at these ring rows.
  static void Write(const Stream::Joined& joined, int64_t first, int rows) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t value = 100 + first + i;
      const uint64_t ring_row = static_cast<uint64_t>(first + i) % joined.rows;
      ASSERT_EQ(pwrite(joined.fd, &value, sizeof(value),
                       static_cast<off_t>(ring_row * sizeof(value))),
                static_cast<ssize_t>(sizeof(value)));
    }
  }

  // Producer 0 puts the next rows, four at a time, up to this ring row.
  void PutUpTo(uint64_t end) {
    for (uint64_t at = stream_.end(); at < end;) {
      const uint64_t rows = std::min<uint64_t>(4, end - at);
      ASSERT_TRUE(stream_.Put(0, at, rows).ok());
      at += rows;
    }
  }
  static void ExpectRows(const Stream& stream,
                         std::initializer_list<int64_t> rows) {
    for (const int64_t row : rows) {
      EXPECT_EQ(Row(stream, static_cast<uint64_t>(row)), 100 + row);
    }
  }

  const ElementSpec element_ = {{"value", DType::kInt64, {}}};
  Child child_;
  Remembered record_;
  Remembered next_record_;
  const Stream::Shape shape_ = {0, 1, 8, 8};
  Stream stream_{element_, shape_, &record_};
  Stream next_{element_, shape_, &next_record_};
};

TEST_F(StreamTest, AProducerComesBackToItsRows) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok()) << joined.status().message();
  Write(*joined, 0, 6);
  ASSERT_TRUE(stream_.Put(0, 0, 4).ok());
  ASSERT_TRUE(stream_.Put(0, 4, 2).ok());
  stream_.Release(1);
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  // Neither the producer nor the record knows that row 0 is free.
  EXPECT_EQ(next_.available(), 6u);
  EXPECT_EQ(Row(next_, 0), 100);
  EXPECT_EQ(Row(next_, 5), 105);
  EXPECT_EQ(next_.at_work(), 0u);
  EXPECT_FALSE(next_.idle_since());
  EXPECT_FALSE(next_.over());
  EXPECT_TRUE(next_.GiveUpAway(0).ok());
  const auto back = Join(&next_, kToken, true);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->producer, 0u);
  EXPECT_EQ(back->end, 6u);
  EXPECT_EQ(back->freed, 0u);
  EXPECT_EQ(next_.at_work(), 1u);
  EXPECT_EQ(*next_.Put(0, 6, 2), 6u);
  // Not twice at the same time.
  EXPECT_EQ(Join(&next_, kToken, true).status().code(),
            StatusCode::kAlreadyExists);
  next_.Leave(0, true);
  EXPECT_TRUE(next_.over());
  EXPECT_TRUE(Join(&next_, kToken, true)->finished);
}

TEST_F(StreamTest, WhatWasToldIsRecordedBefore) {
  ASSERT_TRUE(Join(&stream_, kToken).ok());
  ASSERT_TRUE(stream_.Put(0, 0, 4).ok());
  stream_.Release(3);
  EXPECT_TRUE(stream_.AnyFreed());
  EXPECT_EQ(record_.ledger->released(), 0u);
  const std::vector<Stream::Freed> freed = stream_.TakeFreed();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].ring_position, 3u);
  EXPECT_EQ(record_.ledger->released(), 3u);
  EXPECT_FALSE(stream_.AnyFreed());
  next_.Restore(record_.Former());
  EXPECT_EQ(next_.Find(2, 1).status().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(next_.Find(3, 1).ok());
}

TEST_F(StreamTest, WhoCannotBeRecordedIsNotLetIn) {
  record_.full = true;
  EXPECT_EQ(Join(&stream_, kToken).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(stream_.at_work(), 0u);
  record_.full = false;
  EXPECT_TRUE(Join(&stream_, kToken).ok());
}

TEST_F(StreamTest, OneThatDiedWithTheBrokerIsGivenUp) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 4);
  ASSERT_TRUE(stream_.Put(0, 0, 4).ok());
  child_.Kill();
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  // Its rows are kept, another takes its place, and one has yet to finish.
  EXPECT_TRUE(next_.GiveUpAway(0).ok());
  EXPECT_TRUE(next_.idle_since());
  EXPECT_EQ(Row(next_, 3), 103);
  EXPECT_EQ(Join(&next_, kToken, true).status().code(), StatusCode::kAborted);
  ASSERT_TRUE(Join(&next_, kToken + 1).ok());
  next_.Leave(1, true);
  EXPECT_TRUE(next_.over());
}

TEST_F(StreamTest, WhoComesAfterTheDeadTakesTheirPlace) {
  ASSERT_TRUE(Join(&stream_, kToken).ok());
  child_.Kill();
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  // Before any check.
  ASSERT_TRUE(Join(&next_, kToken + 1).ok());
  next_.Leave(1, true);
  EXPECT_TRUE(next_.over());
}

TEST_F(StreamTest, OneThatWasNotAnsweredAsksAgain) {
  ASSERT_TRUE(Join(&stream_, kToken).ok());
  next_.Restore(record_.Former());
  const auto again = Join(&next_, kToken);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->producer, 0u);
  EXPECT_EQ(next_.at_work(), 1u);
}

TEST_F(StreamTest, MemoryThatNobodyKeptComesWithItsProducer) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 4);
  ASSERT_TRUE(stream_.Put(0, 0, 2).ok());
  ASSERT_TRUE(stream_.Put(0, 2, 2).ok());
  FormerStream former = record_.Former();
  const Fd memory = std::move(former.kept[0].memory);
  former.kept.clear();
  next_record_.ledger = record_.ledger;
  next_.Restore(std::move(former));
  EXPECT_EQ(next_.available(), 0u);
  EXPECT_FALSE(next_.Find(0, 1).ok());
  EXPECT_TRUE(next_.GiveUpAway(0).ok());  // within its time limit
  EXPECT_EQ(Join(&next_, kToken, true).status().code(), StatusCode::kDataLoss);
  // Another producer's memory, of another size.
  const Fd wrong(memfd_create("wrong", MFD_ALLOW_SEALING));
  EXPECT_EQ(Join(&next_, kToken, true, wrong.get()).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(Join(&next_, kToken, true, memory.get()).ok());
  EXPECT_EQ(next_.available(), 4u);
  EXPECT_EQ(Row(next_, 3), 103);
}

TEST_F(StreamTest, RowsThatDiedWithTheirProducerAreSaidToBeLost) {
  ASSERT_TRUE(Join(&stream_, kToken).ok());
  ASSERT_TRUE(stream_.Put(0, 0, 4).ok());
  stream_.Leave(0, false);
  FormerStream former = record_.Former();
  former.kept.clear();
  next_.Restore(std::move(former));
  const Status lost = next_.GiveUpAway(0);
  EXPECT_EQ(lost.code(), StatusCode::kDataLoss);
  EXPECT_THAT(lost.message(), HasSubstr("rows 0 to 3"));
  // Unless every rank has taken them.
  next_.Release(4);
  EXPECT_TRUE(next_.GiveUpAway(0).ok());
  EXPECT_EQ(next_.available(), 4u);
}

TEST_F(StreamTest, OneThatIsSilentIsGivenUpAfterItsTime) {
  ASSERT_TRUE(Join(&stream_, kToken).ok());
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  EXPECT_TRUE(next_.GiveUpAway(0).ok());
  EXPECT_FALSE(next_.idle_since());
  EXPECT_TRUE(next_.GiveUpAway(1e-9).ok());
  EXPECT_TRUE(next_.idle_since());
}

// ---- the retained rows

TEST_F(StreamTest, RowsThatARankHoldsOnToLeaveTheirProducerRoom) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 16);
  for (uint64_t at = 0; at < 12; at += 4) {
    EXPECT_FALSE(stream_.ShortOfRoom());
    ASSERT_TRUE(stream_.Put(0, at, 4).ok());
  }
  EXPECT_TRUE(stream_.ShortOfRoom());
  // Rows 2, 3, 6 and 7 are held; all others before 12 are done with.
  stream_.Release(2);
  (void)stream_.TakeFreed();
  EXPECT_TRUE(stream_.ShortOfRoom());
  stream_.MakeRoom(12, {{2, 2, true}, {6, 2, true}});
  // That is enough: 6, 7 and later rows stay.
  EXPECT_FALSE(stream_.ShortOfRoom());
  std::vector<Stream::Freed> freed = stream_.TakeFreed();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].ring_position, 6u);
  EXPECT_EQ(freed[0].end, 12u);
  EXPECT_EQ(stream_.kept_rows(), 2u + 6);
  ASSERT_TRUE(stream_.Put(0, 12, 4).ok());
  Write(*joined, 18, 6);  // over their former ring rows
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  for (const Stream* stream : {&stream_, &next_}) {
    ExpectRows(*stream, {2, 3, 6, 7, 8, 15});
    EXPECT_FALSE(stream->Find(4, 1).ok());
    EXPECT_FALSE(stream->Find(3, 2).ok());
    EXPECT_TRUE(stream->Find(6, 10).ok());
    EXPECT_EQ(stream->available(), 16u);
  }
  // Once more: rows already retained stay.
  stream_.MakeRoom(16, {{2, 2, true}, {6, 2, true}, {14, 2, true}});
  EXPECT_EQ(stream_.kept_rows(), 2u + 2 + 2);
  freed = stream_.TakeFreed();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].ring_position, 14u);
  ExpectRows(stream_, {2, 3, 6, 7, 14, 15});
  stream_.Release(16);
  EXPECT_EQ(stream_.kept_rows(), 0u);
  EXPECT_EQ(stream_.Find(6, 1).status().code(), StatusCode::kDataLoss);
}

TEST_F(StreamTest, WhatDoesNotFitIntoTheRetainedRowsStays) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 18);
  PutUpTo(18);
  // At most eight rows.
  stream_.MakeRoom(18, {{0, 4, true}, {5, 5, true}});
  ExpectRows(stream_, {0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 17});
  EXPECT_FALSE(stream_.Find(4, 1).ok());
  EXPECT_TRUE(stream_.ShortOfRoom());
  const std::vector<Stream::Freed> freed = stream_.TakeFreed();
  ASSERT_EQ(freed.size(), 1u);
  EXPECT_EQ(freed[0].ring_position, 5u);
  // Rows whose move cannot be recorded are not moved.
  stream_.Release(18);
  record_.full = true;
  PutUpTo(30);
  stream_.MakeRoom(28, {{18, 2, true}});
  EXPECT_EQ(stream_.kept_rows(), 12u);
}

TEST_F(StreamTest, RowsLieBesideOneAnotherInTheRetainedRows) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  const auto put = [&](std::initializer_list<uint64_t> rows) {
    for (const uint64_t count : rows) {
      const uint64_t at = stream_.end();
      Write(*joined, static_cast<int64_t>(at), static_cast<int>(count));
      ASSERT_TRUE(stream_.Put(0, at, count).ok());
    }
  };
  put({4, 4, 4});
  stream_.MakeRoom(12, {{0, 2, true}, {2, 2, true}});
  stream_.Release(1);
  (void)stream_.TakeFreed();
  put({4, 2, 4, 2});  // the ring has 18 rows, and 12 are free again
  // One row is free before the retained rows, four after them. Row 20 may stay:
  // that is enough.
  stream_.MakeRoom(24, {{1, 3, true}, {12, 4, true}, {20, 1, true}});
  EXPECT_FALSE(stream_.ShortOfRoom());
  EXPECT_EQ(stream_.kept_rows(), 3u + 4 + 4);
  EXPECT_EQ(stream_.TakeFreed().at(0).ring_position, 20u);
  Write(*joined, 24, 14);
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  for (const Stream* stream : {&stream_, &next_}) {
    ExpectRows(*stream, {1, 2, 3, 12, 13, 14, 15, 20});
  }
}

TEST_F(StreamTest, WhatIsDoneWithLeavesTheRetainedRowsBehindWhatIsHeld) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 18);
  PutUpTo(18);
  // All eight rows of the limit.
  stream_.MakeRoom(18, {{0, 2, true}, {4, 6, true}, {17, 1, true}});
  EXPECT_EQ(stream_.kept_rows(), 2u + 6 + 1);
  EXPECT_EQ(stream_.TakeFreed().at(0).ring_position, 17u);
  Write(*joined, 18, 12);
  PutUpTo(30);
  // Rows 0 and 1 remain held, 4 to 9 do not.
  stream_.MakeRoom(30, {{0, 2, true}, {17, 5, true}});
  EXPECT_FALSE(stream_.ShortOfRoom());
  ExpectRows(stream_, {0, 1, 17, 18, 19, 20, 21});
  EXPECT_EQ(stream_.kept_rows(), 2u + 5);
  EXPECT_EQ(stream_.Find(4, 1).status().code(), StatusCode::kDataLoss);
}

TEST_F(StreamTest, AnRetainedRowsThatWasEmptyIsOpenedAnew) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 16);
  PutUpTo(12);
  stream_.MakeRoom(12, {{2, 2, true}});
  // The producers and the record do not know it yet.
  stream_.Release(12);
  ASSERT_TRUE(stream_.Put(0, 12, 4).ok());
  Write(*joined, 18, 8);
  ASSERT_TRUE(stream_.Put(0, 18, 4).ok());
  ASSERT_TRUE(stream_.Put(0, 22, 4).ok());
  stream_.MakeRoom(24, {{13, 1, true}});
  EXPECT_EQ(Row(stream_, 13), 113);
  next_record_.ledger = record_.ledger;
  next_.Restore(record_.Former());
  EXPECT_EQ(Row(next_, 13), 113);
}

TEST_F(StreamTest, TheRetainedRowsMayDieWithTheBroker) {
  const auto joined = Join(&stream_, kToken);
  ASSERT_TRUE(joined.ok());
  Write(*joined, 0, 12);
  PutUpTo(12);
  stream_.MakeRoom(12, {{2, 2, true}});
  FormerStream former = record_.Former();
  former.kept.erase(StreamLedger::kRetained);
  next_record_.ledger = record_.ledger;
  next_.Restore(std::move(former));
  // Their holders have them; only when they must be redone ...
  EXPECT_TRUE(next_.GiveUpAway(0).ok());
  EXPECT_EQ(next_.available(), 12u);
  EXPECT_EQ(next_.Find(2, 1).status().code(), StatusCode::kDataLoss);
}

// ---- the journal

TEST(StreamJournalTest, AStreamIsFoundAsItWas) {
  const std::string directory =
      testing::TempDir() + "stream-" + std::to_string(getpid());
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  JobOptions options;
  options.spec = *ParseDatasetSpec(
      "dataset: rows\n"
      "source: {stream: {features: {value: {dtype: int64, shape: []}}}}\n"
      "batch: {size: 1}\n",
      "test", "/");
  StreamLedger ledger(5, 2);
  uint64_t job = 0;
  const auto join = [&](RecoveryJournal* journal, uint64_t token) {
    StreamLedger::Producer producer;
    producer.token = token;
    producer.ring_rows = kRing;
    producer.put_rows = 8;
    ASSERT_TRUE(journal->ProducerJoined(job, ledger, producer, -1, -1).ok());
    ledger.Join(ledger.next_producer(), token, kRing, 8);
  };
  const auto put = [&](RecoveryJournal* journal, uint32_t producer,
                       uint64_t ring_position, uint64_t rows) {
    journal->RowsPut(job, producer, ring_position, rows, ledger.end());
    ledger.Put(producer, ring_position, rows, ledger.end());
  };
  const auto opened = [&](std::vector<StoredFd> stored) {
    auto journal = RecoveryJournal::Open(directory, std::move(stored));
    EXPECT_TRUE(journal.ok());
    return *std::move(journal);
  };
  {
    const auto journal = opened({});
    job = *journal->JobOpened({0, "job", "rows", {}}, options, {}, true, {});
    join(journal.get(), 3);
    join(journal.get(), 4);
    put(journal.get(), 0, 0, 8);
    put(journal.get(), 1, 0, 8);
    put(journal.get(), 0, 8, 5);
    journal->RowsReleased(job, 10);
    ledger.Release(10);
    journal->ProducerLeft(job, 1, true);
    ledger.Leave(1, true);
  }
  // From the records; then, after much rewriting, from a compacted journal.
  for (int round = 0; round < 2; ++round) {
    Fd memory(memfd_create("memory", MFD_CLOEXEC));
    std::vector<StoredFd> stored;
    stored.push_back(
        {"producer-" + std::to_string(job) + "-0", Duplicate(memory.get())});
    stored.push_back(
        {"producerpid-" + std::to_string(job) + "-1", Duplicate(memory.get())});
    stored.push_back(
        {"producer-" + std::to_string(job) + "-9", Duplicate(memory.get())});
    const auto journal = opened(std::move(stored));
    std::vector<FormerJob> jobs = journal->TakeJobs();
    ASSERT_EQ(jobs.size(), 1u);
    ASSERT_TRUE(jobs[0].stream);
    EXPECT_EQ(jobs[0].stream->ledger.ToJson(), ledger.ToJson());
    EXPECT_EQ(jobs[0].stream->ledger.end(), ledger.end());
    EXPECT_TRUE(jobs[0].stream->kept[0].memory);
    EXPECT_FALSE(jobs[0].stream->kept[0].pidfd);
    // Its rows are released meanwhile.
    EXPECT_EQ(jobs[0].stream->kept.count(1), round == 0 ? 1u : 0u);
    EXPECT_EQ(jobs[0].stream->kept.count(9), 0u);
    if (round == 1) break;
    const auto size = [&] {
      return std::filesystem::file_size(directory + "/journal");
    };
    // Small rows, until the journal is compacted.
    uint64_t ring_position = 13;
    for (uint64_t before = 0; before <= size();) {
      before = size();
      for (int i = 0; i < 1000; ++i) {
        if (ring_position % kRing > kRing - 3)
          ring_position += kRing - ring_position % kRing;
        put(journal.get(), 0, ring_position, 3);
        ring_position += 3;
        journal->RowsReleased(job, ledger.end() - 2);
        ledger.Release(ledger.end() - 2);
      }
      journal->Flush();
    }
  }
  std::filesystem::remove_all(directory);
}

}  // namespace penstock::stream_test
