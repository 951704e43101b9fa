// Promise: after any death, Open gives back every record that the journal
// acknowledged, and never a wrong one. Method: the real journal over simulated
// files: damage at every byte, disks that fail, and deaths of the process or
// the machine at every call.
#include "broker/recovery/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/memory_journal_files.h"

namespace penstock::journal_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Records = std::vector<std::pair<int, std::string>>;

// A journal in memory that can be reopened.
class JournalTest : public ::testing::Test {
 protected:
  // A new process opens it; the former one is gone.
  Status TryOpen(MemoryDisk* disk) {
    journal_.reset();
    records_.clear();
    auto journal = Journal::Open(
        std::make_unique<MemoryJournalFiles>(disk), limits_,
        [this](uint8_t type, std::string_view payload) {
          records_.emplace_back(type, payload);
          return OkStatus();
        },
        &replayed_);
    if (!journal.ok()) return journal.status();
    journal_ = *std::move(journal);
    return OkStatus();
  }
  Status TryOpen() { return TryOpen(&disk_); }
  const Records& Open() {
    const Status status = TryOpen();
    EXPECT_TRUE(status.ok()) << status.message();
    return records_;
  }
  void Append(const std::string& payload, int type = 1) {
    const Status status = journal_->Append(static_cast<uint8_t>(type), payload);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Status Compact(const Records& live) {
    return journal_->Compact([&live](const JournalRecord& put) {
      for (const auto& [type, payload] : live) {
        PENSTOCK_RETURN_IF_ERROR(put(static_cast<uint8_t>(type), payload));
      }
      return OkStatus();
    });
  }
  std::string& file() { return disk_.bytes("journal"); }

  // Five records, one of them empty, as a file of under 150 bytes.
  Records FiveRecords() {
    Open();
    const Records records = {{1, "{\"job\": \"a\"}"},
                             {2, ""},
                             {255, std::string("\0\0\1", 3)},
                             {7, "{\"done\": [4, 5, 6]}"},
                             {1, "the last one"}};
    for (const auto& [type, payload] : records) Append(payload, type);
    return records;
  }

  MemoryDisk disk_;
  JournalLimits limits_;
  std::unique_ptr<Journal> journal_;
  Records records_;
  JournalReplay replayed_;
};

Records First(const Records& records, size_t count) {
  return {records.begin(), records.begin() + static_cast<ptrdiff_t>(count)};
}

bool IsPrefix(const Records& some, const Records& all) {
  return some.size() <= all.size() && some == First(all, some.size());
}

TEST_F(JournalTest, ANewJournalIsEmpty) {
  EXPECT_THAT(Open(), IsEmpty());
  EXPECT_EQ(file().size(), kJournalHeaderBytes);
  EXPECT_THAT(Open(), IsEmpty());
  EXPECT_EQ(replayed_.warning, "");
  EXPECT_FALSE(journal_->WantsCompaction());
}

TEST_F(JournalTest, RecordsComeBackInOrderOverSeveralInstances) {
  Records expected = FiveRecords();
  EXPECT_EQ(Open(), expected);
  Append("after the restart", 9);
  expected.emplace_back(9, "after the restart");
  EXPECT_EQ(Open(), expected);
  EXPECT_EQ(replayed_.records, 6u);
  EXPECT_EQ(replayed_.bytes_cut, 0u);
  EXPECT_EQ(replayed_.warning, "");
}

// The bytes that broker/recovery/journal.h documents.
TEST_F(JournalTest, FormatIsFrozen) {
  disk_.random = 0x04030201u - 0x9e3779b9u;
  Open();
  Append("abc", 5);
  EXPECT_EQ(file().substr(0, 8), "penstkJ\n");
  EXPECT_EQ(file().substr(8, 8), std::string("\1\0\0\0\1\2\3\4", 8));
  EXPECT_EQ(file().substr(16, 8), std::string("\x1c\0\0\0\0\0\0\0", 8));
  // From Python's zlib: crc32(file[:24]); crc32(b"abc", crc32(b"\5",
  // crc32(b"\3\0\0\0", 0x04030201))).
  EXPECT_EQ(file().substr(24, 4), std::string("\014\253\016\150", 4));
  EXPECT_EQ(file().substr(28), std::string("\3\0\0\0\261\165\067\076\5"
                                           "abc",
                                           12));
}

TEST_F(JournalTest, TheLargestRecordFitsAndALargerOneIsRefused) {
  Open();
  std::string largest(kJournalRecordBytesMax, 'x');
  Append(largest);
  EXPECT_EQ(journal_->Append(1, largest + "x").code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(journal_->Append(0, "x").code(), StatusCode::kInvalidArgument);
  Append("small");
  EXPECT_EQ(Open(), (Records{{1, largest}, {1, "small"}}));
}

TEST_F(JournalTest, RecordsLargerThanTheReadBufferComeBack) {
  Open();
  Records expected;
  for (int i = 0; i < 40; ++i) {
    expected.emplace_back(1 + i, std::string(7919 * (i % 13), 'a' + i % 26));
    Append(expected.back().second, 1 + i);
  }
  EXPECT_EQ(Open(), expected);
}

TEST_F(JournalTest, AnErrorOfTheReplayEndsOpenAndLeavesTheFile) {
  FiveRecords();
  file() += "torn";
  const std::string before = file();
  journal_.reset();
  auto journal = Journal::Open(
      std::make_unique<MemoryJournalFiles>(&disk_), limits_,
      [](uint8_t type, std::string_view) {
        return type == 7 ? InvalidArgumentError("no such job") : OkStatus();
      },
      &replayed_);
  ASSERT_FALSE(journal.ok());
  EXPECT_THAT(journal.status().message(),
              HasSubstr("/memory/journal, record 3 at byte "));
  EXPECT_EQ(file(), before);
}

// ---- a damaged file

TEST_F(JournalTest, ATornEndIsCutAtTheLastWholeRecordWhereverItIsTorn) {
  const Records expected = FiveRecords();
  const std::string whole = file();
  std::vector<size_t> ends = {kJournalHeaderBytes};
  for (const auto& [type, payload] : expected) {
    ends.push_back(ends.back() + kJournalFrameBytes + payload.size());
  }
  ASSERT_EQ(ends.back(), whole.size());
  for (size_t torn = kJournalHeaderBytes; torn <= whole.size(); ++torn) {
    const size_t records =
        static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), torn) -
                            ends.begin()) -
        1;
    // As a process's death leaves it, as a machine's death does, and a third
    // way.
    for (const std::string& rest :
         {std::string(), std::string(20, '\0'), std::string(4096, '\0'),
          std::string(20, '\xff'), std::string(20, 'x')}) {
      SCOPED_TRACE(testing::Message() << torn << ", then " << rest);
      file() = whole.substr(0, torn) + rest;
      ASSERT_EQ(Open(), First(expected, records));
      ASSERT_EQ(file().size(), ends[records]);
      ASSERT_EQ(replayed_.warning.empty(), replayed_.bytes_cut == 0);
      Append("goes on");
      Records more = First(expected, records);
      more.emplace_back(1, "goes on");
      ASSERT_EQ(Open(), more);
      ASSERT_EQ(replayed_.warning, "");
    }
  }
}

TEST_F(JournalTest, TheWarningSaysWhereAndWhatWasCut) {
  FiveRecords();
  file().resize(file().size() - 3);
  Open();
  EXPECT_THAT(replayed_.warning, HasSubstr("/memory/journal: at byte 98"));
  EXPECT_THAT(replayed_.warning, HasSubstr("after 4 whole records"));
  EXPECT_THAT(replayed_.warning,
              HasSubstr("a record of 12 bytes, of which 9 are there"));
  EXPECT_THAT(replayed_.warning, HasSubstr("18 bytes are cut off"));
  EXPECT_EQ(replayed_.bytes_cut, 18u);
}

TEST_F(JournalTest, DamageOfWhatWasSafeOnDiskIsNotCalledADeath) {
  Open();
  ASSERT_TRUE(Compact({{1, "one"}, {2, "two"}}).ok());
  Append("three", 3);
  file()[kJournalHeaderBytes + kJournalFrameBytes + 3 + kJournalFrameBytes] ^=
      1;
  EXPECT_THAT(Open(), ElementsAre(std::pair(1, "one")));
  EXPECT_THAT(replayed_.warning, HasSubstr("the disk or another program"));
  EXPECT_TRUE(journal_->WantsCompaction());
  ASSERT_TRUE(Compact({{1, "one"}}).ok());
  EXPECT_THAT(Open(), ElementsAre(std::pair(1, "one")));
  EXPECT_EQ(replayed_.warning, "");
}

TEST_F(JournalTest, ATornHeaderIsReplacedByAnEmptyJournal) {
  Open();
  const std::string header = file();
  for (size_t torn = 0; torn < kJournalHeaderBytes; ++torn) {
    SCOPED_TRACE(torn);
    file() = header.substr(0, torn);
    ASSERT_THAT(Open(), IsEmpty());
    ASSERT_NE(replayed_.warning, "");
    Append("one");
    ASSERT_THAT(Open(), ElementsAre(std::pair(1, "one")));
  }
}

TEST_F(JournalTest, AFlippedBitNeverMakesAWrongRecord) {
  const Records expected = FiveRecords();
  const std::string whole = file();
  size_t refused = 0;
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    SCOPED_TRACE(bit);
    file() = whole;
    file()[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const std::string flipped = file();
    const Status status = TryOpen();
    if (bit < kJournalHeaderBytes * 8) {
      ASSERT_FALSE(status.ok());
      ASSERT_THAT(status.message(), HasSubstr("move"));
      ASSERT_EQ(file(), flipped);
      ++refused;
      continue;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_LT(records_.size(), expected.size());
    ASSERT_TRUE(IsPrefix(records_, expected));
    ASSERT_NE(replayed_.warning, "");
  }
  EXPECT_EQ(refused, kJournalHeaderBytes * 8);
}

TEST_F(JournalTest, RecordsOfAnotherFileOrPlaceAreNoRecords) {
  FiveRecords();
  const std::string old_frames = file().substr(kJournalHeaderBytes);
  disk_.names.clear();
  Open();
  file() += old_frames;
  EXPECT_THAT(Open(), IsEmpty());
  // The same frame twice: the second does not follow the frame it was written
  // after.
  Append("once");
  file() += file().substr(kJournalHeaderBytes);
  EXPECT_THAT(Open(), ElementsAre(std::pair(1, "once")));
}

TEST_F(JournalTest, ZerosAreNoRecordWhateverTheSalt) {
  // The only salt for which an empty frame of zeros has the right checksum.
  disk_.random = 0x0b840633u - 0x9e3779b9u;
  Open();
  file() += std::string(100, '\0');
  EXPECT_THAT(Open(), IsEmpty());
  EXPECT_EQ(replayed_.bytes_cut, 100u);
}

TEST_F(JournalTest, ALengthAloneAllocatesNothing) {
  Open();
  file() += std::string("\xff\xff\xff\xff\0\0\0\0\1", 9);
  EXPECT_THAT(Open(), IsEmpty());
  EXPECT_THAT(replayed_.warning, HasSubstr("4294967295 bytes"));
  file() += std::string("\0\0\x10\0\0\0\0\0\1", 9);  // 1 MiB, not there
  EXPECT_THAT(Open(), IsEmpty());
}

TEST_F(JournalTest, AForeignFileIsRefusedAndUntouched) {
  for (const std::string& foreign :
       {std::string("{\"not\": \"a journal\"}, and longer than a header"),
        std::string("x"), std::string(100, '\0'),
        std::string("penstkJ\n\2\0\0\0", 12) + " of a newer version, whole",
        std::string("penstkJ\n\2", 9)}) {
    file() = foreign;
    const Status status = TryOpen();
    ASSERT_EQ(status.code(), StatusCode::kFailedPrecondition) << foreign;
    EXPECT_THAT(status.message(), HasSubstr("/memory/journal"));
    EXPECT_THAT(status.message(), HasSubstr("move"));
    EXPECT_EQ(file(), foreign);
    EXPECT_EQ(disk_.names.size(), 1u);
  }
}

TEST_F(JournalTest, AFileThatCannotBeReadIsNotCut) {
  FiveRecords();
  const std::string whole = file();
  int calls = 0;
  for (int failing = 0; failing < 2; ++failing) {
    disk_.fail = [&](const std::string& call) {
      return call == "read journal" && calls++ == failing ? EIO : 0;
    };
    calls = 0;
    EXPECT_EQ(TryOpen().code(), StatusCode::kDataLoss);
    EXPECT_EQ(file(), whole);
  }
  disk_.fail = nullptr;
  EXPECT_EQ(Open().size(), 5u);
}

TEST_F(JournalTest, AnEndThatCannotBeTruncatedIsOverwritten) {
  const Records expected = FiveRecords();
  const std::string whole = file();
  // The frame of record 2 is damaged, those after it are intact; a record is
  // appended that ends where one of those begins.
  file()[kJournalHeaderBytes + 9 + 12 + 8] ^= 1;
  disk_.fail = [](const std::string& call) {
    return call == "truncate journal" ? EIO : 0;
  };
  EXPECT_EQ(Open(), First(expected, 1));
  EXPECT_THAT(replayed_.warning, HasSubstr("truncating failed"));
  EXPECT_EQ(file().size(), whole.size());
  Append("", 2);
  EXPECT_EQ(file(), whole) << "the very record that was there: no damage left";
  file()[kJournalHeaderBytes + 9 + 12 + 8] ^= 1;
  Open();
  Append("", 3);
  Records more = First(expected, 1);
  more.emplace_back(3, "");
  EXPECT_EQ(Open(), more);
}

// ---- a disk that fails

TEST_F(JournalTest, ShortWritesAreCarriedOn) {
  disk_.write_bytes_max = 1;
  Records expected = FiveRecords();
  ASSERT_TRUE(Compact(expected).ok());
  EXPECT_EQ(Open(), expected);
}

TEST_F(JournalTest, AFullDiskLosesOnlyWhatAppendSaidItLost) {
  // The disk is full at every byte of a run of appends, and then not any more.
  bool any_failed = false;
  for (size_t room = 0; room < 120; ++room) {
    SCOPED_TRACE(room);
    disk_ = MemoryDisk();
    Open();
    Records expected;
    bool failed = false;
    for (int i = 0; i < 12; ++i) {
      disk_.bytes_max = i < 8 ? kJournalHeaderBytes + room : SIZE_MAX;
      const std::string payload = "record " + std::to_string(i * 1000);
      const Status status = journal_->Append(1, payload);
      if (status.ok()) {
        expected.emplace_back(1, payload);
        continue;
      }
      failed = true;
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted);
      ASSERT_THAT(status.message(), HasSubstr("/memory/journal"));
      ASSERT_THAT(status.message(), HasSubstr("free space"));
    }
    ASSERT_EQ(Open(), expected);
    ASSERT_FALSE(replayed_.damaged);
    any_failed |= failed;
  }
  EXPECT_TRUE(any_failed);
}

TEST_F(JournalTest, WhatAFailedAppendLeftIsTruncated) {
  const Records expected = FiveRecords();
  const size_t whole = file().size();
  disk_.bytes_max = whole + 10;
  ASSERT_FALSE(journal_->Append(1, "does not fit").ok());
  EXPECT_EQ(file().size(), whole);
  EXPECT_EQ(Open(), expected);
  EXPECT_FALSE(replayed_.damaged);
}

TEST_F(JournalTest, WhatAFailedAppendLeftIsNoRecordEvenIfItCannotBeTruncated) {
  for (const size_t landed : {0, 1, 9, 20, 58}) {
    SCOPED_TRACE(landed);
    disk_ = MemoryDisk();
    Open();
    Append("first");
    // Its payload looks like a frame.
    const std::string tricky =
        file().substr(kJournalHeaderBytes) + std::string(36, 'x');
    disk_.bytes_max = file().size() + landed;
    disk_.fail = [](const std::string& call) {
      return call == "truncate journal" ? EIO : 0;
    };
    ASSERT_FALSE(journal_->Append(1, tricky).ok());
    disk_.bytes_max = SIZE_MAX;
    Append("");
    ASSERT_EQ(Open(), (Records{{1, "first"}, {1, ""}}));
  }
}

TEST_F(JournalTest, AFailedCompactionIsTriedAgainAfterSomeGrowth) {
  limits_.compact_bytes_min = 100;
  Open();
  Append(std::string(100, 'x'));
  EXPECT_TRUE(journal_->WantsCompaction());
  disk_.bytes_max = file().size();
  EXPECT_EQ(Compact({{1, "x"}}).code(), StatusCode::kResourceExhausted);
  EXPECT_FALSE(journal_->WantsCompaction());
  EXPECT_EQ(disk_.names.count("journal.new"), 0u);
  // Failed appends count as growth too: a full disk needs the compaction.
  for (uint64_t bytes = 0; bytes < Journal::kRetryBytes; bytes += 4000) {
    EXPECT_FALSE(journal_->WantsCompaction());
    EXPECT_FALSE(journal_->Append(1, std::string(4000, 'y')).ok());
  }
  EXPECT_TRUE(journal_->WantsCompaction());
  EXPECT_EQ(Open().size(), 1u);
}

TEST_F(JournalTest, TheFileHasALimit) {
  limits_.file_bytes_max = 1000;
  Open();
  Append(std::string(900, 'x'));
  const Status status = journal_->Append(1, std::string(100, 'y'));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("1000 at most"));
  EXPECT_EQ(Compact({{1, std::string(999, 'z')}}).code(),
            StatusCode::kResourceExhausted);
  ASSERT_TRUE(Compact({{1, "z"}}).ok());
  Append(std::string(100, 'y'));
  // A lower limit than that of the former run loses nothing.
  limits_.file_bytes_max = 10;
  EXPECT_EQ(Open().size(), 2u);
  EXPECT_EQ(journal_->Append(1, "").code(), StatusCode::kResourceExhausted);
}

// ---- compaction

TEST_F(JournalTest, CompactionKeepsTheLiveRecordsAndShrinksTheFile) {
  Open();
  for (int i = 0; !journal_->WantsCompaction(); ++i) {
    Append("progress " + std::to_string(i));
  }
  EXPECT_GT(file().size(), size_t{1} << 20);
  EXPECT_LT(file().size(), (size_t{1} << 20) + 100);
  ASSERT_TRUE(Compact({{3, "job"}, {1, "progress"}}).ok());
  EXPECT_EQ(file().size(), kJournalHeaderBytes + 2 * 9 + 3 + 8);
  EXPECT_EQ(journal_->size_bytes(), file().size());
  Append("more", 4);
  EXPECT_THAT(Open(), ElementsAre(std::pair(3, "job"), std::pair(1, "progress"),
                                  std::pair(4, "more")));
}

TEST_F(JournalTest, TheNextCompactionIsWantedAtFourTimesTheSizeOfTheLast) {
  limits_.compact_bytes_min = 100;
  Open();
  ASSERT_TRUE(Compact({{1, std::string(1000, 'x')}}).ok());
  const size_t compacted = file().size();
  // Also after a restart, even though more was appended.
  Append(std::string(1000, 'x'));
  Open();
  while (file().size() + 9 <= 4 * compacted) {
    ASSERT_FALSE(journal_->WantsCompaction());
    Append("");
  }
  Append("");
  EXPECT_TRUE(journal_->WantsCompaction());
}

TEST_F(JournalTest, ACallersErrorLeavesTheJournalAsItWas) {
  const Records expected = FiveRecords();
  const Status status = journal_->Compact([](const JournalRecord& put) {
    PENSTOCK_RETURN_IF_ERROR(put(1, std::string(100000, 'x')));
    return CancelledError("asked to stop");
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(disk_.names.count("journal.new"), 0u);
  EXPECT_EQ(Open(), expected);
}

TEST_F(JournalTest, ALeftOverNewFileIsRemoved) {
  const Records expected = FiveRecords();
  disk_.bytes("journal.new") = "half of one";
  EXPECT_EQ(Open(), expected);
  EXPECT_EQ(disk_.names.count("journal.new"), 0u);
}

// ---- death

// A broker with five jobs that count up, which compacts at times.
struct Workload {
  using State = std::map<std::string, int>;

  static void Apply(std::string_view payload, State* state) {
    const size_t equals = payload.find('=');
    (*state)[std::string(payload.substr(0, equals))] =
        std::stoi(std::string(payload.substr(equals + 1)));
  }

  Status Count(Journal* journal) {
    ++count;
    const std::string payload =
        "job" + std::to_string(count % 5) + "=" + std::to_string(count);
    begun = acked;
    Apply(payload, &begun);
    PENSTOCK_RETURN_IF_ERROR(journal->Append(1, payload));
    acked = begun;
    return OkStatus();
  }

  Status Run(Journal* journal) {
    for (int step = 0; step < 24; ++step) {
      PENSTOCK_RETURN_IF_ERROR(Count(journal));
      if (step % 9 != 8) continue;
      PENSTOCK_RETURN_IF_ERROR(journal->Compact([&](const JournalRecord& put) {
        for (const auto& [job, count] : acked) {
          PENSTOCK_RETURN_IF_ERROR(put(1, job + "=" + std::to_string(count)));
        }
        return OkStatus();
      }));
      synced = acked;
    }
    return OkStatus();
  }

  int count = 0;
  State acked;   // by Append
  State begun;   // with the one under way
  State synced;  // by a Compact
};

class JournalDeathTest : public JournalTest {
 protected:
  // Runs the workload until it dies in call n; false if it survives.
  bool DieAt(size_t n, size_t torn_quarters) {
    disk_ = MemoryDisk();
    disk_.die_at_call = n;
    disk_.torn_quarters = torn_quarters;
    work_ = Workload();
    if (TryOpen().ok()) {
      const Status status = work_.Run(journal_.get());
      EXPECT_EQ(status.ok(), !disk_.died) << status.message();
    }
    journal_.reset();
    disk_.die_at_call = SIZE_MAX;
    return disk_.died;
  }
  Workload::State StateAtOpen() {
    Workload::State state;
    for (const auto& [type, payload] : Open()) Workload::Apply(payload, &state);
    return state;
  }

  Workload work_;
};

TEST_F(JournalDeathTest, OfTheProcessAtAnyCallLosesNoAckedRecord) {
  size_t deaths = 0;
  for (size_t torn = 0; torn <= 4; ++torn) {
    for (size_t n = 0; DieAt(n, torn); ++n, ++deaths) {
      SCOPED_TRACE(testing::Message() << "call " << n << ", torn " << torn);
      const Workload::State state = StateAtOpen();
      ASSERT_TRUE(state == work_.acked || state == work_.begun);
      ASSERT_EQ(disk_.names.size(), 1u) << "journal.new is left";
      Append("job0=9999");
      ASSERT_EQ(StateAtOpen()["job0"], 9999);
    }
  }
  EXPECT_GT(deaths, 5 * 40u);
}

// Records of several pages, and small ones whose head crosses the end of a
// page.
TEST_F(JournalDeathTest, OfTheProcessAtThePagesOfAWriteIsNoDamage) {
  constexpr size_t kPage = 4096;
  size_t unfinished = 0;
  for (size_t over = 0; over <= kJournalFrameBytes + 1; ++over) {
    for (const size_t bytes : {size_t{0}, size_t{30}, 3 * kPage}) {
      // A quarter of a frame of one page; each page of one of several.
      for (size_t torn = 0; torn <= 4; ++torn) {
        for (size_t call = 0; call < 2; ++call) {
          SCOPED_TRACE(testing::Message()
                       << over << " bytes before a page's end, " << bytes
                       << " bytes, call " << call << ", torn " << torn);
          disk_ = MemoryDisk();
          Open();
          Append(std::string(
              kPage - over - kJournalHeaderBytes - kJournalFrameBytes, 'x'));
          ASSERT_EQ(file().size(), kPage - over);
          disk_.torn_quarters = torn;
          disk_.torn_at_page = true;
          disk_.die_at_call = disk_.calls + call;
          const bool appended =
              journal_->Append(1, std::string(bytes, 'y')).ok();
          journal_.reset();
          disk_.die_at_call = SIZE_MAX;
          const size_t records = Open().size();
          ASSERT_FALSE(replayed_.damaged) << replayed_.warning;
          ASSERT_GE(records, appended ? 2u : 1u);
          ASSERT_EQ(replayed_.unfinished, !replayed_.warning.empty());
          unfinished += replayed_.unfinished;
        }
      }
    }
  }
  EXPECT_GT(unfinished, 50u);
}

// A group is one Append: all of it survives, or nothing.
TEST_F(JournalDeathTest, OfTheProcessInAGroupLeavesAllOfItOrNothing) {
  const std::string small(30, 'y');
  const std::string large(2 * 4096, 'z');
  const JournalEntry group[] = {{1, small}, {2, large}, {3, small}, {4, ""}};
  size_t whole = 0;
  size_t none = 0;
  for (const size_t before : {size_t{10}, size_t{4040}, size_t{4050}}) {
    for (size_t torn = 0; torn <= 4; ++torn) {
      for (size_t call = 0; call < 3; ++call) {
        SCOPED_TRACE(testing::Message() << before << " bytes before, call "
                                        << call << ", torn " << torn);
        disk_ = MemoryDisk();
        Open();
        Append(std::string(before, 'x'));
        disk_.torn_quarters = torn;
        disk_.torn_at_page = true;
        disk_.die_at_call = disk_.calls + call;
        const bool appended = journal_->Append(group).ok();
        journal_.reset();
        disk_.die_at_call = SIZE_MAX;
        const size_t records = Open().size();
        ASSERT_FALSE(replayed_.damaged) << replayed_.warning;
        ASSERT_TRUE(records == 1 || records == 5) << records;
        ASSERT_TRUE(records == 5 || !appended);
        ++(records == 5 ? whole : none);
      }
    }
  }
  EXPECT_GT(whole, 5u);
  EXPECT_GT(none, 5u);
}

TEST_F(JournalTest, AGroupThatDoesNotFitLeavesNothing) {
  Open();
  Append("one");
  disk_.bytes_max = file().size() + 100;
  const std::string text(60, 'x');
  const JournalEntry group[] = {{1, text}, {1, text}};
  EXPECT_EQ(journal_->Append(group).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Open(), ElementsAre(std::pair<int, std::string>(1, "one")));
  // Unwritten bytes are not damage.
  EXPECT_FALSE(replayed_.damaged);
}

// It loses what the disk lost, and makes no wrong record of the rest: with its
// name, a file has all that the compaction put which gave it that name.
TEST_F(JournalDeathTest, OfTheMachineAtAnyCallLeavesAnEarlierMoment) {
  size_t deaths = 0;
  for (const bool names_lost : {false, true}) {
    for (const auto lost :
         {MemoryDisk::Lost::kNothing, MemoryDisk::Lost::kBytes,
          MemoryDisk::Lost::kBytesAreZeros}) {
      for (size_t n = 0; DieAt(n, 4); ++n, ++deaths) {
        SCOPED_TRACE(testing::Message()
                     << "call " << n << ", names " << names_lost << ", lost "
                     << static_cast<int>(lost));
        disk_.MachineDies(names_lost, lost);
        Workload::State state = StateAtOpen();
        for (const auto& [job, count] : state) {
          ASSERT_LE(count, work_.begun[job]) << job;
        }
        for (const auto& [job, count] : work_.synced) {
          if (!names_lost) {
            ASSERT_GE(state[job], count) << job;
          }
        }
        Append("job0=9999");
        ASSERT_EQ(StateAtOpen()["job0"], 9999);
      }
    }
  }
  EXPECT_GT(deaths, 6 * 40u);
}

TEST_F(JournalDeathTest, OfAnyCallThatOnlyFailsLosesNoAckedRecord) {
  // The call fails and the process goes on.
  for (size_t n = 0;; ++n) {
    SCOPED_TRACE(n);
    disk_ = MemoryDisk();
    size_t calls = 0;
    disk_.fail = [&](const std::string&) { return calls++ == n ? EIO : 0; };
    Status opened = TryOpen();
    if (!opened.ok()) opened = TryOpen();
    ASSERT_TRUE(opened.ok()) << opened.message();
    Workload::State acked;
    for (int step = 0; step < 20; ++step) {
      const std::string payload =
          "job" + std::to_string(step % 5) + "=" + std::to_string(step);
      if (journal_->Append(1, payload).ok()) Workload::Apply(payload, &acked);
      if (step % 6 == 5) {
        (void)journal_->Compact([&acked](const JournalRecord& put) {
          for (const auto& [job, count] : acked) {
            PENSTOCK_RETURN_IF_ERROR(put(1, job + "=" + std::to_string(count)));
          }
          return OkStatus();
        });
      }
    }
    if (calls <= n) break;
    ASSERT_EQ(StateAtOpen(), acked);
  }
}

// ---- a real directory

class JournalDirectoryTest : public ::testing::Test {
 protected:
  JournalDirectoryTest() {
    std::string path = testing::TempDir() + "journalXXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    directory_ = path;
  }
  ~JournalDirectoryTest() override { std::filesystem::remove_all(directory_); }

  StatusOr<std::unique_ptr<Journal>> TryOpen() {
    auto files = OpenJournalDirectory(directory_);
    if (!files.ok()) return files.status();
    records_.clear();
    return Journal::Open(
        *std::move(files), JournalLimits(),
        [this](uint8_t type, std::string_view payload) {
          records_.emplace_back(type, payload);
          return OkStatus();
        },
        &replayed_);
  }
  std::unique_ptr<Journal> Open() {
    auto journal = TryOpen();
    EXPECT_TRUE(journal.ok()) << journal.status().message();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  std::string PathOf(const std::string& name) {
    return directory_ + "/" + name;
  }
  std::string ReadFile(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string directory_;
  Records records_;
  JournalReplay replayed_;
};

TEST_F(JournalDirectoryTest, RecordsSurviveCompactionAndRestart) {
  auto journal = Open();
  ASSERT_TRUE(journal->Append(1, "one").ok());
  ASSERT_TRUE(journal
                  ->Compact([](const JournalRecord& put) {
                    return put(2, "one, compacted");
                  })
                  .ok());
  ASSERT_TRUE(journal->Append(3, "two").ok());
  journal.reset();
  journal = Open();
  EXPECT_THAT(records_,
              ElementsAre(std::pair(2, "one, compacted"), std::pair(3, "two")));
  EXPECT_FALSE(std::filesystem::exists(PathOf("journal.new")));
  struct stat info;
  ASSERT_EQ(stat(PathOf("journal").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(JournalDirectoryTest, ASecondOpenerIsRefused) {
  auto journal = Open();
  // The lock is not on the file itself, so a compaction keeps it.
  ASSERT_TRUE(
      journal->Compact([](const JournalRecord&) { return OkStatus(); }).ok());
  const Status status = TryOpen().status();
  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(status.message(), HasSubstr(directory_));
  ASSERT_TRUE(journal->Append(1, "mine").ok());
  journal.reset();
  Open();
  EXPECT_EQ(records_.size(), 1u);
}

TEST_F(JournalDirectoryTest, ADirectoryThatIsNotThereIsNamed) {
  const Status status = OpenJournalDirectory(PathOf("missing")).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(PathOf("missing")));
  EXPECT_THAT(status.message(), HasSubstr("create it"));
}

TEST_F(JournalDirectoryTest, AForeignFileIsRefusedAndUntouched) {
  std::ofstream(PathOf("journal")) << "someone's notes\n";
  const Status status = TryOpen().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("move it away"));
  EXPECT_EQ(ReadFile(PathOf("journal")), "someone's notes\n");
}

TEST_F(JournalDirectoryTest, WhatIsNotARegularFileIsRefused) {
  // Even if the link leads to a valid journal.
  Open().reset();
  std::filesystem::rename(PathOf("journal"), PathOf("elsewhere"));
  const std::string before = ReadFile(PathOf("elsewhere"));
  std::filesystem::create_symlink("elsewhere", PathOf("journal"));
  Status status = TryOpen().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("symbolic link"));
  EXPECT_EQ(ReadFile(PathOf("elsewhere")), before);

  std::filesystem::remove(PathOf("journal"));
  ASSERT_EQ(mkfifo(PathOf("journal").c_str(), 0600), 0);
  status = TryOpen().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("special file"));

  std::filesystem::remove(PathOf("journal"));
  std::filesystem::create_directory(PathOf("journal"));
  status = TryOpen().status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("it is a directory"));

  // A link at the path of the new file is removed, not followed.
  std::filesystem::remove(PathOf("journal"));
  std::filesystem::create_symlink("elsewhere", PathOf("journal.new"));
  Open();
  EXPECT_EQ(ReadFile(PathOf("elsewhere")), before);
  EXPECT_TRUE(std::filesystem::is_regular_file(
      std::filesystem::symlink_status(PathOf("journal"))));
}

// Some die during a write of several pages.
TEST_F(JournalDirectoryTest, AKilledProcessLosesNoAckedRecord) {
  uint32_t next = 0;
  for (int round = 0; round < 20; ++round) {
    int acks[2];
    ASSERT_EQ(pipe(acks), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto journal = TryOpen();
      for (uint32_t i = next; journal.ok(); ++i) {
        const std::string payload =
            std::to_string(i) + " " + std::string(i * 997 % 50'000, 'x');
        if (!(*journal)->Append(1, payload).ok()) break;
        if (write(acks[1], &i, sizeof(i)) != sizeof(i)) break;
        if (i % 500 == 499 && !(*journal)
                                   ->Compact([i](const JournalRecord& put) {
                                     return put(2, std::to_string(i));
                                   })
                                   .ok()) {
          break;
        }
      }
      _exit(1);
    }
    close(acks[1]);
    uint32_t last = 0;
    for (int acked = 0; acked < 300; ++acked) {
      ASSERT_EQ(read(acks[0], &last, sizeof(last)), sizeof(last));
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (read(acks[0], &last, sizeof(last)) == sizeof(last)) {
    }
    close(acks[0]);
    Open();  // the process's death released the lock
    EXPECT_FALSE(replayed_.damaged) << replayed_.warning;
    ASSERT_FALSE(records_.empty());
    EXPECT_GE(std::stoul(records_.back().second), last);
    EXPECT_LE(std::stoul(records_.back().second), last + 1);
    for (size_t i = 1; i < records_.size(); ++i) {
      EXPECT_EQ(std::stoul(records_[i].second),
                std::stoul(records_[i - 1].second) + 1);
    }
    next = static_cast<uint32_t>(std::stoul(records_.back().second)) + 1;
  }
}

}  // namespace penstock::journal_test
