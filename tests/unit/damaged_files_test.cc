// Promise: whatever a file of a dataset has become, before or after it was
// opened, an error names it or the records are sound; a file that was deleted
// or replaced is read to the end. Method: for every source of files, its files
// cut at every length, cut in place, emptied, deleted and replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "broker/io/read.h"
#include "broker/source/kinds.h"
#include "broker/spec/dataset_spec.h"
#include "tests/unit/numpy_file.h"
#include "tests/unit/zip_file.h"

namespace penstock::damaged_files_test {

using testing::HasSubstr;

std::string Golden(const std::string& name) {
  std::ifstream in(PENSTOCK_SOURCE_DIR "/tests/unit/golden/" + name,
                   std::ios::binary);
  return {(std::istreambuf_iterator<char>(in)), {}};
}

struct Kind {
  std::string name;
  std::string source;  // of a spec, for the file `data`
  std::string sound;   // the file

  friend void PrintTo(const Kind& kind, std::ostream* out) {
    *out << kind.name;
  }
};

std::vector<Kind> Kinds() {
  const std::string array =
      NpyOf(NpyHeaderText("|u1", "(30, 4)"), std::string(120, '\1'));
  ZipFile zip;
  zip.Add("x.npy", array);
  return {
      {"text_lines", "text_lines: {files: data, max_bytes: 9}",
       "one\ntwo\r\n\nfour"},
      {"json_lines", "json_lines: {files: data, fields: {x: {dtype: int64}}}",
       "{\"x\": 1}\n{\"x\": 2}\n{\"x\": 3}\n"},
      {"csv", "csv: {files: data, columns: {x: {dtype: int64}}}",
       "x,y\n1,\"a\n\"\n2,b\n"},
      {"tokens", "tokens: {files: data, sequence_length: 4}",
       std::string(102, '\1')},
      {"npy", "npy: {features: {x: data}}", array},
      {"npz", "npz: {file: data, features: {x: x}}", zip.Bytes()},
      {"fixed_length_records",
       "fixed_length_records: {files: data, features: {x: {dtype: uint8, "
       "shape: "
       "[5]}}}",
       std::string(50, '\1')},
      {"idx", "idx: {images: data}",
       std::string("\0\0\x08\x02\0\0\0\x05\0\0\0\x04", 12) +
           std::string(20, '\1')},
      {"tfrecord", "tfrecord: {files: data, features: {text: {max_bytes: 99}}}",
       Golden("examples.tfrecord")},
      {"webdataset",
       "webdataset: {files: data, features: {image: {member: jpg;png, encoded: "
       "true}, label: {member: cls, dtype: int64, shape: []}}}",
       Golden("ustar.tar")},
      {"lmdb",
       "lmdb: {files: data, features: {image: {key: image-*, encoded: true}, "
       "word: {key: label-*, max_bytes: 9}}}",
       Golden("pairs.mdb")},
      {"image_folder", "image_folder: {path: pictures}", "no picture"}};
}

class DamagedFilesTest : public testing::TestWithParam<Kind> {
 protected:
  DamagedFilesTest() {
    std::string pattern = testing::TempDir() + "penstock-damaged-XXXXXX";
    folder_ = mkdtemp(pattern.data());
    setenv("PENSTOCK_CACHE_DIR", (folder_ + "/cache").c_str(), 1);
    const bool picture = GetParam().name == "image_folder";
    std::filesystem::create_directories(folder_ + "/pictures/a");
    path_ = folder_ + (picture ? "/pictures/a/1.jpg" : "/data");
    reader_ = *MakeStorageReader(ReadBackend::kPread, 1);
  }
  ~DamagedFilesTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
  }

  StatusOr<std::unique_ptr<Source>> Open() {
    const auto spec = ParseDatasetSpec(
        "dataset: d\nbatch: {size: 1}\nsource: {" + GetParam().source + "}\n",
        "", folder_);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    return OpenSource(spec->source, nullptr);
  }

  // What is read of all records; an error has to name the file.
  std::vector<std::string> ReadAll(const Source& source) {
    std::vector<std::string> records;
    for (uint64_t record = 0; record < source.record_count(); ++record) {
      ReadRequest request;
      source.Locate(record, &request);
      reader_->Start(0, request, {}, kNotPinned);
      StorageReader::Done done;
      EXPECT_TRUE(reader_->Next(kWaitForever, &done));
      std::vector<std::byte> scratch;
      RawRecord raw;
      const Status status =
          done.status.ok() ? source.Unpack(record, done.read(), &scratch, &raw)
                           : done.status;
      std::string text;
      if (status.ok()) {
        for (size_t i = 0; i < raw.size(); ++i) {
          if (!source.raw_spec()[i].encoded) {
            EXPECT_EQ(raw[i].size(), source.raw_spec()[i].feature.RowBytes());
          }
          text.append(reinterpret_cast<const char*>(raw[i].data()),
                      raw[i].size());
        }
      } else {
        EXPECT_THAT(std::string(status.message()) + source.Describe(record),
                    HasSubstr(path_));
        EXPECT_NE(status.code(), StatusCode::kInternal) << status.message();
      }
      records.push_back(text);
      reader_->Release(0);
    }
    return records;
  }

  std::string folder_;
  std::string path_;
  std::unique_ptr<StorageReader> reader_;
};

TEST_P(DamagedFilesTest, EveryCutIsToldOrHarmless) {
  const std::string& sound = GetParam().sound;
  for (size_t bytes = 0; bytes <= sound.size();
       bytes += 1 + sound.size() / 1000) {
    Write(sound.substr(0, bytes));
    const auto source = Open();
    if (source.ok()) {
      ReadAll(**source);
    } else {
      EXPECT_THAT(source.status().message(), HasSubstr(path_)) << bytes;
    }
  }
}

TEST_P(DamagedFilesTest, AFileThatIsCutWhileItIsReadIsToldOrHarmless) {
  const std::string& sound = GetParam().sound;
  for (size_t parts = 0; parts < 8; ++parts) {
    Write(sound);
    const auto source = Open();
    ASSERT_TRUE(source.ok()) << source.status().message();
    const auto before = ReadAll(**source);
    std::filesystem::resize_file(path_, sound.size() * parts / 8);
    EXPECT_TRUE((*source)->Changed() || GetParam().name == "image_folder");
    const auto after = ReadAll(**source);
    for (size_t i = 0; i < before.size(); ++i) {
      // Pictures of a folder are opened when they are read, whatever they are.
      EXPECT_TRUE(after[i].empty() || after[i] == before[i] ||
                  GetParam().name == "image_folder");
    }
  }
}

TEST_P(DamagedFilesTest, AFileThatIsDeletedOrReplacedIsReadToTheEnd) {
  Write(GetParam().sound);
  const auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status().message();
  const auto sound = ReadAll(**source);
  for (const bool replaced : {false, true}) {
    if (replaced) {
      Write(std::string(GetParam().sound.size(), 'x'));
    } else {
      std::filesystem::remove(path_);
    }
    EXPECT_TRUE((*source)->Changed());
    if (GetParam().name == "image_folder") {
      EXPECT_NE(ReadAll(**source), sound);
    } else {
      EXPECT_EQ(ReadAll(**source), sound);
    }
  }
  EXPECT_TRUE(std::filesystem::remove(path_));
  EXPECT_THAT(Open().status().message(),
              HasSubstr(GetParam().name == "image_folder" ? folder_ : path_));
}

INSTANTIATE_TEST_SUITE_P(Sources, DamagedFilesTest, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace penstock::damaged_files_test
