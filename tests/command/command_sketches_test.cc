// Promise: summaries of `penstock analyze` keep their bounds: quantiles are off
// by less than 0.5 % of the ranks, moments are those of all values, counts are
// exact up to their number and too low by at most undercount() beyond. Method:
// many values beside the same by sorting and counting, whole and merged.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "client/command/sketches.h"
#include "client/command/statistics_plot.h"
#include "common/format.h"

namespace penstock::command_sketches_test {

void ExpectQuantiles(const QuantileSketch& sketch, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto weighted = sketch.Weighted();
  uint64_t all = 0;
  for (const auto& [value, weight] : weighted) all += weight;
  // What is left over of an odd number of values keeps its weight.
  EXPECT_EQ(all, values.size());
  for (double q = 0.01; q < 1; q += 0.01) {
    const double found = QuantileOf(weighted, q);
    const double low =
        std::lower_bound(values.begin(), values.end(), found) - values.begin();
    const double high =
        std::upper_bound(values.begin(), values.end(), found) - values.begin();
    const double n = static_cast<double>(values.size());
    EXPECT_LT(low / n, q + 0.005) << q;
    EXPECT_GT(high / n, q - 0.005) << q;
  }
}

TEST(QuantileSketchTest, RanksAreWithinTheBound) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(1e9, 1);
  for (const char* order : {"random", "rising", "falling"}) {
    std::vector<double> values(300'001);
    for (double& each : values) each = normal(random);
    if (order[1] != 'a') std::sort(values.begin(), values.end());
    if (order[0] == 'f') std::reverse(values.begin(), values.end());
    QuantileSketch sketch;
    for (const double each : values) sketch.Add(each);
    EXPECT_LT(sketch.Weighted().size(), 4096u);
    ExpectQuantiles(sketch, values);
  }
}

TEST(QuantileSketchTest, MergedIsAsGoodAsWhole) {
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> values;
  QuantileSketch all;
  for (int part = 0; part < 16; ++part) {
    QuantileSketch sketch;
    for (int i = 0; i < 1000 * part; ++i) {
      values.push_back(uniform(random) + part);
      sketch.Add(values.back());
    }
    all.Merge(sketch);
  }
  ExpectQuantiles(all, values);
}

TEST(QuantileSketchTest, FewValuesAreExact) {
  QuantileSketch sketch;
  for (const double each : {3, 1, 2, 2}) sketch.Add(each);
  const auto weighted = sketch.Weighted();
  EXPECT_EQ(QuantileOf(weighted, 0.25), 1);
  EXPECT_EQ(QuantileOf(weighted, 0.5), 2);
  EXPECT_EQ(QuantileOf(weighted, 1), 3);
  EXPECT_TRUE(QuantileSketch().Weighted().empty());
}

TEST(MomentsTest, AreThoseOfAllValuesHoweverMerged) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal(1e6, 0.5);
  Moments whole;
  Moments merged;
  std::vector<double> values;
  for (int part = 0; part < 7; ++part) {
    Moments of_part;
    for (int i = 0; i < 1000; ++i) {
      values.push_back(normal(random));
      whole.Add(values.back());
      of_part.Add(values.back());
    }
    merged.Merge(of_part);
    merged.Merge(Moments());
  }
  long double sum = 0;
  for (const double each : values) sum += each;
  const long double mean = sum / values.size();
  long double squares = 0;
  for (const double each : values) squares += (each - mean) * (each - mean);
  const double std = std::sqrt(static_cast<double>(squares / values.size()));
  for (const Moments& each : {whole, merged}) {
    EXPECT_EQ(each.count(), values.size());
    EXPECT_NEAR(each.mean(), static_cast<double>(mean), 1e-9);
    EXPECT_NEAR(each.std(), std, 1e-9);
    EXPECT_EQ(each.min(), *std::min_element(values.begin(), values.end()));
    EXPECT_EQ(each.max(), *std::max_element(values.begin(), values.end()));
  }
  Moments weighted;
  weighted.Add(2, 3);
  weighted.Add(6, 1);
  weighted.Add(9, 0);
  EXPECT_EQ(weighted.mean(), 3);
  EXPECT_EQ(weighted.std(), std::sqrt(3));
  EXPECT_EQ(weighted.max(), 6);
}

TEST(TokenCountsTest, AreExactUpToTheirNumber) {
  TokenCounts<std::string> counts(3, 100);
  for (const char* each : {"b", "a", "c", "b", "", "b", "a"}) {
    if (*each != '\0') counts.Add(each);
  }
  const std::vector<std::pair<std::string, uint64_t>> wanted = {
      {"b", 3}, {"a", 2}, {"c", 1}};
  EXPECT_EQ(counts.Sorted(), wanted);
  EXPECT_EQ(counts.undercount(), 0u);
}

TEST(TokenCountsTest, BeyondTheyAreTooLowByAStatedNumber) {
  std::mt19937_64 random(6);
  std::geometric_distribution<int64_t> often(0.01);
  TokenCounts<int64_t> counts(100, SIZE_MAX);
  std::map<int64_t, uint64_t> exact;
  for (int i = 0; i < 100'000; ++i) {
    const int64_t token = often(random);
    counts.Add(token);
    ++exact[token];
  }
  EXPECT_GT(exact.size(), 500u);
  EXPECT_LE(counts.undercount(), 2000u);  // 2 * 100,000 / 100
  std::map<int64_t, uint64_t> found;
  for (const auto& [token, count] : counts.Sorted()) found[token] = count;
  EXPECT_LE(found.size(), 101u);
  for (const auto& [token, count] : exact) {
    EXPECT_LE(found[token], count);
    EXPECT_GE(found[token] + counts.undercount(), count) << token;
  }
}

TEST(TokenCountsTest, LongTokensAreBoundedByTheirBytes) {
  TokenCounts<std::string> counts(1'000'000, 10'000);
  for (int i = 0; i < 1000; ++i) counts.Add(Format("{:0>100}", i));
  EXPECT_LE(counts.Sorted().size(), 101u);
  EXPECT_GT(counts.undercount(), 0u);
}

TEST(SmallHistogramTest, HasABarOfWhatIsThere) {
  EXPECT_EQ(SmallHistogram({0, 1, 8, 1000}, 4), " ▁▁█");
  EXPECT_EQ(SmallHistogram({1, 1, 1, 1}, 2), "██");
  EXPECT_EQ(SmallHistogram({}, 8), "");
  const ContactSheet sheet = DrawHistograms({{1, 2}, {}});
  EXPECT_EQ(sheet.pixels.size(),
            static_cast<size_t>(sheet.width * sheet.height));
}

}  // namespace penstock::command_sketches_test
