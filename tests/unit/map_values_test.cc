// Promise: the operations on values compute what the functions of Keras,
// TensorFlow and NumPy that they name do, and say at the compilation what they
// cannot. Method: maps as people write them, on rows made here; the numbers of
// Keras 3.15 and TensorFlow 2.21 are written out (python/test_map_values.py
// asks Keras itself).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "broker/spec/dataset_spec.h"
#include "broker/transform/feature_paths.h"
#include "broker/transform/row_program.h"
#include "tests/unit/feature_bytes.h"

namespace penstock::map_values_test {

using testing::ElementsAre;
using testing::HasSubstr;
template <typename T>
constexpr DType kDTypeOf = DType::kUint8;
template <>
constexpr DType kDTypeOf<int32_t> = DType::kInt32;
template <>
constexpr DType kDTypeOf<int64_t> = DType::kInt64;
template <>
constexpr DType kDTypeOf<int8_t> = DType::kInt8;
template <>
constexpr DType kDTypeOf<float> = DType::kFloat32;
template <>
constexpr DType kDTypeOf<double> = DType::kFloat64;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class MapValuesTest : public testing::Test {
 protected:
  // Features of a row.
  template <typename T>
  void Add(const std::string& name, const std::vector<T>& values,
           const std::vector<int64_t>& shape) {
    spec_.push_back({{name, kDTypeOf<T>, shape}, false});
    raw_.push_back(BytesOf(values));
  }
  template <typename T>
  void AddList(const std::string& name, const std::vector<T>& values) {
    Add(name, values, {static_cast<int64_t>(values.size())});
  }
  void AddText(const std::string& name, const std::string& text,
               size_t room = 80) {
    std::string padded = text;
    padded.resize(room);
    Add(name, std::vector<uint8_t>(padded.begin(), padded.end()),
        {static_cast<int64_t>(room)});
    Add(name + "_bytes",
        std::vector<int64_t>{static_cast<int64_t>(text.size())}, {});
  }
  void Clear() {
    spec_.clear();
    raw_.clear();
  }

  // map: as in a spec, in flow style: "[{clip: {min: 0}}]".
  Status Compile(const std::string& map) {
    PENSTOCK_ASSIGN_OR_RETURN(
        const DatasetSpec spec,
        ParseDatasetSpec(
            "{dataset: d, source: {range: 1}, batch: {size: 1}, map: " + map +
                "}",
            "a.yaml", folder_));
    MapOpening opening = {&progress_};
    PENSTOCK_ASSIGN_OR_RETURN(
        program_, RowProgram::Compile(StepsOf(spec.map), spec_, {}, &opening));
    files_ = opening.files;
    warning_ = opening.warning;
    scratch_ = program_->MakeScratch({});
    return OkStatus();
  }
  std::string Error(const std::string& map) {
    const Status status = Compile(map);
    return status.ok() ? "compiled" : status.message();
  }
  Status Run() {
    RawRecord record;
    for (const Bytes& bytes : raw_) record.push_back(bytes);
    std::vector<std::byte*> outputs;
    out_.clear();
    for (const Feature& feature : program_->element_spec()) {
      out_.emplace_back(feature.RowBytes() + 1, std::byte{0x5a});
    }
    for (Bytes& each : out_) outputs.push_back(each.data());
    const Status status = program_->Run(record, {}, *scratch_, outputs);
    for (Bytes& each : out_) {
      EXPECT_EQ(each.back(), std::byte{0x5a}) << "written past its end";
      each.pop_back();
    }
    return status;
  }
  // The values of the only feature, or of the one of this name.
  template <typename T>
  std::vector<T> Make(const std::string& map, const std::string& name = "") {
    const Status compiled = Compile(map);
    EXPECT_TRUE(compiled.ok()) << compiled.message();
    if (!compiled.ok()) return {};
    const Status ran = Run();
    EXPECT_TRUE(ran.ok()) << ran.message();
    return Made<T>(name);
  }
  template <typename T>
  std::vector<T> Made(const std::string& name = "") {
    const ElementSpec& made = program_->element_spec();
    for (size_t i = 0; i < made.size(); ++i) {
      if (!name.empty() && made[i].name != name) continue;
      EXPECT_EQ(made[i].dtype, kDTypeOf<T>) << made[i].ToString();
      return ValuesOf<T>(out_[i]);
    }
    ADD_FAILURE() << "no feature " << name;
    return {};
  }
  std::string Features() {
    std::string text;
    for (const Feature& each : program_->element_spec()) {
      text += (text.empty() ? "" : ", ") + each.ToString();
    }
    return text;
  }
  std::string Failure(const std::string& map) {
    const Status compiled = Compile(map);
    EXPECT_TRUE(compiled.ok()) << compiled.message();
    const Status ran = Run();
    EXPECT_EQ(ran.code(), StatusCode::kDataLoss);
    return ran.message();
  }
  void WriteFile(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
  }

  void SetUp() override {
    char folder[] = "/tmp/map_values_XXXXXX";
    folder_ = mkdtemp(folder);
  }
  void TearDown() override {
    const std::string command = "rm -r " + folder_;
    EXPECT_EQ(std::system(command.c_str()), 0);
  }

  std::string folder_;
  RawSpec spec_;
  std::vector<Bytes> raw_;
  OpenProgress progress_;
  std::unique_ptr<RowProgram> program_;
  std::vector<std::shared_ptr<const SideFile>> files_;
  std::string warning_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
  std::vector<Bytes> out_;
};

// ---- numbers

TEST_F(MapValuesTest, RescaleIsScaleTimesValuePlusOffset) {
  AddList<float>("x", {-1, 0, 0.5, 1000});
  EXPECT_THAT(Make<float>("[{rescale: {feature: x, scale: 2, offset: -1}}]"),
              ElementsAre(-3, -1, 0, 1999));
  EXPECT_THAT(Make<double>("[{rescale: {feature: x, scale: 0.1, "
                           "dtype: float64}}]"),
              ElementsAre(-0.1, 0, 0.5 * 0.1, 1000 * 0.1));
  Clear();
  AddList<uint8_t>("x", {0, 127, 255});
  EXPECT_THAT(Make<float>("[{rescale: {feature: x, scale: "
                          "0.00392156862745098}}]"),
              ElementsAre(0, static_cast<float>(127 * 0.00392156862745098), 1));
}

TEST_F(MapValuesTest, RescaleOfAPictureIsRescaleOfItsValues) {
  std::vector<uint8_t> pixels(8 * 6 * 3);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = i * 37 % 256;
  Add<uint8_t>("image", pixels, {8, 6, 3});
  const auto hwc = Make<float>("[{rescale: {scale: 0.0078125, offset: -1}}]");
  for (size_t i = 0; i < pixels.size(); ++i) {
    ASSERT_EQ(hwc[i], static_cast<float>(pixels[i] * 0.0078125 - 1));
  }
  const auto chw =
      Make<float>("[{rescale: {scale: 0.0078125, offset: -1, layout: chw}}]");
  EXPECT_EQ(Features(), "image float32 [3, 8, 6]");
  EXPECT_EQ(chw[8 * 6], hwc[1]);
  // Floats give the same by another way.
  EXPECT_EQ(Make<float>("[{cast: {dtype: float32}}, {rescale: {scale: "
                        "0.0078125, offset: -1, layout: chw}}]"),
            chw);
}

TEST_F(MapValuesTest, NormalizeTakesAMeanForEachOfTheLastDimension) {
  Add<float>("x", {3, 8, 1, 2}, {2, 2});
  EXPECT_THAT(Make<float>("[{normalize: {feature: x, mean: [1, 2], std: [2, "
                          "3]}}]"),
              ElementsAre(1, 2, 0, 0));
  EXPECT_THAT(Make<float>("[{normalize: {feature: x, mean: 1, std: [1, 2]}}]"),
              ElementsAre(2, 3.5, 0, 0.5));
  EXPECT_THAT(Error("[{normalize: {feature: x, mean: [1, 2, 3], std: 1}}]"),
              HasSubstr("map[0].normalize: mean is [1, 2, 3]; x float32 [2, 2] "
                        "wants one finite number, or one for each of its 2 "
                        "channels"));
  Clear();
  Add<int64_t>("x", {1'000'000'007}, {});
  EXPECT_THAT(
      Make<float>("[{normalize: {feature: x, mean: 1000000000, std: 7}}]"),
      ElementsAre(1));
  Clear();
  AddList<int8_t>("x", {-128, 0, 127});
  EXPECT_THAT(Make<float>("[{normalize: {feature: x, mean: [0, 1, 2], std: "
                          "1}}]"),
              ElementsAre(-128, -1, 125));
}

TEST_F(MapValuesTest, ClipKeepsWhatIsWithin) {
  AddList<float>("x", {-5, 0.25, 7, kNan, kInfinity, -kInfinity});
  const auto made = Make<float>("[{clip: {feature: x, min: -1, max: 2}}]");
  EXPECT_THAT(std::vector<float>(made.begin(), made.begin() + 3),
              ElementsAre(-1, 0.25, 2));
  EXPECT_TRUE(std::isnan(made[3]));
  EXPECT_EQ(made[4], 2);
  EXPECT_EQ(made[5], -1);
  Clear();
  const int64_t large = (int64_t{1} << 62) + 1;
  AddList<int64_t>("x", {-9, large});
  EXPECT_THAT(Make<int64_t>("[{clip: {feature: x, min: 0}}]"),
              ElementsAre(0, large));
  EXPECT_THAT(Error("[{clip: {feature: x, max: 0.5}}]"),
              HasSubstr("max: 0.5 is no value of x int64 [2]; put `cast`"));
  Clear();
  AddList<uint8_t>("x", {0, 9});
  EXPECT_THAT(Error("[{clip: {feature: x, max: 256}}]"),
              HasSubstr("max: 256 is no value of x uint8 [2]"));
  EXPECT_THAT(Make<uint8_t>("[{clip: {feature: x, max: 5}}]"),
              ElementsAre(0, 5));
}

TEST_F(MapValuesTest, BucketizeIsDiscretizationOfKeras) {
  AddList<float>(
      "x", {-1, 0, 0.7F, 0.69999F, 1, 2.5, 3, kNan, kInfinity, -kInfinity});
  EXPECT_THAT(
      Make<int64_t>("[{bucketize: {feature: x, boundaries: [0, 0.7, 1, 3]}}]"),
      ElementsAre(0, 1, 2, 1, 3, 3, 4, 4, 4, 0));
  Clear();
  AddList<uint8_t>("x", {17, 18, 255});
  EXPECT_THAT(Make<int64_t>("[{bucketize: {feature: x, boundaries: [18]}}]"),
              ElementsAre(0, 1, 1));
}

TEST_F(MapValuesTest, OneHotAndItsSmoothing) {
  Add<int64_t>("label", {2}, {});
  EXPECT_THAT(Make<float>("[{one_hot: {classes: 4}}]"),
              ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(Make<float>("[{one_hot: {feature: label, classes: 4}}, "
                          "{label_smoothing: {feature: label, smoothing: "
                          "0.1}}]"),
              ElementsAre(0.025F, 0.025F, 0.925F, 0.025F));
  EXPECT_THAT(
      Failure("[{one_hot: {feature: label, classes: 2}}]"),
      HasSubstr("feature 'label': one_hot: 2 is no class, from 0 to 1"));
  EXPECT_THAT(Make<float>("[{one_hot: {feature: label, classes: 2, "
                          "out_of_range: zeros}}]"),
              ElementsAre(0, 0));
  EXPECT_THAT(Error("[{label_smoothing: {feature: label}}]"),
              HasSubstr("wants floating-point values, found label int64 []; "
                        "put one_hot before it"));
  Clear();
  AddList<uint8_t>("label", {1, 0});
  EXPECT_THAT(Make<uint8_t>("[{one_hot: {feature: label, classes: 2, dtype: "
                            "uint8}}]"),
              ElementsAre(0, 1, 1, 0));
  EXPECT_EQ(Features(), "label uint8 [2, 2]");
  Clear();
  AddList<float>("label", {1});
  EXPECT_THAT(Error("[{one_hot: {feature: label, classes: 2}}]"),
              HasSubstr("wants integers, found label float32 [1]; put `cast"));
  Clear();
  Add<int64_t>("label", std::vector<int64_t>(1 << 20), {1 << 20});
  EXPECT_THAT(Error("[{one_hot: {feature: label, classes: 10000000}}]"),
              HasSubstr("more than 268435456 bytes"));
}

// ---- which features

TEST_F(MapValuesTest, SelectDropAndRenameTakeTextsLengthsAlong) {
  Add<int64_t>("a", {1}, {});
  AddText("b", "xy", 4);
  Add<float>("c", {2}, {});
  EXPECT_THAT(Make<float>("[{select: {features: [c, b]}}]", "c"),
              ElementsAre(2));
  EXPECT_EQ(Features(), "c float32 [], b uint8 [4], b_bytes int64 []");
  EXPECT_THAT(Made<int64_t>("b_bytes"), ElementsAre(2));
  Make<float>("[{drop: {features: b}}]", "c");
  EXPECT_EQ(Features(), "a int64 [], c float32 []");
  Make<float>("[{rename: {features: {b: t, a: c, c: a}}}]", "a");
  EXPECT_EQ(Features(),
            "c int64 [], t uint8 [4], t_bytes int64 [], a float32 []");
  EXPECT_THAT(Made<float>("a"), ElementsAre(2));
  EXPECT_THAT(Error("[{rename: {features: {a: c}}}]"),
              HasSubstr("two features are then named 'c'"));
  EXPECT_THAT(Error("[{select: {features: [d]}}]"),
              HasSubstr("no feature 'd'"));
  EXPECT_THAT(Error("[{drop: {features: [a, b, c]}}]"),
              HasSubstr("leaves a row no feature"));
  EXPECT_THAT(Error("[{select: {features: []}}]"),
              HasSubstr("map[0].select.features: names no feature"));
}

TEST_F(MapValuesTest, WhatIsDroppedIsNotDecoded) {
  spec_.push_back({{"image", DType::kUint8, {}}, true});
  raw_.push_back(BytesOf<uint8_t>({1, 2, 3}));  // no picture
  Add<int64_t>("label", {5}, {});
  EXPECT_THAT(Make<int64_t>("[{drop: {features: image}}]"), ElementsAre(5));
  EXPECT_THAT(Make<int64_t>("[{decode_image: {size: 8}}, {select: {features: "
                            "label}}]"),
              ElementsAre(5));
}

TEST_F(MapValuesTest, AMaskThatIsDroppedNeedsNotBeMoved) {
  spec_.push_back({{"image", DType::kUint8, {}}, true});
  spec_.push_back({{"mask", DType::kUint8, {}}, true});
  spec_.push_back({{"x", DType::kUint8, {}}, true});
  const std::string decode =
      "[{drop: {features: x}}, {decode_image: {size: 8, mask: mask}}, ";
  EXPECT_EQ(Error(decode + "{drop: {features: mask}}, {flip: {}}]"),
            "compiled");
  EXPECT_THAT(Error(decode + "{flip: {}}]"),
              HasSubstr("moves pixels of 'image', but not of 'mask'"));
}

TEST_F(MapValuesTest, AnEncodedFeatureHasItsOwnSizeWhereverItIs) {
  const RawSpec raw = {{{"a", DType::kInt64, {}}, false},
                       {{"file", DType::kUint8, {}}, true}};
  const std::vector<TransformSpec> map = {DropOp{.features = {"a"}}};
  const auto paths = FeaturePaths::Compile(StepsOf(map), raw);
  ASSERT_TRUE(paths.ok()) << paths.status().message();
  const Bytes a(8);
  const Bytes file(3);
  EXPECT_EQ((*paths)->OutBytes(0, {a, file}), 3u);
}

// ---- words

TEST_F(MapValuesTest, LookupNumbersAsKeras) {
  const std::vector<std::string> words = {
      "a",     "b",
      "",      "Paris",
      "zzz",   "ein langes Wort mit mehr als zweiunddreissig Bytes",
      "c",     std::string(70, 'x'),
      "Zürich"};
  const auto numbers = [&](const std::string& keys) {
    std::vector<int64_t> all;
    for (const std::string& word : words) {
      Clear();
      AddText("w", word);
      const auto made = Make<int64_t>(
          "[{lookup: {feature: w, vocabulary: [b, "
          "Paris, c]" +
          keys + "}}]");
      all.insert(all.end(), made.begin(), made.end());
    }
    return all;
  };
  EXPECT_THAT(numbers(""), ElementsAre(0, 1, 0, 2, 0, 0, 3, 0, 0));
  EXPECT_THAT(numbers(", oov_buckets: 3"),
              ElementsAre(0, 3, 2, 4, 0, 2, 5, 0, 1));
  EXPECT_THAT(numbers(", mask: '', oov_buckets: 2"),
              ElementsAre(2, 3, 0, 4, 1, 1, 5, 2, 2));
  EXPECT_THAT(numbers(", oov_buckets: 0, default: -1"),
              ElementsAre(-1, 0, -1, 1, -1, -1, 2, -1, -1));
  Clear();
  AddText("w", "d\n");
  EXPECT_THAT(
      Failure("[{lookup: {feature: w, vocabulary: [b], oov_buckets: 0}}]"),
      HasSubstr("feature 'w': lookup: 'd?' is not in the vocabulary"));
  EXPECT_THAT(Error("[{lookup: {feature: w, vocabulary: [b, a, b]}}]"),
              HasSubstr("vocabulary[2]: 'b' is there before"));
  EXPECT_THAT(Error("[{lookup: {feature: w, vocabulary: [b], mask: b}}]"),
              HasSubstr("mask: 'b' is in the vocabulary too"));
  EXPECT_THAT(Error("[{lookup: {feature: w, vocabulary: [b], default: 3}}]"),
              HasSubstr("map[0].lookup.default: what is not in the vocabulary "
                        "has a bucket"));
}

TEST_F(MapValuesTest, LookupOfIntegersAsKeras) {
  AddList<int64_t>("i", {7, -3, 100, 0, 12345678901, -1, 42});
  EXPECT_THAT(Make<int64_t>("[{lookup: {feature: i, vocabulary: [42, 7]}}]"),
              ElementsAre(2, 0, 0, 0, 0, 0, 1));
  EXPECT_THAT(Make<int64_t>("[{lookup: {feature: i, vocabulary: [42, 7], "
                            "oov_buckets: 4}}]"),
              ElementsAre(5, 1, 0, 0, 1, 3, 4));
  EXPECT_THAT(Make<int64_t>("[{lookup: {feature: i, vocabulary: [42, 7], "
                            "mask: 0, oov_buckets: 2}}]"),
              ElementsAre(4, 2, 1, 0, 2, 2, 3));
  EXPECT_THAT(Error("[{lookup: {feature: i, vocabulary: [42, seven]}}]"),
              HasSubstr("vocabulary[1]: 'seven' is no whole number"));
  Clear();
  AddList<float>("i", {1});
  EXPECT_THAT(Error("[{lookup: {feature: i, vocabulary: [1]}}]"),
              HasSubstr("wants integers, found i float32 [1]; bucketize"));
}

TEST_F(MapValuesTest, HashIsHashingOfKeras) {
  const std::vector<std::pair<std::string, int64_t>> words = {
      {"a", 939},
      {"b", 822},
      {"", 263},
      {"Paris", 650},
      {"zzz", 380},
      {"ein langes Wort mit mehr als zweiunddreissig Bytes", 26},
      {"c", 872},
      {std::string(70, 'x'), 745},
      {"Zürich", 643}};
  for (const auto& [word, bin] : words) {
    Clear();
    AddText("w", word);
    EXPECT_THAT(Make<int64_t>("[{hash: {feature: w, bins: 1000}}]"),
                ElementsAre(bin));
    // Without its length: up to the zeros.
    spec_.pop_back();
    raw_.pop_back();
    EXPECT_THAT(Make<int64_t>("[{hash: {feature: w, bins: 1000}}]"),
                ElementsAre(bin));
  }
  Clear();
  AddText("w", "Paris");
  EXPECT_THAT(Make<int64_t>("[{hash: {feature: w, bins: 10, mask: ''}}]"),
              ElementsAre(4));
  Clear();
  AddList<int64_t>("i", {7, -3, 100, 0, 12345678901, -1, 42});
  EXPECT_THAT(Make<int64_t>("[{hash: {feature: i, bins: 1000}}]"),
              ElementsAre(88, 699, 355, 735, 632, 430, 736));
}

TEST_F(MapValuesTest, TextsOfNumpyAreSeveral) {
  Add<uint8_t>("w", {'a', 'b', 0, 'c', 0, 0, 0, 0, 0}, {3, 3});
  EXPECT_THAT(
      Make<int64_t>("[{lookup: {feature: w, vocabulary: [c, ab, '']}}]"),
      ElementsAre(2, 1, 3));
  EXPECT_EQ(Features(), "w int64 [3]");
}

TEST_F(MapValuesTest, AHostileLengthOfATextIsAnError) {
  AddText("w", "abc", 4);
  for (const int64_t bytes : {int64_t{-1}, int64_t{5}, INT64_MAX, INT64_MIN}) {
    raw_.back() = BytesOf<int64_t>({bytes});
    EXPECT_THAT(Failure("[{hash: {feature: w, bins: 7}}]"),
                HasSubstr("bytes where 4 have room"));
  }
}

TEST_F(MapValuesTest, AVocabularyFileHasATokenALine) {
  WriteFile("words.txt", "b\nParis\r\nc");
  AddText("w", "c");
  const std::string lookup = "[{lookup: {feature: w, vocabulary: words.txt}}]";
  EXPECT_THAT(Make<int64_t>(lookup), ElementsAre(3));
  ASSERT_EQ(files_.size(), 1u);
  const auto first = files_[0];
  EXPECT_GT(first->memory_bytes(), 6u);
  EXPECT_FALSE(first->Changed());
  Make<int64_t>(lookup);
  EXPECT_EQ(files_[0]->digest(), first->digest());
  WriteFile("words.txt", "b\nc\n");
  EXPECT_TRUE(first->Changed());
  EXPECT_THAT(Make<int64_t>(lookup), ElementsAre(2));
  EXPECT_NE(files_[0]->digest(), first->digest());

  WriteFile("words.txt", "b\nc\nb\n");
  EXPECT_THAT(Error(lookup), HasSubstr("/words.txt:3: 'b' is there before"));
  WriteFile("words.txt", "");
  EXPECT_THAT(Error(lookup), HasSubstr("/words.txt: is empty"));
  EXPECT_THAT(Error("[{lookup: {feature: w, vocabulary: none.txt}}]"),
              HasSubstr("none.txt"));
  EXPECT_THAT(Error("[{lookup: {feature: w, vocabulary: .}}]"),
              HasSubstr("map[0].lookup: "));
  Clear();
  AddList<int64_t>("i", {7});
  WriteFile("numbers.txt", "3\n007\n");
  EXPECT_THAT(Make<int64_t>("[{lookup: {feature: i, vocabulary: "
                            "numbers.txt}}]"),
              ElementsAre(2));
  WriteFile("numbers.txt", "3\n7.5\n");
  EXPECT_THAT(Error("[{lookup: {feature: i, vocabulary: numbers.txt}}]"),
              HasSubstr("/numbers.txt:2: '7.5' is no whole number"));
}

TEST_F(MapValuesTest, AVocabularyFileOfAnEditorOrTheWrongFileIsTold) {
  const std::string lookup = "[{lookup: {feature: w, vocabulary: words.txt}}]";
  AddText("w", "Paris");
  WriteFile("words.txt", "\xef\xbb\xbfParis\nRome\n");
  EXPECT_THAT(Make<int64_t>(lookup), ElementsAre(1));
  EXPECT_EQ(warning_, "");
  WriteFile("words.txt", "Paris\nM\xfcnchen\n");
  for (int opened = 0; opened < 2; ++opened) {
    EXPECT_THAT(Make<int64_t>(lookup), ElementsAre(1));
    EXPECT_THAT(warning_, HasSubstr("/words.txt:2: is not UTF-8"));
  }
  WriteFile("words.txt", "{\"penstock_statistics\":1,\n\"x\":2}\n");
  EXPECT_THAT(Error(lookup), HasSubstr("write `vocabulary: {from: ...}`"));
}

TEST_F(MapValuesTest, ALargeVocabularyFindsAllOfItsTokens) {
  std::string text;
  constexpr int kTokens = 300'000;
  for (int i = 0; i < kTokens; ++i) text += Format("token{}\n", i * 7);
  WriteFile("many.txt", text);
  AddText("w", "token2099993");
  EXPECT_THAT(Make<int64_t>("[{lookup: {feature: w, vocabulary: many.txt}}]"),
              ElementsAre(kTokens));
  progress_.reserve = [](uint64_t bytes) {
    return bytes > 1'000'000 ? ResourceExhaustedError("no memory") : OkStatus();
  };
  WriteFile("many.txt", text + "one more\n");
  EXPECT_THAT(Error("[{lookup: {feature: w, vocabulary: many.txt}}]"),
              HasSubstr("no memory"));
}

// ---- texts to tokens

TEST_F(MapValuesTest, EncodeBytesIsByT5s) {
  AddText("text", "h\xc3\xa9\xff", 5);  // any bytes
  const std::string byt5 = "offset: 3, end: 1";
  EXPECT_THAT(Make<int32_t>("[{encode_bytes: {" + byt5 + "}}]", "text"),
              ElementsAre(107, 198, 172, 258, 1, 0));
  EXPECT_EQ(Features(), "text int32 [6], text.length int64 []");
  EXPECT_THAT(Made<int64_t>("text.length"), ElementsAre(5));
  EXPECT_THAT(Make<int64_t>("[{encode_bytes: {begin: 256, dtype: int64, "
                            "max_length: 3, longer: cut}}]",
                            "text"),
              ElementsAre(256, 104, 195));
  EXPECT_THAT(Made<int64_t>("text.length"), ElementsAre(3));
  EXPECT_THAT(Failure("[{encode_bytes: {" + byt5 + ", max_length: 4}}]"),
              HasSubstr("feature 'text': a text of 5 tokens, and max_length "
                        "is 4: give more, or `longer: cut`"));
  EXPECT_THAT(Error("[{encode_bytes: {begin: 1, end: 2, max_length: 2}}]"),
              HasSubstr("max_length: 2 has no room beside begin and end"));
  // A list is no text any more.
  EXPECT_THAT(Error("[{encode_bytes: {}}, {encode_bytes: {}}]"),
              HasSubstr("wants text, uint8 [bytes], found text int32 [5]"));
}

TEST_F(MapValuesTest, VectorizeTextGivesKerasNumbers) {
  AddText("text", "The cat,\tsat on\xc2\xa0the CAT!");
  const std::string words = "vocabulary: [the, cat, sat]";
  EXPECT_THAT(Make<int64_t>(
                  "[{vectorize_text: {" + words + ", max_length: 6}}]", "text"),
              ElementsAre(2, 3, 4, 1, 3, 0));
  EXPECT_EQ(Features(), "text int64 [6], text.length int64 []");
  EXPECT_THAT(Made<int64_t>("text.length"), ElementsAre(5));
  // As get_vocabulary() gives it, the numbers are the same.
  EXPECT_THAT(Make<int64_t>("[{vectorize_text: {vocabulary: ['', '[UNK]', the, "
                            "cat, sat], max_length: 2, longer: cut}}]",
                            "text"),
              ElementsAre(2, 3));
  EXPECT_THAT(Make<float>("[{vectorize_text: {" + words + ", output: count}}]"),
              ElementsAre(1, 1, 2, 1));
  EXPECT_EQ(Features(), "text float32 [4]");
  EXPECT_THAT(Make<float>("[{vectorize_text: {vocabulary: ['[UNK]', cat, dog], "
                          "output: multi_hot}}]"),
              ElementsAre(1, 1, 0));
  EXPECT_THAT(
      Make<int64_t>("[{vectorize_text: {vocabulary: [The cat, cat sat], "
                    "standardize: strip_punctuation, "
                    "ngrams: 2, max_length: 9}}]",
                    "text"),
      ElementsAre(1, 1, 1, 1, 1, 2, 3, 1, 1));
  EXPECT_THAT(Make<int64_t>("[{vectorize_text: {vocabulary: [t h, ' '], split: "
                            "character, ngrams: [2], max_length: 3, longer: "
                            "cut}}]",
                            "text"),
              ElementsAre(2, 1, 1));
  EXPECT_THAT(Failure("[{vectorize_text: {" + words + ", max_length: 4}}]"),
              HasSubstr("a text of 5 words, and max_length is 4"));
  EXPECT_THAT(Error("[{vectorize_text: {vocabulary: [a, '[UNK]'], "
                    "max_length: 4}}]"),
              HasSubstr("has '[UNK]', which has number 1: take it out"));
  Clear();
  AddText("text", "ok \xff");
  EXPECT_THAT(Failure("[{vectorize_text: {" + words +
                      ", split: character, max_length: 9}}]"),
              HasSubstr("not UTF-8 at byte 3"));
  EXPECT_THAT(Make<int64_t>(
                  "[{vectorize_text: {" + words + ", max_length: 3}}]", "text"),
              ElementsAre(1, 1, 0));
  Clear();
  AddText("text", "");
  EXPECT_THAT(Make<int64_t>("[{vectorize_text: {" + words +
                                ", split: none, max_length: 2}}]",
                            "text"),
              ElementsAre(0, 0));
}

TEST_F(MapValuesTest, WeightsOfWordsAreReadOnce) {
  AddText("text", "a b a z");
  WriteFile("idf.txt", "0.5\n1e1\r\n");
  const std::string of = "vocabulary: [a, b], output: tf_idf";
  EXPECT_THAT(Make<float>("[{vectorize_text: {" + of + ", idf: idf.txt}}]"),
              ElementsAre(5.25, 1, 10));
  EXPECT_EQ(files_.size(), 1u);
  // The unknown has a weight of its own.
  WriteFile("idf.txt", "7\n0.5\n1e1");
  EXPECT_THAT(Make<float>("[{vectorize_text: {vocabulary: ['[UNK]', a, b], "
                          "output: tf_idf, idf: idf.txt}}]"),
              ElementsAre(7, 1, 10));
  EXPECT_THAT(Error("[{vectorize_text: {" + of + ", idf: idf.txt}}]"),
              HasSubstr("idf.txt: has 3 weights, and the vocabulary 2 tokens"));
  for (const char* wrong : {"1\nx\n", "1\n\n", "1\nnan\n", "1\n1e999\n"}) {
    WriteFile("idf.txt", wrong);
    EXPECT_THAT(Error("[{vectorize_text: {" + of + ", idf: idf.txt}}]"),
                HasSubstr("idf.txt:2: "));
  }
}

// ---- texts and sequences

TEST_F(MapValuesTest, ParseJsonPutsFieldsInPlaceOfTheText) {
  Add<int64_t>("id", {9}, {});
  AddText("text",
          R"({"label": 3, "meta": {"caption": "Hündchen"}, "x": [1, 2]})");
  const std::string map =
      "[{parse_json: {fields: {label: {dtype: int64}, caption: {max_bytes: 12, "
      "pointer: /meta/caption}, x: {dtype: float32, shape: [2]}, y: {dtype: "
      "int8, default: -1}}}}, {rescale: {feature: x, scale: 10}}]";
  EXPECT_THAT(Make<int64_t>(map, "label"), ElementsAre(3));
  EXPECT_EQ(Features(),
            "id int64 [], label int64 [], caption uint8 [12], caption_bytes "
            "int64 [], x float32 [2], y int8 []");
  EXPECT_THAT(Made<int64_t>("caption_bytes"), ElementsAre(9));
  EXPECT_THAT(Made<float>("x"), ElementsAre(10, 20));
  EXPECT_THAT(Made<int8_t>("y"), ElementsAre(-1));
  Clear();
  AddText("text", R"({"label": "three"})");
  EXPECT_THAT(Failure("[{parse_json: {fields: {label: {dtype: int64}}}}]"),
              HasSubstr("feature 'text': parse_json: field 'label': wanted a "
                        "number, found text"));
  Clear();
  AddText("text", R"({"label": )");
  EXPECT_THAT(Failure("[{parse_json: {fields: {label: {dtype: int64}}}}]"),
              HasSubstr("not JSON"));
  Clear();
  AddText("text", "\xff");
  EXPECT_THAT(Failure("[{parse_json: {fields: {label: {dtype: int64}}}}]"),
              HasSubstr("not UTF-8 at byte 0"));
  Clear();
  Add<int64_t>("text", {1}, {});
  EXPECT_THAT(Error("[{parse_json: {fields: {label: {dtype: int64}}}}]"),
              HasSubstr("wants text, uint8 [bytes], found text int64 []"));
}

TEST_F(MapValuesTest, PadSequencePadsAndCutsAtBothSides) {
  AddList<int32_t>("t", {1, 2, 3});
  EXPECT_THAT(Make<int32_t>("[{pad_sequence: {feature: t, length: 5, value: "
                            "-1}}]"),
              ElementsAre(1, 2, 3, -1, -1));
  EXPECT_THAT(Make<int32_t>("[{pad_sequence: {feature: t, length: 4, pad: "
                            "start, cut: start}}]"),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Make<int32_t>("[{pad_sequence: {feature: t, length: 2}}]"),
              ElementsAre(1, 2));
  EXPECT_THAT(Make<int32_t>("[{pad_sequence: {feature: t, length: 2, cut: "
                            "start}}]"),
              ElementsAre(2, 3));
  EXPECT_THAT(Error("[{pad_sequence: {feature: t, length: 4, value: 0.5}}]"),
              HasSubstr("value: 0.5 is no value of t int32 [3]"));
  Clear();
  Add<float>("t", {1, 2, 3, 4}, {2, 2});
  EXPECT_THAT(Make<float>("[{pad_sequence: {feature: t, length: 3}}]"),
              ElementsAre(1, 2, 3, 4, 0, 0));
  EXPECT_EQ(Features(), "t float32 [3, 2]");
  Clear();
  AddText("t", "abc", 6);
  EXPECT_THAT(Make<uint8_t>("[{pad_sequence: {feature: t, length: 4, pad: "
                            "start, value: 32}}]",
                            "t"),
              ElementsAre(' ', 'a', 'b', 'c'));
  EXPECT_THAT(Made<int64_t>("t_bytes"), ElementsAre(3));
  Make<uint8_t>("[{pad_sequence: {feature: t, length: 2}}]", "t");
  EXPECT_THAT(Made<int64_t>("t_bytes"), ElementsAre(2));
}

TEST_F(MapValuesTest, WhatIsBehindTheEndOfAListIsNoPartOfIt) {
  Add<int32_t>("t", {5, 7, 0, 0}, {4});
  Add<int64_t>("t.length", {2}, {});
  const std::string lookup =
      "[{lookup: {feature: t, vocabulary: [5, 7], "
      "oov_buckets: 0}}";
  EXPECT_THAT(Make<int64_t>(lookup + "]", "t"), ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(Made<int64_t>("t.length"), ElementsAre(2));
  const std::string pad = "{pad_sequence: {feature: t, length: 3, value: 9}}";
  EXPECT_THAT(Make<int64_t>(lookup + ", " + pad + "]", "t"),
              ElementsAre(0, 1, 9));
  EXPECT_THAT(Made<int64_t>("t.length"), ElementsAre(2));
  Make<int32_t>("[{rename: {features: {t: x}}}, {select: {features: [x]}}]",
                "x");
  EXPECT_EQ(Features(), "x int32 [4], x.length int64 []");
  for (const std::string& map :
       {std::string("[{reshape: {feature: t, shape: [2, 2]}}]"),
        std::string("[{reshape: {feature: t, shape: [1, 4]}}]")}) {
    EXPECT_THAT(Error(map), HasSubstr("changes the first dimension of 't', a "
                                      "list of t.length items"));
  }
  Make<int32_t>("[{reshape: {feature: t, shape: [4, 1]}}]", "t");
  EXPECT_EQ(Features(), "t int32 [4, 1], t.length int64 []");
  EXPECT_THAT(Error("[{concatenate: {features: [t, t], to: x}}]"),
              HasSubstr("'t' is a list of t.length items: `drop` that"));
  Clear();
  Add<float>("b", {1, 2, 3, 4, 5, 6}, {3, 2});
  Add<int64_t>("b.length", {1}, {});
  EXPECT_THAT(
      Make<float>("[{pad_sequence: {feature: b, length: 2, value: -1}}]", "b"),
      ElementsAre(1, 2, -1, -1));
  EXPECT_THAT(Error("[{pad_sequence: {feature: b, length: 2, pad: start}}]"),
              HasSubstr("'b' is a list of b.length items, which begins with"));
  EXPECT_THAT(Error("[{flip: {feature: b}}]"),
              HasSubstr("'b' is a list of b.length items, no picture"));
  EXPECT_THAT(Error("[{mixup: {feature: b, alpha: 1, label: []}}]"),
              HasSubstr("different lengths cannot be mixed"));
  Clear();
  Add<float>("petal", {1, 2}, {2});
  Add<int64_t>("petal_length", {3}, {});
  Make<float>("[{reshape: {feature: petal, shape: [1, 2]}}]", "petal");
  EXPECT_EQ(Features(), "petal float32 [1, 2], petal_length int64 []");
  Clear();
  Add<uint8_t>("u", {7, 3, 0}, {3});
  Add<int64_t>("u.length", {2}, {});
  EXPECT_THAT(Make<int64_t>("[{lookup: {feature: u, vocabulary: [7, 3], "
                            "oov_buckets: 0}}]",
                            "u"),
              ElementsAre(0, 1, 0));
  Clear();
  Add<int32_t>("t", {5}, {1});
  Add<int64_t>("t.length", {-1}, {});
  ASSERT_TRUE(Compile(lookup + "]").ok());
  EXPECT_THAT(Run().message(), HasSubstr("has the length -1, and room"));
}

TEST_F(MapValuesTest, ConcatenateAndReshape) {
  Add<float>("a", {1}, {});
  Add<float>("b", {2, 3}, {2});
  Add<int64_t>("c", {4}, {});
  const std::string map =
      "[{cast: {feature: c, dtype: float32}}, {concatenate: {features: [c, a, "
      "b], to: x}}";
  EXPECT_THAT(Make<float>(map + "]"), ElementsAre(4, 1, 2, 3));
  EXPECT_EQ(Features(), "x float32 [4]");
  Make<float>(map + ", {reshape: {feature: x, shape: [2, -1, 1]}}]");
  EXPECT_EQ(Features(), "x float32 [2, 2, 1]");
  EXPECT_THAT(Error(map + ", {reshape: {feature: x, shape: [3, -1]}}]"),
              HasSubstr("x float32 [4] has 4 values, which [3, -1] does not"));
  EXPECT_THAT(Error(map + ", {reshape: {feature: x, shape: [2]}}]"),
              HasSubstr("does not hold"));
  EXPECT_THAT(Error("[{concatenate: {features: [a, c], to: x}}]"),
              HasSubstr("wants features of one dtype"));
  Clear();
  Add<int32_t>("a", {1, 2, 3, 4}, {2, 2});
  Add<int32_t>("b", {8, 9}, {2, 1});
  EXPECT_THAT(Make<int32_t>("[{concatenate: {features: [a, b], to: a}}]"),
              ElementsAre(1, 2, 8, 3, 4, 9));
}

// ---- sounds

TEST_F(MapValuesTest, ASoundHasOneRate) {
  spec_ = {{{"audio", DType::kUint8, {}}, true}};
  const std::string decode =
      "[{decode_audio: {rate: 16000, seconds: 1, mono: true}}, "
      "{gain: {decibels: 3}}, ";
  EXPECT_EQ(Error(decode + "{mel_spectrogram: {rate: 16000}}]"), "compiled");
  static constexpr char kWanted[] =
      "map[2].{}: its rate is 22050, and decode_audio makes 'audio' of rate "
      "16000: give both one rate";
  EXPECT_EQ(Error(decode + "{mel_spectrogram: {rate: 22050}}]"),
            Format(kWanted, "mel_spectrogram"));
  EXPECT_EQ(
      Error(decode + "{noise: {files: n.wav, rate: 22050, snr: [0, 9]}}]"),
      Format(kWanted, "noise"));
}

// ---- boxes

class BoxesTest : public MapValuesTest {
 protected:
  // Two boxes of a picture of 6 x 10 pixels, and room for a third.
  BoxesTest() { SetLengths(2, 2); }
  void SetLengths(int64_t boxes, int64_t labels) {
    Clear();
    Add("image", std::vector<uint8_t>(60), {6, 10});
    Add("boxes", std::vector<float>{1, 2, 4, 5, 0, 0, 10, 6, 0, 0, 0, 0},
        {3, 4});
    Add("boxes.length", std::vector<int64_t>{boxes}, {});
    AddList("labels", std::vector<int64_t>{7, 8, 0});
    Add("labels.length", std::vector<int64_t>{labels}, {});
  }
  std::vector<float> Boxes(const std::string& map) {
    return Make<float>(map, "boxes");
  }
};

TEST_F(BoxesTest, FollowTheirPictureUpToTheirEnd) {
  EXPECT_THAT(Boxes("[{flip: {horizontal: 1, vertical: 1, boxes: boxes}}]"),
              ElementsAre(6, 1, 9, 4, 0, 0, 10, 6, 0, 0, 0, 0));
  EXPECT_THAT(Boxes("[{pad: {by: [1, 2, 3, 4], boxes: boxes}}]"),
              ElementsAre(2, 4, 5, 7, 1, 2, 11, 8, 0, 0, 0, 0));
  EXPECT_THAT(Boxes("[{crop: {at: {top: 2, left: 3, height: 4, width: 5}, "
                    "size: [8, 20], boxes: boxes}}]"),
              ElementsAre(0, 0, 4, 6, 0, 0, 20, 8, 0, 0, 0, 0));
  EXPECT_THAT(Boxes("[{resize: {size: [12, 5], boxes: boxes}}]"),
              ElementsAre(0.5, 4, 2, 10, 0, 0, 5, 12, 0, 0, 0, 0));
  // A quarter to the left, around the picture's middle.
  EXPECT_THAT(
      Boxes("[{rotate: {degrees: [90, 90], boxes: boxes}}]"),
      ElementsAre(testing::FloatNear(4, 1e-4), testing::FloatNear(4, 1e-4),
                  testing::FloatNear(7, 1e-4), 6, 2, 0, 8, 6, 0, 0, 0, 0));
  const auto near = [](float value) { return testing::FloatNear(value, 1e-5); };
  EXPECT_THAT(
      Boxes("[{perspective: {corners: [0, 0, 4, 0, 4, 5, 0, 5], "
            "probability: 1, boxes: boxes}}]"),
      ElementsAre(near(4 / 9.), near(2), near(16 / 9.), near(5), near(0),
                  near(0), near(40 / 9.), near(6), 0, 0, 0, 0));
  EXPECT_EQ(Made<int64_t>("boxes.length")[0], 2);
  EXPECT_EQ(Features(),
            "image uint8 [6, 10], boxes float32 [3, 4], boxes.length int64 [], "
            "labels int64 [3], labels.length int64 []");
}

TEST_F(BoxesTest, OfAStepThatDoesNotHappenStay) {
  EXPECT_THAT(Boxes("[{affine: {degrees: 45, probability: 0, boxes: boxes}}, "
                    "{flip: {horizontal: 0, boxes: boxes}}]"),
              ElementsAre(1, 2, 4, 5, 0, 0, 10, 6, 0, 0, 0, 0));
}

TEST_F(BoxesTest, AreRemovedWithTheirLabels) {
  const std::string map =
      "[{crop: {at: {top: 0, left: 4, height: 6, width: 6}, size: 6, boxes: "
      "boxes}}, {sanitize_boxes: {labels: labels}}]";
  EXPECT_THAT(Boxes(map), ElementsAre(0, 0, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Made<int64_t>("labels"), ElementsAre(8, 0, 0));
  EXPECT_THAT(Made<int64_t>("boxes.length"), ElementsAre(1));
  EXPECT_THAT(Made<int64_t>("labels.length"), ElementsAre(1));
  // Boxes of a picture once cropped stay so through other steps.
  EXPECT_THAT(Error("[{flip: {boxes: boxes}}, {sanitize_boxes: {labels: []}}, "
                    "{flip: {}}]"),
              HasSubstr("map[2].flip: moves pixels of 'image', but not its "
                        "boxes 'boxes'"));
}

TEST_F(BoxesTest, ThatAreNoCornersAreNotMoved) {
  const std::string convert = "{convert_boxes: {from: xyxy, to: cxcywh}}";
  const std::string flip = "{flip: {horizontal: 1, boxes: boxes}}";
  static constexpr char kWanted[] =
      "map[1].{}: wants xyxy boxes, but 'boxes' are cxcywh by now: put "
      "convert_boxes after it";
  EXPECT_EQ(Error("[" + convert + ", " + flip + "]"), Format(kWanted, "flip"));
  EXPECT_EQ(Error("[" + convert + ", {sanitize_boxes: {labels: []}}]"),
            Format(kWanted, "sanitize_boxes"));
  EXPECT_THAT(Boxes("[" + flip + ", " + convert + "]"),
              ElementsAre(7.5, 3.5, 3, 3, 5, 3, 10, 6, 0, 0, 0, 0));
  EXPECT_EQ(Error("[" + flip + ", {convert_boxes: {from: xywh, to: xyxy}}]"),
            "map[1].convert_boxes: wants xywh boxes, but 'boxes' are xyxy by "
            "now: name that in `from`");
  spec_[1].boxes = BoxFormat::kXywh;
  EXPECT_THAT(Error("[" + flip + "]"), HasSubstr("'boxes' are xywh by now"));
}

TEST_F(BoxesTest, ThatTheSourceKnowsAreNotLeftBehind) {
  static constexpr char kWanted[] =
      "map[1].resize: moves pixels of '{}', but not its boxes 'b': name them "
      "in `boxes`, or `drop` them before";
  spec_[1].boxes = BoxFormat::kXyxy;
  spec_[1].picture = spec_[3].picture = "image";
  const std::string rename = "[{rename: {features: {boxes: b}}}, ";
  const std::string resize = "{resize: {size: 4}}]";
  EXPECT_EQ(Error(rename + resize), Format(kWanted, "image"));
  EXPECT_EQ(Error(rename + "{drop: {features: b}}, " + resize), "compiled");
  // A copy of the picture alone has no boxes; what is copied with it is its.
  const std::string copy = "[{copy: {features: {image: view, labels: l";
  const std::string view = "{resize: {size: 4, feature: view}}]";
  EXPECT_EQ(Error(copy + "}}}, " + view), "compiled");
  EXPECT_EQ(Error(copy + ", boxes: b}}}, " + view), Format(kWanted, "view"));
  // A list with an item for each of them loses the same ones.
  const std::string sanitize = "{sanitize_boxes: {labels: [], min_size: 4}}]";
  EXPECT_THAT(Make<int64_t>("[" + sanitize, "labels"), ElementsAre(8, 0, 0));
  EXPECT_THAT(Made<int64_t>("labels.length"), ElementsAre(1));
  EXPECT_THAT(Make<int64_t>(copy + ", boxes: b}}}, " + sanitize, "l"),
              ElementsAre(7, 8, 0));
  EXPECT_THAT(Made<int64_t>("labels"), ElementsAre(8, 0, 0));
}

TEST_F(BoxesTest, ALengthThatLiesIsAnErrorOfTheSample) {
  const std::string flip = "[{flip: {boxes: boxes}}]";
  const std::string sanitize = "[{sanitize_boxes: {labels: labels}}]";
  for (const int64_t length : {int64_t{-1}, int64_t{4}, int64_t{1} << 31}) {
    SetLengths(length, 2);
    const std::string wanted = Format(
        "feature 'boxes': 'boxes' has the length {}, and room for 3", length);
    EXPECT_EQ(Failure(flip), wanted);
    EXPECT_EQ(Failure(sanitize), wanted);
  }
  SetLengths(2, 1);
  EXPECT_EQ(Failure(sanitize),
            "feature 'boxes': 1 of 'labels' for 2 of 'boxes'");
}

}  // namespace penstock::map_values_test
