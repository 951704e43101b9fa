// Promise: ranges that are in the page cache are read at once, also from the
// map of their file, and whatever is not there is not read; a file that is
// truncated under its map ends nothing, and any other bus error still ends the
// process. Method: files of this test.
#include "broker/io/cached_range.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::cached_range_test {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = 4 * kPage;

// A file of four pages, with its map.
class MappedFile {
 public:
  MappedFile() {
    std::string path = testing::TempDir() + "penstock-cached-XXXXXX";
    fd_ = mkstemp(path.data());
    unlink(path.c_str());
    const std::string content = Text(0, kBytes);
    EXPECT_EQ(pwrite(fd_, content.data(), kBytes, 0), ssize_t{kBytes});
    void* const map = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, fd_, 0);
    EXPECT_NE(map, MAP_FAILED);
    map_ = static_cast<const std::byte*>(map);
  }
  ~MappedFile() {
    munmap(const_cast<std::byte*>(map_), kBytes);
    close(fd_);
  }

  ReadRequest Request(uint64_t offset, uint64_t bytes) const {
    ReadRequest request;
    request.kind = ReadPart::Kind::kRange;
    request.fd = fd_;
    request.map = {map_, kBytes};
    request.offset = offset;
    request.bytes = bytes;
    return request;
  }
  static std::string Text(uint64_t offset, uint64_t bytes) {
    std::string text;
    for (uint64_t i = offset; i < offset + bytes; ++i) {
      text += static_cast<char>('a' + i % 23);
    }
    return text;
  }
  const std::byte* map() const { return map_; }
  void Truncate(uint64_t bytes) const {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
  }

 private:
  int fd_ = -1;
  const std::byte* map_ = nullptr;
};

class CachedRangeTest : public testing::TestWithParam<bool> {
 protected:
  // What is read; nullopt: it is left.
  std::optional<std::string> Read(const ReadRequest& request) const {
    const std::optional<uint64_t> bytes = CachedBytes(request);
    if (!bytes) return std::nullopt;
    ExpectCached(request);
    std::string text(*bytes, '?');
    const bool mapped = GetParam();
    if (!ReadCached(request, mapped,
                    reinterpret_cast<std::byte*>(text.data())) ||
        (mapped &&
         (!IsWhole(request) ||
          !std::all_of(request.more.begin(), request.more.end(), IsWhole)))) {
      return std::nullopt;
    }
    return text;
  }

  MappedFile file_;
};
INSTANTIATE_TEST_SUITE_P(All, CachedRangeTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Mapped" : "Read";
                         });

TEST_P(CachedRangeTest, RangesOfOneAndOfSeveralParts) {
  EXPECT_EQ(Read(file_.Request(kPage - 2, 5)), MappedFile::Text(kPage - 2, 5));
  EXPECT_EQ(Read(file_.Request(7, 0)), "");
  ReadRequest request = file_.Request(1, 2);
  request.more = {file_.Request(0, 0), file_.Request(kPage, 3)};
  EXPECT_EQ(Read(request), MappedFile::Text(1, 2) + MappedFile::Text(kPage, 3));
}

TEST_P(CachedRangeTest, WhatMayWaitIsLeft) {
  ReadRequest direct = file_.Request(0, kPage);
  direct.align = 512;
  EXPECT_EQ(Read(direct), std::nullopt);
  ReadRequest network = file_.Request(0, 4);
  network.nowait = false;
  EXPECT_EQ(Read(network), std::nullopt);
  ReadRequest several = file_.Request(0, 4);
  several.more = {network};
  EXPECT_EQ(Read(several), std::nullopt);
  ReadRequest whole;
  whole.kind = ReadPart::Kind::kFile;
  whole.path = "/proc/self/exe";
  EXPECT_EQ(Read(whole), std::nullopt);
  EXPECT_EQ(Read(file_.Request(0, uint64_t{10} << 30)), std::nullopt);
  ReadRequest large = file_.Request(0, 1 << 20);
  large.more = {file_.Request(0, 1)};
  EXPECT_EQ(Read(large), std::nullopt);
}

TEST_P(CachedRangeTest, ATruncatedFileIsLeft) {
  EXPECT_NE(Read(file_.Request(3 * kPage, 4)), std::nullopt);
  file_.Truncate(2 * kPage);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Read(file_.Request(3 * kPage, 4)), std::nullopt);
    EXPECT_EQ(Read(file_.Request(kPage, 2 * kPage)), std::nullopt);
  }
}

TEST_P(CachedRangeTest, AFileCutWithinAPageHasNoZeros) {
  file_.Truncate(kPage + 10);
  EXPECT_EQ(Read(file_.Request(kPage + 8, 4)), std::nullopt);
  EXPECT_EQ(Read(file_.Request(kPage + 100, 4)), std::nullopt);
  ReadRequest several = file_.Request(0, 4);
  several.more = {file_.Request(kPage + 100, 4)};
  EXPECT_EQ(Read(several), std::nullopt);
}

TEST(GuardedCopyTest, EachThreadHasItsOwn) {
  const MappedFile file;
  file.Truncate(kPage);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&file] {
      std::vector<std::byte> to(kPage);
      for (int round = 0; round < 200; ++round) {
        EXPECT_TRUE(GuardedCopy(to.data(), file.map(), kPage));
        EXPECT_FALSE(GuardedCopy(to.data(), file.map() + kPage, kPage));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(GuardedCopyDeathTest, OtherBusErrorsEndTheProcess) {
  const MappedFile file;
  std::byte to{};
  ASSERT_TRUE(GuardedCopy(&to, file.map(), 1));
  file.Truncate(kPage);
  EXPECT_DEATH(
      {
        volatile std::byte lost = file.map()[2 * kPage];
        (void)lost;
      },
      "");
}

}  // namespace penstock::cached_range_test
