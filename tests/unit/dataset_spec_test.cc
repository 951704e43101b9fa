// Promise: a spec means what common/spec/ says, and every error names its
// line and column, or its key in generated text. Method: the parser on valid
// specs of every key, on one wrong spec per error, and on mutated text.
#include "broker/spec/dataset_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "broker/declare/declaration.h"
#include "common/text_file.h"

namespace penstock::dataset_spec_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

StatusOr<DatasetSpec> Parse(const std::string& text) {
  return ParseDatasetSpec(text, "train.yaml", "/base/dir");
}

DatasetSpec Parsed(const std::string& text) {
  StatusOr<DatasetSpec> spec = Parse(text);
  EXPECT_TRUE(spec.ok()) << spec.status().message() << "\n" << text;
  return spec.ok() ? *std::move(spec) : DatasetSpec();
}

// "7:3: message", without the file name.
std::string ErrorOf(const std::string& text) {
  const StatusOr<DatasetSpec> spec = Parse(text);
  if (spec.ok()) return "none";
  EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
  const std::string& message = spec.status().message();
  EXPECT_THAT(message, StartsWith("train.yaml:"));
  return message.substr(std::string("train.yaml:").size());
}

// A whole spec with one part replaced; the part begins in line 1, that of
// `source` and `map` after its key.
std::string WithSource(const std::string& source) {
  return "source: " + source + "\ndataset: d\nbatch: {size: 1}\n";
}
std::string WithOp(const std::string& op) {
  return "map: [" + op +
         "]\ndataset: d\nsource: {range: 9}\nbatch: {size: 1}\n";
}
std::string WithLine(const std::string& line) {
  return line + "\ndataset: d\nsource: {range: 9}\nbatch: {size: 1}\n";
}

template <typename T>
T SourceOf(const std::string& source) {
  const DatasetSpec spec = Parsed(WithSource(source));
  EXPECT_TRUE(std::holds_alternative<T>(spec.source));
  return std::get<T>(spec.source);
}

template <typename T>
T OpOf(const std::string& op) {
  const DatasetSpec spec = Parsed(WithOp(op));
  EXPECT_EQ(spec.map.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<T>(spec.map.at(0)));
  return std::get<T>(spec.map.at(0));
}

template <typename T>
std::vector<T> Values(const TensorsSource::Tensor& tensor) {
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

// The sample of the design, verbatim.
constexpr char kSample[] = R"(dataset: imagenet-train
source:
  image_folder: {path: /data/imagenet/train}
shuffle: {seed: 42}
map:
  - decode_image: {crop: {random_resized: {scale: [0.08, 1.0], ratio: [0.75, 1.3333]}}, size: [224, 224]}
  - flip: {horizontal: 0.5}
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], dtype: float16, layout: chw}
batch: {size: 2048, last: partial}     # global batch, or per_rank: 256; last: partial | drop | pad
epochs: 90                             # or forever; steps_per_epoch: N for epochs of a fixed length
prefetch: 2                            # finished batches per rank; sets the memory
)";

// Every key once, most with other values than the defaults.
constexpr char kFull[] = R"(dataset: Everything-1.0_b
source:
  synthetic:
    records: 1000
    features:
      image: {dtype: uint8, shape: [32, 48, 3]}
      weight: {dtype: float64, shape: []}
    cost_us: 50
shuffle: {seed: 18446744073709551615, each_epoch: false}
seed: 7
map:
  - decode_image: {feature: photo, crop: {center: {fraction: 0.875}}, size: 224, channels: gray, exact: true}
  - decode_image: {size: [10, 20]}
  - crop: {feature: image, random_resized: {scale: [0.5, 0.75], ratio: [1, 2]}, size: [16, 24]}
  - crop: {center: {}, size: 8}
  - resize: {feature: other, size: [4, 5]}
  - flip: {feature: image, horizontal: 1}
  - normalize: {feature: image, mean: 0.5, std: 2, dtype: bfloat16, layout: hwc}
  - cast: {feature: weight, dtype: float16, layout: chw}
  - python: {function: "pack_age.sub2:Class.make"}
  - plugin: {library: lib-x.so, function: f_1, features: {y: {dtype: int8, shape: [2]}}}
batch: {per_rank: 64, last: pad}
epochs: forever
steps_per_epoch: 100
prefetch: 64
hold: 1
on_error: substitute
)";

// ---- what is accepted

TEST(DatasetSpecTest, TheDesignsSampleParses) {
  const DatasetSpec spec = Parsed(kSample);
  EXPECT_EQ(spec.name, "imagenet-train");
  EXPECT_EQ(std::get<ImageFolderSource>(spec.source).path,
            "/data/imagenet/train");
  EXPECT_EQ(spec.shuffle, (ShuffleSpec{.seed = 42, .each_epoch = true}));
  EXPECT_EQ(spec.seed, 42u);
  ASSERT_EQ(spec.map.size(), 3u);
  const auto& decode = std::get<DecodeImageOp>(spec.map[0]);
  EXPECT_EQ(decode.feature, FeatureNames{"image"});
  EXPECT_EQ(decode.crop, CropSpec(RandomResizedCrop{.scale = {0.08, 1.0},
                                                    .ratio = {0.75, 1.3333}}));
  EXPECT_EQ(decode.size, (ImageSize{.height = 224, .width = 224}));
  EXPECT_EQ(decode.channels, 3);
  EXPECT_EQ(std::get<FlipOp>(spec.map[1]).horizontal, 0.5);
  const auto& normalize = std::get<NormalizeOp>(spec.map[2]);
  EXPECT_THAT(normalize.mean, ElementsAre(0.485, 0.456, 0.406));
  EXPECT_THAT(normalize.std, ElementsAre(0.229, 0.224, 0.225));
  EXPECT_EQ(normalize.dtype, DType::kFloat16);
  EXPECT_EQ(normalize.layout, Layout::kChw);
  EXPECT_EQ(spec.batch, (BatchSpec{.size = 2048}));
  EXPECT_EQ(spec.epochs, 90u);
  EXPECT_EQ(spec.steps_per_epoch, std::nullopt);
  EXPECT_EQ(spec.prefetch, 2u);
  EXPECT_EQ(spec.hold, 3u);
}

TEST(DatasetSpecTest, EveryKeyIsRead) {
  const DatasetSpec spec = Parsed(kFull);
  const auto& source = std::get<SyntheticSource>(spec.source);
  EXPECT_EQ(source.records, 1000u);
  EXPECT_EQ(source.cost_us, 50u);
  EXPECT_EQ(source.features, (ElementSpec{{"image", DType::kUint8, {32, 48, 3}},
                                          {"weight", DType::kFloat64, {}}}));
  EXPECT_EQ(spec.shuffle,
            (ShuffleSpec{.seed = UINT64_MAX, .each_epoch = false}));
  EXPECT_EQ(spec.seed, 7u);
  EXPECT_EQ(spec.map.size(), 10u);
  EXPECT_EQ(std::get<DecodeImageOp>(spec.map[0]).channels, 1);
  EXPECT_TRUE(std::get<DecodeImageOp>(spec.map[0]).exact);
  EXPECT_FALSE(std::get<DecodeImageOp>(spec.map[1]).exact);
  EXPECT_EQ(std::get<DecodeImageOp>(spec.map[1]).crop, std::nullopt);
  EXPECT_TRUE(std::holds_alternative<RandomResizedCrop>(
      std::get<CropOp>(spec.map[2]).crop));
  EXPECT_EQ(std::get<CropOp>(spec.map[3]).crop, CropSpec(CenterCrop()));
  EXPECT_EQ(std::get<ResizeOp>(spec.map[4]).size, (ImageSize{4, 5}));
  EXPECT_THAT(std::get<NormalizeOp>(spec.map[6]).std, ElementsAre(2));
  EXPECT_EQ(std::get<CastOp>(spec.map[7]).layout, Layout::kChw);
  EXPECT_EQ(std::get<PythonOp>(spec.map[8]),
            (PythonOp{"pack_age.sub2:Class.make", std::nullopt}));
  EXPECT_EQ(
      std::get<PluginOp>(spec.map[9]),
      (PluginOp{"lib-x.so", "f_1", ElementSpec{{"y", DType::kInt8, {2}}}}));
  EXPECT_EQ(spec.batch,
            (BatchSpec{.size = 64, .per_rank = true, .last = LastBatch::kPad}));
  EXPECT_EQ(spec.epochs, std::nullopt);
  EXPECT_EQ(spec.steps_per_epoch, 100u);
  EXPECT_EQ(spec.prefetch, 64u);
  EXPECT_EQ(spec.hold, 1u);
  EXPECT_EQ(spec.on_error, OnError::kSubstitute);
}

TEST(DatasetSpecTest, TheSmallestSpecHasTheDefaults) {
  const DatasetSpec spec =
      Parsed("dataset: d\nsource: {range: 9}\nbatch: {size: 4}\n");
  DatasetSpec wanted;
  wanted.name = "d";
  wanted.source = RangeSource{.stop = 9};
  wanted.batch.size = 4;
  EXPECT_EQ(spec, wanted);
  EXPECT_EQ(spec.epochs, 1u);
}

TEST(DatasetSpecTest, JsonIsYaml) {
  EXPECT_EQ(Parsed(R"({"dataset": "d", "source": {"range": 9},
                       "shuffle": "none", "batch": {"size": 4}})"),
            Parsed("dataset: d\nsource: {range: 9}\nbatch: {size: 4}\n"));
}

TEST(DatasetSpecTest, TheShufflesSeedIsTheAugmentationsUnlessItIsGiven) {
  EXPECT_EQ(Parsed(WithLine("shuffle: none")).seed, 0u);
  EXPECT_EQ(Parsed(WithLine("shuffle: {seed: 5}")).seed, 5u);
  EXPECT_EQ(Parsed(WithLine("shuffle: {seed: 5}\nseed: 6")).seed, 6u);
}

TEST(DatasetSpecTest, PathsBecomeAbsoluteAndNormal) {
  const auto path = [](const std::string& written) {
    return SourceOf<ImageFolderSource>("{image_folder: {path: " + written +
                                       "}}")
        .path;
  };
  EXPECT_EQ(path("photographs"), "/base/dir/photographs");
  EXPECT_EQ(path("./a/../b//c/"), "/base/dir/b/c");
  EXPECT_EQ(path("../sibling"), "/base/sibling");
  EXPECT_EQ(path("/data/./x/"), "/data/x");
  EXPECT_EQ(path("/"), "/");
  EXPECT_EQ(path("'ä b'"), "/base/dir/ä b");
  EXPECT_EQ(path("./~a"), "/base/dir/~a");
  const auto idx = SourceOf<IdxSource>("{idx: {images: i.gz}}");
  EXPECT_EQ(idx.images, "/base/dir/i.gz");
  EXPECT_EQ(idx.labels, "");
}

TEST(DatasetSpecTest, RangesGoBothWays) {
  EXPECT_EQ(SourceOf<RangeSource>("{range: 9}"),
            (RangeSource{.start = 0, .stop = 9, .step = 1}));
  EXPECT_EQ(SourceOf<RangeSource>("{range: {start: 9, stop: -1, step: -3}}"),
            (RangeSource{.start = 9, .stop = -1, .step = -3}));
  const auto widest = SourceOf<RangeSource>(
      "{range: {start: -9223372036854775808, stop: 9223372036854775807, "
      "step: 2048}}");
  EXPECT_EQ(widest.start, INT64_MIN);
  EXPECT_EQ(widest.stop, INT64_MAX);
  SourceOf<RangeSource>(
      "{range: {start: 9223372036854775807, stop: -9223372036854775808, "
      "step: -9223372036854775808}}");
}

TEST(DatasetSpecTest, FixedLengthRecordsAreOfOneFileOrSeveral) {
  const auto one = SourceOf<FixedLengthRecordsSource>(
      "{fixed_length_records: {files: /a, features: {x: {dtype: uint8, shape: "
      "[3]}}}}");
  EXPECT_EQ(
      one, (FixedLengthRecordsSource{.files = {{"/a"}},
                                     .features = {{"x", DType::kUint8, {3}}}}));
  const auto several = SourceOf<FixedLengthRecordsSource>(
      "{fixed_length_records: {files: [/a, /b], features: {x: {dtype: uint8, "
      "shape: [3]}, y: {dtype: float16, shape: []}}, header_bytes: 16, "
      "footer_bytes: 4, io: direct}}");
  EXPECT_EQ(several,
            (FixedLengthRecordsSource{.files = {{"/a", "/b"}},
                                      .features = {{"x", DType::kUint8, {3}},
                                                   {"y", DType::kFloat16, {}}},
                                      .header_bytes = 16,
                                      .footer_bytes = 4,
                                      .io = Io::kDirect}));
  EXPECT_EQ(
      SourceOf<ImageFolderSource>("{image_folder: {path: /a, io: buffered}}")
          .io,
      Io::kBuffered);
  EXPECT_EQ(SourceOf<IdxSource>("{idx: {images: /a, io: direct}}").io,
            Io::kDirect);
}

// ---- tensors

TEST(DatasetSpecTest, TensorsOfWholeNumbersAreInt64) {
  const auto source = SourceOf<TensorsSource>(
      "{tensors: {features: {x: [[1, 2], [3, -4], [5, 6]], y: [7, 8, 9]}, "
      "repeat: 100}}");
  EXPECT_EQ(source.rows, 3u);
  EXPECT_EQ(source.repeat, 100u);
  ASSERT_EQ(source.tensors.size(), 2u);
  EXPECT_EQ(source.tensors[0].feature, (Feature{"x", DType::kInt64, {2}}));
  EXPECT_THAT(Values<int64_t>(source.tensors[0]),
              ElementsAre(1, 2, 3, -4, 5, 6));
  EXPECT_EQ(source.tensors[1].feature, (Feature{"y", DType::kInt64, {}}));
}

TEST(DatasetSpecTest, TensorsWithAFractionAreFloat32) {
  const auto source =
      SourceOf<TensorsSource>("{tensors: {features: {x: [[[1]], [[.5e1]]]}}}");
  EXPECT_EQ(source.tensors[0].feature, (Feature{"x", DType::kFloat32, {1, 1}}));
  EXPECT_THAT(Values<float>(source.tensors[0]), ElementsAre(1, 5));
  EXPECT_EQ(source.repeat, 1u);
}

TEST(DatasetSpecTest, TensorsOfTrueAndFalseAreBool) {
  const auto source = SourceOf<TensorsSource>(
      "{tensors: {features: {x: [[true, false], [false, true]]}}}");
  EXPECT_EQ(source.tensors[0].feature, (Feature{"x", DType::kBool, {2}}));
  EXPECT_THAT(Values<uint8_t>(source.tensors[0]), ElementsAre(1, 0, 0, 1));
  EXPECT_THAT(ErrorOf(WithSource("{tensors: {features: {x: [true, 2]}}}")),
              EndsWith("found 'true' in row 0 (from 0): write 1 or 0, or all "
                       "as true or false"));
}

TEST(DatasetSpecTest, TensorsOfEveryDType) {
  const auto tensor = [](const std::string& dtype, const std::string& values) {
    return SourceOf<TensorsSource>("{tensors: {features: {x: {dtype: " + dtype +
                                   ", values: " + values + "}}}}")
        .tensors.at(0);
  };
  EXPECT_THAT(Values<uint8_t>(tensor("uint8", "[0, 255]")),
              ElementsAre(0, 255));
  EXPECT_THAT(Values<int8_t>(tensor("int8", "[-128, 127]")),
              ElementsAre(-128, 127));
  EXPECT_THAT(Values<int16_t>(tensor("int16", "[-32768]")),
              ElementsAre(-32768));
  EXPECT_THAT(Values<int32_t>(tensor("int32", "[2147483647]")),
              ElementsAre(2147483647));
  EXPECT_THAT(Values<int64_t>(tensor("int64", "[-9223372036854775808]")),
              ElementsAre(INT64_MIN));
  EXPECT_THAT(Values<double>(tensor("float64", "[0.1, 3]")),
              ElementsAre(0.1, 3));
  EXPECT_THAT(Values<uint8_t>(tensor("bool", "[true, false]")),
              ElementsAre(1, 0));
  // one, -2, the largest, the smallest normal, the smallest subnormal, half of
  // it (a tie to even), rounding up into the next exponent
  EXPECT_THAT(
      Values<uint16_t>(tensor("float16",
                              "[1, -2, 65504, 6.103515625e-05, "
                              "5.960464477539063e-08, 2.98e-08, 0.99999, 0]")),
      ElementsAre(0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x0000, 0x3c00, 0));
  EXPECT_THAT(Values<uint16_t>(
                  tensor("bfloat16", "[1, -2, 3.140625, 1.00390625, 1e-40]")),
              ElementsAre(0x3f80, 0xc000, 0x4049, 0x3f80, 0x0001));
}

TEST(DatasetSpecTest, RaggedTensorsAreErrorsAtTheRaggedRow) {
  const auto error = [](const std::string& values) {
    return ErrorOf("source:\n  tensors:\n    features:\n      x: " + values +
                   "\ndataset: d\nbatch: {size: 1}\n");
  };
  EXPECT_EQ(error("[[1, 2], [3]]"),
            "4:19: source.tensors.features.x[1]: ragged: a list of 1 here, a "
            "list of 2 at this position of the first row");
  EXPECT_EQ(error("[[1, 2], 3]"),
            "4:19: source.tensors.features.x[1]: ragged: a number here, a list "
            "of 2 at this position of the first row");
  EXPECT_EQ(error("[1, [2]]"),
            "4:14: source.tensors.features.x[1]: ragged: a list of 1 here, a "
            "number at this position of the first row");
  EXPECT_THAT(error("[[1, 2], [3, []]]"), StartsWith("4:23: "));
  EXPECT_THAT(error("[]"), StartsWith("4:10: source.tensors.features.x: "));
  EXPECT_THAT(error("[[]]"), StartsWith("4:11: source.tensors.features.x[0]"));
  EXPECT_THAT(error("[1, {a: 2}]"), StartsWith("4:14: "));
  EXPECT_THAT(error("[{a: 2}]"), StartsWith("4:11: "));
  EXPECT_THAT(error("[[1], {a: 2}]"), StartsWith("4:16: "));
  EXPECT_THAT(error("5"), StartsWith("4:10: "));
  EXPECT_THAT(error("[[[[[[[[[[1]]]]]]]]]]"), HasSubstr("8 dimensions"));
  EXPECT_THAT(error("[1, 2]\n      y: [1, 2, 3]"),
              EndsWith("5:10: source.tensors.features.y: 3 rows, but 'x' has "
                       "2"));
}

TEST(DatasetSpecTest, TensorValuesMustFitTheirDType) {
  const auto error = [](const std::string& dtype, const std::string& value) {
    return ErrorOf(WithSource("{tensors: {features: {x: {dtype: " + dtype +
                              ", values: [0, " + value + "]}}}}"));
  };
  EXPECT_EQ(error("uint8", "256"),
            "1:61: source.tensors.features.x.values[1]: wanted a whole number "
            "from 0 to 255, found '256' in row 1 (from 0): uint8 cannot hold "
            "it, give another `dtype`");
  EXPECT_THAT(error("uint8", "1.5"), StartsWith("1:61: "));
  EXPECT_THAT(error("int8", "-129"), StartsWith("1:60: "));
  EXPECT_THAT(error("int64", "9223372036854775808"), StartsWith("1:61: "));
  EXPECT_THAT(error("float16", "65505"), StartsWith("1:63: "));
  EXPECT_THAT(error("float32", "1e39"), StartsWith("1:63: "));
  EXPECT_THAT(error("float64", "1e400"), StartsWith("1:63: "));
  for (const char* none : {"nan", ".NaN", "-.inf", "Infinity"}) {
    EXPECT_THAT(error("float64", none),
                AllOf(StartsWith("1:63: "),
                      HasSubstr(" in row 1 (from 0): a spec has no NaN and no "
                                "infinity: leave the row out")));
  }
  EXPECT_THAT(error("float64", "cat"),
              EndsWith(" in row 1 (from 0): text is no value: number the "
                       "texts, or put them into a file (`text_lines`)"));
  EXPECT_THAT(error("float64", "true"), StartsWith("1:63: "));
  EXPECT_THAT(
      error("float64", "'1'"),
      HasSubstr("the quoted text '1' in row 1 (from 0): write a number of that "
                "range, without quotes"));
  EXPECT_THAT(error("float64", "~"), HasSubstr("found nothing"));
  EXPECT_THAT(error("bool", "true"),
              EndsWith("wanted true or false, found '0' in row 0 (from 0): "
                       "write all as true or false, or all as numbers"));
  EXPECT_THAT(error("complex64", "1"),
              StartsWith("1:42: source.tensors.features.x.dtype: unknown "
                         "value 'complex64'; known here: uint8, "));
}

// ---- errors: a text that a program wrote

TEST(DatasetSpecTest, ErrorsInAGeneratedTextNameTheKeyAndNoLine) {
  const auto error = [](const std::string& text) {
    return ParseDatasetSpec(text, "", "/base/dir").status().message();
  };
  const std::string rest = R"(, "source": {"range": 8}, "batch": {"size": 4}})";
  EXPECT_THAT(error(R"({"dataset": "d", "map": [{"flip": {}}, )"
                    R"({"cast": {"dtype": "float33"}}])" +
                    rest),
              StartsWith("spec: map[1].cast.dtype: unknown value 'float33'; "
                         "did you mean 'float32'?"));
  EXPECT_EQ(error(R"({"dataset": "d", "map": [{"cast": {"dtpye": 1}}])" + rest),
            "spec: map[0].cast: unknown key 'dtpye'; did you mean 'dtype'?");
  EXPECT_EQ(error(R"({"dataset": "d", "shufle": {})" + rest),
            "spec: unknown key 'shufle'; did you mean 'shuffle'?");
  EXPECT_EQ(error(R"({"dataset": "d", "source": {"range": 8}})"),
            "spec: batch is missing");
  // Errors of the text itself.
  EXPECT_EQ(
      error(R"({"dataset": "d", "source": {"tensors": {"features": {"x": )" +
            std::string(40, '[') + std::string(40, ']') + "}}}}"),
      "spec: source.tensors.features.x" +
          [] {
            std::string path;
            for (int i = 0; i < 28; ++i) path += "[0]";
            return path;
          }() +
          ": nested more than 32 deep");
  std::string keys;
  for (int i = 0; i <= 256; ++i) {
    keys += Format(R"("k{}": 0, )", i);
  }
  EXPECT_EQ(error(R"({"dataset": "d", "map": [{}, {"cast": {)" + keys + "}}]}"),
            "spec: map[1].cast: more than 256 keys");
  EXPECT_EQ(error(std::string(70000, ' ')),
            "spec: 70000 bytes of text; at most 65536 may be");
}

// ---- errors: text that is not strict YAML

TEST(DatasetSpecTest, TheHeadersExampleOfAnError) {
  const StatusOr<DatasetSpec> spec =
      Parse("\n\n\n\n\n\n  shufle: none\n  dataset: d\n");
  EXPECT_EQ(spec.status().message(),
            "train.yaml:7:3: unknown key 'shufle'; did you mean 'shuffle'?");
}

TEST(DatasetSpecTest, UnknownKeysWithNothingNearListTheKnownOnes) {
  EXPECT_EQ(ErrorOf("dataset: d\nsource: {range: 9}\nbatch: {workers: 4}\n"),
            "3:9: batch: unknown key 'workers'; known here: size, per_rank, "
            "tokens, tokens_per_rank, "
            "by_part, buckets, pack, last");
}

TEST(DatasetSpecTest, DuplicateKeysAreErrorsAtTheSecond) {
  EXPECT_EQ(ErrorOf("dataset: d\nepochs: 1\ndataset: e\n"),
            "3:1: 'dataset' is given twice, first in line 1");
  EXPECT_EQ(ErrorOf("batch: {size: 1, \"size\": 2}\n"),
            "1:18: 'size' is given twice, first in line 1");
}

TEST(DatasetSpecTest, AnchorsAliasesTagsAndMergesAreRefused) {
  EXPECT_THAT(ErrorOf("dataset: &a d\n"), StartsWith("1:10: anchors"));
  EXPECT_THAT(ErrorOf("map: &a [x]\n"), StartsWith("1:6: anchors"));
  EXPECT_THAT(ErrorOf("dataset: *a\n"), StartsWith("1:10: aliases"));
  EXPECT_THAT(ErrorOf("dataset: !!str d\n"), StartsWith("1:10: tags"));
  EXPECT_THAT(ErrorOf("map: !x [1]\n"), StartsWith("1:6: tags"));
  EXPECT_THAT(ErrorOf("source: !x {a: 1}\n"), StartsWith("1:9: tags"));
  EXPECT_THAT(ErrorOf("<<: {a: 1}\n"), StartsWith("1:1: unknown key '<<'"));
}

TEST(DatasetSpecTest, KeysAreNames) {
  EXPECT_THAT(ErrorOf("dataset: d\n? [a, b]\n: c\n"), StartsWith("2:3: "));
  EXPECT_THAT(ErrorOf("dataset: d\n{a: b}: c\n"), StartsWith("2:1: "));
  EXPECT_THAT(ErrorOf("dataset: d\n~: c\n"), StartsWith("2:1: "));
}

TEST(DatasetSpecTest, ASecondDocumentIsAnError) {
  EXPECT_EQ(ErrorOf("dataset: d\n---\ndataset: e\n"),
            "2:1: a second document begins here");
  EXPECT_EQ(Parsed("---\n" + std::string(kSample) + "...\n"), Parsed(kSample));
}

TEST(DatasetSpecTest, AnEmptyTextIsAnError) {
  for (const char* text : {"", "\n\n", "# nothing\n", "\xef\xbb\xbf"}) {
    EXPECT_EQ(ErrorOf(text), "1:1: the spec is empty");
  }
  EXPECT_EQ(ErrorOf("---\n"), "2:1: the spec is empty");
  EXPECT_THAT(ErrorOf("- a\n"), StartsWith("1:1: wanted a mapping"));
  EXPECT_THAT(ErrorOf("hello\n"), StartsWith("1:1: wanted a mapping"));
}

TEST(DatasetSpecTest, BrokenYamlIsAnErrorAtItsPlace) {
  EXPECT_EQ(ErrorOf("dataset: d\nbatch: {size: 1\nepochs: 2\n"),
            "2:8: this bracket is never closed");
  EXPECT_EQ(ErrorOf("dataset: d\nmap: [a,\n"),
            "2:6: this bracket is never closed");
  EXPECT_THAT(ErrorOf("dataset: d\nbatch: a: b\n"),
              StartsWith("2:9: not YAML"));
  EXPECT_THAT(ErrorOf("dataset: d\nbatch:\n\tsize: 1\n"),
              HasSubstr("YAML indents by spaces"));
  EXPECT_THAT(ErrorOf("dataset: \"d\\q\"\n"), StartsWith("1:14: not YAML"));
}

TEST(DatasetSpecTest, BytesThatAreNotTextAreErrorsAtTheByte) {
  EXPECT_EQ(ErrorOf("dataset: d\nx\xff: 1\n"),
            "2:2: byte 0xff is not UTF-8 text");
  EXPECT_EQ(ErrorOf(std::string("dataset: d\nab\0", 14)),
            "2:3: control character 0x00");
  EXPECT_THAT(ErrorOf("a\x7f"), StartsWith("1:2: control character"));
  EXPECT_THAT(ErrorOf("ü\xc3"), StartsWith("1:2: byte 0xc3"));    // cut off
  EXPECT_THAT(ErrorOf("\xc0\xaf"), StartsWith("1:1: byte"));      // overlong
  EXPECT_THAT(ErrorOf("\xed\xa0\x80"), StartsWith("1:1: byte"));  // surrogate
  EXPECT_THAT(ErrorOf("\xf4\x90\x80\x80"),
              StartsWith("1:1: byte"));  // > 10ffff
  EXPECT_THAT(ErrorOf(std::string("\xff\xfe"
                                  "d\0",
                                  4)),
              StartsWith("1:1: "));
}

TEST(DatasetSpecTest, ColumnsCountCharacters) {
  EXPECT_THAT(ErrorOf("{dataset: 'äöü€😀', x: 1}"), StartsWith("1:20: "));
  EXPECT_THAT(ErrorOf("\xef\xbb\xbf{dataset: d, x: 1}"), StartsWith("1:14: "));
  EXPECT_THAT(ErrorOf("dataset: d\r\nx: 1\r\n"), StartsWith("2:1: "));
}

TEST(DatasetSpecTest, TextsAboveTheLimitAreErrors) {
  std::string text(kSample);
  text += "#" + std::string(kSpecBytesMax - text.size() - 1, 'x');
  EXPECT_EQ(Parsed(text), Parsed(kSample));
  EXPECT_EQ(ErrorOf(text + "x"),
            "1:1: 65537 bytes of text; at most 65536 may be");
}

TEST(DatasetSpecTest, DepthIsLimitedBeforeAnythingRecurses) {
  const auto nested = [](int depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_THAT(ErrorOf(nested(32)), StartsWith("1:1: wanted a mapping"));
  EXPECT_EQ(ErrorOf(nested(33)), "1:33: nested more than 32 deep");
  const std::string large = nested(kSpecBytesMax / 2);
  EXPECT_THAT(ErrorOf(large), HasSubstr("nested more than 32 deep"));
  // Unclosed nesting of every form.
  for (const std::string unit :
       {"[",   "{",   "- ", "? ", "a: ",  "[a: ", "{a: ",  "? - ",  "- - ",
        "[\n", "{\n", "[,", "{?", "!",    "!!a ", "&a ",   "*a ",   "- [",
        "\"",  "'",   "| ", "%",  "--- ", ": ",   "a:\n ", "- a: ", "? a\n"}) {
    std::string bomb;
    while (bomb.size() + unit.size() <= kSpecBytesMax) bomb += unit;
    EXPECT_NE(ErrorOf(bomb), "none") << unit;
  }
  std::string stairs;
  for (int i = 0; i < 300; ++i) stairs += std::string(i, ' ') + "a:\n";
  EXPECT_EQ(ErrorOf(stairs), "33:33: nested more than 32 deep");
}

TEST(DatasetSpecTest, MessagesNeitherEchoControlCharactersNorGrowLong) {
  const std::string error =
      ErrorOf("\"a\\x01\\n" + std::string(900, 'b') + "\": 1\n");
  EXPECT_LT(error.size(), 300u);
  EXPECT_THAT(error, HasSubstr("'a\\x01\\x0abbb"));
}

// ---- errors: the grammar

struct ErrorCase {
  std::string text;
  std::string error;  // its beginning
};

class DatasetSpecErrorTest : public testing::TestWithParam<ErrorCase> {};

TEST_P(DatasetSpecErrorTest, SaysWhereAndWhat) {
  EXPECT_THAT(ErrorOf(GetParam().text), StartsWith(GetParam().error))
      << GetParam().text;
}

INSTANTIATE_TEST_SUITE_P(
    Top, DatasetSpecErrorTest,
    testing::Values(
        ErrorCase{"source: {range: 9}\nbatch: {size: 1}\n",
                  "1:1: dataset is missing"},
        ErrorCase{"dataset: d\nbatch: {size: 1}\n", "1:1: source is missing"},
        ErrorCase{"dataset: d\nsource: {range: 9}\n", "1:1: batch is missing"},
        ErrorCase{"dataset:\nsource: {range: 9}\n",
                  "1:1: dataset: wanted a name of 1 to 64 letters"},
        ErrorCase{"dataset: a b\n", "1:10: dataset: wanted a name"},
        ErrorCase{"dataset: a/b\n", "1:10: dataset: wanted a name"},
        ErrorCase{"dataset: ..\n", "1:10: dataset: wanted a name"},
        ErrorCase{"dataset: [a]\n", "1:10: dataset: wanted a name"},
        ErrorCase{"dataset: ''\n", "1:10: dataset: wanted a name"},
        ErrorCase{"dataset: " + std::string(65, 'a'),
                  "1:10: dataset: wanted a name"},
        ErrorCase{WithLine("epochs: 0"),
                  "1:9: epochs: wanted forever, or a whole number from 1 to"},
        ErrorCase{WithLine("epochs: 1e6"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: 1_000"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: 0x10"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: 010"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: +1"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: 1.0"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: '1'"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: -1"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: 99999999999999999999"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: never"), "1:9: epochs: "},
        ErrorCase{WithLine("epochs: [1]"),
                  "1:9: epochs: wanted forever, or a whole number from 1 to "
                  "1099511627776, found a list of 1"},
        ErrorCase{WithLine("epochs: {a: 1}"), "1:9: epochs: "},
        ErrorCase{WithLine("steps_per_epoch: 0"), "1:18: steps_per_epoch: "},
        ErrorCase{WithLine("prefetch: 0"),
                  "1:11: prefetch: wanted a whole number from 1 to 64, found "
                  "'0'"},
        ErrorCase{WithLine("prefetch: 65"), "1:11: prefetch: "},
        ErrorCase{WithLine("hold: 0"), "1:7: hold: "},
        ErrorCase{WithLine("hold: 65"), "1:7: hold: "},
        ErrorCase{WithLine("shard: files"),
                  "1:8: shard: unknown value 'files'; did you mean 'file'"},
        ErrorCase{WithLine("on_error: ignore"),
                  "1:11: on_error: unknown value 'ignore'; known here: fail, "
                  "skip, substitute"},
        ErrorCase{WithLine("on_error: skipp"),
                  "1:11: on_error: unknown value 'skipp'; did you mean "
                  "'skip'?"},
        ErrorCase{WithLine("on_error: [skip]"),
                  "1:11: on_error: wanted one of fail, skip, substitute, found "
                  "a list of 1"},
        ErrorCase{WithLine("seed: -1"), "1:7: seed: wanted a whole number"},
        ErrorCase{WithLine("seed: 18446744073709551616"), "1:7: seed: "},
        ErrorCase{WithLine("shuffle: {}"), "1:10: shuffle.seed is missing"},
        ErrorCase{WithLine("shuffle: yes"),
                  "1:10: shuffle: wanted none, or a mapping of seed, "
                  "each_epoch, window_files, found 'yes'"},
        ErrorCase{WithLine("shuffle:"), "1:1: shuffle: wanted none"},
        ErrorCase{WithLine("shuffle: {seed: 1, each_epoch: yes}"),
                  "1:32: shuffle.each_epoch: wanted true or false, found "
                  "'yes'"},
        ErrorCase{WithLine("shuffle: {seed: 1, each_epoch: 'true'}"),
                  "1:32: shuffle.each_epoch: "},
        ErrorCase{WithLine("shuffle: {seed: 1, sead: 2}"),
                  "1:20: shuffle: unknown key 'sead'; did you mean 'seed'?"}));

INSTANTIATE_TEST_SUITE_P(
    Batch, DatasetSpecErrorTest,
    testing::Values(
        ErrorCase{"dataset: d\nsource: {range: 9}\nbatch: 256\n",
                  "3:8: batch: wanted a mapping of size, per_rank, tokens, "
                  "tokens_per_rank, by_part, buckets, "
                  "pack, last, found "
                  "'256'"},
        ErrorCase{"dataset: d\nsource: {range: 9}\nbatch: {}\n",
                  "3:8: batch: needs one of size, per_rank, tokens, "
                  "tokens_per_rank, by_part"},
        ErrorCase{"dataset: d\nsource: {range: 9}\n"
                  "batch: {size: 1, per_rank: 2}\n",
                  "3:18: batch: 'size' and 'per_rank' exclude each other"},
        ErrorCase{"dataset: d\nsource: {range: 9}\nbatch: {size: 0}\n",
                  "3:15: batch.size: wanted a whole number from 1 to "
                  "16777216"},
        ErrorCase{"dataset: d\nsource: {range: 9}\nbatch: {size: 16777217}\n",
                  "3:15: batch.size: "},
        ErrorCase{"dataset: d\nsource: {range: 9}\n"
                  "batch: {size: 1, last: keep}\n",
                  "3:24: batch.last: unknown value 'keep'; known here: "
                  "partial, drop, pad"}));

INSTANTIATE_TEST_SUITE_P(
    Source, DatasetSpecErrorTest,
    testing::Values(
        ErrorCase{WithSource("image_folder"),
                  "1:9: source: wanted a mapping with one of the keys "
                  "image_folder, "},
        ErrorCase{WithSource("{}"), "1:9: source: needs one of image_folder, "},
        ErrorCase{WithSource("{image_folder: {path: /a, io: mmap}}"),
                  "1:39: source.image_folder.io: unknown value 'mmap'"},
        ErrorCase{WithSource("{fixed_length_records: {files: [], features: {x: "
                             "{dtype: uint8, shape: [1]}}}}"),
                  "1:40: source.fixed_length_records.files: wanted a path, "
                  "pattern or address, a list of 1 to 16384, or {list: "},
        ErrorCase{WithSource("{fixed_length_records: {files: /a}}"),
                  "1:32: source.fixed_length_records.features is missing"},
        ErrorCase{WithSource("{range: 5, idx: {images: x}}"),
                  "1:20: source: 'range' and 'idx' exclude each other"},
        ErrorCase{WithSource("{imagefolder: {path: x}}"),
                  "1:10: source: unknown key 'imagefolder'; did you mean "
                  "'image_folder'?"},
        ErrorCase{WithSource("{image_folder: {}}"),
                  "1:24: source.image_folder.path is missing"},
        ErrorCase{WithSource("{image_folder: x}"),
                  "1:24: source.image_folder: wanted a mapping of path"},
        ErrorCase{WithSource("{image_folder: {path: ~/data}}"),
                  "1:31: source.image_folder.path: '~' is not expanded"},
        ErrorCase{WithSource("{image_folder: {path: [x]}}"),
                  "1:31: source.image_folder.path: wanted text"},
        ErrorCase{WithSource("{image_folder: {path: ''}}"), "1:31: "},
        ErrorCase{WithSource("{image_folder: {path: \"a\\0b\"}}"), "1:31: "},
        ErrorCase{WithSource("{image_folder: {path: " + std::string(5000, 'x') +
                             "}}"),
                  "1:31: source.image_folder.path: a path of 5010 bytes"},
        ErrorCase{WithSource("{idx: {labels: x}}"),
                  "1:15: source.idx.images is missing"},
        ErrorCase{WithSource("{range: 0}"), "1:17: source.range: "},
        ErrorCase{WithSource("{range: {start: 5}}"),
                  "1:17: source.range.stop is missing"},
        ErrorCase{WithSource("{range: {start: 5, stop: 5}}"),
                  "1:17: source.range: no value from 5 to below 5"},
        ErrorCase{WithSource("{range: {stop: 5, step: -1}}"),
                  "1:17: source.range: no value"},
        ErrorCase{WithSource("{range: {stop: 5, step: 0}}"),
                  "1:33: source.range.step: 0 never"},
        ErrorCase{WithSource("{range: {start: -9223372036854775808, "
                             "stop: 9223372036854775807}}"),
                  "1:17: source.range: more than 9007199254740992 values"},
        ErrorCase{WithSource("{tensors: {}}"),
                  "1:19: source.tensors.features is missing"},
        ErrorCase{WithSource("{tensors: {features: {}}}"), "1:30: "},
        ErrorCase{WithSource("{tensors: {features: {a b: [1]}}}"),
                  "1:31: source.tensors.features: 'a b' is not a name"},
        ErrorCase{WithSource("{tensors: {features: {a: [1]}, repeat: 0}}"),
                  "1:48: source.tensors.repeat: "},
        ErrorCase{WithSource("{tensors: {features: {a: {dtype: int8}}}}"),
                  "1:34: source.tensors.features.a.values is missing"},
        ErrorCase{WithSource("{synthetic: {features: {a: {}}}}"),
                  "1:21: source.synthetic.records is missing"},
        ErrorCase{WithSource("{synthetic: {records: 1, features: {a: {}}}}"),
                  "1:48: source.synthetic.features.a.dtype is missing"},
        ErrorCase{WithSource("{synthetic: {records: 1, features: "
                             "{a: {dtype: int8, shape: 5}}}}"),
                  "1:69: source.synthetic.features.a.shape: wanted a list"},
        ErrorCase{WithSource("{synthetic: {records: 1, features: "
                             "{a: {dtype: int8, shape: [5, 0]}}}}"),
                  "1:73: source.synthetic.features.a.shape[1]: "},
        ErrorCase{WithSource("{synthetic: {records: 1, features: {a: {dtype: "
                             "int8, shape: [2147483647, 2147483647, "
                             "2147483647]}}}}"),
                  "1:69: source.synthetic.features.a.shape: a record of more "
                  "than 1099511627776 bytes"}));

INSTANTIATE_TEST_SUITE_P(
    Map, DatasetSpecErrorTest,
    testing::Values(
        ErrorCase{
            WithLine("map: {flip: {}}"),
            "1:6: map: wanted a list of at most 64 steps, such as [flip: {}], "
            "found a mapping"},
        ErrorCase{WithLine("map:\n- flip: {}\n-\n- flip: {}\n"),
                  "3:1: map[1]: wanted a mapping with one of the keys "},
        ErrorCase{WithLine("map:\n- flip: {}\n- flip:\n"),
                  "3:3: map[1].flip: wanted a mapping of feature, mask, boxes, "
                  "horizontal, "
                  "vertical, found nothing"},
        ErrorCase{WithOp("shrink: {}"),
                  "1:7: map[0]: unknown key 'shrink'; known here: " +
                      JoinText(NamesOf(KindsOf<TransformSpec>()), ", ")},
        ErrorCase{WithOp("{flip: {}, resize: {size: 5}}"),
                  "1:18: map[0]: 'flip' and 'resize' exclude each other"},
        ErrorCase{WithOp("{}"), "1:7: map[0]: needs one of decode_image, "},
        ErrorCase{WithOp("flip: {horizontal: 1.5}"),
                  "1:26: map[0].flip.horizontal: wanted a number from 0 to 1"},
        ErrorCase{WithOp("flip: {horizontal: '0.5'}"), "1:26: "},
        ErrorCase{WithOp("flip: {horizontal: nan}"), "1:26: "},
        ErrorCase{WithOp("flip: {horizontal: .inf}"), "1:26: "},
        ErrorCase{WithOp("flip: {feature: 'a b'}"), "1:23: "},
        ErrorCase{WithOp("decode_image: {}"),
                  "1:21: map[0].decode_image.size is missing"},
        ErrorCase{WithOp("decode_image: {size: 0}"),
                  "1:28: map[0].decode_image.size: wanted a whole number from "
                  "1 to 65535"},
        ErrorCase{WithOp("decode_image: {size: [1, 65536]}"),
                  "1:32: map[0].decode_image.size[1]: "},
        ErrorCase{WithOp("decode_image: {size: [1, 2, 3]}"),
                  "1:28: map[0].decode_image.size: wanted [height, width]"},
        ErrorCase{WithOp("decode_image: {size: 1, channels: 3}"),
                  "1:41: map[0].decode_image.channels: unknown value '3'; "
                  "known here: rgb, gray"},
        ErrorCase{WithOp("decode_image: {size: 1, crop: centre}"),
                  "1:37: map[0].decode_image.crop: unknown value 'centre'; did "
                  "you mean 'center'?"},
        ErrorCase{WithOp("decode_image: {size: 1, crop: {}}"), "1:37: "},
        ErrorCase{WithOp("decode_image: {size: 1, crop: {center: {fraction: "
                         "0}}}"),
                  "1:57: map[0].decode_image.crop.center.fraction: "},
        ErrorCase{WithOp("decode_image: {size: 1, crop: {random_resized: "
                         "{scale: [1, 0.5]}}}"),
                  "1:62: map[0].decode_image.crop.random_resized.scale: [low, "
                  "high]: 1 is above 0.5"},
        ErrorCase{WithOp("decode_image: {size: 1, crop: {random_resized: "
                         "{scale: [0, 0.5]}}}"),
                  "1:63: "},
        ErrorCase{WithOp("decode_image: {size: 1, crop: {random_resized: "
                         "{ratio: [0.5]}}}"),
                  "1:62: "},
        ErrorCase{WithOp("crop: {size: 5}"),
                  "1:13: map[0].crop: needs one of center, random_resized"},
        ErrorCase{WithOp("crop: {size: 5, center: {}, random_resized: {}}"),
                  "1:35: map[0].crop: 'center' and 'random_resized' exclude"},
        ErrorCase{WithOp("resize: {}"),
                  "1:15: map[0].resize: give exactly one of size, shorter, "
                  "within"},
        ErrorCase{WithOp("normalize: {mean: 1}"),
                  "1:18: map[0].normalize.std is missing"},
        ErrorCase{WithOp("normalize: {mean: [1, 2], std: [1, 1, 1]}"),
                  "1:38: map[0].normalize.std: 3 values, but mean has 2"},
        ErrorCase{WithOp("normalize: {mean: [], std: []}"),
                  "1:25: map[0].normalize.mean: wanted a number, or a list"},
        ErrorCase{
            WithOp("normalize: {mean: [1, 2], std: [1, 0]}"),
            "1:42: map[0].normalize.std[1]: 0: wanted a number from 1e-30 up"},
        ErrorCase{WithOp("normalize: {mean: 1, std: 0.0}"),
                  "1:33: map[0].normalize.std: 0: wanted a number from"},
        ErrorCase{WithOp("normalize: {mean: [1, 2], std: -1}"),
                  "1:38: map[0].normalize.std: -1: wanted a number from"},
        ErrorCase{WithOp("normalize: {mean: 1, std: 1, dtype: uint8}"),
                  "1:43: map[0].normalize.dtype: unknown value 'uint8'; known "
                  "here: float16, bfloat16, float32"},
        ErrorCase{WithOp("normalize: {mean: 1, std: 1, layout: nchw}"),
                  "1:44: map[0].normalize.layout: unknown value 'nchw'; did "
                  "you mean 'chw'?"},
        ErrorCase{WithOp("python: {}"),
                  "1:15: map[0].python.function is missing"},
        ErrorCase{WithOp("python: {function: rotate}"),
                  "1:26: map[0].python.function: wanted "
                  "\"package.module:function\", found 'rotate'"},
        ErrorCase{WithOp("python: {function: 'a..b:c'}"), "1:26: "},
        ErrorCase{WithOp("python: {function: 'a:b:c'}"), "1:26: "},
        ErrorCase{WithOp("python: {function: 'a/../b:c'}"), "1:26: "},
        ErrorCase{WithOp("python: {function: '1a:c'}"), "1:26: "},
        ErrorCase{WithOp("python: {function: 'a:b', features: {}}"),
                  "1:43: map[0].python.features: wanted a mapping of 1 to 64"},
        ErrorCase{WithOp("plugin: {function: f}"),
                  "1:15: map[0].plugin.library is missing"},
        ErrorCase{WithOp("plugin: {library: ../f.so, function: f}"),
                  "1:25: map[0].plugin.library: wanted the name of a file"},
        ErrorCase{WithOp("plugin: {library: f.txt, function: f}"), "1:25: "},
        ErrorCase{WithOp("plugin: {library: f.so, function: a.b}"),
                  "1:41: map[0].plugin.function: wanted the name of a C"},
        ErrorCase{WithOp("cast: {}"), "1:13: map[0].cast.dtype is missing"},
        ErrorCase{WithOp("cast: {dtype: float}"),
                  "1:21: map[0].cast.dtype: unknown value 'float'; did you "
                  "mean 'float32'?"},
        ErrorCase{WithOp("cast: {dtype: float8}"),
                  "1:21: map[0].cast.dtype: unknown value 'float8'; did you "
                  "mean 'float16'?"}));

TEST(DatasetSpecTest, AnAddressIsNoPathButWhereObjectsAreRead) {
  for (const char* address :
       {"s3://bucket/a.txt", "gs://b/{0..9}.txt", "https://h/a"}) {
    const auto spec = ParseDatasetSpec(
        WithSource(
            Format("{{text_lines: {{files: '{}', max_bytes: 9}}}}", address)),
        "train.yaml", "/base");
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    EXPECT_THAT(DatasetSpecToJson(*spec).dump(), HasSubstr(address));
  }

  const auto error = [](const std::string& file) {
    return ParseDatasetSpec(
               "{dataset: d, source: {range: 9}, snapshot: "
               "{path: '" +
                   file + "'}, batch: {size: 4}}",
               "train.yaml", "/base")
        .status()
        .message();
  };
  for (const char* address :
       {"s3://bucket/a.txt", "gs://b/{0..9}.txt", "http://h/a", "https://h/a",
        "hdfs://n/a", "hf://datasets/a/b", "pipe:cat a"}) {
    EXPECT_THAT(
        error(address),
        AllOf(HasSubstr(": snapshot.path: "),
              HasSubstr("' is an address; only files that this machine has "
                        "mounted are read: mount the storage as a file system, "
                        "or copy the files")))
        << address;
  }
  EXPECT_THAT(error("file:///data/a"), HasSubstr("write the path alone"));
  for (const char* path : {"a:b", "./s3://bucket", "/s3://bucket", "://a"}) {
    EXPECT_EQ(error(path), "") << path;
  }
}

TEST(DatasetSpecTest, ARelativePathNeedsAFolder) {
  const StatusOr<DatasetSpec> spec = ParseDatasetSpec(
      WithSource("{image_folder: {path: x}}"), "train.yaml", "");
  EXPECT_THAT(spec.status().message(),
              StartsWith("train.yaml:1:31: source.image_folder.path: 'x' is "
                         "relative"));
}

// ---- JSON, differences

TEST(DatasetSpecTest, TheJsonHasEveryFieldWithItsDefaultInAFixedOrder) {
  EXPECT_EQ(
      DatasetSpecToJson(Parsed("batch: {size: 4}\nsource: {range: 9}\nmap: "
                               "[flip: {}]\ndataset: d\n"))
          .dump(),
      R"({"dataset":"d","source":{"range":{"start":0,"stop":9,"step":1}},)"
      R"("shuffle":"none","seed":0,)"
      R"("map":[{"flip":{"feature":"image","horizontal":0.5}}],)"
      R"("batch":{"size":4,"last":"partial"},"epochs":1,)"
      R"("hold":3,"on_error":"fail"})");
}

TEST(DatasetSpecTest, TheJsonIsASpecAgain) {
  for (const char* text : {kSample, kFull}) {
    const DatasetSpec spec = Parsed(text);
    EXPECT_EQ(Parsed(DatasetSpecToJson(spec).dump()), spec);
    EXPECT_EQ(Parsed(DatasetSpecToJson(spec).dump(2)), spec);
  }
}

TEST(DatasetSpecTest, TheJsonOfTensorsHasEveryValueAgain) {
  // The values of every dtype whose digits or range are hardest.
  const char* const features[] = {
      "x: {dtype: float16, values: [0.1, -0.0, 65504, 6e-8, 1e-5, -65504]}",
      "x: {dtype: bfloat16, values: [0.1, 3.3895313892515355e+38, 1e-40, 1]}",
      "x: {dtype: float32, values: [0.1, 3.4028234663852886e+38, 1e-45]}",
      "x: {dtype: float64, values: [0.1, 1.7976931348623157e+308, 5e-324]}",
      "x: {dtype: int64, values: [-9223372036854775808, 9223372036854775807]}",
      "x: {dtype: uint8, values: [[[0], [255]], [[1], [2]]]}",
      "x: [true, false], y: [[1.5], [2]]"};
  for (const char* each : features) {
    const DatasetSpec spec = Parsed(WithSource(
        Format("{{tensors: {{features: {{{}}}, repeat: 3}}}}", each)));
    const auto again = ParseJournaledSpec(DatasetSpecToJson(spec).dump());
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(*again, spec) << each;
  }
}

TEST(DatasetSpecTest, TheLongestSpecIsParsedAgain) {
  std::string values = "[1e38";
  while (values.size() < kSpecBytesMax - 300) values += ",1e38";
  const DatasetSpec spec =
      Parsed(WithSource("{tensors: {features: {x: " + values + "]}}}"));
  const std::string json = DatasetSpecToJson(spec).dump();
  EXPECT_GT(json.size(), kSpecBytesMax);
  const auto again = ParseJournaledSpec(json);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, spec);
}

TEST(DatasetSpecTest, EqualSpecsDoNotDiffer) {
  EXPECT_EQ(DifferingField(Parsed(kFull), Parsed(kFull)), "");
}

TEST(DatasetSpecTest, TheFirstDifferingFieldIsNamedWithBothValues) {
  const auto difference = [](const std::string& here,
                             const std::string& there) {
    return DifferingField(Parsed(here), Parsed(there));
  };
  EXPECT_EQ(difference("{dataset: d, source: {range: 9}, batch: {size: 256}}",
                       "{dataset: d, source: {range: 9}, batch: {size: 128}}"),
            "batch.size: 256 here, 128 there");
  EXPECT_EQ(
      difference("{dataset: d, source: {range: 9}, batch: {size: 4}}",
                 "{dataset: d, source: {range: 9}, batch: {per_rank: 4}}"),
      "batch.size: 4 here, nothing there");
  EXPECT_EQ(
      difference(WithLine("shuffle: none"), WithLine("shuffle: {seed: 0}")),
      "shuffle: none here, {\"seed\":0,\"each_epoch\":true} there");
  EXPECT_EQ(difference(WithLine("epochs: 5"), WithLine("epochs: forever")),
            "epochs: 5 here, forever there");
  EXPECT_EQ(difference(WithLine("hold: 3"), WithLine("steps_per_epoch: 7")),
            "steps_per_epoch: nothing here, 7 there");
  EXPECT_EQ(difference(WithSource("{range: 5}"),
                       WithSource("{image_folder: {path: x}}")),
            "source: range here, image_folder there");
  EXPECT_EQ(difference(WithOp("normalize: {mean: [1, 2], std: [1, 2]}"),
                       WithOp("normalize: {mean: [1, 3], std: [1, 2]}")),
            "map[0].normalize.mean[1]: 2.0 here, 3.0 there");
  EXPECT_EQ(difference(WithOp("flip: {}, flip: {}"), WithOp("flip: {}")),
            "map: 2 entries here, 1 entries there");
  EXPECT_EQ(difference(WithOp("flip: {}"), WithOp("resize: {size: 5}")),
            "map[0]: flip here, resize there");
  EXPECT_EQ(difference(WithSource("{tensors: {features: {x: [1], y: [1]}}}"),
                       WithSource("{tensors: {features: {y: [1], x: [1]}}}")),
            "source.tensors.features: order x, y here, order y, x there");
}

// ---- any text

TEST(DatasetSpecTest, MutatedTextsAreParsedOrRefusedNeverWorse) {
  std::mt19937 random(20240229);
  const auto draw = [&](size_t below) { return random() % below; };
  const std::vector<std::string> tokens = {
      "[",   "]",  "{",    "}",    ":",     ": ",   ",",   "- ",     "? ",
      "&a ", "*a", "!!s ", "|\n",  ">\n",   "'",    "\"",  "\\",     "#",
      "\n",  "\t", "---",  "...",  "%YAML", "~",    "-1",  "1e999",  "0",
      "ü",   "\r", "\xff", "null", "true",  "<<: ", "\n ", "size: ", "- - - "};
  const std::vector<std::string> seeds = {
      kSample, kFull,
      WithSource("{tensors: {features: {x: [[1, 2], [3, 4]], y: {dtype: "
                 "float16, values: [1, 2]}}, repeat: 3}}"),
      WithSource("{range: {start: 1, stop: 9, step: 2}}"),
      DatasetSpecToJson(Parsed(kFull)).dump(1)};
  int accepted = 0;
  for (int i = 0; i < 6000; ++i) {
    std::string text = seeds[draw(seeds.size())];
    for (size_t edits = 1 + draw(4); edits > 0 && !text.empty(); --edits) {
      const size_t at = draw(text.size());
      switch (draw(5)) {
        case 0:
          text[at] = static_cast<char>(draw(256));
          break;
        case 1:
          text.erase(at, 1 + draw(8));
          break;
        case 2:
          text.insert(at, tokens[draw(tokens.size())]);
          break;
        case 3:
          text.insert(at, text.substr(draw(text.size()), draw(60)));
          break;
        default:
          text.resize(at);
      }
    }
    const StatusOr<DatasetSpec> spec = Parse(text);
    if (spec.ok()) {
      ++accepted;
      DatasetSpecToJson(*spec).dump();
    } else {
      ASSERT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
      ASSERT_THAT(spec.status().message(),
                  testing::MatchesRegex("train\\.yaml:[0-9]+:[0-9]+: .+"))
          << text;
      ASSERT_LT(spec.status().message().size(), 1000u);
    }
  }
  EXPECT_GT(accepted, 100);  // the mutations are not all of one kind
}

// ---- the examples

TEST(DatasetSpecTest, TheExamplesParse) {
  for (const char* name : {"fashion_mnist/train.yaml",
                           "fashion_mnist/test.yaml", "photographs.yaml"}) {
    const std::string path =
        std::string(PENSTOCK_SOURCE_DIR "/client/examples/") + name;
    std::ifstream stream(path);
    ASSERT_TRUE(stream) << path;
    std::stringstream text;
    text << stream.rdbuf();
    const StatusOr<DatasetSpec> spec =
        ParseDatasetSpec(text.str(), path, "/data");
    EXPECT_TRUE(spec.ok()) << spec.status().message();
  }
}

}  // namespace penstock::dataset_spec_test
