// Promise: packing puts each item of each document into exactly one place of a
// pass, in pieces that fit and follow one another; windows have equally many
// sequences in each pass, whose neighbours differ; and best fit fills sequences
// of documents of real lengths to more than 99 %. What is kept of windows is
// enough for each part and each use, and reserved. Method: brute force over the
// pieces of all sequences; best and first fit beside a search through all bins.
#include "broker/plan/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "broker/plan/fit.h"
#include "broker/plan/mix.h"
#include "broker/plan/orders.h"
#include "broker/plan/plan.h"
#include "tests/unit/plan_rows.h"

namespace penstock::packing_test {

using testing::ElementsAre;
using testing::HasSubstr;
using Method = PackSpec::Method;
using Longer = PackSpec::Longer;
using Lengths = std::vector<uint64_t>;

Lengths RandomLengths(uint64_t count, uint64_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  Lengths lengths(count);
  for (uint64_t& length : lengths) {
    length = std::uniform_int_distribution<uint64_t>(0, most)(random);
  }
  return lengths;
}

// Medians and tails as texts of the web have them.
Lengths LogNormalLengths(uint64_t count, uint64_t most, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> lengths(6.2, 1.2);
  Lengths all(count);
  for (uint64_t& length : all) {
    length = std::clamp<uint64_t>(std::llround(lengths(random)), 1, most);
  }
  return all;
}

Status InTurn(size_t count, const std::function<Status(size_t)>& work) {
  for (size_t i = 0; i < count; ++i) PENSTOCK_RETURN_IF_ERROR(work(i));
  return OkStatus();
}

StatusOr<std::shared_ptr<const Packing>> PackingOf(
    const Lengths& lengths, const PackSpec& spec, bool shuffle = true,
    std::vector<std::unique_ptr<Order>> documents = {}) {
  if (documents.empty()) documents.push_back(AllRecords(lengths.size()));
  Packing::Options options;
  options.spec = spec;
  if (shuffle) options.shuffle = ShuffleSpec{.seed = 7};
  options.lengths = {
      "tokens.length", [&lengths](uint64_t record) {
        return ColumnValue(static_cast<int64_t>(lengths[record]));
      }};
  return Packing::Make(std::move(options), std::move(documents), InTurn, {},
                       [](uint64_t) {});
}

using Sequences = std::vector<std::vector<Piece>>;

// By number.
Sequences SequencesOf(const Packing& packing, uint64_t pass) {
  Sequences sequences(packing.totals().sequences);
  for (uint64_t i = 0; i < sequences.size(); ++i) {
    packing.PiecesOf(i, pass, &sequences[i]);
  }
  return sequences;
}

uint64_t Used(uint64_t length, const PackSpec& spec) {
  if (length <= spec.length || spec.method == Method::kSplit) return length;
  if (spec.longer == Longer::kDrop) return 0;
  return spec.longer == Longer::kCut ? spec.length : length;
}

void Check(const Lengths& lengths, const PackSpec& spec,
           const Sequences& sequences) {
  // By document: its pieces, by where they begin.
  std::vector<std::map<uint64_t, uint64_t>> pieces(lengths.size());
  for (const std::vector<Piece>& sequence : sequences) {
    ASSERT_FALSE(sequence.empty());
    uint64_t at = 0;
    for (const Piece& piece : sequence) {
      ASSERT_EQ(piece.at, at);
      ASSERT_GT(piece.size, 0u);
      ASSERT_EQ(piece.length, lengths[piece.record]);
      ASSERT_TRUE(
          pieces[piece.record].insert({piece.begin, piece.size}).second);
      at += piece.size;
    }
    ASSERT_LE(at, spec.length);
    ASSERT_LE(sequence.size(), spec.documents.value_or(UINT32_MAX));
  }
  for (uint64_t record = 0; record < lengths.size(); ++record) {
    uint64_t item = 0;
    for (const auto& [begin, size] : pieces[record]) {
      ASSERT_EQ(begin, item);
      item += size;
    }
    ASSERT_EQ(item, Used(lengths[record], spec));
    if (spec.method == Method::kSplit) continue;
    // Only what is longer is cut.
    const uint64_t used = Used(lengths[record], spec);
    ASSERT_EQ(pieces[record].size(), (used + spec.length - 1) / spec.length);
  }
}

TEST(PackingTest, EachItemIsInOnePlaceOfEachPass) {
  for (const uint64_t count : {1, 2, 63, 300}) {
    for (const uint64_t length : {1, 7, 64, 100}) {
      const Lengths lengths = RandomLengths(count, 180, count + length);
      if (std::accumulate(lengths.begin(), lengths.end(), uint64_t{0}) == 0) {
        continue;
      }
      for (const Method method :
           {Method::kBestFit, Method::kFirstFit, Method::kSplit}) {
        for (const Longer longer :
             {Longer::kSplit, Longer::kCut, Longer::kDrop}) {
          const PackSpec spec = {.length = length,
                                 .method = method,
                                 .longer = longer,
                                 .window = 100};
          const auto packing = PackingOf(lengths, spec);
          if (!packing.ok()) {
            EXPECT_EQ(longer, Longer::kDrop) << packing.status().message();
            continue;
          }
          uint64_t most = 0;
          for (const uint64_t pass : {0, 5}) {
            const Sequences sequences = SequencesOf(**packing, pass);
            Check(lengths, spec, sequences);
            if (HasFatalFailure()) return;
            for (const auto& each : sequences) {
              most = std::max<uint64_t>(most, each.size());
            }
          }
          EXPECT_LE(most, (*packing)->totals().in_sequence);
          if (method != Method::kSplit) {
            EXPECT_EQ(most, (*packing)->totals().in_sequence);
          }
        }
      }
    }
  }
}

// Which documents share a sequence.
std::set<std::set<uint64_t>> Neighbours(const Sequences& sequences) {
  std::set<std::set<uint64_t>> all;
  for (const auto& sequence : sequences) {
    std::set<uint64_t> records;
    for (const Piece& piece : sequence) records.insert(piece.record);
    all.insert(std::move(records));
  }
  return all;
}

TEST(PackingTest, APassHasTheSameLengthsWithOtherNeighbours) {
  const Lengths lengths = RandomLengths(2000, 40, 1);
  for (const Method method : {Method::kBestFit, Method::kFirstFit}) {
    const auto packing =
        *PackingOf(lengths, {.length = 64, .method = method, .window = 512});
    std::vector<std::multiset<std::vector<uint64_t>>> shapes;
    for (const uint64_t pass : {0, 1}) {
      auto& of_pass = shapes.emplace_back();
      for (const auto& sequence : SequencesOf(*packing, pass)) {
        std::vector<uint64_t> sizes;
        for (const Piece& piece : sequence) sizes.push_back(piece.size);
        std::sort(sizes.begin(), sizes.end());
        of_pass.insert(std::move(sizes));
      }
    }
    EXPECT_EQ(shapes[0], shapes[1]);
    const auto first = Neighbours(SequencesOf(*packing, 0));
    const auto second = Neighbours(SequencesOf(*packing, 1));
    size_t kept = 0;
    for (const auto& each : first) kept += second.contains(each);
    EXPECT_LT(kept, first.size() / 4);
    EXPECT_EQ(first, Neighbours(SequencesOf(*packing, 0)));
  }
}

TEST(PackingTest, WithoutAShuffleDocumentsKeepTheirOrder) {
  const Lengths lengths = {5, 3, 0, 9, 2, 4, 6, 1};
  const auto split = *PackingOf(
      lengths, {.length = 8, .method = Method::kSplit, .window = 4}, false);
  EXPECT_THAT(
      SequencesOf(*split, 3),
      ElementsAre(ElementsAre(Piece{0, 5, 0, 5, 0}, Piece{1, 3, 0, 3, 5}),
                  ElementsAre(Piece{3, 9, 0, 8, 0}),
                  ElementsAre(Piece{3, 9, 8, 1, 0}),
                  ElementsAre(Piece{4, 2, 0, 2, 0}, Piece{5, 4, 0, 4, 2},
                              Piece{6, 6, 0, 2, 6}),
                  ElementsAre(Piece{6, 6, 2, 4, 0}, Piece{7, 1, 0, 1, 4})));
  const auto fit = *PackingOf(lengths, {.length = 8, .window = 4}, false);
  // The whole piece of record 3 first, then by their first documents.
  EXPECT_THAT(
      SequencesOf(*fit, 3),
      ElementsAre(ElementsAre(Piece{3, 9, 0, 8, 0}),
                  ElementsAre(Piece{0, 5, 0, 5, 0}, Piece{1, 3, 0, 3, 5}),
                  ElementsAre(Piece{3, 9, 8, 1, 0}),
                  ElementsAre(Piece{4, 2, 0, 2, 0}, Piece{6, 6, 0, 6, 2}),
                  ElementsAre(Piece{5, 4, 0, 4, 0}, Piece{7, 1, 0, 1, 4})));
}

TEST(PackingTest, APlanHasEachSequenceOnceInEachPass) {
  const Lengths lengths = RandomLengths(3000, 60, 4);
  const auto packing = *PackingOf(lengths, {.length = 64, .window = 256});
  PlanSpec spec;
  spec.shuffle = ShuffleSpec{.seed = 7};
  spec.batch.size = 10;
  spec.epochs = 3;
  const Plan plan = *Plan::Make(spec, *packing->SequencesOf(0), 4);
  EXPECT_EQ(plan.records(), packing->totals().sequences);
  Shuffles shuffles;
  std::vector<std::vector<uint64_t>> passes(3);
  for (uint64_t step = 0; step < *plan.total_steps(); ++step) {
    for (const Plan::Row& row : RowsOf(plan, step, &shuffles)) {
      passes[row.pass].push_back(row.record);
    }
  }
  EXPECT_NE(passes[0], passes[1]);
  for (std::vector<uint64_t>& pass : passes) {
    std::sort(pass.begin(), pass.end());
    std::vector<uint64_t> all(packing->totals().sequences);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(pass, all);
  }
}

TEST(PackingTest, PartsArePackedAloneOrTogether) {
  const Lengths lengths = RandomLengths(900, 30, 9);
  const auto parts = [] {
    std::vector<std::unique_ptr<Order>> orders;
    orders.push_back(AllRecords(300));
    orders.push_back(AllRecords(600, 300));
    return orders;
  };
  const PackSpec spec = {.length = 64, .window = 128};
  const auto alone = *PackingOf(lengths, spec, true, parts());
  uint64_t both = 0;
  const auto count = [&both](const Sequences& sequences) {
    both = 0;
    for (const auto& sequence : sequences) {
      const auto is_first = [](const Piece& piece) {
        return piece.record < 300;
      };
      const auto first =
          std::count_if(sequence.begin(), sequence.end(), is_first);
      both += first > 0 && first < static_cast<ptrdiff_t>(sequence.size());
    }
  };
  const Sequences sequences = SequencesOf(*alone, 1);
  Check(lengths, spec, sequences);
  count(sequences);
  EXPECT_EQ(both, 0u);
  // The sequences of the parts follow one another.
  const auto second = *alone->SequencesOf(1);
  EXPECT_EQ(second->At(0, 0, {}).record, (*alone->SequencesOf(0))->size());

  std::vector<std::unique_ptr<Order>> mixed;
  mixed.push_back(*Mix(parts(), {{0, {1, 2}}}, WhenOut::kDrop, {}));
  const auto together = *PackingOf(lengths, spec, true, std::move(mixed));
  Check(lengths, spec, SequencesOf(*together, 1));
  count(SequencesOf(*together, 1));
  EXPECT_GT(both, 100u);
}

// The bins by the books, in time O(n^2).
Fitted BySearch(const std::vector<uint32_t>& sizes, uint32_t room,
                uint32_t items_max, bool best) {
  Fitted fitted;
  std::vector<std::pair<uint32_t, uint32_t>> bins;  // room, items
  for (const uint32_t size : sizes) {
    size_t found = bins.size();
    for (size_t i = 0; i < bins.size(); ++i) {
      if (bins[i].first < size || bins[i].second == items_max) continue;
      if (found == bins.size() || (best && bins[i].first < bins[found].first)) {
        found = i;
      }
    }
    if (found == bins.size()) bins.push_back({room, 0});
    bins[found].first -= size;
    ++bins[found].second;
    fitted.bins.push_back(static_cast<uint32_t>(found));
  }
  fitted.count = static_cast<uint32_t>(bins.size());
  return fitted;
}

// How full the bins are.
std::multiset<uint64_t> Sums(const std::vector<uint32_t>& sizes,
                             const Fitted& fitted) {
  std::vector<uint64_t> sums(fitted.count, 0);
  for (size_t i = 0; i < sizes.size(); ++i) sums[fitted.bins[i]] += sizes[i];
  return {sums.begin(), sums.end()};
}

TEST(FitTest, BinsAreThoseOfASearch) {
  std::mt19937_64 random(3);
  for (const uint32_t room : {1u, 2u, 63u, 64u, 65u, 5000u, 300'000u}) {
    for (const uint32_t items_max : {1u, 3u, UINT32_MAX}) {
      std::vector<uint32_t> sizes(400);
      for (uint32_t& size : sizes) {
        size = 1 + static_cast<uint32_t>(random() % room);
        if (random() % 3 == 0) size = 1 + size / 9 % room;
      }
      std::sort(sizes.rbegin(), sizes.rend());
      const Fitted first = FirstFit(sizes, room, items_max);
      const Fitted wanted = BySearch(sizes, room, items_max, false);
      EXPECT_EQ(first.bins, wanted.bins);
      EXPECT_EQ(first.count, wanted.count);
      const Fitted best = BestFit(sizes, room, items_max);
      for (const uint64_t sum : Sums(sizes, best)) ASSERT_LE(sum, room);
      std::map<uint32_t, uint32_t> items;
      for (const uint32_t bin : best.bins) ASSERT_LE(++items[bin], items_max);
      EXPECT_EQ(items.size(), best.count);
      // It takes another of bins with equal room, which may have fewer items.
      if (items_max != UINT32_MAX) continue;
      EXPECT_EQ(Sums(sizes, best),
                Sums(sizes, BySearch(sizes, room, items_max, true)));
    }
  }
}

TEST(PackingTest, BestFitFillsRealLengths) {
  const Lengths lengths = LogNormalLengths(1 << 16, 100'000, 5);
  for (const uint64_t length : {2048, 4096, 8192, 131'072}) {
    const auto packing = *PackingOf(lengths, {.length = length});
    EXPECT_GT(packing->fill(), 0.99) << length;
  }
}

TEST(PackingTest, ThreadsHaveTheSameSequences) {
  const Lengths lengths = RandomLengths(20'000, 40, 2);
  const auto packing = *PackingOf(lengths, {.length = 64, .window = 128});
  std::vector<Sequences> wanted;
  for (const uint64_t pass : {0, 1}) {
    wanted.push_back(SequencesOf(*packing, pass));
  }
  std::atomic<uint64_t> wrong = 0;
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      std::vector<Piece> pieces;
      for (int i = 0; i < 1000; ++i) {
        const uint64_t pass = random() % 2;
        const uint64_t sequence = random() % wanted[pass].size();
        packing->PiecesOf(sequence, pass, &pieces);
        wrong += pieces != wanted[pass][sequence];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
}

// Counts how often a length is asked for.
struct Counted {
  StatusOr<std::shared_ptr<const Packing>> Pack(
      const PackSpec& spec, std::vector<std::unique_ptr<Order>> documents) {
    Packing::Options options;
    options.spec = spec;
    options.shuffle = ShuffleSpec{.seed = 7};
    options.lengths = {
        "n", [this](uint64_t record) {
          ++asked;
          return ColumnValue(static_cast<int64_t>(1 + record % 40));
        }};
    OrderBudget budget;
    budget.reserve = [this](uint64_t bytes) {
      reserved += bytes;
      return OkStatus();
    };
    return Packing::Make(std::move(options), std::move(documents), InTurn,
                         budget, [](uint64_t) {});
  }
  // Since the last call.
  uint64_t Asked() { return asked.exchange(0); }

  std::atomic<uint64_t> asked = 0;
  uint64_t reserved = 0;
};

TEST(PackingTest, EachPartAndUseKeepsItsWindow) {
  constexpr uint64_t kParts = 256;
  constexpr uint64_t kOfPart = 700;
  std::vector<std::unique_ptr<Order>> parts;
  for (uint64_t part = 0; part < kParts; ++part) {
    parts.push_back(AllRecords(kOfPart, part * kOfPart));
  }
  Counted counted;
  const auto packing =
      *counted.Pack({.length = 64, .window = 300}, std::move(parts));
  std::vector<std::unique_ptr<Order>> sequences;
  for (size_t part = 0; part < kParts; ++part) {
    sequences.push_back(*packing->SequencesOf(part));
  }
  std::vector<std::shared_ptr<const void>> uses;
  for (int i = 0; i < 3; ++i) uses.push_back(Packing::Use(packing));
  counted.Asked();
  // Each use is in another pass, and takes a sequence of each part in turn.
  uint64_t pieces_of_all = 0;
  std::vector<Piece> pieces;
  for (uint64_t i = 0; i < sequences[0]->size(); ++i) {
    for (uint64_t pass = 0; pass < uses.size(); ++pass) {
      for (const auto& of_part : sequences) {
        if (i >= of_part->size()) continue;
        packing->PiecesOf(of_part->At(i, pass, {}).record, pass, &pieces);
        pieces_of_all += pieces.size();
      }
    }
  }
  const uint64_t documents = uses.size() * kParts * kOfPart;
  EXPECT_GE(pieces_of_all, documents * 9 / 10);
  EXPECT_LE(counted.Asked(), documents + pieces_of_all);
}

TEST(PackingTest, WhatIsKeptIsReserved) {
  constexpr uint64_t kDocuments = 200'000;
  std::vector<std::unique_ptr<Order>> documents;
  documents.push_back(AllRecords(kDocuments));
  Counted counted;
  const auto packing =
      *counted.Pack({.length = 64, .window = kDocuments}, std::move(documents));
  EXPECT_GE(counted.reserved, packing->memory_bytes());
  // A record of 8 bytes, and where sequences end.
  EXPECT_GE(packing->use_bytes(), 2 * kDocuments * sizeof(uint64_t));
  EXPECT_LE(packing->use_bytes(), 4 * kDocuments * sizeof(uint64_t));
  std::vector<Piece> pieces;
  const auto asked_in = [&](uint64_t pass) {
    counted.Asked();
    packing->PiecesOf(0, pass, &pieces);
    return counted.Asked();
  };
  for (uint64_t pass = 0; pass < 6; ++pass) {
    EXPECT_GE(asked_in(pass), kDocuments);
  }
  EXPECT_LT(asked_in(5), 100u);
  EXPECT_GE(asked_in(0), kDocuments);  // that of a former pass is gone
  // Two somewhere else.
  std::vector<std::shared_ptr<const void>> uses(2);
  for (auto& use : uses) use = Packing::Use(packing);
  for (const uint64_t pass : {5, 7, 8}) asked_in(pass);
  for (const uint64_t pass : {0, 5, 7, 8}) EXPECT_LT(asked_in(pass), 100u);
  uses.clear();
  EXPECT_LT(asked_in(8), 100u);
  EXPECT_GE(asked_in(7), kDocuments);
}

TEST(PackingTest, FewMakeLargeWindowsAtOnce) {
  constexpr uint64_t kWindow = 1 << 20;
  std::atomic<int> now = 0;
  std::atomic<int> most = 0;
  Packing::Options options;
  options.spec = {.length = 64, .window = kWindow};
  options.lengths = {
      "n", [&](uint64_t record) {
        // The first of a window.
        if (record % kWindow == 0) {
          most = std::max<int>(most, ++now);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          --now;
        }
        return ColumnValue(int64_t{1});
      }};
  std::vector<std::unique_ptr<Order>> documents;
  documents.push_back(AllRecords(3 * kWindow));
  const auto at_once = [](size_t count,
                          const std::function<Status(size_t)>& work) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&work, i] { EXPECT_TRUE(work(i).ok()); });
    }
    for (std::thread& thread : threads) thread.join();
    return OkStatus();
  };
  ASSERT_TRUE(Packing::Make(std::move(options), std::move(documents), at_once,
                            {}, [](uint64_t) {})
                  .ok());
  EXPECT_EQ(most, 1);
}

TEST(PackingTest, ASequenceHasAtMostSoManyDocuments) {
  const Lengths lengths = RandomLengths(1000, 9, 8);
  for (const Method method : {Method::kBestFit, Method::kFirstFit}) {
    const PackSpec spec = {
        .length = 64, .method = method, .window = 300, .documents = 5};
    const auto packing = *PackingOf(lengths, spec);
    EXPECT_EQ(packing->totals().in_sequence, 5u);
    Check(lengths, spec, SequencesOf(*packing, 0));
  }
}

TEST(PackingTest, WhatCannotBePackedIsTold) {
  const auto error = [](const Lengths& lengths, const PackSpec& spec) {
    const auto packing = PackingOf(lengths, spec);
    return packing.ok() ? std::string() : packing.status().message();
  };
  EXPECT_THAT(error({0, 0}, {.length = 4}),
              HasSubstr("of 2 documents none has an item"));
  EXPECT_THAT(error({3, 9}, {.length = 4, .longer = Longer::kFail}),
              HasSubstr("record 1 has 9 items, a sequence 4"));
  EXPECT_THAT(error({9}, {.length = 4, .longer = Longer::kDrop}),
              HasSubstr("and at most `length`"));
  EXPECT_THAT(error({uint64_t{1} << 41}, {.length = 4}),
              HasSubstr("has room for"));
  EXPECT_THAT(error({1, 1, 1, 1, 1},
                    {.length = 4, .method = Method::kSplit, .documents = 2}),
              HasSubstr("may put 4 into a sequence"));
  EXPECT_THAT(error(Lengths(2'000'000, 1), {.length = 4, .window = 1}),
              HasSubstr("take a larger window"));
  std::vector<std::unique_ptr<Order>> drawn;
  drawn.push_back(Draw(AllRecords(10), 5, 1, {}));
  EXPECT_THAT(PackingOf(Lengths(10, 1), {.length = 4}, true, std::move(drawn))
                  .status()
                  .message(),
              HasSubstr("a sample has other records in each pass"));
}

}  // namespace penstock::packing_test
