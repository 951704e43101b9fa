// Promise: sources range, tensors and synthetic give the documented records,
// and refuse specs without records or too large. Method: every record of small
// ones; formulas and known values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "broker/source/kinds.h"

namespace penstock::source_test {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Source> Open(const SourceSpec& spec) {
  OpenProgress progress;
  auto source = OpenSource(spec, &progress);
  EXPECT_TRUE(source.ok()) << source.status().message();
  return source.ok() ? *std::move(source) : nullptr;
}

std::string OpenFails(const SourceSpec& spec) {
  const auto source = OpenSource(spec, nullptr);
  EXPECT_EQ(source.status().code(), StatusCode::kInvalidArgument);
  return source.status().message();
}

// Returns the bytes of every feature of a record that needs no read.
std::vector<std::vector<std::byte>> Record(const Source& source,
                                           uint64_t record) {
  ReadRequest request;
  request.kind = ReadRequest::Kind::kFile;
  source.Locate(record, &request);
  EXPECT_EQ(request.kind, ReadRequest::Kind::kNone);
  std::vector<std::byte> scratch;
  RawRecord raw;
  EXPECT_TRUE(source.Unpack(record, {}, &scratch, &raw).ok());
  std::vector<std::vector<std::byte>> features;
  for (const auto& bytes : raw) {
    features.emplace_back(bytes.begin(), bytes.end());
  }
  return features;
}

template <typename T>
std::vector<T> Values(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

int64_t RangeValue(const Source& source, uint64_t record) {
  return Values<int64_t>(Record(source, record).at(0)).at(0);
}

TEST(RangeSourceTest, CountsUpAndDownToStopWithoutIt) {
  auto up = Open(RangeSource{3, 10, 2});
  ASSERT_EQ(up->record_count(), 4u);
  EXPECT_EQ(RangeValue(*up, 0), 3);
  EXPECT_EQ(RangeValue(*up, 3), 9);
  EXPECT_EQ(Open(RangeSource{3, 9, 2})->record_count(), 3u);

  auto down = Open(RangeSource{5, -1, -3});
  ASSERT_EQ(down->record_count(), 2u);
  EXPECT_EQ(RangeValue(*down, 1), 2);
  EXPECT_EQ(down->memory_bytes(), 0u);
  EXPECT_EQ(down->raw_spec()[0].feature, (Feature{"value", DType::kInt64, {}}));
}

TEST(RangeSourceTest, ReachesTheEndsOfInt64) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  auto all = Open(RangeSource{kMin, kMax, 1});
  ASSERT_EQ(all->record_count(), UINT64_MAX);
  EXPECT_EQ(RangeValue(*all, UINT64_MAX - 1), kMax - 1);
  auto two = Open(RangeSource{kMax, kMin, kMin});
  ASSERT_EQ(two->record_count(), 2u);
  EXPECT_EQ(RangeValue(*two, 1), -1);
}

TensorsSource ThreeRows() {
  TensorsSource spec;
  spec.rows = 3;
  spec.repeat = 2;
  const int16_t x[3][2] = {{1, 2}, {3, 4}, {5, 6}};
  const uint8_t y[3] = {7, 8, 9};
  const auto x_bytes = std::as_bytes(std::span(x));
  const auto y_bytes = std::as_bytes(std::span(y));
  spec.tensors.push_back(
      {{"x", DType::kInt16, {2}}, {x_bytes.begin(), x_bytes.end()}});
  spec.tensors.push_back(
      {{"y", DType::kUint8, {}}, {y_bytes.begin(), y_bytes.end()}});
  return spec;
}

TEST(TensorsSourceTest, RecordsAreRowsRepeated) {
  auto source = Open(ThreeRows());
  ASSERT_EQ(source->record_count(), 6u);
  EXPECT_EQ(source->memory_bytes(), 15u);
  for (uint64_t record : {1u, 4u}) {
    const auto features = Record(*source, record);
    EXPECT_THAT(Values<int16_t>(features.at(0)), ElementsAre(3, 4));
    EXPECT_THAT(Values<uint8_t>(features.at(1)), ElementsAre(8));
  }
  EXPECT_EQ(source->Describe(4), "tensors row 1");
}

SyntheticSource EveryDType() {
  SyntheticSource spec;
  spec.records = 1000;
  for (uint32_t i = 1; i <= 10; ++i) {
    const auto dtype = static_cast<DType>(i);
    spec.features.push_back({std::string(DTypeName(dtype)), dtype, {5, 3}});
  }
  return spec;
}

TEST(SyntheticSourceTest, BytesDependOnRecordAndFeatureOnly) {
  auto one = Open(EveryDType());
  auto other = Open(EveryDType());
  EXPECT_EQ(Record(*one, 7), Record(*other, 7));
  EXPECT_EQ(one->memory_bytes(), 0u);
  const auto seven = Record(*one, 7);
  const auto eight = Record(*one, 8);
  ASSERT_EQ(seven.size(), 10u);
  for (size_t i = 0; i < seven.size(); ++i) {
    EXPECT_EQ(seven[i].size(), one->raw_spec()[i].feature.RowBytes());
    EXPECT_NE(seven[i], eight[i]);
  }
  EXPECT_NE(seven[0], seven[1]);  // both have one byte per value
}

// Other programs check the bytes by this formula.
TEST(SyntheticSourceTest, BytesFollowTheStatedFormula) {
  const auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  };
  const uint64_t state = mix(mix(123) + 1);
  const uint64_t word0 = mix(state + 0x9e3779b97f4a7c15);
  const uint64_t word1 = mix(state + 2 * 0x9e3779b97f4a7c15);
  SyntheticSource spec;
  spec.records = 200;
  spec.features = {{"a", DType::kUint8, {1}}, {"b", DType::kInt32, {3}}};
  EXPECT_THAT(Values<int32_t>(Record(*Open(spec), 123)[1]),
              ElementsAre(static_cast<int32_t>(word0),
                          static_cast<int32_t>(word0 >> 32),
                          static_cast<int32_t>(word1)));
  spec.features[1] = {"b", DType::kFloat32, {3}};
  EXPECT_THAT(
      Values<float>(Record(*Open(spec), 123)[1]),
      ElementsAre(static_cast<float>((word0 & 0xffffffff) >> 8) * 0x1p-24f,
                  static_cast<float>(word0 >> 40) * 0x1p-24f,
                  static_cast<float>((word1 & 0xffffffff) >> 8) * 0x1p-24f));
  spec.features[1] = {"b", DType::kFloat64, {1}};
  EXPECT_THAT(Values<double>(Record(*Open(spec), 123)[1]),
              ElementsAre(static_cast<double>(word0 >> 11) * 0x1p-53));
  spec.features[1] = {"b", DType::kBool, {3}};
  EXPECT_THAT(Values<uint8_t>(Record(*Open(spec), 123)[1]),
              ElementsAre(word0 & 1, word0 >> 8 & 1, word0 >> 16 & 1));
}

double HalfToDouble(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  EXPECT_TRUE(exponent != 31);
  return exponent == 0 ? std::ldexp(bits & 1023, -24)
                       : std::ldexp((bits & 1023) | 1024, exponent - 25);
}

TEST(SyntheticSourceTest, FloatsAreUniformInZeroToOne) {
  SyntheticSource spec;
  spec.records = 1;
  spec.features = {{"f16", DType::kFloat16, {100'000}},
                   {"bf16", DType::kBFloat16, {100'000}},
                   {"f32", DType::kFloat32, {100'000}},
                   {"f64", DType::kFloat64, {100'000}}};
  const auto features = Record(*Open(spec), 0);
  std::vector<std::vector<double>> all(4);
  for (const uint16_t bits : Values<uint16_t>(features[0])) {
    all[0].push_back(HalfToDouble(bits));
  }
  for (const uint16_t bits : Values<uint16_t>(features[1])) {
    all[1].push_back(std::bit_cast<float>(uint32_t{bits} << 16));
  }
  for (const float value : Values<float>(features[2])) all[2].push_back(value);
  for (const double value : Values<double>(features[3])) {
    all[3].push_back(value);
  }
  for (const std::vector<double>& values : all) {
    double sum = 0;
    for (const double value : values) {
      ASSERT_TRUE(value >= 0 && value < 1) << value;
      sum += value;
    }
    EXPECT_NEAR(sum / static_cast<double>(values.size()), 0.5, 0.01);
  }
}

TEST(SyntheticSourceTest, CostIsCpuTimeOfTheCaller) {
  SyntheticSource spec;
  spec.records = 1;
  spec.features = {{"a", DType::kUint8, {1}}};
  spec.cost_us = 20'000;
  auto source = Open(spec);
  const auto cpu_us = [] {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000 + now.tv_nsec / 1000;
  };
  const auto before = cpu_us();
  Record(*source, 0);
  EXPECT_GE(cpu_us() - before, 20'000);
}

TEST(SyntheticSourceTest, TooMuchIsRefused) {
  SyntheticSource spec;
  spec.records = 1;
  spec.features = {{"a", DType::kUint8, {1}},
                   {"b", DType::kFloat64, {1 << 15, 1 << 10}}};
  EXPECT_THAT(OpenFails(spec), HasSubstr("more than 268435456 bytes"));
}

}  // namespace penstock::source_test
