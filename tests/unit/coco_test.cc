// Promise: source coco gives the pictures of COCO's instances in the order of
// their ids with the boxes of each in the order of the file, and refuses a file
// that lies with the place of the lie. Method: files written here; no picture
// is decoded.
#include <gmock/gmock.h>

#include "broker/source/kinds.h"
#include "tests/unit/file_source.h"

namespace penstock::coco_test {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kImages[] =
    R"([{"id": 7, "file_name": "b.jpg", "height": 4, "width": 3},
        {"file_name": "c/d.jpg", "id": 30}, {"id": 2, "file_name": "a.jpg"}])";
constexpr char kCategories[] =
    R"([{"id": 90, "name": "brush", "supercategory": "x"},
        {"id": 1, "name": "person"}, {"id": 18, "name": "dog"}])";
constexpr char kAnnotations[] =
    R"([{"id": 5, "image_id": 7, "category_id": 90, "bbox": [1, 2, 3.5, 4],
         "area": 9.25, "iscrowd": 0, "segmentation": [[1, 2, 3, 4]]},
        {"id": 6, "image_id": 2, "category_id": 1, "bbox": [0, 0, 0, 0]},
        {"id": 4, "image_id": 7, "category_id": 18, "bbox": [-1, 0.5, 1e1, 2],
         "iscrowd": 1, "area": 7,
         "segmentation": {"counts": [1], "size": [4, 3]}}])";

class CocoTest : public FileSourceTest {
 protected:
  CocoTest() {
    fs::create_directories(folder_ + "/pictures/c");
    for (const char* name : {"a.jpg", "b.jpg", "c/d.jpg"}) {
      Write(std::string("pictures/") + name, name);
    }
  }

  CocoSource File(const std::string& content) {
    return {.annotations = Write("instances.json", content),
            .images = folder_ + "/pictures"};
  }
  CocoSource Lists(const std::string& annotations,
                   const std::string& images = kImages,
                   const std::string& categories = kCategories) {
    return File(R"({"annotations": )" + annotations + R"(, "images": )" +
                images + R"(, "info": {"a": [1, {"b": "]"}]}, "categories": )" +
                categories + "}");
  }
  // One annotation with these fields besides image_id and category_id.
  CocoSource One(const std::string& fields) {
    return Lists(R"([{"image_id": 2, "category_id": 1, )" + fields + "}]");
  }

  // "c/d.jpg 30: 18 [1 2 3 4] 7 crowd"
  std::string Record(const Source& source, uint64_t record) {
    ReadRequest request;
    source.Locate(record, &request);
    EXPECT_EQ(request.path, source.Describe(record));
    const std::string read = "x";
    std::vector<std::byte> scratch(3, std::byte{7});
    RawRecord raw;
    EXPECT_TRUE(source
                    .Unpack(record, {std::as_bytes(std::span(read)), {}},
                            &scratch, &raw)
                    .ok());
    EXPECT_EQ(raw.size(), source.raw_spec().size());
    EXPECT_EQ(raw[0].size(), 1u);
    const auto bytes = [&](size_t feature) {
      return std::string(reinterpret_cast<const char*>(raw[feature].data()),
                         raw[feature].size());
    };
    std::string text =
        Format("{} {}:", request.path.substr((folder_ + "/pictures/").size()),
               Values<int64_t>(bytes(9))[0]);
    const auto boxes = Values<float>(bytes(1));
    const auto labels = Values<int64_t>(bytes(3));
    const auto areas = Values<float>(bytes(5));
    const std::string crowds = bytes(7);
    const auto count = static_cast<size_t>(Values<int64_t>(bytes(2))[0]);
    for (const size_t length : {4, 6, 8}) {
      EXPECT_EQ(bytes(length), bytes(2));
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      if (i >= count) {
        EXPECT_EQ(labels[i], 0);
        EXPECT_EQ(areas[i], 0);
        EXPECT_EQ(crowds[i], 0);
        EXPECT_EQ(boxes[4 * i] + boxes[4 * i + 3], 0);
        continue;
      }
      text += Format(" {} [{} {} {} {}] {}{}", labels[i], boxes[4 * i],
                     boxes[4 * i + 1], boxes[4 * i + 2], boxes[4 * i + 3],
                     areas[i], crowds[i] != 0 ? " crowd" : "");
    }
    return text;
  }
  std::vector<std::string> Records(const CocoSource& spec) {
    const auto source = Open(spec);
    std::vector<std::string> records;
    for (uint64_t i = 0; source != nullptr && i < source->record_count(); ++i) {
      records.push_back(Record(*source, i));
    }
    return records;
  }
};

TEST_F(CocoTest, PicturesComeById) {
  auto spec = Lists(kAnnotations);
  EXPECT_THAT(Records(spec), ElementsAre("a.jpg 2: 0 [0 0 0 0] 0",
                                         "b.jpg 7: 2 [1 2 4.5 6] 9.25 "
                                         "1 [-1 0.5 9 2.5] 7 crowd",
                                         "c/d.jpg 30:"));
  const auto source = Open(spec);
  EXPECT_THAT(source->class_names(), ElementsAre("person", "dog", "brush"));
  // Room for the most that one has.
  EXPECT_EQ(source->raw_spec()[1].feature.ToString(), "boxes float32 [2, 4]");
  int64_t number = 0;
  ASSERT_TRUE(source->KnownNumber(1, 2, reinterpret_cast<std::byte*>(&number)));
  EXPECT_EQ(number, 2);
  ASSERT_TRUE(source->KnownNumber(1, 9, reinterpret_cast<std::byte*>(&number)));
  EXPECT_EQ(number, 7);
  EXPECT_FALSE(
      source->KnownNumber(1, 1, reinterpret_cast<std::byte*>(&number)));
  EXPECT_FALSE(source->Changed());
  RawRecord raw;
  std::vector<std::byte> scratch;
  EXPECT_EQ(source->Unpack(1, {}, &scratch, &raw).message(),
            folder_ + "/pictures/b.jpg: is empty");
  EXPECT_NE(source->fingerprint(), "");
  Write("instances.json", "{}");
  EXPECT_TRUE(source->Changed());
}

TEST_F(CocoTest, LabelsAndCrowdAreAsSaid) {
  auto spec = Lists(kAnnotations);
  spec.labels = CocoSource::Labels::kFrom1;
  spec.crowd = CocoSource::Crowd::kDrop;
  EXPECT_EQ(Records(spec)[1], "b.jpg 7: 3 [1 2 4.5 6] 9.25");
  EXPECT_THAT(Open(spec)->class_names(),
              ElementsAre("__background__", "person", "dog", "brush"));
  spec.labels = CocoSource::Labels::kIds;
  EXPECT_EQ(Records(spec)[1], "b.jpg 7: 90 [1 2 4.5 6] 9.25");
  const auto names = Open(spec)->class_names();
  ASSERT_EQ(names.size(), 91u);
  EXPECT_EQ(names[18], "dog");
  EXPECT_EQ(names[2], "__background__");
  // Ids may be any.
  spec = Lists("[]", kImages, R"([{"id": -5, "name": "a"}])");
  spec.labels = CocoSource::Labels::kIds;
  EXPECT_THAT(Open(spec)->class_names(), IsEmpty());
}

TEST_F(CocoTest, MasksArePassedThrough) {
  auto spec = Lists(kAnnotations);
  spec.segmentation = true;
  const auto masks = [&](uint64_t record) {
    const auto source = Open(spec);
    const std::string read = "x";
    std::vector<std::byte> scratch;
    RawRecord raw;
    int64_t bytes = 0, known = 0;
    EXPECT_TRUE(source
                    ->Unpack(record, {std::as_bytes(std::span(read)), {}},
                             &scratch, &raw)
                    .ok());
    std::memcpy(&bytes, raw[11].data(), sizeof(bytes));
    EXPECT_TRUE(
        source->KnownNumber(record, 11, reinterpret_cast<std::byte*>(&known)));
    EXPECT_EQ(known, bytes);
    return std::string(reinterpret_cast<const char*>(raw[10].data()),
                       static_cast<size_t>(bytes));
  };
  EXPECT_EQ(masks(0), "[null]");
  EXPECT_EQ(masks(1), R"([[[1, 2, 3, 4]],{"counts": [1], "size": [4, 3]}])");
  EXPECT_EQ(masks(2), "[]");
  // Room for the most that one has.
  EXPECT_EQ(Open(spec)->raw_spec()[10].feature.ToString(),
            Format("segmentation uint8 [{}]", masks(1).size()));
  const std::string with = Open(spec)->fingerprint();
  spec.crowd = CocoSource::Crowd::kDrop;
  EXPECT_EQ(masks(1), "[[[1, 2, 3, 4]]]");
  spec.crowd = CocoSource::Crowd::kKeep;
  spec.max_length = 1;
  spec.longer = Longer::kCut;
  EXPECT_EQ(masks(1), "[[[1, 2, 3, 4]]]");
  spec.segmentation = false;
  EXPECT_EQ(Open(spec)->raw_spec().size(), 10u);
  EXPECT_NE(Open(spec)->fingerprint(), with);
  spec = One(R"("bbox": [1, 2, 3, 4], "segmentation": 3)");
  EXPECT_EQ(Records(spec).size(), 3u);
  spec.segmentation = true;
  EXPECT_THAT(OpenFails(spec, StatusCode::kDataLoss),
              HasSubstr("annotations[0]: segmentation: wanted polygons or an "
                        "RLE, found '3'"));
  // A picture that is left out leaves the others theirs.
  spec = Lists(kAnnotations);
  spec.segmentation = true;
  spec.on_missing = OnMissing::kSkip;
  fs::remove(folder_ + "/pictures/a.jpg");
  EXPECT_EQ(masks(0), R"([[[1, 2, 3, 4]],{"counts": [1], "size": [4, 3]}])");
}

TEST_F(CocoTest, ABoundThatCuts) {
  auto spec = Lists(kAnnotations);
  spec.max_length = 1;
  EXPECT_EQ(OpenFails(spec, StatusCode::kInvalidArgument),
            folder_ +
                "/instances.json: images[0] (id 7) has 2 objects, the most of "
                "all, and there is room for 1: give max_length 2, or `longer: "
                "cut`");
  spec.longer = Longer::kCut;
  EXPECT_THAT(Records(spec),
              ElementsAre("a.jpg 2: 0 [0 0 0 0] 0",
                          "b.jpg 7: 2 [1 2 4.5 6] 9.25", "c/d.jpg 30:"));
  spec.max_length = 9;
  spec.longer = Longer::kFail;
  EXPECT_EQ(Records(spec).size(), 3u);
  // No box at all.
  spec = Lists("[]");
  EXPECT_EQ(Open(spec)->raw_spec()[1].feature.ToString(),
            "boxes float32 [1, 4]");
  EXPECT_EQ(Records(spec)[0], "a.jpg 2:");
}

TEST_F(CocoTest, APictureThatIsMissingIsAnErrorOrLeftOut) {
  fs::remove(folder_ + "/pictures/b.jpg");
  auto spec = Lists(kAnnotations);
  EXPECT_THAT(OpenFails(spec, StatusCode::kNotFound),
              HasSubstr("/instances.json: images[0] (id 7): " + folder_ +
                        "/pictures/b.jpg: there is no such"));
  spec.on_missing = OnMissing::kSkip;
  EXPECT_THAT(Records(spec),
              ElementsAre("a.jpg 2: 0 [0 0 0 0] 0", "c/d.jpg 30:"));
  EXPECT_EQ(Open(spec)->left_out(), "1 picture that is missing, like b.jpg");
  fs::remove_all(folder_ + "/pictures");
  EXPECT_THAT(OpenFails(spec, StatusCode::kNotFound),
              HasSubstr("none of its 3 pictures is in "));
}

TEST_F(CocoTest, ALieIsToldWithItsPlace) {
  const std::string file = folder_ + "/instances.json: ";
  const StatusCode lost = StatusCode::kDataLoss;
  const std::string one = file + "annotations[0]: ";
  const auto fails = [&](const std::string& fields) {
    return OpenFails(One(fields), StatusCode::kDataLoss);
  };
  const std::string wanted = "bbox: wanted a list [x, y, width, height], ";
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3])"), one + wanted + "found one of 3");
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3, 4, 5])"), one + wanted + "found more");
  EXPECT_EQ(fails(R"("bbox": {})"), one + wanted + "found an object");
  EXPECT_EQ(fails(R"("bbox": "1, 2")"), one + wanted + "found '\"1, 2\"'");
  EXPECT_EQ(fails(R"("bbox": [1, 2, -1, 4])"),
            one + "bbox: [2]: wanted a number from 0 to 16777216, found '-1'");
  EXPECT_THAT(fails(R"("bbox": [2147483648, 2, 1, 4])"),
              HasSubstr("bbox: [0]: wanted a number from -16777216 to "
                        "16777216, found '2147483648'"));
  EXPECT_THAT(fails(R"("bbox": [1e400, 2, 1, 4])"), HasSubstr("bbox: [0]: "));
  EXPECT_THAT(fails(R"("bbox": [1, NaN, 1, 4])"),
              HasSubstr("bbox: [1]: wanted a number from -16777216 to "
                        "16777216, found 'NaN'"));
  EXPECT_THAT(fails(R"("bbox": [1, 2, 3, null])"), HasSubstr("found 'null'"));
  EXPECT_EQ(fails(R"("area": 1)"), one + "has no 'bbox'");
  EXPECT_THAT(fails(R"("bbox": [1, 2, 3, 4], "area": -1)"),
              HasSubstr("area: wanted a number from 0"));
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3, 4], "iscrowd": 2)"),
            one + "iscrowd: wanted 0 or 1, found '2'");
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3, 4], "image_id": 3)"),
            one + "image_id 3 is the id of no picture");
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3, 4], "category_id": 4294967297)"),
            one + "category_id 4294967297 is the id of no category");
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3, 4], "image_id": 1.5)"),
            one + "image_id: wanted a whole number, found '1.5'");
  EXPECT_EQ(fails(R"("bbox": [1, 2, 3, 4], "image_id": 18446744073709551618)"),
            one +
                "image_id: wanted a whole number, found "
                "'18446744073709551618'");
  EXPECT_EQ(OpenFails(Lists("[3]"), lost), one + "wanted an object, found '3'");
  EXPECT_EQ(OpenFails(Lists("{}"), lost),
            file + "annotations: wanted a list, found an object");

  EXPECT_EQ(OpenFails(Lists("[]", R"([{"id": 1, "file_name": "a.jpg"},
                {"id": 0, "file_name": "a.jpg"}, {"id": 1, "file_name": "b"}])"),
                      lost),
            file + "images[0] and images[2] have one id, 1");
  EXPECT_EQ(OpenFails(Lists("[]", kImages, R"([{"id": 1, "name": "a"},
                {"id": 1, "name": "b"}])"),
                      lost),
            file + "categories[0] and categories[1] have one id, 1");
  EXPECT_EQ(OpenFails(Lists(R"([
                {"id": 1, "image_id": 2, "category_id": 1, "bbox": [0,0,1,1]},
                {"id": 1, "image_id": 7, "category_id": 1, "bbox": [0,0,1,1]}])"),
                      lost),
            file + "annotations[0] and annotations[1] have one id, 1");
  EXPECT_EQ(OpenFails(Lists("[]", R"([{"file_name": "a.jpg"}])"), lost),
            file + "images[0]: has no 'id'");
  EXPECT_EQ(OpenFails(Lists("[]", R"([{"id": 1, "file_name": 5}])"), lost),
            file + "images[0]: file_name: wanted text, found '5'");
  EXPECT_EQ(OpenFails(Lists("[]", R"([{"id": 1, "file_name": "../x"}])"),
                      StatusCode::kInvalidArgument),
            file +
                "images[0]: file_name: '../x' leads out of its folder; give "
                "the folder that has all pictures as `images`");
  EXPECT_EQ(OpenFails(Lists("[]", R"([{"id": 1, "file_name": "/x"}])"),
                      StatusCode::kInvalidArgument),
            file +
                "images[0]: file_name: '/x' is absolute; below `images` all "
                "paths are relative");
  EXPECT_EQ(OpenFails(Lists("[]", "[]"), StatusCode::kInvalidArgument),
            file + "images: no picture");

  EXPECT_EQ(OpenFails(File(R"({"images": [], "annotations": []})"), lost),
            file +
                "no list 'categories': give a file of instances, as COCO's "
                "instances_train2017.json is one");
  EXPECT_EQ(OpenFails(File(R"({"images": [], "images": []})"), lost),
            file + "two lists 'images'");
  EXPECT_THAT(OpenFails(File("[]"), lost),
              HasSubstr("wanted an object of the lists images"));
  for (const char* broken :
       {"", " ", "{", R"({"images": [)", R"({"images": [{"id": 1 2}]})", "\xff",
        R"({"images": "a)"}) {
    EXPECT_THAT(OpenFails(File(broken), lost), HasSubstr("not JSON"));
  }
  EXPECT_THAT(
      OpenFails(
          File(R"({"images": [], "annotations": [], "categories": []} {})"),
          lost),
      HasSubstr("not JSON: there is more behind"));
  EXPECT_THAT(OpenFails(File("\x1f\x8b"), StatusCode::kInvalidArgument),
              HasSubstr("is compressed"));
}

TEST_F(CocoTest, MemoryIsPromisedBeforeItIsTaken) {
  std::string annotations = "[";
  for (int i = 0; i < 20000; ++i) {
    annotations +=
        R"({"image_id": 2, "category_id": 1, "bbox": [1, 2, 3, 4]},)";
  }
  annotations.back() = ']';
  const auto spec = Lists(annotations);
  OpenProgress progress;
  uint64_t promised = 0;
  progress.reserve = [&promised](uint64_t bytes) {
    promised += bytes;
    return OkStatus();
  };
  const auto source = OpenSource(spec, &progress);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(progress.done.load(), 20006u);
  EXPECT_LE((*source)->memory_bytes(), 20000u * 32 + 3 * (16 + 8 + 8));
  EXPECT_GE(promised, (*source)->memory_bytes() + 2 * annotations.size());
  progress.reserve = [](uint64_t) { return ResourceExhaustedError("full"); };
  EXPECT_EQ(OpenSource(spec, &progress).status().code(),
            StatusCode::kResourceExhausted);
  OpenProgress cancelled;
  cancelled.cancel = true;
  EXPECT_EQ(OpenSource(spec, &cancelled).status().code(),
            StatusCode::kCancelled);
}

}  // namespace penstock::coco_test
