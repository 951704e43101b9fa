// Promise: order `cyclic` is that of Megatron's sampler for any micro batch and
// number of ranks, with data sharding and without, and draws as PyTorch does.
// Method: numbers of torch 2.13 (CPU), and the sampler's loops, written down
// once more with its lists. tests/python/test_megatron.py has torch itself; all
// numbers of permutations of 214,748,363 and 214,748,364, from which on it
// draws 64 bits, were compared by hand (seed 77): a minute each, 2 GB.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "broker/plan/orders.h"

namespace penstock::cyclic_test {

using testing::ElementsAre;
using testing::HasSubstr;

uint64_t CrcOf(const std::vector<uint32_t>& numbers) {
  return crc32_z(0, reinterpret_cast<const Bytef*>(numbers.data()),
                 numbers.size() * sizeof(uint32_t));
}

TEST(CyclicTest, PermutationsAreThoseOfPyTorch) {
  EXPECT_THAT(PermutationAsTorch(10, 0),
              ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(PermutationAsTorch(10, 1),
              ElementsAre(5, 6, 1, 2, 0, 8, 9, 3, 7, 4));
  EXPECT_THAT(PermutationAsTorch(1, 9), ElementsAre(0));
  EXPECT_EQ(CrcOf(PermutationAsTorch(1000, 5)), 3589419768u);
  EXPECT_EQ(CrcOf(PermutationAsTorch(100003, 77)), 1950880602u);
}

// What MegatronPretrainingRandomSampler yields to a rank in an epoch.
std::vector<uint64_t> SamplerOf(uint64_t total, uint64_t epoch, uint64_t micro,
                                uint64_t ranks, uint64_t rank, bool sharded) {
  std::vector<uint64_t> range;
  const auto seed = static_cast<uint32_t>(epoch);
  if (sharded) {
    const uint64_t bucket = total / (micro * ranks) * micro;
    for (const uint32_t each : PermutationAsTorch(bucket, seed)) {
      range.push_back(rank * bucket + each);
    }
  } else {
    const std::vector<uint32_t> all =
        PermutationAsTorch(total / micro * micro, seed);
    for (uint64_t i = rank; i < all.size(); i += ranks) range.push_back(all[i]);
  }
  range.resize(range.size() / micro * micro);  // the last batch is dropped
  return range;
}

TEST(CyclicTest, EachRankHasTheSamplesOfMegatronsSampler) {
  for (const bool sharded : {true, false}) {
    for (const uint64_t total : {24u, 100u, 101u, 103u, 250u}) {
      for (const uint64_t micro : {1u, 2u, 3u, 8u}) {
        for (const uint32_t ranks : {1u, 2u, 3u}) {
          const auto order =
              Cyclic(AllRecords(total), micro, ranks, sharded, {});
          ASSERT_TRUE(order.ok()) << order.status().message();
          const uint64_t batch = micro * ranks;
          ASSERT_EQ((*order)->size(), total / batch * batch);
          // Back, too: threads are in two epochs at once.
          Shuffles shuffles;
          for (const uint64_t epoch : {0u, 1u, 0u, 7u}) {
            for (uint64_t rank = 0; rank < ranks; ++rank) {
              const std::vector<uint64_t> wanted =
                  SamplerOf(total, epoch, micro, ranks, rank, sharded);
              const uint64_t rows = (*order)->size() / ranks;
              // With more ranks than a micro batch, some may have one batch
              // more there, and lose the step with the others.
              ASSERT_GE(wanted.size(), rows);
              for (uint64_t i = 0; i < rows; ++i) {
                const uint64_t row =
                    i / micro * batch + rank * micro + i % micro;
                for (Shuffles* const last :
                     {&shuffles, static_cast<Shuffles*>(nullptr)}) {
                  ASSERT_EQ((*order)->At(row, epoch, {nullptr, last}),
                            (Order::Row{wanted[i], epoch}));
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(CyclicTest, FewerSamplesThanABatchAreRefused) {
  EXPECT_THAT(
      Cyclic(AllRecords(7), 4, 2, true, {}).status().message(),
      HasSubstr("7 samples, less than a batch of 4 for each of 2 ranks"));
  OrderBudget budget;
  budget.reserve = [](uint64_t bytes) {
    return ResourceExhaustedError("{} bytes", bytes);
  };
  EXPECT_THAT(Cyclic(AllRecords(103), 4, 2, false, budget).status().message(),
              HasSubstr("800 bytes"));
}

}  // namespace penstock::cyclic_test
