// Promise: FileAccess opens what the user could open, and nothing else; below
// the folders of `data` nothing leads out of them; readers keep to it. Method:
// the kernel is the judge: a child process with the user's identity opens the
// same paths of random trees of modes, owners, ACLs and links. As root; another
// user can take nobody's identity.
#include "broker/io/file_access.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "broker/index/data_file.h"
#include "broker/io/read.h"

namespace penstock::file_access_test {

using testing::HasSubstr;

constexpr uid_t kUsers[] = {61001, 61002, 61003};
constexpr gid_t kGroups[] = {62001, 62002};

class FileAccessTest : public testing::Test {
 protected:
  FileAccessTest() {
    std::string pattern = testing::TempDir() + "penstock-access-XXXXXX";
    folder_ = std::filesystem::canonical(mkdtemp(pattern.data()));
    chmod(folder_.c_str(), 0755);
  }
  ~FileAccessTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text = "text") {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::string Link(const std::string& target, const std::string& name) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_symlink(target, path);
    return path;
  }
  std::shared_ptr<const FileAccess> Roots(
      const std::vector<std::string>& names) {
    std::vector<std::shared_ptr<const DataRoot>> roots;
    for (const std::string& name : names) {
      auto root = std::make_shared<DataRoot>();
      root->path = root->real = folder_ + "/" + name;
      root->folder = Fd(open(root->path.c_str(), O_PATH | O_CLOEXEC));
      EXPECT_TRUE(root->folder) << root->path;
      roots.push_back(std::move(root));
    }
    return FileAccess::OfRoots(std::move(roots));
  }

  std::string folder_;
};

std::string ErrorOf(const FileAccess& access, const std::string& path) {
  const auto fd = access.Open(path, O_NONBLOCK);
  return fd.ok() ? "opened" : fd.status().message();
}

// ---- users

// Which of the paths a process with this identity can open.
std::vector<bool> Judge(uid_t uid, const std::vector<gid_t>& groups,
                        const std::vector<std::string>& paths) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(groups.size(), groups.data()) != 0 ||
        setresgid(63000, 63000, 63000) != 0 || setresuid(uid, uid, uid) != 0) {
      _exit(1);
    }
    for (const std::string& path : paths) {
      const char opened =
          open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC) >= 0;
      if (write(ends[1], &opened, 1) != 1) _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  std::vector<bool> may;
  for (char opened; read(ends[0], &opened, 1) == 1;) may.push_back(opened);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(may.size(), paths.size());
  return may;
}

class RandomTree {
 public:
  RandomTree(std::string root, uint32_t seed)
      : root_(std::move(root)), random_(seed) {}

  // Makes folders, files and links; returns their paths.
  std::vector<std::string> Make() {
    std::vector<std::string> folders = {root_};
    for (int i = 0; i < 6; ++i) {
      const std::string folder = Any(folders) + Format("/d{}", i);
      mkdir(folder.c_str(), 0700);
      folders.push_back(folder);
    }
    std::vector<std::string> paths = folders;
    for (int i = 0; i < 10; ++i) {
      const std::string file = Any(folders) + Format("/f{}", i);
      std::ofstream(file) << i;
      paths.push_back(file);
    }
    for (int i = 0; i < 6; ++i) {
      const std::string link = Any(folders) + Format("/l{}", i);
      std::string target = Any(paths);
      if (Below(2) == 0) {
        target = std::filesystem::path(target).lexically_relative(
            std::filesystem::path(link).parent_path());
      }
      symlink(target.c_str(), link.c_str());
      paths.push_back(link);
      paths.push_back(link + Format("/f{}", Below(10)));
      paths.push_back(link + Format("/../d{}", Below(6)));
    }
    for (const std::string& path : paths) {
      if (path != root_ && path.find("/l") == path.npos) Protect(path);
    }
    return paths;
  }

 private:
  uint32_t Below(uint32_t n) { return random_() % n; }
  const std::string& Any(const std::vector<std::string>& of) {
    return of[Below(static_cast<uint32_t>(of.size()))];
  }

  void Protect(const std::string& path) {
    const uid_t owners[] = {0, kUsers[0], kUsers[1]};
    chown(path.c_str(), owners[Below(3)], kGroups[Below(2)]);
    // Most may be entered, or little would be reached.
    const mode_t modes[] = {0755, 0755, 0711, 0750, 0705, 0644, 0640, 0604, 0};
    chmod(path.c_str(), modes[Below(9)]);
    if (Below(3) != 0) return;
    struct Entry {
      uint16_t tag;
      uint16_t perm;
      uint32_t id;
    };
    const auto perm = [this] { return static_cast<uint16_t>(Below(8)); };
    std::vector<Entry> entries = {{1, 7, UINT32_MAX}};
    for (const uid_t user : kUsers) {
      if (Below(2) == 0) entries.push_back({2, perm(), user});
    }
    entries.push_back({4, perm(), UINT32_MAX});
    for (const gid_t group : kGroups) {
      if (Below(2) == 0) entries.push_back({8, perm(), group});
    }
    entries.push_back({0x10, perm(), UINT32_MAX});
    entries.push_back({0x20, perm(), UINT32_MAX});
    std::string value("\2\0\0\0", 4);
    value.append(reinterpret_cast<const char*>(entries.data()),
                 entries.size() * sizeof(Entry));
    EXPECT_EQ(setxattr(path.c_str(), "system.posix_acl_access", value.data(),
                       value.size(), 0),
              0)
        << strerror(errno);
  }

  const std::string root_;
  std::mt19937 random_;
};

TEST_F(FileAccessTest, AUserReadsWhatTheKernelWouldLetHerRead) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  int opened = 0;
  int refused = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::string root = folder_ + Format("/{}", seed);
    mkdir(root.c_str(), 0755);
    const std::vector<std::string> paths = RandomTree(root, seed).Make();
    for (const uid_t uid : kUsers) {
      for (uint32_t some = 0; some < 4; ++some) {
        std::vector<gid_t> groups;
        for (uint32_t i = 0; i < 2; ++i) {
          if ((some >> i & 1) != 0) groups.push_back(kGroups[i]);
        }
        const auto access = FileAccess::OfUser(uid, groups);
        const std::vector<bool> may = Judge(uid, groups, paths);
        for (size_t i = 0; i < paths.size(); ++i) {
          const bool open = access->Open(paths[i], O_NONBLOCK).ok();
          ASSERT_EQ(open, may[i]) << paths[i] << ", user " << uid << ", seed "
                                  << seed << ": " << ErrorOf(*access, paths[i]);
          ++(open ? opened : refused);
        }
      }
    }
  }
  // The trees had both.
  EXPECT_GT(opened, 1000);
  EXPECT_GT(refused, 1000);
}

TEST_F(FileAccessTest, NamesInAFolderThatSheMayNotEnterStayUnknown) {
  const std::string there = Write("closed/there");
  chmod((folder_ + "/closed").c_str(), 0700);
  const auto access = FileAccess::OfUser(kUsers[0], {});
  const auto error = [&](const std::string& path) {
    return ErrorOf(*access, path).substr(path.size());
  };
  EXPECT_THAT(error(there), HasSubstr("may not enter " + folder_ + "/closed"));
  EXPECT_EQ(error(folder_ + "/closed/other"), error(there));
  EXPECT_EQ(error(folder_ + "/closed/there/below"), error(there));
  const std::string link = Link("closed/there", "link");
  const std::string nowhere = Link("closed/other", "nowhere");
  EXPECT_EQ(error(link), error(nowhere));
}

TEST_F(FileAccessTest, WhatDecidesByItselfWhoMayReadIsRefused) {
  const auto access = FileAccess::OfUser(kUsers[0], {});
  EXPECT_THAT(ErrorOf(*access, "/proc/self/maps"),
              HasSubstr("cannot tell whether user 61001 may"));
  EXPECT_THAT(ErrorOf(*access, "/dev/null"), testing::Not("opened"));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0666), 0);
  chmod(fifo.c_str(), 0666);
  EXPECT_THAT(ErrorOf(*access, fifo), HasSubstr("is a FIFO"));
}

TEST_F(FileAccessTest, RootAndTheBrokersOwnUserReadAsTheBroker) {
  EXPECT_EQ(FileAccess::OfUser(0)->key(), "");
  EXPECT_EQ(FileAccess::OfUser(geteuid())->key(), "");
  EXPECT_NE(FileAccess::OfUser(kUsers[0])->key(), "");
}

// ---- roots

TEST_F(FileAccessTest, NothingLeadsOutOfARoot) {
  const std::string secret = Write("secret/file");
  const std::string inside = Write("data/sub/file");
  Write("database/file");
  const auto access = Roots({"data"});
  EXPECT_EQ(ErrorOf(*access, inside), "opened");
  EXPECT_EQ(ErrorOf(*access, folder_ + "/data"), "opened");
  EXPECT_EQ(ErrorOf(*access, Link("sub/file", "data/link")), "opened");
  EXPECT_EQ(ErrorOf(*access, Link("../sub", "data/sub/self") + "/../sub/file"),
            "opened");
  EXPECT_THAT(ErrorOf(*access, folder_ + "/database/file"),
              HasSubstr("not below a folder that the broker's configuration "
                        "(`data`) lets you read, which are " +
                        folder_ + "/data"));
  EXPECT_THAT(ErrorOf(*access, secret), HasSubstr("not below"));
  const char* const kLeadsOut = "leads out of ";
  EXPECT_THAT(ErrorOf(*access, folder_ + "/data/../secret/file"),
              HasSubstr(kLeadsOut));
  EXPECT_THAT(ErrorOf(*access, Link(secret, "data/absolute")),
              HasSubstr(kLeadsOut));
  EXPECT_THAT(ErrorOf(*access, Link("../secret", "data/folder") + "/file"),
              HasSubstr(kLeadsOut));
  // Not whether there is such a file.
  EXPECT_THAT(ErrorOf(*access, Link("../none", "data/none")),
              HasSubstr(kLeadsOut));
  EXPECT_THAT(ErrorOf(*access, Link("/proc/self/root", "data/root")),
              HasSubstr(kLeadsOut));
  const std::string fifo = folder_ + "/data/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0666), 0);
  EXPECT_THAT(DataFile::Open(fifo, *access).status().message(),
              HasSubstr("is a FIFO"));
  EXPECT_THAT(ErrorOf(*Roots({}), inside), HasSubstr("lets you read"));
}

TEST_F(FileAccessTest, TheInnerRootCounts) {
  Write("data/inner/file");
  Write("data/file");
  const std::string up = Link("../file", "data/inner/up");
  EXPECT_EQ(ErrorOf(*Roots({"data"}), up), "opened");
  EXPECT_THAT(ErrorOf(*Roots({"data", "data/inner"}), up),
              HasSubstr("leads out of " + folder_ + "/data/inner"));
}

// ---- readers

struct Case {
  const char* backend;
  ReadBackend read_backend;
};

class ReaderAccessTest : public FileAccessTest,
                         public testing::WithParamInterface<Case> {
 protected:
  std::string Read(const FileAccess& access, const std::string& path) {
    auto reader = MakeStorageReader(GetParam().read_backend, 1);
    EXPECT_TRUE(reader.ok()) << reader.status().message();
    std::string found;
    // Through the page cache and, as of a network file system, not.
    for (const bool nowait : {true, false}) {
      ReadRequest request;
      request.kind = ReadPart::Kind::kFile;
      request.path = path;
      request.access = &access;
      request.nowait = nowait;
      (*reader)->Start(0, request, {}, kNotPinned);
      (*reader)->Submit();
      StorageReader::Done done;
      EXPECT_TRUE((*reader)->Next(kWaitForever, &done));
      const std::string now =
          done.status.ok()
              ? std::string(reinterpret_cast<const char*>(done.bytes.data()),
                            done.bytes.size())
              : done.status.message();
      (*reader)->Release(0);
      if (nowait) {
        found = now;
      } else {
        EXPECT_EQ(now, found);
      }
    }
    return found;
  }
};

TEST_P(ReaderAccessTest, AReaderKeepsToIt) {
  const std::string large(300'000, 'x');
  const std::string file = Write("data/file", large);
  const std::string empty = Write("data/empty", "");
  const std::string secret = Write("secret", "secret");
  const std::string out = Link(secret, "data/out");
  for (const auto& access :
       {Roots({"data"}), FileAccess::OfUser(kUsers[0], {})}) {
    EXPECT_EQ(Read(*access, file), large);
    EXPECT_EQ(Read(*access, empty), "");
    EXPECT_THAT(Read(*access, folder_ + "/data/none"),
                HasSubstr("there is no such file"));
    EXPECT_THAT(Read(*access, folder_ + "/data"), HasSubstr("is a folder"));
    chmod(secret.c_str(), 0600);
    EXPECT_THAT(Read(*access, out), HasSubstr("data/out: "));
    EXPECT_THAT(Read(*access, out), testing::Not(testing::Eq("secret")));
    chmod(secret.c_str(), 0644);
  }
  EXPECT_EQ(Read(*FileAccess::OfUser(kUsers[0], {}), out), "secret");
}

INSTANTIATE_TEST_SUITE_P(Backends, ReaderAccessTest,
                         testing::Values(Case{"auto", ReadBackend::kAuto},
                                         Case{"plain", ReadBackend::kPlain},
                                         Case{"pread", ReadBackend::kPread}),
                         [](const auto& info) { return info.param.backend; });

}  // namespace penstock::file_access_test
