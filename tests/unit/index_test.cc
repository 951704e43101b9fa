// Promise: an index has the places that a scan of each file found, in order; it
// comes from the cache if and only if the very file is unchanged, and no byte
// of the cache is believed. Method: a scanner that counts its calls, over files
// whose times are set here; every byte of a cache file damaged.
#include "broker/index/index.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "broker/index/cache_file.h"

namespace penstock::index_test {

using testing::ElementsAre;
using testing::HasSubstr;

class IndexTest : public testing::Test {
 protected:
  IndexTest() {
    std::string pattern = testing::TempDir() + "penstock-index-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
  }
  ~IndexTest() override { std::filesystem::remove_all(folder_); }

  // A file of an hour ago, so that its index may be kept.
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    std::filesystem::last_write_time(
        path,
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    return path;
  }

  // A record is a byte for its length and that many bytes.
  RecordScanner Scanner() {
    return {.kind = "test",
            .scan = [this](ScannedFile* file, RecordSink* records) -> Status {
              ++scans_;
              for (uint64_t at = 0; at < file->bytes();) {
                PENSTOCK_ASSIGN_OR_RETURN(
                    const std::span<const std::byte> length, file->At(at, 1));
                const auto bytes = std::to_integer<uint64_t>(length[0]);
                PENSTOCK_RETURN_IF_ERROR(records->Add(at + 1, bytes));
                at += 1 + bytes;
              }
              return OkStatus();
            }};
  }
  StatusOr<Index> Open(std::vector<std::string> files,
                       std::optional<RecordScanner> scanner = {}) {
    return Index::Open({std::move(files)}, scanner ? *scanner : Scanner(),
                       &progress_);
  }
  static std::vector<std::string> Places(const StatusOr<Index>& index) {
    if (!index.ok()) return {index.status().message()};
    std::vector<std::string> places;
    for (uint64_t i = 0; i < index->records(); ++i) {
      const Index::Record record = index->At(i);
      places.push_back(
          Format("{} {} {}+{}",
                 std::filesystem::path(record.file->path()).filename().string(),
                 record.number, record.offsets[0], record.bytes[0]));
    }
    return places;
  }
  std::vector<std::string> CacheFiles() {
    std::vector<std::string> files;
    for (const auto& each :
         std::filesystem::directory_iterator(folder_ + "/cache")) {
      files.push_back(each.path().string());
    }
    return files;
  }

  std::string folder_;
  OpenProgress progress_;
  std::atomic<int> scans_{0};
};

TEST_F(IndexTest, RecordsOfAllFilesComeInOrder) {
  const std::vector<std::string> files = {
      Write("b", std::string("\2xx\0\1y", 6)), Write("empty", ""),
      Write("a", "\3abc")};
  const auto index = Open(files);
  EXPECT_THAT(Places(index),
              ElementsAre("b 0 1+2", "b 1 4+0", "b 2 5+1", "a 0 1+3"));
  EXPECT_EQ(progress_.done, 10u);
  EXPECT_EQ(progress_.total, 10u);
  EXPECT_GE(index->memory_bytes(), 4 * 12u);
}

TEST_F(IndexTest, OnlyNewAndChangedFilesAreScannedAgain) {
  const std::string a = Write("a", "\1a");
  const std::string b = Write("b", "\1b\1c");
  const auto first = Open({a, b});
  EXPECT_EQ(scans_, 2);
  EXPECT_EQ(Places(Open({a, b})), Places(first));
  EXPECT_EQ(scans_, 2);
  EXPECT_TRUE(Open({b, a, Write("c", "\1d")}).ok());
  EXPECT_EQ(scans_, 3);
  Write("b", "\1b\2cc");
  EXPECT_THAT(Places(Open({b})), ElementsAre("b 0 1+1", "b 1 3+2"));
  EXPECT_EQ(scans_, 4);
  // The same size and time in another inode.
  const auto time = std::filesystem::last_write_time(a);
  const std::string other = Write("other", std::string(2, '\0'));
  std::filesystem::rename(other, a);
  std::filesystem::last_write_time(a, time);
  EXPECT_TRUE(Open({a}).ok());
  EXPECT_EQ(scans_, 5);
  RecordScanner newer = Scanner();
  newer.version = 2;
  EXPECT_TRUE(Open({a}, newer).ok());
  EXPECT_EQ(scans_, 6);
  newer.options = "x";
  EXPECT_TRUE(Open({a}, newer).ok());
  EXPECT_EQ(scans_, 7);
  EXPECT_TRUE(Open({a}, newer).ok());
  EXPECT_EQ(scans_, 7);
}

TEST_F(IndexTest, AFileThatChangedJustNowIsNotKept) {
  const std::string a = Write("a", "\1a");
  std::filesystem::last_write_time(
      a, std::filesystem::file_time_type::clock::now());
  EXPECT_TRUE(Open({a}).ok());
  EXPECT_TRUE(Open({a}).ok());
  EXPECT_EQ(scans_, 2);
}

TEST_F(IndexTest, NoByteOfTheCacheIsBelieved) {
  const std::string a = Write("a", "\1a\2bb");
  const auto wanted = Places(Open({a}));
  ASSERT_EQ(CacheFiles().size(), 1u);
  const std::string cache = CacheFiles()[0];
  std::ifstream in(cache, std::ios::binary);
  const std::string sound((std::istreambuf_iterator<char>(in)), {});
  const auto replace = [&cache](const std::string& bytes) {
    std::ofstream(cache, std::ios::binary) << bytes;
  };
  int scans = scans_;
  for (size_t i = 0; i < sound.size(); ++i) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string damaged = sound;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      replace(damaged);
      EXPECT_EQ(Places(Open({a})), wanted) << i;
      EXPECT_EQ(scans_, ++scans) << i;
    }
  }
  for (size_t bytes = 0; bytes < sound.size(); bytes += 7) {
    replace(sound.substr(0, bytes));
    EXPECT_EQ(Places(Open({a})), wanted);
    EXPECT_EQ(scans_, ++scans);
  }
  replace(sound + "x");
  EXPECT_EQ(Places(Open({a})), wanted);
  EXPECT_EQ(scans_, ++scans);
  // The scan above wrote a sound one. Others could write this one.
  chmod(cache.c_str(), 0666);
  EXPECT_TRUE(Open({a}).ok());
  EXPECT_EQ(scans_, ++scans);
  std::filesystem::remove_all(folder_ + "/cache");
  std::ofstream(folder_ + "/cache") << "no folder";
  EXPECT_EQ(Places(Open({a})), wanted);
}

TEST_F(IndexTest, MemoryIsPromisedBeforeItIsTaken) {
  const std::string a = Write("a", std::string(100'000, '\0'));
  uint64_t all = 0;
  progress_.reserve = [&all](uint64_t bytes) {
    all += bytes;
    return all > 900'000 ? ResourceExhaustedError("full") : OkStatus();
  };
  EXPECT_EQ(Open({a}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_GT(all, 900'000u);
  progress_.reserve = [](uint64_t) { return OkStatus(); };
  ASSERT_TRUE(Open({a}).ok());
  progress_.reserve = [](uint64_t bytes) {
    return bytes > 900'000 ? ResourceExhaustedError("full") : OkStatus();
  };
  EXPECT_EQ(Open({a}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(scans_, 2);  // the last one came from the cache
}

TEST_F(IndexTest, AnOpeningEndsWithItsFirstErrorOrWhenCancelled) {
  std::vector<std::string> files;
  for (int i = 0; i < 50; ++i) files.push_back(Write(Format("{}", i), "\1a"));
  RecordScanner scanner = Scanner();
  scanner.scan = [](ScannedFile* file, RecordSink*) {
    return DataLossError("{} is bad", file->path());
  };
  EXPECT_THAT(Open(files, scanner).status().message(), HasSubstr("is bad"));
  EXPECT_THAT(Open({Write("none", "")}).status().message(),
              HasSubstr("test: no record in " + folder_ + "/none"));
  progress_.cancel = true;
  EXPECT_EQ(Open(files).status().code(), StatusCode::kCancelled);
}

TEST_F(IndexTest, AFileThatShrinksDuringTheScanIsNamed) {
  const std::string a = Write("a", std::string(10'000, 'x'));
  RecordScanner scanner = Scanner();
  scanner.scan = [&a](ScannedFile* file, RecordSink*) -> Status {
    std::filesystem::resize_file(a, 100);
    return file->At(9'000, 100).status();
  };
  const Status status = Open({a}, scanner).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status.message(),
            a + " became shorter while its records were counted: it had 10000 "
                "bytes, and has 9000");
}

TEST_F(IndexTest, TheFingerprintIsOfTheFilesNotOfTheirPlace) {
  std::filesystem::create_directory(folder_ + "/x");
  std::filesystem::create_directory(folder_ + "/y");
  const auto print = [this](const std::string& folder, const std::string& name,
                            const std::string& content) {
    Write(folder + "/1", "\1a");
    Write(folder + "/" + name, content);
    const auto index = Open(
        {folder_ + "/" + folder + "/1", folder_ + "/" + folder + "/" + name});
    return index.ok() ? index->fingerprint() : index.status().message();
  };
  const std::string one = print("x", "2", "\2bb\1c");
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(one, print("y", "2", "\2bb\1c"));
  EXPECT_EQ(one, print("y", "2", "\2BB\1C"));  // not of their content
  EXPECT_NE(one, print("y", "3", "\2bb\1c"));
  EXPECT_NE(one, print("y", "2", "\1c\2bb"));
  EXPECT_NE(one, print("y", "2",
                       "\2bb\1"
                       "c\1d"));
}

TEST_F(IndexTest, ScansSeeTheSameBytesWhateverTheirSteps) {
  std::string content(3 << 20, '\0');
  for (size_t i = 0; i < content.size(); ++i) {
    content[i] = static_cast<char>(i * 2654435761 >> 13);
  }
  const std::string a = Write("a", content);
  for (const uint64_t step :
       {uint64_t{1000}, uint64_t{4096}, uint64_t{5000}, uint64_t{300'001}}) {
    RecordScanner scanner = Scanner();
    scanner.options = std::to_string(step);
    scanner.scan = [&](ScannedFile* file, RecordSink* records) -> Status {
      for (uint64_t at = 0; at + 700 <= file->bytes(); at += step) {
        PENSTOCK_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                                  file->At(at, 700));
        EXPECT_EQ(std::memcmp(bytes.data(), &content[at], 700), 0);
        PENSTOCK_RETURN_IF_ERROR(records->Add(at, 700));
      }
      return OkStatus();
    };
    progress_.done = 0;
    EXPECT_TRUE(Open({a}, scanner).ok());
    EXPECT_EQ(progress_.done, content.size());
  }
}

}  // namespace penstock::index_test
