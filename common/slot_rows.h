// Where the rows of a batch lie in its slot: nothing else in the broker
// computes it.
//
// Threads: rows that no other thread has.
#ifndef COMMON_SLOT_ROWS_H_
#define COMMON_SLOT_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "common/element_spec.h"

namespace penstock {

class SlotRows {
 public:
  // A feature of the batch.
  struct Column {
    std::byte* first = nullptr;
    uint64_t row_bytes = 0;  // 0: one value for all rows
    const Feature* feature = nullptr;
  };

  SlotRows() = default;
  SlotRows(int64_t* ids, std::vector<Column> columns)
      : ids_(ids), columns_(std::move(columns)) {}

  size_t features() const { return columns_.size(); }
  int64_t& Id(uint64_t row) const { return ids_[row]; }
  std::byte* Place(uint64_t row, size_t feature) const {
    return columns_[feature].first + row * columns_[feature].row_bytes;
  }

  // Copies row `from` over row `to`.
  void Move(uint64_t from, uint64_t to) const {
    ids_[to] = ids_[from];
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::memcpy(Place(to, i), Place(from, i), columns_[i].row_bytes);
    }
  }
  // Copies rows [begin, end) to the same rows of another slot.
  void Copy(uint64_t begin, uint64_t end, const SlotRows& to) const {
    std::copy(ids_ + begin, ids_ + end, to.ids_ + begin);
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::memcpy(to.Place(begin, i), Place(begin, i),
                  columns_[i].feature->BytesUsed(end - begin, Place(begin, i)));
    }
  }
  // Makes rows [begin, end) padding: zeros, with this id.
  void Pad(uint64_t begin, uint64_t end, int64_t id) const {
    std::fill(ids_ + begin, ids_ + end, id);
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::memset(Place(begin, i), 0, (end - begin) * columns_[i].row_bytes);
    }
  }

 private:
  int64_t* ids_ = nullptr;
  std::vector<Column> columns_;
};

}  // namespace penstock
#endif  // COMMON_SLOT_ROWS_H_
