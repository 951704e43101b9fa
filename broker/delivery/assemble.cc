#include "broker/delivery/assemble.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr int64_t kPaddingId = -1;

// Moves rows up over the left-out ones so that those present are contiguous.
// Returns their number.
uint64_t CloseGaps(const SlotRows& rows, const OpenBatch& batch) {
  std::vector<uint64_t> gaps = batch.left_out;
  std::sort(gaps.begin(), gaps.end());
  uint64_t to = 0;
  size_t gap = 0;
  for (uint64_t from = 0; from < batch.rows.rows; ++from) {
    if (gap < gaps.size() && gaps[gap] == from) {
      ++gap;
      continue;
    }
    if (to != from) rows.Move(from, to);
    ++to;
  }
  return to;
}

}  // namespace

void Assemble(const SlotRows& rows, bool keep_shape, OpenBatch* batch) {
  batch->valid_rows = batch->rows.rows;
  batch->shape_rows = batch->rows.shape_rows;
  if (!batch->left_out.empty()) {
    batch->valid_rows = CloseGaps(rows, *batch);
    if (!keep_shape) batch->shape_rows = batch->valid_rows;
  }
  if (batch->shape_rows > batch->valid_rows) {
    rows.Pad(batch->valid_rows, batch->shape_rows, kPaddingId);
  }
}

}  // namespace penstock
