// Promise: a trainer may write to a copy of a held batch, keep the batch after
// the reader is closed, and fork, without changing what others read. Method: a
// real broker; batches written, kept, released on other threads, and read in
// forked children.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/support/delivery_fixture.h"

namespace penstock::private_memory_test {

constexpr int kRows = 4096;  // 32 KiB: several pages

class PrivateMemoryTest : public DeliveryTest {
 protected:
  std::string Spec(int batches = 8) {
    return RangeSpec(
        std::to_string(batches * kRows),
        "batch: {per_rank: " + std::to_string(kRows) + "}\nprefetch: 1\n");
  }
  std::unique_ptr<Reader> Attach(int batches = 8) {
    return std::make_unique<Reader>(OptionsFor(Spec(batches), 0, 1));
  }
  static Batch Next(Reader* reader) {
    Batch batch;
    EXPECT_EQ(reader->next(&batch), Reader::Result::kBatch);
    return batch;
  }
  static const int64_t* Values(const Batch& batch) {
    return static_cast<const int64_t*>(batch.data(0));
  }
  // The value of this batch.
  static bool AreOf(const int64_t* values, int number) {
    for (int i = 0; i < kRows; ++i) {
      if (values[i] != int64_t{number} * kRows + i) return false;
    }
    return true;
  }
  static size_t Descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }
};

TEST_F(PrivateMemoryTest, WhatIsWrittenIsThisProcessesAlone) {
  const auto reader = Attach();
  for (int number = 0; number < 6; ++number) {
    Batch batch = Next(reader.get());
    auto* const values = static_cast<int64_t*>(batch.writable_data(0));
    ASSERT_NE(static_cast<const void*>(values), batch.data(0));
    EXPECT_TRUE(AreOf(values, number)) << "of the batch before: " << values[0];
    std::fill_n(values, kRows, -7);
    EXPECT_EQ(static_cast<int64_t*>(batch.writable_data(0))[5], -7);
    EXPECT_TRUE(AreOf(Values(batch), number));
  }
}

TEST_F(PrivateMemoryTest, AFeatureThatIsNotThereIsAnError) {
  const auto reader = Attach();
  Batch batch = Next(reader.get());
  EXPECT_THROW(batch.writable_data(1), Error);
}

TEST_F(PrivateMemoryTest, ABatchOutlivesItsReader) {
  auto reader = Attach();
  Batch first = Next(reader.get());
  Batch second = Next(reader.get());
  auto* const written = static_cast<int64_t*>(second.writable_data(0));
  written[7] = -7;
  const int64_t* const values = Values(first);
  reader.reset();
  // The broker has the memory back, and refills it for another job.
  Options options = OptionsFor(Spec(), 0, 1);
  options.job += "-again";
  {
    Reader again(options);
    EXPECT_EQ(RunToTheEnd(again).code, 0);
  }
  EXPECT_EQ(Values(first), values);
  EXPECT_TRUE(AreOf(Values(first), 0));
  EXPECT_TRUE(AreOf(Values(second), 1));
  EXPECT_EQ(written[7], -7);
  EXPECT_EQ(written[8], kRows + 8);
  EXPECT_EQ(first.ids()[1], 1);
  EXPECT_THROW(first.writable_data(0), Error);
  WaitUntil("its job is over", [&] { return Jobs().empty(); });
}

TEST_F(PrivateMemoryTest, TheLastBatchTakesTheReaderWithIt) {
  const size_t before = Descriptors();
  for (int round = 0; round < 5; ++round) {
    std::optional<Batch> first;
    std::optional<Batch> second;
    {
      const auto reader = Attach();
      first = Next(reader.get());
      second = Next(reader.get());
      EXPECT_GT(Descriptors(), before);
    }
    std::thread([&] { first.reset(); }).join();
    EXPECT_TRUE(AreOf(Values(*second), 1));
    second.reset();
    EXPECT_EQ(Descriptors(), before);
  }
}

TEST_F(PrivateMemoryTest, ReleaseAndDetachAtOnce) {
  for (int round = 0; round < 50; ++round) {
    auto reader = Attach();
    std::optional<Batch> first = Next(reader.get());
    std::optional<Batch> second = Next(reader.get());
    std::thread other([&] { first.reset(); });
    reader.reset();
    other.join();
    EXPECT_TRUE(AreOf(Values(*second), 1));
  }
}

TEST_F(PrivateMemoryTest, ARepeatedBatchMayBeWrittenAnewEachTime) {
  Options options = OptionsFor(Spec(), 0, 1);
  options.repeat_first = true;
  auto reader = std::make_unique<Reader>(options);
  for (int i = 0; i < 3; ++i) {
    Batch batch = Next(reader.get());
    auto* const values = static_cast<int64_t*>(batch.writable_data(0));
    EXPECT_TRUE(AreOf(values, 0));
    std::fill_n(values, kRows, -7);
  }
  Batch batch = Next(reader.get());
  reader.reset();
  EXPECT_TRUE(AreOf(Values(batch), 0));
}

// The child must neither see overwritten batches nor crash reading them.
TEST_F(PrivateMemoryTest, AForkedChildReadsZeros) {
  const auto reader = Attach();
  Batch batch = Next(reader.get());
  auto* const written = static_cast<int64_t*>(batch.writable_data(0));
  written[3] = -7;
  const pid_t child = fork();
  if (child == 0) {
    const int64_t* const values = Values(batch);
    const int64_t sum = std::accumulate(values, values + kRows, int64_t{0}) +
                        std::accumulate(written, written + kRows, int64_t{0});
    bool refused = false;
    try {
      Batch other;
      reader->next(&other);
    } catch (const Error& error) {
      refused = error.code() == PENSTOCK_FAILED_PRECONDITION;
    }
    batch.release();
    _exit(sum == 0 && refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(AreOf(Values(batch), 0));
  EXPECT_EQ(written[3], -7);
  batch.release();
  EXPECT_EQ(RunToTheEnd(*reader).taken.size(), 7u);
}

// As the interpreter of a forked child does, in any order.
TEST_F(PrivateMemoryTest, AForkedChildMayCloseTheReaderBeforeItsBatches) {
  auto reader = Attach();
  std::optional<Batch> first = Next(reader.get());
  std::optional<Batch> second = Next(reader.get());
  const pid_t child = fork();
  if (child == 0) {
    const int64_t* const values = Values(*first);
    first.reset();
    reader.reset();
    const int64_t sum = std::accumulate(values, values + kRows, int64_t{0});
    second.reset();
    _exit(sum == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(AreOf(Values(*first), 0));
  EXPECT_TRUE(AreOf(Values(*second), 1));
  first.reset();
  second.reset();
  EXPECT_EQ(RunToTheEnd(*reader).taken.size(), 6u);
}

}  // namespace penstock::private_memory_test
