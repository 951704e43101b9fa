#include "broker/source/parquet_table.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "broker/index/values.h"
#include "broker/source/text_field.h"

namespace penstock {
namespace {

// What python_parquet.py says of a row's value.
enum State : uint8_t { kValue, kNull, kOtherShape, kEmpty };

constexpr uint64_t kColumnNumbers = 4;
constexpr uint64_t kEncodedBytesMax = uint64_t{512} << 20;

Status Lied() { return UnavailableError("its process gave a wrong answer"); }

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + Format("{}", size);
  }
  return text + "]";
}

std::optional<ParquetColumn> ColumnOf(const nlohmann::json& said,
                                      const RawSpec& features) {
  using Kind = ParquetColumn::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"array", Kind::kArray},
      {"items", Kind::kItems},
      {"text", Kind::kText},
      {"bytes", Kind::kEncoded}};
  const auto text = [&](const char* key) {
    return said.is_object() && said.contains(key) && said[key].is_string()
               ? said[key].get<std::string>()
               : "";
  };
  ParquetColumn column;
  column.name = text("name");
  const auto* const kind = std::find_if(
      std::begin(kKinds), std::end(kKinds),
      [&](const auto& each) { return each.first == text("kind"); });
  // The first of its features has its name.
  const auto feature = std::find_if(
      features.begin(), features.end(),
      [&](const RawFeature& each) { return each.feature.name == column.name; });
  if (kind == std::end(kKinds) || feature == features.end()) return {};
  column.kind = kind->second;
  column.feature = static_cast<size_t>(feature - features.begin());
  if (feature->encoded != (column.kind == Kind::kEncoded)) return {};
  if (column.kind == Kind::kEncoded) return column;
  std::span<const int64_t> shape = feature->feature.shape;
  column.item_bytes = feature->feature.RowBytes();
  if (column.kind != Kind::kArray) {
    // Its length follows.
    if (shape.empty() || shape[0] < 1 || feature + 1 == features.end() ||
        feature[1].feature.dtype != DType::kInt64 ||
        !feature[1].feature.shape.empty()) {
      return {};
    }
    column.room = static_cast<uint64_t>(shape[0]);
    column.item_bytes /= column.room;
    shape = shape.subspan(1);
  }
  if (column.item_bytes == 0) return {};
  column.shape = ShapeText(shape);
  return column;
}

}  // namespace

std::optional<std::vector<ParquetColumn>> ParquetColumnsOf(
    const nlohmann::json& structure, const RawSpec& features) {
  std::vector<ParquetColumn> columns;
  if (!structure.is_array()) return {};
  for (const nlohmann::json& said : structure) {
    std::optional<ParquetColumn> column = ColumnOf(said, features);
    if (!column) return {};
    columns.push_back(*std::move(column));
  }
  return columns;
}

// ---- rows

ParquetRowBuffer::ParquetRowBuffer(const RawSpec& features) {
  constexpr uint64_t kAlign = 8;
  for (const RawFeature& each : features) {
    any_.push_back(each.encoded);
    at_.push_back(row_bytes_);
    bytes_.push_back(each.encoded ? sizeof(AnySize) : each.feature.RowBytes());
    row_bytes_ += (bytes_.back() + kAlign - 1) / kAlign * kAlign;
  }
}

void ParquetRowBuffer::Clear(size_t rows) {
  rows_.resize(rows * row_bytes_);
  any_size_.clear();
}

void ParquetRowBuffer::StoreAnySize(size_t row, size_t feature,
                                    std::span<const std::byte> bytes) {
  const AnySize place = {any_size_.size(), bytes.size()};
  any_size_.insert(any_size_.end(), bytes.begin(), bytes.end());
  std::memcpy(Place(row, feature), &place, sizeof(place));
}

void ParquetRowBuffer::Point(size_t row, RawRecord* raw) const {
  const std::span<const std::byte> whole =
      std::span(rows_).subspan(row * row_bytes_, row_bytes_);
  raw->clear();
  for (size_t i = 0; i < at_.size(); ++i) {
    raw->push_back(whole.subspan(at_[i], bytes_[i]));
    if (!any_[i]) continue;
    const auto place = ValueAt<AnySize>(raw->back().data());
    raw->back() = std::span(any_size_).subspan(place.begin, place.bytes);
  }
}

// ---- tables

StatusOr<ParquetTable> ParquetTable::Take(
    std::span<const uint64_t> numbers, const Fd& memory,
    std::span<const ParquetColumn> columns) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  struct stat status = {};
  if (numbers.size() != 2 + kColumnNumbers * columns.size() || !memory ||
      (fcntl(memory.get(), F_GET_SEALS) & kSeals) != kSeals ||
      fcntl(memory.get(), F_GET_SEALS) < 0 ||
      fstat(memory.get(), &status) != 0 || status.st_size <= 0 ||
      static_cast<uint64_t>(status.st_size) != numbers[1]) {
    return Lied();
  }
  const uint64_t rows = numbers[0];
  const uint64_t bytes = numbers[1];
  PENSTOCK_ASSIGN_OR_RETURN(
      Mapping mapping, Mapping::Map(memory.get(), bytes, /*writable=*/false));
  // All of its rows are wanted, as a rule: no fault for each page. Old kernels
  // have no such advice.
  (void)madvise(mapping.data(), bytes, MADV_POPULATE_READ);
  ParquetTable table(std::move(mapping), rows);
  const std::span<const std::byte> whole(table.mapping_.data(), bytes);
  // So many items of so many bytes lie there.
  const auto lies = [bytes](uint64_t at, uint64_t items, uint64_t item_bytes) {
    return at <= bytes && items <= (bytes - at) / item_bytes;
  };
  numbers = numbers.subspan(2);
  for (const ParquetColumn& column : columns) {
    const uint64_t states = numbers[0], offsets = numbers[1];
    const uint64_t at = numbers[2], size = numbers[3];
    numbers = numbers.subspan(kColumnNumbers);
    const bool is_array = column.kind == ParquetColumn::Kind::kArray;
    if (!lies(states, rows, 1) || !lies(at, size, 1) ||
        (is_array ? rows > size / column.item_bytes
                  : offsets == 0 || rows == UINT64_MAX ||
                        !lies(offsets, rows + 1, sizeof(int64_t)))) {
      return Lied();
    }
    table.columns_.push_back({states == 0 ? nullptr : whole.data() + states,
                              is_array ? nullptr : whole.data() + offsets,
                              whole.subspan(at, size)});
  }
  return table;
}

StatusOr<std::span<const std::byte>> ParquetTable::ItemsOf(
    uint64_t row, const ParquetColumn& column, const Values& values) const {
  const auto begin = ValueAt<uint64_t>(values.offsets + row * sizeof(uint64_t));
  const auto end =
      ValueAt<uint64_t>(values.offsets + (row + 1) * sizeof(uint64_t));
  const uint64_t items = values.values.size() / column.item_bytes;
  if (begin > end || end > items) {
    return DataLossError("column '{}': its offsets are damaged", column.name);
  }
  return values.values.subspan(begin * column.item_bytes,
                               (end - begin) * column.item_bytes);
}

Status ParquetTable::Copy(uint64_t row, std::span<const ParquetColumn> columns,
                          bool cuts, size_t to,
                          ParquetRowBuffer* buffer) const {
  using Kind = ParquetColumn::Kind;
  for (size_t i = 0; i < columns.size(); ++i) {
    const ParquetColumn& column = columns[i];
    const Values& values = columns_[i];
    const auto state = values.states == nullptr
                           ? kValue
                           : static_cast<State>(values.states[row]);
    if (state == kNull) {
      return DataLossError(
          "column '{}' is null; give it a `default` if that is right",
          column.name);
    }
    if (state == kOtherShape) {
      const bool is_array = column.kind == Kind::kArray;
      return DataLossError(
          "column '{0}' has a null within, or another shape than {1}{2}",
          column.name, column.shape,
          is_array ? Format(": max_length: {{{}: ...}} is the room for lists "
                            "that differ",
                            column.name)
                   : " of its items");
    }
    if (column.kind == Kind::kArray) {
      std::memcpy(buffer->Place(to, column.feature),
                  values.values.data() + row * column.item_bytes,
                  column.item_bytes);
      continue;
    }
    PENSTOCK_ASSIGN_OR_RETURN(std::span<const std::byte> items,
                              ItemsOf(row, column, values));
    if (state == kEmpty) items = {};
    if (column.kind == Kind::kEncoded) {
      if (items.size() > kEncodedBytesMax) {
        return DataLossError("column '{}' has {} bytes; at most {}",
                             column.name, items.size(), kEncodedBytesMax);
      }
      buffer->StoreAnySize(to, column.feature, items);
      continue;
    }
    uint64_t count = items.size() / column.item_bytes;
    if (column.kind == Kind::kText) {
      const std::string_view text(reinterpret_cast<const char*>(items.data()),
                                  items.size());
      if (const auto bad = FindNotUtf8(text)) {
        return DataLossError(
            "column '{}' is not UTF-8 at byte {}: store it as binary, and give "
            "max_length for its bytes",
            column.name, *bad);
      }
      if (count > column.room && !cuts) {
        return DataLossError(
            "column '{}': text of {} bytes; at most {} fit (max_bytes, or "
            "`longer: cut`)",
            column.name, count, column.room);
      }
      if (count > column.room) count = CutText(text, column.room);
    } else if (count > column.room) {
      if (!cuts) {
        return DataLossError(
            "column '{}': a list of {}; at most {} fit (max_length, or "
            "`longer: cut`)",
            column.name, count, column.room);
      }
      count = column.room;
    }
    std::byte* const place = buffer->Place(to, column.feature);
    const uint64_t used = count * column.item_bytes;
    std::copy_n(items.data(), used, place);
    std::fill(place + used, place + column.room * column.item_bytes,
              std::byte{});
    std::memcpy(buffer->Place(to, column.feature + 1), &count, sizeof(count));
  }
  return OkStatus();
}

}  // namespace penstock
