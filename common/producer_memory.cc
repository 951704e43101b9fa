#include "common/producer_memory.h"

namespace penstock {
namespace {

constexpr uint64_t kAlign = 64;
constexpr uint64_t kBytesMax = uint64_t{1} << 46;

}  // namespace

StatusOr<ProducerLayout> PlanProducerMemory(const ElementSpec& element,
                                            uint64_t rows) {
  ProducerLayout layout;
  layout.rows = rows;
  for (const Feature& feature : element) {
    const uint64_t row_bytes = feature.RowBytes();
    // Divide: the product overflows.
    if (rows == 0 || row_bytes > (kBytesMax - layout.bytes) / rows) {
      return ResourceExhaustedError(
          "a producer's memory of {} rows of {}: more than {} bytes", rows,
          feature.ToString(), kBytesMax);
    }
    layout.offsets.push_back(layout.bytes);
    layout.row_bytes.push_back(row_bytes);
    layout.bytes += (rows * row_bytes + kAlign - 1) / kAlign * kAlign;
  }
  return layout;
}

}  // namespace penstock
