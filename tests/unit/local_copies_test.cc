// Promise: a copy has the bytes that were written for its key, or is made anew;
// one at a time makes it, and whoever is killed leaves nothing that counts;
// room is never exceeded, and nothing that is in use is given up for it.
// Method: several openings of one folder, as other brokers have (a lock of
// flock belongs to a description of a file, whichever process has it); files in
// the folder damaged and left over.
#include "broker/index/local_copies.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tests/unit/folder_fixture.h"

namespace penstock::local_copies_test {

using std::filesystem::directory_iterator;
using std::filesystem::path;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class LocalCopiesTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    setenv("PENSTOCK_CACHE_DIR", folder_.c_str(), 1);
  }

  LocalCopies Open(std::optional<uint64_t> kept_max = std::nullopt) {
    auto copies = LocalCopies::Open(kept_max);
    EXPECT_TRUE(copies.ok()) << copies.status().message();
    return *std::move(copies);
  }
  LocalCopies::Claimed Claim(const LocalCopies& copies,
                             const std::string& key) {
    auto claimed = copies.Claim(key, progress_);
    EXPECT_TRUE(claimed.ok()) << claimed.status().message();
    return *std::move(claimed);
  }
  static Status Append(LocalCopies::New* task, const std::string& text) {
    return task->Append(std::as_bytes(std::span(text)));
  }
  // The copy that there is, or one of this text.
  LocalCopy Make(const LocalCopies& copies, const std::string& key,
                 const std::string& text) {
    LocalCopies::Claimed claimed = Claim(copies, key);
    if (claimed.copy) return *std::move(claimed.copy);
    EXPECT_TRUE(claimed.task);
    const std::pair<LocalCopies::New*, uint64_t> wanted(&*claimed.task,
                                                        text.size());
    EXPECT_TRUE(copies.Promise(std::span(&wanted, 1)).ok());
    EXPECT_TRUE(Append(&*claimed.task, text).ok());
    auto copy = copies.Finish(*std::move(claimed.task));
    EXPECT_TRUE(copy.ok()) << copy.status().message();
    return *std::move(copy);
  }
  static std::string Text(const LocalCopy& copy) {
    std::string text(copy.bytes, '\0');
    EXPECT_EQ(pread(copy.fd.get(), text.data(), text.size(), 0),
              static_cast<ssize_t>(text.size()));
    return text;
  }
  // "" if it would have to be made.
  std::string Kept(const LocalCopies& copies, const std::string& key) {
    const LocalCopies::Claimed claimed = Claim(copies, key);
    return claimed.copy ? Text(*claimed.copy) : "";
  }

  // All files but the lock, by the ends of their names.
  std::vector<std::string> Ends() {
    std::vector<std::string> ends;
    for (const auto& each : directory_iterator(folder_ / "files")) {
      if (each.path().filename() != "lock") {
        ends.push_back(each.path().extension());
      }
    }
    return ends;
  }
  path Only(const std::string& end) {
    path found;
    for (const auto& each : directory_iterator(folder_ / "files")) {
      if (each.path().extension() != end) continue;
      EXPECT_EQ(found, path());
      found = each.path();
    }
    EXPECT_NE(found, path()) << end;
    return found;
  }

  OpenProgress progress_;
};

TEST_F(LocalCopiesTest, ACopyIsMadeOnceAndFoundByOthers) {
  const LocalCopies copies = Open();
  EXPECT_EQ(Text(Make(copies, "a", "text of a")), "text of a");
  EXPECT_EQ(Text(Make(copies, "b", "")), "");
  EXPECT_THAT(Ends(), UnorderedElementsAre(".data", ".copy", ".data", ".copy"));
  const LocalCopies others = Open();
  EXPECT_EQ(Kept(others, "a"), "text of a");
  EXPECT_EQ(Text(Make(others, "a", "never written")), "text of a");
  EXPECT_EQ(Kept(others, "c"), "");
}

TEST_F(LocalCopiesTest, OthersAreToldThatItIsBeingMade) {
  const LocalCopies copies = Open();
  const LocalCopies others = Open();
  {
    const LocalCopies::Claimed mine = Claim(copies, "a");
    ASSERT_TRUE(mine.task);
    const LocalCopies::Claimed theirs = Claim(others, "a");
    EXPECT_FALSE(theirs.task || theirs.copy);
    EXPECT_THAT(Ends(), UnorderedElementsAre(".part"));
  }
  // It was given up.
  EXPECT_THAT(Ends(), IsEmpty());
  EXPECT_EQ(progress_.copies.bytes, 0u);
  EXPECT_EQ(Text(Make(others, "a", "theirs")), "theirs");
}

TEST_F(LocalCopiesTest, WhatAKilledProcessLeavesIsMadeAnew) {
  const LocalCopies copies = Open();
  const pid_t child = fork();
  if (child == 0) {
    OpenProgress progress;
    auto claimed = copies.Claim("a", progress);
    const std::string text = "half of it";
    (void)claimed->task->Append(std::as_bytes(std::span(text)));
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_THAT(Ends(), UnorderedElementsAre(".part"));
  // What counts is what somebody makes: the rest goes when room is looked for.
  EXPECT_EQ(Text(Make(copies, "b", "b")), "b");
  EXPECT_THAT(Ends(), UnorderedElementsAre(".data", ".copy"));
  EXPECT_EQ(Text(Make(copies, "a", "whole")), "whole");
  // Without the sidecar, which is written last, there is no copy.
  for (const auto& each : directory_iterator(folder_ / "files")) {
    if (each.path().extension() == ".copy") remove(each.path());
  }
  EXPECT_EQ(Kept(copies, "a"), "");
  EXPECT_EQ(Text(Make(copies, "a", "again")), "again");
}

TEST_F(LocalCopiesTest, ChangedBytesAreNotBelieved) {
  const LocalCopies copies = Open();
  const std::string text(3 << 20, 'x');
  Make(copies, "a", text);
  const path data = Only(".data");
  const auto write = [&](const std::string& content) {
    std::ofstream(data, std::ios::binary) << content;
  };
  write(std::string(3 << 20, 'y'));
  EXPECT_EQ(Kept(copies, "a"), "");
  EXPECT_EQ(Text(Make(copies, "a", text)), text);
  write(text.substr(1));
  EXPECT_EQ(Kept(copies, "a"), "");
  EXPECT_EQ(Text(Make(copies, "a", text)), text);
  // Written again, but the same: as after a restored backup.
  write(text);
  EXPECT_EQ(Kept(copies, "a"), text);
  EXPECT_EQ(Kept(copies, "a"), text);
}

TEST_F(LocalCopiesTest, NoByteOfTheSidecarIsBelieved) {
  const LocalCopies copies = Open();
  Make(copies, "key of a", "text");
  const path sidecar = Only(".copy");
  std::string bytes(file_size(sidecar), '\0');
  std::ifstream(sidecar, std::ios::binary)
      .read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    std::ofstream(sidecar, std::ios::binary) << damaged;
    EXPECT_EQ(Kept(copies, "key of a"), "") << i;
  }
  std::ofstream(sidecar, std::ios::binary) << bytes;
  EXPECT_EQ(Kept(copies, "key of a"), "text");
}

TEST_F(LocalCopiesTest, FilesThatOthersMayWriteAreNone) {
  const LocalCopies copies = Open();
  Make(copies, "a", "text");
  using std::filesystem::perms;
  permissions(Only(".data"), perms::owner_all | perms::others_write);
  EXPECT_EQ(Kept(copies, "a"), "");
  permissions(Only(".data"), perms::owner_read | perms::owner_write);
  permissions(folder_ / "files", perms::owner_all | perms::group_write);
  EXPECT_THAT(LocalCopies::Open().status().message(),
              HasSubstr("is no folder of this user alone"));
  remove_all(folder_ / "files");
  std::filesystem::create_directory_symlink("/tmp", folder_ / "files");
  EXPECT_EQ(LocalCopies::Open().status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(LocalCopiesTest, TheLeastRecentlyUsedMakesRoom) {
  const LocalCopies copies = Open(100);
  std::map<std::string, path> sidecars;
  for (const std::string key : {"a", "b", "c"}) {
    Make(copies, key, std::string(30, key[0]));
    for (const auto& each : directory_iterator(folder_ / "files")) {
      const bool is_new = std::none_of(
          sidecars.begin(), sidecars.end(),
          [&](const auto& known) { return known.second == each.path(); });
      if (each.path().extension() == ".copy" && is_new) {
        sidecars[key] = each.path();
      }
    }
  }
  const auto now = std::filesystem::file_time_type::clock::now();
  for (const auto& [key, sidecar] : sidecars) {
    last_write_time(sidecar, now - std::chrono::hours('z' - key[0]));
  }
  EXPECT_EQ(Kept(copies, "a"), std::string(30, 'a'));  // used now
  Make(copies, "d", std::string(40, 'd'));             // b has to go, not a
  EXPECT_EQ(Kept(copies, "b"), "");
  EXPECT_EQ(Kept(copies, "a"), std::string(30, 'a'));
  EXPECT_EQ(Kept(copies, "c"), std::string(30, 'c'));
}

TEST_F(LocalCopiesTest, WhatIsInUseIsNotGivenUp) {
  const LocalCopies copies = Open(100);
  const LocalCopy in_use = Make(copies, "a", std::string(60, 'a'));
  // Also by a descriptor that was opened by way of it, after its own is closed.
  LocalCopy first = Make(copies, "b", std::string(30, 'b'));
  const Fd second(open(Format("/proc/self/fd/{}", first.fd.get()).c_str(),
                       O_RDONLY | O_CLOEXEC));
  HoldCopy(second.get());
  first.fd.Reset();
  LocalCopies::Claimed claimed = Claim(copies, "c");
  const auto wants = [&](uint64_t bytes) {
    const std::pair<LocalCopies::New*, uint64_t> wanted(&*claimed.task, bytes);
    return copies.Promise(std::span(&wanted, 1)).status();
  };
  EXPECT_EQ(wants(11).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(wants(11).message(), HasSubstr("11 bytes more are wanted, and " +
                                             (folder_ / "files").string() +
                                             " has room for 10 bytes ("));
  EXPECT_THAT(wants(11).message(),
              HasSubstr("copies that are in use take 90 bytes)"));
  EXPECT_TRUE(wants(10).ok());
  EXPECT_EQ(Text(in_use), std::string(60, 'a'));
  EXPECT_EQ(Kept(copies, "a"), std::string(60, 'a'));
  EXPECT_EQ(Kept(copies, "b"), std::string(30, 'b'));
}

TEST_F(LocalCopiesTest, NothingIsGivenUpForWhatDoesNotFitAnyway) {
  const LocalCopies copies = Open(100);
  Make(copies, "a", std::string(60, 'a'));
  LocalCopies::Claimed claimed = Claim(copies, "b");
  LocalCopies::New task = *std::move(claimed.task);
  EXPECT_EQ(Append(&task, std::string(101, 'b')).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Kept(copies, "a"), std::string(60, 'a'));
  // It fits in the room of another.
  EXPECT_TRUE(Append(&task, std::string(100, 'b')).ok());
  EXPECT_EQ(Append(&task, "b").code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(copies.Finish(std::move(task)).ok());
  EXPECT_EQ(Kept(copies, "a"), "");
}

TEST_F(LocalCopiesTest, RoomIsPromisedToAllOrNone) {
  const LocalCopies copies = Open(100);
  const LocalCopies others = Open(100);
  LocalCopies::Claimed a = Claim(copies, "a");
  LocalCopies::Claimed b = Claim(copies, "b");
  LocalCopies::Claimed c = Claim(others, "c");
  const auto promise = [&](uint64_t of_a, uint64_t of_b) {
    const std::pair<LocalCopies::New*, uint64_t> wanted[] = {{&*a.task, of_a},
                                                             {&*b.task, of_b}};
    return copies.Promise(wanted).status().code();
  };
  EXPECT_EQ(promise(60, 41), StatusCode::kFailedPrecondition);
  EXPECT_EQ(promise(UINT64_MAX, UINT64_MAX), StatusCode::kFailedPrecondition);
  EXPECT_EQ(progress_.copies.bytes, 0u);
  EXPECT_EQ(promise(60, 30), StatusCode::kOk);
  // Others see what was promised, before a byte of it is written.
  EXPECT_EQ(Append(&*c.task, std::string(11, 'c')).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Append(&*c.task, std::string(10, 'c')).ok());
  // What was not needed is free again.
  EXPECT_TRUE(Append(&*a.task, "a").ok());
  EXPECT_TRUE(copies.Finish(*std::move(a.task)).ok());
  EXPECT_TRUE(Append(&*c.task, std::string(59, 'c')).ok());
}

TEST_F(LocalCopiesTest, AnOpeningMayAllowLessOrMore) {
  progress_.copies.most = 50;
  const LocalCopies copies = Open(100);
  Make(copies, "a", std::string(30, 'a'));
  LocalCopies::Claimed b = Claim(copies, "b");
  const Status less = Append(&*b.task, std::string(21, 'b'));
  EXPECT_EQ(less.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(less.message(),
            "21 bytes more are wanted, and `cache: {files}` lets them take 50 "
            "bytes, 30 bytes of which are taken");
  EXPECT_TRUE(Append(&*b.task, std::string(20, 'b')).ok());
  progress_.copies.most = 200;
  EXPECT_TRUE(Append(&*b.task, std::string(150, 'b')).ok());
}

}  // namespace penstock::local_copies_test
