// Promise: what a process says of decoded rows is believed as far as a sealed
// memory bears it out: rows are copied with their lengths, each value that is
// missing or does not fit is an error of its row, and a lie is one of the
// process. Method: memories written here; python_parquet.py's own are read in
// tests/python/test_parquet.py.
#include "broker/source/parquet_table.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "broker/source/parquet_rows.h"

namespace penstock::parquet_table_test {

using testing::HasSubstr;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

RawSpec Features() {
  return {{{"x", DType::kFloat32, {2}}},     {{"t", DType::kUint8, {4}}},
          {{"t_bytes", DType::kInt64, {}}},  {{"l", DType::kInt64, {2}}},
          {{"l.length", DType::kInt64, {}}}, {{"p", DType::kUint8, {}}, true}};
}
const nlohmann::json& Structure() {
  static const auto structure = nlohmann::json::parse(R"([
      {"name": "x", "kind": "array"}, {"name": "t", "kind": "text"},
      {"name": "l", "kind": "items"}, {"name": "p", "kind": "bytes"}])");
  return structure;
}

struct Memory {
  std::string bytes = std::string(64, '\0');
  std::vector<uint64_t> numbers;

  template <typename T>
  uint64_t Add(const std::vector<T>& values) {
    const uint64_t at = bytes.size();
    bytes.append(reinterpret_cast<const char*>(values.data()),
                 values.size() * sizeof(T));
    bytes.resize((bytes.size() + 63) / 64 * 64);
    return at;
  }
  // Two rows.
  explicit Memory(const std::vector<uint8_t>& states = {0, 0},
                  const std::vector<uint64_t>& list = {0, 1, 3}) {
    numbers = {2, 0};
    const auto say = [this](std::vector<uint64_t> more) {
      numbers.insert(numbers.end(), more.begin(), more.end());
    };
    say({0, 0, Add<float>({1, 2, 3, 4}), 16});
    const std::string text = "ab\xc3\xa9xy";
    say({Add(states), Add<uint64_t>({0, 4, 6}),
         Add(std::vector<char>(text.begin(), text.end())), text.size()});
    say({0, Add(list), Add<int64_t>({7, 8, 9}), 24});
    say({0, Add<uint64_t>({0, 0, 3}), Add<char>({'P', 'N', 'G'}), 3});
    numbers[1] = bytes.size();
  }
  StatusOr<ParquetTable> Take(int seals = kSeals) const {
    const Fd memory(memfd_create("test", MFD_ALLOW_SEALING));
    EXPECT_TRUE(WriteWholly(memory.get(), bytes));
    EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, seals), 0);
    return ParquetTable::Take(numbers, memory,
                              *ParquetColumnsOf(Structure(), Features()));
  }
};

// A row's values, or the error.
std::string Row(const Memory& memory, uint64_t row, bool cuts = false) {
  const auto table = memory.Take();
  if (!table.ok()) return table.status().message();
  ParquetRowBuffer buffer(Features());
  buffer.Clear(3);
  if (const Status status = table->Copy(
          row, *ParquetColumnsOf(Structure(), Features()), cuts, 2, &buffer);
      !status.ok()) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    return status.message();
  }
  RawRecord raw;
  buffer.Point(2, &raw);
  float x[2];
  std::memcpy(x, raw[0].data(), sizeof(x));
  const auto number = [](std::span<const std::byte> bytes, size_t at) {
    int64_t value = 0;
    std::memcpy(&value, bytes.data() + at * sizeof(value), sizeof(value));
    return value;
  };
  const auto text = [](std::span<const std::byte> bytes) {
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::replace(text.begin(), text.end(), '\0', '.');
    return text;
  };
  return Format("{} {} | {} {} | {} {} {} | {}", x[0], x[1], text(raw[1]),
                number(raw[2], 0), number(raw[3], 0), number(raw[3], 1),
                number(raw[4], 0), text(raw[5]));
}

TEST(ParquetTableTest, RowsAreCopied) {
  EXPECT_EQ(Row(Memory(), 0), "1 2 | ab\xc3\xa9 4 | 7 0 1 | ");
  EXPECT_EQ(Row(Memory(), 1), "3 4 | xy.. 2 | 8 9 2 | PNG");
}

TEST(ParquetTableTest, WhatIsLongerIsCutOrAnError) {
  const Memory long_list({0, 0}, {0, 0, 3});
  EXPECT_THAT(Row(long_list, 1), HasSubstr("'l': a list of 3; at most 2 fit"));
  EXPECT_EQ(Row(long_list, 1, /*cuts=*/true), "3 4 | xy.. 2 | 7 8 2 | PNG");
}

TEST(ParquetTableTest, RowsWithoutAValueAreErrors) {
  EXPECT_THAT(Row(Memory({1, 0}), 0), HasSubstr("column 't' is null"));
  EXPECT_THAT(Row(Memory({2, 0}), 0), HasSubstr("'t' has a null within"));
  EXPECT_EQ(Row(Memory({3, 0}), 0), "1 2 | .... 0 | 7 0 1 | ");
  EXPECT_EQ(Row(Memory({1, 0}), 1), "3 4 | xy.. 2 | 8 9 2 | PNG");
}

TEST(ParquetTableTest, OffsetsAreChecked) {
  const std::string damaged = "column 'l': its offsets are damaged";
  EXPECT_EQ(Row(Memory({0, 0}, {2, 1, 3}), 0), damaged);
  EXPECT_EQ(Row(Memory({0, 0}, {0, 1, 4}), 1), damaged);
  EXPECT_EQ(Row(Memory({0, 0}, {0, UINT64_MAX, 3}), 0), damaged);
  EXPECT_EQ(Row(Memory({0, 0}, {0, UINT64_MAX, 3}), 1), damaged);
}

TEST(ParquetTableTest, LiesAreErrorsOfTheProcess) {
  const auto lies = [](const Memory& memory, int seals = kSeals) {
    return memory.Take(seals).status().code() == StatusCode::kUnavailable;
  };
  EXPECT_FALSE(lies(Memory()));
  for (const int left : {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE}) {
    EXPECT_TRUE(lies(Memory(), kSeals & ~left)) << left;
  }
  for (size_t i = 0; i < Memory().numbers.size(); ++i) {
    for (const uint64_t number : {UINT64_MAX, uint64_t{1} << 31}) {
      Memory memory;
      memory.numbers[i] = number;
      // An array has no offsets.
      EXPECT_EQ(lies(memory), i != 3) << i;
    }
  }
  Memory memory;
  memory.numbers.pop_back();
  EXPECT_TRUE(lies(memory));
}

TEST(ParquetTableTest, AMemoryOfAnotherKindIsALie) {
  const Fd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  for (const Fd* each : {&file, static_cast<const Fd*>(nullptr)}) {
    const Fd none;
    EXPECT_EQ(ParquetTable::Take(Memory().numbers, each ? *each : none,
                                 *ParquetColumnsOf(Structure(), Features()))
                  .status()
                  .code(),
              StatusCode::kUnavailable);
  }
}

TEST(ParquetTableTest, ColumnsThatAreNotThoseOfTheFeaturesAreRefused) {
  for (const char* text :
       {"{}", "[1]", "[{}]", R"([{"name": "x", "kind": "bytes"}])",
        R"([{"name": "y", "kind": "array"}])",
        R"([{"name": "p", "kind": "text"}])",
        R"([{"name": "x", "kind": "items"}])",
        R"([{"name": "x", "kind": 1}])"}) {
    EXPECT_FALSE(ParquetColumnsOf(nlohmann::json::parse(text), Features()))
        << text;
  }
}

// ---- groups that stay decoded

TEST(DecodedGroupsTest, AGroupIsDecodedByOneAndTakenByAll) {
  DecodedGroups decoded;
  const uint64_t groups[] = {4, 7};
  EXPECT_EQ(decoded.Find(groups)->group, 4u);
  EXPECT_EQ(decoded.Find(groups)->group, 7u);
  EXPECT_FALSE(decoded.Find(groups));  // both are in work
  decoded.End(7, nullptr);             // it could not be decoded
  EXPECT_EQ(decoded.Find(groups)->group, 7u);
  std::thread other([&decoded] {
    decoded.End(4, std::make_shared<const ParquetTable>(*Memory().Take()));
  });
  std::optional<DecodedGroups::Found> found;
  while (!(found = decoded.Find(groups))) {
  }
  other.join();
  EXPECT_EQ(found->group, 4u);
  EXPECT_EQ(found->table->rows(), 2u);
}

TEST(DecodedGroupsTest, TheOneUsedLongestAgoGoes) {
  const auto table = std::make_shared<const ParquetTable>(*Memory().Take());
  constexpr uint64_t kKept = DecodedGroups::kGroupsMin;
  DecodedGroups decoded(kKept * table->bytes());
  const auto is_decoded = [&decoded](uint64_t group) {
    const bool found = decoded.Find({&group, 1})->table != nullptr;
    if (!found) decoded.End(group, nullptr);
    return found;
  };
  for (uint64_t group = 0; group < kKept; ++group) {
    decoded.Find({&group, 1});
    decoded.End(group, table);
  }
  EXPECT_TRUE(is_decoded(0));
  const uint64_t more = kKept;
  decoded.Find({&more, 1});
  decoded.End(more, table);
  EXPECT_TRUE(is_decoded(0));
  EXPECT_FALSE(is_decoded(1));
  EXPECT_TRUE(is_decoded(2));
}

}  // namespace penstock::parquet_table_test
