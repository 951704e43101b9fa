// Promises: D1 to D3, G1 and G2 of client/gpu/device_copies.h, its bounds and
// its fallback. Method: the stand-in of libcuda, whose streams are late, so
// that an order that is missing shows as wrong bytes.
#include "client/gpu/device_copies.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/stand_in_cuda.h"

namespace penstock::device_copies_test {

constexpr size_t kPage = 4096;
constexpr size_t kBytes = 64 * kPage;
constexpr uint64_t kLateUs = 5000;

class DeviceCopiesTest : public testing::Test {
 protected:
  DeviceCopiesTest()
      : memory_(static_cast<std::byte*>(
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    cuda_.delay_us = kLateUs;
    cuda_.no_read_only = cuda_.refuse_register = cuda_.device_bytes_max = 0;
    cuda_.registrations = cuda_.copies = cuda_.allocations = 0;
  }
  ~DeviceCopiesTest() override {
    pinned_.reset();
    copies_.reset();
    munmap(memory_, kBytes);
    EXPECT_EQ(cuda_.faults, 0u);
    EXPECT_EQ(cuda_.registered, 0u);
    EXPECT_EQ(cuda_.device_bytes, 0u);
    EXPECT_EQ(cuda_.host_bytes, 0u);
    EXPECT_EQ(cuda_.events, 0u);
    EXPECT_EQ(cuda_.contexts, 0u);
  }
  void Open(uint32_t ahead) {
    auto opened = DeviceCopies::Open(0, ahead);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    copies_ = *std::move(opened);
    pinned_ = std::make_unique<PinnedMemory>(copies_, memory_);
  }
  void Fill(int value, size_t bytes = kBytes) {
    std::memset(memory_, value, bytes);
  }
  StatusOr<std::unique_ptr<DeviceBatch>> TryStart(
      const std::vector<DeviceCopies::Piece>& pieces, bool ahead = false) {
    return copies_->Start(pieces, pinned_->Pin(memory_, kBytes), ahead);
  }
  std::unique_ptr<DeviceBatch> Start(uint64_t bytes = kBytes) {
    auto started = TryStart({{memory_, bytes}});
    EXPECT_TRUE(started.ok()) << started.status().message();
    return *std::move(started);
  }
  // What a stream will have read of a feature.
  static std::vector<uint8_t> Reads(void* stream, const DeviceBatch& batch,
                                    uint64_t delay_us = 0) {
    const DeviceBatch::Place& place = batch.places()[0];
    std::vector<uint8_t> bytes(place.bytes);
    stand_in_read(stream, reinterpret_cast<const void*>(place.data),
                  place.bytes, bytes.data(), delay_us);
    return bytes;
  }
  static bool Wait(DeviceBatch* batch, void* stream) {
    return batch->MakeWait(static_cast<cuda::Stream>(stream)).ok();
  }
  static bool AreAll(const std::vector<uint8_t>& bytes, int value) {
    return std::all_of(bytes.begin(), bytes.end(),
                       [&](uint8_t byte) { return byte == value; });
  }

  StandIn& cuda_ = *stand_in();
  std::byte* const memory_;
  void* const stream_ = stand_in_stream();
  std::shared_ptr<DeviceCopies> copies_;
  std::unique_ptr<PinnedMemory> pinned_;
};

TEST_F(DeviceCopiesTest, AStreamThatWaitsFindsTheCopyMade) {
  Open(2);
  Fill(7);
  cuda_.stopped = 1;
  const auto batch = Start();
  void* const hasty = stand_in_stream();
  const auto early = Reads(hasty, *batch);
  ASSERT_TRUE(Wait(batch.get(), stream_));
  const auto read = Reads(stream_, *batch);
  stand_in_synchronize(hasty);
  cuda_.stopped = 0;
  stand_in_synchronize(stream_);
  EXPECT_TRUE(AreAll(read, 7));
  EXPECT_FALSE(AreAll(early, 7));
}

TEST_F(DeviceCopiesTest, ABufferIsOverwrittenOnceItsConsumersAreDone) {
  Open(0);  // two buffers
  void* const other = stand_in_stream();
  Fill(1);
  auto batch = Start();
  ASSERT_TRUE(Wait(batch.get(), stream_));
  ASSERT_TRUE(Wait(batch.get(), other));
  const auto read = Reads(stream_, *batch, 4 * kLateUs);
  const auto read_by_other = Reads(other, *batch, 8 * kLateUs);
  const uint64_t first = batch->places()[0].data;
  batch.reset();
  copies_->Await();
  Fill(2);
  batch = Start();
  EXPECT_EQ(batch->places()[0].data, first);
  copies_->Await();
  stand_in_synchronize(stream_);
  stand_in_synchronize(other);
  EXPECT_TRUE(AreAll(read, 1));
  EXPECT_TRUE(AreAll(read_by_other, 1));
}

TEST_F(DeviceCopiesTest, TheSourceIsReadUntilTheCopyHasPassed) {
  Open(2);
  Fill(3);
  cuda_.stopped = 1;
  const auto batch = Start();
  EXPECT_FALSE(copies_->Passed(batch->copy()));
  cuda_.stopped = 0;
  copies_->Await(batch->copy());
  EXPECT_TRUE(copies_->Passed(batch->copy()));
  Fill(4);
  ASSERT_TRUE(Wait(batch.get(), stream_));
  const auto read = Reads(stream_, *batch);
  stand_in_synchronize(stream_);
  EXPECT_TRUE(AreAll(read, 3));
}

TEST_F(DeviceCopiesTest, APassedCopyIsKnownAlsoWhenItsBufferIsUsedAgain) {
  Open(0);
  auto batch = Start();
  const uint64_t copy = batch->copy();
  batch.reset();
  while (!copies_->Passed(copy)) std::this_thread::yield();
  cuda_.stopped = 1;
  batch = Start();
  EXPECT_TRUE(copies_->Passed(copy));
  EXPECT_FALSE(copies_->Passed(batch->copy()));
  cuda_.stopped = 0;
}

TEST_F(DeviceCopiesTest, FeaturesSideBySideAreOneCopyAndOthersTheirOwn) {
  Open(2);
  for (size_t i = 0; i < kBytes; ++i) memory_[i] = std::byte(i / kPage);
  const auto started = TryStart({{memory_, 100},
                                 {memory_ + kPage, 50},
                                 {memory_ + 2 * kPage, 0},
                                 {memory_ + 40 * kPage, kPage}});
  ASSERT_TRUE(started.ok());
  copies_->Await();
  EXPECT_EQ(cuda_.copies, 2u);
  const auto& places = (*started)->places();
  ASSERT_EQ(places.size(), 4u);
  const auto first = [&](int i) {
    return *reinterpret_cast<const uint8_t*>(places[i].data);
  };
  EXPECT_EQ(first(0), 0);
  EXPECT_EQ(first(1), 1);
  EXPECT_EQ(places[2].data, 0u);
  EXPECT_EQ(first(3), 40);
  EXPECT_EQ(places[3].data % 256, 0u);
}

TEST_F(DeviceCopiesTest, ABatchWithoutRowsIsNoCopy) {
  Open(2);
  const auto batch = Start(0);
  EXPECT_EQ(batch->places()[0].data, 0u);
  EXPECT_TRUE(Wait(batch.get(), stream_));
  EXPECT_EQ(cuda_.device_bytes, 0u);
}

TEST_F(DeviceCopiesTest, MemoryIsRegisteredOnceAndAnewWhereItGrows) {
  Open(2);
  EXPECT_EQ(cuda_.registrations, 1u) << "the probe";
  EXPECT_EQ(cuda_.registered, 0u);
  EXPECT_TRUE(pinned_->Pin(memory_, kPage));
  EXPECT_TRUE(pinned_->Pin(memory_, 10));
  EXPECT_TRUE(pinned_->Pin(memory_ + kPage, 0));
  EXPECT_EQ(cuda_.registrations, 2u);
  EXPECT_EQ(copies_->stats().registered_bytes, kPage);
  EXPECT_TRUE(pinned_->Pin(memory_, kBytes));
  EXPECT_EQ(cuda_.registered_bytes, kBytes);
}

TEST_F(DeviceCopiesTest, WhatIsBeingCopiedStaysRegistered) {
  Open(2);
  Fill(5);
  const auto batch = Start();
  pinned_.reset();
  Fill(6);
  ASSERT_TRUE(Wait(batch.get(), stream_));
  const auto read = Reads(stream_, *batch);
  stand_in_synchronize(stream_);
  EXPECT_TRUE(AreAll(read, 5));
}

TEST_F(DeviceCopiesTest, WhereTheDriverRefusesBatchesAreStaged) {
  cuda_.refuse_register = 1;
  Open(0);
  EXPECT_NE(copies_->stats().why_staged.find("operation not supported"),
            std::string::npos)
      << copies_->stats().why_staged;
  std::deque<std::vector<uint8_t>> read;
  for (int value = 1; value < 8; ++value) {
    Fill(value);
    const auto batch = Start();
    EXPECT_EQ(batch->copy(), 0u);
    Fill(0);  // at once
    ASSERT_TRUE(Wait(batch.get(), stream_));
    read.push_back(Reads(stream_, *batch));
  }
  stand_in_synchronize(stream_);
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(AreAll(read[i], i + 1)) << i;
  EXPECT_EQ(cuda_.host_bytes, copies_->stats().staging_bytes);
  EXPECT_EQ(cuda_.registrations, 0u);
}

TEST_F(DeviceCopiesTest, ADeviceThatCannotReadReadOnlyMemorySaysSo) {
  cuda_.no_read_only = 1;
  Open(0);
  EXPECT_NE(copies_->stats().why_staged.find("the GPU says that it cannot"),
            std::string::npos);
}

TEST_F(DeviceCopiesTest, CopiesAheadHaveABoundAndTheOneAskedForHasNone) {
  Open(1);
  std::vector<std::unique_ptr<DeviceBatch>> kept;
  for (int i = 0; i < 3; ++i) {
    auto started = TryStart({{memory_, kBytes}}, true);
    ASSERT_TRUE(started.ok() && *started != nullptr);
    kept.push_back(*std::move(started));
  }
  const uint64_t bytes = cuda_.device_bytes;
  EXPECT_EQ(*TryStart({{memory_, kBytes}}, true), nullptr);
  kept.push_back(Start());
  EXPECT_GT(cuda_.device_bytes, bytes);
  kept.clear();
  copies_->Await();
  (void)Start();
  EXPECT_EQ(cuda_.device_bytes, bytes);
}

TEST_F(DeviceCopiesTest, BuffersGrowAFewTimesOnly) {
  Open(0);
  for (size_t bytes = 1; bytes <= kBytes; bytes += kPage) (void)Start(bytes);
  EXPECT_LE(cuda_.allocations, 4u);
}

TEST_F(DeviceCopiesTest, WithoutMemoryOnTheDeviceAnErrorAndThenItGoesOn) {
  Open(0);
  cuda_.device_bytes_max = 1;
  const auto failed = TryStart({{memory_, kBytes}});
  EXPECT_EQ(failed.status().code(), StatusCode::kResourceExhausted);
  cuda_.device_bytes_max = 0;
  EXPECT_NE(Start(), nullptr);
}

TEST_F(DeviceCopiesTest, AMissingDeviceIsNamed) {
  const auto opened = DeviceCopies::Open(5, 2);
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_NE(opened.status().message().find("GPU 5"), std::string::npos);
}

TEST_F(DeviceCopiesTest, AThousandOpeningsLeaveNothing) {
  cuda_.delay_us = 0;
  for (int i = 0; i < 1000; ++i) {
    Open(2);
    (void)Start();
    pinned_.reset();
    copies_.reset();
    ASSERT_EQ(cuda_.registered + cuda_.device_bytes + cuda_.streams, 0u);
  }
  EXPECT_EQ(cuda_.registrations, 2000u);
}

TEST_F(DeviceCopiesTest, ABatchOutlivesWhoCopiedIt) {
  Open(2);
  Fill(8);
  auto batch = Start();
  pinned_.reset();
  copies_.reset();
  ASSERT_TRUE(Wait(batch.get(), stream_));
  const auto read = Reads(stream_, *batch);
  stand_in_synchronize(stream_);
  EXPECT_TRUE(AreAll(read, 8));
  batch.reset();
  EXPECT_EQ(cuda_.streams, 0u);
}

TEST_F(DeviceCopiesTest, AForkedChildCallsNothing) {
  Open(2);
  auto batch = Start();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = !batch->MakeWait(nullptr).ok() &&
                         !copies_->Start({}, true, false).ok() &&
                         copies_->Passed(100);
    copies_->Await();
    batch.reset();
    pinned_.reset();
    copies_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(DeviceCopiesTest, BatchesMayEndOnAnyThread) {
  cuda_.delay_us = 50;
  Open(1);
  for (int i = 0; i < 50; ++i) {
    auto batch = Start();
    std::thread([stream = stream_, batch = std::move(batch)]() mutable {
      EXPECT_TRUE(Wait(batch.get(), stream));
      batch.reset();
    }).detach();
    (void)Start();
  }
  stand_in_synchronize(stream_);
  while (copies_.use_count() > 2) std::this_thread::yield();
}

}  // namespace penstock::device_copies_test
