// Promise: batches come to a GPU as they were made, ahead of the trainer, and
// what is ahead counts as not taken; every mapping is unregistered before it is
// unmapped. Method: a real broker and the stand-in of libcuda, whose copies are
// late; a broker that dies and a reader that is reset with copies under way.
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/support/delivery_fixture.h"
#include "tests/support/stand_in_cuda.h"
#include "tests/system/kept_broker.h"

namespace penstock::device_test {

constexpr int kRows = 4096;  // 32 KiB

std::string Spec(int batches, const std::string& rest = "prefetch: 3\n") {
  return "dataset: numbers\nsource: {range: " +
         std::to_string(batches * kRows) +
         "}\nbatch: {per_rank: " + std::to_string(kRows) + "}\n" + rest;
}

class DeviceTest : public DeliveryTest {
 protected:
  DeviceTest() {
    cuda_.delay_us = 2000;
    cuda_.refuse_register = 0;
  }
  ~DeviceTest() override {
    stand_in_synchronize(stream_);
    EXPECT_EQ(cuda_.faults, 0u);
    EXPECT_EQ(cuda_.registered, 0u);
    EXPECT_EQ(cuda_.device_bytes, 0u);
    EXPECT_EQ(cuda_.host_bytes, 0u);
    EXPECT_EQ(cuda_.contexts, 0u);
  }
  std::unique_ptr<Reader> Attach(const std::string& spec, int ahead = 2) {
    auto reader = std::make_unique<Reader>(OptionsFor(spec, 0, 1));
    reader->prefetch_to_device(0, ahead);
    return reader;
  }
  // Releases the batch at once; the step that reads it is issued, and late.
  void Train(Batch* batch) {
    DeviceBatch copy = batch->to_device();
    Rows& rows = read_.emplace_back(batch->rows());
    batch->release();
    copy.wait(stream_);
    stand_in_read(stream_, copy.data(0), rows.size() * sizeof(rows[0]),
                  rows.data(), 500);
  }
  void TrainToTheEnd(Reader* reader) {
    Batch batch;
    for (;;) {
      const Reader::Result result = reader->next(&batch);
      if (result == Reader::Result::kEndOfData) return;
      if (result == Reader::Result::kBatch) Train(&batch);
    }
  }
  // All rows that the trainer's steps have read.
  Rows Read() {
    stand_in_synchronize(stream_);
    Rows all;
    for (const Rows& rows : read_) {
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }

  StandIn& cuda_ = *stand_in();
  void* const stream_ = stand_in_stream();
  std::deque<Rows> read_;
};

TEST_F(DeviceTest, EveryBatchComesAsItWasMade) {
  const auto reader = Attach(Spec(20));
  TrainToTheEnd(reader.get());
  EXPECT_EQ(Read(), Numbers(20 * kRows));
  const penstock_device_stats stats = reader->device_stats();
  EXPECT_GT(stats.registered_bytes, 0u);
  EXPECT_EQ(stats.staging_bytes, 0u);
  EXPECT_EQ(stats.why_staged, nullptr);
  EXPECT_EQ(stats.copies, 20u);
  EXPECT_LE(stats.device_bytes, 4u << 21);
  EXPECT_EQ(reader->stats().held, 0u);
}

TEST_F(DeviceTest, StagedTheyComeAsWell) {
  cuda_.refuse_register = 1;
  const auto reader = Attach(Spec(20));
  TrainToTheEnd(reader.get());
  EXPECT_EQ(Read(), Numbers(20 * kRows));
  EXPECT_GT(reader->device_stats().staging_bytes, 0u);
  EXPECT_NE(reader->device_stats().why_staged, nullptr);
}

TEST_F(DeviceTest, SlowCopiesOfAllThatMayBeHeldAreWaitedFor) {
  cuda_.delay_us = 20'000;
  const auto reader = Attach(Spec(8, "prefetch: 2\nhold: 1\n"));
  TrainToTheEnd(reader.get());
  EXPECT_EQ(Read(), Numbers(8 * kRows));
}

// The broker does not end such a job before all batches are released.
TEST_F(DeviceTest, WhatIsReleasedIsGivenBackBeforeAWait) {
  cuda_.delay_us = 20'000;
  Options options = OptionsFor(Spec(8), 0, 1);
  options.delivery = "dynamic";
  Reader reader(options);
  reader.prefetch_to_device();
  TrainToTheEnd(&reader);
  EXPECT_EQ(Read(), Numbers(8 * kRows));
}

TEST_F(DeviceTest, BatchesAheadCountAsNotTaken) {
  const auto reader = Attach(Spec(20));
  Batch batch;
  WaitUntilReady(OptionsFor("", 0, 1).job, 0, 3);
  ASSERT_EQ(reader->next(&batch), Reader::Result::kBatch);
  EXPECT_EQ(reader->device_stats().copies, 3u);
  EXPECT_EQ(reader->stats().held, 1u);
  EXPECT_EQ(nlohmann::json::parse(reader->state()).at("row"), kRows);
}

TEST_F(DeviceTest, AResetBeginsElsewhereWithCopiesUnderWay) {
  const auto reader = Attach(Spec(8));
  Batch batch;
  ASSERT_EQ(reader->next(&batch), Reader::Result::kBatch);
  Train(&batch);
  ASSERT_EQ(reader->next(&batch), Reader::Result::kBatch);
  reader->reset(0, 1,
                R"({"epoch": 0, "row": )" + std::to_string(4 * kRows) + "}");
  Train(&batch);  // of the incarnation before
  TrainToTheEnd(reader.get());
  Rows wanted = Numbers(8 * kRows);
  wanted.erase(wanted.begin() + 2 * kRows, wanted.begin() + 4 * kRows);
  EXPECT_EQ(Read(), wanted);
}

TEST_F(DeviceTest, ACopyOutlivesItsReader) {
  auto reader = Attach(Spec(4));
  Batch batch;
  ASSERT_EQ(reader->next(&batch), Reader::Result::kBatch);
  Batch second;
  ASSERT_EQ(reader->next(&second), Reader::Result::kBatch);
  {
    const DeviceBatch copy = second.to_device();
    reader.reset();
    EXPECT_EQ(cuda_.registered, 0u);
    Train(&batch);  // was ahead, and is handed over
    Rows& rows = read_.emplace_back(kRows);
    stand_in_read(stream_, copy.data(0), kRows * sizeof(int64_t), rows.data(),
                  0);
    EXPECT_EQ(Read(), Numbers(2 * kRows));
    EXPECT_THROW(second.to_device(), Error);
  }
}

TEST_F(DeviceTest, ASecondCallIsASecondCopy) {
  const auto reader = Attach(Spec(4));
  Batch batch;
  ASSERT_EQ(reader->next(&batch), Reader::Result::kBatch);
  const DeviceBatch first = batch.to_device();
  const DeviceBatch second = batch.to_device();
  EXPECT_NE(first.data(0), second.data(0));
  EXPECT_EQ(first.data(1), nullptr);
}

TEST_F(DeviceTest, ARepeatedBatchIsCopiedEachTime) {
  Options options = OptionsFor(Spec(4), 0, 1);
  options.repeat_first = true;
  Reader reader(options);
  reader.prefetch_to_device();
  for (int i = 0; i < 3; ++i) {
    Batch batch;
    ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
    Train(&batch);
  }
  for (const Rows& rows : (Read(), read_)) EXPECT_EQ(rows, Numbers(kRows));
}

TEST_F(DeviceTest, WhatIsAskedForInTheWrongOrderIsAnErrorThatSaysSo) {
  Reader reader(OptionsFor(Spec(4), 0, 1));
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  EXPECT_THROW(batch.to_device(), Error);
  EXPECT_THROW(reader.device_stats(), Error);
  EXPECT_THROW(reader.prefetch_to_device(0, 33), Error);
  EXPECT_THROW(reader.prefetch_to_device(7), Error);
  reader.prefetch_to_device(1);
  EXPECT_THROW(reader.prefetch_to_device(1), Error);
  Train(&batch);
  EXPECT_EQ(Read(), Numbers(kRows));
}

TEST_F(DeviceTest, ABrokerThatDiesCostsNoBatch) {
  KeptBroker broker;
  Options options = penstock::OptionsFor(Spec(40), 0, 1, broker.socket());
  {
    Reader reader(options);
    reader.prefetch_to_device();
    Batch batch;
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
      Train(&batch);
    }
    broker.Kill();
    TrainToTheEnd(&reader);
    EXPECT_EQ(reader.stats().reconnects, 1u);
  }
  EXPECT_EQ(Read(), Numbers(40 * kRows));
}

}  // namespace penstock::device_test
