// Promise: rows whose bytes are in the page cache come from the map of their
// file without a change of values or order, and a file that is truncated or
// rewritten under it costs its own job alone. Method: a real broker over a file
// of numbered records, which is read until its pages are known to be cached.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/delivery_fixture.h"

namespace penstock::cached_rows_test {

using testing::HasSubstr;

constexpr uint64_t kRows = 20'000;  // many more than CachedReads::kWarmRows
constexpr uint64_t kRowBytes = 16;

class CachedRowsTest : public DeliveryTest {
 protected:
  CachedRowsTest() {
    std::ofstream file(Path(), std::ios::binary);
    for (uint64_t i = 0; i < kRows; ++i) {
      const uint64_t row[] = {i, ~i};
      file.write(reinterpret_cast<const char*>(row), sizeof(row));
    }
  }
  std::string Path() const { return broker_.folder() / "records"; }
  std::string Spec(const std::string& more) const {
    return "dataset: records\nsource: {fixed_length_records: {files: " + Path() +
           ", features: {x: {dtype: int64, shape: [2]}}}}\nshuffle: {seed: "
           "3}\nbatch: {size: 250}\n" +
           more;
  }
  // The next batch; false: the data end.
  static bool Next(Reader* reader, Batch* batch) {
    Reader::Result result;
    do {
      result = reader->next(batch);
    } while (result == Reader::Result::kEndOfEpoch);
    return result == Reader::Result::kBatch;
  }
  // Counts rows that are not what the file says.
  static uint64_t Wrong(const Batch& batch) {
    uint64_t wrong = 0;
    const auto values = batch.get<int64_t>("x");
    for (uint64_t row = 0; row < batch.rows(); ++row) {
      wrong += values[2 * row] != batch.ids()[row] ||
               values[2 * row + 1] != ~batch.ids()[row];
    }
    return wrong;
  }
};

TEST_F(CachedRowsTest, ValuesAndOrderAreThoseOfReads) {
  std::vector<int64_t> first;
  std::vector<int64_t> again;
  for (std::vector<int64_t>* ids : {&first, &again}) {
    Options options = OptionsFor(Spec("epochs: 1\n"), 0, 1);
    options.job = ids == &first ? "first" : "again";
    Reader reader(options);
    Batch batch;
    while (Next(&reader, &batch)) {
      EXPECT_EQ(Wrong(batch), 0U);
      ids->insert(ids->end(), batch.ids().begin(), batch.ids().end());
    }
  }
  EXPECT_EQ(first, again);
  std::sort(first.begin(), first.end());
  std::vector<int64_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(first, all);
}

TEST_F(CachedRowsTest, ATruncatedFileFailsItsJobByName) {
  Reader reader(OptionsFor(Spec("epochs: forever\n"), 0, 1));
  Batch batch;
  for (uint64_t row = 0; row < kRows; row += batch.rows()) {
    ASSERT_TRUE(Next(&reader, &batch));
  }
  std::filesystem::resize_file(Path(), 10'000);  // within a page
  std::string message;
  try {
    while (Next(&reader, &batch)) {
      EXPECT_EQ(Wrong(batch), 0U);
    }
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("records"));
  EXPECT_THAT(message, HasSubstr("bytes"));
  // The broker goes on.
  Reader other(OptionsFor(RangeSpec("10", "batch: {size: 10}\n"), 0, 1));
  EXPECT_EQ(other.next(&batch), Reader::Result::kBatch);
}

TEST_F(CachedRowsTest, RowsOfATruncatedFileAreSkipped) {
  Reader reader(OptionsFor(Spec("epochs: 3\non_error: skip\n"), 0, 1));
  Batch batch;
  uint64_t rows = 0;
  while (rows < kRows && Next(&reader, &batch)) {
    rows += batch.rows();
  }
  std::filesystem::resize_file(Path(), 100 * kRowBytes);  // within a page
  uint64_t kept = 0;
  while (Next(&reader, &batch)) {
    EXPECT_EQ(Wrong(batch), 0U);
    for (const int64_t id : batch.ids()) kept += id < 100;
  }
  // The rows of both epochs that were left, but for those made before.
  EXPECT_EQ(kept, 200U);
}

}  // namespace penstock::cached_rows_test
