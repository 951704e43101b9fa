// Promise: a service reads for a user what that user may read, or what `data`
// in its configuration lets her read; another user learns nothing of it.
// Method: a service of root, and children that attach as other users.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "broker/registry/data_policy.h"
#include "client/penstock.hpp"
#include "common/message.h"
#include "tests/support/broker_process.h"
#include "tests/support/other_user.h"

namespace penstock::data_access_test {

using testing::HasSubstr;
using testing::StartsWith;

constexpr uid_t kAlice = 61001;
constexpr uid_t kBob = 61002;

class DataAccessTest : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root to be somebody else";
    std::string pattern = testing::TempDir() + "penstock-data-XXXXXX";
    folder_ = std::filesystem::canonical(mkdtemp(pattern.data()));
    chmod(folder_.c_str(), 0755);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Start(const std::string& configuration) {
    const std::string file = folder_ + "/penstock.yaml";
    std::ofstream(file) << configuration;
    service_ = std::make_unique<BrokerProcess>(
        std::vector<std::string>{"--config", file}, /*private_broker=*/false);
    chmod(service_->folder().c_str(), 0755);
    chmod(service_->socket().c_str(), 0666);
  }

  std::string Lines(const std::string& name, uid_t owner, mode_t mode) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path) << "one\ntwo\nthree\n";
    chown(path.c_str(), owner, owner);
    chmod(path.c_str(), mode);
    return path;
  }

  // What comes of it when user trains on the source: "3 rows", or the error.
  std::string Train(uid_t user, const std::string& source,
                    const std::string& map = "") {
    const std::string spec = "dataset: d\nsource: {" + source + "}\n" + map +
                             "batch: {size: 1}\nepochs: 1\n";
    return RunAs(user, [&]() -> std::string {
      // `penstock index` opens the dataset as well.
      const StatusOr<Fd> socket = ConnectControl(service_->socket());
      const auto index = socket.ok()
                             ? Request(socket->get(), {{"op", "index"},
                                                       {"spec", spec},
                                                       {"file", "d.yaml"},
                                                       {"base", folder_}})
                             : socket.status();
      try {
        Reader reader({.spec = spec, .socket = service_->socket()});
        if (!index.ok()) return "index: " + index.status().message();
        uint64_t rows = 0;
        for (Epoch epoch : reader.epochs()) {
          for (Batch& batch : epoch) rows += batch.rows();
        }
        return std::to_string(rows) + " rows";
      } catch (const std::exception& error) {
        return index.ok() ? "index: not refused" : error.what();
      }
    });
  }
  std::string Text(const std::string& path) {
    return "text_lines: {files: \"" + path + "\", max_bytes: 8}";
  }

  std::string folder_;
  std::unique_ptr<BrokerProcess> service_;
};

TEST_F(DataAccessTest, WithoutDataEachUserReadsWhatSheCould) {
  const std::string private_lines = Lines("alice/lines", kAlice, 0600);
  const std::string shared = Lines("shared/lines", kAlice, 0644);
  Lines("closed/lines", kAlice, 0644);
  chown((folder_ + "/closed").c_str(), kAlice, kAlice);
  chmod((folder_ + "/closed").c_str(), 0700);
  Start("workers: 1\n");
  EXPECT_EQ(Train(kAlice, Text(private_lines)), "3 rows");
  EXPECT_EQ(Train(kAlice, Text(folder_ + "/closed/*")), "3 rows");
  EXPECT_EQ(Train(kBob, Text(shared)), "3 rows");
  // Alice's dataset is open or in the cache; Bob gets nothing of it.
  EXPECT_THAT(Train(kBob, Text(private_lines)),
              HasSubstr("user 61002 may not read " + private_lines));
  const std::string closed = folder_ + "/closed";
  for (const char* const name : {"/lines", "/none", "/*", "/l*"}) {
    EXPECT_THAT(Train(kBob, Text(closed + name)),
                HasSubstr("user 61002 may not "))
        << name;
  }
  EXPECT_THAT(Train(kBob, "text_lines: {files: {list: \"" + private_lines +
                              "\"}, max_bytes: 8}"),
              HasSubstr("user 61002 may not read"));
  EXPECT_THAT(Train(kBob, Text("/proc/self/environ")),
              HasSubstr("cannot tell whether"));
}

TEST_F(DataAccessTest, FoldersOfPicturesAreCheckedThoughTheirIndexIsCached) {
  for (const char* const name : {"pictures/a/1.jpg", "pictures/b/2.jpg"}) {
    Lines(name, kAlice, 0644);
  }
  const std::string pictures = folder_ + "/pictures";
  chown((pictures + "/b").c_str(), kAlice, kAlice);
  chmod((pictures + "/b").c_str(), 0700);
  Start("workers: 1\ncache_dir: " + folder_ + "/cache\n");
  const std::string source = "image_folder: {path: " + pictures + "}";
  const std::string map =
      "map:\n  - decode_image: {size: [4, 4]}\non_error: skip\n";
  // They are no pictures, but read.
  EXPECT_EQ(Train(kAlice, source, map), "index: not refused");
  EXPECT_THAT(Train(kBob, source, map),
              HasSubstr("user 61002 may not read " + pictures + "/b"));
}

TEST_F(DataAccessTest, AFolderBelowAnotherIsRefused) {
  DataRule outer;
  outer.path = "/usr";
  DataRule inner;
  inner.path = "/usr/share";
  inner.users = {"0"};
  for (const auto& rules :
       {std::vector{outer, inner}, std::vector{inner, outer},
        std::vector{outer, outer}}) {
    EXPECT_THAT(DataPolicy::Open(rules).status().message(),
                HasSubstr("one is below the other"));
  }
}

TEST_F(DataAccessTest, WithDataNothingElseIsRead) {
  const std::string open = Lines("open/lines", 0, 0600);
  const std::string team = Lines("team/lines", 0, 0600);
  const std::string other = Lines("other/lines", 0, 0644);
  std::filesystem::create_symlink(other, folder_ + "/open/out");
  Start("workers: 1\ndata:\n  - path: " + folder_ + "/open\n  - {path: " +
        folder_ + "/team, users: [" + std::to_string(kAlice) + "]}\n");
  EXPECT_EQ(Train(kAlice, Text(open)), "3 rows");
  EXPECT_EQ(Train(kBob, Text(open)), "3 rows");
  EXPECT_EQ(Train(kAlice, Text(team)), "3 rows");
  EXPECT_THAT(Train(kBob, Text(team)), HasSubstr("not below a folder"));
  EXPECT_THAT(Train(kAlice, Text(other)), HasSubstr("not below a folder"));
  EXPECT_THAT(Train(kAlice, Text(folder_ + "/open/out")),
              HasSubstr("leads out of " + folder_ + "/open"));
  EXPECT_THAT(Train(kAlice, Text(folder_ + "/open/../other/lines")),
              HasSubstr("not below a folder"));
}

TEST_F(DataAccessTest, AFunctionWithinAMixIsAFunction) {
  const std::string lines = Lines("open/lines", 0, 0644);
  Start("workers: 1\npython_path: " + folder_ +
        "\ndata:\n  - {path: " + folder_ + "/open, functions: false}\n");
  const std::string text = "{source: {" + Text(lines) + "}}";
  EXPECT_EQ(Train(kAlice, "concat: {parts: [" + text + "]}"), "3 rows");
  EXPECT_THAT(
      Train(kAlice, "mix: {parts: [" + text +
                        ", {source: {concat: {parts: [{source: {python: "
                        "{dataset: \"sets:Rows\"}}}]}}}]}"),
      HasSubstr("parts[0].source: "));
}

}  // namespace penstock::data_access_test
