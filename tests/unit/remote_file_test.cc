// Promise: a range of a remote file is read once all of it is there, and what
// somebody holds is not given up. Method: the test is the fetcher; it sees what
// is asked for, and answers late, in part, or with an error.
#include "broker/io/remote_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "broker/io/cached_range.h"
#include "broker/io/read.h"

namespace penstock::remote_file_test {

using testing::ElementsAre;
using testing::IsEmpty;
using Ask = RemoteFile::Ask;

constexpr uint64_t kBlock = RemoteFile::kBlockBytes;

struct Asked {
  Ask ask;
  uint64_t first;  // block
  uint64_t bytes;
  bool operator==(const Asked&) const = default;
};
void PrintTo(const Asked& asked, std::ostream* out) {
  *out << "ask " << static_cast<int>(asked.ask) << " from block " << asked.first
       << ", " << asked.bytes << " bytes";
}

class RemoteFileTest : public testing::Test {
 protected:
  // bytes: of the file; unit: in blocks.
  void Open(uint64_t bytes, uint64_t unit) {
    data_ = Fd(memfd_create("object", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(data_.get(), static_cast<off_t>(bytes)), 0);
    file_ = std::make_unique<RemoteFile>(
        RemoteFile::Opened{
            "s3://b/k", "v", "/copy", bytes, 7,
            std::make_shared<std::atomic<uint64_t>>(unit * kBlock), 1 << 20},
        Fd(dup(data_.get())),
        [this](Ask ask, uint64_t copy, const RemoteFile::Range& range) {
          EXPECT_EQ(copy, copy_);
          asked_.push_back({ask, range.offset / kBlock, range.bytes});
        });
  }
  std::vector<Asked> TakeAsked() { return std::exchange(asked_, {}); }
  // Blocks of the byte 'a' + block come from the store.
  void Come(uint64_t first, uint64_t end, bool kept) {
    for (uint64_t i = first; i < end; ++i) {
      const std::string block(kBlock, static_cast<char>('a' + i));
      ASSERT_EQ(pwrite(data_.get(), block.data(), kBlock,
                       static_cast<off_t>(i * kBlock)),
                static_cast<ssize_t>(kBlock));
    }
    ASSERT_EQ(ftruncate(data_.get(), static_cast<off_t>(file_->bytes())), 0);
    const uint64_t bytes =
        std::min(end * kBlock, file_->bytes()) - first * kBlock;
    file_->Arrived({first * kBlock, bytes}, kept);
  }
  std::shared_ptr<FetchWait> Hold(uint64_t offset, uint64_t bytes,
                                  Ask ask = Ask::kFetch) {
    auto wait = std::make_shared<FetchWait>(signal_);
    file_->Hold({offset, bytes}, wait, ask);
    return wait;
  }
  ReadRequest RequestOf(uint64_t offset, uint64_t bytes) {
    ReadRequest request;
    request.kind = ReadPart::Kind::kRange;
    request.fd = file_->fd();
    request.remote = file_.get();
    request.offset = offset;
    request.bytes = bytes;
    return request;
  }

  Fd data_;
  uint64_t copy_ = 7;
  std::vector<Asked> asked_;
  const std::shared_ptr<FetchSignal> signal_ = std::make_shared<FetchSignal>();
  std::unique_ptr<RemoteFile> file_;
};

TEST_F(RemoteFileTest, WhatIsNotThereIsAskedForOnce) {
  Open(10 * kBlock, 1);
  const auto first = Hold(kBlock + 5, 2 * kBlock);  // blocks 1 to 3
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 1, 3 * kBlock}));
  const auto second = Hold(3 * kBlock, 2 * kBlock);  // 3 and 4
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 4, kBlock}));
  Come(1, 4, /*kept=*/true);
  EXPECT_TRUE(first->over());
  EXPECT_FALSE(second->over());
  EXPECT_TRUE(file_->Keeps(kBlock, 3 * kBlock));
  EXPECT_FALSE(file_->Keeps(kBlock, 3 * kBlock + 1));
  Come(4, 5, true);
  EXPECT_TRUE(second->over());
  EXPECT_TRUE(Hold(kBlock, 4 * kBlock)->over());
  EXPECT_THAT(TakeAsked(), IsEmpty());
}

TEST_F(RemoteFileTest, PartsMayBeFetchedAlone) {
  Open(20 * kBlock, 8);
  file_->FetchUnits(false);
  Hold(kBlock + 5, kBlock);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 1, 2 * kBlock}));
  file_->FetchUnits(true);
  Hold(9 * kBlock, 1);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 8, 8 * kBlock}));
}

TEST_F(RemoteFileTest, RangesAreHeldUntilTheirHolderEndsOrLeavesThem) {
  Open(20 * kBlock, 1);
  const auto wait = std::make_shared<FetchWait>(signal_);
  std::optional<HeldRanges> held(HeldRanges(
      file_.get(), {{0, 2 * kBlock}, {4 * kBlock, 1}}, wait, Ask::kFetch));
  EXPECT_EQ(held->asked_bytes(), 3 * kBlock);
  Come(0, 2, /*kept=*/false);
  EXPECT_FALSE(wait->over());
  Come(4, 5, false);
  EXPECT_TRUE(wait->over());
  TakeAsked();
  HeldRanges moved = *std::move(held);
  held.reset();
  EXPECT_THAT(TakeAsked(), IsEmpty());
  moved = HeldRanges();
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 0, 2 * kBlock},
                                       Asked{Ask::kGiveUp, 4, kBlock}));
  HeldRanges(file_.get(), {{0, 1}}, wait, Ask::kFetch).Leave();
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 0, kBlock}));
}

TEST_F(RemoteFileTest, RangesThatCannotBeHadAreLetGo) {
  Open(20 * kBlock, 1);
  const auto held = HeldRanges::Await(file_.get(), {{0, 1}}, [this] {
    file_->Failed({0, kBlock}, DataLossError("the object has changed"));
    return OkStatus();
  });
  EXPECT_EQ(held.status().code(), StatusCode::kDataLoss);
  TakeAsked();
  EXPECT_EQ(HeldRanges::Await(file_.get(), {{0, 1}},
                              [] { return CancelledError("enough"); })
                .status()
                .code(),
            StatusCode::kCancelled);
  Come(0, 1, /*kept=*/false);  // nobody holds it
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kHurry, 0, kBlock},
                                       Asked{Ask::kGiveUp, 0, kBlock}));
}

TEST_F(RemoteFileTest, AHoldTellsWhatIsFetchedForIt) {
  Open(10 * kBlock + 5, 4);
  const auto hold = [this](uint64_t first, uint64_t blocks) {
    return file_->Hold({first * kBlock, blocks * kBlock}, nullptr, Ask::kFetch);
  };
  EXPECT_EQ(hold(1, 1), 4 * kBlock);  // its unit
  EXPECT_EQ(hold(2, 3), 4 * kBlock);  // the next one
  EXPECT_EQ(hold(9, 1), 2 * kBlock + 5);
  Come(0, 4, /*kept=*/true);
  EXPECT_EQ(hold(0, 4), 0u);
}

TEST_F(RemoteFileTest, WhatSomebodyWaitsForIsPromotedAndNotAskedForTwice) {
  Open(10 * kBlock, 1);
  Hold(0, 4 * kBlock);
  TakeAsked();
  Hold(kBlock, kBlock, Ask::kHurry);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kPromote, 1, kBlock}));
}

TEST_F(RemoteFileTest, AUnitIsAskedForAtOnceAndEndsWithTheFile) {
  Open(5 * kBlock + 100, 4);
  Hold(5 * kBlock, 10);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 4, kBlock + 100}));
  Come(4, 6, true);
  EXPECT_TRUE(file_->Keeps(5 * kBlock, 100));
}

TEST_F(RemoteFileTest, WhatPassesIsGivenUpByItsLastHolder) {
  Open(4 * kBlock, 1);
  Hold(0, 2 * kBlock);       // 0, 1
  Hold(kBlock, 2 * kBlock);  // 1, 2
  TakeAsked();
  Come(0, 3, /*kept=*/false);
  EXPECT_FALSE(file_->Keeps(0, kBlock));
  file_->Release({0, 2 * kBlock});
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 0, kBlock}));
  EXPECT_TRUE(Hold(kBlock, kBlock)->over());  // it is there
  file_->Release({kBlock, 2 * kBlock});
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 2, kBlock}));
  file_->Release({kBlock, kBlock});
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 1, kBlock}));
  // It is fetched anew.
  EXPECT_FALSE(Hold(kBlock, kBlock)->over());
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 1, kBlock}));
}

TEST_F(RemoteFileTest, WhatComesForNobodyIsGivenUpUnlessItIsKept) {
  Open(4 * kBlock, 1);
  Hold(0, 2 * kBlock);
  file_->Release({0, 2 * kBlock});
  TakeAsked();
  Come(0, 1, /*kept=*/false);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 0, kBlock}));
  Come(1, 2, /*kept=*/true);
  EXPECT_THAT(TakeAsked(), IsEmpty());
  EXPECT_TRUE(file_->Keeps(kBlock, kBlock));
}

TEST_F(RemoteFileTest, AnErrorEndsThoseWhoWaitForThatRange) {
  Open(4 * kBlock, 1);
  const auto failed = Hold(0, 2 * kBlock);
  const auto other = Hold(2 * kBlock, kBlock);
  TakeAsked();
  file_->Failed({kBlock, kBlock}, NotFoundError("no such object"));
  EXPECT_TRUE(failed->over());
  EXPECT_EQ(failed->status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(other->over());
  // Asked for again, it may succeed. Block 0 is still asked for.
  Hold(0, 2 * kBlock);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kFetch, 1, kBlock}));
}

TEST_F(RemoteFileTest, AnotherFetcherIsAskedForWhatIsHeldAndNotThere) {
  Open(8 * kBlock, 1);
  Hold(0, 2 * kBlock);
  Hold(4 * kBlock, 2 * kBlock);
  Hold(7 * kBlock, kBlock);
  file_->Release({7 * kBlock, kBlock});
  TakeAsked();
  Come(0, 1, /*kept=*/false);
  copy_ = 9;
  file_->AskAgain(9);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kHurry, 1, kBlock},
                                       Asked{Ask::kHurry, 4, 2 * kBlock}));
}

TEST_F(RemoteFileTest, AnswersBeyondTheFileAreIgnored) {
  Open(4 * kBlock, 1);
  const auto wait = Hold(0, kBlock);
  file_->Arrived({8 * kBlock, kBlock}, true);
  file_->Arrived({0, UINT64_MAX}, true);
  file_->Arrived({UINT64_MAX - 10, 100}, true);
  file_->Failed({8 * kBlock, kBlock}, NotFoundError(""));
  EXPECT_FALSE(wait->over());
  EXPECT_FALSE(file_->Keeps(0, 1));
}

class FetchingReaderTest : public RemoteFileTest,
                           public testing::WithParamInterface<ReadBackend> {
 protected:
  void SetUp() override {
    auto reader = MakeStorageReader(GetParam(), 8);
    ASSERT_TRUE(reader.ok()) << reader.status().message();
    reader_ = *std::move(reader);
  }
  // The result of the read of this ticket, once it has come.
  std::string Take(uint32_t ticket) {
    StorageReader::Done done;
    EXPECT_TRUE(reader_->Next(kWaitForever, &done));
    EXPECT_EQ(done.ticket, ticket);
    std::string text =
        done.status.ok()
            ? std::string(reinterpret_cast<const char*>(done.bytes.data()),
                          done.bytes.size())
            : done.status.message();
    reader_->Release(ticket);
    return text;
  }

  std::unique_ptr<StorageReader> reader_;
};

TEST_P(FetchingReaderTest, AReadWaitsUntilAllIsThere) {
  Open(4 * kBlock, 1);
  const ReadRequest request = RequestOf(kBlock - 2, 4);
  EXPECT_FALSE(CachedBytes(request).has_value());
  EXPECT_FALSE(reader_->Start(3, request, {}, kNotPinned));
  reader_->Submit();
  StorageReader::Done done;
  EXPECT_FALSE(reader_->Next(kNoWait, &done));
  EXPECT_TRUE(reader_->Fetches(3));
  EXPECT_EQ(reader_->in_flight(), 1u);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kHurry, 0, 2 * kBlock}));
  Come(1, 2, true);
  EXPECT_FALSE(reader_->Next(kNoWait, &done));
  std::thread later([this] { Come(0, 1, true); });
  EXPECT_EQ(Take(3), "aabb");
  later.join();
  EXPECT_FALSE(reader_->Fetches(3));
  EXPECT_EQ(reader_->in_flight(), 0u);
  // It is kept: read as any file is.
  reader_->Start(0, request, {}, kNotPinned);
  reader_->Submit();
  EXPECT_EQ(Take(0), "aabb");
  EXPECT_THAT(TakeAsked(), IsEmpty());
}

TEST_P(FetchingReaderTest, WhatPassesIsGivenUpAfterTheRead) {
  Open(4 * kBlock, 1);
  reader_->Start(0, RequestOf(0, 2), {}, kNotPinned);
  TakeAsked();
  Come(0, 1, /*kept=*/false);
  EXPECT_EQ(Take(0), "aa");
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 0, kBlock}));
}

TEST_P(FetchingReaderTest, AnErrorIsTheRead_s) {
  Open(4 * kBlock, 1);
  reader_->Start(2, RequestOf(0, 2), {}, kNotPinned);
  file_->Failed({0, kBlock}, UnavailableError("the store is away"));
  EXPECT_EQ(Take(2), "the store is away");
  EXPECT_EQ(reader_->in_flight(), 0u);
}

TEST_P(FetchingReaderTest, AReaderThatEndsHoldsNothing) {
  Open(4 * kBlock, 1);
  reader_->Start(0, RequestOf(0, 2), {}, kNotPinned);
  reader_ = nullptr;
  TakeAsked();
  Come(0, 1, /*kept=*/false);
  EXPECT_THAT(TakeAsked(), ElementsAre(Asked{Ask::kGiveUp, 0, kBlock}));
}

INSTANTIATE_TEST_SUITE_P(
    Backends, FetchingReaderTest,
    testing::Values(ReadBackend::kPread, ReadBackend::kAuto),
    [](const auto& backend) {
      return std::string(kReadBackendNames[static_cast<size_t>(backend.param)]);
    });

}  // namespace penstock::remote_file_test
