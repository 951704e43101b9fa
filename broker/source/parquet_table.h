// Rows of Parquet and Arrow that a process has decoded (python_parquet.py), in
// a sealed memory: nobody writes there, shrinks it or grows it any more.
//
// Threads: constant once it is taken.
#ifndef BROKER_SOURCE_PARQUET_TABLE_H_
#define BROKER_SOURCE_PARQUET_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "broker/source/source.h"
#include "common/fd.h"
#include "common/segment.h"
#include "common/status.h"

namespace penstock {

struct ParquetColumn {
  // Numbers of one shape; a list of items; text; the bytes of a picture.
  enum class Kind { kArray, kItems, kText, kEncoded };
  std::string name;
  Kind kind = Kind::kArray;
  size_t feature = 0;       // of the source; that of the length follows it
  uint64_t item_bytes = 1;  // of a row of an array, of an item of another
  uint64_t room = 1;        // in items
  std::string shape;        // of an array, or of an item: for messages

  // Another feature has the number of its items.
  bool HasLength() const { return kind == Kind::kItems || kind == Kind::kText; }
};

// What the template says of the columns. nullopt: something else.
std::optional<std::vector<ParquetColumn>> ParquetColumnsOf(
    const nlohmann::json& structure, const RawSpec& features);

// Rows as a worker takes them: features of one size beside each other, those of
// any size behind all rows.
class ParquetRowBuffer {
 public:
  explicit ParquetRowBuffer(const RawSpec& features);

  uint64_t row_bytes() const { return row_bytes_; }
  uint64_t any_size_bytes() const { return any_size_.size(); }
  void Clear(size_t rows);
  std::byte* Place(size_t row, size_t feature) {
    return rows_.data() + row * row_bytes_ + at_[feature];
  }
  void StoreAnySize(size_t row, size_t feature,
                    std::span<const std::byte> bytes);
  // Valid until the next Clear or StoreAnySize.
  void Point(size_t row, RawRecord* raw) const;

 private:
  struct AnySize {
    uint64_t begin;
    uint64_t bytes;
  };
  std::vector<bool> any_;  // of each feature
  std::vector<uint64_t> at_;
  std::vector<uint64_t> bytes_;
  uint64_t row_bytes_ = 0;
  std::vector<std::byte> rows_;
  std::vector<std::byte> any_size_;
};

class ParquetTable {
 public:
  // numbers: how many rows, how many bytes, then of each column where its
  // states, offsets and values begin (0: it has none) and the bytes of its
  // values. Unavailable: the process lied.
  static StatusOr<ParquetTable> Take(std::span<const uint64_t> numbers,
                                     const Fd& memory,
                                     std::span<const ParquetColumn> columns);

  uint64_t rows() const { return rows_; }
  uint64_t bytes() const { return mapping_.bytes(); }

  // Copies a row (< rows()). cuts: longer lists and texts lose their end.
  // DataLoss: a column lacks a value, or has one that does not fit.
  Status Copy(uint64_t row, std::span<const ParquetColumn> columns, bool cuts,
              size_t to, ParquetRowBuffer* buffer) const;

 private:
  struct Values {
    const std::byte* states = nullptr;  // nullptr: all rows have values
    const std::byte* offsets = nullptr;
    std::span<const std::byte> values;
  };
  ParquetTable(Mapping mapping, uint64_t rows)
      : mapping_(std::move(mapping)), rows_(rows) {}
  StatusOr<std::span<const std::byte>> ItemsOf(uint64_t row,
                                               const ParquetColumn& column,
                                               const Values& values) const;

  Mapping mapping_;
  uint64_t rows_ = 0;
  std::vector<Values> columns_;
};

}  // namespace penstock
#endif  // BROKER_SOURCE_PARQUET_TABLE_H_
