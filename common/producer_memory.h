// The memory between a producer and the broker: rows in a ring, feature by
// feature.
//
//   feature 0  [rows, shape...]  feature 1  [rows, shape...]  ...
//
// A memfd of fixed size: the broker makes and seals it, and only the producer
// writes it, so its pages count as the producer's. The broker reads rows with
// pread and never maps it: whatever the producer does meanwhile, only values of
// those rows can be wrong.
//
// Ring positions grow without bound; position p is ring row p % rows. The rows
// of one put are contiguous: a put that does not fit before the ring's end
// skips to its start.
#ifndef COMMON_PRODUCER_MEMORY_H_
#define COMMON_PRODUCER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/element_spec.h"
#include "common/status.h"

namespace penstock {

// Producers at work of one job.
inline constexpr uint32_t kProducersMax = 64;

struct ProducerLayout {
  uint64_t rows = 0;  // of the ring
  std::vector<uint64_t> offsets;
  std::vector<uint64_t> row_bytes;
  uint64_t bytes = 0;

  // Where a feature of the row at this place of the ring begins.
  uint64_t Place(uint64_t row, size_t feature) const {
    return offsets[feature] + row * row_bytes[feature];
  }
};

// ResourceExhausted: more than 2^46 bytes.
StatusOr<ProducerLayout> PlanProducerMemory(const ElementSpec& element,
                                            uint64_t rows);

// The ring position of a put of `rows` rows after a put that ended at end. rows
// is at most ring_rows.
constexpr uint64_t RingPositionOfPut(uint64_t end, uint64_t rows,
                                     uint64_t ring_rows) {
  const uint64_t left = ring_rows - end % ring_rows;
  return rows <= left ? end : end + left;
}

}  // namespace penstock
#endif  // COMMON_PRODUCER_MEMORY_H_
