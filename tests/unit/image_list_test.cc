// Promise: source image_list gives the pictures of a list in its order, with
// labels by class or value, and errors that name file, line and column. Method:
// lists and files written here; no picture is decoded.
#include <gmock/gmock.h>

#include "broker/source/kinds.h"
#include "tests/unit/file_source.h"

namespace penstock::image_list_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ImageListTest : public FileSourceTest {
 protected:
  ImageListTest() {
    for (const char* name : {"1.jpg", "2.jpg", "3 \"x\".jpg"}) {
      fs::create_directories(folder_ + "/pictures");
      Write(std::string("pictures/") + name, name);
    }
  }

  static TextField Picture(const std::string& from = "") {
    TextField field{.from = from};
    field.encoded = true;
    return field;
  }
  static TextField Class(std::vector<std::string> names = {}) {
    TextField field;
    field.classes = std::move(names);
    return field;
  }

  // A list of pictures in the folder `pictures`.
  ImageListSource List(const std::string& content,
                       FeatureValues<TextField> columns) {
    return {.file = Write("list.csv", content),
            .columns = std::move(columns),
            .folder = folder_ + "/pictures"};
  }
  ImageListSource List(const std::string& content) {
    return List(content, {{"image", Picture("file")}, {"label", Class()}});
  }

  // "1.jpg 7" for each record: the files, then an int64.
  std::vector<std::string> Records(const ImageListSource& spec) {
    const auto source = Open(spec);
    std::vector<std::string> records;
    for (uint64_t i = 0; source != nullptr && i < source->record_count(); ++i) {
      ReadRequest request;
      source->Locate(i, &request);
      EXPECT_EQ(request.path, source->Describe(i));
      std::string text = request.path.substr(request.path.rfind('/') + 1);
      for (const ReadPart& part : request.more) {
        text += " " + part.path.substr(part.path.rfind('/') + 1);
      }
      const std::string read = "abc";
      std::vector<uint64_t> ends;
      if (!request.more.empty()) ends = {1, 3};
      RawRecord raw;
      EXPECT_TRUE(
          source
              ->Unpack(i, {std::as_bytes(std::span(read)), ends}, nullptr, &raw)
              .ok());
      for (size_t f = 0; f < raw.size(); ++f) {
        if (source->raw_spec()[f].feature.dtype != DType::kInt64) continue;
        int64_t value = 0;
        std::memcpy(&value, raw[f].data(), sizeof(value));
        text += " " + std::to_string(value);
      }
      records.push_back(std::move(text));
    }
    return records;
  }
};

TEST_F(ImageListTest, ComesInTheListsOrderWithSortedClasses) {
  const auto spec = List(
      "id,file,label\n1,2.jpg,dog\n\n2,1.jpg,cat\r\n3,2.jpg,\"a, b\"\n"
      "4,\"3 \"\"x\"\".jpg\",dog");
  EXPECT_THAT(Records(spec),
              ElementsAre("2.jpg 2", "1.jpg 1", "2.jpg 0", "3 \"x\".jpg 2"));
  const auto source = Open(spec);
  EXPECT_THAT(source->class_names(), ElementsAre("a, b", "cat", "dog"));
  EXPECT_FALSE(source->Changed());
  EXPECT_NE(source->fingerprint(), "");
  Write("list.csv", "file,label\n1.jpg,x\n");
  EXPECT_TRUE(source->Changed());
}

TEST_F(ImageListTest, AListOfPathsAloneNeedsNoHeader) {
  auto spec =
      List("1.jpg\n./2.jpg\npictures/../1.jpg\n", {{"image", Picture()}});
  fs::create_directory(folder_ + "/pictures/pictures");
  spec.header = false;
  EXPECT_THAT(Records(spec), ElementsAre("1.jpg", "2.jpg", "1.jpg"));
  // Beside the list, absolute or not.
  spec = List(folder_ + "/pictures/1.jpg\npictures/2.jpg\n",
              {{"image", Picture()}});
  spec.header = false;
  spec.folder.clear();
  EXPECT_THAT(Records(spec), ElementsAre("1.jpg", "2.jpg"));
}

TEST_F(ImageListTest, ColumnsAreNumbersTextsAndSeveralPictures) {
  auto spec = List("2.jpg\t7\tx\t1.jpg\t0.5\n1.jpg\t\ty\t2.jpg\t1e3\n",
                   {{"mask", Picture("3")},
                    {"size", {.from = "1", .dtype = DType::kInt64}},
                    {"image", Picture("0")},
                    {"text", {.from = "2", .max_bytes = 4}},
                    {"weight", {.from = "4", .dtype = DType::kFloat32}}});
  spec.columns[1].second.fallback = std::vector<std::byte>(8, std::byte{1});
  spec.header = false;
  spec.delimiter = '\t';
  EXPECT_THAT(Records(spec), ElementsAre("1.jpg 2.jpg 7 1",
                                         "2.jpg 1.jpg 72340172838076673 1"));
  const auto source = Open(spec);
  const std::string read = "abc";
  const uint64_t ends[] = {1, 3};
  RawRecord raw;
  ASSERT_TRUE(
      source->Unpack(1, {std::as_bytes(std::span(read)), ends}, nullptr, &raw)
          .ok());
  ASSERT_EQ(raw.size(), 6u);
  EXPECT_EQ(raw[0].size(), 1u);  // in the order of the spec
  EXPECT_EQ(raw[2].size(), 2u);
  float weight = 0;
  std::memcpy(&weight, raw[5].data(), sizeof(weight));
  EXPECT_EQ(weight, 1000);
  const uint64_t empty[] = {3, 3};
  EXPECT_EQ(
      source->Unpack(1, {std::as_bytes(std::span(read)), empty}, nullptr, &raw)
          .message(),
      folder_ + "/pictures/1.jpg: is empty");
}

TEST_F(ImageListTest, ClassesMayBeGivenInTheirOrder) {
  auto spec = List(
      "file,label\n1.jpg,cat\n2.jpg,dog\n",
      {{"image", Picture("file")}, {"label", Class({"dog", "cow", "cat"})}});
  EXPECT_THAT(Records(spec), ElementsAre("1.jpg 2", "2.jpg 0"));
  EXPECT_THAT(Open(spec)->class_names(), ElementsAre("dog", "cow", "cat"));
  spec = List("file,label\n1.jpg,cat\n2.jpg,dig\n", spec.columns);
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            folder_ +
                "/list.csv, line 3: column 'label': 'dig' is none of the "
                "3 classes of the spec");
}

TEST_F(ImageListTest, ErrorsNameFileLineAndColumn) {
  fs::create_directory(folder_ + "/pictures/sub");
  const std::string before = "file,label\n1.jpg,\"a\nb\"\n\n";
  const std::string where = folder_ + "/list.csv, line 5: ";
  const auto fails = [&](const std::string& row, StatusCode code) {
    return OpenFails(List(before + row), code);
  };
  const StatusCode invalid = StatusCode::kInvalidArgument;
  EXPECT_EQ(fails("../1.jpg,x\n", invalid),
            where +
                "column 'file': '../1.jpg' leads out of its folder; give "
                "the folder that has all pictures as `folder`");
  EXPECT_THAT(fails("sub/../../1.jpg,x\n", invalid), HasSubstr("leads out"));
  EXPECT_EQ(fails("/etc/passwd,x\n", invalid),
            where +
                "column 'file': '/etc/passwd' is absolute; below `folder` "
                "all paths are relative");
  EXPECT_THAT(fails(std::string("1.jpg\0,x\n", 9), invalid),
              HasSubstr(where + "column 'file': a path with a NUL byte"));
  EXPECT_EQ(fails(",x\n", invalid), where + "column 'file': no path");
  EXPECT_THAT(fails(std::string(5000, 'x') + ",x\n", invalid),
              HasSubstr("a path of 5000 bytes; at most 4095"));
  EXPECT_EQ(fails("1.jpg,\n", invalid),
            where + "column 'label': a class without a name");
  EXPECT_EQ(fails("1.jpg,\xff\n", invalid),
            where + "column 'label': byte 0 of it is not UTF-8");
  EXPECT_THAT(fails("4.jpg,x\n", StatusCode::kNotFound),
              testing::AllOf(HasSubstr(where + "column 'file': " + folder_ +
                                       "/pictures/4.jpg: there is no such"),
                             HasSubstr("; `on_missing: skip` leaves")));
  EXPECT_THAT(fails("1.jpg/x,x\n", StatusCode::kNotFound), HasSubstr(where));
  EXPECT_THAT(
      fails("sub,x\n", StatusCode::kDataLoss),
      HasSubstr(where + "column 'file': " + folder_ + "/pictures/sub is a"));
  EXPECT_EQ(fails("1.jpg\n", StatusCode::kDataLoss),
            where + "1 columns, wanted 2");
  EXPECT_THAT(fails("1.jpg,\"x\n", StatusCode::kDataLoss),
              HasSubstr(where + "the row ends with the file, within quotes"));

  auto numbers =
      List("file,label\n1.jpg,x\n",
           {{"image", Picture("file")}, {"label", {.dtype = DType::kInt64}}});
  EXPECT_THAT(OpenFails(numbers, StatusCode::kDataLoss),
              HasSubstr("line 2: column 'label': field 'label': wanted int64, "
                        "found 'x'"));
  EXPECT_THAT(OpenFails(List("name,label\n1.jpg,x\n"), invalid),
              HasSubstr("no column 'file'; its header has 'name', 'label'"));
  EXPECT_THAT(OpenFails(List("file,label\n"), invalid),
              HasSubstr("no row in it below its header"));
  EXPECT_THAT(OpenFails(List(""), invalid), HasSubstr("no row in it"));
  auto gone = List("");
  gone.file = folder_ + "/none.csv";
  EXPECT_THAT(OpenFails(gone, StatusCode::kNotFound), HasSubstr("none.csv"));
}

TEST_F(ImageListTest, RowsOfMissingPicturesMayBeLeftOut) {
  auto spec = List(
      "file,label\n4.jpg,cow\n2.jpg,dog\n5.jpg,cat\n1.jpg,cat\n2.jpg,cat\n");
  spec.on_missing = OnMissing::kSkip;
  // The classes are those of all rows.
  EXPECT_THAT(Records(spec), ElementsAre("2.jpg 2", "1.jpg 0", "2.jpg 0"));
  EXPECT_EQ(Open(spec)->left_out(),
            "2 rows whose picture is missing, like line 2");
  spec = List("file,label\n4.jpg,cow\n");
  spec.on_missing = OnMissing::kSkip;
  EXPECT_THAT(OpenFails(spec, StatusCode::kNotFound),
              HasSubstr("none of the pictures in its 1 rows is there"));
}

TEST_F(ImageListTest, MemoryIsPromisedBeforeItIsTaken) {
  std::string content = "file,label\n";
  for (int i = 0; i < 5000; ++i) content += "1.jpg,x\n";
  const auto spec = List(content);
  OpenProgress progress;
  uint64_t promised = 0;
  progress.reserve = [&promised](uint64_t bytes) {
    promised += bytes;
    return OkStatus();
  };
  const auto source = OpenSource(spec, &progress);
  ASSERT_TRUE(source.ok());
  EXPECT_EQ((*source)->record_count(), 5000u);
  EXPECT_EQ(progress.done.load(), 5000u);
  EXPECT_GE(promised, (*source)->memory_bytes());
  EXPECT_LE((*source)->memory_bytes(), 5000u * (5 + 8 + 8) + 64);
  progress.reserve = [](uint64_t) { return ResourceExhaustedError("full"); };
  EXPECT_EQ(OpenSource(spec, &progress).status().code(),
            StatusCode::kResourceExhausted);
  OpenProgress cancelled;
  cancelled.cancel = true;
  EXPECT_EQ(OpenSource(spec, &cancelled).status().code(),
            StatusCode::kCancelled);
}

TEST_F(ImageListTest, WithoutClassesThereAreNoNames) {
  EXPECT_THAT(
      Open(List("file\n1.jpg\n", {{"image", Picture("file")}}))->class_names(),
      IsEmpty());
}

}  // namespace penstock::image_list_test
