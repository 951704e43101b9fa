// Promise: a spec names files by path, glob, braces or a list, and gets them in
// the promised order; what matches nothing is named. Method: files written
// here; the notations through the parser of specs.
#include "broker/index/file_patterns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "broker/declare/yaml.h"
#include "broker/index/data_files.h"

namespace penstock::file_patterns_test {

using testing::ElementsAre;
using testing::HasSubstr;

class FilePatternsTest : public testing::Test {
 protected:
  FilePatternsTest() {
    std::string pattern = testing::TempDir() + "penstock-files-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~FilePatternsTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text = "x") {
    std::filesystem::create_directories(
        std::filesystem::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name, std::ios::binary) << text;
  }

  // The files' names in the folder, or the error.
  std::vector<std::string> Expand(std::vector<std::string> patterns,
                                  const std::string& list = "") {
    for (std::string& pattern : patterns) pattern = folder_ + "/" + pattern;
    return Names(
        FilePatterns{patterns, list.empty() ? "" : folder_ + "/" + list}.Expand(
            *FileAccess::OfBroker()));
  }
  std::vector<std::string> Names(
      const StatusOr<std::vector<std::string>>& files) {
    if (!files.ok()) {
      code_ = files.status().code();
      return {files.status().message()};
    }
    std::vector<std::string> names;
    for (const std::string& file : *files) {
      names.push_back(
          file.starts_with(folder_) ? file.substr(folder_.size() + 1) : file);
    }
    return names;
  }

  std::string folder_;
  StatusCode code_ = StatusCode::kOk;
};

TEST_F(FilePatternsTest, GlobsComeInByteOrderAndListsInTheirs) {
  for (const char* name : {"b", "a10", "a9", "B", "\xc3\xa4", ".hidden"}) {
    Write(name);
  }
  EXPECT_THAT(Expand({"*"}), ElementsAre("B", "a10", "a9", "b", "\xc3\xa4"));
  EXPECT_THAT(Expand({"b", "a*", "b"}), ElementsAre("b", "a10", "a9", "b"));
  EXPECT_THAT(Expand({"a[0-9]", "?"}), ElementsAre("a9", "B", "b"));
}

TEST_F(FilePatternsTest, IndexesBesideMatchesAreNoMatches) {
  for (const char* name : {"a.csv", "a.csv.csv-0123abcd.index", "b.index",
                           "c.csv.csv-0123abcd.index"}) {
    Write(name);
  }
  EXPECT_THAT(Expand({"*"}),
              ElementsAre("a.csv", "b.index", "c.csv.csv-0123abcd.index"));
  EXPECT_THAT(Expand({"a.csv.*"}), ElementsAre("a.csv.csv-0123abcd.index"));
}

TEST_F(FilePatternsTest, BracesCountWithZerosOrChoose) {
  EXPECT_THAT(Expand({"s-{008..011}.tar"}),
              ElementsAre("s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"));
  EXPECT_THAT(Expand({"{9..11}"}), ElementsAre("9", "10", "11"));
  EXPECT_THAT(Expand({"{2..0}"}), ElementsAre("2", "1", "0"));
  EXPECT_THAT(Expand({"{a,b}{1..2}x"}),
              ElementsAre("a1x", "a2x", "b1x", "b2x"));
  EXPECT_THAT(Expand({"{a,}.txt"}), ElementsAre("a.txt", ".txt"));
  // As in a shell, these are names.
  EXPECT_THAT(Expand({"{a}", "{a..b}", "{1..", "}"}),
              ElementsAre("{a}", "{a..b}", "{1..", "}"));
  EXPECT_THAT(Expand({"{}{1..2}"}), ElementsAre("{}1", "{}2"));
}

TEST_F(FilePatternsTest, BracesAndGlobsWorkTogether) {
  Write("x/1.tar");
  Write("y/3.tar");
  Write("y/2.tar");
  EXPECT_THAT(Expand({"{y,x}/*.tar"}),
              ElementsAre("y/2.tar", "y/3.tar", "x/1.tar"));
  EXPECT_THAT(Expand({"*/1.tar"}), ElementsAre("x/1.tar"));
}

TEST_F(FilePatternsTest, AFileOfSuchANameIsThatFile) {
  Write("a*{1..2}[x]");
  Write("ab");
  EXPECT_THAT(Expand({"a*{1..2}[x]"}), ElementsAre("a*{1..2}[x]"));
}

TEST_F(FilePatternsTest, WhatMatchesNothingIsNamed) {
  EXPECT_THAT(Expand({"*.tar"}),
              ElementsAre(folder_ + "/*.tar: no file matches it"));
  EXPECT_EQ(code_, StatusCode::kNotFound);
  EXPECT_THAT(Expand({"none/*.tar"}),
              ElementsAre(HasSubstr(folder_ + "/none is missing")));
  EXPECT_EQ(code_, StatusCode::kNotFound);
  if (geteuid() != 0) {
    Write("closed/a.tar");
    chmod((folder_ + "/closed").c_str(), 0);
    EXPECT_THAT(Expand({"closed/*.tar"}), ElementsAre(HasSubstr("closed")));
    EXPECT_EQ(code_, StatusCode::kPermissionDenied);
    chmod((folder_ + "/closed").c_str(), 0700);
  }
}

TEST_F(FilePatternsTest, TooManyFilesAreRefusedBeforeTheyTakeMemory) {
  for (const char* pattern :
       {"{0..999999999999}", "{1..1000}{1..1000}{1..1000}{1..1000}",
        "{18446744073709551615..0}"}) {
    EXPECT_THAT(Expand({pattern}),
                ElementsAre(HasSubstr("more than 262144 files")));
    EXPECT_EQ(code_, StatusCode::kInvalidArgument);
  }
}

TEST_F(FilePatternsTest, AListHoldsOnePathALineRelativeToItself) {
  Write("lists/train.txt", "b.tar\r\n\n../a.tar\n/abs/c.tar\nx*.tar");
  EXPECT_THAT(
      Expand({}, "lists/train.txt"),
      ElementsAre("lists/b.tar", "a.tar", "/abs/c.tar", "lists/x*.tar"));
  Write("empty.txt", "\n\n");
  EXPECT_THAT(Expand({}, "empty.txt"), ElementsAre(HasSubstr("found none")));
  EXPECT_EQ(code_, StatusCode::kInvalidArgument);
  Write("binary.txt", std::string("a\nb\0c\n", 6));
  EXPECT_THAT(Expand({}, "binary.txt"),
              ElementsAre(HasSubstr("binary.txt, line 2: a NUL byte")));
  Write("remote.txt", "a\ns3://bucket/b.txt\n");
  EXPECT_THAT(Expand({}, "remote.txt"), ElementsAre("a", "s3://bucket/b.txt"));
  EXPECT_THAT(Expand({}, "none.txt"), ElementsAre(HasSubstr("none.txt")));
  EXPECT_EQ(code_, StatusCode::kNotFound);
}

TEST_F(FilePatternsTest, ASpecKeepsWhatWasWrittenMadeAbsolute) {
  const auto canonical = [](const std::string& yaml) -> std::string {
    const auto document = ReadYaml(yaml, "s.yaml");
    if (!document.ok()) return document.status().message();
    const YamlPlace place = {"s.yaml", "/data"};
    FilePatterns files;
    const Status status = Files().Read(YamlValue(*document, place), &files);
    if (!status.ok()) return status.message();
    nlohmann::ordered_json json;
    Files().write(files, &json);
    return json.dump();
  };
  EXPECT_EQ(canonical("a.tar"), R"(["/data/a.tar"])");
  EXPECT_EQ(canonical("['a-{0..3}.tar', '/x/*.tar']"),
            R"(["/data/a-{0..3}.tar","/x/*.tar"])");
  EXPECT_EQ(canonical("a-{0..3}.tar"), R"(["/data/a-{0..3}.tar"])");
  EXPECT_EQ(canonical("{list: ../l.txt}"), R"({"list":"/l.txt"})");
  EXPECT_THAT(canonical("{lost: a}"), HasSubstr("did you mean 'list'"));
  EXPECT_THAT(canonical("{}"), HasSubstr("list is missing"));
  EXPECT_THAT(canonical("[]"),
              HasSubstr("wanted a path, pattern or address, a list"));
}

TEST_F(FilePatternsTest, FilesAreOpenedTogetherAndNewOnesNoticed) {
  for (int i = 0; i < 300; ++i) Write("f" + std::to_string(i), "abc");
  OpenProgress progress;
  const auto files = DataFiles::Open({{folder_ + "/f*"}}, progress);
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->size(), 300u);
  EXPECT_EQ(files->total_bytes(), 900u);
  EXPECT_EQ((*files)[1].path(), folder_ + "/f1");
  EXPECT_FALSE(files->Changed());
  Write("g");
  EXPECT_FALSE(files->Changed());
  Write("f300");
  EXPECT_TRUE(files->Changed());
  std::filesystem::remove(folder_ + "/f300");
  EXPECT_FALSE(files->Changed());
  Write("f7", "abcd");
  EXPECT_TRUE(files->Changed());
  progress.cancel = true;
  EXPECT_EQ(DataFiles::Open({{folder_ + "/f*"}}, progress).status().code(),
            StatusCode::kCancelled);
}

}  // namespace penstock::file_patterns_test
