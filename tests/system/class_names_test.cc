// Promise: a user is warned when two of his datasets in use give the same class
// different labels, and only then. Method: pairs of class lists; then a real
// broker with two open datasets, and what the attach says.
#include "common/class_names.h"

#include <gmock/gmock.h>

#include <fstream>

#include "client/penstock.hpp"
#include "common/message.h"
#include "tests/support/broker_process.h"
#include "tests/support/encode_jpeg.h"

namespace penstock::class_names_test {

using testing::HasSubstr;
using testing::IsEmpty;

std::string Differ(std::vector<std::string> a, std::vector<std::string> b) {
  return LabelsThatDiffer({"/train", std::move(a)}, {"/val", std::move(b)});
}

TEST(LabelsThatDifferTest, TheFirstClassOfAnotherLabelIsNamed) {
  EXPECT_EQ(
      Differ({"ant", "bee", "cat", "dog"}, {"ant", "cat", "dog"}),
      "labels of '/train' and '/val' differ: class 'cat' is label 2 in "
      "the first and label 1 in the second (the second has no 'bee'); "
      "give both the same class folders, empty ones too, or the same list "
      "of `classes`");
  EXPECT_THAT(Differ({"bee", "cat"}, {"ant", "bee", "cat"}),
              HasSubstr("class 'bee' is label 0 in the first and label 1 in "
                        "the second (the first has no 'ant')"));
  // A replaced class shifts those between the two.
  EXPECT_THAT(Differ({"ant", "cat", "dog"}, {"cat", "dog", "eel"}),
              HasSubstr("class 'cat' is label 1 in the first and label 0"));
}

TEST(LabelsThatDifferTest, NothingIsSaidWhereNothingIsWrong) {
  EXPECT_EQ(Differ({"ant", "bee"}, {"ant", "bee"}), "");
  // All labels agree: one list has more classes at its end.
  EXPECT_EQ(Differ({"ant", "bee", "cat"}, {"ant", "bee"}), "");
  // The lists share no class, or hardly any.
  EXPECT_EQ(Differ({"ant", "bee"}, {"cat", "dog"}), "");
  EXPECT_EQ(Differ({"ant", "bee", "other"}, {"other", "pen", "vase"}), "");
  EXPECT_EQ(Differ({}, {"ant"}), "");
  EXPECT_EQ(Differ({}, {}), "");
}

class ClassWarningTest : public testing::Test {
 protected:
  // A folder with a picture in each class.
  std::string Folder(const std::string& name,
                     const std::vector<std::string>& classes) {
    const std::filesystem::path root = broker_.folder() / name;
    const std::vector<std::byte> jpeg = EncodeJpeg({});
    for (const std::string& each : classes) {
      std::filesystem::create_directories(root / each);
      std::ofstream(root / each / "1.jpg", std::ios::binary)
          .write(reinterpret_cast<const char*>(jpeg.data()),
                 static_cast<std::streamsize>(jpeg.size()));
    }
    return root;
  }
  // The options of the only rank of a job of dataset `name`.
  Options Of(const std::string& name, const std::vector<std::string>& classes) {
    Options options;
    options.spec = Format(
        "dataset: {}\nsource: {{image_folder: {{path: {}}}}}\n"
        "map: [{{decode_image: {{size: [8, 8]}}}}]\nbatch: {{size: 1}}\n",
        name, Folder(name, classes));
    options.job = name;
    options.socket = broker_.socket();
    options.rank = 0;
    options.world_size = 1;
    return options;
  }
  std::string WarningInStatus(const std::string& job) {
    const StatusOr<Fd> socket = ConnectControl(broker_.socket());
    const StatusOr<Message> status = Request(socket->get(), {{"op", "status"}});
    for (const nlohmann::json& each : status->json.at("jobs")) {
      if (each.at("job") == job) return each.at("warning");
    }
    return "no such job";
  }

  BrokerProcess broker_;
};

TEST_F(ClassWarningTest, WhoAttachesIsToldWhenAnOpenDatasetHasOtherLabels) {
  Reader train(Of("train", {"ant", "bee", "cat"}));
  EXPECT_THAT(train.warning(), IsEmpty());
  Reader other(Of("other", {"pen", "vase"}));
  EXPECT_THAT(other.warning(), IsEmpty());
  {
    Reader same(Of("same", {"ant", "bee", "cat"}));
    EXPECT_THAT(same.warning(), IsEmpty());
  }
  Reader val(Of("val", {"ant", "cat"}));
  EXPECT_THAT(val.warning(), HasSubstr("class 'cat' is label 2 in the first "
                                       "and label 1 in the second"));
  EXPECT_EQ(WarningInStatus("val"), val.warning());
  EXPECT_EQ(WarningInStatus("train"), "");
}

}  // namespace penstock::class_names_test
