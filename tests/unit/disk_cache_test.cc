// Promise: what a cache on disk gives is what was kept, or it says that it is
// damaged, whatever its files hold; a snapshot is complete or not there, and is
// used only for what it was made of. Method: caches in files, opened again,
// damaged byte by byte, locked, and on a disk that is full.
#include "broker/cache/disk_cache.h"

#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "broker/cache/shared_caches.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::disk_cache_test {

using testing::HasSubstr;

constexpr uint64_t kRecords = 50;
constexpr char kKey[] =
    R"({"access":"","source":{"range":9},"data":"1","changed":"2","map":[]})";

RawSpec Features() {
  return {{{"image", DType::kUint8, {}}, true},
          {{"label", DType::kInt64, {}}, false}};
}

// A picture of record i: some compress well, some not at all.
std::vector<std::byte> Picture(uint64_t i) {
  std::vector<std::byte> bytes(20 + 37 * i);
  uint64_t random = i + 1;
  for (std::byte& byte : bytes) {
    random = random * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(i % 2 == 0 ? i : random >> 56);
  }
  return bytes;
}

class DiskCacheTest : public testing::Test {
 protected:
  DiskCacheTest() {
    std::string pattern = testing::TempDir() + "/penstock-cache-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.files = {folder_ + "/s/index", folder_ + "/s/entries"};
    options_.key = kKey;
    options_.snapshot = true;
  }
  ~DiskCacheTest() override { std::filesystem::remove_all(folder_); }

  void Open() {
    cache_.reset();
    auto cache = DiskCache::Open(options_, kRecords, Features());
    ASSERT_TRUE(cache.ok()) << cache.status().message();
    cache_ = *std::move(cache);
  }
  Status OpenStatus() {
    cache_.reset();
    return DiskCache::Open(options_, kRecords, Features()).status();
  }
  void Put(uint64_t record) { PutInto(cache_.get(), record); }
  void PutInto(RowCache* cache, uint64_t record) {
    const std::vector<std::byte> picture = Picture(record);
    const auto label = static_cast<int64_t>(record);
    cache->Put(record, {picture, std::as_bytes(std::span(&label, 1))},
               &scratch_);
  }
  void Fill(uint64_t from = 0, uint64_t to = kRecords) {
    for (uint64_t i = from; i < to; ++i) Put(i);
  }
  // As a worker does: "", or what is wrong.
  std::string Check(uint64_t record) {
    ReadRequest request;
    if (!cache_->Locate(record, &request)) return "missing";
    EXPECT_EQ(request.kind, ReadPart::Kind::kRange);
    std::vector<std::byte> bytes(request.bytes);
    const ssize_t got = pread(request.fd, bytes.data(), bytes.size(),
                              static_cast<off_t>(request.offset));
    bytes.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
    RawRecord made;
    const Status status = cache_->Unpack(record, bytes, &scratch_, &made);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      return status.message();
    }
    const std::vector<std::byte> picture = Picture(record);
    const auto label = static_cast<int64_t>(record);
    return made.size() == 2 && std::ranges::equal(made[0], picture) &&
                   std::ranges::equal(made[1],
                                      std::as_bytes(std::span(&label, 1)))
               ? ""
               : "other values";
  }
  void AwaitComplete() {
    while (!cache_->complete()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  std::string Bytes(const std::string& file) const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void Write(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary) << bytes;
  }

  std::string folder_;
  DiskCache::Options options_;
  std::shared_ptr<DiskCache> cache_;
  CacheScratch scratch_;
};

TEST_F(DiskCacheTest, EntriesOutliveTheBroker) {
  options_.snapshot = false;
  for (const std::optional<int64_t> level :
       {std::optional<int64_t>(), std::optional<int64_t>(3)}) {
    options_.zstd = level;
    Open();
    Fill(0, 30);
    cache_->Fail(40);
    Open();
    EXPECT_EQ(cache_->entries(), 30U);
    for (uint64_t i = 0; i < kRecords; ++i) {
      EXPECT_EQ(cache_->Has(i), i < 30);
      EXPECT_EQ(Check(i), i < 30 ? "" : "missing");
    }
    std::filesystem::remove_all(folder_ + "/s");
  }
}

TEST_F(DiskCacheTest, CompressionMakesItSmaller) {
  uint64_t plain = 0;
  for (const bool packs : {false, true}) {
    if (packs) options_.zstd = 1;
    Open();
    Fill();
    for (uint64_t i = 0; i < kRecords; ++i) EXPECT_EQ(Check(i), "");
    if (packs) {
      EXPECT_LT(cache_->bytes(), 2 * plain / 3);
    } else {
      plain = cache_->bytes();
    }
    AwaitComplete();
    std::filesystem::remove_all(folder_ + "/s");
  }
}

TEST_F(DiskCacheTest, TakesNoMoreThanItMay) {
  options_.snapshot = false;
  options_.bytes = 4096;
  Open();
  Fill();
  EXPECT_LE(std::filesystem::file_size(options_.files.entries), 4096U);
  EXPECT_GT(cache_->entries(), 5U);
  EXPECT_EQ(cache_->state(), "full");
  const uint64_t entries = cache_->entries();
  Open();
  EXPECT_EQ(cache_->entries(), entries);
  Fill();
  EXPECT_EQ(cache_->entries(), entries);
}

// ---- snapshots

TEST_F(DiskCacheTest, ASnapshotIsCompleteOrNotThere) {
  Open();
  Fill(0, kRecords - 1);
  EXPECT_EQ(cache_->state(), "filling");
  // Who may only read it finds none.
  options_.writes = false;
  EXPECT_THAT(OpenStatus().message(), HasSubstr("is not complete"));
  options_.writes = true;
  Open();  // its writer goes on
  EXPECT_EQ(cache_->entries(), kRecords - 1);
  Put(kRecords - 1);
  AwaitComplete();
  for (const bool writes : {true, false}) {
    options_.writes = writes;
    Open();
    EXPECT_TRUE(cache_->complete());
    EXPECT_EQ(cache_->state(), "complete");
    for (uint64_t i = 0; i < kRecords; ++i) EXPECT_EQ(Check(i), "");
  }
}

TEST_F(DiskCacheTest, ItIsSealedWhenItsWriterDiedBefore) {
  constexpr size_t kHeaderBytes = 64;
  Open();
  Fill(0, kRecords - 1);
  const std::string before = Bytes(options_.files.index);
  cache_->Fail(kRecords - 1);  // it could not be decoded: read each time
  AwaitComplete();
  cache_.reset();
  std::string index = Bytes(options_.files.index);
  Write(options_.files.index,
        index.replace(0, kHeaderBytes, before, 0, kHeaderBytes));
  Open();
  AwaitComplete();
  EXPECT_FALSE(cache_->Has(kRecords - 1));
  EXPECT_EQ(cache_->entries(), kRecords - 1);
}

TEST_F(DiskCacheTest, OneWritesOthersWait) {
  Open();
  Fill(0, 3);
  auto other = DiskCache::Open(options_, kRecords, Features());
  EXPECT_EQ(other.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(other.status().message(),
              HasSubstr("another broker or job writes it"));
  options_.key = R"({"source":{"range":10}})";
  other = DiskCache::Open(options_, kRecords, Features());
  EXPECT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
  options_.key = kKey;
  Fill();
  AwaitComplete();
  other = DiskCache::Open(options_, kRecords, Features());
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_TRUE((*other)->complete());
}

TEST_F(DiskCacheTest, OneOfOtherDataOrStepsIsRefused) {
  Open();
  Fill();
  AwaitComplete();
  const auto refused = [&](const std::string& from, const std::string& to) {
    options_.key = kKey;
    options_.key.replace(options_.key.find(from), from.size(), to);
    const Status status = OpenStatus();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("remove it"));
    return status.message();
  };
  EXPECT_THAT(refused("9", "8"), HasSubstr("another source"));
  EXPECT_THAT(refused("\"1\"", "\"7\""), HasSubstr("other files or records"));
  EXPECT_THAT(refused("\"2\"", "\"7\""), HasSubstr("have changed since"));
  EXPECT_THAT(refused("[]", "[1]"), HasSubstr("other steps of `map`"));
  options_.key = kKey;
  EXPECT_EQ(DiskCache::Open(options_, kRecords + 1, Features()).status().code(),
            StatusCode::kFailedPrecondition);
  // One that is not complete is what somebody goes on with, too.
  std::filesystem::remove_all(folder_ + "/s");
  Open();
  Fill(0, 3);
  cache_.reset();
  refused("9", "8");
  options_.key = kKey;
  Open();
  EXPECT_EQ(cache_->entries(), 3U);
  // One that has nothing yet is nobody's.
  std::filesystem::remove_all(folder_ + "/s");
  Open();
  cache_.reset();
  options_.key = R"({"source":{"range":10}})";
  Open();
  EXPECT_EQ(cache_->entries(), 0U);
}

TEST_F(DiskCacheTest, ACacheOfOtherDataBeginsAnew) {
  options_.snapshot = false;
  Open();
  Fill();
  options_.key = R"({"source":{"range":10}})";
  Open();
  EXPECT_EQ(cache_->entries(), 0U);
  Fill(0, 2);
  EXPECT_EQ(Check(1), "");
}

TEST_F(DiskCacheTest, FilesOfOthersAreLeftAlone) {
  std::filesystem::create_directories(folder_ + "/s");
  Write(options_.files.index, "the only copy of my thesis, chapter 1");
  chmod(options_.files.index.c_str(), 0644);  // whatever the umask
  const Status status = OpenStatus();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("give another path"));
  EXPECT_THAT(Bytes(options_.files.index), HasSubstr("thesis"));
  // What others may write may name anything.
  std::filesystem::remove(options_.files.index);
  Open();
  cache_.reset();
  chmod(options_.files.index.c_str(), 0666);
  EXPECT_EQ(OpenStatus().code(), StatusCode::kPermissionDenied);
}

// ---- damage

TEST_F(DiskCacheTest, ADamagedEntryIsToldAndReplaced) {
  options_.snapshot = false;
  Open();
  Fill();
  cache_.reset();
  const std::string index = Bytes(options_.files.index);
  const std::string sound = Bytes(options_.files.entries);
  for (size_t at = 0; at < sound.size(); at += sound.size() / 199) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    Write(options_.files.index, index);
    Write(options_.files.entries, damaged);
    Open();
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < kRecords; ++i) {
      const std::string found = Check(i);
      if (found.empty()) continue;
      ++wrong;
      EXPECT_THAT(found, HasSubstr("at offset")) << i;
      cache_->NoteDamage(i, DataLossError("{}", found), true);
      EXPECT_FALSE(cache_->Has(i));
      Put(i);
      EXPECT_EQ(Check(i), "");
    }
    EXPECT_LE(wrong, 1U);  // zeros between entries belong to none
  }
}

TEST_F(DiskCacheTest, EntriesThatWereCutOffAreMissing) {
  options_.snapshot = false;
  Open();
  Fill();
  cache_.reset();
  std::filesystem::resize_file(
      options_.files.entries,
      std::filesystem::file_size(options_.files.entries) / 2);
  Open();
  EXPECT_LT(cache_->entries(), kRecords);
  for (uint64_t i = 0; i < kRecords; ++i) {
    EXPECT_EQ(Check(i), cache_->Has(i) ? "" : "missing");
  }
  // And while it is open.
  std::filesystem::resize_file(options_.files.entries, 100);
  uint64_t unread = 0;
  for (uint64_t i = 0; i < kRecords; ++i) {
    unread += cache_->Has(i) && !Check(i).empty();
  }
  EXPECT_GT(unread, 10U);
}

TEST_F(DiskCacheTest, ADamagedIndexOfASnapshotIsRefused) {
  Open();
  Fill();
  AwaitComplete();
  cache_.reset();
  const std::string sound = Bytes(options_.files.index);
  const auto open = [&](const std::string& index) {
    Write(options_.files.index, index);
    return DiskCache::Open(options_, kRecords, Features());
  };
  for (const size_t at : {sound.size() - 1, sound.size() - 8 * kRecords}) {
    std::string damaged = sound;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    const auto cache = open(damaged);
    EXPECT_EQ(cache.status().code(), StatusCode::kDataLoss) << at;
    EXPECT_THAT(cache.status().message(), HasSubstr("remove it"));
  }
  std::filesystem::resize_file(options_.files.entries, 1000);
  EXPECT_EQ(open(sound).status().code(), StatusCode::kDataLoss);
}

// Whatever it holds, opening it is an error or a cache that says what is wrong.
TEST_F(DiskCacheTest, AnyIndexIsUntrusted) {
  options_.snapshot = false;
  Open();
  Fill();
  cache_.reset();
  const std::string sound = Bytes(options_.files.index);
  const std::string entries = Bytes(options_.files.entries);
  uint64_t random = 1;
  for (int i = 0; i < 300; ++i) {
    std::string index = sound;
    for (int changes = 0; changes < 4; ++changes) {
      random = random * 6364136223846793005 + 1442695040888963407;
      const bool place = (random & 1) != 0;
      const size_t at =
          place ? index.size() - 1 - (random >> 40) % 400 : (random >> 40) % 64;
      index[at] = static_cast<char>(random >> 20);
    }
    if (i % 10 == 0) index.resize((random >> 33) % index.size());
    Write(options_.files.index, index);
    Write(options_.files.entries, entries);
    auto cache = DiskCache::Open(options_, kRecords, Features());
    if (!cache.ok()) continue;
    cache_ = *std::move(cache);
    for (uint64_t record = 0; record < kRecords; ++record) {
      EXPECT_NE(Check(record), "other values");
    }
    cache_.reset();
  }
}

// Full, or over a quota or the limit of a file.
TEST_F(DiskCacheTest, AFullDiskEndsTheWritingAlone) {
  const std::string disk = folder_ + "/disk";
  std::filesystem::create_directory(disk);
  const bool mounted =
      mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=32k") == 0;
  struct rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit limit = {20'000, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  if (!mounted) setrlimit(RLIMIT_FSIZE, &limit);
  options_.files = {disk + "/index", disk + "/entries"};
  Open();
  Fill();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(cache_->state(), HasSubstr("keeps no more"));
  EXPECT_GT(cache_->entries(), 5U);
  EXPECT_LT(cache_->entries(), kRecords);
  for (uint64_t i = 0; i < kRecords; ++i) {
    EXPECT_EQ(Check(i), cache_->Has(i) ? "" : "missing");
  }
  EXPECT_FALSE(cache_->complete());
  cache_.reset();
  if (mounted) umount2(disk.c_str(), MNT_DETACH);
}

TEST_F(DiskCacheTest, ThreadsFillItTogether) {
  Open();
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      CacheScratch scratch;
      for (uint64_t i = 0; i < kRecords; ++i) {
        const uint64_t record = (i * 7 + t * 13) % kRecords;
        const std::vector<std::byte> picture = Picture(record);
        const auto label = static_cast<int64_t>(record);
        cache_->Put(record, {picture, std::as_bytes(std::span(&label, 1))},
                    &scratch);
        std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AwaitComplete();
  EXPECT_EQ(cache_->entries(), kRecords);
  for (uint64_t i = 0; i < kRecords; ++i) EXPECT_EQ(Check(i), "");
}

// The seal of one takes a moment after its last record, perhaps minutes.
TEST_F(DiskCacheTest, TheNextJobGetsWhatTheLastOneHasJustWritten) {
  const KeptRows rows = {"", R"({"source":1})", "", kRecords, Features()};
  for (int i = 0; i < 20; ++i) {
    const SnapshotSpec spec = {.path = folder_ + "/" + std::to_string(i)};
    const auto open = [&] {
      return OpenSnapshot(rows, spec, FileAccess::OfBroker(), {});
    };
    {
      const auto first = open();
      ASSERT_TRUE(first.ok()) << first.status().message();
      for (uint64_t record = 0; record < kRecords; ++record) {
        PutInto(first->get(), record);
      }
    }
    const auto next = open();
    ASSERT_TRUE(next.ok()) << i << ": " << next.status().message();
    EXPECT_EQ((*next)->entries(), kRecords);
  }
}

// ---- where a snapshot may be written

TEST_F(DiskCacheTest, SnapshotsAreWrittenBelowNamedFoldersOnly) {
  CacheHost host;
  host.snapshots = {folder_ + "/allowed/"};
  const KeptRows rows = {"user 7", R"({"source":1})", "", kRecords, Features()};
  const auto open = [&](const std::string& path) {
    return OpenSnapshot(rows, {.path = folder_ + path}, FileAccess::OfBroker(),
                        host)
        .status();
  };
  EXPECT_TRUE(open("/allowed/a").ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/allowed/a/index"));
  for (const char* const path :
       {"/allowed", "/allowed/../b", "/allowedly", "/c"}) {
    EXPECT_THAT(open(path).message(), HasSubstr("`snapshot_path`")) << path;
    EXPECT_FALSE(std::filesystem::exists(folder_ + path + "/index"));
  }
}

}  // namespace penstock::disk_cache_test
