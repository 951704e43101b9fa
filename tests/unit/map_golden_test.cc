// Promise: steps on pictures have Pillow's values; a row depends only on its
// bytes and its key; what does not fit is an error of the spec that names the
// step and the way out. Method: map_golden.txt, which has a map and the digest
// of Pillow's result below it (map_against_pillow.py --write-golden); steps of
// every kind on wrong features.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "broker/spec/dataset_spec.h"
#include "broker/transform/row_program.h"

namespace penstock::map_golden_test {

using Json = nlohmann::ordered_json;
using Bytes = std::vector<std::byte>;
using Shape = std::vector<int64_t>;
using testing::HasSubstr;

std::vector<TransformSpec> MapOf(const Json& map) {
  const Json spec = {{"dataset", "d"},
                     {"source", {{"range", 1}}},
                     {"map", map},
                     {"batch", {{"size", 1}}}};
  const StatusOr<DatasetSpec> parsed = ParseDatasetSpec(spec.dump(), "", "/");
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? parsed->map : std::vector<TransformSpec>();
}

RawFeature Plain(const Shape& shape, DType dtype = DType::kUint8,
                 const std::string& name = "image") {
  return {{name, dtype, shape}, false};
}

// As map_against_pillow.py makes it.
Bytes Patterned(const Shape& shape) {
  const int64_t channels = shape.size() == 3 ? shape[2] : 1;
  Bytes bytes;
  for (int64_t y = 0; y < shape[0]; ++y) {
    for (int64_t x = 0; x < shape[1]; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        bytes.push_back(static_cast<std::byte>(
            3 * x + 5 * y + 85 * c + x * y / 16 + (x / 8 + y / 8) % 2 * 40));
      }
    }
  }
  return bytes;
}

std::string DigestOf(const Bytes& bytes) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const std::byte value : bytes) {
    digest = (digest ^ std::to_integer<uint64_t>(value)) * 0x100000001b3;
  }
  return Format("{:016x}", digest);
}

class MapGoldenTest : public testing::Test {
 protected:
  void Compile(const Json& map, const RawSpec& raw) {
    StatusOr<std::unique_ptr<RowProgram>> program =
        RowProgram::Compile(MapOf(map), raw);
    ASSERT_TRUE(program.ok()) << map << ": " << program.status().message();
    program_ = *std::move(program);
    scratch_ = program_->MakeScratch({});
  }

  std::vector<Bytes> Run(const std::vector<Bytes>& features,
                         const AugmentationKey& key = {}) {
    const RawRecord record(features.begin(), features.end());
    std::vector<Bytes> rows;
    std::vector<std::byte*> places;
    for (const Feature& feature : program_->element_spec()) {
      places.push_back(
          rows.emplace_back(feature.RowBytes(), std::byte{0x5a}).data());
    }
    const Status status = program_->Run(record, key, *scratch_, places);
    EXPECT_TRUE(status.ok()) << status.message();
    return rows;
  }

  static std::string CompileError(const char* map, const RawSpec& raw) {
    const auto program = RowProgram::Compile(MapOf(Json::parse(map)), raw);
    if (program.ok()) return "compiled";
    EXPECT_EQ(program.status().code(), StatusCode::kInvalidArgument);
    return program.status().message();
  }

  std::unique_ptr<RowProgram> program_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
};

TEST_F(MapGoldenTest, ValuesArePillows) {
  std::ifstream file(PENSTOCK_SOURCE_DIR "/tests/unit/map_golden.txt");
  int cases = 0;
  for (std::string text, result; std::getline(file, text); ++cases) {
    ASSERT_TRUE(std::getline(file, result));
    const Json request = Json::parse(text);
    const Json wanted = Json::parse(result);
    const Shape shape = request["shape"];
    Compile(request["map"], {Plain(shape)});
    const std::vector<Bytes> rows = Run({Patterned(shape)});
    EXPECT_EQ(Json(program_->element_spec()[0].shape), wanted["shape"]) << text;
    EXPECT_EQ(DigestOf(rows[0]), wanted["fnv"].get<std::string>()) << text;
  }
  EXPECT_GT(cases, 200);
}

// Every random step, in one map.
const char kEverything[] = R"([
  {"affine": {"degrees": 30, "translate": [0.2, 0.2], "shear": 10}},
  {"color_jitter": {"brightness": 0.5, "contrast": 0.5, "saturation": 0.5,
                    "hue": 0.2}},
  {"rotate": {"degrees": 40, "interpolation": "bilinear", "probability": 0.5}},
  {"blur": {"kernel": 5, "probability": 0.5}},
  {"perspective": {}}, {"sharpness": {"factor": 3}}, {"equalize": {}},
  {"solarize": {}}, {"posterize": {"bits": 3}}, {"autocontrast": {}},
  {"invert": {}}, {"grayscale": {}}, {"rand_augment": {}},
  {"trivial_augment": {"interpolation": "bicubic"}}, {"aug_mix": {}},
  {"timm_rand_augment": {"magnitude_std": 0.5, "increasing": true}},
  {"flip": {"vertical": 0.5}},
  {"crop": {"random_pixels": {"padding": 9, "mode": "symmetric"}, "size": 40}},
  {"pad": {"by": 1}},
  {"normalize": {"mean": 0.5, "std": 0.5, "layout": "chw"}},
  {"random_erasing": {"value": "random", "probability": 0.9}}])";

TEST_F(MapGoldenTest, ARowIsAPureFunctionOfItsBytesAndItsKey) {
  const Shape shape = {50, 61, 3};
  Compile(Json::parse(kEverything), {Plain(shape)});
  EXPECT_EQ(program_->element_spec()[0].shape, (Shape{3, 42, 42}));
  const Bytes picture = Patterned(shape);
  std::vector<Bytes> first;
  for (uint64_t sample = 0; sample < 40; ++sample) {
    first.push_back(Run({picture}, {.seed = 5, .sample = sample})[0]);
    if (sample > 0) {
      EXPECT_NE(first[sample], first[sample - 1]);
    }
  }
  // In reverse order, with another scratch, other rows and programs in between.
  scratch_ = program_->MakeScratch({});
  Bytes other = picture;
  std::reverse(other.begin(), other.end());
  for (uint64_t sample = 40; sample-- > 0;) {
    Run({other}, {.seed = 6, .epoch = 1, .sample = sample});
    EXPECT_EQ(Run({picture}, {.seed = 5, .sample = sample})[0], first[sample]);
  }
}

TEST_F(MapGoldenTest, StepsThatHappenAreTheirProbability) {
  const Shape shape = {8, 8, 3};
  const Bytes picture = Patterned(shape);
  for (const char* map :
       {R"([{"invert": {"probability": 0.3}}])",
        R"([{"rotate": {"degrees": [90, 90], "probability": 0.3}}])",
        R"([{"random_erasing": {"probability": 0.3, "value": 9}}])"}) {
    Compile(Json::parse(map), {Plain(shape)});
    int changed = 0;
    for (uint64_t sample = 0; sample < 2000; ++sample) {
      changed += Run({picture}, {.sample = sample})[0] == picture ? 0 : 1;
    }
    EXPECT_NEAR(changed, 600, 75) << map;
  }
}

TEST_F(MapGoldenTest, MasksMoveWithTheirPictureAndKeepTheirValues) {
  const Shape shape = {50, 60, 3};
  const RawSpec raw = {Plain(shape), Plain({50, 60}, DType::kInt32, "mask")};
  // The mask is the red of the picture, which nearest steps move alike.
  const char* const map = R"([
    {"flip": {"vertical": 0.5, "mask": "mask"}},
    {"rotate": {"degrees": 60, "fill": 77, "mask": "mask", "mask_fill": 77}},
    {"perspective": {"interpolation": "nearest", "fill": 7, "probability": 0.7,
                     "mask": "mask", "mask_fill": 7}},
    {"crop": {"random_pixels": {"padding": 9, "fill": 3, "mask_fill": 3},
              "size": [70, 40], "mask": "mask"}},
    {"pad": {"by": [1, 2, 3, 4], "mode": "reflect", "mask": "mask"}}])";
  Compile(Json::parse(map), raw);
  const Bytes picture = Patterned(shape);
  std::vector<int32_t> red;
  for (size_t i = 0; i < picture.size(); i += 3) {
    red.push_back(std::to_integer<int32_t>(picture[i]));
  }
  const auto red_bytes = std::as_bytes(std::span(red));
  const Bytes mask(red_bytes.begin(), red_bytes.end());
  for (uint64_t sample = 0; sample < 30; ++sample) {
    const std::vector<Bytes> rows = Run({picture, mask}, {.sample = sample});
    for (size_t i = 0; i < rows[0].size() / 3; ++i) {
      int32_t value;
      std::memcpy(&value, rows[1].data() + i * sizeof(value), sizeof(value));
      ASSERT_EQ(value, std::to_integer<int32_t>(rows[0][3 * i]))
          << "sample " << sample << ", pixel " << i;
    }
  }
  // Policies change colours too, but not those of masks.
  const std::vector<int32_t> ones(red.size(), 1000);
  const auto ones_bytes = std::as_bytes(std::span(ones));
  for (const char* policy : {"rand_augment", "timm_rand_augment"}) {
    Compile(Json::parse(Format(
                R"([{{"{}": {{"operations": 3, "mask": "mask"}}}}])", policy)),
            raw);
    for (uint64_t sample = 0; sample < 30; ++sample) {
      const std::vector<Bytes> rows =
          Run({picture, {ones_bytes.begin(), ones_bytes.end()}},
              {.sample = sample});
      for (size_t i = 0; i < rows[1].size(); i += sizeof(int32_t)) {
        int32_t value;
        std::memcpy(&value, rows[1].data() + i, sizeof(value));
        ASSERT_TRUE(value == 1000 || value == 0) << value;
      }
    }
  }
}

TEST_F(MapGoldenTest, AReshapedPictureIsMovedInItsNewShape) {
  Compile(Json::parse(R"([{"rotate": {"degrees": [90, 90]}}])"),
          {Plain({60, 50, 3})});
  const Bytes picture = Patterned({50, 60, 3});
  const Bytes wanted = Run({picture})[0];
  Compile(Json::parse(R"([{"invert": {"probability": 0}},
                          {"reshape": {"shape": [60, 50, 3]}},
                          {"rotate": {"degrees": [90, 90]}}])"),
          {Plain({50, 60, 3})});
  EXPECT_EQ(Run({picture})[0], wanted);
}

TEST_F(MapGoldenTest, WhatDoesNotFitNamesTheStepAndTheWayOut) {
  const RawSpec image = {Plain({20, 30, 3})};
  const std::vector<std::pair<const char*, const char*>> steps = {
      {"color_jitter", "{}"},
      {"grayscale", "{}"},
      {"equalize", "{}"},
      {"autocontrast", "{}"},
      {"invert", "{}"},
      {"solarize", "{}"},
      {"trivial_augment", "{}"},
      {"rand_augment", "{}"},
      {"aug_mix", "{}"},
      {"timm_rand_augment", "{}"},
      {"perspective", "{}"},
      {"affine", "{}"},
      {"rotate", R"({"degrees": 3})"},
      {"posterize", R"({"bits": 3})"},
      {"sharpness", R"({"factor": 2})"},
      {"blur", R"({"kernel": 3})"},
      {"pad", R"({"by": 3})"}};
  for (const auto& [name, keys] : steps) {
    const std::string map = Format(R"([{{"{}": {}}}])", name, keys);
    EXPECT_EQ(CompileError(map.c_str(), image), "compiled") << name;
    EXPECT_THAT(
        CompileError(map.c_str(), {Plain({20, 30, 3}, DType::kFloat32)}),
        HasSubstr(Format("map[0].{}: wants uint8 values, found", name)));
    EXPECT_THAT(CompileError(map.c_str(), {Plain({20})}),
                HasSubstr("wants an image [h, w] or [h, w, c], found"));
    EXPECT_THAT(
        CompileError(map.c_str(), {{{"image", DType::kUint8, {}}, true}}),
        HasSubstr("put decode_image before it"));
    EXPECT_NE(CompileError(map.c_str(), {Plain({0, 30, 3})}), "compiled");
    EXPECT_NE(CompileError(map.c_str(), {Plain({20, 30, 5})}), "compiled");
  }
  const auto says = [&](const char* map, const char* what) {
    EXPECT_THAT(CompileError(map, image), HasSubstr(what));
  };
  says(R"([{"blur": {"kernel": 41}}])",
       "map[0].blur: a kernel of 41 reaches "
       "across image uint8 [20, 30, 3]: at most 39 fits");
  says(R"([{"rotate": {"degrees": 3, "fill": [1, 2]}}])",
       "rotate.fill: has 2 values");
  says(R"([{"perspective": {"corners": [0, 0, 1, 1, 2, 2, 3, 3]}}])",
       "no three are on a line");
  says(R"([{"crop": {"at": {"top": 5, "left": 5, "height": 16, "width": 3},
                     "size": 4}}])",
       "takes rows to 21 and columns to 8 of a picture of 30 x 20");
  says(R"([{"pad": {"size": [10, 40]}}])", "is smaller than");
  says(R"([{"pad": {"by": 65535}}])", "a side has at most 65535");
  says(R"([{"random_erasing": {"value": "random"}}])",
       "put it after normalize");
  says(R"([{"random_erasing": {"value": -1}}])", "put it after normalize");
  says(R"([{"random_erasing": {"value": [1, 2]}}])", "wants 1 or 3");
  // Its classes come last: it is no picture any more.
  says(R"([{"cast": {"dtype": "uint8", "layout": "chw"}},
           {"one_hot": {"classes": 256}}, {"random_erasing": {}}])",
       "has its channels first by now");
  says(R"([{"normalize": {"mean": 0, "std": 1}}, {"invert": {}}])",
       "put invert before the op that changes them");
  says(R"([{"resize": {"shorter": 60000}}])", "a side has at most 65535");
  EXPECT_THAT(
      CompileError(
          R"([{"rotate": {"degrees": 3, "mask": "mask", "mask_fill": 256}}])",
          {Plain({20, 30, 3}), Plain({20, 30}, DType::kUint8, "mask")}),
      HasSubstr("mask_fill: 256 is no value of mask uint8 [20, 30]"));
  const RawSpec pair = {{{"image", DType::kUint8, {}}, true},
                        {{"mask", DType::kUint8, {}}, true}};
  EXPECT_THAT(CompileError(R"([{"decode_image": {"size": 9, "mask": "mask"}},
                       {"rotate": {"degrees": 3}}])",
                           pair),
              HasSubstr("name both, in `feature` or `mask`"));
  EXPECT_THAT(CompileError(R"([{"decode_image": {"size": 9, "mask": "mask"}},
                               {"aug_mix": {}}])",
                           pair),
              HasSubstr("use rand_augment or trivial_augment"));
}

}  // namespace penstock::map_golden_test
