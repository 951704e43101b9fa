// What the tests of sources that read files share: a folder, and the records of
// a source as a worker would get them.
#ifndef TESTS_UNIT_FILE_SOURCE_H_
#define TESTS_UNIT_FILE_SOURCE_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "broker/source/kinds.h"

namespace penstock {

class FileSourceTest : public testing::Test {
 protected:
  FileSourceTest() {
    std::string pattern = testing::TempDir() + "penstock-source-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
  }
  ~FileSourceTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  static std::unique_ptr<Source> Open(const SourceSpec& spec) {
    auto source = OpenSource(spec, nullptr);
    EXPECT_TRUE(source.ok()) << source.status().message();
    return source.ok() ? *std::move(source) : nullptr;
  }

  // The message of an opening that fails.
  static std::string OpenFails(const SourceSpec& spec, StatusCode code) {
    const auto source = OpenSource(spec, nullptr);
    EXPECT_EQ(source.status().code(), code) << source.status().message();
    return source.status().message();
  }

  // The bytes of the record's features.
  static Status Read(const Source& source, uint64_t record,
                     std::vector<std::string>* features) {
    ReadRequest request;
    source.Locate(record, &request);
    // Also of an empty line: a worker asks one record whether all are read.
    EXPECT_EQ(request.kind, ReadRequest::Kind::kRange);
    std::vector<ReadPart> parts = request.more;
    parts.insert(parts.begin(), request);
    std::vector<std::byte> read;
    std::vector<uint64_t> ends;
    for (const ReadPart& part : parts) {
      read.resize(read.size() + part.bytes);
      const ssize_t got = pread(part.fd, read.data() + read.size() - part.bytes,
                                part.bytes, static_cast<off_t>(part.offset));
      if (got != static_cast<ssize_t>(part.bytes)) {
        return DataLossError("{}: short", source.Describe(record));
      }
      if (!request.more.empty()) ends.push_back(read.size());
    }
    std::vector<std::byte> scratch(99, std::byte{7});  // of another row
    RawRecord raw;
    PENSTOCK_RETURN_IF_ERROR(
        source.Unpack(record, {read, ends}, &scratch, &raw));
    EXPECT_EQ(raw.size(), source.raw_spec().size());
    features->clear();
    for (size_t i = 0; i < raw.size(); ++i) {
      EXPECT_EQ(raw[i].size(), source.raw_spec()[i].feature.RowBytes());
      features->emplace_back(reinterpret_cast<const char*>(raw[i].data()),
                             raw[i].size());
    }
    return OkStatus();
  }
  static std::vector<std::string> Record(const Source& source,
                                         uint64_t record) {
    std::vector<std::string> features;
    const Status status = Read(source, record, &features);
    EXPECT_TRUE(status.ok()) << status.message();
    return features;
  }
  // The record's error.
  static std::string ReadFails(const Source& source, uint64_t record) {
    std::vector<std::string> features;
    const Status status = Read(source, record, &features);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
    return status.message();
  }

  // The values of a feature's bytes.
  template <typename T>
  static std::vector<T> Values(const std::string& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  // Their bytes.
  template <typename T>
  static std::string Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()),
            values.size() * sizeof(T)};
  }

  std::string folder_;
};

}  // namespace penstock
#endif  // TESTS_UNIT_FILE_SOURCE_H_
