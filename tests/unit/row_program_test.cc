// Promise: a row is a pure function of its record's bytes and its key; every
// operation computes the documented formula, rounded once. Method: row programs
// of every operation, dtype and order against the formulas, and wrong ones
// against their errors.
#include "broker/transform/row_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "broker/transform/draws.h"
#include "broker/transform/half.h"
#include "tests/support/encode_jpeg.h"
#include "tests/unit/feature_bytes.h"

namespace penstock::row_program_test {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

RawSpec Encoded() { return {{{"image", DType::kUint8, {}}, true}}; }
RawSpec Plain(DType dtype, const std::vector<int64_t>& shape,
              const std::string& name = "image") {
  return {{{name, dtype, shape}, false}};
}

class RowProgramTest : public testing::Test {
 protected:
  void Compile(const std::vector<TransformSpec>& map, const RawSpec& raw) {
    StatusOr<std::unique_ptr<RowProgram>> program =
        RowProgram::Compile(map, raw);
    ASSERT_TRUE(program.ok()) << program.status().message();
    program_ = *std::move(program);
    scratch_ = program_->MakeScratch({});
  }

  // Returns the features of the row made from raw, or the first error.
  StatusOr<std::vector<Bytes>> RunAll(const std::vector<Bytes>& raw,
                                      const AugmentationKey& key = {}) {
    // At odd addresses: a record's bytes lie anywhere in the read buffer.
    std::vector<Bytes> shifted;
    RawRecord record;
    for (const Bytes& bytes : raw) {
      shifted.emplace_back(1).insert(shifted.back().end(), bytes.begin(),
                                     bytes.end());
      record.push_back(std::span(shifted.back()).subspan(1));
    }
    std::vector<Bytes> out;
    std::vector<std::byte*> outputs;
    for (const Feature& feature : program_->element_spec()) {
      out.emplace_back(feature.RowBytes() + 1, std::byte{0x5a});
      outputs.push_back(out.back().data());
    }
    PENSTOCK_RETURN_IF_ERROR(program_->Run(record, key, *scratch_, outputs));
    for (Bytes& bytes : out) {
      EXPECT_EQ(bytes.back(), std::byte{0x5a}) << "written past its end";
      bytes.pop_back();
    }
    return out;
  }

  Bytes Run(const Bytes& raw, const AugmentationKey& key = {}) {
    StatusOr<std::vector<Bytes>> row = RunAll({raw}, key);
    EXPECT_TRUE(row.ok()) << row.status().message();
    return row.ok() ? row->front() : Bytes();
  }

  template <typename To, typename From>
  std::vector<To> Cast(DType from, DType to, const std::vector<From>& values) {
    Compile({CastOp{.dtype = to}},
            Plain(from, {static_cast<int64_t>(values.size())}));
    return ValuesOf<To>(Run(BytesOf(values)));
  }

  static std::string CompileError(const std::vector<TransformSpec>& map,
                                  const RawSpec& raw) {
    const StatusOr<std::unique_ptr<RowProgram>> program =
        RowProgram::Compile(map, raw);
    if (program.ok()) return "compiled";
    EXPECT_EQ(program.status().code(), StatusCode::kInvalidArgument);
    return program.status().message();
  }

  std::unique_ptr<RowProgram> program_;
  std::unique_ptr<RowProgram::Scratch> scratch_;
};

// ---- shapes and features

TEST_F(RowProgramTest, ShapesAndDtypesFollowTheOps) {
  Compile({DecodeImageOp{.size = {224, 192}}, FlipOp{},
           NormalizeOp{.mean = {0.5},
                       .std = {0.2, 0.2, 0.2},
                       .dtype = DType::kFloat16,
                       .layout = Layout::kChw}},
          {{{"image", DType::kUint8, {}}, true},
           {{"label", DType::kInt64, {}}, false}});
  EXPECT_THAT(program_->element_spec(),
              ElementsAre(Feature{"image", DType::kFloat16, {3, 224, 192}},
                          Feature{"label", DType::kInt64, {}}));
  Compile({DecodeImageOp{.size = {8, 8}, .channels = 1},
           ResizeOp{.size = {4, 6}}, CastOp{.dtype = DType::kInt16}},
          Encoded());
  EXPECT_THAT(program_->element_spec(),
              ElementsAre(Feature{"image", DType::kInt16, {4, 6, 1}}));
  Compile({NormalizeOp{.mean = {0.5}, .std = {1}, .layout = Layout::kChw}},
          Plain(DType::kUint8, {28, 28}));
  EXPECT_THAT(program_->element_spec(),
              ElementsAre(Feature{"image", DType::kFloat32, {28, 28}}));
}

TEST_F(RowProgramTest, FeaturesThatNoOpNamesAreCopied) {
  Compile({DecodeImageOp{.size = {4, 4}}},
          {{{"label", DType::kInt64, {}}, false},
           {{"image", DType::kUint8, {}}, true},
           {{"empty", DType::kFloat32, {0, 3}}, false}});
  const StatusOr<std::vector<Bytes>> row =
      RunAll({BytesOf<int64_t>({-7}), EncodeJpeg({}), {}});
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_THAT(ValuesOf<int64_t>((*row)[0]), ElementsAre(-7));
  EXPECT_EQ((*row)[1].size(), 48u);
}

TEST_F(RowProgramTest, TheDefaultFeatureIsTheOnlyOne) {
  Compile({CastOp{.dtype = DType::kInt16}}, Plain(DType::kUint8, {2}, "x"));
  EXPECT_THAT(ValuesOf<int16_t>(Run(BytesOf<uint8_t>({1, 255}))),
              ElementsAre(1, 255));
}

TEST_F(RowProgramTest, RecordsOfTheWrongSizeAreDataLoss) {
  Compile({CastOp{.dtype = DType::kFloat32}}, Plain(DType::kUint8, {3}));
  const StatusOr<std::vector<Bytes>> row = RunAll({Bytes(2)});
  ASSERT_FALSE(row.ok());
  EXPECT_EQ(row.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(row.status().message(),
            "feature 'image': 2 bytes where 3 were expected");
}

TEST_F(RowProgramTest, ABadPictureIsDataLossAndTheNextRowIsSound) {
  Compile({DecodeImageOp{.size = {16, 16}}, FlipOp{}}, Encoded());
  const Bytes file = EncodeJpeg({});
  const Bytes want = Run(file);
  Bytes half(file.begin(), file.begin() + file.size() / 2);
  const StatusOr<std::vector<Bytes>> row = RunAll({half});
  ASSERT_FALSE(row.ok());
  EXPECT_EQ(row.status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(row.status().message(),
            "feature 'image': damaged JPEG: Premature end of JPEG file");
  EXPECT_EQ(Run(file), want);
}

// ---- randomness

TEST_F(RowProgramTest, ARowIsAPureFunctionOfItsBytesAndItsKey) {
  Compile(
      {DecodeImageOp{.crop = RandomResizedCrop{}, .size = {24, 24}}, FlipOp{}},
      Encoded());
  const Bytes file = EncodeJpeg({});
  const Bytes large = EncodeJpeg({.height = 100, .width = 200});
  std::vector<Bytes> first;
  for (uint64_t epoch = 0; epoch < 8; ++epoch) {
    first.push_back(Run(file, {.seed = 1, .epoch = epoch, .sample = 5}));
    if (epoch > 0) {
      EXPECT_NE(first[epoch], first[epoch - 1]);
    }
  }
  // In reverse order, with another scratch, and other rows in between.
  scratch_ = program_->MakeScratch({});
  for (uint64_t epoch = 8; epoch-- > 0;) {
    Run(large, {.seed = 3, .epoch = epoch, .sample = 9});
    EXPECT_EQ(Run(file, {.seed = 1, .epoch = epoch, .sample = 5}),
              first[epoch]);
  }
}

// ---- time

TEST_F(RowProgramTest, TimeIsThatOfTheStepThatTakesItWhileItIsMeasured) {
  Compile({DecodeImageOp{.size = {64, 64}}, FlipOp{},
           NormalizeOp{.mean = {0.5}, .std = {1}},
           CastOp{.dtype = DType::kFloat64}},
          Encoded());
  const Bytes file = EncodeJpeg({.height = 200, .width = 300});
  const Bytes unmeasured = Run(file);
  StepClock clock;
  scratch_ = program_->MakeScratch({}, &clock);
  const auto now_ns = [] {
    return static_cast<uint64_t>(
        std::chrono::nanoseconds(
            std::chrono::steady_clock::now().time_since_epoch())
            .count());
  };
  const uint64_t begin_ns = now_ns();
  clock.Start(kFirstStep + 4, begin_ns);
  EXPECT_EQ(Run(file), unmeasured);
  const uint64_t end_ns = now_ns();
  const std::vector<uint64_t> ns = clock.Stop(end_ns);
  uint64_t sum = 0;
  for (const uint64_t each : ns) sum += each;
  EXPECT_EQ(sum, end_ns - begin_ns) << "all of the time is somebody's";
  EXPECT_GT(ns[kFirstStep], 0u);
  EXPECT_EQ(ns[kFirstStep + 1], 0u) << "in normalize's pass";
  EXPECT_GT(ns[kFirstStep + 2], 0u);
  EXPECT_GT(ns[kFirstStep + 3], 0u);
}

TEST(StepClockTest, ACallIsDividedBetweenTheFunctionAndItsHandOver) {
  StepClock clock;
  const auto part_of_call = [&clock](uint64_t own_ns) {
    clock.Start(kFirstStep + 1, 0);
    {
      const StepClock::In in(&clock, kFirstStep);
      clock.Split(own_ns, kHandingOver);
    }
    return clock.Stop(UINT64_MAX)[kHandingOver];
  };
  EXPECT_GT(part_of_call(0), 0u);
  EXPECT_EQ(part_of_call(UINT64_MAX), 0u) << "no more than it took";
  // Off, or without a clock: nothing happens.
  const StepClock::In off(&clock, kReading);
  const StepClock::In none(nullptr, kReading);
  EXPECT_FALSE(clock.on());
}

TEST_F(RowProgramTest, FlipMirrorsWithItsProbability) {
  const Bytes row = BytesOf<uint8_t>({1, 2, 3, 4, 5, 6});
  const Bytes mirrored = BytesOf<uint8_t>({5, 6, 3, 4, 1, 2});
  for (const double probability : {0.0, 0.3, 1.0}) {
    Compile({FlipOp{.horizontal = probability}},
            Plain(DType::kUint8, {1, 3, 2}));
    int flipped = 0;
    constexpr int kSamples = 4000;
    for (uint64_t sample = 0; sample < kSamples; ++sample) {
      const Bytes got = Run(row, {.seed = 2, .sample = sample});
      ASSERT_TRUE(got == row || got == mirrored);
      flipped += got == mirrored;
    }
    // Four standard deviations.
    const double deviation =
        4 * std::sqrt(probability * (1 - probability) * kSamples);
    EXPECT_NEAR(flipped, probability * kSamples, deviation);
  }
}

TEST_F(RowProgramTest, TwoFlipsCancelAndOneWorksOnAnyDtypeAndPlace) {
  const FlipOp always{.horizontal = 1.0};
  Compile({always, always}, Plain(DType::kUint8, {2, 2}));
  EXPECT_THAT(ValuesOf<uint8_t>(Run(BytesOf<uint8_t>({1, 2, 3, 4}))),
              ElementsAre(1, 2, 3, 4));
  Compile({always}, Plain(DType::kInt64, {2, 2}));
  EXPECT_THAT(ValuesOf<int64_t>(Run(BytesOf<int64_t>({1, -2, 3, 4}))),
              ElementsAre(-2, 1, 4, 3));
  Compile({CastOp{.dtype = DType::kFloat32}, always},
          Plain(DType::kUint8, {1, 2, 3}));
  EXPECT_THAT(ValuesOf<float>(Run(BytesOf<uint8_t>({1, 2, 3, 4, 5, 6}))),
              ElementsAre(4, 5, 6, 1, 2, 3));
  Compile({always, ResizeOp{.size = {1, 2}}, always, always, always,
           CastOp{.dtype = DType::kInt32}},
          Plain(DType::kUint8, {1, 2}));
  EXPECT_THAT(ValuesOf<int32_t>(Run(BytesOf<uint8_t>({7, 9}))),
              ElementsAre(7, 9));
}

// ---- values

TEST_F(RowProgramTest, NormalizeIsTheFormulaRoundedOnce) {
  const std::vector<double> mean = {0.485, 0.456, 0.406};
  const std::vector<double> std = {0.229, 0.224, 0.225};
  std::vector<uint8_t> pixels;
  for (int v = 0; v < 256; ++v) {
    for (int c = 0; c < 3; ++c) pixels.push_back(static_cast<uint8_t>(v + c));
  }
  const auto exact = [&](size_t i) {
    return (pixels[i] / 255.0 - mean[i % 3]) / std[i % 3];
  };
  NormalizeOp op{.mean = mean, .std = std};
  const RawSpec raw = Plain(DType::kUint8, {16, 16, 3});

  op.dtype = DType::kFloat32;
  Compile({op}, raw);
  const auto floats = ValuesOf<float>(Run(BytesOf(pixels)));
  op.dtype = DType::kFloat16;
  Compile({op}, raw);
  const auto halves = ValuesOf<uint16_t>(Run(BytesOf(pixels)));
  op.dtype = DType::kBFloat16;
  Compile({op}, raw);
  const auto brains = ValuesOf<uint16_t>(Run(BytesOf(pixels)));
  for (size_t i = 0; i < pixels.size(); ++i) {
    EXPECT_EQ(floats[i], static_cast<float>(exact(i)));
    // Nearest: within half a step, of 2^-11 and 2^-8 of the value.
    const double half = ToFloat(Float16{halves[i]});
    EXPECT_LE(std::abs(half - exact(i)), std::abs(exact(i)) * 0x1p-11);
    const double brain = ToFloat(BFloat16{brains[i]});
    EXPECT_LE(std::abs(brain - exact(i)), std::abs(exact(i)) * 0x1p-8);
  }
}

TEST_F(RowProgramTest, ChannelsFirstMovesEveryValueAlsoMirrored) {
  // Value = 100 * y + 10 * x + c.
  std::vector<uint8_t> pixels;
  for (int y = 0; y < 2; ++y) {
    for (int x = 0; x < 4; ++x) {
      for (int c = 0; c < 3; ++c) {
        pixels.push_back(static_cast<uint8_t>(100 * y + 10 * x + c));
      }
    }
  }
  for (const bool mirror : {false, true}) {
    const FlipOp flip{.horizontal = mirror ? 1.0 : 0.0};
    // One table for all channels, one for each, and no table.
    const std::vector<std::vector<TransformSpec>> maps = {
        {flip, CastOp{.dtype = DType::kFloat32, .layout = Layout::kChw}},
        {flip,
         NormalizeOp{
             .mean = {0, 0, 0}, .std = {1 / 255.0}, .layout = Layout::kChw}},
        {CastOp{.dtype = DType::kFloat64}, flip,
         CastOp{.dtype = DType::kFloat32, .layout = Layout::kChw}}};
    for (const std::vector<TransformSpec>& map : maps) {
      Compile(map, Plain(DType::kUint8, {2, 4, 3}));
      EXPECT_EQ(program_->element_spec()[0].shape,
                (std::vector<int64_t>{3, 2, 4}));
      const auto got = ValuesOf<float>(Run(BytesOf(pixels)));
      size_t i = 0;
      for (int c = 0; c < 3; ++c) {
        for (int y = 0; y < 2; ++y) {
          for (int x = 0; x < 4; ++x) {
            EXPECT_NEAR(got[i++], 100 * y + 10 * (mirror ? 3 - x : x) + c,
                        1e-4);
          }
        }
      }
    }
  }
}

TEST_F(RowProgramTest, NormalizeTakesAnyShapeWithOneMean) {
  Compile({NormalizeOp{.mean = {0.5}, .std = {0.5}}},
          Plain(DType::kUint8, {3}));
  EXPECT_THAT(ValuesOf<float>(Run(BytesOf<uint8_t>({0, 255, 51}))),
              ElementsAre(-1.0f, 1.0f, static_cast<float>((0.2 - 0.5) / 0.5)));
}

TEST_F(RowProgramTest, CastToIntegersRoundsToEvenAndSaturates) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {0.5,  1.5,   2.5,    -0.5, -1.5,
                                      kNan, 254.5, 255.49, 1e30, -kInfinity};
  EXPECT_THAT((Cast<uint8_t>(DType::kFloat64, DType::kUint8, values)),
              ElementsAre(0, 2, 2, 0, 0, 0, 254, 255, 255, 0));
  EXPECT_THAT((Cast<int8_t>(DType::kFloat64, DType::kInt8, values)),
              ElementsAre(0, 2, 2, 0, -2, 0, 127, 127, 127, -128));
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  EXPECT_THAT(
      (Cast<int64_t>(DType::kFloat64, DType::kInt64,
                     std::vector<double>{0x1p63, -0x1p63, -0x1.8p63,
                                         0x1.fffffffffffffp62, kInfinity})),
      ElementsAre(kMax, kMin, kMin, int64_t{0x7ffffffffffffc00}, kMax));
  EXPECT_THAT((Cast<int32_t>(DType::kFloat32, DType::kInt32,
                             std::vector<float>{0x1p31f, -0x1p31f, 2.5f})),
              ElementsAre(std::numeric_limits<int32_t>::max(),
                          std::numeric_limits<int32_t>::min(), 2));
  EXPECT_THAT((Cast<int16_t>(DType::kInt64, DType::kInt16,
                             std::vector<int64_t>{kMin, -5, 40000})),
              ElementsAre(-32768, -5, 32767));
  EXPECT_THAT((Cast<uint8_t>(DType::kInt8, DType::kUint8,
                             std::vector<int8_t>{-128, -1, 127})),
              ElementsAre(0, 0, 127));
  EXPECT_THAT((Cast<int8_t>(DType::kFloat16, DType::kInt8,
                            std::vector<uint16_t>{0x3e00, 0x7c00, 0x7e00})),
              ElementsAre(2, 127, 0));
}

TEST_F(RowProgramTest, CastToFloatsRoundsOnce) {
  EXPECT_THAT((Cast<float>(DType::kInt8, DType::kFloat32,
                           std::vector<int8_t>{-128, 127})),
              ElementsAre(-128.0f, 127.0f));
  EXPECT_THAT((Cast<float>(DType::kInt64, DType::kFloat32,
                           std::vector<int64_t>{(1 << 24) + 1, (1 << 24) + 3})),
              ElementsAre(0x1p24f, 0x1p24f + 4));
  // Just above the midpoint of two bfloat16 values, which rounding to a double
  // first would hide.
  const std::vector<int64_t> middles = {(int64_t{0x101} << 54),
                                        (int64_t{0x101} << 54) + 1,
                                        -(int64_t{0x101} << 54) - 1};
  EXPECT_THAT((Cast<uint16_t>(DType::kInt64, DType::kBFloat16, middles)),
              ElementsAre(0x5e80, 0x5e81, 0xde81));
  EXPECT_THAT((Cast<uint16_t>(DType::kFloat64, DType::kFloat16,
                              std::vector<double>{1.0, 65519.9, 65520.0})),
              ElementsAre(0x3c00, 0x7bff, 0x7c00));
  EXPECT_THAT((Cast<double>(DType::kBFloat16, DType::kFloat64,
                            std::vector<uint16_t>{0x3f80, 0xc000})),
              ElementsAre(1.0, -2.0));
}

TEST_F(RowProgramTest, CastToBoolIsTrueOfAllButZero) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT((Cast<uint8_t>(DType::kFloat64, DType::kBool,
                             std::vector<double>{0, -0.0, 0.25, -3, kNan})),
              ElementsAre(0, 0, 1, 1, 1));
  EXPECT_THAT((Cast<uint8_t>(DType::kUint8, DType::kBool,
                             std::vector<uint8_t>{0, 1, 2, 255})),
              ElementsAre(0, 1, 1, 1));
  EXPECT_THAT((Cast<uint8_t>(DType::kInt64, DType::kBool,
                             std::vector<int64_t>{0, int64_t{1} << 32})),
              ElementsAre(0, 1));
}

TEST_F(RowProgramTest, ABoolCastsToOneAndZero) {
  const std::vector<uint8_t> bools = {0, 1, 1};
  EXPECT_THAT((Cast<float>(DType::kBool, DType::kFloat32, bools)),
              ElementsAre(0, 1, 1));
  EXPECT_THAT((Cast<int64_t>(DType::kBool, DType::kInt64, bools)),
              ElementsAre(0, 1, 1));
  EXPECT_THAT((Cast<uint8_t>(DType::kBool, DType::kBool, bools)),
              ElementsAre(0, 1, 1));
  Compile({FlipOp{.feature = {"mask"}, .horizontal = 1}},
          Plain(DType::kBool, {1, 3}, "mask"));
  EXPECT_EQ(ValuesOf<uint8_t>(Run(BytesOf(bools))),
            (std::vector<uint8_t>{1, 1, 0}));
}

// Every numeric dtype has small integers: all 81 pairs keep them.
TEST_F(RowProgramTest, EveryDtypeCastsToEveryOther) {
  constexpr std::array kAll = {
      DType::kUint8,    DType::kInt8,    DType::kInt16,
      DType::kInt32,    DType::kInt64,   DType::kFloat16,
      DType::kBFloat16, DType::kFloat32, DType::kFloat64};
  const std::vector<uint8_t> small = {0, 1, 2, 100, 127};
  for (const DType from : kAll) {
    for (const DType to : kAll) {
      Compile({CastOp{.dtype = from}, CastOp{.dtype = to},
               CastOp{.dtype = DType::kUint8}},
              Plain(DType::kUint8, {5}));
      EXPECT_EQ(ValuesOf<uint8_t>(Run(BytesOf(small))), small)
          << DTypeName(from) << " to " << DTypeName(to);
    }
  }
}

// ---- errors

TEST_F(RowProgramTest, AByteThatIsNoBoolIsTheRecordsError) {
  const RawSpec masks = {{{"id", DType::kUint8, {}}, false},
                         {{"mask", DType::kBool, {20}}, false}};
  for (const std::vector<TransformSpec>& map :
       {std::vector<TransformSpec>{},
        {CastOp{.feature = {"mask"}, .dtype = DType::kFloat32}}}) {
    Compile(map, masks);
    for (const size_t at : {0, 7, 8, 15, 16, 19}) {
      std::vector<uint8_t> mask(20, 1);
      EXPECT_TRUE(RunAll({BytesOf<uint8_t>({7}), BytesOf(mask)}).ok());
      mask[at] = 2;
      const Status status =
          RunAll({BytesOf<uint8_t>({7}), BytesOf(mask)}).status();
      EXPECT_EQ(status.code(), StatusCode::kDataLoss);
      EXPECT_EQ(status.message(),
                "feature 'mask': byte " + std::to_string(at) +
                    " of its row is 2; a bool is 0 or 1 (declare it uint8 and "
                    "let `cast: {dtype: bool}` make true of all but 0)");
    }
  }
}

TEST_F(RowProgramTest, ErrorsNameTheOpAndTheWayOut) {
  const DecodeImageOp decode{.size = {8, 8}};
  const NormalizeOp normalize{.mean = {0.5}, .std = {0.5}};
  NormalizeOp chw = normalize;
  chw.layout = Layout::kChw;
  EXPECT_EQ(CompileError({normalize}, Encoded()),
            "map[0].normalize: feature 'image' is encoded; put decode_image "
            "before it, of a sound decode_audio");
  EXPECT_EQ(CompileError({}, Encoded()),
            "map: feature 'image' holds files of different sizes: add "
            "decode_image with a size for pictures, decode_audio for sounds, "
            "keep_encoded for other bytes; a column of parquet becomes a list "
            "by `max_length: {image: N}`");
  EXPECT_EQ(CompileError({decode, decode}, Encoded()),
            "map[1].decode_image: wants a picture file, found image uint8 "
            "[8, 8, 3]; use resize to change its size");
  EXPECT_EQ(CompileError({decode, CastOp{.dtype = DType::kBool}, normalize},
                         Encoded()),
            "map[2].normalize: wants numbers, found image bool [8, 8, 3]; put "
            "`cast` before it if 0 and 1 are meant");
  EXPECT_THAT(
      CompileError({decode, normalize, ResizeOp{.size = {4, 4}}}, Encoded()),
      HasSubstr("map[2].resize: wants uint8 values"));
  EXPECT_EQ(CompileError({decode, chw, FlipOp{}}, Encoded()),
            "map[2].flip: feature 'image' has its channels first by now; put "
            "it before the op that says layout: chw");
  EXPECT_EQ(CompileError({decode, FlipOp{.feature = {"picture"}}}, Encoded()),
            "map[1].flip: no feature 'picture': give one of image");
  EXPECT_EQ(CompileError({FlipOp{}}, Plain(DType::kInt64, {})),
            "map[0].flip: wants an image [h, w] or [h, w, c], found image "
            "int64 []");
  EXPECT_EQ(
      CompileError({ResizeOp{.size = {4, 4}}}, Plain(DType::kUint8, {8, 8, 5})),
      "map[0].resize: wants pixels of 1 to 4 channels, found image uint8 "
      "[8, 8, 5]");
}

TEST_F(RowProgramTest, ChannelsMustFitTheFeature) {
  const RawSpec image = Plain(DType::kUint8, {8, 8, 3});
  NormalizeOp normalize{.mean = {0.5, 0.5}, .std = {0.5}};
  EXPECT_EQ(CompileError({normalize}, image),
            "map[0].normalize: mean is [0.5, 0.5]; image uint8 [8, 8, 3] wants "
            "one finite number, or one for each of its 3 channels");
  normalize = {.mean = {0.5}, .std = {0.5, 1}};
  EXPECT_THAT(CompileError({normalize}, image), HasSubstr("std is [0.5, 1]"));
}

// ---- several features of one op

RawSpec PictureAndMask(bool encoded, const std::vector<int64_t>& shape = {}) {
  return {{{"image", DType::kUint8, shape}, encoded},
          {{"mask", DType::kUint8, shape}, encoded}};
}

TEST_F(RowProgramTest, AMaskHasTheBoxAndTheFlipOfItsPicture) {
  const JpegKind gray{.height = 100, .width = 150, .space = JCS_GRAYSCALE};
  const Bytes picture = EncodeJpeg({.height = 100, .width = 150});
  const Bytes mask = EncodeJpeg(gray);
  Compile({DecodeImageOp{.feature = {}, .mask = {"image"}, .size = {100, 150}}},
          Encoded());
  EXPECT_EQ(program_->element_spec()[0],
            (Feature{"image", DType::kUint8, {100, 150}}));
  const Bytes pixels = Run(mask);
  const CropSpec part = RandomResizedCrop{};
  for (uint64_t sample = 0; sample < 20; ++sample) {
    const AugmentationKey key{.sample = sample};
    Compile({DecodeImageOp{.mask = {"mask"}, .crop = part, .size = {33, 47}},
             FlipOp{.mask = {"mask"}}},
            PictureAndMask(true));
    const auto together = RunAll({picture, mask}, key);
    ASSERT_TRUE(together.ok()) << together.status().message();
    Compile({DecodeImageOp{.crop = part, .size = {33, 47}}, FlipOp{}},
            Encoded());
    EXPECT_EQ((*together)[0], Run(picture, key)) << sample;
    Compile(
        {CropOp{
             .feature = {}, .mask = {"image"}, .crop = part, .size = {33, 47}},
         FlipOp{}},
        Plain(DType::kUint8, {100, 150}));
    EXPECT_EQ((*together)[1], Run(pixels, key)) << sample;
  }
}

TEST_F(RowProgramTest, AMaskKeepsItsValuesWhateverItsDtype) {
  // Ten pixels of two values each become four, then the last halves of these.
  std::vector<int16_t> values;
  for (int16_t i = 0; i < 10; ++i) {
    values.insert(values.end(), {i, static_cast<int16_t>(-1000 * i)});
  }
  Compile({ResizeOp{.feature = {}, .mask = {"image"}, .size = {1, 4}}},
          Plain(DType::kInt16, {1, 10, 2}));
  EXPECT_THAT(ValuesOf<int16_t>(Run(BytesOf(values))),
              ElementsAre(1, -1000, 3, -3000, 6, -6000, 8, -8000));
  Compile({CropOp{.feature = {},
                  .mask = {"image"},
                  .crop = CenterCrop{.fraction = 0.2},
                  .size = {1, 2}}},
          Plain(DType::kInt16, {5, 4}));
  EXPECT_THAT(ValuesOf<int16_t>(Run(BytesOf(values))), SizeIs(2));
}

TEST_F(RowProgramTest, SeveralPicturesHaveTheSameDraws) {
  const Bytes file = EncodeJpeg({});
  const FeatureNames both = {"image", "mask"};
  Compile({DecodeImageOp{
               .feature = both, .crop = RandomResizedCrop{}, .size = {8, 9}},
           FlipOp{.feature = both}},
          PictureAndMask(true));
  for (uint64_t sample = 0; sample < 20; ++sample) {
    const auto row = RunAll({file, file}, {.sample = sample});
    ASSERT_TRUE(row.ok()) << row.status().message();
    EXPECT_EQ((*row)[0], (*row)[1]) << sample;
  }
}

TEST_F(RowProgramTest, WhatDoesNotFitTogetherIsAnError) {
  const FeatureNames both = {"image", "mask"};
  const DecodeImageOp decode{.mask = {"mask"}, .size = {8, 8}};
  Compile({decode}, PictureAndMask(true));
  const auto error = [this](const Bytes& picture, const Bytes& mask) {
    const auto row = RunAll({picture, mask});
    EXPECT_EQ(row.status().code(), StatusCode::kDataLoss);
    return row.status().message();
  };
  const Bytes gray = EncodeJpeg({.space = JCS_GRAYSCALE});
  EXPECT_EQ(
      error(EncodeJpeg({}), EncodeJpeg({.height = 47, .space = JCS_GRAYSCALE})),
      "feature 'mask': a picture of 64 x 47 pixels, but another one of the "
      "step "
      "has 64 x 48; a step crops and flips pictures of one size together");
  EXPECT_THAT(error(gray, EncodeJpeg({})),
              HasSubstr("feature 'mask': a picture of colours; a mask has one "
                        "value a pixel"));
  // The sizes of one row are not compared with those of another.
  const Bytes small = EncodeJpeg({.height = 9, .space = JCS_GRAYSCALE});
  EXPECT_TRUE(RunAll({small, small}).ok());
  EXPECT_TRUE(RunAll({gray, gray}).ok());

  EXPECT_EQ(CompileError({decode, FlipOp{}}, PictureAndMask(true)),
            "map[1].flip: moves pixels of 'image', but not of 'mask', which "
            "decode_image has made fit: name both, in `feature` or `mask`");
  EXPECT_THAT(
      CompileError({decode, CropOp{.size = {4, 4}}}, PictureAndMask(true)),
      HasSubstr("but not of 'mask'"));
  Compile({decode, FlipOp{.mask = {"mask"}},
           NormalizeOp{.mean = {0.5}, .std = {0.5}},
           CastOp{.feature = {"mask"}, .dtype = DType::kInt64}},
          PictureAndMask(true));
  EXPECT_EQ(CompileError({FlipOp{.feature = both, .mask = {"mask"}}},
                         PictureAndMask(false, {4, 4})),
            "map[0].flip: names feature 'mask' twice");
  EXPECT_EQ(CompileError({FlipOp{.feature = {}}}, Plain(DType::kUint8, {4, 4})),
            "map[0].flip: names no feature; `feature: NAME` chooses");
  EXPECT_EQ(
      CompileError({CropOp{.feature = both, .size = {4, 4}}},
                   {{{"image", DType::kUint8, {8, 8}}, false},
                    {{"mask", DType::kUint8, {8, 9}}, false}}),
      "map[0].crop: moves the pixels of pictures of one size together, found "
      "image uint8 [8, 8] and mask uint8 [8, 9]; use resize before it");
}

// ---- the fast way of decode_image

TEST_F(RowProgramTest, FlipAndValuesOnTheWayAreThoseDoneAfterwards) {
  const Bytes file = EncodeJpeg({.height = 100, .width = 150});
  DecodeImageOp decode = {.crop = RandomResizedCrop{}, .size = {33, 47}};
  const NormalizeOp normalize = {.mean = {0.485, 0.456, 0.406},
                                 .std = {0.229, 0.224, 0.225},
                                 .dtype = DType::kFloat16,
                                 .layout = Layout::kChw};
  for (uint64_t sample = 0; sample < 20; ++sample) {
    Compile({decode}, Encoded());
    const Bytes pixels = Run(file, {.sample = sample});
    const FlipOp flip = {.vertical = 0.5};
    Compile({decode, flip, normalize}, Encoded());
    const Bytes on_the_way = Run(file, {.sample = sample});
    // The flip is op 1 there; here a cast without effect is op 0.
    Compile({CastOp{.dtype = DType::kUint8}, flip, normalize},
            Plain(DType::kUint8, {33, 47, 3}));
    EXPECT_EQ(on_the_way, Run(pixels, {.sample = sample})) << sample;
  }
}

TEST_F(RowProgramTest, TheFastWayIsNearTheExactOne) {
  const Bytes file = EncodeJpeg({.height = 375, .width = 500});
  CenterPixels pixels;
  pixels.shorter = 140;
  for (uint64_t sample = 0; sample < 20; ++sample) {
    DecodeImageOp decode = {.crop = RandomResizedCrop{}, .size = {100, 120}};
    if (sample == 0) decode.crop = pixels;
    Compile({decode}, Encoded());
    const Bytes fast = Run(file, {.sample = sample});
    decode.exact = true;
    Compile({decode}, Encoded());
    const Bytes exact = Run(file, {.sample = sample});
    double squares = 0;
    for (size_t i = 0; i < fast.size(); ++i) {
      const int difference =
          std::to_integer<int>(fast[i]) - std::to_integer<int>(exact[i]);
      squares += difference * difference;
    }
    // 45 dB: a root mean square of 1.4 levels.
    EXPECT_LT(squares / static_cast<double>(fast.size()), 2.0) << sample;
  }
}

// The fast path leaves CMYK, and too much shrinking, to the exact one.
TEST_F(RowProgramTest, WhatTheFastWayCannotDoIsDoneExactly) {
  for (const JpegKind& kind :
       {JpegKind{.height = 40, .width = 60, .space = JCS_CMYK},
        JpegKind{.height = 900, .width = 20}}) {
    const Bytes file = EncodeJpeg(kind);
    DecodeImageOp decode = {.size = {9, 21}};
    const CastOp cast = {.dtype = DType::kInt16, .layout = Layout::kChw};
    Compile({decode, FlipOp{.horizontal = 1}, cast}, Encoded());
    const Bytes got = Run(file);
    decode.exact = true;
    Compile({decode, FlipOp{.horizontal = 1}, cast}, Encoded());
    EXPECT_EQ(got, Run(file));
  }
}

// ---- in two parts

// Maps whose first steps draw nothing, of a picture and a label.
std::vector<std::vector<TransformSpec>> MapsOfTwoParts() {
  const NormalizeOp normalize = {.mean = {0.485, 0.456, 0.406},
                                 .std = {0.229, 0.224, 0.225},
                                 .dtype = DType::kFloat16,
                                 .layout = Layout::kChw};
  const DecodeImageOp decode = {.size = {20, 24}};
  const DecodeImageOp exact = {
      .crop = CenterCrop{}, .size = {20, 24}, .exact = true};
  return {
      {decode, FlipOp{}, normalize},
      {exact, FlipOp{}, normalize},
      {decode, ResizeOp{.size = {9, 7}}, FlipOp{.horizontal = 1}, normalize},
      {decode, FlipOp{.horizontal = 1, .vertical = 1}, GrayscaleOp{},
       CastOp{.dtype = DType::kInt16}},
      {decode, InvertOp{.probability = 1}, EqualizeOp{.probability = 1},
       BlurOp{.kernel = 3, .sigma = {1, 1}}, RotateOp{.degrees = {30, 30}},
       ColorJitterOp{.brightness = {0.5, 1.5}}, normalize},
      {decode,
       AffineOp{.degrees = {10, 10}, .translate = {{{0.1, 0.1}, {0, 0}}}},
       RandAugmentOp{}, RandomErasingOp{}, normalize},
      {DecodeImageOp{.crop = RandomResizedCrop{}, .size = {8, 8}}, normalize},
      {decode, normalize},
  };
}

// What another host runs may draw random numbers; the rest only changes values.
TEST_F(RowProgramTest, StepsOfAnotherHostAndTheRestMakeWhatTheWholeMapMakes) {
  const Bytes picture = EncodeJpeg({.height = 29, .width = 33});
  const Bytes label = BytesOf<int64_t>({3});
  const RawSpec raw = {{{"image", DType::kUint8, {}}, true},
                       {{"label", DType::kInt64, {}}, false}};
  const NormalizeOp normalize = {.mean = {0.485, 0.456, 0.406},
                                 .std = {0.229, 0.224, 0.225},
                                 .layout = Layout::kChw};
  const DecodeImageOp decode = {.crop = RandomResizedCrop{}, .size = {8, 8}};
  const std::vector<std::vector<TransformSpec>> maps = {
      {decode, FlipOp{}, normalize},
      {decode, FlipOp{}, normalize, RandomErasingOp{}},
      {decode, ColorJitterOp{.brightness = {0.5, 1.5}}, normalize}};
  OpenProgress progress;
  for (const std::vector<TransformSpec>& map : maps) {
    Compile(map, raw);
    for (const size_t head : {size_t{2}, map.size()}) {
      MapOpening opening = {&progress};
      const auto parts =
          RowProgram::Compile(StepsOf(map), raw, {}, &opening, head);
      ASSERT_TRUE(parts.ok()) << parts.status().message();
      // As the other host compiles them.
      const auto there = RowProgram::Compile(
          {map.begin(), map.begin() + static_cast<ptrdiff_t>(head)}, raw);
      ASSERT_TRUE(there.ok()) << there.status().message();
      const auto scratch = (*parts)->MakeScratch({});
      const auto scratch_there = (*there)->MakeScratch({});
      for (uint64_t i = 0; i < 8; ++i) {
        const AugmentationKey key = {1, i / 4, i};
        const StatusOr<std::vector<Bytes>> whole =
            RunAll({picture, label}, key);
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        std::vector<Bytes> sent;
        std::vector<std::byte*> places;
        for (const Feature& feature : (*there)->element_spec()) {
          sent.emplace_back(feature.RowBytes());
        }
        for (Bytes& each : sent) places.push_back(each.data());
        ASSERT_TRUE(
            (*there)->Run({picture, label}, key, *scratch_there, places).ok());
        std::vector<Bytes> row;
        std::vector<std::byte*> out;
        for (const Bytes& each : *whole) row.emplace_back(each.size());
        for (Bytes& each : row) out.push_back(each.data());
        RawRecord made;
        for (const Bytes& each : sent) made.emplace_back(each);
        ASSERT_TRUE((*parts)->RunRest(made, key, *scratch, out).ok());
        EXPECT_EQ(row, *whole) << "head " << head;
        // Here, in two parts, too.
        for (Bytes& each : row)
          std::fill(each.begin(), each.end(), std::byte{});
        ASSERT_TRUE((*parts)->Run({picture, label}, key, *scratch, out).ok());
        EXPECT_EQ(row, *whole) << "head " << head;
      }
    }
  }
}

TEST_F(RowProgramTest, TheHeadAndTheRestMakeWhatTheWholeMapMakes) {
  const Bytes picture = EncodeJpeg({.height = 29, .width = 33});
  const Bytes label = BytesOf<int64_t>({-7});
  const RawSpec raw = {{{"image", DType::kUint8, {}}, true},
                       {{"label", DType::kInt64, {}}, false}};
  OpenProgress progress;
  for (const std::vector<TransformSpec>& map : MapsOfTwoParts()) {
    Compile(map, raw);
    for (size_t head = 0; head <= StepsToKeep(StepsOf(map)); ++head) {
      MapOpening opening = {&progress};
      const auto parts =
          RowProgram::Compile(StepsOf(map), raw, {}, &opening, head);
      ASSERT_TRUE(parts.ok()) << parts.status().message();
      EXPECT_EQ((*parts)->element_spec(), program_->element_spec());
      const auto scratch = (*parts)->MakeScratch({});
      for (uint64_t i = 0; i < 8; ++i) {
        const AugmentationKey key = {1, i / 4, i};
        const StatusOr<std::vector<Bytes>> whole =
            RunAll({picture, label}, key);
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        std::vector<Bytes> row;
        std::vector<std::byte*> out;
        for (const Bytes& each : *whole) row.emplace_back(each.size());
        for (Bytes& each : row) out.push_back(each.data());
        const RawRecord record = {picture, label};
        RawRecord made;
        ASSERT_TRUE((*parts)->RunHead(record, {}, *scratch, out, &made).ok());
        // As a cache keeps it.
        std::vector<Bytes> kept;
        for (const auto& each : made)
          kept.emplace_back(each.begin(), each.end());
        ASSERT_TRUE((*parts)->RunRest(made, key, *scratch, out).ok());
        EXPECT_EQ(row, *whole) << "head " << head;
        for (Bytes& each : row)
          std::fill(each.begin(), each.end(), std::byte{});
        RawRecord again;
        for (const Bytes& each : kept) again.emplace_back(each);
        ASSERT_TRUE((*parts)->RunRest(again, key, *scratch, out).ok());
        EXPECT_EQ(row, *whole) << "head " << head;
        ASSERT_TRUE((*parts)->Run(record, key, *scratch, out).ok());
        EXPECT_EQ(row, *whole) << "head " << head;
      }
    }
  }
}

// Whatever the key.
TEST_F(RowProgramTest, StepsThatDrawNothingMakeTheSameEachTime) {
  const Bytes picture = EncodeJpeg({.height = 29, .width = 33});
  size_t none = 0;
  for (const std::vector<TransformSpec>& map : MapsOfTwoParts()) {
    const std::vector<TransformSpec> head(
        map.begin(),
        map.begin() + static_cast<ptrdiff_t>(StepsToKeep(StepsOf(map))));
    none += head.empty();
    if (head.empty()) continue;
    Compile(head, Encoded());
    const Bytes first = Run(picture);
    for (uint64_t i = 1; i < 16; ++i) {
      EXPECT_EQ(Run(picture, {7 * i, i % 3, 11 * i}), first);
    }
  }
  EXPECT_EQ(none, 1u);
}

TEST_F(RowProgramTest, AHeadEndsWhereRandomNumbersAreDrawn) {
  const DecodeImageOp decode = {.size = {8, 8}};
  const NormalizeOp chw = {.mean = {0}, .std = {1}, .layout = Layout::kChw};
  const auto to_keep = [](const std::vector<TransformSpec>& map) {
    return StepsToKeep(StepsOf(map));
  };
  EXPECT_EQ(to_keep({}), 0u);
  EXPECT_EQ(to_keep({decode, FlipOp{}}), 1u);
  EXPECT_EQ(to_keep({decode, FlipOp{.horizontal = 0}}), 2u);
  EXPECT_EQ(to_keep({decode, PythonOp{}}), 1u);
  // Channels stay last while other steps follow.
  EXPECT_EQ(to_keep({decode, chw, RandomErasingOp{}}), 1u);
  EXPECT_EQ(to_keep({decode, chw}), 2u);
  EXPECT_TRUE(Draws(CropOp{.crop = RandomPixels{}}));
  EXPECT_FALSE(Draws(CropOp{.crop = CenterPixels{}}));
  EXPECT_TRUE(Draws(PerspectiveOp{}));
  EXPECT_TRUE(Draws(BlurOp{}));
  EXPECT_TRUE(Draws(PluginOp{}));
}

}  // namespace penstock::row_program_test
