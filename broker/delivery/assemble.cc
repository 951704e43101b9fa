#include "broker/delivery/assemble.h"

#include <algorithm>
#include <cstring>

namespace penstock {
namespace {

constexpr int64_t kPaddingId = -1;

// Moves rows up over the left-out ones so that those present are contiguous.
// Returns their number.
uint64_t CloseGaps(const Segment& segment, const ElementSpec& spec,
                   const OpenBatch& batch, uint32_t slot) {
  std::vector<uint64_t> gaps = batch.left_out;
  std::sort(gaps.begin(), gaps.end());
  int64_t* ids = segment.ids(slot);
  uint64_t to = 0;
  size_t gap = 0;
  for (uint64_t from = 0; from < batch.rows.rows; ++from) {
    if (gap < gaps.size() && gaps[gap] == from) {
      ++gap;
      continue;
    }
    if (to != from) {
      ids[to] = ids[from];
      for (size_t i = 0; i < spec.size(); ++i) {
        const uint64_t bytes = spec[i].RowBytes();
        std::byte* rows = segment.feature(slot, i);
        std::memcpy(rows + to * bytes, rows + from * bytes, bytes);
      }
    }
    ++to;
  }
  return to;
}

void Pad(const Segment& segment, const ElementSpec& spec,
         const OpenBatch& batch, uint32_t slot) {
  int64_t* ids = segment.ids(slot);
  std::fill(ids + batch.valid_rows, ids + batch.shape_rows, kPaddingId);
  for (size_t i = 0; i < spec.size(); ++i) {
    const uint64_t bytes = spec[i].RowBytes();
    std::memset(segment.feature(slot, i) + batch.valid_rows * bytes, 0,
                (batch.shape_rows - batch.valid_rows) * bytes);
  }
}

}  // namespace

void Assemble(const Segment& segment, const ElementSpec& spec, bool keep_shape,
              uint32_t slot, OpenBatch* batch) {
  batch->valid_rows = batch->rows.rows;
  batch->shape_rows = batch->rows.shape_rows;
  if (!batch->left_out.empty()) {
    batch->valid_rows = CloseGaps(segment, spec, *batch, slot);
    if (!keep_shape) batch->shape_rows = batch->valid_rows;
  }
  if (batch->shape_rows > batch->valid_rows) Pad(segment, spec, *batch, slot);
}

void CopyRows(const Segment& segment, const ElementSpec& spec, uint32_t from,
              uint32_t to, uint64_t begin, uint64_t end) {
  std::copy(segment.ids(from) + begin, segment.ids(from) + end,
            segment.ids(to) + begin);
  for (size_t i = 0; i < spec.size(); ++i) {
    const uint64_t bytes = spec[i].RowBytes();
    std::memcpy(segment.feature(to, i) + begin * bytes,
                segment.feature(from, i) + begin * bytes,
                (end - begin) * bytes);
  }
}

}  // namespace penstock
