// Promise: a cache gives what was put into it, or nothing; it takes no more
// than it may; workers that fill and read it at once never see half an entry.
// Method: caches of numbered records, alone and under many threads.
#include "broker/cache/row_cache.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "broker/cache/memory_cache.h"
#include "broker/cache/shared_caches.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::row_cache_test {

using testing::HasSubstr;

RawSpec Numbers() { return {{{"x", DType::kInt64, {5}}, false}}; }
RawSpec Pictures() {
  return {{{"image", DType::kUint8, {}}, true},
          {{"label", DType::kInt64, {}}, false},
          {{"mask", DType::kUint8, {}}, true}};
}

std::span<const std::byte> Bytes(const std::vector<int64_t>& values) {
  return std::as_bytes(std::span(values));
}

// The values of record i: no other has one of them.
std::vector<int64_t> ValuesOf(int64_t i) {
  return {5 * i, 5 * i + 1, 5 * i + 2, 5 * i + 3, 5 * i + 4};
}

std::unique_ptr<MemoryCache> Open(
    uint64_t bytes, uint64_t records, const RawSpec& features = Numbers(),
    MemoryCache::Available available = [] { return AvailableMemory(); }) {
  auto cache = MemoryCache::Open(bytes, records, features, nullptr,
                                 std::move(available));
  EXPECT_TRUE(cache.ok()) << cache.status().message();
  return *std::move(cache);
}

void Put(RowCache& cache, uint64_t record) {
  CacheScratch scratch;
  const std::vector<int64_t> values = ValuesOf(static_cast<int64_t>(record));
  cache.Put(record, {Bytes(values)}, &scratch);
}

// What the cache has of a record; empty: nothing.
std::vector<int64_t> Get(const RowCache& cache, uint64_t record) {
  RawRecord made;
  if (!cache.Get(record, &made)) return {};
  EXPECT_EQ(made.size(), 1U);
  std::vector<int64_t> values(made[0].size() / sizeof(int64_t));
  std::memcpy(values.data(), made[0].data(), made[0].size());
  return values;
}

// ---- entries

TEST(EntryFormatTest, FeaturesOfAnySizeComeBack) {
  const EntryFormat format(Pictures());
  EXPECT_EQ(format.fixed_bytes(), std::nullopt);
  const std::vector<int64_t> label = {7};
  for (const size_t size : {0, 1, 7, 8, 1000}) {
    const std::vector<std::byte> image(size, std::byte{3});
    const std::vector<std::byte> mask(size / 2 + 1, std::byte{9});
    const RawRecord made = {image, Bytes(label), mask};
    const std::optional<uint64_t> bytes = format.Bytes(made);
    ASSERT_TRUE(bytes);
    std::vector<std::byte> entry(*bytes);
    format.Write(made, entry.data());
    RawRecord read;
    ASSERT_TRUE(format.Read(entry, &read));
    ASSERT_EQ(read.size(), 3U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(std::ranges::equal(read[i], made[i])) << i;
    }
    for (size_t less = 0; less < entry.size(); ++less) {
      EXPECT_FALSE(format.Read(std::span(entry).first(less), &read)) << less;
    }
  }
}

TEST(EntryFormatTest, SizesThatLieAreNoEntry) {
  const EntryFormat format(Pictures());
  std::vector<std::byte> entry(64);
  RawRecord read;
  EXPECT_TRUE(format.Read(entry, &read));
  for (const uint32_t size : {57U, 0x7fffffffU, 0xffffffffU}) {
    std::memcpy(entry.data(), &size, sizeof(size));
    EXPECT_FALSE(format.Read(entry, &read)) << size;
  }
}

TEST(EntryFormatTest, AFeatureOfTheWrongSizeIsNotKept) {
  const EntryFormat format(Numbers());
  EXPECT_EQ(format.fixed_bytes(), 40U);
  const std::vector<int64_t> four = {1, 2, 3, 4};
  EXPECT_EQ(format.Bytes({Bytes(four)}), std::nullopt);
}

// ---- in memory

TEST(MemoryCacheTest, GivesWhatWasPutAndNothingElse) {
  const auto cache = Open(1 << 20, 100);
  EXPECT_FALSE(cache->Has(3));
  EXPECT_TRUE(Get(*cache, 3).empty());
  Put(*cache, 3);
  Put(*cache, 99);
  EXPECT_TRUE(cache->Has(3));
  EXPECT_EQ(Get(*cache, 3), ValuesOf(3));
  EXPECT_EQ(Get(*cache, 99), ValuesOf(99));
  EXPECT_FALSE(cache->Has(4));
  EXPECT_EQ(cache->entries(), 2U);
  EXPECT_EQ(cache->bytes(), 2U * 48);
  Put(*cache, 3);  // it has it
  EXPECT_EQ(cache->entries(), 2U);
}

TEST(MemoryCacheTest, KeepsWhatFitsAndNeverGivesItUp) {
  constexpr uint64_t kFit = 1000;
  const auto cache = Open(kFit * 48, 3 * kFit);
  for (uint64_t i = 0; i < 3 * kFit; ++i) Put(*cache, i);
  EXPECT_EQ(cache->entries(), kFit);
  EXPECT_EQ(cache->state(), "full");
  for (uint64_t i = 0; i < 3 * kFit; ++i) {
    EXPECT_EQ(cache->Has(i), i < kFit);
    EXPECT_EQ(Get(*cache, i), i < kFit ? ValuesOf(static_cast<int64_t>(i))
                                       : std::vector<int64_t>());
  }
}

TEST(MemoryCacheTest, TakesNoMemoryThatTheMachineNeeds) {
  uint64_t left = uint64_t{1} << 30;
  const RawSpec features = {{{"x", DType::kUint8, {16 << 20}}, false}};
  const auto cache = Open(uint64_t{1} << 30, 60, features, [&left] {
    return AvailableMemory{left, "this test"};
  });
  const std::vector<std::byte> made(16 << 20);
  CacheScratch scratch;
  for (uint64_t i = 0; i < 4; ++i) cache->Put(i, {made}, &scratch);
  EXPECT_EQ(cache->entries(), 4U);
  left = 100 << 20;
  for (uint64_t i = 0; i < 60; ++i) cache->Put(i, {made}, &scratch);
  EXPECT_EQ(cache->entries(), 4U);
  EXPECT_THAT(cache->state(), HasSubstr("too little memory"));
}

// With the places of all records, until it goes; and of these what has pages.
TEST(MemoryCacheTest, ItsMemoryIsPromised) {
  struct Counted final : MemoryPromise {
    Counted(uint64_t bytes, uint64_t* all) : bytes(bytes), all(all) {}
    ~Counted() override { *all = 0; }
    void Populated(uint64_t more) override { *all += more; }
    const uint64_t bytes;
    uint64_t* const all;
  };
  uint64_t promised = 0;
  uint64_t populated = 0;
  CacheHost host;
  host.promise = [&](uint64_t bytes) {
    promised = bytes;
    return StatusOr<std::unique_ptr<MemoryPromise>>(
        std::make_unique<Counted>(bytes, &populated));
  };
  const KeptRows rows = {"", "{}", "{}", 1000, Numbers()};
  // All records need less than it may have.
  auto cache = OpenMemoryCache(rows, uint64_t{1} << 40, host);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  EXPECT_EQ(promised, 1000U * (48 + 8));
  EXPECT_EQ(populated, 1000U * 8);
  Put(**cache, 1);
  EXPECT_EQ(populated, promised);
  cache->reset();
  EXPECT_EQ(populated, 0U);

  host.promise = [](uint64_t) -> StatusOr<std::unique_ptr<MemoryPromise>> {
    return ResourceExhaustedError("only 1 byte is left");
  };
  const auto refused = OpenMemoryCache(rows, 1 << 20, host);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().message(), "only 1 byte is left: make it smaller");
}

TEST(MemoryCacheTest, WhoKeepsTheSameSharesIt) {
  const auto open = [](const std::string& key) {
    auto cache = OpenMemoryCache({key, "{}", "{}", 10, Numbers()}, 1 << 20, {});
    EXPECT_TRUE(cache.ok());
    return *std::move(cache);
  };
  auto a = open("a");
  EXPECT_EQ(open("a"), a);
  EXPECT_NE(open("b"), a);
  Put(*a, 1);
  a.reset();
  EXPECT_FALSE(open("a")->Has(1));
}

// Every thread puts and gets all records, in an order of its own; half of them
// fit.
TEST(MemoryCacheTest, ThreadsNeverSeeHalfAnEntry) {
  constexpr uint64_t kRecords = 4096;
  constexpr int kThreads = 8;
  const auto cache = Open(kRecords / 2 * 48, kRecords);
  std::atomic<uint64_t> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kRecords; ++i) {
        const uint64_t record = (i * 2 * t + i * 7 + t) % kRecords;
        const std::vector<int64_t> found = Get(*cache, record);
        if (found.empty()) {
          Put(*cache, record);
        } else if (found != ValuesOf(static_cast<int64_t>(record))) {
          wrong.fetch_add(1);
        }
        if (i % 64 == 0) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0U);
  uint64_t entries = 0;
  for (uint64_t i = 0; i < kRecords; ++i) {
    if (!cache->Has(i)) continue;
    ++entries;
    EXPECT_EQ(Get(*cache, i), ValuesOf(static_cast<int64_t>(i)));
  }
  EXPECT_EQ(entries, kRecords / 2);
  EXPECT_EQ(cache->entries(), entries);
}

}  // namespace penstock::row_cache_test
