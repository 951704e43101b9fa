// Promise: jobs that fit into memory_limit one after the other run one after
// the other, however fast the next begins: it waits for the memory of those
// that have just ended. Method: a broker whose limit holds one job of 256 MiB;
// jobs in a row, and one whose predecessor returns its memory when the test
// says so.
#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::memory_limit_test {

class MemoryLimitTest : public testing::Test {
 protected:
  // 2 batches of 128 MiB.
  Options Large(const std::string& job) {
    Options options;
    options.spec =
        "dataset: large\nprefetch: 1\nhold: 1\nbatch: {size: 32}\n"
        "source: {synthetic: {records: 64, features: {x: {dtype: uint8, "
        "shape: [4194304]}}}}\n";
    options.rank = 0;
    options.world_size = 1;
    options.socket = broker_.socket();
    options.job = job;
    options.timeout_s = 60;
    return options;
  }

  BrokerProcess broker_{{"--memory-limit", "300M"}};
};

// An incarnation has ended when another one opens, and its memory returns when
// its last process has left.
TEST_F(MemoryLimitTest, TheNextJobWaitsForTheMemoryOfTheLast) {
  auto last = std::make_unique<Reader>(Large("job"));
  Options options = Large("job");
  options.state = last->state();
  auto next = std::async(std::launch::async, [options] {
    Reader reader(options);
    Batch batch;
    return reader.next(&batch);
  });
  // Without waiting it is refused within milliseconds.
  ASSERT_EQ(next.wait_for(std::chrono::seconds(2)),
            std::future_status::timeout);
  last.reset();
  EXPECT_EQ(next.get(), Reader::Result::kBatch);
}

TEST_F(MemoryLimitTest, JobsOfTheWholeLimitRunOneAfterTheOther) {
  for (int i = 0; i < 16; ++i) {
    Reader reader(Large("job" + std::to_string(i)));
    // To the end: a job that is left before waits for its rank.
    Batch batch;
    while (reader.next(&batch) != Reader::Result::kEndOfData) {
    }
  }
}

TEST_F(MemoryLimitTest, AJobBesideAnotherIsRefused) {
  Reader reader(Large("first"));
  Batch batch;
  ASSERT_EQ(reader.next(&batch), Reader::Result::kBatch);
  try {
    Reader second(Large("second"));
    FAIL() << "it opens";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("memory_limit is 300.0 MiB"));
  }
}

}  // namespace penstock::memory_limit_test
