// Proves that every sample came as often as planned, which is once unless the
// spec repeats some: compares the delivered rows with the plan's, made another
// way.
#ifndef CLIENT_COMMAND_ROW_CHECK_H_
#define CLIENT_COMMAND_ROW_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

namespace penstock {

// One row of a batch. `penstockd --replay` writes these records one after the
// other, in the machine's byte order.
struct RowRecord {
  uint64_t epoch;
  uint64_t step;
  uint32_t rank;
  uint32_t row;       // index in the rank batch
  int64_t sample_id;  // negative: padding, which is not counted
  uint32_t crc32;     // zlib's, over the bytes of all features in their order
  uint32_t zero;
};
static_assert(sizeof(RowRecord) == 40);

// Each expected or delivered row is in one of these, so that expected rows =
// verified + corrupt + misplaced + missing, delivered rows = verified + corrupt
// + misplaced + duplicated.
struct RowCheck {
  uint64_t verified = 0;    // right sample, position and bytes
  uint64_t corrupt = 0;     // right sample and position, other bytes
  uint64_t misplaced = 0;   // in its epoch, at another step, rank or row
  uint64_t missing = 0;     // not delivered in its epoch
  uint64_t duplicated = 0;  // delivered too often in its epoch

  // Expected rows whose sample its epoch has before: of `repeat`, `sample`,
  // `shard: off` and so on.
  uint64_t repeated = 0;

  bool ok() const { return corrupt + misplaced + missing + duplicated == 0; }
};

// Changes the order of both.
RowCheck CheckRows(std::vector<RowRecord>& expected,
                   std::vector<RowRecord>& delivered);

// One digest of the sample order per delivered epoch, in the epochs' order:
// FNV-1a over the ids by step, then rank, then row; 16 hexadecimal digits. The
// same for any number of ranks with the same global batches. Sorts.
std::vector<std::string> OrderDigests(std::vector<RowRecord>& delivered);

}  // namespace penstock
#endif  // CLIENT_COMMAND_ROW_CHECK_H_
