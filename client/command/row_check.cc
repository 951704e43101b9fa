#include "client/command/row_check.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "common/format.h"
#include "common/hash.h"

namespace penstock {
namespace {

// Sort key: position, then sample, then bytes.
auto OrderKey(const RowRecord& row) {
  return std::tie(row.epoch, row.step, row.rank, row.row, row.sample_id,
                  row.crc32);
}
auto PositionAndSample(const RowRecord& row) {
  return std::tie(row.epoch, row.step, row.rank, row.row, row.sample_id);
}

void SortSamples(std::vector<RowRecord>& rows) {
  std::erase_if(rows, [](const RowRecord& row) { return row.sample_id < 0; });
  const auto before = [](const RowRecord& a, const RowRecord& b) {
    return OrderKey(a) < OrderKey(b);
  };
  // Often in order already: one rank, or the replay.
  if (!std::is_sorted(rows.begin(), rows.end(), before)) {
    std::sort(rows.begin(), rows.end(), before);
  }
}

// The end of the run of rows with the position and sample of rows[begin].
size_t EndOfRun(const std::vector<RowRecord>& rows, size_t begin) {
  size_t end = begin;
  while (end < rows.size() &&
         PositionAndSample(rows[end]) == PositionAndSample(rows[begin])) {
    ++end;
  }
  return end;
}

}  // namespace

RowCheck CheckRows(std::vector<RowRecord>& expected,
                   std::vector<RowRecord>& delivered) {
  SortSamples(expected);
  SortSamples(delivered);
  RowCheck check;
  // The rest, once rows at their position are paired: (epoch, sample) -> rows
  // expected and delivered.
  struct Left {
    uint64_t expected = 0;
    uint64_t delivered = 0;
  };
  std::map<std::pair<uint64_t, int64_t>, Left> left;
  const auto left_of = [&](const RowRecord& row) -> Left& {
    return left[{row.epoch, row.sample_id}];
  };
  size_t e = 0, d = 0;
  while (e < expected.size() || d < delivered.size()) {
    if (d == delivered.size() ||
        (e < expected.size() &&
         PositionAndSample(expected[e]) < PositionAndSample(delivered[d]))) {
      ++left_of(expected[e++]).expected;
      continue;
    }
    if (e == expected.size() ||
        PositionAndSample(delivered[d]) < PositionAndSample(expected[e])) {
      ++left_of(delivered[d++]).delivered;
      continue;
    }
    // One position, one sample: one row each, unless something is wrong. Pairs
    // equal bytes first.
    const size_t e_end = EndOfRun(expected, e);
    const size_t d_end = EndOfRun(delivered, d);
    const uint64_t pairs = std::min(e_end - e, d_end - d);
    uint64_t same_bytes = 0;
    for (size_t i = e, j = d; i < e_end && j < d_end;) {
      if (expected[i].crc32 == delivered[j].crc32) {
        ++same_bytes, ++i, ++j;
      } else if (expected[i].crc32 < delivered[j].crc32) {
        ++i;
      } else {
        ++j;
      }
    }
    check.verified += same_bytes;
    check.corrupt += pairs - same_bytes;
    if (e_end - e > pairs) left_of(expected[e]).expected += e_end - e - pairs;
    if (d_end - d > pairs) left_of(delivered[d]).delivered += d_end - d - pairs;
    e = e_end;
    d = d_end;
  }
  for (const auto& [key, rows] : left) {
    const uint64_t both = std::min(rows.expected, rows.delivered);
    check.misplaced += both;
    check.missing += rows.expected - both;
    check.duplicated += rows.delivered - both;
  }
  const auto sample = [](const RowRecord& row) {
    return std::pair(row.epoch, row.sample_id);
  };
  std::sort(expected.begin(), expected.end(),
            [&](const RowRecord& a, const RowRecord& b) {
              return sample(a) < sample(b);
            });
  for (size_t i = 1; i < expected.size(); ++i) {
    if (sample(expected[i]) == sample(expected[i - 1])) ++check.repeated;
  }
  return check;
}

std::vector<std::string> OrderDigests(std::vector<RowRecord>& delivered) {
  SortSamples(delivered);
  std::vector<uint64_t> digests;
  for (size_t i = 0; i < delivered.size(); ++i) {
    const RowRecord& row = delivered[i];
    if (i == 0 || row.epoch != delivered[i - 1].epoch) {
      digests.push_back(kFnv1aBasis);
    }
    for (int shift = 0; shift < 64; shift += 8) {
      digests.back() = Fnv1aByte(digests.back(),
                                 static_cast<uint8_t>(row.sample_id >> shift));
    }
  }
  std::vector<std::string> texts;
  for (const uint64_t digest : digests) {
    texts.push_back(Format("{:016x}", digest));
  }
  return texts;
}

}  // namespace penstock
