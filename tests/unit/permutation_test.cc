// Promise: shuffle is a bijection of any size, frozen for a seed, and uniform.
// Method: every size up to 3,000 and chosen larger ones; known answers;
// chi-square tests of positions, passes, pairs and steps.
#include "broker/plan/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::permutation_test {

using testing::ElementsAre;

std::vector<uint64_t> Order(uint64_t n, uint64_t seed, uint64_t pass,
                            uint64_t count) {
  const Permutation order(n, seed, pass);
  std::vector<uint64_t> records;
  for (uint64_t i = 0; i < count; ++i) records.push_back(order(i));
  return records;
}

bool IsBijection(uint64_t n, uint64_t seed, uint64_t pass) {
  const Permutation order(n, seed, pass);
  std::vector<bool> seen(n);
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t record = order(i);
    if (record >= n || seen[record]) return false;
    seen[record] = true;
  }
  return true;
}

// Distance of chi-square from its mean in standard deviations, where every cell
// should hold total / cells.
double ChiSquareSigmas(const std::vector<uint64_t>& cells, uint64_t total) {
  const double expected = static_cast<double>(total) / cells.size();
  double chi_square = 0;
  for (const uint64_t count : cells) {
    const double difference = static_cast<double>(count) - expected;
    chi_square += difference * difference / expected;
  }
  const double freedom = static_cast<double>(cells.size()) - 1;
  return (chi_square - freedom) / std::sqrt(2 * freedom);
}

TEST(PermutationTest, EverySizeUpTo3000IsABijection) {
  for (uint64_t n = 1; n <= 3000; ++n) {
    ASSERT_TRUE(IsBijection(n, /*seed=*/n * 7, /*pass=*/n % 5)) << n;
  }
}

TEST(PermutationTest, SizesAroundSquaresAndProductsAreBijections) {
  for (const uint64_t root : {63, 64, 100, 255, 256, 447, 512}) {
    for (const uint64_t n :
         {root * root - 1, root * root, root * root + 1, root * (root + 1) - 1,
          root * (root + 1), root * (root + 1) + 1}) {
      ASSERT_TRUE(IsBijection(n, 42, 3)) << n;
    }
  }
}

TEST(PermutationTest, LargeSizesAreBijections) {
  for (const uint64_t n : {60000, 99991, 131071, 200003, 1281167}) {
    ASSERT_TRUE(IsBijection(n, 1, 0)) << n;
  }
}

// A resumed job must continue in the order in which it began: these values are
// a format. If this test fails, the code is wrong, not the test.
TEST(PermutationTest, TheOrderIsFrozen) {
  EXPECT_THAT(Order(1000, 42, 0, 12), ElementsAre(913, 469, 638, 174, 338, 829,
                                                  907, 348, 155, 122, 370, 89));
  EXPECT_THAT(Order(1000, 42, 1, 12), ElementsAre(526, 122, 528, 739, 769, 321,
                                                  846, 656, 949, 219, 66, 684));
  EXPECT_THAT(Order(10, 42, 0, 10), ElementsAre(9, 1, 0, 6, 4, 8, 3, 7, 2, 5));
  EXPECT_THAT(Order(256, 42, 7, 6), ElementsAre(207, 106, 74, 194, 215, 99));
  EXPECT_THAT(Order(257, 42, 7, 6), ElementsAre(41, 73, 233, 25, 58, 165));
  EXPECT_THAT(Order(1'281'167, 0, 0, 6),
              ElementsAre(795401, 786116, 411320, 267538, 47379, 590453));
  EXPECT_THAT(
      Order(1'000'000'000'000, 42, 0, 4),
      ElementsAre(277443728229, 899307022856, 461758453999, 193525463524));
  EXPECT_THAT(Order(Permutation::kRecordsMax, 42, 0, 4),
              ElementsAre(3634333961986453935, 4005687401260661514,
                          4352213726016320301, 1074237118468325854));
  // The first two in full, as one number each (FNV-1a over the values).
  for (const auto& [pass, frozen] :
       {std::pair<uint64_t, uint64_t>{0, 13866172864869909223u},
        std::pair<uint64_t, uint64_t>{1, 4688479096320923633u}}) {
    uint64_t hash = 0xcbf2'9ce4'8422'2325;
    for (const uint64_t record : Order(1000, 42, pass, 1000)) {
      hash = (hash ^ record) * 0x100'0000'01b3;
    }
    EXPECT_EQ(hash, frozen) << pass;
  }
}

TEST(PermutationTest, IsAFunctionOfItsArguments) {
  EXPECT_EQ(Order(5000, 9, 4, 5000), Order(5000, 9, 4, 5000));
}

TEST(PermutationTest, HugeSizesStayInRangeAndDoNotRepeatNearby) {
  for (const uint64_t n :
       {uint64_t{1} << 32, (uint64_t{1} << 32) + 1, uint64_t{1'000'000'000'000},
        (uint64_t{1} << 53) + 1, Permutation::kRecordsMax - 1,
        Permutation::kRecordsMax}) {
    const Permutation order(n, 42, 0);
    std::vector<uint64_t> records;
    for (uint64_t i = 0; i < 1000; ++i) {
      records.push_back(order(i));
      records.push_back(order(n - 1 - i));
    }
    for (const uint64_t record : records) ASSERT_LT(record, n);
    std::sort(records.begin(), records.end());
    EXPECT_EQ(std::unique(records.begin(), records.end()), records.end()) << n;
  }
}

TEST(PermutationTest, ARecordIsEquallyLikelyAtEveryPosition) {
  constexpr uint64_t kSeeds = 200'000;
  for (const uint64_t n : {10, 100, 256, 257, 300, 1000}) {
    for (const uint64_t index : {uint64_t{0}, uint64_t{1}, n / 2, n - 1}) {
      std::vector<uint64_t> cells(n);
      for (uint64_t seed = 0; seed < kSeeds; ++seed) {
        ++cells[Permutation(n, seed, 0)(index)];
        if (n <= 256 && seed >= kSeeds / 10) break;
      }
      uint64_t total = 0;
      for (const uint64_t count : cells) total += count;
      EXPECT_LT(std::abs(ChiSquareSigmas(cells, total)), 5)
          << n << " " << index;
    }
  }
}

TEST(PermutationTest, ARecordIsEquallyLikelyInEveryPass) {
  constexpr uint64_t kPasses = 200'000;
  const uint64_t n = 700;
  std::vector<uint64_t> cells(n);
  for (uint64_t pass = 0; pass < kPasses; ++pass) {
    ++cells[Permutation(n, 42, pass)(5)];
  }
  EXPECT_LT(std::abs(ChiSquareSigmas(cells, kPasses)), 5);
}

// Neighbours of one half of the Feistel pair (index and index + 1) and of the
// other (index and index + 16 for n near 256) must not stay related.
TEST(PermutationTest, PairsOfPositionsAreJointlyUniform) {
  constexpr uint64_t kSeeds = 1'000'000;
  const uint64_t n = 300;
  for (const uint64_t other : {1, 17, 18, 299}) {
    std::vector<uint64_t> cells(n * n);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Permutation order(n, seed, 0);
      ++cells[order(0) * n + order(other)];
    }
    // The diagonal is impossible: leave it out.
    std::vector<uint64_t> possible;
    for (uint64_t i = 0; i < n * n; ++i) {
      if (i / n != i % n) {
        possible.push_back(cells[i]);
      } else {
        ASSERT_EQ(cells[i], 0u);
      }
    }
    EXPECT_LT(std::abs(ChiSquareSigmas(possible, kSeeds)), 5) << other;
  }
}

TEST(PermutationTest, StepsWithinAnOrderAreUniform) {
  const uint64_t n = 1'000'003;
  const Permutation order(n, 42, 0);
  for (const uint64_t stride : {1, 2, 1000, 1001}) {
    std::vector<uint64_t> cells(1000);
    for (uint64_t i = 0; i + stride < n; ++i) {
      ++cells[(order(i + stride) + n - order(i)) % n * cells.size() / n];
    }
    EXPECT_LT(std::abs(ChiSquareSigmas(cells, n - stride)), 5) << stride;
  }
}

// Two random orders agree at one position on average, however similar their
// keys are; the count is close to a Poisson number.
TEST(PermutationTest, SimilarSeedsAndPassesGiveUnrelatedOrders) {
  constexpr int kPairs = 400;
  for (const uint64_t n : {200, 1000, 4096}) {
    const Permutation base(n, 42, 0);
    for (const bool by_pass : {false, true}) {
      double agreements = 0;
      for (uint64_t i = 1; i <= kPairs; ++i) {
        const Permutation other(n, by_pass ? 42 : 42 + i, by_pass ? i : 0);
        for (uint64_t j = 0; j < n; ++j) agreements += base(j) == other(j);
      }
      EXPECT_NEAR(agreements, kPairs, 5 * std::sqrt(kPairs)) << n << by_pass;
    }
    // A seed and a pass are different arguments, not a sum.
    double agreements = 0;
    for (uint64_t i = 1; i <= kPairs; ++i) {
      const Permutation seeded(n, i, 0);
      const Permutation passed(n, 0, i);
      for (uint64_t j = 0; j < n; ++j) agreements += seeded(j) == passed(j);
    }
    EXPECT_NEAR(agreements, kPairs, 5 * std::sqrt(kPairs)) << n;
  }
}

// One changed bit of index, seed or pass changes half of the result's bits.
TEST(PermutationTest, EveryInputBitReachesEveryOutputBit) {
  const uint64_t n = uint64_t{1} << 40;
  constexpr int kBits = 40;
  constexpr int kTrials = 4000;
  const auto expect_half = [&](const char* what, auto flip) {
    int cells[kBits] = {};
    for (uint64_t i = 0; i < kTrials; ++i) {
      const uint64_t index = i * 268'435'399 % n;
      const uint64_t changed = Permutation(n, i, i / 7)(index) ^ flip(i, index);
      for (int bit = 0; bit < kBits; ++bit) cells[bit] += changed >> bit & 1;
    }
    for (int bit = 0; bit < kBits; ++bit) {
      EXPECT_NEAR(cells[bit], kTrials / 2, 5 * std::sqrt(kTrials) / 2)
          << what << " to bit " << bit;
    }
  };
  for (const int bit : {0, 1, 19, 20, 21, 39}) {
    expect_half("index", [&](uint64_t i, uint64_t index) {
      return Permutation(n, i, i / 7)(index ^ (uint64_t{1} << bit));
    });
  }
  for (const int bit : {0, 31, 32, 63}) {
    expect_half("seed", [&](uint64_t i, uint64_t index) {
      return Permutation(n, i ^ (uint64_t{1} << bit), i / 7)(index);
    });
    expect_half("pass", [&](uint64_t i, uint64_t index) {
      return Permutation(n, i, i / 7 ^ (uint64_t{1} << bit))(index);
    });
  }
}

}  // namespace penstock::permutation_test
