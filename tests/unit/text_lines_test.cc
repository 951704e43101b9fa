// Promise: source text_lines gives each line of its files once, without its
// end, and never more than max_bytes. Method: files written here, with every
// end a line may have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "broker/source/kinds.h"

namespace penstock::text_lines_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class TextLinesTest : public testing::Test {
 protected:
  TextLinesTest() {
    std::string pattern = testing::TempDir() + "penstock-lines-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~TextLinesTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  std::unique_ptr<Source> Open(const TextLinesSource& spec) {
    auto source = OpenSource(spec, nullptr);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? *std::move(source) : nullptr;
  }

  // The line of a record, or its error. Checks what fills the row.
  static std::string Line(const Source& source, uint64_t record) {
    ReadRequest request;
    source.Locate(record, &request);
    // Also of an empty line: a worker asks one record whether all are read.
    EXPECT_EQ(request.kind, ReadRequest::Kind::kRange);
    std::vector<std::byte> read(request.bytes);
    EXPECT_EQ(pread(request.fd, read.data(), read.size(),
                    static_cast<off_t>(request.offset)),
              static_cast<ssize_t>(read.size()));
    std::vector<std::byte> scratch(99, std::byte{7});  // of another row
    RawRecord raw;
    const Status status = source.Unpack(record, {read}, &scratch, &raw);
    if (!status.ok()) return status.message();
    EXPECT_EQ(raw.size(), 2u);
    int64_t bytes = 0;
    EXPECT_EQ(raw[1].size(), sizeof(bytes));
    std::memcpy(&bytes, raw[1].data(), sizeof(bytes));
    EXPECT_EQ(raw[0].size(), source.raw_spec()[0].feature.RowBytes());
    for (size_t i = static_cast<size_t>(bytes); i < raw[0].size(); ++i) {
      EXPECT_EQ(raw[0][i], std::byte{0});
    }
    return {reinterpret_cast<const char*>(raw[0].data()),
            static_cast<size_t>(bytes)};
  }
  static std::vector<std::string> Lines(const Source& source) {
    std::vector<std::string> lines;
    for (uint64_t i = 0; i < source.record_count(); ++i) {
      lines.push_back(Line(source, i));
    }
    return lines;
  }

  std::string folder_;
};

TEST_F(TextLinesTest, EveryLineOfEveryFileComesWithoutItsEnd) {
  const auto source =
      Open({.files = {{Write("a", "one\ntwo\r\n\nfour\n"), Write("empty", ""),
                       Write("b", "\r\n\r\rx\r\nlast"), Write("c", "\n")}},
            .max_bytes = 8});
  EXPECT_THAT(Lines(*source),
              ElementsAre("one", "two", "", "four", "", "\r\rx", "last", ""));
  EXPECT_EQ(source->Describe(4), folder_ + "/b, line 1");
  EXPECT_EQ(source->raw_spec()[0].feature.ToString(), "text uint8 [8]");
  EXPECT_EQ(source->raw_spec()[1].feature.ToString(), "bytes int64 []");
}

TEST_F(TextLinesTest, ALongerLineFailsOrIsCut) {
  const std::string path = Write("a", "1234\n12345\n1234\r\n12345\r\n123456");
  const auto cut =
      Open({.files = {{path}}, .max_bytes = 4, .longer = Longer::kCut});
  EXPECT_THAT(Lines(*cut), ElementsAre("1234", "1234", "1234", "1234", "1234"));
  const auto fail = Open({.files = {{path}}, .max_bytes = 4});
  EXPECT_EQ(Line(*fail, 0), "1234");
  EXPECT_EQ(Line(*fail, 1),
            path +
                ", line 2: a line of 5 bytes; at most 4 fit (max_bytes, or "
                "`longer: cut`)");
  EXPECT_EQ(Line(*fail, 2), "1234");
  EXPECT_THAT(Line(*fail, 3), HasSubstr("line 4: a line of "));
  const std::string found =
      "3 lines are longer than max_bytes (4), the longest of 6 bytes (" + path +
      ", line 5): ";
  EXPECT_THAT(fail->warning(), StartsWith(found + "each is an error of its "));
  EXPECT_EQ(cut->warning(), found + "the rest of each is cut off");
}

TEST_F(TextLinesTest, LinesThatCrossTheScansBlocksAreWhole) {
  std::string text;
  std::vector<std::string> lines;
  for (int i = 0; text.size() < (size_t{5} << 20); ++i) {
    lines.push_back(std::string(static_cast<size_t>(i * 7919 % 60'000), 'x') +
                    std::to_string(i));
    text += lines.back() + "\n";
  }
  const auto source =
      Open({.files = {{Write("a", text)}}, .max_bytes = 61'000});
  EXPECT_EQ(Lines(*source), lines);
  EXPECT_GE(source->memory_bytes(), lines.size() * 8);
  EXPECT_EQ(source->warning(), "");
}

TEST_F(TextLinesTest, ALineThatIsNoLongerThanItsRoomIsNotWarnedOf) {
  const std::string block((size_t{1} << 20) - 1, 'x');  // of the scan, less 1
  for (const char* end : {"", "\n", "\r", "\r\n", "\ny\r\n"}) {
    const std::vector<std::string> files = {Write("a", block + end)};
    EXPECT_EQ(Open({.files = {files}, .max_bytes = block.size()})->warning(),
              "");
    EXPECT_THAT(
        Open({.files = {files}, .max_bytes = block.size() - 1})->warning(),
        StartsWith(Format("1 line is longer than max_bytes ({}), the "
                          "longest of {} bytes ({}, line 1): ",
                          block.size() - 1, block.size(), files[0])));
  }
}

TEST_F(TextLinesTest, FilesThatHoldNothingOrAreNotThereAreNamed) {
  const auto open = [](std::vector<std::string> files) {
    return OpenSource(
               TextLinesSource{.files = {std::move(files)}, .max_bytes = 4},
               nullptr)
        .status();
  };
  const Status nothing = open({Write("empty", "")});
  EXPECT_EQ(nothing.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(nothing.message(), HasSubstr(folder_ + "/empty"));
  EXPECT_EQ(open({folder_ + "/missing"}).code(), StatusCode::kNotFound);
}

TEST_F(TextLinesTest, ALineThatHasBecomeSeveralIsAnError) {
  TextLinesSource spec;
  spec.files = {{Write("a", "first\nsecond\n")}};
  spec.max_bytes = 16;
  const auto source = Open(spec);
  ASSERT_NE(source, nullptr);
  Write("a", "first\nse\nond\n");  // the same file
  EXPECT_EQ(Line(*source, 0), "first");
  EXPECT_THAT(Line(*source, 1), HasSubstr("has changed since it was opened"));
}

TEST_F(TextLinesTest, MemoryIsAskedForAndAnOpeningCanBeCancelled) {
  const TextLinesSource spec = {
      .files = {{Write("a", std::string(9999, '\n'))}}, .max_bytes = 4};
  OpenProgress progress;
  uint64_t asked = 0;
  progress.reserve = [&](uint64_t bytes) {
    asked += bytes;
    return asked > 9000 * 8 ? ResourceExhaustedError("full") : OkStatus();
  };
  EXPECT_EQ(OpenSource(spec, &progress).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_GE(asked, 9999u * 8);
  OpenProgress cancelled;
  cancelled.cancel = true;
  EXPECT_EQ(OpenSource(spec, &cancelled).status().code(),
            StatusCode::kCancelled);
}

TEST_F(TextLinesTest, AChangedFileIsNoticed) {
  const std::string path = Write("a", "one\n");
  const auto source = Open({.files = {{path}}, .max_bytes = 4});
  EXPECT_FALSE(source->Changed());
  Write("a", "one\ntwo\n");
  EXPECT_TRUE(source->Changed());
}

}  // namespace penstock::text_lines_test
