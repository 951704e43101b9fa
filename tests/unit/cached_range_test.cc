// Promise: ranges that are in the page cache are read at once, also from the
// map of their file, and whatever is not there is not read; a file that is
// truncated under its map ends nothing, and any other bus error still ends the
// process. Method: files of this test.
#include "broker/io/cached_range.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "broker/io/guarded_copy.h"

namespace penstock {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kBytes = 4 * kPage;

// A file of four pages, with its map.
class MappedFile {
 public:
  MappedFile() {
    std::string path = testing::TempDir() + "penstock-cached-XXXXXX";
    fd_ = mkstemp(path.data());
    unlink(path.c_str());
    std::string content(kBytes, '\0');
    for (size_t i = 0; i < kBytes; ++i) {
      content[i] = static_cast<char>('a' + i % 23);
    }
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
    request.map = map_;
    request.offset = offset;
    request.bytes = bytes;
    return request;
  }
  static char At(uint64_t offset) {
    return static_cast<char>('a' + offset % 23);
  }
  const std::byte* map() const { return map_; }
  void Truncate(uint64_t bytes) const {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
  }

 private:
  int fd_ = -1;
  const std::byte* map_ = nullptr;
};

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class CachedRangeTest : public testing::TestWithParam<bool> {
 protected:
  bool warm() const { return GetParam(); }

  MappedFile file_;
  CachedRange range_;
  ReadBytes read_;
};
INSTANTIATE_TEST_SUITE_P(All, CachedRangeTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Mapped" : "Read";
                         });

TEST_P(CachedRangeTest, OnePart) {
  const ReadRequest request = file_.Request(kPage - 2, 5);
  range_.Expect(request);
  ASSERT_TRUE(range_.Read(request, warm(), {}, &read_));
  const std::string text = TextOf(read_.bytes);
  ASSERT_EQ(text.size(), 5U);
  EXPECT_EQ(text[0], MappedFile::At(kPage - 2));
  EXPECT_EQ(text[4], MappedFile::At(kPage + 2));
  EXPECT_TRUE(read_.ends.empty());
}

TEST_P(CachedRangeTest, IntoItsPlace) {
  std::byte place[8] = {};
  ASSERT_TRUE(range_.Read(file_.Request(30, 8), warm(), place, &read_));
  EXPECT_EQ(read_.bytes.data(), place);
  EXPECT_EQ(TextOf(place)[0], MappedFile::At(30));
}

TEST_P(CachedRangeTest, SeveralPartsAndNone) {
  ReadRequest request = file_.Request(1, 2);
  request.more = {file_.Request(0, 0), file_.Request(kPage, 3)};
  ASSERT_TRUE(range_.Read(request, warm(), {}, &read_));
  EXPECT_EQ(read_.bytes.size(), 5U);
  EXPECT_EQ(std::vector(read_.ends.begin(), read_.ends.end()),
            (std::vector<uint64_t>{2, 2, 5}));
  EXPECT_EQ(TextOf(read_.Part(2))[0], MappedFile::At(kPage));
  ASSERT_TRUE(range_.Read(file_.Request(7, 0), warm(), {}, &read_));
  EXPECT_TRUE(read_.bytes.empty());
}

TEST_P(CachedRangeTest, WhatMayWaitIsLeft) {
  ReadRequest direct = file_.Request(0, kPage);
  direct.align = 512;
  EXPECT_FALSE(range_.Read(direct, warm(), {}, &read_));
  ReadRequest network = file_.Request(0, 4);
  network.nowait = false;
  EXPECT_FALSE(range_.Read(network, warm(), {}, &read_));
  ReadRequest several = file_.Request(0, 4);
  several.more = {network};
  EXPECT_FALSE(range_.Read(several, warm(), {}, &read_));
  ReadRequest whole;
  whole.kind = ReadPart::Kind::kFile;
  whole.path = "/proc/self/exe";
  EXPECT_FALSE(range_.Read(whole, warm(), {}, &read_));
  EXPECT_FALSE(
      range_.Read(file_.Request(0, uint64_t{10} << 30), warm(), {}, &read_));
}

TEST_P(CachedRangeTest, ATruncatedFileIsLeft) {
  ASSERT_TRUE(range_.Read(file_.Request(3 * kPage, 4), warm(), {}, &read_));
  file_.Truncate(2 * kPage);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(range_.Read(file_.Request(3 * kPage, 4), warm(), {}, &read_));
    EXPECT_FALSE(
        range_.Read(file_.Request(kPage, 2 * kPage), warm(), {}, &read_));
    EXPECT_TRUE(range_.Read(file_.Request(kPage, 4), warm(), {}, &read_));
  }
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

}  // namespace
}  // namespace penstock
