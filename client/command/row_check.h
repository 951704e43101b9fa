// Proof that every sample came exactly once: what the ranks got, row by row,
// against what the plan says, made another way.
#ifndef CLIENT_COMMAND_ROW_CHECK_H_
#define CLIENT_COMMAND_ROW_CHECK_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock {

// One row of a batch. Also the format of `penstockd --replay`: these bytes, one
// record after the other, in the machine's byte order.
struct RowRecord {
  uint64_t epoch;
  uint64_t step;
  uint32_t rank;
  uint32_t row;       // in the rank's batch
  int64_t sample_id;  // negative: padding, which is not counted
  uint32_t crc32;     // zlib's, over the bytes of all features in their order
  uint32_t zero;
};
static_assert(sizeof(RowRecord) == 40);

// Each expected or delivered row is in one of these, so that expected rows =
// verified + corrupt + misplaced + missing, delivered rows = verified + corrupt
// + misplaced + duplicated.
struct RowCheck {
  uint64_t verified = 0;    // the right sample, place and bytes
  uint64_t corrupt = 0;     // the right sample and place, other bytes
  uint64_t misplaced = 0;   // came in its epoch, at another step, rank or row
  uint64_t missing = 0;     // did not come in its epoch
  uint64_t duplicated = 0;  // came more often in its epoch than it should

  bool ok() const { return corrupt + misplaced + missing + duplicated == 0; }
};

// Sorts both.
RowCheck CheckRows(std::vector<RowRecord>& expected,
                   std::vector<RowRecord>& delivered);

// The order of samples of each epoch, as one number: FNV-1a over the ids, by
// step, then rank, then row; 16 hexadecimal digits. The same for any number of
// ranks that share the same global batches. One for each epoch of which a row
// was delivered, in their order. Sorts.
std::vector<std::string> OrderDigests(std::vector<RowRecord>& delivered);

}  // namespace penstock
#endif  // CLIENT_COMMAND_ROW_CHECK_H_
