// Promise: source fixed_length_records gives the documented bytes of one or
// several files, buffered and direct, and refuses files of another size with
// the numbers. Method: files written here, read through every way that `io`
// names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "broker/index/data_file.h"
#include "broker/source/kinds.h"

namespace penstock::fixed_length_records_test {

using testing::HasSubstr;
using testing::StartsWith;

class FixedLengthRecordsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "penstock-records-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  // A record is x, two bytes, and y, one int16.
  FixedLengthRecordsSource Spec(const std::vector<std::string>& files) {
    return {.files = {files},
            .features = {{"x", DType::kUint8, {2}}, {"y", DType::kInt16, {}}}};
  }

  std::unique_ptr<Source> Open(const FixedLengthRecordsSource& spec) {
    auto source = OpenSource(spec, nullptr);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? *std::move(source) : nullptr;
  }

  std::string OpenFails(const FixedLengthRecordsSource& spec, StatusCode code) {
    const auto source = OpenSource(spec, nullptr);
    EXPECT_EQ(source.status().code(), code);
    return source.status().message();
  }

  // The record's features, as text.
  std::vector<std::string> Record(const Source& source, uint64_t record) {
    ReadRequest request;
    source.Locate(record, &request);
    EXPECT_EQ(request.kind, ReadRequest::Kind::kRange);
    std::vector<std::byte> read(request.bytes), scratch;
    EXPECT_EQ(pread(request.fd, read.data(), read.size(),
                    static_cast<off_t>(request.offset)),
              static_cast<ssize_t>(read.size()));
    RawRecord raw;
    EXPECT_TRUE(source.Unpack(record, {read}, &scratch, &raw).ok());
    std::vector<std::string> features;
    for (const auto& bytes : raw) {
      features.emplace_back(reinterpret_cast<const char*>(bytes.data()),
                            bytes.size());
    }
    return features;
  }

  std::string folder_;
};

TEST_F(FixedLengthRecordsTest, RecordsOfSeveralFilesFollowOneAnother) {
  FixedLengthRecordsSource spec =
      Spec({Write("a", "HEADaabbccddF"), Write("b", "HEADeeffF")});
  spec.header_bytes = 4;
  spec.footer_bytes = 1;
  const auto source = Open(spec);
  ASSERT_EQ(source->record_count(), 3u);
  EXPECT_THAT(Record(*source, 0), testing::ElementsAre("aa", "bb"));
  EXPECT_THAT(Record(*source, 1), testing::ElementsAre("cc", "dd"));
  EXPECT_THAT(Record(*source, 2), testing::ElementsAre("ee", "ff"));
  EXPECT_EQ(source->Describe(2), folder_ + "/b, offset 4");
  EXPECT_EQ(source->plain_feature(), std::nullopt);
  EXPECT_EQ(source->io(), "buffered");
}

TEST_F(FixedLengthRecordsTest, ASingleFeatureCanBeReadIntoItsPlace) {
  FixedLengthRecordsSource spec = Spec({Write("a", "aabb")});
  spec.features.pop_back();
  EXPECT_EQ(Open(spec)->plain_feature(), 0u);
}

TEST_F(FixedLengthRecordsTest, WhatDoesNotFitIsSaidWithNumbers) {
  EXPECT_EQ(OpenFails(Spec({Write("a", "aabbc")}), StatusCode::kDataLoss),
            folder_ +
                "/a has 5 bytes; wanted a multiple of 4, the bytes of a "
                "record (1 are left over)");
  EXPECT_THAT(OpenFails(Spec({Write("e", "")}), StatusCode::kDataLoss),
              HasSubstr("it holds no record"));
  FixedLengthRecordsSource spec = Spec({Write("h", "aabbccdd")});
  spec.header_bytes = 7;
  EXPECT_THAT(OpenFails(spec, StatusCode::kDataLoss),
              HasSubstr("wanted 7 and a multiple of 4"));
  spec.header_bytes = 9;
  EXPECT_THAT(OpenFails(spec, StatusCode::kDataLoss),
              HasSubstr("it holds no record"));
  EXPECT_THAT(OpenFails(Spec({folder_ + "/none"}), StatusCode::kNotFound),
              HasSubstr(folder_ + "/none"));
  EXPECT_THAT(OpenFails(Spec({folder_}), StatusCode::kDataLoss),
              HasSubstr(folder_));
  FixedLengthRecordsSource huge = Spec({Write("a", "aabb")});
  huge.features[0].shape = {1 << 30};
  EXPECT_THAT(OpenFails(huge, StatusCode::kInvalidArgument),
              HasSubstr("a record of 1073741826 bytes"));
}

TEST_F(FixedLengthRecordsTest, DirectReadsAreTakenOrRefusedByName) {
  FixedLengthRecordsSource spec = Spec({Write("a", "aabb")});
  spec.io = Io::kDirect;
  if (DirectAlignment(
          (*DataFile::Open(folder_ + "/a", *FileAccess::OfBroker())).fd()) >
      0) {
    ReadRequest request;
    const auto source = Open(spec);
    source->Locate(0, &request);
    EXPECT_GT(request.align, 0u);
    EXPECT_THAT(source->io(), StartsWith("direct, in multiples of "));
  } else {
    EXPECT_THAT(OpenFails(spec, StatusCode::kInvalidArgument),
                HasSubstr("has no direct reads; use `io: auto`"));
  }
  // procfs supports no direct reads.
  auto file = DataFile::Open("/proc/self/status", *FileAccess::OfBroker());
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Status status = file->ChooseIo(Io::kDirect, 1 << 20, 1 << 20);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("/proc/self/status has no direct"));
  EXPECT_TRUE(file->ChooseIo(Io::kAuto, UINT64_MAX, 1 << 20).ok());
  EXPECT_EQ(file->align(), 0u);
}

TEST_F(FixedLengthRecordsTest, AutoGoesPastThePageCacheWhenItWouldNotHelp) {
  Write("a", std::string(1 << 20, 'a'));
  const auto align_of = [&](uint64_t total_bytes, uint64_t record_bytes) {
    auto file = DataFile::Open(folder_ + "/a", *FileAccess::OfBroker());
    EXPECT_TRUE(file->ChooseIo(Io::kAuto, total_bytes, record_bytes).ok());
    return file->align();
  };
  EXPECT_EQ(align_of(1 << 20, 1 << 20), 0u);
  EXPECT_EQ(align_of(UINT64_MAX, DataFile::kDirectBytesMin - 1), 0u);
  EXPECT_EQ(
      align_of(UINT64_MAX, DataFile::kDirectBytesMin),
      DirectAlignment(
          (*DataFile::Open(folder_ + "/a", *FileAccess::OfBroker())).fd()));
}

}  // namespace penstock::fixed_length_records_test
