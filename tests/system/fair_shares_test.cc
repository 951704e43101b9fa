// Promise: a job gets its share of the workers by time, so that cheap rows do
// not wait for as many costly ones. Method: two jobs on a real broker, of which
// one costs far more per row; rows are counted against rows, so the speed of
// the machine does not matter.
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "common/format.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::fair_shares_test {

class FairSharesTest : public DeliveryTest {
 protected:
  // A job of this name; rows are read from a file, or cost 20 ms each.
  Options JobOf(const std::string& name, const std::string& source) {
    Options options = OptionsFor("dataset: " + name + "\nsource: {" + source +
                                     "}\nbatch: {size: 8}\nepochs: forever\n",
                                 0, 1);
    options.job = name;
    return options;
  }
  Options Reading() {
    return JobOf("reading",
                 Format("fixed_length_records: {{files: {}, features: {{x: "
                        "{{dtype: uint8, shape: [1024]}}}}}}",
                        broker_.Write("records", std::string(1 << 20, 'x'))));
  }
  Options Slow() {
    return JobOf("slow",
                 "synthetic: {records: 1000, cost_us: 20000, features: {x: "
                 "{dtype: uint8, shape: [4]}}}");
  }
  static uint64_t Take(Reader* reader) {
    Batch batch;
    return reader->next(&batch) == Reader::Result::kBatch ? batch.rows() : 0;
  }
};

TEST_F(FairSharesTest, RowsThatAreReadDoNotWaitForAsManyThatCostMore) {
  constexpr uint64_t kRows = 2048;
  Reader reading(Reading());
  std::atomic<uint64_t> slow_rows = 0;
  std::atomic<bool> stop = false;
  std::thread other([&] {
    Reader slow(Slow());
    while (!stop) slow_rows += Take(&slow);
  });
  while (slow_rows == 0) std::this_thread::yield();
  const uint64_t before = slow_rows;
  for (uint64_t rows = 0; rows < kRows;) rows += Take(&reading);
  EXPECT_LT(slow_rows - before, kRows / 10);
  stop = true;
  other.join();
}

}  // namespace penstock::fair_shares_test
