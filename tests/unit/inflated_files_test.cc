// Promise: a compressed file opens as its content under its own name, inflated
// once for all openings; what cannot be inflated is an error that names it, and
// leaves nothing. Method: files of all four compressions, opened with others
// and at once, damaged, changed and without room.
#include "broker/index/inflated_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "broker/index/data_files.h"
#include "broker/index/fingerprint.h"
#include "tests/unit/compressed.h"
#include "tests/unit/folder_fixture.h"

namespace penstock::inflated_files_test {

using std::filesystem::directory_iterator;
using testing::AllOf;
using testing::HasSubstr;

class InflatedFilesTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    setenv("PENSTOCK_CACHE_DIR", (folder_ / "cache").c_str(), 1);
  }

  // A file of an hour ago: of one that was written just now a change may not
  // show, so its copy waits.
  std::string WriteOld(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ / name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    last_write_time(
        std::filesystem::path(path),
        std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    return path;
  }
  static std::string Plain(char fill) {
    return "content " + std::string(5000, fill);
  }
  static StatusOr<DataFiles> Open(std::vector<std::string> paths,
                                  const OpenProgress& progress = {},
                                  InflateBy by = InflateBy::kMark) {
    return DataFiles::Open({std::move(paths)}, progress, by);
  }
  static std::string Text(const DataFile& file) {
    std::string text(file.bytes() + 1, '\0');
    OpenProgress progress;
    const auto bytes =
        file.Read(0, std::as_writable_bytes(std::span(text)), &progress);
    EXPECT_TRUE(bytes.ok());
    return text.substr(0, bytes.ok() ? *bytes : 0);
  }
  std::string Fails(const std::string& path, StatusCode code,
                    const OpenProgress& progress = {}) {
    const auto files = Open({path}, progress);
    EXPECT_EQ(files.status().code(), code) << files.status().message();
    for (const std::string& each : Copies()) {
      EXPECT_TRUE(each.ends_with(".data") || each.ends_with(".copy")) << each;
    }
    return files.status().message();
  }
  // The names of files in the folder of copies, but the lock.
  std::set<std::string> Copies() {
    std::set<std::string> names;
    const auto folder = folder_ / "cache/files";
    if (!exists(folder)) return names;
    for (const auto& each : directory_iterator(folder)) {
      if (each.path().filename() != "lock") names.insert(each.path());
    }
    return names;
  }
};

TEST_F(InflatedFilesTest, AFileOpensAsItsContentUnderItsName) {
  const std::vector<std::string> paths = {
      WriteOld("a.gz", Compressed(Compression::kGzip, Plain('a'))),
      WriteOld("b.zst", Compressed(Compression::kZstd, Plain('b'))),
      WriteOld("c", Plain('c')),
      WriteOld("d.bz2", Compressed(Compression::kBzip2, Plain('d'))),
      WriteOld("e", Compressed(Compression::kXz, Plain('e')))};
  const OpenProgress progress;
  const auto files = Open(paths, progress);
  ASSERT_TRUE(files.ok()) << files.status().message();
  for (size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ((*files)[i].path(), paths[i]);
    EXPECT_EQ(Text((*files)[i]), Plain(static_cast<char>('a' + i)));
    EXPECT_FALSE((*files)[i].Changed());
  }
  EXPECT_EQ(files->total_bytes(), 5 * Plain(' ').size());
  EXPECT_EQ(progress.copies.files, 4u);
  EXPECT_EQ(progress.copies.bytes, 4 * Plain(' ').size());
  EXPECT_EQ(progress.done, 0u);  // the records' scan begins
  EXPECT_EQ(Copies().size(), 8u);
  // Hosts that have it plain, under these names, have the same data.
  const char* const names[] = {"a.gz", "b.zst", "c", "d.bz2", "e"};
  std::vector<std::string> plain;
  for (size_t i = 0; i < paths.size(); ++i) {
    plain.push_back(WriteOld(std::string("plain/") + names[i],
                             Plain(static_cast<char>('a' + i))));
  }
  Fingerprint of_these("test");
  of_these.Add(*files);
  Fingerprint of_plain("test");
  of_plain.Add(*Open(plain));
  EXPECT_EQ(of_these.Hex(), of_plain.Hex());
}

TEST_F(InflatedFilesTest, TheSecondOpeningInflatesNothing) {
  const std::string path =
      WriteOld("a.gz", Compressed(Compression::kGzip, Plain('a')));
  ASSERT_TRUE(Open({path}).ok());
  const std::set<std::string> copies = Copies();
  // What would be inflated is no longer there.
  const auto time = std::filesystem::last_write_time(path);
  const auto size = std::filesystem::file_size(path);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(12);
    file << std::string(size - 12, 'x');
  }
  std::filesystem::last_write_time(path, time);
  const auto files = Open({path});
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(Text((*files)[0]), Plain('a'));
  EXPECT_EQ(Copies(), copies);
}

TEST_F(InflatedFilesTest, AChangedFileIsInflatedAnew) {
  const std::string path =
      WriteOld("a.gz", Compressed(Compression::kGzip, Plain('a')));
  const auto before = Open({path});
  WriteOld("a.gz", Compressed(Compression::kGzip, "other"));
  ASSERT_TRUE(before.ok());
  EXPECT_TRUE(before->Changed());
  EXPECT_EQ(Text((*before)[0]), Plain('a'));  // those that have it open go on
  const auto after = Open({path});
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_EQ(Text((*after)[0]), "other");
  EXPECT_FALSE(after->Changed());
}

TEST_F(InflatedFilesTest, OfOneJustWrittenAChangeWouldShow) {
  const std::string path =
      Write("a.gz", Compressed(Compression::kGzip, Plain('a')));
  const auto files = Open({path});
  ASSERT_TRUE(files.ok()) << files.status().message();
  const auto age = std::filesystem::file_time_type::clock::now() -
                   std::filesystem::last_write_time(path);
  EXPECT_GE(age, std::chrono::seconds(2));
}

TEST_F(InflatedFilesTest, ManyOpeningsAtOnceMakeOneCopyOfEach) {
  std::vector<std::string> paths;
  for (int i = 0; i < 12; ++i) {
    const std::string name = "f" + std::to_string(i % 10) + ".zst";
    paths.push_back(
        WriteOld(name, Compressed(Compression::kZstd, Plain(name[1]))));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const auto files = Open(paths);
      ASSERT_TRUE(files.ok()) << files.status().message();
      for (size_t i = 0; i < paths.size(); ++i) {
        EXPECT_EQ(Text((*files)[i]), Plain(static_cast<char>('0' + i % 10)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Copies().size(), 20u);
}

TEST_F(InflatedFilesTest, WhatIsDamagedIsNamedAndNothingIsKept) {
  const std::string whole = Compressed(Compression::kGzip, Plain('a'));
  const std::string cut = WriteOld("cut.gz", whole.substr(0, whole.size() - 9));
  EXPECT_EQ(Fails(cut, StatusCode::kDataLoss),
            Format("{}, offset {}: the file ends within its compressed data; "
                   "it was cut off: copy it again",
                   cut, whole.size() - 9));
  EXPECT_TRUE(Copies().empty());
  std::string wrong = whole;
  wrong[wrong.size() - 5] ^= 1;  // its checksum
  EXPECT_THAT(Fails(WriteOld("wrong.gz", wrong), StatusCode::kDataLoss),
              AllOf(HasSubstr("/wrong.gz, offset "), HasSubstr("data check")));
  EXPECT_TRUE(Copies().empty());
}

TEST_F(InflatedFilesTest, WithoutRoomItIsRefusedWithTheWayOut) {
  const std::string path =
      WriteOld("a.gz", Compressed(Compression::kGzip, Plain('a')));
  OpenProgress little;
  little.copies.most = 1000;
  EXPECT_EQ(Fails(path, StatusCode::kFailedPrecondition, little),
            path +
                " is compressed as a whole (gzip), and inflated it takes "
                "about 4.9 KiB: 4.9 KiB more are wanted, and `cache: "
                "{files}` lets them take 1000 bytes; or inflate it yourself "
                "(gunzip)");
  // It says less than it inflates to, as a bomb does.
  const std::string bomb = WriteOld(
      "b.bz2", Compressed(Compression::kBzip2, std::string(20 << 20, '\0')));
  EXPECT_THAT(
      Fails(bomb, StatusCode::kFailedPrecondition, little),
      AllOf(HasSubstr("/b.bz2: inflates to more than "),
            HasSubstr("lets them take 1000 bytes"), HasSubstr("(bunzip2)")));
  EXPECT_TRUE(Copies().empty());
  EXPECT_EQ(little.copies.bytes, 0u);
  OpenProgress enough;
  enough.copies.most = 20 << 20;
  EXPECT_TRUE(Open({bomb}, enough).ok());
  // Without a folder.
  setenv("PENSTOCK_CACHE_DIR", "/proc/nowhere", 1);
  EXPECT_THAT(Open({path}).status().message(),
              HasSubstr("a.gz is compressed as a whole (gzip), and there is no "
                        "folder to inflate it into: "));
}

TEST_F(InflatedFilesTest, WhatAnyBytesMayBeginIsCompressedByItsNameOnly) {
  const std::string bytes = Compressed(Compression::kGzip, Plain('a'));
  const auto files =
      Open({WriteOld("a.bin", bytes), WriteOld("b.bin.gz", bytes)}, {},
           InflateBy::kName);
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(Text((*files)[0]), bytes);
  EXPECT_EQ(Text((*files)[1]), Plain('a'));
  const auto never = Open({WriteOld("b.bin.gz", bytes)}, {}, InflateBy::kNever);
  EXPECT_EQ(Text((*never)[0]), bytes);
}

TEST_F(InflatedFilesTest, ACancelledOpeningLeavesNothing) {
  // Written just now: it is not read yet when its opening is cancelled.
  const std::string path =
      Write("a.zst", Compressed(Compression::kZstd, Plain('a')));
  OpenProgress progress;
  std::thread stops([&] {
    while (Copies().empty()) std::this_thread::yield();
    progress.cancel = true;
  });
  const auto files = Open({path}, progress);
  stops.join();
  EXPECT_EQ(files.status().code(), StatusCode::kCancelled);
  EXPECT_TRUE(Copies().empty());
}

TEST_F(InflatedFilesTest, WhoMayNotReadTheFileGetsNoCopy) {
  if (geteuid() != 0) GTEST_SKIP() << "wants to be root";
  constexpr uid_t kOther = 12345;
  const std::string path =
      WriteOld("a.gz", Compressed(Compression::kGzip, Plain('a')));
  ASSERT_TRUE(Open({path}).ok());
  using std::filesystem::perms;
  OpenProgress progress;
  progress.access = FileAccess::OfUser(kOther, {});
  permissions(folder_, perms::owner_all | perms::others_exec);
  permissions(path, perms::owner_read);
  const auto refused = Open({path}, progress);
  EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied);
  permissions(path, perms::owner_read | perms::others_read);
  const auto files = Open({path}, progress);
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(Text((*files)[0]), Plain('a'));
  // The copies themselves are nobody else's.
  for (const std::string& each : Copies()) {
    EXPECT_EQ(std::filesystem::status(each).permissions() &
                  (perms::group_all | perms::others_all),
              perms::none);
  }
  EXPECT_EQ(std::filesystem::status(folder_ / "cache/files").permissions(),
            perms::owner_all);
}

}  // namespace penstock::inflated_files_test
